//! DELETE: reads the key columns of the selected rows and deletes their entries from all trees of the table.

use datafusion::sql::sqlparser::ast::{Delete, FromTable};

use super::TargetTable;
use crate::catalog::Table;
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::sql::state::StatementState;
use crate::write::RowBuffer;
use crate::write::apply::TableChange;
use crate::write::rows::TableRows;
use crate::{Error, Result};

pub(crate) async fn run(session: &SqlSession, delete: Delete) -> Result<Outcome> {
    let refuse = |refused: bool, what: &str| match refused {
        true => Err(Error::Unsupported(format!("DELETE … {what}"))),
        false => Ok(()),
    };
    let Delete {
        delete_token: _,
        optimizer_hints: _,
        tables,
        from,
        using,
        selection,
        returning,
        output,
        order_by,
        limit,
    } = delete;
    refuse(!tables.is_empty(), "of several tables")?;
    refuse(returning.is_some() || output.is_some(), "RETURNING")?;
    refuse(!order_by.is_empty() || limit.is_some(), "ORDER BY and LIMIT")?;
    let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = from;
    let [relation] = from.as_slice() else { return Err(Error::Unsupported("DELETE FROM several tables".into())) };

    let writer = session.engine.writer().await;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let state = StatementState::new(session, catalog, snapshot)?;
    let target = TargetTable::new(&state, relation)?;
    let table = target.table.clone();
    let needed = needed(&table);
    let mut expressions: Vec<_> = needed.iter().map(|&c| target.column(&table.def.columns[c].name)).collect();
    expressions.extend(target.rowid());
    let old_repeats = using.is_some();
    let plan = state.plan_query(target.select(expressions, using.unwrap_or_default(), selection)?).await?;
    let affected = RowBuffer::reserved(&session.engine, "DELETE").collect(state.run(&plan).await?).await?;

    let parts = affected.batches.iter().map(|batch| {
        let mut columns = vec![None; table.def.columns.len()];
        needed.iter().zip(batch.columns()).for_each(|(&c, array)| columns[c] = Some(array.clone()));
        TableRows { len: batch.num_rows(), columns, rowid: batch.columns().get(needed.len()).cloned() }
    });
    let old = TableRows::concat(&parts.collect::<Vec<_>>())?;
    let change = TableChange { table, old, new: TableRows::default(), old_repeats, assigned: None };
    let rows = crate::write::commit(&session.write(&writer), state.snapshot.clone(), change).await?;
    Ok(Outcome::rows("DELETE", rows))
}

/// Columns that the keys of the table and of its indexes consist of, ascending.
fn needed(table: &Table) -> Vec<usize> {
    let def = &table.def;
    let mut columns = def.primary_key.clone();
    columns.extend(def.indexes.iter().flat_map(|index| index.columns.iter().copied()));
    columns.sort_unstable();
    columns.dedup();
    columns
}
