//! Extension types of Arrow in results: UUIDs are `arrow.uuid`, one of Arrow's canonical extension types.
//!
//! Within Keyaki, UUIDs are the only values of 16 bytes of fixed length. The metadata of a field mark them for other libraries.
//! Elements of arrays are not marked.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;

/// Keys of the metadata of a field.
const NAME: &str = "ARROW:extension:name";
const METADATA: &str = "ARROW:extension:metadata";
const UUID: &str = "arrow.uuid";
const UUID_BYTES: i32 = 16;

/// The schema with extension types.
pub fn schema(schema: &SchemaRef) -> SchemaRef {
    if !schema.fields().iter().any(is_uuid) {
        return schema.clone();
    }
    let fields = schema.fields().iter().map(|field| if is_uuid(field) { marked(field) } else { field.clone() });
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// A batch with a schema of [`schema`].
///
/// # Errors
/// Errors of Arrow: none for batches of the original schema.
pub fn batch(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    match batch.schema() == *schema {
        true => Ok(batch),
        false => RecordBatch::try_new(schema.clone(), batch.columns().to_vec()),
    }
}

fn is_uuid(field: &FieldRef) -> bool {
    *field.data_type() == DataType::FixedSizeBinary(UUID_BYTES)
}

fn marked(field: &FieldRef) -> FieldRef {
    let mut metadata = field.metadata().clone();
    metadata.extend([(NAME.into(), UUID.into()), (METADATA.into(), String::new())]);
    Arc::new(Field::clone(field).with_metadata(metadata))
}
