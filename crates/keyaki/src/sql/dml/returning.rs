//! RETURNING: a query over the changed rows, as they are after INSERT and UPDATE, as they were before DELETE.
//!
//! The rows are computed before the change is committed, so that an error of an expression leaves no change. Subqueries
//! see the state before the statement.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::sqlparser::ast::{
    Ident, ObjectName, Query, SelectItem, SetExpr, TableAlias, TableFactor, TableWithJoins,
};

use crate::catalog::{RelationName, Table};
use crate::sql::columns::shown_schema;
use crate::sql::state::StatementState;
use crate::sql::{Outcome, SqlSession};
use crate::write::RowBuffer;
use crate::write::rows::TableRows;
use crate::{Error, Result};

/// Prefix of the name of the table of changed rows.
pub(crate) const RETURNED_PREFIX: &str = "__returned_";

/// The clause.
#[derive(Debug, Clone)]
pub(super) struct Returning {
    items: Vec<SelectItem>,
    /// The name of the table in expressions.
    alias: Ident,
}

impl Returning {
    /// The clause of a statement whose target table has the name `alias`.
    pub fn new(items: Vec<SelectItem>, alias: Ident) -> Returning {
        Returning { items, alias }
    }

    /// The clause of a statement whose target table has the name `alias`; `None` without the clause.
    pub fn of(items: Option<Vec<SelectItem>>, alias: Ident) -> Option<Returning> {
        items.map(|items| Returning::new(items, alias))
    }

    /// The columns of the result.
    ///
    /// # Errors
    /// Errors of planning.
    pub async fn schema(&self, state: &StatementState, table: &Arc<Table>) -> Result<SchemaRef> {
        let plan = state.plan_query(self.query(state, table, Vec::new())?).await?;
        Ok(shown_schema(plan.schema().inner()))
    }

    /// The result for the changed rows, which have all columns.
    ///
    /// # Errors
    /// Errors of the expressions; `OutOfMemory`.
    pub async fn rows(
        &self,
        session: &SqlSession,
        state: &StatementState,
        table: &Arc<Table>,
        rows: &TableRows,
    ) -> Result<Outcome> {
        let columns = rows.columns.iter().cloned().collect::<Option<Vec<_>>>();
        let batch = match columns {
            _ if rows.len == 0 => RecordBatch::new_empty(table.arrow.clone()),
            Some(columns) => RecordBatch::try_new(table.arrow.clone(), columns)?,
            None => return Err(Error::Internal("RETURNING needs all columns".into())),
        };
        let plan = state.plan_query(self.query(state, table, vec![batch])?).await?;
        let stream = state.run(&plan).await?;
        let schema = stream.schema();
        let rows = RowBuffer::reserved(&session.engine, "RETURNING").collect(stream).await?;
        Ok(Outcome::Rows(Box::pin(MemoryStream::try_new(rows.batches, schema, None)?)))
    }

    /// `SELECT items FROM rows AS alias`, with the rows registered as a table of the statement.
    fn query(&self, state: &StatementState, table: &Arc<Table>, rows: Vec<RecordBatch>) -> Result<Query> {
        let name = format!("{RETURNED_PREFIX}{}", table.def.name.qualified());
        state.add_table(RelationName::public(&name), Arc::new(MemTable::try_new(table.arrow.clone(), vec![rows])?));
        let mut query = *crate::sql::parse_query(&format!("SELECT 1 FROM \"{RETURNED_PREFIX}\" AS \"t\""))?;
        let SetExpr::Select(select) = query.body.as_mut() else {
            return Err(Error::Internal("the parser returned another kind of query for SELECT".into()));
        };
        select.projection.clone_from(&self.items);
        for TableWithJoins { relation, .. } in &mut select.from {
            if let TableFactor::Table { name: table, alias, .. } = relation {
                *table = ObjectName::from(vec![Ident::with_quote('"', &name)]);
                let name = self.alias.clone();
                *alias = Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None });
            }
        }
        Ok(query)
    }
}
