//! Identifiers and relation names.
//!
//! Unquoted identifiers are folded to lower case. A relation name may be qualified with a schema, or with the database
//! name and a schema. Other names are found along the search path of the session. A name in a definition that the catalog
//! stores does not depend on a search path: without a schema, it belongs to `public`.

use std::fmt;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{Ident, ObjectName, ObjectNamePart};

use super::information_schema;
pub(crate) use crate::base::identifiers::quoted;
use crate::catalog::{Catalog, HIDDEN_ROWID, PUBLIC, RelationName, SYSTEM_PREFIX, TEMPORARY_PREFIX};
use crate::engine::CATALOG_NAME;
use crate::{Error, ObjectKind, Result};

/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Another name of the schema `public`.
const MAIN: &str = "main";
/// Reserved schema names. Names starting with `pg_` or the prefix of system views are reserved as well.
const RESERVED_SCHEMAS: [&str; 2] = [information_schema::NAME, TEMPORARY_SCHEMAS[1]];
/// Names of the schema of the session's temporary objects.
const TEMPORARY_SCHEMAS: [&str; 2] = ["pg_temp", "temp"];

/// An identifier in the form that the catalog stores: quoted as written, unquoted in lower case.
pub(crate) fn plain_ident(ident: &Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_ascii_lowercase(),
    }
}

/// The name of a new object or column.
///
/// # Errors
/// `InvalidName` if it is empty or too long, `ReservedName` if Keyaki's own queries use it.
pub(crate) fn new_name(ident: &Ident) -> Result<String> {
    let name = plain_ident(ident);
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::InvalidName { name, bytes_max: NAME_BYTES_MAX });
    }
    if name == HIDDEN_ROWID || name.starts_with(super::dml::TARGET_PREFIX) {
        let reason = "the database uses it in its own queries".into();
        return Err(Error::ReservedName { name, reason });
    }
    Ok(name)
}

/// The schemas that a session searches for names without a schema: that of its temporary objects, and then `schemas` in
/// their order. Schemas that do not exist are skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SearchPath {
    /// `None` for a session that has never had temporary objects.
    temporary: Option<Arc<str>>,
    schemas: Vec<String>,
}

impl Default for SearchPath {
    fn default() -> Self {
        SearchPath { temporary: None, schemas: vec![PUBLIC.into()] }
    }
}

impl SearchPath {
    /// A path of schemas, for a session without temporary objects.
    pub fn of_schemas(schemas: Vec<String>) -> SearchPath {
        SearchPath { temporary: None, schemas }
    }

    /// The names of all schemas of objects that are not temporary.
    pub fn schema_names(&self) -> &[String] {
        &self.schemas
    }

    /// This path with other schemas for objects that are not temporary.
    pub fn with_schemas(&self, schemas: &[Ident]) -> SearchPath {
        SearchPath { temporary: self.temporary.clone(), schemas: schemas.iter().map(schema_name).collect() }
    }

    /// This path with a schema of temporary objects.
    pub fn with_temporary(&self, schema: Arc<str>) -> SearchPath {
        SearchPath { temporary: Some(schema), schemas: self.schemas.clone() }
    }

    /// This path with the schema of temporary objects of another one.
    pub fn with_temporary_of(&self, other: &SearchPath) -> SearchPath {
        SearchPath { temporary: other.temporary.clone(), schemas: self.schemas.clone() }
    }

    /// This path without a schema of temporary objects.
    pub fn without_temporary(&self) -> SearchPath {
        SearchPath { temporary: None, schemas: self.schemas.clone() }
    }

    /// The schema of the session's temporary objects.
    pub fn temporary(&self) -> Option<&Arc<str>> {
        self.temporary.as_ref()
    }

    /// The schemas of objects that are not temporary and exist.
    pub fn schemas<'a>(&'a self, catalog: &'a Catalog) -> impl Iterator<Item = &'a str> {
        let schemas = self.schemas.iter().map(String::as_str);
        schemas.filter(|schema| catalog.has_schema(schema) && !schema.starts_with(TEMPORARY_PREFIX))
    }

    /// False for a schema of temporary objects of another session.
    fn may_create_in(&self, schema: &str) -> bool {
        !schema.starts_with(TEMPORARY_PREFIX) || self.temporary.as_deref() == Some(schema)
    }

    /// The first relation with a name.
    pub fn find(&self, catalog: &Catalog, name: &str) -> Option<RelationName> {
        let schemas = self.temporary.as_deref().into_iter().chain(self.schemas(catalog));
        schemas.map(|schema| RelationName::new(schema, name)).find(|name| catalog.has_relation(name))
    }

    /// The schema of new objects.
    ///
    /// # Errors
    /// `NotFound` if no schema of the path exists.
    pub fn current<'a>(&'a self, catalog: &'a Catalog) -> Result<&'a str> {
        self.schemas(catalog).next().ok_or_else(|| Error::NotFound { kind: ObjectKind::Schema, name: self.to_string() })
    }

    /// The schema that an identifier means. `pg_temp` and `temp` stand for that of the session's temporary objects.
    pub fn schema(&self, ident: &Ident) -> String {
        let name = schema_name(ident);
        match &self.temporary {
            Some(temporary) if TEMPORARY_SCHEMAS.contains(&name.as_str()) => temporary.to_string(),
            _ => name,
        }
    }
}

impl fmt::Display for SearchPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.schemas.iter().map(|schema| quoted(schema)).collect::<Vec<_>>().join(", "))
    }
}

/// True for the name of a temporary object: `pg_temp.t`.
pub(crate) fn is_temporary(name: &ObjectName) -> bool {
    match name.0.as_slice() {
        [.., ObjectNamePart::Identifier(schema), _] => TEMPORARY_SCHEMAS.contains(&plain_ident(schema).as_str()),
        _ => false,
    }
}

/// A schema. `main`, the name in DuckDB and SQLite, stands for `public`.
pub(crate) fn schema_name(ident: &Ident) -> String {
    match plain_ident(ident) {
        main if main == MAIN => PUBLIC.into(),
        schema => schema,
    }
}

/// The name of a new schema.
///
/// # Errors
/// `InvalidName`, `ReservedName`.
pub(crate) fn new_schema_name(name: &ObjectName) -> Result<String> {
    let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else {
        return Err(Error::Unsupported(format!("schema name {name}")));
    };
    let name = schema_name(&Ident { value: new_name(ident)?, ..ident.clone() });
    match RESERVED_SCHEMAS.contains(&name.as_str()) || ["pg_", SYSTEM_PREFIX].iter().any(|p| name.starts_with(p)) {
        true => Err(Error::ReservedName { name, reason: "it is a schema of the system".into() }),
        false => Ok(name),
    }
}

/// The parts of a relation's name: the schema, if it is given, and the name.
///
/// # Errors
/// `NotFound` if it is qualified with another database.
fn parts<'a>(name: &'a ObjectName, path: &SearchPath) -> Result<(Option<String>, &'a Ident)> {
    let idents = name.0.iter().map(|part| match part {
        ObjectNamePart::Identifier(ident) => Ok(ident),
        ObjectNamePart::Function(_) => Err(Error::Unsupported(format!("name {name}"))),
    });
    match idents.collect::<Result<Vec<_>>>()?.as_slice() {
        [name] => Ok((None, name)),
        [schema, name] => Ok((Some(path.schema(schema)), name)),
        [database, schema, name] if plain_ident(database) == CATALOG_NAME => Ok((Some(path.schema(schema)), name)),
        _ => Err(Error::NotFound { kind: ObjectKind::Relation, name: name.to_string() }),
    }
}

/// Name of an existing relation. One that no schema of the path has is in the schema without a name, which has no
/// relations.
///
/// # Errors
/// As [`parts`].
pub(crate) fn relation_name(name: &ObjectName, catalog: &Catalog, path: &SearchPath) -> Result<RelationName> {
    let (schema, ident) = parts(name, path)?;
    let name = plain_ident(ident);
    Ok(match schema {
        Some(schema) => RelationName::new(schema, name),
        None => path.find(catalog, &name).unwrap_or_else(|| RelationName::new("", name)),
    })
}

/// Name of a relation in a definition, in which names without a schema are those of `public`.
///
/// # Errors
/// As [`parts`].
pub(crate) fn stored_name(name: &ObjectName) -> Result<RelationName> {
    let (schema, ident) = parts(name, &SearchPath::default())?;
    Ok(RelationName::new(schema.unwrap_or_else(|| PUBLIC.into()), plain_ident(ident)))
}

/// Name of a new relation; see [`new_name`]. Without a schema, it belongs to the first one of the path.
///
/// # Errors
/// As [`parts`]; `NotFound` for the schema.
pub(crate) fn new_relation_name(name: &ObjectName, catalog: &Catalog, path: &SearchPath) -> Result<RelationName> {
    let (schema, ident) = parts(name, path)?;
    let name = new_name(ident)?;
    match schema {
        Some(schema) if catalog.has_schema(&schema) && path.may_create_in(&schema) => {
            Ok(RelationName::new(schema, name))
        }
        Some(schema) => Err(Error::NotFound { kind: ObjectKind::Schema, name: schema }),
        None => Ok(RelationName::new(path.current(catalog)?, name)),
    }
}

/// A new name in the schema of `other`: that of an index of this table, or of a relation to be renamed.
///
/// # Errors
/// As [`new_name`]; `Unsupported` for a name in another schema.
pub(crate) fn new_sibling(name: &ObjectName, other: &RelationName) -> Result<RelationName> {
    let (schema, ident) = parts(name, &SearchPath::default())?;
    match schema.filter(|_| !(is_temporary(name) && other.is_temporary())) {
        Some(schema) if *schema != *other.schema => {
            Err(Error::Unsupported(format!("name {name} in another schema than that of \"{other}\"")))
        }
        _ => Ok(other.sibling(new_name(ident)?)),
    }
}

/// A relation's name as SQL text that has the same meaning in all sessions. One without a schema is not in the catalog.
pub(crate) fn full_sql(name: &RelationName) -> String {
    match name.schema.is_empty() {
        true => quoted(&name.name),
        false => format!("{}.{}", quoted(&name.schema), quoted(&name.name)),
    }
}

/// A relation's name as SQL text for the session, without the schema if it is `public`.
pub(crate) fn shown_sql(name: &RelationName) -> String {
    match name.is_temporary() {
        true => format!("{}.{}", TEMPORARY_SCHEMAS[0], quoted(&name.name)),
        false if name.is_public() => quoted(&name.name),
        false => full_sql(name),
    }
}

/// A name as an identifier, quoted if it must be.
pub(crate) fn ident(name: &str) -> Ident {
    if quoted(name).starts_with('"') { Ident::with_quote('"', name) } else { Ident::new(name) }
}
