//! Rows of a result as tuples.

use arrow::datatypes::{DataType, Field, Schema};
use keyaki::Rows;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::decode::{self, Decoder};
use crate::failure;
use crate::handle::Handle;

/// The next row; `None` at the end.
///
/// # Errors
/// Errors of the query, and of conversions.
pub fn fetch_one<'py>(py: Python<'py>, handle: &Handle, rows: &mut Rows) -> PyResult<Option<Bound<'py, PyTuple>>> {
    if rows.available() == 0 {
        let _call = handle.progress().reading();
        if handle.run(py, |_| rows.wait())? == 0 {
            return Ok(None);
        }
    }
    let decoders = Decoder::of(py, rows.schema());
    let row = rows.next().map_err(|error| failure::raised(py, &error))?;
    row.map(|row| decode::row(py, &row, &decoders)).transpose()
}

/// The next rows, at most `limit`.
///
/// # Errors
/// As [`fetch_one`].
pub fn fetch<'py>(py: Python<'py>, handle: &Handle, rows: &mut Rows, limit: usize) -> PyResult<Bound<'py, PyList>> {
    let decoders = Decoder::of(py, rows.schema());
    let _call = handle.progress().reading();
    let mut fetched = Vec::new();
    while fetched.len() < limit {
        handle.progress().report()?;
        if rows.available() == 0 && handle.run(py, |_| rows.wait())? == 0 {
            break;
        }
        let ready = rows.available().min(limit - fetched.len());
        fetched.reserve(ready);
        for _ in 0..ready {
            let Some(row) = rows.next().map_err(|error| failure::raised(py, &error))? else { break };
            fetched.push(decode::row(py, &row, &decoders)?);
        }
    }
    PyList::new(py, fetched)
}

/// The description of the columns: a tuple of seven values for each, as DB-API 2.0 defines it.
///
/// # Errors
/// Errors of Python.
pub fn description<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyTuple>> {
    let column = |field: &Field| {
        let (precision, scale) = match field.data_type() {
            DataType::Decimal128(precision, scale) => (Some(*precision), Some(*scale)),
            _ => (None, None),
        };
        let (size, is_nullable) = (None::<i64>, None::<bool>);
        let name = keyaki::field_type_name(field);
        (field.name(), name, size, size, precision, scale, is_nullable).into_pyobject(py)
    };
    PyTuple::new(py, schema.fields().iter().map(|field| column(field)).collect::<PyResult<Vec<_>>>()?)
}
