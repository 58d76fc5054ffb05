//! Bulk loads: many rows into a table and its secondary indexes at once, past log and buffers.
//!
//! ```text
//!               ┌─► table writer ──────────────────────► leaf extents ─┐
//!  rows ─ batch ┼─► index sorter ─► runs ─► merge ─────► leaf extents ─┼─► install, all or nothing
//!               ├─► index sorter ─► runs ─► merge ─────► leaf extents ─┤
//!               └─► statistics ────────────────────────► catalog ──────┘
//! ```
//!
//! Each arm runs on a thread of its own, fed through a short queue. The table is written as the rows come, as long as they
//! come in key order (files usually are so); from the first row that does not, the rest is sorted first and merged with
//! what was written ([`table`]). Index entries are sorted, in memory or with the help of temporary files ([`sort`]), and
//! written when all rows have been seen ([`index`]). Everything written belongs to nobody until it is installed, and is
//! freed if the load fails or is cancelled: nothing is visible or left behind.
//!
//! A few rows take the ordinary way through a write batch instead.

mod index;
mod job;
mod memory;
mod merge;
mod sort;
mod spill;
mod table;
mod unique;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::base::recover;
use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use keyaki_store::{KeyRange, Loaded, Snapshot, TreeId, WriteBatch};

use self::job::{Job, Workers};
use self::memory::batch_bytes;
use crate::catalog::TableStatistics;
use crate::catalog::{Catalog, Table};
use crate::catalog::{Kind, put};
use crate::engine::memory_index::Build;
use crate::engine::{Inner, Writer};
use crate::write::statistics;
use crate::{Result, Session};

/// Up to so many rows go through a write batch, if the table has rows (else its first leaves are better made here) …
const SMALL_ROWS: usize = 20_000;
const SMALL_ROWS_EMPTY: usize = 2_000;
/// … and bytes.
const SMALL_BYTES: usize = 16 << 20;
/// Statistics are made anew when this share of a table's rows is new.
const REFRESH_SHARE: f64 = 0.1;

/// Where rows come from, for messages: knows the file and the row in it of row `n` of the stream.
pub(crate) trait Origin: std::fmt::Debug + Send + Sync {
    /// File and row (from 1) of a row of the stream (from 0); none if it is not from a file.
    fn locate(&self, row: u64) -> Option<(PathBuf, u64)>;
    /// How many rows there are, as far as known when the first have come.
    fn total_rows(&self) -> Option<u64>;
}

/// Rows that are not from a file.
#[derive(Debug)]
pub(crate) struct NoOrigin;

impl Origin for NoOrigin {
    fn locate(&self, _: u64) -> Option<(PathBuf, u64)> {
        None
    }
    fn total_rows(&self) -> Option<u64> {
        None
    }
}

/// Adds all rows of `rows` to the table, or none, and returns their number. Rows have the table's columns in table order
/// with exactly their Arrow types; NOT NULL and lengths have been checked ([`crate::write::assign`]). Primary key and unique
/// indexes are checked here.
pub(crate) async fn insert_stream(
    session: &Session,
    writer: &Writer,
    table: &Arc<Table>,
    mut rows: SendableRecordBatchStream,
    origin: Arc<dyn Origin>,
) -> Result<u64> {
    session.database.inner.check_writable(table)?;
    let (catalog, snapshot) = session.database.latest(writer);
    let before = snapshot.tree(table.def.tree)?.estimate(&KeyRange::all()).rows;
    let small_rows = if before > 0.0 { SMALL_ROWS } else { SMALL_ROWS_EMPTY };
    let (mut head, mut head_rows, mut head_bytes) = (Vec::new(), 0, 0);
    while head_rows <= small_rows && head_bytes <= SMALL_BYTES {
        let Some(batch) = rows.next().await else {
            let inserted = insert_few(session, writer, table, &head, &origin).await?;
            statistics::after_insert(session, writer, &table.def.name, before, inserted).await;
            return Ok(inserted);
        };
        let batch = batch.map_err(recover)?;
        head_rows += batch.num_rows();
        head_bytes += batch_bytes(&batch);
        head.push(batch);
    }
    let progress = session.progress.lock().clone();
    progress.start(&format!("loading {}", table.def.name), origin.total_rows());
    let job = Job::new(session, writer, table, snapshot, origin);
    let mut workers = Workers::of_table(&job)?;
    let mut head = futures::stream::iter(head.into_iter().map(Ok)).chain(rows.map(|batch| batch.map_err(recover)));
    let sent = send_all(&job, &mut workers, &mut head).await;
    let written = workers.finish(sent).await?;
    let total = written.rows;
    install(session, writer, table, catalog, written, before).await?;
    progress.finish();
    Ok(total)
}

/// Hands all rows to the workers.
async fn send_all(
    job: &Arc<Job>,
    workers: &mut Workers,
    rows: &mut (impl futures::Stream<Item = Result<RecordBatch>> + Unpin),
) -> Result<()> {
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        if batch.num_rows() == 0 {
            continue;
        }
        let batch = job.with_rowids(batch).await?;
        job.progress.advance(batch.num_rows() as u64);
        if !workers.send(batch).await {
            break;
        }
    }
    Ok(())
}

async fn insert_few(
    session: &Session,
    writer: &Writer,
    table: &Arc<Table>,
    batches: &[RecordBatch],
    origin: &Arc<dyn Origin>,
) -> Result<u64> {
    let change = crate::sql::dml::insert::insertion(table, batches)?;
    let (_, snapshot) = session.database.latest(writer);
    let inserted = crate::sql::dml::commit(session, writer, snapshot, change).await;
    inserted.map_err(|error| unique::locate_duplicate(error, table, batches, &**origin))
}

/// Installs what was loaded, with statistics.
async fn install(
    session: &Session,
    writer: &Writer,
    table: &Arc<Table>,
    catalog: Arc<Catalog>,
    written: job::Written,
    rows_before: f64,
) -> Result<()> {
    let mut batch = written.messages;
    let mut changed = None;
    let rows = written.rows as f64;
    if let Some(statistics) = new_statistics(table, written.statistics, rows_before) {
        put(&mut batch, Kind::Statistics, &table.def.name, &statistics)?;
        let mut catalog = Catalog::clone(&catalog);
        let with = Arc::new(Table::new(table.def.clone(), Some(Arc::new(statistics)))?);
        catalog.tables.insert(table.def.name.clone(), with);
        changed = Some(catalog);
    }
    session.database.install(writer, batch, written.loaded, changed).await?;
    if rows_before > 0.0 && rows > REFRESH_SHARE * rows_before {
        statistics::refresh_or_warn(session, writer, &table.def.name).await;
    }
    Ok(())
}

/// Statistics of a table that was empty before are those of the loaded rows; else only the number of rows is new.
fn new_statistics(table: &Table, loaded: Option<TableStatistics>, rows_before: f64) -> Option<TableStatistics> {
    let loaded = loaded?;
    if rows_before == 0.0 {
        return Some(loaded);
    }
    let known = table.statistics.as_ref()?;
    Some(TableStatistics { rows: known.rows + loaded.rows, columns: known.columns.clone() })
}

/// Writes the tree of a new index (`index`: its place in `table.def.indexes` and `table.index_schemas`; `table` is the
/// definition with the index, which the catalog does not yet show) from the rows of the table, and installs it together
/// with `batch` (which creates the tree and stores the definition) and `catalog` (which shows it).
pub(crate) async fn build_index(
    session: &Session,
    writer: &Writer,
    table: &Arc<Table>,
    index: usize,
    batch: WriteBatch,
    catalog: Catalog,
) -> Result<()> {
    let start = Instant::now();
    let (_, snapshot) = session.database.latest(writer);
    let def = &table.def.indexes[index];
    if def.method.is_in_memory() && !def.unique {
        let loaded = build_in_memory(session, writer, table, index, snapshot).await?;
        session.database.install(writer, batch, loaded, Some(catalog)).await?;
        session.database.inner.build_times.lock().insert(def.tree, start.elapsed());
        return Ok(());
    }
    let view = snapshot.tree(table.def.tree)?;
    let progress = session.progress.lock().clone();
    let total = view.estimate(&KeyRange::all()).rows as u64;
    progress.start(&format!("indexing {}", table.def.name), Some(total));
    let job = Job::new(session, writer, table, snapshot, Arc::new(NoOrigin));
    let mut rows = index::entries(session, table, index, view);
    let mut workers = Workers::of_index(&job, index)?;
    let sent = async {
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            job.progress.advance(batch.num_rows() as u64);
            if !workers.send(batch).await {
                break;
            }
        }
        Ok(())
    }
    .await;
    let written = workers.finish(sent).await?;
    session.database.install(writer, batch, written.loaded, Some(catalog)).await?;
    if def.method.is_in_memory() {
        session.database.inner.build_times.lock().insert(def.tree, start.elapsed());
    }
    progress.finish();
    Ok(())
}

/// Builds an index in memory by all threads together: its entries need not be compared with their neighbours.
async fn build_in_memory(
    session: &Session,
    writer: &Writer,
    table: &Arc<Table>,
    index: usize,
    snapshot: Snapshot,
) -> Result<Vec<(TreeId, Loaded)>> {
    let job = Job::new(session, writer, table, snapshot, Arc::new(NoOrigin));
    // Dropped with this future, which tells the job to stop.
    let _workers = Workers::none(&job);
    let work = move |inner: &Inner| {
        let mut built = Vec::new();
        let build = Build {
            store: &inner.store,
            executor: &inner.executor,
            table: &job.table,
            places: &[index],
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes_max: inner.memory_index_bytes_max,
            progress: &*job.progress,
            check: &|| job.check(),
        };
        build.run(&job.snapshot, &mut |tree, loaded| {
            built.push((tree, loaded));
            Ok(())
        })?;
        Ok(built)
    };
    session.database.blocking(writer, work).await
}
