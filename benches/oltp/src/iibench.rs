//! Inserts like those of iiBench: ascending primary keys, and three secondary indexes whose keys are random, in little
//! memory.

use std::time::Instant;

use keyaki_bench_report::Better;

use crate::bulk::{KeyakiTable, Rates, SqliteTable, Table, load};
use crate::{Experiment, Result, Run};

/// Memory of Keyaki, and page cache of SQLite.
const MEMORY_BYTES: usize = 512 << 20;
const INDEXES: usize = 3;

pub fn run(run: &mut Run) -> Result {
    if !run.wants(Experiment::Iibench) {
        return Ok(());
    }
    let (rows, peer_rows) = (run.arguments.iibench_rows, run.arguments.iibench_peer_rows);
    let mib = MEMORY_BYTES >> 20;
    println!("iiBench: {INDEXES} secondary indexes, {mib} MiB of memory, not durable");
    let directory = tempfile::tempdir_in(".")?;
    let keyaki = KeyakiTable::new(&directory.path().join("keyaki"), INDEXES, Some(MEMORY_BYTES));
    let (ours, our_count_ms) = measure("Keyaki", keyaki, rows);
    println!("SQLite gets {peer_rows} rows, because its rate falls steadily with the size of the indexes");
    let sqlite = SqliteTable::new(&directory.path().join("sqlite"), INDEXES, Some(MEMORY_BYTES));
    let (theirs, their_count_ms) = measure("SQLite", sqlite, peer_rows);

    let workload = format!("iiBench, {rows} rows (SQLite: {peer_rows})");
    run.rate(&workload, "rows/s", ours.overall, theirs.overall);
    run.rate(&format!("{workload}, first tenth"), "rows/s", ours.first, theirs.first);
    run.rate(&format!("{workload}, last tenth"), "rows/s", ours.last, theirs.last);
    let workload = format!("{workload}, count(*) after it");
    println!("{workload}: Keyaki {our_count_ms:.2} ms, SQLite {their_count_ms:.2} ms");
    run.report.compare(&workload, ("time", "ms", Better::Lower), our_count_ms, ("SQLite", their_count_ms));
    Ok(())
}

/// Loads a table and counts its rows. Returns the rates, and the milliseconds of the first `count(*)`.
fn measure(name: &str, mut table: impl Table, rows: u64) -> (Rates, f64) {
    let rates = load(&mut table, rows, |rows, rate| println!("{name:<8} {rows:>12} rows, {rate:>10.0} rows/s"));
    let start = Instant::now();
    let count = table.count();
    let count_ms = start.elapsed().as_secs_f64() * 1e3;
    assert_eq!(count, rows, "rows of the table");
    (rates, count_ms)
}
