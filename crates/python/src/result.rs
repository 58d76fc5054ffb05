//! Rows of a result as tuples, and results as Arrow streams.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use arrow_ipc::writer::StreamWriter;
use keyaki::{ArrowRows, Column, Rows};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::decode::{self, Decoder};
use crate::failure;
use crate::handle::{Handle, Shelf};

/// The next row; `None` at the end.
///
/// # Errors
/// Errors of the query, and of conversions.
pub fn fetch_one<'py>(py: Python<'py>, handle: &Handle, rows: &mut Rows) -> PyResult<Option<Bound<'py, PyTuple>>> {
    if rows.available() == 0 && handle.run(py, |_| rows.wait())? == 0 {
        return Ok(None);
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
    let mut fetched = Vec::new();
    while fetched.len() < limit {
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
pub fn description<'py>(py: Python<'py>, columns: &[Column]) -> PyResult<Bound<'py, PyTuple>> {
    let column = |column: &Column| {
        let (precision, scale) = match column.data_type {
            DataType::Decimal128(precision, scale) => (Some(precision), Some(scale)),
            _ => (None, None),
        };
        let (size, is_nullable) = (None::<i64>, None::<bool>);
        (&column.name, &column.type_name, size, size, precision, scale, is_nullable).into_pyobject(py)
    };
    PyTuple::new(py, columns.iter().map(column).collect::<PyResult<Vec<_>>>()?)
}

/// The rows of a result in the streaming format of Arrow IPC, one piece after another.
#[pyclass(module = "keyaki._keyaki", name = "_IpcStream")]
pub struct IpcStream {
    handle: Arc<Handle>,
    /// Empty at the end, and if the connection was closed.
    stream: Arc<Shelf<Stream>>,
}

/// The rows of a stream, and the writer of its pieces.
type Stream = (ArrowRows, StreamWriter<Vec<u8>>);

impl Drop for IpcStream {
    fn drop(&mut self) {
        // In a forked child, the threads that compute the rows do not exist.
        if !self.handle.is_of_this_process() {
            std::mem::forget(self.stream.lock().take());
        }
    }
}

impl fmt::Debug for IpcStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpcStream").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl IpcStream {
    /// The stream of rows that were not read yet.
    ///
    /// # Errors
    /// `InternalError` for types that the format does not have.
    pub fn new(py: Python<'_>, handle: Arc<Handle>, rows: Rows) -> PyResult<IpcStream> {
        let rows = rows.into_arrow();
        let schema: SchemaRef = rows.schema();
        let writer = StreamWriter::try_new(Vec::new(), &schema).map_err(|error| raised(py, error))?;
        let stream = handle.shelf();
        handle.put(&stream, Some((rows, writer)));
        Ok(IpcStream { handle, stream })
    }
}

fn raised(py: Python<'_>, error: arrow::error::ArrowError) -> PyErr {
    failure::raised(py, &keyaki::Error::from(error))
}

#[pymethods]
impl IpcStream {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        if self.handle.is_closed() {
            return Err(failure::interface(py, "the connection is closed"));
        }
        let Some((mut rows, mut writer)) = self.stream.lock().take() else { return Ok(None) };
        let is_end = self.handle.run(py, |_| {
            match rows.next().transpose()? {
                Some(batch) => writer.write(&batch)?,
                None => {
                    writer.finish()?;
                    return Ok(true);
                }
            }
            Ok(false)
        });
        let is_end = is_end?;
        let piece = PyBytes::new(py, writer.get_ref());
        writer.get_mut().clear();
        if !is_end {
            self.handle.put(&self.stream, Some((rows, writer)));
        }
        Ok(Some(piece))
    }
}
