//! Identifiers and relation names.
//!
//! Unquoted identifiers are folded to lower case. A relation name may be qualified with the only schema, or with the
//! database name and the schema.

use datafusion::sql::sqlparser::ast::{Ident, ObjectName, ObjectNamePart};

use crate::catalog::HIDDEN_ROWID;
use crate::engine::{CATALOG_NAME, SCHEMA_NAME};
use crate::{Error, ObjectKind, Result};

/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 255;

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

/// The last part of a relation name.
///
/// # Errors
/// `NotFound` if the qualifiers name another database or schema.
pub(crate) fn relation_ident(name: &ObjectName) -> Result<&Ident> {
    let idents = name.0.iter().map(|part| match part {
        ObjectNamePart::Identifier(ident) => Ok(ident),
        ObjectNamePart::Function(_) => Err(Error::Unsupported(format!("name {name}"))),
    });
    let idents = idents.collect::<Result<Vec<_>>>()?;
    let (last, qualifiers) =
        idents.split_last().ok_or_else(|| Error::InvalidName { name: String::new(), bytes_max: NAME_BYTES_MAX })?;
    let ours = match qualifiers.iter().map(|ident| plain_ident(ident)).collect::<Vec<_>>().as_slice() {
        [] => true,
        [schema] => schema == SCHEMA_NAME,
        [catalog, schema] => catalog == CATALOG_NAME && schema == SCHEMA_NAME,
        _ => false,
    };
    if !ours {
        return Err(Error::NotFound { kind: ObjectKind::Relation, name: name.to_string() });
    }
    Ok(last)
}

/// Name of an existing relation, without qualifiers.
pub(crate) fn relation_name(name: &ObjectName) -> Result<String> {
    relation_ident(name).map(plain_ident)
}

/// Name of a new relation, without qualifiers; see [`new_name`].
pub(crate) fn new_relation_name(name: &ObjectName) -> Result<String> {
    relation_ident(name).and_then(new_name)
}

/// A name as SQL text, quoted if it is a reserved word or not in lower case.
pub(crate) fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !is_keyword(name);
    if plain { name.into() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Reserved as an identifier, a column alias or a table alias.
fn is_keyword(name: &str) -> bool {
    use datafusion::sql::sqlparser::keywords::{ALL_KEYWORDS, ALL_KEYWORDS_INDEX, RESERVED_FOR_IDENTIFIER};
    use datafusion::sql::sqlparser::keywords::{RESERVED_FOR_COLUMN_ALIAS, RESERVED_FOR_TABLE_ALIAS};
    let Ok(position) = ALL_KEYWORDS.binary_search(&name.to_ascii_uppercase().as_str()) else { return false };
    let keyword = ALL_KEYWORDS_INDEX[position];
    RESERVED_FOR_IDENTIFIER.contains(&keyword)
        || RESERVED_FOR_TABLE_ALIAS.contains(&keyword)
        || RESERVED_FOR_COLUMN_ALIAS.contains(&keyword)
}
