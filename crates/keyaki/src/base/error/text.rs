//! Parts of messages.

use std::io;
use std::path::PathBuf;

use super::{ANY_NUMBER, ConstraintKind, Error, ObjectKind};

/// Maximum characters of a value in a message.
const VALUE_CHARS_SHOWN: usize = 60;

/// A value for a message, with control characters escaped and long texts shortened.
pub(crate) fn shown(value: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let mut text: String = value.chars().take(VALUE_CHARS_SHOWN).map(escape).collect();
    if value.chars().nth(VALUE_CHARS_SHOWN).is_some() {
        text.push('…');
    }
    text
}

/// True if a text is a number, perhaps one out of the range of the type.
fn is_number(ty: &str, value: &str) -> bool {
    let digits = value.trim().trim_start_matches(['+', '-']);
    let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match ty {
        "tinyint" | "smallint" | "integer" | "bigint" => is_integer,
        ty if ty == "real" || ty == "double precision" || ty.starts_with("numeric") => {
            // Not the words for infinity and NaN.
            digits.starts_with(['.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) && digits.parse::<f64>().is_ok()
        }
        _ => false,
    }
}

pub(super) fn not_found(kind: ObjectKind, name: &str) -> String {
    match kind {
        ObjectKind::Setting => format!("unrecognized configuration parameter \"{name}\""),
        kind => format!("{kind} \"{name}\" does not exist"),
    }
}

pub(super) fn undefined(signature: &str) -> String {
    match signature.strip_prefix("operator ") {
        Some(operator) => format!("operator does not exist: {operator}"),
        None => format!("{signature} does not exist"),
    }
}

pub(super) fn of_relation(relation: &Option<String>) -> String {
    relation.as_ref().map(|relation| format!(" of relation \"{relation}\"")).unwrap_or_default()
}

pub(super) fn of_column(column: &Option<String>) -> String {
    column.as_ref().map(|column| format!(" (column \"{column}\")")).unwrap_or_default()
}

pub(super) fn hinted(hint: &Option<String>) -> String {
    hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default()
}

pub(super) fn out_of_range(ty: &str, value: &Option<String>) -> String {
    match value {
        Some(value) if is_datetime(ty) || ty == ANY_NUMBER => format!("{ty} out of range: \"{value}\""),
        Some(value) => format!("value \"{value}\" is out of range for type {ty}"),
        None => format!("{ty} out of range"),
    }
}

pub(super) fn violation(kind: &ConstraintKind, table: &str, name: &str, key: &Option<String>) -> String {
    match kind {
        ConstraintKind::NotNull => {
            format!("null value in column \"{name}\" of relation \"{table}\" violates not-null constraint")
        }
        ConstraintKind::PrimaryKey | ConstraintKind::Unique => {
            let key = key.as_ref().map(|key| format!(": Key {key} already exists")).unwrap_or_default();
            format!("duplicate key value violates unique constraint \"{name}\"{key}")
        }
    }
}

pub(super) fn check_violation(table: &str, name: &str, is_new_row: bool) -> String {
    match is_new_row {
        true => format!("new row for relation \"{table}\" violates check constraint \"{name}\""),
        false => format!("check constraint \"{name}\" of relation \"{table}\" is violated by some row"),
    }
}

pub(super) fn place(path: &Option<PathBuf>, row: Option<u64>, column: &Option<String>) -> String {
    let path = path.as_ref().map(|path| path.display().to_string());
    let row = row.map(|row| format!("row {row}"));
    let column = column.as_ref().map(|column| format!("column {column}"));
    let parts: Vec<String> = path.into_iter().chain(row).chain(column).collect();
    if parts.is_empty() { String::new() } else { format!("{}: ", parts.join(", ")) }
}

pub(super) fn left(available: Option<u64>, budget: Option<u64>) -> String {
    match (available, budget) {
        (Some(free), Some(budget)) => format!("{} of the budget of {} are left", bytes(free), bytes(budget)),
        (None, Some(budget)) => format!("the budget is {}", bytes(budget)),
        (Some(free), None) => format!("{} are left", bytes(free)),
        (None, None) => "which exceeds the budget".into(),
    }
}

/// A number of bytes in the largest unit that fits.
pub(super) fn bytes(bytes: u64) -> String {
    bytesize::ByteSize::b(bytes).display().iec().to_string()
}

/// The operating system's message, without the number of the error.
pub(super) fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((text, _)) => text.into(),
        None => text,
    }
}

/// PostgreSQL has separate SQLSTATE codes for invalid values of these types.
pub(super) fn is_datetime(ty: &str) -> bool {
    ["date", "time", "interval"].iter().any(|start| ty.starts_with(start))
}

/// Errors about values and their texts.
impl Error {
    /// Text that is not a valid value of the type `ty`.
    pub(crate) fn invalid_text(ty: impl Into<String>, value: &str, column: Option<&str>) -> Error {
        Error::InvalidText { ty: ty.into(), value: shown(value), column: column.map(Into::into) }
    }

    /// Text that cannot become a value of the type `ty`: a number is out of range, other text is invalid.
    pub(crate) fn unfit_text(ty: String, value: &str, column: Option<&str>) -> Error {
        if is_number(&ty, value) {
            Error::out_of_range(ty, value, column)
        } else {
            Error::invalid_text(ty, value, column)
        }
    }

    /// A value out of the range of the type `ty`.
    pub(crate) fn out_of_range(ty: impl Into<String>, value: &str, column: Option<&str>) -> Error {
        Error::OutOfRange { ty: ty.into(), value: Some(shown(value)), column: column.map(Into::into) }
    }

    /// Adds the target column to an error about a value.
    pub(crate) fn of_column(mut self, name: &str) -> Error {
        if let Error::InvalidText { column, .. } | Error::OutOfRange { column, .. } = &mut self {
            *column = Some(name.into());
        }
        self
    }

    /// Removes the column from an error about a value, for callers that name the column with the position.
    pub(crate) fn without_column(mut self) -> Error {
        match &mut self {
            Error::InvalidText { column, .. }
            | Error::OutOfRange { column, .. }
            | Error::StringTooLong { column, .. }
            | Error::InvalidEncoding { column } => *column = None,
            _ => {}
        }
        self
    }
}
