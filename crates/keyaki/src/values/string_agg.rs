//! The aggregate function `string_agg`, which does not need sorted input.
//!
//! DataFusion has delimiters that are literals. For others, [`OF_PAIRS`] concatenates an array of delimiters and texts.
//!
//! DataFusion requires the order of `string_agg(… ORDER BY …)` of the input, and refuses an aggregation with two orders. Its
//! accumulator sorts its rows in any case. For [`StringAgg`], sorted input is only an optimization.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewBuilder, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result;
use datafusion::functions_aggregate::string_agg::string_agg_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, Documentation, GroupsAccumulator, ReversedUDAF,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

use super::functions::{any, arrays, result};
use crate::base::arrays::lists;

/// The function.
pub(crate) fn string_agg() -> AggregateUDF {
    AggregateUDF::new_from_impl(StringAgg { inner: string_agg_udaf() })
}

/// The name of the function of an array of arrays, each of a delimiter and the text behind it.
pub(crate) const OF_PAIRS: &str = "string_agg_of_pairs";

/// The function [`OF_PAIRS`].
pub(crate) fn of_pairs() -> ScalarUDF {
    ScalarUDF::new_from_impl(OfPairs { signature: any(1) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OfPairs {
    signature: Signature,
}

impl ScalarUDFImpl for OfPairs {
    fn name(&self) -> &str {
        OF_PAIRS
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8View)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let Some(groups) = lists(&arrays[0])? else {
            return result(new_null_array(&DataType::Utf8View, arrays[0].len()), is_single);
        };
        let mut texts = StringViewBuilder::with_capacity(groups.len());
        for group in groups.iter() {
            match group {
                Some(pairs) => texts.append_value(concatenated(&pairs)?),
                None => texts.append_null(),
            }
        }
        result(Arc::new(texts.finish()), is_single)
    }
}

/// The texts of pairs, with the delimiters of all but the first before them. NULL stands for no delimiter.
fn concatenated(pairs: &ArrayRef) -> Result<String> {
    let mut text = String::new();
    let Some(pairs) = lists(pairs)? else { return Ok(text) };
    let parts = cast(pairs.values(), &DataType::Utf8View)?;
    let parts = parts.as_string_view();
    for (i, offsets) in pairs.value_offsets().windows(2).enumerate() {
        // The delimiter of the first text is not used.
        for part in offsets[0] as usize + usize::from(i == 0)..offsets[1] as usize {
            if parts.is_valid(part) {
                text.push_str(parts.value(part));
            }
        }
    }
    Ok(text)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct StringAgg {
    /// DataFusion's function.
    inner: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for StringAgg {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.inner.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::SoftRequirement
    }

    fn with_beneficial_ordering(self: Arc<Self>, _: bool) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        Ok(Some(self))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Reversed(Arc::new(string_agg()))
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}
