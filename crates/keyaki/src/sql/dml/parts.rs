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
    Many(RowBuffer, SendableRecordBatchStream),
}

impl Affected {
    /// Reads the rows of `statement`: all of them, unless they are many and the statement can be divided.
    ///
    /// # Errors
    /// Errors of the rows; `OutOfMemory`.
    pub async fn read(
        session: &SqlSession,
        statement: &str,
        mut rows: SendableRecordBatchStream,
        can_divide: bool,
    ) -> Result<Affected> {
        let mut buffer = RowBuffer::reserved(&session.engine, statement);
        if !can_divide {
            return Ok(Affected::All(buffer.collect(rows).await?));
        }
        Ok(match buffer.fill(&mut rows, BatchLimits::of_part(&session.engine)).await? {
            true => Affected::All(buffer),
            false => Affected::Many(buffer, rows),
        })
    }
}

/// True if a statement that assigns columns, or deletes rows (`None`), has no check that needs all changes, and changes each
/// row of the query once.
pub(super) fn can_divide(
    catalog: &Catalog,
    table: &Table,
    assigned: Option<&[usize]>,
    plan: &LogicalPlan,
) -> Result<bool> {
    // It repeats rows.
    if plan.exists(|node| Ok(matches!(node, LogicalPlan::Unnest(_))))? {
        return Ok(false);
    }
    if is_recursive(table) || !ForeignKey::referring_to(catalog, table)?.is_empty() {
        return Ok(false);
    }
    let Some(assigned) = assigned else { return Ok(true) };
    let assigned = with_dependents(table, assigned.to_vec());
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

/// Changes the rows part by part. `change_of` makes the change of a part. Returns the number of changed rows.
///
/// # Errors
/// As [`write::commit`]. Outside of a transaction, nothing has changed then.
pub(super) async fn change(
    session: &SqlSession,
    writer: Writer,
    mut part: RowBuffer,
    mut rows: SendableRecordBatchStream,
    change_of: impl Fn(&[RecordBatch]) -> Result<TableChange>,
) -> Result<u64> {
    let decision = writer.decision.clone();
    let parts = session.engine.begin_parts(writer).await?;
    let limits = BatchLimits::of_part(&session.engine);
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
