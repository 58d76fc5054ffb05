//! Storage parameters: `WITH (compression = …)` of tables and indexes, and `ALTER TABLE … SET (compression = …)`.

use datafusion::sql::sqlparser::ast::{CreateTableOptions, SqlOption};
use keyaki_store::Compression;

use super::settings::value_text;
use crate::{Error, Result};

/// Name of the only parameter of tables.
pub(super) const COMPRESSION: &str = "compression";

/// The compression that CREATE TABLE selects; `None` for the default.
///
/// # Errors
/// `Unsupported` for other parameters, `InvalidParameter` for an unknown method, `Syntax` for a parameter that is specified
/// twice.
pub(super) fn of_table(options: &CreateTableOptions) -> Result<Option<Compression>> {
    match options {
        CreateTableOptions::None => Ok(None),
        CreateTableOptions::With(options) => of_options(options, "CREATE TABLE … WITH"),
        other => Err(Error::Unsupported(format!("this form of CREATE TABLE: {other}"))),
    }
}

/// The compression in the list of parameters of a statement.
///
/// # Errors
/// As [`of_table`].
pub(super) fn of_options(options: &[SqlOption], statement: &str) -> Result<Option<Compression>> {
    let mut found = None;
    for option in options {
        let SqlOption::KeyValue { key, value } = option else {
            return Err(Error::syntax(format!("{statement} takes name = value, not {option}")));
        };
        if !key.value.eq_ignore_ascii_case(COMPRESSION) {
            return Err(Error::Unsupported(format!("{statement} ({}) (use: {COMPRESSION})", key.value)));
        }
        if found.replace(method(&value_text(value)?)?).is_some() {
            return Err(Error::syntax(format!("parameter \"{COMPRESSION}\" specified more than once")));
        }
    }
    Ok(found)
}

/// The method with this name.
///
/// # Errors
/// `InvalidParameter`.
pub(super) fn method(name: &str) -> Result<Compression> {
    Compression::of_name(name).ok_or_else(|| {
        let expected = Compression::ALL.map(Compression::name).join(", ");
        Error::InvalidParameter { name: COMPRESSION.into(), value: name.into(), expected }
    })
}

/// The parameter as SQL; `None` for the default.
pub(super) fn sql(compression: Compression) -> Option<String> {
    (compression != Compression::default()).then(|| format!("{COMPRESSION} = '{compression}'"))
}
