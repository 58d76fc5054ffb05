//! INSERT … ON CONFLICT of one row of parameters and literals: the existing row is found by its key, as in an UPDATE.

use std::sync::Arc;

use arrow::array::ArrayRef;

use super::change::with_parameters;
use super::insert::Insert;
use super::read::Read;
use crate::Result;
use crate::base::interrupt::Execution;
use crate::base::value::ValueRef;
use crate::catalog::Catalog;
use crate::engine::Moment;
use crate::sql::dml::conflict::updated;
use crate::sql::prepared::Executed;
use crate::sql::{Outcome, SqlSession};
use crate::write::apply::TableChange;
use crate::write::checks::verify_rows;
use crate::write::rows::TableRows;

/// An INSERT of one row with a conflict clause for one unique key.
#[derive(Debug)]
pub(crate) struct Upsert {
    /// The row, if there is no conflict.
    pub insert: Insert,
    /// The query of the existing row: all columns, the hidden rowid if there is one, and for DO UPDATE the assigned values and
    /// the condition.
    pub read: Read,
    /// The assigned columns; `None` for DO NOTHING.
    pub assigned: Option<Vec<usize>>,
    /// Positions in `assigned` whose value is a parameter and not the query's column.
    pub parameters: Vec<(usize, usize)>,
}

impl Upsert {
    /// Executes the statement; `None` if the long path has to.
    ///
    /// # Errors
    /// As [`Insert::run`]; errors of expressions.
    pub async fn run(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        catalog: &Arc<Catalog>,
        values: &[ValueRef<'_>],
        parameters: &[ArrayRef],
    ) -> Result<Option<Executed>> {
        let new = self.insert.new_rows(session, values)?;
        let writer = session.writer(execution, "INSERT").await?;
        let (current, snapshot) = session.engine.latest(&writer);
        if !Arc::ptr_eq(&current, catalog) {
            return Ok(None);
        }
        let table = &self.insert.table;
        // As in PostgreSQL, also a row that then conflicts.
        verify_rows(table, &new, None)?;
        let moment = Moment::of(current, snapshot.clone());
        let Some(found) = self.read.run_at(&session.engine, moment, parameters).await? else { return Ok(None) };
        let (old, new, assigned) = match &self.assigned {
            _ if found.num_rows() == 0 => (TableRows::default(), new, None),
            None => (TableRows::default(), TableRows::default(), None),
            Some(assigned) => {
                let found = with_parameters(table, found, &self.parameters, parameters)?;
                let (old, new) = updated(table, assigned, &found, session.zone())?;
                (old, new, Some(assigned.clone()))
            }
        };
        let count = new.len as u64;
        let change = TableChange { table: table.clone(), old, new, old_repeats: false, assigned };
        crate::write::commit(session.write(writer), snapshot, change).await?;
        Ok(Some(Executed::Outcome(Outcome::rows("INSERT", count))))
    }
}
