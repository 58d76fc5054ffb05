//! Storage parameters of indexes: `compression`, and those of `USING vast`.
//!
//! `goal` selects the parameters of the VAST tree (`small` or `fast`). `memory` limits the bytes of the locator.

use datafusion::sql::sqlparser::ast::{BinaryOperator, CreateIndex, Expr};
use keyaki_store::{ColumnType, Compression, Goal};

use super::settings::value_text;
use super::storage;
use crate::catalog::{IndexDef, IndexKey, IndexMethod, TableDef, VastOptions, goal_name, goal_of_name};
use crate::{Error, Result};

/// Parses `WITH (goal = …, memory = …, compression = …)`.
///
/// # Errors
/// `Unsupported` for other options and for those of other index methods, `InvalidParameter` for invalid values and for more
/// memory than in-memory indexes may use, `Syntax` for an option that is specified twice.
pub(super) fn options(
    create: &CreateIndex,
    method: IndexMethod,
    memory_bytes_max: usize,
) -> Result<(VastOptions, Compression)> {
    let (mut options, mut compression) = (VastOptions::default(), Compression::default());
    let mut seen: Vec<String> = Vec::new();
    for option in &create.with {
        let (name, value) = name_and_value(option)?;
        match (name.as_str(), method) {
            (storage::COMPRESSION, IndexMethod::Betree | IndexMethod::Vast) => compression = storage::method(&value)?,
            ("goal", IndexMethod::Vast) => options.goal = goal(&value)?,
            ("memory", IndexMethod::Vast) => options.memory_bytes = Some(memory(&value, memory_bytes_max)?),
            (_, IndexMethod::Vast) => {
                let known = "use one of: compression, goal, memory";
                return Err(Error::Unsupported(format!("CREATE INDEX … WITH ({name}) ({known})")));
            }
            _ => return Err(Error::Unsupported(format!("CREATE INDEX … USING {method} … WITH ({name})"))),
        }
        if seen.contains(&name) {
            return Err(Error::syntax(format!("parameter \"{name}\" specified more than once")));
        }
        seen.push(name);
    }
    Ok((options, compression))
}

fn name_and_value(option: &Expr) -> Result<(String, String)> {
    if let Expr::BinaryOp { left, op: BinaryOperator::Eq, right } = option
        && let Expr::Identifier(name) = &**left
    {
        return Ok((name.value.to_lowercase(), value_text(right)?));
    }
    Err(Error::syntax(format!("WITH takes name = value, not {option}")))
}

fn goal(value: &str) -> Result<Goal> {
    goal_of_name(&value.to_lowercase()).ok_or_else(|| invalid("goal", value, "small or fast".into()))
}

fn memory(value: &str, bytes_max: usize) -> Result<u64> {
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

/// The WITH clause of an index, with a leading space; empty for the defaults.
pub(super) fn with(IndexDef { vast: options, compression, .. }: &IndexDef) -> String {
    let goal = goal_name(options.goal).filter(|_| options.goal != VastOptions::default().goal);
    let goal = goal.map(|name| format!("goal = '{name}'"));
    let amount = |bytes: u64| match bytes % (1 << 20) {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{bytes} B"),
    };
    let memory = options.memory_bytes.map(|bytes| format!("memory = '{}'", amount(bytes)));
    let all: Vec<String> = goal.into_iter().chain(memory).chain(storage::sql(*compression)).collect();
    if all.is_empty() { String::new() } else { format!(" WITH ({})", all.join(", ")) }
}
