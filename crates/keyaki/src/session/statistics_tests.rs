//! Tests of the statistics that loads and ANALYZE collect.

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;

use std::sync::Arc;

use crate::base::progress::NoProgress;
use crate::catalog::{RelationName, TableStatistics};
use crate::session::Database;
use crate::write::statistics::{Sampling, collect};
use crate::{Options, Result};

const ROWS: i64 = 120_000;

/// Four lines per order, 500 parts in pseudo-random order, 7 modes; the mode of a tenth of the rows is null.
fn lines() -> impl Iterator<Item = Result<RecordBatch>> + Send {
    (0..ROWS / 1000).map(|i| {
        let rows = i * 1000..(i + 1) * 1000;
        let order: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row / 4)));
        let line: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row % 4)));
        let part: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row * 7919 % 500)));
        let mode = rows.map(|row| (row % 10 != 0).then(|| format!("mode {}", row % 7)));
        let mode: ArrayRef = Arc::new(StringArray::from_iter(mode));
        Ok(RecordBatch::try_from_iter([("o", order), ("l", line), ("p", part), ("m", mode)])
            .expect("columns of one length"))
    })
}

fn check(statistics: &TableStatistics, tolerance: f64) {
    let near = |found: f64, expected: f64| {
        assert!((found - expected).abs() <= tolerance * expected, "{found} instead of {expected}: {statistics:?}");
    };
    near(statistics.rows as f64, ROWS as f64);
    near(statistics.distinct(0), ROWS as f64 / 4.0);
    near(statistics.distinct(1), 4.0);
    near(statistics.distinct(2), 500.0);
    near(statistics.distinct(3), 7.0);
    near(statistics.columns[3].null_fraction, 0.1);
    near(statistics.columns[3].width, 6.0);
    use std::ops::Bound::{Excluded, Included, Unbounded};
    near(statistics.selectivity_range(0, Unbounded, Excluded(ROWS as f64 / 8.0)), 0.5);
    near(statistics.selectivity_range(2, Included(100.0), Excluded(200.0)), 0.2);
    near(statistics.selectivity_eq(1, Some(2.0)), 0.25);
}

#[tokio::test(flavor = "multi_thread")]
async fn loads_and_analyze_collect_statistics() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let database = Database::open(dir.path().join("db"), Options::default())?;
    let session = database.session();
    session.execute("CREATE TABLE lines (o BIGINT, l BIGINT, p BIGINT, m TEXT, PRIMARY KEY (o, l))").await?;
    session.load_iter("lines", lines()).await?;
    let statistics = || {
        let (catalog, _) = database.engine.moment();
        catalog.tables[&RelationName::public("lines")].statistics.clone().expect("statistics")
    };
    check(&statistics(), 0.1);
    session.execute("ANALYZE").await?;
    check(&statistics(), 0.1);
    let kept = Sampling { whole_rows: 0.0, stretches: 100, stretch_rows: 200, uses_kept: true };
    let read = Sampling { uses_kept: false, ..kept };
    let (catalog, snapshot) = database.engine.moment();
    let table = &catalog.tables[&RelationName::public("lines")];
    let view = snapshot.tree(table.def.tree)?;
    check(&collect(&database.engine, table, view.clone(), &NoProgress, &kept).await?, 0.1);
    check(&collect(&database.engine, table, view, &NoProgress, &read).await?, 0.35);
    // Statistics survive reopening.
    let before = statistics();
    drop((session, catalog, snapshot, database));
    let database = Database::open(dir.path().join("db"), Options::default())?;
    assert_eq!(database.engine.moment().0.tables[&RelationName::public("lines")].statistics, Some(before));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn loads_add_their_rows_to_the_statistics() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let database = Database::open(dir.path().join("db"), Options::default())?;
    let session = database.session();
    session.execute("CREATE TABLE t (o BIGINT, l BIGINT, p BIGINT, m TEXT); ANALYZE t").await?;
    assert_eq!(
        database.engine.moment().0.tables[&RelationName::public("t")].statistics.as_ref().map(|s| s.rows),
        Some(0)
    );
    for times in 1..=2 {
        session.load_iter("t", lines()).await?;
        let rows = database.engine.moment().0.tables[&RelationName::public("t")].statistics.as_ref().map(|s| s.rows);
        assert_eq!(rows, Some(times * ROWS as u64));
    }
    let error = session.execute("ANALYZE nothing").await.expect_err("no such table");
    assert!(error.to_string().contains("does not exist"), "{error}");
    Ok(())
}
