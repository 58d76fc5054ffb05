//! Python objects as values of parameters and of appended rows.
//!
//! | Python | SQL |
//! |---|---|
//! | `None`, `pandas.NA`, `pandas.NaT`, NaT of numpy | NULL |
//! | `bool`, `int`, `float`, `str` | BOOLEAN, BIGINT or DECIMAL by size, DOUBLE PRECISION, TEXT |
//! | `bytes`, `bytearray`, `memoryview` | BYTEA |
//! | `decimal.Decimal` | DECIMAL |
//! | `datetime.date`, `time`, `timedelta` | DATE, TIME, INTERVAL |
//! | `datetime.datetime` | TIMESTAMP, with a time zone TIMESTAMPTZ |
//! | `uuid.UUID` | UUID |
//! | `list`, `tuple`, numpy arrays | arrays |
//! | `dict`, `keyaki.Json` | JSON |
//! | numpy scalars | as the Python objects with these values |

use keyaki::Value;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDate, PyDateTime, PyDelta, PyDict, PyFloat, PyInt, PyList, PyMemoryView, PyString,
    PyTime, PyTuple,
};

use crate::{classes, failure};

/// Digits of the longest DECIMAL.
const DIGITS_MAX: usize = 38;
/// Characters of a value in a message.
const SHOWN_CHARACTERS: usize = 60;
/// Nesting of lists beyond which a value is refused: it probably contains itself.
const DEPTH_MAX: usize = 64;

const SECOND_MICROS: i64 = 1_000_000;
const DAY_MICROS: i64 = 86_400 * SECOND_MICROS;
/// Days from 0001-01-01, whose ordinal is 1 in Python, to 1970-01-01.
const EPOCH_ORDINAL: i64 = 719_163;

/// The values of a sequence of parameters, or of a row.
///
/// # Errors
/// `DataError` and `ProgrammingError` with the parameter and its Python value.
pub fn values(parameters: &Bound<'_, PyAny>) -> PyResult<Vec<Value>> {
    if let Ok(tuple) = parameters.cast::<PyTuple>() {
        return tuple.iter_borrowed().enumerate().map(|(index, object)| parameter(&object, index)).collect();
    }
    if let Ok(list) = parameters.cast::<PyList>() {
        return list.iter().enumerate().map(|(index, object)| parameter(&object, index)).collect();
    }
    // The letters of a text and the names of a mapping are no values.
    let is_other = parameters.is_instance_of::<PyString>()
        || parameters.is_instance_of::<PyBytes>()
        || parameters.is_instance_of::<PyDict>();
    let objects = if is_other { None } else { parameters.try_iter().ok() };
    let Some(objects) = objects else {
        let message = format!("values must be a sequence, not {}", shown(parameters));
        return Err(failure::programming(parameters.py(), &message));
    };
    objects.enumerate().map(|(index, object)| parameter(&object?, index)).collect()
}

/// The values of named parameters, in the order of `names`.
///
/// # Errors
/// As [`values`]; `ProgrammingError` for a name without a value.
pub fn named_values(mapping: &Bound<'_, PyAny>, names: &[String]) -> PyResult<Vec<Value>> {
    let py = mapping.py();
    let value = |name: &String| {
        let object =
            mapping.get_item(name).map_err(|error| match error.is_instance_of::<pyo3::exceptions::PyKeyError>(py) {
                true => failure::programming(py, &format!("parameter \":{name}\" has no value")),
                false => error,
            })?;
        value(&object, 0).map_err(|problem| problem.raised(py, &format!("parameter \":{name}\"")))
    };
    names.iter().map(value).collect()
}

fn parameter(object: &Bound<'_, PyAny>, index: usize) -> PyResult<Value> {
    value(object, 0).map_err(|problem| problem.raised(object.py(), &format!("parameter ${}", index + 1)))
}

/// A value that cannot be converted.
enum Problem {
    /// A class of the DB-API's exceptions, a SQLSTATE and a message.
    Refused(&'static str, &'static str, String),
    Raised(PyErr),
}

impl Problem {
    #[cold]
    fn raised(self, py: Python<'_>, place: &str) -> PyErr {
        match self {
            Problem::Refused(class, sqlstate, message) => {
                failure::exception(py, class, &format!("{place}: {message}"), Some(sqlstate))
            }
            Problem::Raised(error) => error,
        }
    }

    fn out_of_range(message: String) -> Problem {
        Problem::Refused("DataError", "22003", message)
    }
}

impl From<PyErr> for Problem {
    fn from(error: PyErr) -> Problem {
        Problem::Raised(error)
    }
}

/// A value in a message: its representation, cut if it is long, and its type.
fn shown(object: &Bound<'_, PyAny>) -> String {
    let text = object.repr().map(|text| text.to_string_lossy().into_owned()).unwrap_or_else(|_| "?".into());
    let text = match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    };
    let name = object.get_type().fully_qualified_name();
    format!("{text} of type {}", name.map_or_else(|_| "?".into(), |name| name.to_string_lossy().into_owned()))
}

fn value(object: &Bound<'_, PyAny>, depth: usize) -> Result<Value, Problem> {
    if object.is_none() {
        return Ok(Value::Null);
    }
    // The most frequent types first. bool is a subclass of int.
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Value::Text(text.to_str()?.into()));
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Value::Boolean(value.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return integer(object);
    }
    if object.is_instance_of::<PyFloat>() {
        return Ok(Value::Float(object.extract()?));
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Value::Bytes(bytes.as_bytes().into()));
    }
    // A subclass of date.
    if object.is_instance_of::<PyDateTime>() {
        return datetime(object);
    }
    if object.is_instance_of::<PyDate>() {
        return Ok(Value::Date(days(object)? as i32));
    }
    let py = object.py();
    if object.is_instance(classes::decimal(py)?)? {
        return decimal(object);
    }
    if object.is_instance(classes::uuid(py)?)? {
        let bytes = object.getattr(intern!(py, "bytes"))?;
        let bytes: [u8; 16] = bytes.extract()?;
        return Ok(Value::Uuid(uuid::Uuid::from_bytes(bytes)));
    }
    if let Ok(list) = object.cast::<PyList>() {
        return array(object, list.iter(), depth);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        // A named tuple is an array, too.
        if !object.is_instance(classes::interval(py)?)? {
            return array(object, tuple.iter(), depth);
        }
        let parts = object.extract();
        let (months, days, micros) =
            parts.map_err(|_| Problem::out_of_range(format!("{} is too long", shown(object))))?;
        return Ok(Value::Interval { months, days, micros });
    }
    if object.is_instance_of::<PyDict>() {
        return document(object);
    }
    other(object, depth)
}

/// A value of a less frequent type.
fn other(object: &Bound<'_, PyAny>, depth: usize) -> Result<Value, Problem> {
    let py = object.py();
    if object.is_instance_of::<PyTime>() {
        if !object.getattr(intern!(py, "tzinfo"))?.is_none() {
            let message = format!("{} has a time zone, which TIME does not have", shown(object));
            return Err(Problem::Refused("DataError", "22008", message));
        }
        return Ok(Value::Time(time_micros(object)?));
    }
    if object.is_instance_of::<PyDelta>() {
        // Of pandas.Timedelta.
        if let Some(nanoseconds) = object.getattr_opt(intern!(py, "nanoseconds"))?
            && nanoseconds.extract::<i64>()? != 0
        {
            return Err(has_nanoseconds(object));
        }
        let (days, micros) = delta(object)?;
        return Ok(Value::Interval { months: 0, days: days as i32, micros });
    }
    if object.is_instance_of::<PyByteArray>() || object.is_instance_of::<PyMemoryView>() {
        let bytes = object.call_method0(intern!(py, "__bytes__"));
        let bytes = bytes.or_else(|_| py.get_type::<PyBytes>().call1((object,)))?;
        return Ok(Value::Bytes(bytes.extract()?));
    }
    if object.is_instance(classes::json(py)?)? {
        return document(&object.getattr(intern!(py, "value"))?);
    }
    let class = object.get_type();
    let module = class.module()?;
    let name = class.name()?;
    match (module.to_str()?, name.to_str()?) {
        // Their elements would become numbers of nanoseconds.
        ("numpy", "ndarray") if is_numpy_time(object)? => {
            let elements = object.try_iter()?.collect::<PyResult<Vec<_>>>()?;
            array(object, elements.into_iter(), depth)
        }
        ("numpy", "ndarray") => value(&object.call_method0(intern!(py, "tolist"))?, depth + 1),
        ("numpy", "datetime64" | "timedelta64") => numpy_time(object),
        ("numpy", _) if object.hasattr(intern!(py, "item"))? && depth < DEPTH_MAX => {
            value(&object.call_method0(intern!(py, "item"))?, DEPTH_MAX)
        }
        (module, "NAType" | "NaTType") if module.starts_with("pandas.") => Ok(Value::Null),
        _ => {
            let message =
                format!("{} has no counterpart in SQL (convert it, or wrap it in keyaki.Json)", shown(object));
            Err(Problem::Refused("ProgrammingError", "42804", message))
        }
    }
}

fn integer(object: &Bound<'_, PyAny>) -> Result<Value, Problem> {
    if let Ok(value) = object.extract::<i64>() {
        return Ok(Value::Integer(value));
    }
    match object.extract::<i128>() {
        Ok(unscaled) if unscaled.unsigned_abs() < 10_u128.pow(DIGITS_MAX as u32) => {
            Ok(Value::Decimal { unscaled, scale: 0 })
        }
        _ => Err(Problem::out_of_range(format!("{} has more than {DIGITS_MAX} digits", shown(object)))),
    }
}

fn decimal(object: &Bound<'_, PyAny>) -> Result<Value, Problem> {
    let py = object.py();
    if !object.call_method0(intern!(py, "is_finite"))?.extract::<bool>()? {
        return Err(Problem::out_of_range(format!("{} is not finite", shown(object))));
    }
    // A short exponent form would have to be parsed, a long plain form would not fit anyway.
    let exponent: i64 = object.call_method0(intern!(py, "adjusted"))?.extract()?;
    let too_long = || Problem::out_of_range(format!("{} has more than {DIGITS_MAX} digits", shown(object)));
    if !object.is_truthy()? && exponent.unsigned_abs() > DIGITS_MAX as u64 {
        return Ok(Value::Decimal { unscaled: 0, scale: 0 });
    }
    if exponent.unsigned_abs() > DIGITS_MAX as u64 {
        return Err(too_long());
    }
    let text = object.call_method1(intern!(py, "__format__"), (intern!(py, "f"),))?;
    let text: String = text.extract()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let unscaled: i128 = format!("{whole}{fraction}").parse().map_err(|_| too_long())?;
    if fraction.len() > DIGITS_MAX || unscaled.unsigned_abs() >= 10_u128.pow(DIGITS_MAX as u32) {
        return Err(too_long());
    }
    Ok(Value::Decimal { unscaled, scale: fraction.len() as u8 })
}

/// Days from 1970-01-01.
fn days(date: &Bound<'_, PyAny>) -> PyResult<i64> {
    let ordinal: i64 = date.call_method0(intern!(date.py(), "toordinal"))?.extract()?;
    Ok(ordinal - EPOCH_ORDINAL)
}

/// Microseconds from midnight.
fn time_micros(time: &Bound<'_, PyAny>) -> PyResult<i64> {
    let py = time.py();
    let part = |name| time.getattr(name)?.extract::<i64>();
    let minutes = part(intern!(py, "hour"))? * 60 + part(intern!(py, "minute"))?;
    let seconds = minutes * 60 + part(intern!(py, "second"))?;
    Ok(seconds * SECOND_MICROS + part(intern!(py, "microsecond"))?)
}

/// Days and microseconds of a timedelta.
fn delta(delta: &Bound<'_, PyAny>) -> PyResult<(i64, i64)> {
    let py = delta.py();
    let part = |name| delta.getattr(name)?.extract::<i64>();
    let micros = part(intern!(py, "seconds"))? * SECOND_MICROS + part(intern!(py, "microseconds"))?;
    Ok((part(intern!(py, "days"))?, micros))
}

fn datetime(object: &Bound<'_, PyAny>) -> Result<Value, Problem> {
    let py = object.py();
    // pandas.NaT is an instance of datetime.
    if object.get_type().name()?.to_str()? == "NaTType" {
        return Ok(Value::Null);
    }
    // pandas.Timestamp has nanoseconds.
    if let Some(nanoseconds) = object.getattr_opt(intern!(py, "nanosecond"))?
        && nanoseconds.extract::<i64>()? != 0
    {
        return Err(has_nanoseconds(object));
    }
    let micros = days(object)? * DAY_MICROS + time_micros(object)?;
    let offset = object.call_method0(intern!(py, "utcoffset"))?;
    if offset.is_none() {
        return Ok(Value::Timestamp(micros));
    }
    let (days, rest) = delta(&offset)?;
    Ok(Value::TimestampTz(micros - days * DAY_MICROS - rest))
}

#[cold]
fn has_nanoseconds(object: &Bound<'_, PyAny>) -> Problem {
    let message = format!("{} has nanoseconds, but times in SQL have microseconds (round it)", shown(object));
    Problem::Refused("DataError", "22008", message)
}

#[cold]
fn not_in_microseconds(object: &Bound<'_, PyAny>) -> Problem {
    let message = format!("{} is out of range, or has nanoseconds, but times in SQL have microseconds", shown(object));
    Problem::Refused("DataError", "22008", message)
}

/// True for an array of numpy with dates or durations.
fn is_numpy_time(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = array.py();
    let kind = array.getattr(intern!(py, "dtype"))?.getattr(intern!(py, "kind"))?;
    Ok(["M", "m"].contains(&kind.extract::<&str>()?))
}

/// A date or a duration of numpy, in any unit.
fn numpy_time(object: &Bound<'_, PyAny>) -> Result<Value, Problem> {
    let py = object.py();
    if object.str()?.to_str()? == "NaT" {
        return Ok(Value::Null);
    }
    let is_date = object.get_type().name()?.to_str()? == "datetime64";
    let unit = if is_date { "datetime64[us]" } else { "timedelta64[us]" };
    let dtype = object.getattr(intern!(py, "dtype"))?;
    let text = dtype.str()?;
    if ["timedelta64[M]", "timedelta64[Y]"].contains(&text.to_str()?) {
        let message = format!("{} has no fixed length (use keyaki.Interval)", shown(object));
        return Err(Problem::Refused("DataError", "22008", message));
    }
    let micros = object.call_method1(intern!(py, "astype"), (unit,))?;
    // Nanoseconds are cut off, and large numbers wrap around.
    if !micros.call_method1(intern!(py, "astype"), (dtype,))?.eq(object)? {
        return Err(not_in_microseconds(object));
    }
    // A number outside of the range of Python's types.
    let item = micros.call_method0(intern!(py, "item"))?;
    match item.extract::<i64>() {
        Ok(micros) if is_date => Ok(Value::Timestamp(micros)),
        Ok(micros) => Ok(Value::Interval { months: 0, days: 0, micros }),
        Err(_) => value(&item, DEPTH_MAX),
    }
}

fn array<'py>(
    object: &Bound<'py, PyAny>,
    elements: impl Iterator<Item = Bound<'py, PyAny>>,
    depth: usize,
) -> Result<Value, Problem> {
    if depth >= DEPTH_MAX {
        return Err(Problem::Refused("DataError", "54000", format!("{} is nested too deeply", shown(object))));
    }
    elements.map(|element| value(&element, depth + 1)).collect::<Result<_, _>>().map(Value::Array)
}

fn document(object: &Bound<'_, PyAny>) -> Result<Value, Problem> {
    let py = object.py();
    let options = PyDict::new(py);
    // NaN and infinities are no JSON.
    options.set_item(intern!(py, "allow_nan"), false)?;
    let text = classes::json_dumps(py)?.call((object,), Some(&options)).map_err(|error| {
        match error.is_instance_of::<pyo3::exceptions::PyTypeError>(py)
            || error.is_instance_of::<pyo3::exceptions::PyValueError>(py)
        {
            true => {
                let message = format!("{} is no JSON document: {}", shown(object), error.value(py));
                Problem::Refused("DataError", "22P02", message)
            }
            false => Problem::Raised(error),
        }
    })?;
    Ok(Value::Text(text.extract()?))
}
