//! Parameters and keys of `CREATE INDEX … USING vast`.
//!
//! `goal` selects the parameters of the VAST tree (`small` or `fast`). `memory` limits the bytes of the locator.

use keyaki_store::{ColumnType, Goal};

use crate::catalog::{IndexKey, TableDef, goal_of_name};
use crate::{Error, Result};

/// # Errors
/// `InvalidParameter`.
pub(super) fn goal(value: &str) -> Result<Goal> {
    goal_of_name(&value.to_lowercase()).ok_or_else(|| invalid("goal", value, "small or fast".into()))
}

/// # Errors
/// `InvalidParameter`, also for more than `bytes_max`.
pub(super) fn memory(value: &str, bytes_max: usize) -> Result<u64> {
    let bytes: bytesize::ByteSize = value.parse().map_err(|_| invalid("memory", value, "a size like 64 MiB".into()))?;
    if bytes.as_u64() > bytes_max as u64 {
        let expected = format!("at most {} MiB, which is all that indexes in memory can take", bytes_max >> 20);
        return Err(invalid("memory", value, expected));
    }
    Ok(bytes.as_u64())
}

fn invalid(name: &str, value: &str, expected: String) -> Error {
    Error::InvalidParameter { name: name.into(), value: value.into(), expected }
}

/// Checks the type of the first indexed column.
///
/// # Errors
/// `Unsupported` unless it is an integer, date or timestamp.
pub(super) fn check_key(table: &TableDef, key: &IndexKey) -> Result<()> {
    use ColumnType as T;
    let (name, ty) = match key {
        IndexKey::Column(column) => (&table.columns[*column].name, table.columns[*column].ty),
        IndexKey::Expression(expression) => (&expression.sql, expression.ty),
    };
    match ty.column {
        T::Int8 | T::Int16 | T::Int32 | T::Int64 | T::Date | T::Timestamp { .. } => Ok(()),
        _ => Err(Error::Unsupported(format!(
            "index method \"vast\" for column \"{name}\" of type {} (the first column must be an integer, date or timestamp)",
            crate::catalog::types::sql_type_name(ty)
        ))),
    }
}
