//! Values of results as Python objects.
//!
//! | SQL | Python |
//! |---|---|
//! | BOOLEAN, integers, floats, TEXT, BYTEA | `bool`, `int`, `float`, `str`, `bytes` |
//! | DECIMAL | `decimal.Decimal` |
//! | DATE, TIME, TIMESTAMP | `datetime.date`, `time`, `datetime` |
//! | TIMESTAMPTZ | `datetime` in the time zone of the session |
//! | INTERVAL | `timedelta`; `keyaki.Interval` if it has months |
//! | UUID | `uuid.UUID` |
//! | JSON, JSONB | as by `json.loads` |
//! | arrays | `list` |

use arrow::datatypes::{DataType, Field, Schema};
use chrono::{Datelike, NaiveDate};
use keyaki::ValueRef;
use pyo3::IntoPyObjectExt;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDate, PyDateTime, PyDelta, PyDict, PyList, PyString, PyTime, PyTuple, PyTzInfo};

use crate::{classes, failure};

const SECOND_MICROS: i64 = 1_000_000;
const DAY_MICROS: i64 = 86_400 * SECOND_MICROS;
/// Days from the first day of the common era, which has number 1 in `chrono`, to 1970-01-01.
const EPOCH_DAY: i32 = 719_163;
/// The years of Python's dates.
const YEARS: std::ops::RangeInclusive<i32> = 1..=9999;

/// How the values of a column become Python objects.
#[derive(Debug)]
pub enum Decoder {
    /// By their type.
    Plain,
    /// Documents, or arrays of documents.
    Json,
    /// Times in a zone other than UTC.
    Zoned(Py<PyAny>),
}

impl Decoder {
    /// The decoders of the columns of a result.
    pub fn of(py: Python<'_>, schema: &Schema) -> Vec<Decoder> {
        schema.fields().iter().map(|field| Decoder::of_field(py, field)).collect()
    }

    fn of_field(py: Python<'_>, field: &Field) -> Decoder {
        if keyaki::json_type(field).is_some() {
            return Decoder::Json;
        }
        let mut ty = field.data_type();
        while let DataType::List(element) | DataType::LargeList(element) | DataType::ListView(element) = ty {
            ty = element.data_type();
        }
        match ty {
            DataType::Timestamp(_, Some(zone)) => zone_info(py, zone).map_or(Decoder::Plain, Decoder::Zoned),
            _ => Decoder::Plain,
        }
    }

    /// A value as a Python object.
    ///
    /// # Errors
    /// `DataError` for times outside of the range of Python's types, and for texts that are no JSON documents.
    pub fn decode<'py>(&self, py: Python<'py>, value: ValueRef<'_>) -> PyResult<Bound<'py, PyAny>> {
        match value {
            ValueRef::Null => Ok(py.None().into_bound(py)),
            ValueRef::Boolean(value) => value.into_bound_py_any(py),
            ValueRef::Integer(value) => value.into_bound_py_any(py),
            ValueRef::Float(value) => value.into_bound_py_any(py),
            ValueRef::Decimal { unscaled, scale } => classes::decimal(py)?.call1((decimal_text(unscaled, scale),)),
            ValueRef::Text(text) if matches!(self, Decoder::Json) => classes::json_loads(py)?.call1((text,)),
            ValueRef::Text(text) => Ok(PyString::new(py, text).into_any()),
            ValueRef::Bytes(bytes) => Ok(PyBytes::new(py, bytes).into_any()),
            ValueRef::Date(days) => date(py, days, value),
            ValueRef::Time(micros) => time(py, micros, value),
            ValueRef::Timestamp(micros) => datetime(py, micros, None, value),
            ValueRef::TimestampTz(micros) => {
                let utc = PyTzInfo::utc(py)?;
                let time = datetime(py, micros, Some(&*utc), value)?;
                match self {
                    // Near the ends of the range, the local time is outside.
                    Decoder::Zoned(zone) => time
                        .call_method1(intern!(py, "astimezone"), (zone,))
                        .map_err(|_| out_of_range(py, ValueRef::TimestampTz(micros))),
                    _ => Ok(time),
                }
            }
            ValueRef::Interval { months, days, micros } => interval(py, months, days, micros),
            ValueRef::Uuid(uuid) => {
                let arguments = PyDict::new(py);
                arguments.set_item(intern!(py, "bytes"), PyBytes::new(py, uuid.as_bytes()))?;
                classes::uuid(py)?.call((), Some(&arguments))
            }
            ValueRef::Array(elements) => {
                let list = PyList::empty(py);
                for element in elements.iter() {
                    list.append(self.decode(py, element)?)?;
                }
                Ok(list.into_any())
            }
        }
    }
}

/// A row as a tuple.
///
/// # Errors
/// As [`Decoder::decode`], with the name of the column.
pub fn row<'py>(py: Python<'py>, row: &keyaki::Row<'_>, decoders: &[Decoder]) -> PyResult<Bound<'py, PyTuple>> {
    let mut values = Vec::with_capacity(decoders.len());
    for (column, decoder) in decoders.iter().enumerate() {
        let value = row.get_ref(column).map_err(|error| failure::raised(py, &error))?;
        values.push(decoder.decode(py, value).map_err(|error| in_column(py, error, row, column))?);
    }
    PyTuple::new(py, values)
}

#[cold]
fn in_column(py: Python<'_>, error: PyErr, row: &keyaki::Row<'_>, column: usize) -> PyErr {
    let is_data =
        classes::exception(py, "DataError").is_ok_and(|class| error.value(py).is_instance(&class).unwrap_or(false));
    let is_document = error.is_instance_of::<pyo3::exceptions::PyValueError>(py);
    match is_data || is_document {
        true => {
            let message = format!("column \"{}\": {}", row.schema().field(column).name(), error.value(py));
            failure::data(py, &message, if is_document { "22P02" } else { "22008" })
        }
        false => error,
    }
}

/// A zone of the IANA time zone database or an offset, as an object; `None` for UTC, and for zones that Python does not have.
fn zone_info(py: Python<'_>, zone: &str) -> Option<Py<PyAny>> {
    if ["UTC", "+00:00", "Z", "GMT"].contains(&zone) {
        return None;
    }
    let Some(offset) = zone.strip_prefix(['+', '-']) else {
        return Some(classes::zone_info(py).ok()?.call1((zone,)).ok()?.unbind());
    };
    let mut parts = offset.split(':').map(|part| part.parse::<i32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    let seconds = (next() * 60 + next()) * 60 + next();
    let seconds = if zone.starts_with('-') { -seconds } else { seconds };
    let offset = PyDelta::new(py, 0, seconds, 0, true).ok()?;
    Some(PyTzInfo::fixed_offset(py, offset).ok()?.into_any().unbind())
}

/// The digits of a decimal number.
fn decimal_text(unscaled: i128, scale: u8) -> String {
    let scale = usize::from(scale);
    let digits = unscaled.unsigned_abs().to_string();
    let sign = if unscaled < 0 { "-" } else { "" };
    if scale == 0 {
        return format!("{sign}{digits}");
    }
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    format!("{sign}{whole}.{fraction}")
}

/// The calendar date of a day, counted from 1970-01-01, if Python has it.
fn calendar(days: i64) -> Option<NaiveDate> {
    let day = i32::try_from(days).ok()?.checked_add(EPOCH_DAY)?;
    NaiveDate::from_num_days_from_ce_opt(day).filter(|date| YEARS.contains(&date.year()))
}

#[cold]
fn out_of_range(py: Python<'_>, value: ValueRef<'_>) -> PyErr {
    let message = format!("{value} is outside of the range of Python's {} (cast it to TEXT)", value.type_name());
    failure::data(py, &message, "22008")
}

fn date<'py>(py: Python<'py>, days: i32, value: ValueRef<'_>) -> PyResult<Bound<'py, PyAny>> {
    let date = calendar(days.into()).ok_or_else(|| out_of_range(py, value))?;
    Ok(PyDate::new(py, date.year(), date.month() as u8, date.day() as u8)?.into_any())
}

/// Hours, minutes, seconds and microseconds of a time of day.
fn clock(micros: i64) -> (u8, u8, u8, u32) {
    let seconds = micros / SECOND_MICROS;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    (hour as u8, minute as u8, second as u8, (micros % SECOND_MICROS) as u32)
}

fn time<'py>(py: Python<'py>, micros: i64, value: ValueRef<'_>) -> PyResult<Bound<'py, PyAny>> {
    if !(0..DAY_MICROS).contains(&micros) {
        return Err(out_of_range(py, value));
    }
    let (hour, minute, second, micro) = clock(micros);
    Ok(PyTime::new(py, hour, minute, second, micro, None)?.into_any())
}

fn datetime<'py>(
    py: Python<'py>,
    micros: i64,
    zone: Option<&Bound<'py, PyTzInfo>>,
    value: ValueRef<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let date = calendar(micros.div_euclid(DAY_MICROS)).ok_or_else(|| out_of_range(py, value))?;
    let (hour, minute, second, micro) = clock(micros.rem_euclid(DAY_MICROS));
    let (month, day) = (date.month() as u8, date.day() as u8);
    Ok(PyDateTime::new(py, date.year(), month, day, hour, minute, second, micro, zone)?.into_any())
}

fn interval(py: Python<'_>, months: i32, days: i32, micros: i64) -> PyResult<Bound<'_, PyAny>> {
    // timedelta has up to 999,999,999 days.
    let total = i64::from(days) + micros.div_euclid(DAY_MICROS);
    if months != 0 || total.abs() > 999_999_998 {
        return classes::interval(py)?.call1((months, days, micros));
    }
    let rest = micros.rem_euclid(DAY_MICROS);
    let (seconds, micros) = ((rest / SECOND_MICROS) as i32, (rest % SECOND_MICROS) as i32);
    Ok(PyDelta::new(py, total as i32, seconds, micros, true)?.into_any())
}
