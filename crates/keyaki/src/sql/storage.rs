//! Storage parameters: `WITH (compression = …)` of tables and indexes, and `ALTER TABLE … SET (compression = …)`.
//!
//! `fillfactor`, which PostgreSQL's tools set, has no effect: pages are compressed, and are not changed in place.

use datafusion::sql::sqlparser::ast::{BinaryOperator, CreateIndex, CreateTableOptions, Expr, SqlOption};
use keyaki_store::Compression;

use super::settings::value_text;
use super::vast;
use crate::catalog::{IndexDef, IndexMethod, VastOptions, goal_name};
use crate::{Error, Result};

/// Name of the only parameter of tables.
pub(super) const COMPRESSION: &str = "compression";

/// Name of PostgreSQL's parameter for the part of a page that is filled, in percent.
const FILL_FACTOR: &str = "fillfactor";

/// Checks a value of `fillfactor`.
///
/// # Errors
/// `InvalidParameter`.
fn check_fill_factor(value: &str) -> Result<()> {
    match value.parse::<u32>() {
        Ok(10..=100) => Ok(()),
        _ => {
            Err(Error::InvalidParameter { name: FILL_FACTOR.into(), value: value.into(), expected: "10 to 100".into() })
        }
    }
}

/// The compression in the clause WITH of CREATE TABLE; `None` without it.
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
        if key.value.eq_ignore_ascii_case(FILL_FACTOR) {
            check_fill_factor(&value_text(value)?)?;
            continue;
        }
        if !key.value.eq_ignore_ascii_case(COMPRESSION) {
            return Err(Error::Unsupported(format!("{statement} ({}) (use: {COMPRESSION})", key.value)));
        }
        if found.replace(compression_of(&value_text(value)?)?).is_some() {
            return Err(Error::syntax(format!("parameter \"{COMPRESSION}\" specified more than once")));
        }
    }
    Ok(found)
}

/// The method with this name.
///
/// # Errors
/// `InvalidParameter`.
pub(super) fn compression_of(name: &str) -> Result<Compression> {
    Compression::of_name(name).ok_or_else(|| {
        let expected = Compression::ALL.map(Compression::name).join(", ");
        Error::InvalidParameter { name: COMPRESSION.into(), value: name.into(), expected }
    })
}

/// The parameter as SQL; `None` for the default.
pub(super) fn sql(compression: Compression) -> Option<String> {
    (compression != Compression::default()).then(|| format!("{COMPRESSION} = '{compression}'"))
}

/// Parses `WITH (goal = …, memory = …, compression = …)`.
///
/// # Errors
/// `Unsupported` for other options and for those of other index methods, `InvalidParameter` for invalid values and for more
/// memory than in-memory indexes may use, `Syntax` for an option that is specified twice.
pub(super) fn of_index(
    create: &CreateIndex,
    method: IndexMethod,
    memory_bytes_max: usize,
) -> Result<(VastOptions, Compression)> {
    let (mut options, mut compression) = (VastOptions::default(), Compression::default());
    let mut seen: Vec<String> = Vec::new();
    for option in &create.with {
        let (name, value) = name_and_value(option)?;
        match (name.as_str(), method) {
            (FILL_FACTOR, _) => check_fill_factor(&value)?,
            (COMPRESSION, IndexMethod::Betree | IndexMethod::Vast) => compression = compression_of(&value)?,
            ("goal", IndexMethod::Vast) => options.goal = vast::goal(&value)?,
            ("memory", IndexMethod::Vast) => options.memory_bytes = Some(vast::memory(&value, memory_bytes_max)?),
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

/// The WITH clause of an index, with a leading space; empty for the defaults.
pub(super) fn with(IndexDef { vast: options, compression, .. }: &IndexDef) -> String {
    let goal = goal_name(options.goal).filter(|_| options.goal != VastOptions::default().goal);
    let goal = goal.map(|name| format!("goal = '{name}'"));
    let amount = |bytes: u64| match bytes % (1 << 20) {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{bytes} B"),
    };
    let memory = options.memory_bytes.map(|bytes| format!("memory = '{}'", amount(bytes)));
    let all: Vec<String> = goal.into_iter().chain(memory).chain(sql(*compression)).collect();
    if all.is_empty() { String::new() } else { format!(" WITH ({})", all.join(", ")) }
}
