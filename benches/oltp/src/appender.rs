//! Rates of `Connection::appender`, against prepared INSERTs in transactions.

use crate::bulk::{KeyakiTable, SqliteTable, Table, load};
use crate::{Experiment, Result, Run};

pub fn run(run: &mut Run) -> Result {
    if !run.wants(Experiment::Appender) {
        return Ok(());
    }
    let rows = run.arguments.appender_rows;
    println!("appender: {rows} rows in the order of the primary key, not durable");
    for indexes in [0, 2] {
        let directory = tempfile::tempdir_in(".")?;
        let rate = |table: &mut dyn Table| {
            let rates = load(table, rows, |_, _| {});
            assert_eq!(table.count(), rows, "rows of the table");
            rates.overall
        };
        let ours = rate(&mut KeyakiTable::new(&directory.path().join("keyaki"), indexes, None));
        let theirs = rate(&mut SqliteTable::new(&directory.path().join("sqlite"), indexes, None));
        run.rate(&format!("appender, {indexes} secondary indexes"), "rows/s", ours, theirs);
    }
    Ok(())
}
