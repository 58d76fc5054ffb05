//! `keyaki check`: verifies all pages of a database, and compares its indexes with their tables.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use keyaki::SqlState;

use crate::arguments::CheckArguments;
use crate::database;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::output::Mode;
use crate::run::Runner;
use crate::terminal::{bytes, rows};

/// Totals of a check.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    tables: u64,
    indexes: u64,
    rows: u64,
    bytes: u64,
}

pub async fn run(arguments: &CheckArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let options = keyaki::Options { must_exist: true, ..arguments.open.options()? };
    let database = database::open(&arguments.database, options).inspect_err(|failure| {
        if matches!(failure, Failure::Database(error) if error.sqlstate() == SqlState::DATA_CORRUPTED) {
            eprintln!("{}", hint(&arguments.database));
        }
    })?;
    let mut runner = Runner::new(&database, Mode::Table, interrupts);
    report(&mut runner, &arguments.database).await
}

/// Checks the open database and shows its problems. `path` is that of the database.
///
/// # Errors
/// [`Failure::Reported`] if there are problems; errors of CHECK DATABASE.
pub async fn report(runner: &mut Runner, path: &Path) -> Result<()> {
    let checked = runner.collect("CHECK DATABASE").await?;
    let problems = problems(&checked);
    problems.iter().try_for_each(|problem| runner.say(problem))?;
    let Totals { tables, indexes, rows: all, bytes: size } = totals(&checked);
    let what = |count: u64, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    let (tables, indexes) = (what(tables, "table", "tables"), what(indexes, "index", "indexes"));
    let found = match problems.len() {
        0 => "no damage".into(),
        found => what(found as u64, "problem", "problems"),
    };
    runner.say(&format!("{found} in {tables} and {indexes} ({}, {})", rows(all), bytes(size)))?;
    if problems.is_empty() {
        return Ok(());
    }
    runner.say(&hint(path))?;
    Err(Failure::Reported)
}

/// The remedy for damage.
fn hint(database: &Path) -> String {
    let shown = database.display();
    if keyaki::is_url(database) {
        return format!("open an older version ('{shown}@N'; keyaki versions '{shown}'), or publish to another URL");
    }
    let database = shown;
    format!("restore a backup, or salvage the intact rows: keyaki repair '{database}' NEW_DATABASE")
}

/// A line for each problem.
fn problems(checked: &[RecordBatch]) -> Vec<String> {
    let mut lines = Vec::new();
    for batch in checked {
        let text = |column: usize, row: usize| {
            let column = batch.column(column).as_string::<i32>();
            column.is_valid(row).then(|| column.value(row))
        };
        for row in 0..batch.num_rows() {
            let Some(problem) = text(6, row) else { continue };
            let name = match (text(0, row), text(1, row), text(2, row)) {
                (Some("public"), Some(table), None) => format!("table {table}"),
                (Some("public"), Some(table), Some(index)) => format!("index {index} of table {table}"),
                (Some(schema), Some(table), None) => format!("table {schema}.{table}"),
                (Some(schema), Some(table), Some(index)) => format!("index {index} of table {schema}.{table}"),
                _ => "a tree without a table".into(),
            };
            let keys = text(7, row).zip(text(8, row)).map(|(low, high)| format!(", keys from {low} to {high}"));
            lines.push(format!("{name}: {problem}{}", keys.unwrap_or_default()));
        }
    }
    lines
}

/// Each table and index counts once, however many problems it has.
fn totals(checked: &[RecordBatch]) -> Totals {
    let mut trees = BTreeMap::new();
    for batch in checked {
        let text = |column: usize, row: usize| batch.column(column).as_string::<i32>().value(row).to_string();
        let number = |column: usize, row: usize| {
            let column = batch.column(column).as_primitive::<Int64Type>();
            if column.is_valid(row) { column.value(row) as u64 } else { 0 }
        };
        for row in (0..batch.num_rows()).filter(|&row| batch.column(1).is_valid(row)) {
            let is_index = batch.column(2).is_valid(row);
            let name = (text(0, row), text(1, row), is_index.then(|| text(2, row)));
            trees.insert(name, (is_index, number(3, row), number(5, row)));
        }
    }
    let mut totals = Totals::default();
    for (is_index, rows, bytes) in trees.into_values() {
        match is_index {
            true => totals.indexes += 1,
            false => (totals.tables, totals.rows) = (totals.tables + 1, totals.rows + rows),
        }
        totals.bytes += bytes;
    }
    totals
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    /// Schema, table, index, a number for all numbers, problem.
    type Row = (&'static str, &'static str, Option<&'static str>, i64, Option<&'static str>);

    fn checked(rows: &[Row]) -> RecordBatch {
        let texts = |of: &dyn Fn(usize) -> Option<String>| -> ArrayRef {
            Arc::new(StringArray::from_iter((0..rows.len()).map(of)))
        };
        let numbers = || -> ArrayRef { Arc::new(Int64Array::from_iter(rows.iter().map(|row| Some(row.3)))) };
        let key = |text: &str| texts(&|i| rows[i].4.map(|_| text.to_string()));
        RecordBatch::try_from_iter_with_nullable([
            ("schema_name", texts(&|i| Some(rows[i].0.into())), true),
            ("table_name", texts(&|i| Some(rows[i].1.into())), true),
            ("index_name", texts(&|i| rows[i].2.map(String::from)), true),
            ("rows", numbers(), true),
            ("pages", numbers(), true),
            ("bytes", numbers(), true),
            ("problem", texts(&|i| rows[i].4.map(String::from)), true),
            ("low_key", key("(1)"), true),
            ("high_key", key("(9)"), true),
        ])
        .unwrap()
    }

    #[test]
    fn problems_and_totals() {
        let checked = checked(&[
            ("public", "t", None, 10, None),
            ("public", "t", Some("i"), 10, Some("corrupt page")),
            ("public", "t", Some("i"), 10, Some("another page")),
            ("old", "t", None, 5, Some("corrupt page")),
        ]);
        let expected = [
            "index i of table t: corrupt page, keys from (1) to (9)",
            "index i of table t: another page, keys from (1) to (9)",
            "table old.t: corrupt page, keys from (1) to (9)",
        ];
        assert_eq!(problems(std::slice::from_ref(&checked)), expected);
        assert_eq!(totals(&[checked]), Totals { tables: 2, indexes: 1, rows: 15, bytes: 25 });
    }
}
