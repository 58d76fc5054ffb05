//! Functions that make UUIDs.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use uuid::Uuid;

use crate::base::uuids::{UUID, array};

/// `gen_random_uuid()`, `uuidv4()` and `uuid()`: random UUIDs, version 4.
pub(crate) fn random() -> ScalarUDF {
    ScalarUDF::new_from_impl(Make::new("uuid", &["gen_random_uuid", "uuidv4"], Version::Random))
}

/// `uuidv7()`: UUIDs of version 7 (RFC 9562), which ascend with the time and therefore suit keys.
pub(crate) fn ascending() -> ScalarUDF {
    ScalarUDF::new_from_impl(Make::new("uuidv7", &[], Version::Ascending))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Version {
    Random,
    Ascending,
}

/// A function without arguments that makes a UUID for each row.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Make {
    name: &'static str,
    aliases: Vec<String>,
    version: Version,
    signature: Signature,
}

impl Make {
    fn new(name: &'static str, aliases: &[&str], version: Version) -> Make {
        let aliases = aliases.iter().map(|alias| (*alias).into()).collect();
        Make { name, aliases, version, signature: Signature::nullary(Volatility::Volatile) }
    }
}

impl ScalarUDFImpl for Make {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(UUID)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let make = || match self.version {
            Version::Random => Uuid::new_v4(),
            Version::Ascending => Uuid::now_v7(),
        };
        let uuids = (0..args.number_rows).map(|_| Some(make()));
        Ok(ColumnarValue::Array(Arc::new(array(uuids)) as ArrayRef))
    }
}
