//! The mark of Arrow columns that contain JSON documents.
//!
//! Documents are texts. The metadata of the field of a result column distinguishes them from other texts, so that servers
//! and programs can describe them. The executor ignores the mark.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};

use super::arrays::element_type;

/// The key of the mark in the metadata of a field.
const KEY: &str = "keyaki.type";
const JSON: &str = "json";

/// True if a column of a result contains JSON documents, or arrays of them.
pub fn is_json(field: &Field) -> bool {
    field.metadata().get(KEY).is_some_and(|ty| ty == JSON)
}

/// A field of documents.
pub(crate) fn as_json(field: &FieldRef) -> FieldRef {
    let mut metadata = field.metadata().clone();
    metadata.insert(KEY.into(), JSON.into());
    Arc::new(field.as_ref().clone().with_metadata(metadata))
}

/// True for texts and arrays of texts, which can be documents.
pub(crate) fn holds_texts(ty: &DataType) -> bool {
    match ty {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => holds_texts(values),
        ty => element_type(ty).is_some_and(holds_texts),
    }
}
