//! Bulk loads: write many rows to a table and its secondary indexes, without log and root buffers.
//!
//! ```text
//!               ┌─► table writer ─► sample ─► statistics, leaf extents ─┐
//!  rows ─ batch ┼─► index sorter ─► runs ─► merge ──────► leaf extents ─┼─► install, all or nothing
//!               └─► index sorter ─► runs ─► merge ──────► leaf extents ─┘
//! ```
//!
//! Each arm runs on a thread of its own, fed through a short queue. The table arm writes rows as they arrive while
//! their keys ascend, as is usual for files. From the first row out of order, it sorts the remaining rows and merges
//! them with the leaves written so far ([`table`]). Index entries are sorted, in memory or with temporary files
//! ([`sort`]), and written after the last row ([`index`]), as those of change logs are ([`change_log`]).
//!
//! *Invariant.* Nothing is visible before `Store::install`. A load that fails or is cancelled frees all extents that it
//! wrote.

mod change_log;
mod index;
mod job;
mod memory;
mod merge;
mod sort;
mod sorted;
mod spill;
mod table;
mod unique;

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use keyaki_store::WriteBatch;

use self::job::{Job, Workers};
use super::origin::Origin;
use super::{WriteStatement, statistics};
use crate::catalog::{Catalog, DocumentKind, Table, TableStatistics, put};
use crate::engine::Writer;
use crate::{Error, Result};

pub(super) use index::{build_index, load_index};
pub(super) use memory::batch_bytes;
pub(crate) use sorted::sorted;
pub(super) use unique::{at, locate_duplicate};

/// The statistics of a table are collected again if a load adds more than this fraction of its previous rows.
const REFRESH_SHARE: f64 = 0.1;

/// The creation of a table by its load.
pub(super) struct Creation {
    /// Creates the trees and the definition.
    pub batch: WriteBatch,
    /// The catalog without the table, with the other changes of `batch`.
    pub catalog: Catalog,
}

/// Inserts all rows into a table that had about `rows_before` rows, and returns their number; inserts none after an
/// error. `creation` creates the table, unless it exists.
pub(super) async fn load(
    statement: &WriteStatement,
    table: &Arc<Table>,
    rows: SendableRecordBatchStream,
    rows_before: f64,
    origin: Arc<dyn Origin>,
    creation: Option<Creation>,
) -> Result<u64> {
    let (catalog, snapshot) = statement.latest();
    let progress = &statement.progress;
    progress.start(&format!("loading {}", table.def.name), origin.total_rows());
    let job = Job::new(statement, table, snapshot, origin);
    let mut workers = Workers::of_table(&job)?;
    let sent = send_all(&job, &statement.writer, &mut workers, &mut rows.map(|batch| batch.map_err(Error::from))).await;
    let written = workers.finish(sent).await?;
    let total = written.rows;
    install(statement, table, catalog, written, rows_before, creation).await?;
    progress.finish();
    Ok(total)
}

/// Sends all rows to the workers. Stops early, without an error, if a worker has failed.
async fn send_all(
    job: &Arc<Job>,
    writer: &Writer,
    workers: &mut Workers,
    rows: &mut (impl futures::Stream<Item = Result<RecordBatch>> + Unpin),
) -> Result<()> {
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        if batch.num_rows() == 0 {
            continue;
        }
        let batch = job.with_rowids(writer, batch).await?;
        job.progress.advance(batch.num_rows() as u64);
        if !workers.send(batch).await {
            break;
        }
    }
    Ok(())
}

/// Installs the loaded trees, with statistics and the creation of the table, in one commit.
async fn install(
    statement: &WriteStatement,
    table: &Arc<Table>,
    catalog: Arc<Catalog>,
    written: job::Written,
    rows_before: f64,
    creation: Option<Creation>,
) -> Result<()> {
    let mut changed = creation.is_some().then(|| table.clone());
    let (mut batch, catalog) = match creation {
        Some(Creation { batch, catalog }) => (batch, Arc::new(catalog)),
        None => (WriteBatch::new(), catalog),
    };
    batch.append(written.messages);
    let rows = written.rows as f64;
    if let Some(statistics) = new_statistics(table, written.statistics, rows_before) {
        put(&mut batch, DocumentKind::Statistics, &table.def.name, &statistics)?;
        changed = Some(Arc::new(Table::new(table.def.clone(), Some(Arc::new(statistics)))?));
    }
    let changed = changed.map(|table| {
        let mut catalog = Catalog::clone(&catalog);
        catalog.tables.insert(table.def.name.clone(), table);
        catalog
    });
    statement.engine.note_rows(table);
    statement.engine.install(&statement.writer, batch, written.loaded, changed).await?;
    if rows_before > 0.0 && rows > REFRESH_SHARE * rows_before {
        statistics::refresh_or_warn(statement, &table.def.name).await;
    }
    Ok(())
}

/// The statistics to store with a load: those of the loaded rows if the table was empty; else the previous ones with
/// the new number of rows, or `None` if there are none.
fn new_statistics(table: &Table, loaded: Option<TableStatistics>, rows_before: f64) -> Option<TableStatistics> {
    let loaded = loaded?;
    if rows_before == 0.0 {
        return Some(loaded);
    }
    let known = table.statistics.as_ref()?;
    Some(TableStatistics { rows: known.rows + loaded.rows, columns: known.columns.clone() })
}
