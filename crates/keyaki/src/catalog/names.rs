//! Names of relations. The tables, views, indexes and sequences of a schema share one namespace.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The schema that always exists. Documents do not mention it: it has the objects that are older than schemas.
pub(crate) const PUBLIC: &str = "public";
/// The schemas of temporary objects begin with this prefix, and end with the number of a session.
pub(crate) const TEMPORARY_PREFIX: &str = "pg_temp_";

/// The name of a relation with its schema. It dereferences to the name without the schema.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Document", into = "Document")]
pub struct RelationName {
    pub schema: Arc<str>,
    pub name: String,
}

/// The JSON form of a name: a string in the schema `public`, an object in others.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Document {
    Public(String),
    Qualified { schema: String, name: String },
}

impl RelationName {
    pub fn new(schema: impl Into<Arc<str>>, name: impl Into<String>) -> RelationName {
        RelationName { schema: schema.into(), name: name.into() }
    }

    /// A name in the schema `public`.
    pub fn public(name: impl Into<String>) -> RelationName {
        RelationName::new(PUBLIC, name)
    }

    /// Another name in the same schema.
    pub fn sibling(&self, name: impl Into<String>) -> RelationName {
        RelationName::new(self.schema.clone(), name)
    }

    pub fn is_public(&self) -> bool {
        *self.schema == *PUBLIC
    }

    /// The schema, unless it is `public`, and the name, with a point between them.
    pub fn qualified(&self) -> String {
        if self.is_public() { self.name.clone() } else { format!("{}.{}", self.schema, self.name) }
    }

    /// True if the relation belongs to one session and ends with it.
    pub fn is_temporary(&self) -> bool {
        self.schema.starts_with(TEMPORARY_PREFIX)
    }
}

impl Deref for RelationName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for RelationName {
    /// The name for messages: with the schema, unless it is `public`, that of temporary objects or unknown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_public() || self.is_temporary() || self.schema.is_empty() {
            true => f.write_str(&self.name),
            false => write!(f, "{}.{}", self.schema, self.name),
        }
    }
}

impl From<Document> for RelationName {
    fn from(document: Document) -> Self {
        match document {
            Document::Public(name) => RelationName::public(name),
            Document::Qualified { schema, name } => RelationName::new(schema, name),
        }
    }
}

impl From<RelationName> for Document {
    fn from(name: RelationName) -> Self {
        match name.is_public() {
            true => Document::Public(name.name),
            false => Document::Qualified { schema: name.schema.to_string(), name: name.name },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_other_schemas_have_a_schema_in_documents() {
        for (name, json, shown) in [
            (RelationName::public("t"), r#""t""#, "t"),
            (RelationName::new("s", "t"), r#"{"schema":"s","name":"t"}"#, "s.t"),
            (RelationName::new("pg_temp_7", "t"), r#"{"schema":"pg_temp_7","name":"t"}"#, "t"),
        ] {
            assert_eq!(serde_json::to_string(&name).unwrap(), json);
            assert_eq!(serde_json::from_str::<RelationName>(json).unwrap(), name);
            assert_eq!((name.to_string().as_str(), &*name), (shown, "t"));
        }
    }
}
