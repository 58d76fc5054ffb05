//! `to_char` of numbers, timestamps, times and intervals. A template with `%` is a format of chrono, which DataFusion
//! evaluates.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, StringViewArray, StringViewBuilder};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{cast, not, nullif};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, FieldRef, Float32Type, Float64Type, Time64MicrosecondType, TimeUnit,
    TimestampMicrosecondType,
};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{of_inner, result, strict_field, undefined};
use super::number_templates::{DOUBLE_DIGITS, Number, NumberTemplate, REAL_DIGITS};
use super::time_templates::{Time, TimeTemplate};
use super::zone::{STORED, Zone};
use crate::base::intervals::{INTERVAL, intervals, is_interval};
use crate::{Error, Result};

/// The type of integers.
const INTEGER: DataType = DataType::Decimal128(20, 0);
const TIME: DataType = DataType::Time64(TimeUnit::Microsecond);
const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

/// The function.
pub(crate) fn to_char() -> ScalarUDF {
    let inner = datafusion::functions::datetime::to_char();
    let signature = Signature::user_defined(Volatility::Immutable);
    ScalarUDF::new_from_impl(ToChar { inner, signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToChar {
    /// DataFusion's function.
    inner: Arc<ScalarUDF>,
    signature: Signature,
}

impl ScalarUDFImpl for ToChar {
    of_inner!(name, aliases, documentation);

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let [value, template] = types else { return Err(undefined(self.name(), types)) };
        if !template.is_string() && !template.is_null() {
            return Err(undefined(self.name(), types));
        }
        let value = match value {
            DataType::Dictionary(_, values) => values,
            value => value,
        };
        let value = match value {
            ty if ty.is_integer() => INTEGER,
            DataType::Decimal128(..) | DataType::Float32 | DataType::Float64 => value.clone(),
            DataType::Timestamp(..) | DataType::Date32 | DataType::Time32(_) | DataType::Time64(_) => value.clone(),
            ty if ty.is_floating() => DataType::Float64,
            ty if ty.is_decimal() => DataType::Decimal128(38, 10),
            ty if is_interval(ty) => INTERVAL,
            ty if *ty == DataType::Date64 || ty.is_string() || ty.is_null() => TIMESTAMP,
            _ => return Err(undefined(self.name(), types)),
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

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let ty = args.args[0].data_type();
        let is_time = ty.is_temporal() && !is_interval(&ty);
        let is_format = |template: Option<&str>| is_time && template.is_some_and(|template| template.contains('%'));
        match &args.args[1] {
            ColumnarValue::Scalar(template) => {
                let template = template.try_as_str().flatten();
                if is_format(template) {
                    args.args[1] = args.args[1].cast_to(&DataType::Utf8, None)?;
                    return self.inner.invoke_with_args(args);
                }
                let is_single = matches!(args.args[0], ColumnarValue::Scalar(_));
                let values = args.args[0].to_array(if is_single { 1 } else { args.number_rows })?;
                let texts = texts(&values, Templates::One(template))?;
                result(cast(&texts, &DataType::Utf8)?, is_single)
            }
            ColumnarValue::Array(templates) => {
                let templates = cast(templates, &DataType::Utf8View)?;
                let formats: BooleanArray =
                    templates.as_string_view().iter().map(|template| Some(is_format(template))).collect();
                let values = args.args[0].to_array(args.number_rows)?;
                let own = nullif(&templates, &formats)?;
                let texts = cast(&texts(&values, Templates::Each(own.as_string_view()))?, &DataType::Utf8)?;
                if formats.true_count() == 0 {
                    return Ok(ColumnarValue::Array(texts));
                }
                let rows = args.number_rows;
                let others = cast(&nullif(&templates, &not(&formats)?)?, &DataType::Utf8)?;
                args.args = vec![ColumnarValue::Array(values), ColumnarValue::Array(others)];
                let others = self.inner.invoke_with_args(args)?.to_array(rows)?;
                Ok(ColumnarValue::Array(zip(&formats, &others, &texts)?))
            }
        }
    }
}

/// The templates of the rows of a batch.
#[derive(Debug, Clone, Copy)]
enum Templates<'a> {
    One(Option<&'a str>),
    Each(&'a StringViewArray),
}

impl<'a> Templates<'a> {
    fn of(self, row: usize) -> Option<&'a str> {
        match self {
            Templates::One(template) => template,
            Templates::Each(templates) => templates.is_valid(row).then(|| templates.value(row)),
        }
    }
}

/// The values as texts, each with the template of its row.
fn texts(values: &ArrayRef, templates: Templates<'_>) -> Result<ArrayRef> {
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
        DataType::Float32 => {
            let numbers = values.as_primitive::<Float32Type>();
            each(values, templates, NumberTemplate::parse, |template, row, text| {
                let value = numbers.value(row).into();
                text.push_str(&template.format(&Number::Float { value, digits: REAL_DIGITS }));
                Ok(())
            })
        }
        DataType::Float64 => {
            let numbers = values.as_primitive::<Float64Type>();
            each(values, templates, NumberTemplate::parse, |template, row, text| {
                let value = numbers.value(row);
                text.push_str(&template.format(&Number::Float { value, digits: DOUBLE_DIGITS }));
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
        DataType::Date32 => {
            let dates = values.as_primitive::<Date32Type>();
            each(values, templates, TimeTemplate::parse, |template, row, text| {
                template.format(&Time::of_date(dates.value(row).into(), 0), text)
            })
        }
        ty => {
            let label = match ty {
                DataType::Timestamp(_, label) => label.clone(),
                _ => None,
            };
            let times = cast(values, &DataType::Timestamp(TimeUnit::Microsecond, label.clone()))?;
            let times = match label {
                Some(label) if *label != *STORED => Zone::of_label(&label)?.to_local(&times)?,
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
    templates: Templates<'_>,
    parse: impl Fn(&str) -> Result<T>,
    mut format: impl FnMut(&T, usize, &mut String) -> Result<()>,
) -> Result<ArrayRef> {
    let mut texts = StringViewBuilder::with_capacity(values.len());
    let mut text = String::new();
    let mut last: Option<(&str, T)> = None;
    for row in 0..values.len() {
        let Some(template) = templates.of(row).filter(|_| values.is_valid(row)) else {
            texts.append_null();
            continue;
        };
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
