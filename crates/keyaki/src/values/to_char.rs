//! `to_char` of numbers, timestamps, times and intervals. A format with `%` is one of chrono, which DataFusion
//! evaluates.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray, StringViewBuilder};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Decimal128Type, FieldRef, Float64Type, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{arrays, coerced, result, strict_field, undefined};
use super::number_templates::{Number, NumberTemplate};
use super::time_templates::{Time, TimeTemplate};
use super::zone::{STORED, Zone};
use crate::base::intervals::{INTERVAL, intervals, is_interval};
use crate::{Error, Result};

/// The type of integers.
const INTEGER: DataType = DataType::Decimal128(20, 0);
const TIME: DataType = DataType::Time64(TimeUnit::Microsecond);

/// The function.
pub(crate) fn to_char() -> ScalarUDF {
    let inner = datafusion::functions::datetime::to_char();
    let signature = Signature::user_defined(Volatility::Immutable);
    ScalarUDF::new_from_impl(ToChar { aliases: inner.aliases().to_vec(), inner, signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToChar {
    /// DataFusion's function.
    inner: Arc<ScalarUDF>,
    aliases: Vec<String>,
    signature: Signature,
}

impl ScalarUDFImpl for ToChar {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let [value, template] = types else { return Err(undefined(self.name(), types)) };
        if !template.is_string() && !template.is_null() {
            return Err(undefined(self.name(), types));
        }
        let value = match value {
            ty if ty.is_integer() => INTEGER,
            DataType::Decimal128(..) | DataType::Float64 => value.clone(),
            ty if ty.is_floating() => DataType::Float64,
            ty if ty.is_decimal() => DataType::Decimal128(38, 10),
            ty if is_interval(ty) => INTERVAL,
            _ => return coerced(&self.inner, types),
        };
        Ok(vec![value, DataType::Utf8View])
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(self.name(), DataType::Utf8, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let ty = args.args[0].data_type();
        let (arrays, is_single) = arrays(&args)?;
        let templates = cast(&arrays[1], &DataType::Utf8View)?;
        let templates = templates.as_string_view();
        let is_time = ty.is_temporal() && !is_interval(&ty);
        if is_time && templates.iter().flatten().any(|template| template.contains('%')) {
            return self.inner.invoke_with_args(args);
        }
        let texts = texts(&arrays[0], templates)?;
        result(cast(&texts, &DataType::Utf8)?, is_single)
    }
}

/// The values as texts, each with the template of its row.
fn texts(values: &ArrayRef, templates: &StringViewArray) -> Result<ArrayRef> {
    match values.data_type() {
        DataType::Decimal128(_, scale) => {
            let numbers = values.as_primitive::<Decimal128Type>();
            let scale = (*scale).max(0) as usize;
            let number = |row: usize| {
                let value = numbers.value(row);
                Number::Decimal { is_negative: value < 0, digits: value.unsigned_abs().to_string(), scale }
            };
            each(values, templates, NumberTemplate::parse, |template, row, text| {
                text.push_str(&template.format(&number(row)));
                Ok(())
            })
        }
        DataType::Float64 => {
            let numbers = values.as_primitive::<Float64Type>();
            each(values, templates, NumberTemplate::parse, |template, row, text| {
                text.push_str(&template.format(&Number::Float(numbers.value(row))));
                Ok(())
            })
        }
        DataType::Interval(_) | DataType::Duration(_) => {
            let intervals = intervals(values).ok_or_else(|| Error::Internal("to_char of an interval".into()))?;
            each(values, templates, TimeTemplate::parse, |template, row, text| {
                template.format(&Time::of_interval(intervals.value(row)), text)
            })
        }
        DataType::Time32(_) | DataType::Time64(_) => {
            let times = cast(values, &TIME)?;
            let times = times.as_primitive::<Time64MicrosecondType>();
            each(values, templates, TimeTemplate::parse, |template, row, text| {
                template.format(&Time::of_clock(times.value(row)), text)
            })
        }
        ty => {
            let label = match ty {
                DataType::Timestamp(_, label) => label.clone(),
                _ => None,
            };
            let times = cast(values, &DataType::Timestamp(TimeUnit::Microsecond, label.clone()))?;
            let times = match label {
                Some(label) if *label != *STORED => Zone::named(&label)?.to_local(&times)?,
                _ => times,
            };
            let times = times.as_primitive::<TimestampMicrosecondType>();
            each(values, templates, TimeTemplate::parse, |template, row, text| {
                template.format(&Time::of_timestamp(times.value(row)), text)
            })
        }
    }
}

/// Formats all rows. A template is parsed once for neighbouring rows.
fn each<T>(
    values: &ArrayRef,
    templates: &StringViewArray,
    parse: impl Fn(&str) -> Result<T>,
    mut format: impl FnMut(&T, usize, &mut String) -> Result<()>,
) -> Result<ArrayRef> {
    let mut texts = StringViewBuilder::with_capacity(values.len());
    let mut text = String::new();
    let mut last: Option<(&str, T)> = None;
    for row in 0..values.len() {
        if values.is_null(row) || templates.is_null(row) {
            texts.append_null();
            continue;
        }
        let template = templates.value(row);
        let parsed = match last.take() {
            Some(last) if last.0 == template => last,
            _ => (template, parse(template)?),
        };
        text.clear();
        format(&parsed.1, row, &mut text)?;
        texts.append_value(&text);
        last = Some(parsed);
    }
    Ok(Arc::new(texts.finish()))
}
