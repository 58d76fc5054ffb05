//! Inserts rows, and commits changes of rows. Each statement takes effect completely or not at all.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use keyaki_store::{Durability, KeyRange, Snapshot, Submitted, WriteBatch};

use super::apply::TableChange;
use super::origin::{NoOrigin, Origin};
use super::path::{BatchLimits, RowBuffer, WritePath, choose};
use super::rows::TableRows;
use super::{WriteStatement, bulk, checks, foreign_keys, schema, statistics};
use crate::base::interrupt::Decision;
use crate::catalog::{Catalog, Table};
use crate::engine::{Changes, Engine, Writer};
use crate::{Error, Result};

/// Inserts the rows of a query and returns their number. See [`insert`] for the form of the rows.
pub(crate) async fn insert_query(
    statement: WriteStatement,
    table: &Arc<Table>,
    rows: SendableRecordBatchStream,
) -> Result<u64> {
    let before = rows_before(&statement, table)?;
    let (limits, buffer) = (BatchLimits::of_query(&statement.engine), RowBuffer::reserved(&statement.engine, "INSERT"));
    insert(statement, table, rows, before, (limits, buffer), Arc::new(NoOrigin)).await
}

/// Inserts rows of files or of a program and returns their number. See [`insert`] for the form of the rows.
pub(crate) async fn insert_loaded(
    statement: WriteStatement,
    table: &Arc<Table>,
    rows: SendableRecordBatchStream,
    origin: Arc<dyn Origin>,
) -> Result<u64> {
    let before = rows_before(&statement, table)?;
    insert(statement, table, rows, before, (BatchLimits::of_load(before), RowBuffer::unreserved()), origin).await
}

/// Inserts one chunk of the rows that a program appends, and returns the number of rows. See [`insert`] for the form of
/// the rows.
///
/// A chunk that fills an empty table is a bulk load. All others are write batches: a bulk load rewrites the leaves that
/// its keys fall into.
pub(crate) async fn append(
    statement: WriteStatement,
    table: &Arc<Table>,
    chunk: Vec<RecordBatch>,
    origin: Arc<dyn Origin>,
) -> Result<u64> {
    let before = rows_before(&statement, table)?;
    let rows = Box::pin(MemoryStream::try_new(chunk, table.arrow.clone(), None)?);
    insert(statement, table, rows, before, (BatchLimits::of_chunk(before), RowBuffer::unreserved()), origin).await
}

/// Inserts all rows of `rows` and returns their number; inserts none after an error.
///
/// Rows have the table's columns in table order with exactly their Arrow types. The caller has checked NOT NULL and
/// lengths ([`super::assign`]). This function checks CHECK and FOREIGN KEY constraints, the primary key and unique indexes.
/// `before` is the estimated number of rows in the table. The rows of a table that refers to itself are held in memory.
async fn insert(
    statement: WriteStatement,
    table: &Arc<Table>,
    rows: SendableRecordBatchStream,
    before: f64,
    (limits, buffer): (BatchLimits, RowBuffer),
    origin: Arc<dyn Origin>,
) -> Result<u64> {
    statement.engine.check_writable(table)?;
    let rows = checks::verified(rows, table, &origin);
    let rows = foreign_keys::verified(rows, &statement, table, &origin)?;
    let rows = passing_identities(rows, &statement, table);
    let in_transaction = statement.writer.is_in_transaction();
    let is_recursive = foreign_keys::is_recursive(table);
    let (limits, mut buffer) = match (in_transaction, is_recursive) {
        (_, true) => (BatchLimits::none(), RowBuffer::reserved(&statement.engine, "INSERT")),
        (true, false) => (BatchLimits::of_part(&statement.engine, table), buffer),
        (false, false) => (limits, buffer),
    };
    let next = buffer.another();
    match choose(rows, limits, buffer).await? {
        WritePath::Bulk(rows) if in_transaction => insert_parts(&statement, table, rows, next, &*origin).await,
        WritePath::Bulk(rows) => bulk::load(&statement, table, rows, before, origin, None).await,
        WritePath::Batch(batches) => {
            let change = insertion(table, &batches)?;
            let (_, snapshot) = statement.latest();
            if is_recursive {
                foreign_keys::verify_recursive(&statement, &snapshot, &change.new, table, &*origin).await?;
            }
            let WriteStatement { engine, writer, waits_inline, .. } = statement.clone();
            let inserted = commit_keeping(&engine, writer, waits_inline, snapshot, change).await;
            let inserted = inserted.map_err(|error| bulk::locate_duplicate(error, table, 0, &batches, &*origin))?;
            if !in_transaction && !statistics::after_insert(&statement, &table.def.name, before, inserted).await {
                let decision = statement.writer.decision.clone();
                drop(statement);
                if table.add_changed_rows(inserted, inserted as i64) {
                    statistics::sample_or_warn(&engine, &decision, table).await;
                }
            }
            Ok(inserted)
        }
    }
}

/// Inserts rows into the open transaction of the statement, in several write batches. Each is checked against those before.
async fn insert_parts(
    statement: &WriteStatement,
    table: &Arc<Table>,
    mut rows: SendableRecordBatchStream,
    mut buffer: RowBuffer,
    origin: &dyn Origin,
) -> Result<u64> {
    assert!(statement.writer.is_in_transaction(), "parts of a statement belong to a transaction");
    let WriteStatement { engine, writer, waits_inline, .. } = statement;
    let limits = BatchLimits::of_part(engine, table);
    let mut inserted = 0;
    loop {
        let is_last = buffer.fill(&mut rows, limits).await?;
        for batches in buffer.slices(limits) {
            let change = insertion(table, &batches)?;
            let (_, snapshot) = statement.latest();
            let added = commit_keeping(engine, writer.part(), *waits_inline, snapshot, change).await;
            inserted += added.map_err(|error| bulk::locate_duplicate(error, table, inserted, &batches, origin))?;
        }
        if is_last {
            writer.end_parts()?;
            return Ok(inserted);
        }
        buffer = buffer.another();
    }
}

/// Estimated number of rows in the table before the statement.
fn rows_before(statement: &WriteStatement, table: &Table) -> Result<f64> {
    let (_, snapshot) = statement.latest();
    Ok(snapshot.tree(table.def.tree)?.estimate(&KeyRange::all()).rows)
}

/// Creates a table and inserts the rows of a query, in the form that [`insert`] expects, in one commit with the changes of
/// `creation`. `catalog` is the newest one, with these changes.
///
/// The table becomes visible together with its rows, also after a crash. A write batch contains the definition and the
/// rows, and is one record of the log. A bulk load writes the rows to extents of a tree that does not exist yet; the
/// checkpoint that installs them contains the definition, the tree and the references to the extents. Before its
/// superblock is on the medium, recovery finds none of them, and the extents are free.
pub(crate) async fn create_table_as(
    statement: &WriteStatement,
    catalog: &Catalog,
    table: Arc<Table>,
    rows: SendableRecordBatchStream,
    creation: WriteBatch,
) -> Result<u64> {
    let limits = BatchLimits::of_query(&statement.engine);
    create_filled(statement, catalog, table, rows, creation, limits).await
}

/// As [`create_table_as`], in one commit with the changes of `creation`, which `catalog` has.
pub(super) async fn create_filled(
    statement: &WriteStatement,
    catalog: &Catalog,
    table: Arc<Table>,
    rows: SendableRecordBatchStream,
    mut creation: WriteBatch,
    limits: BatchLimits,
) -> Result<u64> {
    schema::create_trees(&mut creation, &table)?;
    let mut buffer = RowBuffer::reserved(&statement.engine, "CREATE TABLE");
    let in_transaction = statement.writer.is_in_transaction();
    let limits = if in_transaction { BatchLimits::of_part(&statement.engine, &table) } else { limits };
    let next = buffer.another();
    match choose(rows, limits, buffer).await? {
        WritePath::Batch(batches) => {
            let change = insertion(&table, &batches)?;
            let (_, snapshot) = statement.latest();
            let changes = Changes { batch: creation, ..Changes::default() };
            let decision = statement.writer.decision.clone();
            let work = move |engine: &Engine| prepare(engine, &decision, change, &snapshot, changes);
            let Changes { batch, rows, .. } = statement.blocking(work).await?;
            schema::commit_table(statement, catalog, table.clone(), batch).await?;
            if !in_transaction {
                statistics::after_insert(statement, &table.def.name, 0.0, rows).await;
            }
            Ok(rows)
        }
        WritePath::Bulk(rows) if in_transaction => {
            let part = WriteStatement { writer: statement.writer.part(), ..statement.clone() };
            schema::commit_table(&part, catalog, table.clone(), creation).await?;
            insert_parts(statement, &table, rows, next, &NoOrigin).await
        }
        WritePath::Bulk(rows) => {
            let creation = bulk::Creation { batch: creation, catalog: catalog.clone() };
            bulk::load(statement, &table, rows, 0.0, Arc::new(NoOrigin), Some(creation)).await
        }
    }
}

/// The change that inserts `batches`, whose columns are the table's.
pub(crate) fn insertion(table: &Arc<Table>, batches: &[RecordBatch]) -> Result<TableChange> {
    let rows = batches.iter().map(|batch| TableRows {
        len: batch.num_rows(),
        columns: batch.columns().iter().cloned().map(Some).collect(),
        rowid: None,
    });
    let new = TableRows::concat(&rows.collect::<Vec<_>>())?;
    Ok(TableChange::insertion(table, new))
}

/// Lets the sequences of identity columns go on behind the values of new rows, so that generated values are new.
///
/// # Errors
/// Errors of the store.
fn pass_identities(engine: &Engine, table: &Table, rows: &TableRows) -> Result<()> {
    for (column, values) in table.def.columns.iter().zip(&rows.columns) {
        let (Some(identity), Some(values)) = (&column.identity, values) else { continue };
        let def = &identity.sequence;
        let values = cast(values, &DataType::Int64)?;
        let values = values.as_primitive::<Int64Type>();
        let last = if def.increment > 0 { max(values) } else { min(values) };
        if let Some(last) = last.filter(|_| !def.cycles) {
            engine.sequences.pass(&engine.store, def, last)?;
        }
    }
    Ok(())
}

/// Passes on rows with all columns; see [`pass_identities`].
fn passing_identities(
    rows: SendableRecordBatchStream,
    statement: &WriteStatement,
    table: &Arc<Table>,
) -> SendableRecordBatchStream {
    if table.def.columns.iter().all(|column| column.identity.is_none()) {
        return rows;
    }
    let (engine, table, schema) = (statement.engine.clone(), table.clone(), rows.schema());
    let rows = rows.map(move |batch| {
        let batch = batch?;
        let columns = batch.columns().iter().cloned().map(Some).collect();
        pass_identities(&engine, &table, &TableRows { len: batch.num_rows(), columns, rowid: None })?;
        Ok(batch)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// Changes of at most this many rows are applied on the calling thread.
const ROWS_INLINE_MAX: usize = 1000;

/// Checks and commits a change. Returns the number of changed rows. Releases the writer lock before it waits for the
/// log, so that the commits of several sessions share one `fdatasync`; `statement` must hold the only share of the lock.
///
/// # Errors
/// `CheckViolation`, `MissingReference`, and as [`commit_keeping`].
///
/// The caller has ensured that no row refers to the keys that the change removes.
pub(crate) async fn commit(statement: WriteStatement, snapshot: Snapshot, mut change: TableChange) -> Result<u64> {
    checks::verify_change(&mut change)?;
    if change.new.len > change.pairs {
        pass_identities(&statement.engine, &change.table, &change.new)?;
    }
    if !change.table.def.foreign_keys.is_empty() {
        Box::pin(foreign_keys::verify_change(&statement, &snapshot, &mut change)).await?;
    }
    let WriteStatement { engine, writer, waits_inline, .. } = statement;
    let (table, decision) = (change.table.clone(), writer.decision.clone());
    let grown = change.new.len as i64 - change.old.len as i64;
    let in_transaction = writer.is_in_transaction();
    let rows = commit_keeping(&engine, writer, waits_inline, snapshot, change).await?;
    if !in_transaction && table.add_changed_rows(rows, grown) {
        Box::pin(statistics::sample_or_warn(&engine, &decision, &table)).await;
    }
    Ok(rows)
}

/// Adds a change to the open transaction of a statement of several changes. The caller checks FOREIGN KEY constraints.
/// Returns the number of changed rows.
///
/// # Errors
/// `CheckViolation`, and as [`commit_keeping`].
pub(crate) async fn add_part(statement: &WriteStatement, snapshot: Snapshot, mut change: TableChange) -> Result<u64> {
    assert!(statement.writer.is_in_transaction(), "parts of a statement belong to a transaction");
    checks::verify_change(&mut change)?;
    if change.new.len > change.pairs {
        pass_identities(&statement.engine, &change.table, &change.new)?;
    }
    commit_keeping(&statement.engine, statement.writer.clone(), statement.waits_inline, snapshot, change).await
}

/// Checks and commits a change, or adds it to the open transaction. Releases this share of the writer lock before it waits
/// for the log.
///
/// # Errors
/// `Constraint`; `IndexUnusable`; `OutOfMemory` if in-memory indexes exceed their budget; `Cancelled`.
async fn commit_keeping(
    engine: &Arc<Engine>,
    writer: Writer,
    waits_inline: bool,
    snapshot: Snapshot,
    change: TableChange,
) -> Result<u64> {
    let is_small = change.old.len + change.new.len <= ROWS_INLINE_MAX;
    if writer.is_in_transaction() {
        if is_small {
            return Ok(submit(engine, &writer, change, &snapshot)?.1);
        }
        let owner = writer.clone();
        return engine.blocking(&owner, move |engine| Ok(submit(engine, &writer, change, &snapshot)?.1)).await;
    }
    let in_memory = change.table.def.indexes.iter().any(|index| index.method.is_in_memory());
    let apply = move |engine: &Engine| {
        let applied = submit(engine, &writer, change, &snapshot);
        // The next writer sees the change.
        drop(writer);
        applied
    };
    // A statement without changes may depend on changes that are not durable yet.
    let pending = |engine: &Engine, applied: Result<(Option<Submitted>, u64)>| match applied {
        Ok((submitted, rows)) => (submitted.unwrap_or_else(|| engine.store.pending()), Ok(rows)),
        Err(error) => (engine.store.pending(), Err(error)),
    };
    let finish = move |engine: &Engine, applied: Result<u64>| {
        if in_memory && applied.is_ok() {
            engine.store.share_memory();
        }
        applied
    };
    let wait = move |engine: &Engine, applied| {
        let (submitted, applied) = pending(engine, applied);
        submitted.wait()?;
        finish(engine, applied)
    };
    if !is_small || engine.store.slows_commits() {
        // The thread ends the commit even if this future is dropped.
        let engine = engine.clone();
        let task = tokio::task::spawn_blocking(move || wait(&engine, apply(&engine)));
        return task.await.map_err(|error| Error::task(&error))?;
    }
    let applied = apply(engine);
    if waits_inline || engine.store.durability() != Durability::Full {
        return wait(engine, applied);
    }
    let (submitted, applied) = pending(engine, applied);
    // The thread of the log ends the commit even if this future is dropped, because it is polled at once.
    submitted.committed().await?;
    finish(engine, applied)
}

/// Row upserts accepted by the store, which may not be durable yet.
#[must_use]
#[derive(Debug)]
pub(crate) struct AcceptedUpserts {
    /// `None` in a transaction.
    submitted: Option<Submitted>,
    rows: u64,
}

/// Submits `rows` row upserts of a table, which read nothing. Returns `None`, without a change, if a sum could leave the
/// range of its column: the caller reads the rows then.
///
/// # Errors
/// `Cancelled`, `OutOfMemory`, errors of the store.
pub(crate) async fn submit_upserts(
    statement: &WriteStatement,
    table: &Arc<Table>,
    batch: WriteBatch,
    rows: u64,
) -> Result<Option<AcceptedUpserts>> {
    let (writer, of) = (statement.writer.clone(), table.clone());
    let submit = move |engine: &Engine| {
        engine.check_writable(&of)?;
        // The change of the number of rows is unknown.
        let changes = Changes { batch, rows, ..writer.changes() };
        match engine.submit(&writer, &of, changes) {
            Ok(submitted) => Ok(Some(AcceptedUpserts { submitted, rows })),
            Err(Error::Store(keyaki_store::Error::UpsertRange { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    };
    match rows <= ROWS_INLINE_MAX as u64 && !statement.engine.store.slows_commits() {
        true => submit(&statement.engine),
        false => statement.blocking(submit).await,
    }
}

/// Waits until accepted upserts are durable, after releasing the writer lock: `statement` must hold its only share. Returns
/// the number of rows.
///
/// # Errors
/// Errors of the log.
pub(crate) async fn finish_upserts(
    statement: WriteStatement,
    table: &Arc<Table>,
    accepted: AcceptedUpserts,
) -> Result<u64> {
    let WriteStatement { engine, writer, waits_inline, .. } = statement;
    let AcceptedUpserts { submitted: Some(submitted), rows } = accepted else { return Ok(accepted.rows) };
    let decision = writer.decision.clone();
    drop(writer);
    match waits_inline || engine.store.durability() != Durability::Full {
        true => submitted.wait()?,
        false => submitted.committed().await?,
    };
    if table.add_changed_rows(rows, 0) {
        Box::pin(statistics::sample_or_warn(&engine, &decision, table)).await;
    }
    Ok(rows)
}

/// Checks a change and submits it to the store, unless it is empty. Returns the number of changed rows. Blocks.
fn submit(
    engine: &Engine,
    writer: &Writer,
    change: TableChange,
    snapshot: &Snapshot,
) -> Result<(Option<Submitted>, u64)> {
    let table = change.table.clone();
    engine.check_writable(&table)?;
    let grows = change.new.len > 0 && table.def.indexes.iter().any(|index| index.method.is_in_memory());
    let changes = prepare(engine, &writer.decision, change, snapshot, writer.changes())?;
    if grows {
        engine.check_memory(0)?;
    }
    let rows = changes.rows;
    Ok((engine.submit(writer, &table, changes)?, rows))
}

/// Numbers the rows of tables with a hidden rowid, checks a change, and adds it to `changes`. Blocks.
fn prepare(
    engine: &Engine,
    decision: &Decision,
    mut change: TableChange,
    snapshot: &Snapshot,
    mut changes: Changes,
) -> Result<Changes> {
    let rows = change.new.len;
    if change.table.def.hidden_rowid && change.new.rowid.is_none() && rows > 0 {
        let first = engine.reserve_rowids(&change.table, rows as u64)?;
        change.new.rowid = Some(Arc::new(Int64Array::from_iter_values(first..first + rows as i64)));
    }
    change.apply(&engine.store, snapshot, decision, &mut changes)?;
    Ok(changes)
}
