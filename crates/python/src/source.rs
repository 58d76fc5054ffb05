//! Arrow data of other libraries, through Arrow's C data interface and the PyCapsule protocol.
//!
//! The data are used where they are. Arrays of other libraries are checked before they are used: texts are valid UTF-8, and
//! offsets do not decrease. The interface has no lengths of buffers, which cannot be checked.

use std::ffi::CStr;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch, RecordBatchReader, StructArray, make_array};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::failure;

/// Names of the capsules.
pub const STREAM: &CStr = c"arrow_array_stream";
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";

/// Maximum rows of a batch.
const BATCH_ROWS: usize = 8192;

/// The batches of a Python object: checked, and not longer than [`BATCH_ROWS`].
pub struct Source {
    schema: SchemaRef,
    batches: Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>,
    /// The rest of the last batch.
    rest: Option<RecordBatch>,
}

impl Source {
    /// The rows of an Arrow object or a frame; `None` for other objects.
    ///
    /// # Errors
    /// Exceptions of the object; `DataError` for data that are not rows.
    pub fn of(source: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        let py = source.py();
        let stream = py.import(intern!(py, "keyaki._frames"))?.call_method1(intern!(py, "arrow_object"), (source,))?;
        if stream.is_none() {
            return Ok(None);
        }
        let source = if stream.hasattr(intern!(py, "__arrow_c_stream__"))? {
            Source::of_stream(&stream)?
        } else {
            Source::of_array(&stream)?
        };
        Ok(Some(source))
    }

    /// The rows of a reader.
    pub fn of_reader(reader: Box<dyn RecordBatchReader + Send>) -> Source {
        Source { schema: reader.schema(), batches: Box::new(reader), rest: None }
    }

    fn of_stream(object: &Bound<'_, PyAny>) -> PyResult<Source> {
        let py = object.py();
        let capsule = object.call_method0(intern!(py, "__arrow_c_stream__"))?;
        let stream = capsule.cast::<PyCapsule>()?.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
        // SAFETY: a capsule with this name has a valid stream, which no other code uses while this thread is attached. It is
        // moved out, and the capsule keeps an empty one.
        let reader = unsafe { ArrowArrayStreamReader::from_raw(stream.as_ptr()) };
        let reader = reader.map_err(|error| wrong(py, &error.to_string()))?;
        Ok(Source::of_reader(Box::new(reader)))
    }

    fn of_array(object: &Bound<'_, PyAny>) -> PyResult<Source> {
        let py = object.py();
        let capsules = object.call_method0(intern!(py, "__arrow_c_array__"))?;
        let (schema, array): (Bound<'_, PyAny>, Bound<'_, PyAny>) = capsules.extract()?;
        let schema = schema.cast::<PyCapsule>()?.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
        let array = array.cast::<PyCapsule>()?.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
        // SAFETY: as for streams, with the names of capsules of schemas and arrays.
        let (schema, array) =
            unsafe { (FFI_ArrowSchema::from_raw(schema.as_ptr()), FFI_ArrowArray::from_raw(array.as_ptr())) };
        // SAFETY: by the protocol, the array has the schema.
        let data = unsafe { from_ffi(array, &schema) }.map_err(|error| wrong(py, &error.to_string()))?;
        let array = make_array(data);
        let Some(rows) = array.as_any().downcast_ref::<StructArray>() else {
            return Err(wrong(py, &format!("an array of type {} has no columns", array.data_type())));
        };
        if rows.null_count() > 0 {
            return Err(wrong(py, "a row is NULL as a whole"));
        }
        let batch = RecordBatch::from(rows);
        Ok(Source { schema: batch.schema(), batches: Box::new(std::iter::once(Ok(batch))), rest: None })
    }

    /// The schema of all batches.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl Iterator for Source {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Result<RecordBatch, ArrowError>> {
        loop {
            if let Some(rest) = self.rest.take() {
                let length = rest.num_rows().min(BATCH_ROWS);
                if length < rest.num_rows() {
                    self.rest = Some(rest.slice(length, rest.num_rows() - length));
                }
                return Some(Ok(rest.slice(0, length)));
            }
            match self.batches.next()? {
                Ok(batch) if batch.num_rows() == 0 => {}
                Ok(batch) => match checked(batch) {
                    Ok(batch) => self.rest = Some(batch),
                    Err(error) => return Some(Err(error)),
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// A batch whose arrays are valid.
fn checked(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let schema = batch.schema();
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        let data = column.to_data();
        data.validate_full().map_err(|error| {
            ArrowError::InvalidArgumentError(format!("column \"{}\" is not valid: {error}", field.name()))
        })?;
        Ok::<Arc<dyn Array>, ArrowError>(make_array(data))
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(schema, columns)
}

fn wrong(py: Python<'_>, problem: &str) -> PyErr {
    failure::data(py, &format!("Arrow data cannot be read: {problem}"), "22000")
}
