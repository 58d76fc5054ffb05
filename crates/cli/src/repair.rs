//! `keyaki repair`: salvages a damaged database into a new one, and reports the losses.
//!
//! The new database has a temporary name until it is complete and verified.

use std::io::{Write, stdout};
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use keyaki::{KeySpan, Repair, Repaired, RepairedTable};

use crate::arguments::RepairArguments;
use crate::bars::Bars;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::new_database::{NewDatabase, parent};
use crate::output::table_of;
use crate::terminal::rows;

pub async fn run(arguments: &RepairArguments, interrupts: &Interrupts) -> Result<()> {
    let (source, target) = (&arguments.source, &arguments.target);
    check_outside(source, target)?;
    // Ctrl-C ends the repair. It must not end the program before the temporary database is removed.
    let mut active = interrupts.activate();
    let new = NewDatabase::create(target)?;
    let bars = Bars::new();
    let options = keyaki::Options { progress: Some(bars.clone()), ..arguments.open.options()? };
    let repair = Repair::new(source, new.path(), options);
    let handle = repair.interrupt_handle();
    let repaired = active.interrupting(|| handle.interrupt(), repair.run()).await;
    bars.clear();
    let repaired = repaired?;
    new.publish()?;
    let total = repaired.tables.iter().map(|table| table.rows).sum();
    let lines = lines(&repaired).concat();
    let text = format!("{}{lines}salvaged {} to {}\n", table(&repaired)?, rows(total), target.display());
    stdout().write_all(text.as_bytes()).map_err(Failure::Output)?;
    if repaired.is_complete() { Ok(()) } else { Err(Failure::Incomplete) }
}

/// Checks that the new database does not lie within the damaged one, which must not change.
fn check_outside(source: &Path, target: &Path) -> Result<()> {
    let (Ok(source), Ok(beside)) = (source.canonicalize(), parent(target).canonicalize()) else { return Ok(()) };
    match beside.starts_with(&source) {
        true => Err(Failure::Usage(format!(
            "{}: the new database lies within the damaged one (name a directory outside of it)",
            target.display()
        ))),
        false => Ok(()),
    }
}

/// A row for each table.
fn table(repaired: &Repaired) -> Result<String> {
    if repaired.tables.is_empty() {
        return Ok(String::new());
    }
    let texts = |of: fn(&RepairedTable) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(repaired.tables.iter().map(of)))
    };
    let numbers = |of: fn(&RepairedTable) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(repaired.tables.iter().map(of)))
    };
    let batch = RecordBatch::try_from_iter([
        ("schema_name", texts(|table| &table.schema)),
        ("table_name", texts(|table| &table.name)),
        ("rows", numbers(|table| table.rows)),
        ("damaged_pages", numbers(|table| table.damaged_pages)),
        ("lost_ranges", numbers(|table| table.lost.len() as u64)),
        ("outdated_ranges", numbers(|table| table.outdated.len() as u64)),
    ])?;
    table_of(&[batch])
}

/// A line for each loss and notice.
fn lines(repaired: &Repaired) -> Vec<String> {
    let mut lines: Vec<String> = repaired.notices.iter().map(|notice| format!("notice: {notice}\n")).collect();
    lines.extend(repaired.losses.iter().map(|loss| format!("lost: {loss}\n")));
    for table in &repaired.tables {
        let name = match table.schema.as_str() {
            "public" => format!("table {}", table.name),
            schema => format!("table {schema}.{}", table.name),
        };
        let line = |what: &str, keys: &KeySpan| format!("{name}: {what}, keys from {} to {}\n", keys.low, keys.high);
        lines.extend(table.lost.iter().map(|keys| line("rows are lost", keys)));
        lines.extend(table.outdated.iter().map(|keys| line("rows may be outdated", keys)));
        if table.lost_changes > 0 {
            let changed = rows(table.lost_changes);
            lines.push(format!("{name}: {changed} left out: only changes of them remain\n"));
        }
    }
    lines
}
