//! EXPLAIN of INSERT, UPDATE, DELETE and MERGE: how the statement changes its table, and the plan of the query that finds or
//! computes the rows. Nothing is executed.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::sqlparser::ast::{Query, Statement as Sql, TableObject};
use futures::StreamExt;

use super::conflict::Conflict;
use super::{delete, insert, literals, merge, update};
use crate::catalog::Table;
use crate::sql::state::StatementState;
use crate::sql::{Outcome, SqlSession, expressions};
use crate::{Error, Result};

/// Explains a change. `explain` is the EXPLAIN statement, with `statement` in it.
///
/// # Errors
/// `Unsupported` for EXPLAIN ANALYZE, which would change rows; errors of planning.
pub(crate) async fn run(session: &SqlSession, mut explain: Sql) -> Result<Outcome> {
    let Sql::Explain { statement, analyze, .. } = &mut explain else {
        return Err(Error::Internal("not an EXPLAIN statement".into()));
    };
    if *analyze {
        return Err(Error::Unsupported("EXPLAIN ANALYZE of statements that change rows (use EXPLAIN)".into()));
    }
    let state = StatementState::reading(session)?;
    let (change, query) = change(session, &state, statement)?;
    let schema = Arc::new(Schema::new(vec![
        Field::new("plan_type", DataType::Utf8, false),
        Field::new("plan", DataType::Utf8, false),
    ]));
    let text = |value: &str| Arc::new(StringArray::from(vec![value])) as ArrayRef;
    let mut batches = vec![RecordBatch::try_new(schema.clone(), vec![text("change"), text(&change)])?];
    if let Some(query) = query {
        **statement = Sql::Query(Box::new(query));
        let mut rows = state.run(&state.plan(explain).await?).await?;
        while let Some(batch) = rows.next().await {
            let columns = batch?
                .columns()
                .iter()
                .map(|column| arrow::compute::cast(column, &DataType::Utf8))
                .collect::<std::result::Result<Vec<_>, _>>()?;
            batches.push(RecordBatch::try_new(schema.clone(), columns)?);
        }
    }
    Ok(Outcome::Rows(Box::pin(MemoryStream::try_new(batches, schema, None)?)))
}

/// Describes the change of a statement. Returns the query of its rows, too, unless they are literals.
///
/// # Errors
/// `Unsupported` for statements that change no rows; errors of planning.
pub(in crate::sql) fn change(
    session: &SqlSession,
    state: &StatementState,
    statement: &Sql,
) -> Result<(String, Option<Query>)> {
    Ok(match statement {
        Sql::Insert(insert) => insertion(session, state, insert)?,
        Sql::Update(statement) => {
            let (table, assigned, query) = update::explained(state, statement.clone())?;
            let names: Vec<&str> = assigned.iter().map(|&column| table.def.columns[column].name.as_str()).collect();
            (format!("Update {}: set {}", table.def.name, names.join(", ")), Some(query))
        }
        Sql::Delete(statement) => {
            let (table, query) = delete::explained(state, statement.clone())?;
            (format!("Delete from {}", table.def.name), Some(query))
        }
        Sql::Merge(statement) => {
            let (change, query) = merge::explained(state, statement.clone())?;
            (change, Some(query))
        }
        _ => return Err(Error::Unsupported("EXPLAIN of this statement".into())),
    })
}

/// Describes the change of an INSERT. Returns the query of its rows, too, unless they are literals.
fn insertion(
    session: &SqlSession,
    state: &StatementState,
    statement: &datafusion::sql::sqlparser::ast::Insert,
) -> Result<(String, Option<Query>)> {
    insert::check_plain(statement)?;
    let TableObject::TableName(name) = &statement.table else {
        return Err(Error::Unsupported(format!("INSERT INTO {}", statement.table)));
    };
    let table: Arc<Table> = state.table(name)?;
    insert::of_target(statement).check(&state.authority, &state.catalog, &table)?;
    expressions::compiled(session, &table)?;
    insert::target_columns(&table, statement)?;
    let name = &table.def.name;
    let change = match Conflict::of(statement, &session.engine, &table)? {
        None => format!("Insert into {name}"),
        Some(conflict) => {
            let blind = match statement.returning {
                None => conflict.blind(session, &table, &insert::alias(statement, &table))?,
                Some(_) => None,
            };
            match blind {
                Some(blind) => format!("Upsert into {name}: blind ({})", blind.describe(&table)),
                None => format!("Upsert into {name}: {}", conflict.describe(&table)),
            }
        }
    };
    let query = statement.source.as_deref().filter(|query| literals::plain_values(query).is_none()).cloned();
    Ok((change, query))
}
