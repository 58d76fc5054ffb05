//! Casts and AT TIME ZONE as functions of DataFusion.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, FieldRef, TimeUnit};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::cast::{cast, is_own, try_cast};
use super::functions::{any, call, result, strict_field};
use super::zone::{STORED, Zone, has_instants, is_instant};
use crate::Error;
use crate::base::type_name;

/// The cast of `expr`, of type `from`; `None` if Arrow's cast has the same result.
pub(crate) fn conversion(expr: &Expr, from: &DataType, to: &DataType, is_try: bool, zone: Zone) -> Option<Expr> {
    let name = format!("{} to {}", if is_try { "try_cast" } else { "cast" }, type_name(to));
    let is_own = is_own(from, to, zone);
    // The same cast in all sessions if it has the same results.
    let zone = if has_instants(from) || has_instants(to) { zone } else { Zone::UTC };
    is_own.then(|| call(Conversion { name, to: to.clone(), is_try, zone, signature: any(1) }, vec![expr.clone()]))
}

/// True for a cast of this module.
pub(crate) fn is_conversion(function: &ScalarUDF) -> bool {
    function.inner().is::<Conversion>()
}

/// A cast.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Conversion {
    /// Names the type: results of different casts have different names.
    name: String,
    to: DataType,
    is_try: bool,
    zone: Zone,
    signature: Signature,
}

impl ScalarUDFImpl for Conversion {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let field = strict_field(&self.name, self.to.clone(), &args);
        Ok(if self.is_try { Arc::new(field.as_ref().clone().with_nullable(true)) } else { field })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let convert = |values: &ArrayRef| match self.is_try {
            true => try_cast(values, &self.to, self.zone),
            false => cast(values, &self.to, self.zone),
        };
        match &args.args[0] {
            ColumnarValue::Array(values) => result(convert(values)?, false),
            ColumnarValue::Scalar(value) => result(convert(&value.to_array()?)?, true),
        }
    }
}

/// `timezone(zone, time)`: `time AT TIME ZONE zone`.
pub(crate) fn at_time_zone() -> ScalarUDF {
    ScalarUDF::new_from_impl(AtTimeZone { signature: Signature::user_defined(Volatility::Immutable) })
}

/// Local time of an instant, and instant of a local time.
#[derive(Debug, PartialEq, Eq, Hash)]
struct AtTimeZone {
    signature: Signature,
}

impl ScalarUDFImpl for AtTimeZone {
    fn name(&self) -> &str {
        "timezone"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Dates and texts are instants, as in PostgreSQL.
    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [zone, time] = types else { return Err(undefined(types)) };
        let time = match time {
            DataType::Timestamp(..) => time.clone(),
            DataType::Null | DataType::Date32 | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                DataType::Timestamp(TimeUnit::Microsecond, Some(STORED.into()))
            }
            _ => return Err(undefined(types)),
        };
        match zone {
            DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                Ok(vec![DataType::Utf8View, time])
            }
            _ => Err(undefined(types)),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match &types[1] {
            DataType::Timestamp(unit, Some(_)) => Ok(DataType::Timestamp(*unit, None)),
            DataType::Timestamp(unit, None) => Ok(DataType::Timestamp(*unit, Some(STORED.into()))),
            _ => Err(undefined(types)),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(strict_field(self.name(), self.return_type(&types)?, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_single = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let rows = if is_single { 1 } else { args.number_rows };
        let times = args.args[1].to_array(rows)?;
        let one_zone = matches!(args.args[0], ColumnarValue::Scalar(_));
        let zones = args.args[0].to_array(if one_zone { 1 } else { rows })?;
        let zones = zones.as_string_view();
        if one_zone {
            return result(convert(&times, zones, 0)?, is_single);
        }
        // A conversion for each row.
        let converted = (0..rows).map(|row| convert(&times.slice(row, 1), zones, row));
        let converted = converted.collect::<crate::Result<Vec<ArrayRef>>>()?;
        if converted.is_empty() {
            return result(Zone::UTC.to_local(&times)?, false);
        }
        let arrays: Vec<&dyn Array> = converted.iter().map(AsRef::as_ref).collect();
        let places: Vec<(usize, usize)> = (0..rows).map(|row| (row, 0)).collect();
        result(interleave(&arrays, &places)?, false)
    }
}

/// Converts times with the zone at `row`.
fn convert(times: &ArrayRef, zones: &StringViewArray, row: usize) -> crate::Result<ArrayRef> {
    let to_local = is_instant(times.data_type());
    let zone = if zones.is_null(row) { Zone::UTC } else { Zone::named(zones.value(row))? };
    let converted = if to_local { zone.to_local(times)? } else { zone.to_instants(times)? };
    if zones.is_null(row) {
        return Ok(arrow::array::new_null_array(converted.data_type(), times.len()));
    }
    match converted.null_count() > times.null_count() {
        true => Err(Error::OutOfRange { ty: "timestamp".into(), value: None, column: None }),
        false => Ok(converted),
    }
}

fn undefined(types: &[DataType]) -> datafusion::error::DataFusionError {
    let types: Vec<String> = types.iter().map(type_name).collect();
    Error::UndefinedFunction { signature: format!("function timezone({})", types.join(", ")) }.into()
}
