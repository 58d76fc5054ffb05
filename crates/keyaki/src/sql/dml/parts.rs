//! Statements that change many rows. The rows are changed in parts, in the order in which the query returns them: outside of
//! a transaction, in one that holds the writer lock. Large changes spill with the transaction ([`crate::engine`]).
//!
//! A part is checked against the snapshot with the parts before it. The statement is therefore not divided if it has
//! checks that need all changes: of keys that it changes, of foreign keys that refer to rows that it deletes, and of rows of
//! the same table that new rows refer to. The rows are sorted first if the query may return a row twice ([`Repeats`]).

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use keyaki_store::Snapshot;

use super::foreign_keys;
use super::repeats::Repeats;
use super::returning::Returning;
use crate::Result;
use crate::catalog::{Catalog, Table};
use crate::engine::Writer;
use crate::engine::transaction::Parts;
use crate::sql::state::StatementState;
use crate::sql::{Outcome, SqlSession, transaction};
use crate::write::apply::{TableChange, row_keys};
use crate::write::foreign_keys::{ForeignKey, is_recursive};
use crate::write::generated::with_dependents;
use crate::write::{self, BatchLimits, RowBuffer, WriteStatement};

/// The rows that a statement changes.
pub(super) enum Affected {
    All(RowBuffer),
    Many(Many),
}

impl Affected {
    /// Reads the rows of `statement`: all of them, unless they are many and the statement can be divided, with `limits` for its
    /// parts.
    ///
    /// # Errors
    /// Errors of the rows; `OutOfMemory`.
    pub async fn read(
        session: &SqlSession,
        statement: &str,
        mut rows: SendableRecordBatchStream,
        limits: Option<BatchLimits>,
    ) -> Result<Affected> {
        let mut buffer = RowBuffer::reserved(&session.engine, statement);
        let Some(limits) = limits else { return Ok(Affected::All(buffer.collect(rows).await?)) };
        Ok(match buffer.fill(&mut rows, limits).await? {
            true => Affected::All(buffer),
            false => Affected::Many(Many { first: buffer, rest: rows, limits }),
        })
    }
}

/// Rows that are changed in parts.
pub(super) struct Many {
    /// The first rows.
    first: RowBuffer,
    /// The others.
    rest: SendableRecordBatchStream,
    limits: BatchLimits,
}

impl Many {
    /// The rows of `statement` in the order of the columns of a key, if there is one ([`write::sorted`]).
    ///
    /// # Errors
    /// Errors of the rows and of temporary files; `Cancelled`; `OutOfMemory`.
    pub async fn sorted(
        self,
        session: &SqlSession,
        writer: &Writer,
        statement: &str,
        key: Option<&[usize]>,
    ) -> Result<Many> {
        let Some(key) = key else { return Ok(self) };
        let Many { first, rest, limits } = self;
        let batch_rows = first.rows_within(limits);
        let empty = RowBuffer::reserved(&session.engine, statement);
        // The sorter reserves their memory.
        let rows = first.followed_by(rest);
        let rest = write::sorted(&session.engine, statement, &writer.decision, rows, key, batch_rows).await?;
        Ok(Many { first: empty, rest, limits })
    }
}

/// The effects of a statement on which its checks depend.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Effects<'a> {
    pub inserts: bool,
    pub deletes: bool,
    /// The columns that it assigns.
    pub assigned: &'a [usize],
}

/// True if a statement has no check that needs all changes.
pub(super) fn can_divide((catalog, table): (&Catalog, &Table), writer: &Writer, effects: Effects<'_>) -> Result<bool> {
    // Changes of in-memory indexes do not spill, and take more memory in a transaction.
    let is_in_memory = table.def.indexes.iter().any(|index| index.method.is_in_memory());
    if is_in_memory && !writer.is_in_transaction() {
        return Ok(false);
    }
    if effects.inserts && is_recursive(table) {
        return Ok(false);
    }
    if effects.deletes && !ForeignKey::referring_to(catalog, table)?.is_empty() {
        return Ok(false);
    }
    let assigned = with_dependents(table, effects.assigned.to_vec());
    let mut unique = table.def.primary_key.clone();
    for (position, index) in table.def.indexes.iter().enumerate().filter(|(_, index)| index.unique) {
        unique.extend(index.key_columns());
        unique.extend(table.predicate(position)?.iter().flat_map(|predicate| &predicate.condition.columns));
        for column in table.virtual_columns() {
            unique.extend(&table.virtual_value(column)?.value.columns);
        }
    }
    Ok(!assigned.iter().any(|column| unique.contains(column)))
}

/// A statement that is applied in parts.
pub(super) struct Division<'s> {
    session: &'s SqlSession,
    parts: Parts,
    /// The next parts that have been read.
    slices: std::vec::IntoIter<Vec<RecordBatch>>,
    /// Holds the memory of the slices.
    buffer: RowBuffer,
    /// `None` at the end.
    rows: Option<SendableRecordBatchStream>,
    limits: BatchLimits,
    changed: u64,
}

impl<'s> Division<'s> {
    /// Begins with rows that are not read yet but for the first.
    ///
    /// # Errors
    /// Errors of the log.
    pub async fn begin(
        session: &'s SqlSession,
        writer: Writer,
        Many { first, rest, limits }: Many,
    ) -> Result<Division<'s>> {
        let parts = session.engine.begin_parts(writer).await?;
        let slices = first.slices(limits).into_iter();
        Ok(Division { session, parts, slices, buffer: first, rows: Some(rest), limits, changed: 0 })
    }

    /// The rows of the next part; `None` at the end.
    ///
    /// # Errors
    /// Errors of the rows; `OutOfMemory`.
    pub async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        loop {
            if let Some(slice) = self.slices.next() {
                return Ok(Some(slice));
            }
            let Some(rows) = &mut self.rows else { return Ok(None) };
            self.buffer = self.buffer.another();
            if self.buffer.fill(rows, self.limits).await? {
                self.rows = None;
            }
            self.slices = self.buffer.slices(self.limits).into_iter();
        }
    }

    /// The definitions, and the snapshot with the parts that have been committed.
    pub fn latest(&self) -> (Arc<Catalog>, Snapshot) {
        self.session.engine.latest(self.parts.writer())
    }

    /// The statement as which a part is written.
    pub fn statement(&self) -> WriteStatement {
        self.session.write(self.parts.writer().clone())
    }

    /// Adds rows to the number of changed rows.
    pub fn count(&mut self, rows: u64) {
        self.changed += rows;
    }

    /// Changes the rows of a part. Returns their number.
    ///
    /// # Errors
    /// As [`write::commit`].
    pub async fn commit(&mut self, change: TableChange) -> Result<u64> {
        let (_, snapshot) = self.latest();
        write::commit(self.statement(), snapshot, change).await
    }

    /// Commits all parts, or leaves them to the transaction of the session. Returns the number of changed rows.
    ///
    /// # Errors
    /// As [`Parts::commit`]. Outside of a transaction, nothing has changed then.
    pub async fn finish(self) -> Result<u64> {
        let Division { session, parts, slices, buffer, rows, limits: _, changed } = self;
        drop((slices, buffer, rows));
        let decision = parts.writer().decision.clone();
        let committed = parts.commit(&session.engine).await?;
        transaction::finish(session, &decision, committed).await?;
        Ok(changed)
    }
}

/// Applies the changes that `change_of` makes of the rows of `statement`, an UPDATE or a DELETE, with the actions of foreign
/// keys. RETURNING has the new rows of an UPDATE, and the old ones of a DELETE. If a row may be there several times, `key` are the
/// columns of its key. These rows may have more columns, of other relations.
///
/// # Errors
/// As [`foreign_keys::commit`]. Outside of a transaction, nothing has changed then.
pub(super) async fn apply(
    session: &SqlSession,
    state: &StatementState,
    writer: Writer,
    (statement, affected, key): (&str, Affected, Option<&[usize]>),
    mut returning: Option<Returning>,
    change_of: impl Fn(&[RecordBatch]) -> Result<TableChange>,
) -> Result<Outcome> {
    let changed = |change: &TableChange| if change.new.len > 0 { change.new.clone() } else { change.old.clone() };
    // RETURNING may have columns of other relations.
    let without_others = |change: &mut TableChange| {
        let columns = change.table.def.columns.len();
        [&mut change.old, &mut change.new].into_iter().for_each(|rows| rows.columns.truncate(columns));
    };
    let rows = match affected {
        Affected::All(affected) => {
            let mut change = change_of(&affected.batches)?;
            if let Some(returning) = &mut returning {
                change.drop_repeats()?;
                returning.rows(session, state, &change.table, &changed(&change)).await?;
                without_others(&mut change);
            }
            foreign_keys::commit(session, writer, &state.catalog, state.snapshot.clone(), change).await?
        }
        Affected::Many(many) => {
            let mut repeats = key.map(|_| Repeats::default());
            let many = many.sorted(session, &writer, statement, key).await?;
            let mut division = Division::begin(session, writer, many).await?;
            while let Some(batches) = division.next().await? {
                let mut change = change_of(&batches)?;
                if let Some(repeats) = &mut repeats {
                    change.retain(repeats.first(row_keys(&change.table, &change.old)?))?;
                }
                if let Some(returning) = &mut returning {
                    returning.rows(session, state, &change.table, &changed(&change)).await?;
                    without_others(&mut change);
                }
                let rows = division.commit(change).await?;
                division.count(rows);
            }
            division.finish().await?
        }
    };
    returning.map_or_else(|| Ok(Outcome::rows(statement, rows)), Returning::outcome)
}
