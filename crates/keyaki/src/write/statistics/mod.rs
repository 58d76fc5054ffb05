//! ANALYZE: statistics of tables, from all rows of a small table and from stretches of a large one.
//!
//! A large table is read in stretches of neighbouring rows, spread evenly over its leaves with a random place in each part
//! ([`Collector::clusters`]); their number does not depend on the table's size.

mod collect;
mod hyperloglog;
mod sample;

use std::sync::Arc;

use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Scan};
use keyaki_store::{Direction, KeyRange, TreeView, WriteBatch};

use crate::Outcome;
use crate::base::progress::Progress;
use crate::catalog::TableStatistics;
use crate::catalog::{Catalog, Table};
use crate::catalog::{Kind, put};
use crate::engine::Writer;
use crate::{Error, Result, Session};

pub(crate) use collect::Collector;
pub(crate) use sample::Random;

/// How much of a table is read.
struct Sampling {
    /// Tables of up to so many rows are read whole.
    whole_rows: f64,
    /// Of larger ones, so many stretches …
    stretches: usize,
    /// … of so many rows.
    stretch_rows: u64,
}

const SAMPLING: Sampling = Sampling { whole_rows: 1e6, stretches: 256, stretch_rows: 2048 };
/// With fewer leaves than this, stretches tell little of how values are spread, and reading all is cheap.
const RANGES_MIN: usize = 16;
/// A stretch lies in one of so many ranges of the part that it stands for.
const RANGES_PER_STRETCH: usize = 8;
const BATCH_ROWS: usize = 8192;
/// So many rows put into an empty table tell something about those to come.
const ROWS_WORTH_STATISTICS: u64 = 16;

/// Runs `ANALYZE` of one table or of all.
pub(crate) async fn run(session: &Session, table: Option<&str>) -> Result<Outcome> {
    let writer = session.database.writer().await;
    let (catalog, _) = session.database.latest(&writer);
    let names: Vec<String> = match table {
        Some(name) => vec![catalog.table(name)?.def.name.clone()],
        None => catalog.tables.keys().cloned().collect(),
    };
    for name in &names {
        refresh(session, &writer, name).await?;
    }
    Ok(Outcome::done("ANALYZE"))
}

/// Makes the statistics of a table anew and stores them.
pub(crate) async fn refresh(session: &Session, writer: &Writer, name: &str) -> Result<()> {
    let (catalog, snapshot) = session.database.latest(writer);
    let table = catalog.table(name)?;
    let progress = session.progress.lock().clone();
    let statistics = gather(session, table, snapshot.tree(table.def.tree)?, &*progress, &SAMPLING).await?;
    progress.finish();
    let mut batch = WriteBatch::new();
    put(&mut batch, Kind::Statistics, name, &statistics)?;
    let mut changed = Catalog::clone(&catalog);
    changed.tables.insert(name.into(), Arc::new(Table::new(table.def.clone(), Some(Arc::new(statistics)))?));
    session.database.commit_catalog(writer, batch, changed).await
}

/// Makes statistics anew after a statement that added `inserted` rows to `before` rows, if the table was empty or is now
/// twice as large (a few rows tell nothing). The statement has succeeded, whatever becomes of this.
pub(crate) async fn after_insert(session: &Session, writer: &Writer, name: &str, before: f64, inserted: u64) {
    if inserted >= ROWS_WORTH_STATISTICS && inserted as f64 >= before {
        refresh_or_warn(session, writer, name).await;
    }
}

/// [`refresh`] after a statement that has succeeded whatever becomes of it.
pub(crate) async fn refresh_or_warn(session: &Session, writer: &Writer, name: &str) {
    if let Err(error) = refresh(session, writer, name).await {
        tracing::warn!(%error, table = name, "no new statistics");
    }
}

async fn gather(
    session: &Session,
    table: &Arc<Table>,
    view: TreeView,
    progress: &dyn Progress,
    sampling: &Sampling,
) -> Result<TableStatistics> {
    let total = view.estimate(&KeyRange::all()).rows;
    let phase = format!("analyzing {}", table.def.name);
    let ranges = view.split(&KeyRange::all(), sampling.stretches * RANGES_PER_STRETCH);
    if total <= sampling.whole_rows || ranges.len() < RANGES_MIN {
        progress.start(&phase, Some(total as u64));
        let mut collector = Collector::whole(table.arrow.clone());
        scan(session, table, view, KeyRange::all(), None, progress, &mut collector).await?;
        return collector.finish(0);
    }
    let stretches = sampling.stretches.min(ranges.len());
    progress.start(&phase, Some(stretches as u64 * sampling.stretch_rows));
    let mut collector = Collector::clusters(table.arrow.clone());
    let mut random = Random::new(u64::from(table.def.tree));
    for stretch in 0..stretches {
        let (from, to) = (stretch * ranges.len() / stretches, (stretch + 1) * ranges.len() / stretches);
        let picked = from + (random.next() % (to - from).max(1) as u64) as usize;
        let range = ranges[picked].clone();
        scan(session, table, view.clone(), range, Some(sampling.stretch_rows), progress, &mut collector).await?;
        collector.end_cluster();
    }
    collector.finish(total as u64)
}

/// Gives the rows of a range to the collector.
async fn scan(
    session: &Session,
    table: &Arc<Table>,
    view: TreeView,
    range: KeyRange,
    limit: Option<u64>,
    progress: &dyn Progress,
    collector: &mut Collector,
) -> Result<()> {
    let scan = Scan {
        view,
        ranges: vec![range],
        direction: Direction::Ascending,
        columns: table.tree_column.clone(),
        filter: None,
        limit,
        batch_rows: BATCH_ROWS,
    };
    let mut rows = session.database.inner.executor.scan(scan, ExecutionMode::OutOfOrder);
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        let batch = arrow::array::RecordBatch::try_new(table.arrow.clone(), batch.columns().to_vec());
        let batch = batch.map_err(|error| Error::DataFusion(error.into()))?;
        collector.push(&batch)?;
        progress.advance(batch.num_rows() as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::record_batch::RecordBatch;

    use super::*;
    use crate::base::progress::NoProgress;
    use crate::{Database, Options};

    const ROWS: i64 = 120_000;

    /// Four lines an order, 500 parts in no order, 7 modes, a tenth without a mode.
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
    async fn loads_and_analyze_know_the_table() -> Result<()> {
        let dir = tempfile::tempdir().expect("a directory");
        let database = Database::open(dir.path().join("db"), Options::default())?;
        let session = database.session();
        session.execute("CREATE TABLE lines (o BIGINT, l BIGINT, p BIGINT, m TEXT, PRIMARY KEY (o, l))").await?;
        session.load_iter("lines", lines()).await?;
        let statistics = || {
            let (catalog, _) = database.moment();
            catalog.tables["lines"].statistics.clone().expect("statistics")
        };
        check(&statistics(), 0.1);
        session.execute("ANALYZE").await?;
        check(&statistics(), 0.1);
        let sampling = Sampling { whole_rows: 0.0, stretches: 100, stretch_rows: 200 };
        let (catalog, snapshot) = database.moment();
        let table = &catalog.tables["lines"];
        let view = snapshot.tree(table.def.tree)?;
        check(&gather(&session, table, view, &NoProgress, &sampling).await?, 0.35);
        // They are stored.
        let before = statistics();
        drop((session, catalog, snapshot, database));
        let database = Database::open(dir.path().join("db"), Options::default())?;
        assert_eq!(database.moment().0.tables["lines"].statistics, Some(before));
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rows_added_to_a_table_count() -> Result<()> {
        let dir = tempfile::tempdir().expect("a directory");
        let database = Database::open(dir.path().join("db"), Options::default())?;
        let session = database.session();
        session.execute("CREATE TABLE t (o BIGINT, l BIGINT, p BIGINT, m TEXT); ANALYZE t").await?;
        assert_eq!(database.moment().0.tables["t"].statistics.as_ref().map(|s| s.rows), Some(0));
        for times in 1..=2 {
            session.load_iter("t", lines()).await?;
            let rows = database.moment().0.tables["t"].statistics.as_ref().map(|s| s.rows);
            assert_eq!(rows, Some(times * ROWS as u64));
        }
        let error = session.execute("ANALYZE nothing").await.expect_err("no such table");
        assert!(error.to_string().contains("does not exist"), "{error}");
        Ok(())
    }
}
