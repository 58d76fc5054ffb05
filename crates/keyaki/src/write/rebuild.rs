//! Replaces the trees of a table by new ones: rows are converted to another definition (ALTER TABLE) or dropped
//! (TRUNCATE).
//!
//! The new trees have new ids. They are created, and the old ones dropped, in the commit that changes the definition.
//! Open snapshots keep the old trees.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Scan};
use keyaki_store::WriteBatch;

use super::insert::create_filled;
use super::path::BatchLimits;
use super::schema::create_trees;
use super::{WriteStatement, checks};
use crate::catalog::{Catalog, DocumentKind, Table, TableDef, remove};
use crate::engine::Engine;
use crate::engine::sequences::Sequences;
use crate::{Error, Result};

/// Number of rows of a batch that is read from the old trees.
const BATCH_ROWS: usize = 8192;

/// Computes the columns of the new table from a batch with all columns of the old one.
pub(crate) type Convert = Box<dyn Fn(&RecordBatch) -> Result<Vec<ArrayRef>> + Send>;

/// Gives a definition new ids for its trees. This ends the builds of indexes, which begin again with the new trees.
pub(crate) fn renew_trees(engine: &Engine, def: &mut TableDef) {
    def.tree = engine.store.new_tree_id();
    def.building.clear();
    for index in &mut def.indexes {
        index.tree = match index.method.is_in_memory() {
            true => engine.store.new_memory_tree_id(),
            false => engine.store.new_tree_id(),
        };
    }
}

/// Adds the removal of a table's trees and statistics to `batch`.
fn drop_trees(batch: &mut WriteBatch, table: &Table) -> Result<()> {
    batch.drop_tree(table.def.tree);
    table.def.indexes.iter().for_each(|index| batch.drop_tree(index.tree));
    remove(batch, DocumentKind::Statistics, &table.def.name)
}

/// Replaces the trees of a table by empty ones: adds the change to `batch` and to `catalog`.
///
/// # Errors
/// None is expected: the definition was valid before.
pub(crate) fn empty(
    engine: &Engine,
    catalog: &mut Catalog,
    batch: &mut WriteBatch,
    table: &Table,
    restarts: bool,
) -> Result<()> {
    drop_trees(batch, table)?;
    let mut def = table.def.clone();
    if restarts {
        let identities = def.columns.iter_mut().filter_map(|column| column.identity.as_mut());
        identities.for_each(|identity| {
            identity.sequence.renew(Sequences::new_id());
            identity.sequence.restart = None;
        });
    }
    renew_trees(engine, &mut def);
    let emptied = Arc::new(Table::new(def, None)?);
    create_trees(batch, &emptied)?;
    catalog.tables.insert(emptied.def.name.clone(), emptied);
    Ok(())
}

/// Replaces `old` by `new`, whose trees do not exist yet, with its rows converted. Rows keep their order. `batch` has the
/// other changes of the statement, `catalog` is the newest one with these changes.
///
/// # Errors
/// Errors of `convert`; `CheckViolation`, `Constraint` for duplicate keys; `OutOfMemory`; `Cancelled`. Nothing has changed
/// then.
pub(crate) async fn rebuild(
    statement: &WriteStatement,
    catalog: &Catalog,
    old: &Arc<Table>,
    new: Arc<Table>,
    convert: Convert,
    mut batch: WriteBatch,
) -> Result<u64> {
    statement.engine.check_writable(old)?;
    // Rows of other commits would be missing.
    statement.engine.depend_on_table(&statement.writer, old);
    drop_trees(&mut batch, old)?;
    let rows = converted(statement, old, &new, convert)?;
    create_filled(statement, catalog, new, rows, batch, BatchLimits::of_load(0.0)).await
}

/// The rows of the old table in key order, converted and checked.
fn converted(
    statement: &WriteStatement,
    old: &Arc<Table>,
    new: &Arc<Table>,
    convert: Convert,
) -> Result<SendableRecordBatchStream> {
    let (_, snapshot) = statement.latest();
    let scan = Scan::whole(snapshot.tree(old.def.tree)?, old.tree_column.clone(), BATCH_ROWS);
    let rows = statement.engine.executor.scan(scan, ExecutionMode::OutOfOrder);
    let (old, into, decision) = (old.clone(), new.clone(), statement.writer.decision.clone());
    let rows = rows.map(move |batch| {
        decision.check()?;
        let batch = batch.map_err(Error::from)?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(old.arrow.clone(), batch.columns().to_vec(), &options)?;
        let columns = convert(&batch)?;
        let batch = RecordBatch::try_new_with_options(into.arrow.clone(), columns, &options)?;
        checks::verify_existing(&into, &batch)?;
        Ok(batch)
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(new.arrow.clone(), rows)))
}
