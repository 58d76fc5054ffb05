//! Creates indexes. An empty table needs only the commit of the definition; the entries of existing rows are built by a
//! bulk load, in a transaction by its writes.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Scan};
use keyaki_store::{Direction, KeyRange, TreeView, WriteBatch, block_on};

use super::apply::TableChange;
use super::path::{BatchLimits, RowBuffer};
use super::rows::TableRows;
use super::{WriteStatement, bulk};
use crate::base::interrupt::Decision;
use crate::catalog::{Catalog, IndexMethod, Table};
use crate::engine::{Changes, Engine};
use crate::{Error, Result};

/// Number of rows of a batch that is read for an index in a transaction.
const BATCH_ROWS: usize = 1024;

/// Creates an index. For a vast index, waits until its locator is built or the statement is interrupted.
///
/// `table` is the definition with the new index, which the catalog does not yet contain. `index` is its position in
/// `table.def.indexes` and `table.index_schemas`. `batch` creates the tree and stores the definition; `catalog`
/// contains it.
pub(crate) async fn create_index(
    statement: &WriteStatement,
    table: &Arc<Table>,
    index: usize,
    batch: WriteBatch,
    catalog: Catalog,
) -> Result<()> {
    let (_, snapshot) = statement.latest();
    if statement.writer.is_in_transaction() {
        return create_in_transaction(statement, table, index, batch, catalog).await;
    }
    if is_empty(&statement.engine, snapshot.tree(table.def.tree)?).await? {
        statement.engine.commit_catalog(&statement.writer, batch, catalog).await?;
    } else {
        bulk::build_index(statement, table, index, batch, catalog).await?;
    }
    match table.def.indexes[index].method {
        IndexMethod::Vast => wait_for_locators(&statement.engine, &statement.writer.decision).await,
        _ => Ok(()),
    }
}

/// Waits until the locator of a new index is built or the statement is interrupted.
///
/// # Errors
/// None is expected.
pub(crate) async fn wait_for_locators(engine: &Engine, decision: &Decision) -> Result<()> {
    let store = engine.store.clone();
    let located = tokio::task::spawn_blocking(move || store.wait_for_locators());
    match decision.unless_interrupted(located).await {
        Some(Err(error)) => Err(Error::task(&error)),
        _ => Ok(()),
    }
}

/// Creates an index in a transaction: its entries are writes of the transaction, in parts that can spill. Other commits
/// must not change the table in the meantime.
async fn create_in_transaction(
    statement: &WriteStatement,
    table: &Arc<Table>,
    index: usize,
    batch: WriteBatch,
    catalog: Catalog,
) -> Result<()> {
    let start = Instant::now();
    let engine = &statement.engine;
    let part = statement.writer.part();
    let (_, snapshot) = statement.latest();
    let columns = table.table_columns();
    let scan = Scan::whole(snapshot.tree(table.def.tree)?, (0..columns.len()).collect(), BATCH_ROWS);
    engine.depend_on_table(&part, table);
    engine.commit_catalog(&part, batch, catalog).await?;
    let limits = BatchLimits::of_part(engine, table);
    let mut rows = engine.executor.scan(scan, ExecutionMode::OutOfOrder);
    while let Some(rows) = rows.next().await {
        let mut buffer = RowBuffer::unreserved();
        buffer.push(rows?)?;
        for slice in buffer.slices(limits) {
            part.decision.check()?;
            let slice = slice.iter().map(|rows| table_rows(table, &columns, rows));
            let change = TableChange::insertion(table, TableRows::concat(&slice.collect::<Vec<_>>())?);
            let writer = part.clone();
            let work = move |engine: &Engine| {
                // The entries of the parts before are compared too.
                let (_, snapshot) = engine.latest(&writer);
                let mut changes = Changes::default();
                change.apply_to_index(index, &engine.store, &snapshot, &mut changes)?;
                engine.add_entries(&writer, changes.batch)
            };
            statement.blocking(work).await?;
        }
    }
    let def = &table.def.indexes[index];
    if def.method.is_in_memory() {
        engine.build_times.lock().insert(def.tree, start.elapsed());
    }
    part.end_parts()
}

/// Rows of a scan of all `columns` of the table's tree; `None` is the row identifier.
fn table_rows(table: &Table, columns: &[Option<usize>], rows: &RecordBatch) -> TableRows {
    let array = |column| columns.iter().position(|c| *c == column).map(|place| rows.column(place).clone());
    TableRows {
        len: rows.num_rows(),
        columns: (0..table.def.columns.len()).map(|column| array(Some(column))).collect(),
        rowid: array(None),
    }
}

/// True if a tree has no rows.
async fn is_empty(engine: &Engine, view: TreeView) -> Result<bool> {
    let store = engine.store.clone();
    let task = tokio::task::spawn_blocking(move || {
        let source = store.blocking();
        let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
        block_on(cursor.next()).map(|chunk| chunk.is_none())
    });
    Ok(task.await.map_err(|error| Error::task(&error))??)
}
