//! Prepared statements of the async API.

use std::pin::pin;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};

use super::Session;
use crate::Result;
use crate::base::interrupt::Execution;
use crate::base::value::{Value, ValueRef};
use crate::sql::prepared::{Description, Executed, Prepared as Statement};
use crate::sql::{Outcome, split};

/// A statement that was parsed and described once ([`Session::prepare`]). Changes of the catalog do not invalidate it: it
/// is described again when its tables have changed.
#[derive(Debug, Clone)]
pub struct Prepared {
    statement: Arc<Statement>,
    description: Arc<Description>,
}

impl Prepared {
    pub(super) async fn new(session: &Session, sql: &str) -> Result<Prepared> {
        let statement = Arc::new(Statement::parse(&split::single(sql)?)?);
        let description = statement.describe(&session.sql).await?;
        Ok(Prepared { statement, description })
    }

    /// The text of the statement.
    pub fn sql(&self) -> &str {
        &self.statement.text
    }

    /// The types of the parameters, as of the preparation; `None` for parameters that take values of any type.
    pub fn parameters(&self) -> &[Option<DataType>] {
        &self.description.parameters
    }

    /// The columns of the result, as of the preparation; `None` for statements that return no rows.
    pub fn columns(&self) -> Option<&SchemaRef> {
        self.description.columns.as_ref()
    }

    /// True for queries, which change nothing.
    pub(super) fn is_query(&self) -> bool {
        self.statement.is_query()
    }

    /// Executes the statement with a value for each parameter.
    ///
    /// # Errors
    /// `ParameterCount`; `Context` with the parameter for a value that cannot be converted to its type; errors of the
    /// statement.
    pub async fn query(&self, session: &Session, values: &[Value]) -> Result<Outcome> {
        let values: Vec<ValueRef<'_>> = values.iter().map(Value::as_ref).collect();
        let execution = session.execution();
        session.run(&execution, pin!(self.execute(session, &execution, &values))).await?.into_outcome()
    }

    pub(super) async fn execute(
        &self,
        session: &Session,
        execution: &Execution<'_>,
        values: &[ValueRef<'_>],
    ) -> Result<Executed> {
        self.statement.execute(&session.sql, execution, values).await
    }
}
