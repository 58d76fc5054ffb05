//! Results as streams of Arrow's C data interface.
//!
//! The reader of a stream may be any code on any thread. It gets errors as texts. The exception of an error is kept for Python
//! code that reads the stream at once.

use std::fmt;
use std::sync::{Arc, Weak};

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ffi::FFI_ArrowSchema;
use arrow::ffi_stream::FFI_ArrowArrayStream;
use keyaki::{ArrowRows, Rows};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::handle::Handle;
use crate::shelves::Shelf;
use crate::source::STREAM;
use crate::{extensions, failure, process};

/// The rows of a result that were not read yet.
#[pyclass(module = "keyaki._keyaki", name = "_ResultStream", frozen)]
#[derive(Debug)]
pub struct ResultStream {
    /// `None` after a reader has taken them.
    batches: Mutex<Option<Batches>>,
    failed: Arc<Mutex<Option<PyErr>>>,
}

impl ResultStream {
    /// The stream of the rows of `rows`.
    pub fn new(handle: Arc<Handle>, rows: Rows) -> ResultStream {
        let rows = rows.into_arrow();
        let schema = extensions::schema(&rows.schema());
        let shelf = handle.shelf();
        handle.put(&shelf, Some(rows));
        let failed = Arc::<Mutex<Option<PyErr>>>::default();
        let failure = Arc::downgrade(&failed);
        let batches =
            Batches { handle: Some(handle), schema, rows: shelf, is_cast: false, failed: failure, is_at_end: false };
        ResultStream { batches: Mutex::new(Some(batches)), failed }
    }

    /// The capsule of the stream.
    ///
    /// # Errors
    /// `ProgrammingError` if it was taken already; `NotSupportedError` for a requested schema with other columns.
    pub fn capsule<'py>(
        &self,
        py: Python<'py>,
        requested: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let requested = requested.map(|capsule| requested_schema(py, capsule)).transpose()?;
        let mut batches = self.batches.lock();
        let schema = batches.as_ref().map(|batches| batches.schema.clone());
        let taken =
            || failure::programming(py, "the rows of this result were read already: execute the statement again");
        let schema = schema.ok_or_else(taken)?;
        let requested = requested.filter(|requested| *requested != schema);
        if let Some(requested) = &requested {
            check_conversion(&schema, requested)
                .map_err(|message| failure::exception(py, "NotSupportedError", &message, Some("0A000")))?;
        }
        let mut batches = batches.take().ok_or_else(taken)?;
        if let Some(requested) = requested {
            (batches.schema, batches.is_cast) = (requested, true);
        }
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), STREAM)
    }
}

#[pymethods]
impl ResultStream {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        self.capsule(py, requested_schema)
    }

    /// Raises the exception of the error that has ended the stream, if there was one.
    fn check(&self) -> PyResult<()> {
        self.failed.lock().take().map_or(Ok(()), Err)
    }
}

fn requested_schema(py: Python<'_>, capsule: &Bound<'_, PyAny>) -> PyResult<SchemaRef> {
    let schema = capsule.cast::<PyCapsule>()?.pointer_checked(Some(c"arrow_schema"))?.cast::<FFI_ArrowSchema>();
    // SAFETY: a capsule with this name has a valid schema, which lives as long as the capsule.
    let schema = Schema::try_from(unsafe { schema.as_ref() });
    Ok(Arc::new(schema.map_err(|error| failure::data(py, &error.to_string(), "22000"))?))
}

/// Checks that a result can have another schema without a loss: the same columns, whose values have another representation.
fn check_conversion(from: &Schema, to: &Schema) -> Result<(), String> {
    let names = |schema: &Schema| schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    if names(from) != names(to) {
        return Err(format!("the requested schema has the columns {:?}, the result {:?}", names(to), names(from)));
    }
    for (from, to) in from.fields().iter().zip(to.fields()) {
        if !is_same_kind(from.data_type(), to.data_type()) {
            let (name, from, to) = (from.name(), from.data_type(), to.data_type());
            return Err(format!("column \"{name}\" of type {from} cannot be read as {to}: use CAST in the query"));
        }
    }
    Ok(())
}

/// True for types whose values differ in their representation only. A value that does not fit is an error of the stream.
fn is_same_kind(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Decimal128, Dictionary, Float32, Float64, LargeBinary, LargeUtf8, Utf8, Utf8View,
    };
    let is_text = |ty: &DataType| matches!(ty, Utf8 | LargeUtf8 | Utf8View);
    let is_binary = |ty: &DataType| matches!(ty, Binary | LargeBinary | BinaryView);
    match (from, to) {
        (from, to) if from == to => true,
        (from, Dictionary(_, to)) => is_same_kind(from, to),
        (Float32, Float64) => true,
        (Decimal128(_, scale), Decimal128(_, wanted)) => wanted >= scale,
        (from, to) if is_text(from) || is_text(to) => is_text(from) && is_text(to),
        (from, to) if is_binary(from) || is_binary(to) => is_binary(from) && is_binary(to),
        (from, to) => from.is_integer() && to.is_integer(),
    }
}

/// The reader behind a stream.
struct Batches {
    /// `None` while it is dropped.
    handle: Option<Arc<Handle>>,
    schema: SchemaRef,
    /// Empty at the end, and if the connection was closed.
    rows: Arc<Shelf<ArrowRows>>,
    /// The schema is not that of the rows.
    is_cast: bool,
    /// The stream for Python code, if it still exists.
    failed: Weak<Mutex<Option<PyErr>>>,
    is_at_end: bool,
}

impl Batches {
    fn read(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let closed = || failure::interface(py, "the connection is closed");
        let handle = self.handle.as_ref().ok_or_else(closed)?;
        handle.check_process(py)?;
        handle.progress().report()?;
        let mut rows = self.rows.lock().take().ok_or_else(closed)?;
        let batch = handle.run(py, |_| {
            let batch = rows.next().transpose()?;
            let with_schema = |batch: RecordBatch| match self.is_cast {
                true => cast(&batch, &self.schema),
                false => Ok(extensions::batch(batch, &self.schema)?),
            };
            batch.map(with_schema).transpose()
        })?;
        if batch.is_some() {
            handle.put(&self.rows, Some(rows));
        }
        Ok(batch)
    }
}

fn cast(batch: &RecordBatch, schema: &SchemaRef) -> keyaki::Result<RecordBatch> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| cast_with_options(column, field.data_type(), &options));
    Ok(RecordBatch::try_new(schema.clone(), columns.collect::<Result<_, _>>()?)?)
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Result<RecordBatch, ArrowError>> {
        if self.is_at_end {
            return None;
        }
        let read = process::attached(|py| {
            self.read(py).map_err(|error| {
                let message = error.value(py).to_string();
                if let Some(failed) = self.failed.upgrade() {
                    *failed.lock() = Some(error);
                }
                message
            })
        });
        let message = match read {
            Some(Ok(Some(batch))) => return Some(Ok(batch)),
            Some(Ok(None)) => None,
            Some(Err(message)) => Some(message),
            None => Some("the interpreter has ended".into()),
        };
        self.is_at_end = true;
        // Texts in C end at the first zero byte.
        message.map(|message| Err(ArrowError::ExternalError(message.replace('\0', "\u{fffd}").into())))
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        let handle = self.handle.take();
        let rows = self.rows.lock().take();
        if handle.as_ref().is_some_and(|handle| !handle.is_of_this_process()) {
            // In a forked child, the threads that compute the rows do not exist.
            std::mem::forget((rows, handle));
            return;
        }
        let mut parts = Some((rows, handle));
        process::attached(|py| {
            let parts = parts.take();
            py.detach(|| drop(parts));
        });
    }
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("handle", &self.handle).field("schema", &self.schema).finish_non_exhaustive()
    }
}
