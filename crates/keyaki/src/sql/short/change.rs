//! UPDATE and DELETE of few rows by key.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::ScalarValue;

use super::read::Read;
use crate::Result;
use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, Table};
use crate::engine::Moment;
use crate::sql::dml::delete::old_rows;
use crate::sql::dml::foreign_keys;
use crate::sql::dml::update::old_and_new;
use crate::sql::prepared::Executed;
use crate::sql::{Outcome, SqlSession};
use crate::write::apply::TableChange;

/// A change of the rows that a query finds.
#[derive(Debug)]
pub(crate) struct Change {
    /// The query of the affected rows, in the form of the statement's long path.
    pub read: Read,
    pub kind: ChangeKind,
    pub table: Arc<Table>,
}

#[derive(Debug)]
pub(crate) enum ChangeKind {
    Update {
        /// The assigned columns.
        assigned: Vec<usize>,
        /// Positions in `assigned` whose value is a parameter and not the query's column.
        parameters: Vec<(usize, usize)>,
    },
    Delete,
}

impl Change {
    fn tag(&self) -> &'static str {
        match self.kind {
            ChangeKind::Update { .. } => "UPDATE",
            ChangeKind::Delete => "DELETE",
        }
    }

    /// Executes the statement; `None` if the long path has to.
    ///
    /// # Errors
    /// `Constraint`, errors of expressions and of the conversion of values, errors of the commit.
    pub async fn run(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        catalog: &Arc<Catalog>,
        parameters: &[ArrayRef],
    ) -> Result<Option<Executed>> {
        let tag = self.tag();
        let writer = session.writer(execution, tag).await?;
        let (current, snapshot) = session.engine.latest(&writer);
        if !Arc::ptr_eq(&current, catalog) {
            return Ok(None);
        }
        session.engine.check_writable(&self.table)?;
        let moment = Moment::of(current, snapshot.clone());
        let Some(batch) = self.read.run_at(&session.engine, moment, parameters).await? else { return Ok(None) };
        let table = &self.table;
        let change = match &self.kind {
            ChangeKind::Delete => TableChange::deletion(table, old_rows(table, &batch)?),
            ChangeKind::Update { assigned, parameters: given } => {
                let batch = with_parameters(table, batch, given, parameters)?;
                let (old, new) = old_and_new(table, assigned, &batch, session.zone())?;
                TableChange::update(table, old, new, assigned.clone())
            }
        };
        let rows = foreign_keys::commit(session, writer, catalog, snapshot, change).await?;
        Ok(Some(Executed::Outcome(Outcome::rows(tag, rows))))
    }
}

/// Replaces assigned values by parameters.
pub(super) fn with_parameters(
    table: &Table,
    batch: RecordBatch,
    given: &[(usize, usize)],
    parameters: &[ArrayRef],
) -> Result<RecordBatch> {
    if given.is_empty() || batch.num_rows() == 0 {
        return Ok(batch);
    }
    let first = table.def.columns.len() + usize::from(table.def.hidden_rowid);
    let (mut columns, rows) = (batch.columns().to_vec(), batch.num_rows());
    let mut fields: Vec<_> = batch.schema().fields().iter().cloned().collect();
    for &(place, parameter) in given {
        let value = ScalarValue::try_from_array(&parameters[parameter], 0)?.to_array_of_size(rows)?;
        let field = &mut fields[first + place];
        *field = Arc::new(field.as_ref().clone().with_data_type(value.data_type().clone()).with_nullable(true));
        columns[first + place] = value;
    }
    Ok(RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), columns)?)
}
