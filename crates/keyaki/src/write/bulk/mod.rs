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

mod index;
mod job;
mod memory;
mod merge;
mod sort;
mod spill;
mod table;
mod unique;

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;

use self::job::{Job, Workers};
use super::origin::Origin;
use super::{WriteStatement, statistics};
use crate::catalog::{Catalog, DocumentKind, Table, TableStatistics, put};
use crate::{Error, Result};

pub(super) use index::build_index;
pub(super) use memory::batch_bytes;
pub(super) use unique::locate_duplicate;

/// Statistics are made anew when this share of a table's rows is new.
const REFRESH_SHARE: f64 = 0.1;

/// Adds all rows to a table that had `rows_before` rows, or none, and returns their number.
pub(super) async fn load(
    statement: &WriteStatement,
    table: &Arc<Table>,
    rows: SendableRecordBatchStream,
    rows_before: f64,
    origin: Arc<dyn Origin>,
) -> Result<u64> {
    let (catalog, snapshot) = statement.latest();
    let progress = &statement.progress;
    progress.start(&format!("loading {}", table.def.name), origin.total_rows());
    let job = Job::new(statement, table, snapshot, origin);
    let mut workers = Workers::of_table(&job)?;
    let sent = send_all(&job, &mut workers, &mut rows.map(|batch| batch.map_err(Error::from))).await;
    let written = workers.finish(sent).await?;
    let total = written.rows;
    install(statement, table, catalog, written, rows_before).await?;
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

/// Installs what was loaded, with statistics.
async fn install(
    statement: &WriteStatement,
    table: &Arc<Table>,
    catalog: Arc<Catalog>,
    written: job::Written,
    rows_before: f64,
) -> Result<()> {
    let mut batch = written.messages;
    let mut changed = None;
    let rows = written.rows as f64;
    if let Some(statistics) = new_statistics(table, written.statistics, rows_before) {
        put(&mut batch, DocumentKind::Statistics, &table.def.name, &statistics)?;
        let mut catalog = Catalog::clone(&catalog);
        let with = Arc::new(Table::new(table.def.clone(), Some(Arc::new(statistics)))?);
        catalog.tables.insert(table.def.name.clone(), with);
        changed = Some(catalog);
    }
    statement.engine.install(&statement.writer, batch, written.loaded, changed).await?;
    if rows_before > 0.0 && rows > REFRESH_SHARE * rows_before {
        statistics::refresh_or_warn(statement, &table.def.name).await;
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
