//! Collects statistics of tables: from all rows of a small table, from a sample of a large one.
//!
//! The store keeps a sample of each large table, which has the rows that have left the buffers
//! ([`keyaki_store::Sample`]). A statement after which statistics are due makes them of it, unless many changes are in
//! buffers. ANALYZE, and statements whose tables have no such sample, read rows themselves.
//!
//! The sample that they read of a large table consists of stretches of consecutive rows. The leaves of the table are
//! divided into equal parts, and each part contributes one stretch at a random position ([`Collector::clusters`]). The
//! number of stretches does not depend on the size of the table.

mod collector;
mod sample;

use std::sync::Arc;

use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Scan};
use keyaki_primitives::Random;
use keyaki_store::{Direction, KeyRange, Sample, TreeView, WriteBatch};

use super::WriteStatement;
use crate::base::interrupt::Decision;
use crate::base::progress::{NoProgress, Progress};
use crate::catalog::TableStatistics;
use crate::catalog::{Catalog, RelationName, Table};
use crate::catalog::{DocumentKind, put};
use crate::engine::Engine;
use crate::{Error, Result};

use collector::Collector;
use collector::known_distinct;
pub(crate) use collector::of_sample;

/// Size of a sample.
pub(crate) struct Sampling {
    /// Tables with at most this many rows are read completely.
    pub whole_rows: f64,
    /// Number of stretches of a larger table.
    pub stretches: usize,
    /// Maximum rows of a stretch.
    pub stretch_rows: u64,
    /// Whether the sample of the store is used instead, if it has most of the changes.
    pub uses_kept: bool,
}

/// The sample of ANALYZE.
const SAMPLING: Sampling = Sampling { whole_rows: 1e6, stretches: 256, stretch_rows: 2048, uses_kept: false };
/// The sample after a load.
const LOAD_SAMPLING: Sampling = Sampling { uses_kept: true, ..SAMPLING };
/// The smaller sample that a statement collects when many rows have changed.
const QUICK_SAMPLING: Sampling = Sampling { whole_rows: 2e4, stretches: 64, stretch_rows: 256, uses_kept: true };
/// A table that splits into fewer ranges is read completely: the sample would have too few stretches.
const RANGES_MIN: usize = 16;
/// Number of ranges from which the range of each stretch is selected.
const RANGES_PER_STRETCH: usize = 8;
/// The sample of the store is used if at most this share of the rows has changes in buffers.
const UNSAMPLED_SHARE: f64 = 0.125;
const BATCH_ROWS: usize = 8192;
/// Minimum number of rows whose insertion refreshes the statistics.
const ROWS_WORTH_STATISTICS: u64 = 16;

/// Collects the statistics of tables and stores them in one commit.
pub(crate) async fn analyze(statement: &WriteStatement, names: &[RelationName]) -> Result<()> {
    refresh(statement, names, &SAMPLING).await
}

async fn refresh(statement: &WriteStatement, names: &[RelationName], sampling: &Sampling) -> Result<()> {
    let (catalog, snapshot) = statement.latest();
    let progress = &statement.progress;
    let mut batch = WriteBatch::new();
    let mut changed = Catalog::clone(&catalog);
    for name in names {
        let table = catalog.table(name)?;
        let view = snapshot.tree(table.def.tree)?;
        let statistics = collect(&statement.engine, table, view, &**progress, sampling).await?;
        progress.finish();
        put(&mut batch, DocumentKind::Statistics, name, &statistics)?;
        let table = Table::new(table.def.clone(), Some(Arc::new(statistics)))?;
        changed.tables.insert(name.clone(), Arc::new(table));
    }
    statement.engine.commit_catalog(&statement.writer, batch, changed).await
}

/// Collects statistics from a small sample, without the writer lock, and stores them unless the table was dropped in the
/// meantime. The statement whose changes made the statistics obsolete has this decision. A failure is logged and does not
/// affect the statement, nor does an interrupt.
pub(crate) async fn sample_or_warn(engine: &Arc<Engine>, decision: &Arc<Decision>, table: &Arc<Table>) {
    if let Some(Err(error)) = decision.unless_interrupted(sample(engine, decision, table)).await {
        tracing::warn!(%error, table = %table.def.name, "could not refresh the statistics of a table");
    }
}

async fn sample(engine: &Arc<Engine>, decision: &Arc<Decision>, table: &Arc<Table>) -> Result<()> {
    let view = engine.store.snapshot().tree(table.def.tree)?;
    let statistics = collect(engine, table, view, &NoProgress, &QUICK_SAMPLING).await?;
    let writer = engine.own_writer(decision).await;
    let (catalog, _) = engine.latest(&writer);
    let name = &table.def.name;
    let has_same_columns = |current: &&Arc<Table>| {
        let (current, of_sample) = (&current.def, &table.def);
        current.tree == of_sample.tree && current.dropped == of_sample.dropped
    };
    let Some(current) = catalog.tables.get(name).filter(has_same_columns) else {
        return Ok(());
    };
    let mut batch = WriteBatch::new();
    put(&mut batch, DocumentKind::Statistics, name, &statistics)?;
    let mut changed = Catalog::clone(&catalog);
    changed.tables.insert(name.clone(), Arc::new(Table::new(current.def.clone(), Some(Arc::new(statistics)))?));
    engine.commit_catalog(&writer, batch, changed).await
}

/// Refreshes the statistics after a statement that inserted `inserted` rows, at least 16, into a table of `before`
/// rows, if `inserted` is at least `before`. Returns false otherwise. A failure is logged and does not affect the
/// statement.
pub(crate) async fn after_insert(statement: &WriteStatement, name: &RelationName, before: f64, inserted: u64) -> bool {
    let fills = inserted >= ROWS_WORTH_STATISTICS && inserted as f64 >= before;
    if fills {
        refresh_or_warn(statement, name).await;
    }
    fills
}

/// Refreshes the statistics after the commit of a statement: a failure is logged, and an interrupt ends it.
pub(crate) async fn refresh_or_warn(statement: &WriteStatement, name: &RelationName) {
    let names = [name.clone()];
    if let Some(Err(error)) =
        statement.writer.decision.unless_interrupted(refresh(statement, &names, &LOAD_SAMPLING)).await
    {
        tracing::warn!(%error, table = %name, "could not refresh the statistics of a table");
    }
}

/// Collects the statistics of a table from the rows of `view`.
pub(crate) async fn collect(
    engine: &Engine,
    table: &Arc<Table>,
    view: TreeView,
    progress: &dyn Progress,
    sampling: &Sampling,
) -> Result<TableStatistics> {
    let total = view.estimate(&KeyRange::all()).rows;
    let kept = match view.unsampled_changes() {
        Some(changes) if changes as f64 <= UNSAMPLED_SHARE * total => kept_sample(&view).await?,
        _ => None,
    };
    if let Some(kept) = kept.as_ref().filter(|_| sampling.uses_kept) {
        return of_sample(kept, &table.tree_column);
    }
    let phase = format!("analyzing {}", table.def.name);
    let ranges = view.split(&KeyRange::all(), sampling.stretches * RANGES_PER_STRETCH);
    if total <= sampling.whole_rows || ranges.len() < RANGES_MIN {
        progress.start(&phase, Some(total as u64));
        let mut collector = Collector::whole(table.arrow.clone());
        scan(engine, table, view, KeyRange::all(), None, progress, &mut collector).await?;
        return collector.finish(0, None);
    }
    let stretches = sampling.stretches.min(ranges.len());
    progress.start(&phase, Some(stretches as u64 * sampling.stretch_rows));
    let mut collector = Collector::clusters(table.arrow.clone());
    let mut random = Random::new(u64::from(table.def.tree.get()));
    for stretch in 0..stretches {
        let (from, to) = (stretch * ranges.len() / stretches, (stretch + 1) * ranges.len() / stretches);
        let picked = from + (random.next_u64() % (to - from).max(1) as u64) as usize;
        let range = ranges[picked].clone();
        scan(engine, table, view.clone(), range, Some(sampling.stretch_rows), progress, &mut collector).await?;
        collector.end_cluster();
    }
    let distinct = kept.as_ref().and_then(|kept| {
        let known = known_distinct(kept)?;
        Some(table.tree_column.iter().map(|place| known[*place]).collect::<Vec<f64>>())
    });
    collector.finish(total as u64, distinct.as_deref())
}

/// The sample of the store, if there is one and it is not damaged.
async fn kept_sample(view: &TreeView) -> Result<Option<Sample>> {
    let view = view.clone();
    match tokio::task::spawn_blocking(move || view.sample()).await.map_err(|error| Error::task(&error))? {
        Err(error @ keyaki_store::Error::Corrupt { .. }) => {
            tracing::warn!(%error, "the sample of a table is not used");
            Ok(None)
        }
        sample => Ok(sample?),
    }
}

/// Pushes the rows of a range into the collector, at most `limit`.
async fn scan(
    engine: &Engine,
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
        filters: Vec::new(),
        limit,
        batch_rows: BATCH_ROWS,
        kept: Vec::new(),
    };
    let mut rows = engine.executor.scan(scan, ExecutionMode::OutOfOrder);
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        let batch = arrow::array::RecordBatch::try_new(table.arrow.clone(), batch.columns().to_vec());
        let batch = batch?;
        collector.push(&batch)?;
        progress.advance(batch.num_rows() as u64);
    }
    Ok(())
}
