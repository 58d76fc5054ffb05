//! UPDATE and DELETE of many rows. The rows are changed in parts, in the order in which the query returns them: outside of
//! a transaction, in one that holds the writer lock. Large changes spill with the transaction ([`crate::engine`]).
//!
//! A part is checked against the snapshot with the parts before it. The statement is therefore not divided if it has
//! checks that need all changes: of keys that it changes, and of foreign keys that refer to the table.

use arrow::array::RecordBatch;
use datafusion::common::tree_node::TreeNode;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::LogicalPlan;

use crate::Result;
use crate::catalog::{Catalog, Table};
use crate::engine::Writer;
use crate::sql::{SqlSession, transaction};
use crate::write::apply::TableChange;
use crate::write::foreign_keys::{ForeignKey, is_recursive};
use crate::write::generated::with_dependents;
use crate::write::{self, BatchLimits, RowBuffer};

/// The rows that a statement changes.
pub(super) enum Affected {
    All(RowBuffer),
    /// The first rows, and a stream of the others.
    Many(RowBuffer, SendableRecordBatchStream, BatchLimits),
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
            false => Affected::Many(buffer, rows, limits),
        })
    }
}

/// The limits of the parts of a statement that assigns columns, or deletes rows (`None`), if it has no check that needs all
/// changes, and changes each row of the query once.
pub(super) fn limits(
    session: &SqlSession,
    (catalog, table): (&Catalog, &Table),
    writer: &Writer,
    assigned: Option<&[usize]>,
    plan: &LogicalPlan,
) -> Result<Option<BatchLimits>> {
    // Changes of in-memory indexes do not spill, and take more memory in a transaction.
    let is_in_memory = table.def.indexes.iter().any(|index| index.method.is_in_memory());
    if is_in_memory && !writer.is_in_transaction() {
        return Ok(None);
    }
    // It repeats rows.
    if plan.exists(|node| Ok(matches!(node, LogicalPlan::Unnest(_))))? {
        return Ok(None);
    }
    if is_recursive(table) || !ForeignKey::referring_to(catalog, table)?.is_empty() {
        return Ok(None);
    }
    let limits = BatchLimits::of_part(&session.engine, table);
    let Some(assigned) = assigned else { return Ok(Some(limits)) };
    let assigned = with_dependents(table, assigned.to_vec());
    let mut unique = table.def.primary_key.clone();
    for (position, index) in table.def.indexes.iter().enumerate().filter(|(_, index)| index.unique) {
        unique.extend(index.key_columns());
        unique.extend(table.predicate(position)?.iter().flat_map(|predicate| &predicate.condition.columns));
        for column in table.virtual_columns() {
            unique.extend(&table.virtual_value(column)?.value.columns);
        }
    }
    let has_unique = assigned.iter().any(|column| unique.contains(column));
    Ok((!has_unique).then_some(limits))
}

/// Changes the rows part by part, within `limits`. `change_of` makes the change of a part. Returns the number of changed rows.
///
/// # Errors
/// As [`write::commit`]. Outside of a transaction, nothing has changed then.
pub(super) async fn change(
    session: &SqlSession,
    writer: Writer,
    mut part: RowBuffer,
    mut rows: SendableRecordBatchStream,
    limits: BatchLimits,
    change_of: impl Fn(&[RecordBatch]) -> Result<TableChange>,
) -> Result<u64> {
    let decision = writer.decision.clone();
    let parts = session.engine.begin_parts(writer).await?;
    let (mut changed, mut is_last) = (0, false);
    loop {
        for batches in part.slices(limits) {
            let change = change_of(&batches)?;
            let (_, snapshot) = session.engine.latest(parts.writer());
            changed += write::commit(session.write(parts.writer().clone()), snapshot, change).await?;
        }
        if is_last {
            break;
        }
        part = part.another();
        is_last = part.fill(&mut rows, limits).await?;
    }
    drop((part, rows));
    let committed = parts.commit(&session.engine).await?;
    transaction::finish(session, &decision, committed).await?;
    Ok(changed)
}
