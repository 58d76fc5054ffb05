//! The mark of Arrow columns that contain JSON documents.
//!
//! Documents are texts. The metadata of the field of a result column distinguishes them from other texts, and tells JSON and
//! JSONB apart, so that servers and programs can describe them. The executor ignores the mark.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};

use super::arrays::element_type;

/// The key of the mark in the metadata of a field.
const KEY: &str = "keyaki.type";

/// The declared type of documents. Values, functions and operators of both types are the same: the type decides how servers
/// describe a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonType {
    /// JSON.
    Json,
    /// JSONB.
    Jsonb,
}

impl JsonType {
    /// PostgreSQL's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            JsonType::Json => "json",
            JsonType::Jsonb => "jsonb",
        }
    }
}

/// The type of the JSON documents in a column of a result, also in arrays; `None` for other columns.
pub fn json_type(field: &Field) -> Option<JsonType> {
    let name = field.metadata().get(KEY)?;
    [JsonType::Json, JsonType::Jsonb].into_iter().find(|ty| ty.name() == name)
}

/// A field of documents, or the field itself without a type.
pub(crate) fn with_json_type(field: &FieldRef, json: Option<JsonType>) -> FieldRef {
    let Some(json) = json else { return field.clone() };
    let mut metadata = field.metadata().clone();
    metadata.insert(KEY.into(), json.name().into());
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
