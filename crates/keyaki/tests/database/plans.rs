//! Index pipelines return the rows of scans and hash joins: random schemas, data and queries, and TPC-H, in all modes.
//!
//! A mode sets the options `keyaki.join` and `keyaki.execution`. The mode without pipelines is the reference.

mod columns;
mod dependent;
mod estimates;
mod key_groups;
mod limits;
mod partitions;
mod random;
mod small;
mod tpch;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use keyaki::Session;

/// Values of `keyaki.join` and `keyaki.execution`.
type Mode = (&'static str, &'static str);

/// All modes to compare; the first is the reference.
const MODES: [Mode; 5] = [
    ("scan", "out_of_order"),
    ("auto", "out_of_order"),
    ("index", "out_of_order"),
    ("index", "in_order"),
    ("auto", "in_order"),
];

async fn set(session: &Session, (join, execution): Mode) {
    let sql = format!("SET keyaki.join = '{join}'; SET keyaki.execution = '{execution}'");
    session.execute(&sql).await.expect("settings");
}

fn rows_of(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<ArrayFormatter> =
        batch.columns().iter().map(|c| ArrayFormatter::try_new(c, &options).expect("formats")).collect();
    let row = |row: usize| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|");
    (0..batch.num_rows()).map(row).collect()
}

/// Runs a query and returns its rows as text, in the order of the result.
async fn rows(session: &Session, sql: &str) -> Result<Vec<String>, keyaki::Error> {
    let batches = session.query(sql).await?.collect().await?;
    Ok(batches.iter().flat_map(rows_of).collect())
}

async fn explain(session: &Session, sql: &str) -> String {
    match rows(session, &format!("EXPLAIN {sql}")).await {
        Ok(rows) => rows.join("\n"),
        Err(error) => error.to_string(),
    }
}

/// Runs a query in every mode and compares the rows, ignoring their order. Returns the plan with `keyaki.join =
/// 'index'`.
async fn compare(session: &Session, sql: &str) -> String {
    let mut reference: Option<Result<Vec<String>, String>> = None;
    for mode in MODES {
        set(session, mode).await;
        if std::env::var_os("VERBOSE").is_some() {
            println!("{mode:?} {sql}");
        }
        let mut found = rows(session, sql).await.map_err(|error| error.to_string());
        if let Ok(rows) = &mut found {
            rows.sort();
        }
        match &reference {
            None => {
                if let Err(error) = &found {
                    println!("{sql}: {error}");
                }
                reference = Some(found);
            }
            // The text of an error depends on the plan.
            Some(Err(_)) if found.is_err() => {}
            Some(expected) if *expected == found => {}
            Some(expected) => {
                dump(session).await;
                panic!("{mode:?} differs\n{sql}\n{}\n{expected:?}\n{found:?}", explain(session, sql).await);
            }
        }
    }
    set(session, ("index", "out_of_order")).await;
    explain(session, sql).await
}

/// Prints all tables and indexes, to reproduce a failure.
async fn dump(session: &Session) {
    for table in session.database().tables() {
        println!("{}", table.sql);
        for row in rows(session, &format!("SELECT * FROM {}", table.name)).await.expect("rows") {
            println!("    {row}");
        }
    }
    for index in session.database().indexes() {
        println!("{}", index.sql);
    }
}
