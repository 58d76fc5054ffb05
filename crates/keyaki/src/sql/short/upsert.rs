//! INSERT … ON CONFLICT of one row of parameters and literals: the existing row is found by its key, as in an UPDATE.

use std::cell::LazyCell;
use std::sync::Arc;

use arrow::array::ArrayRef;
use keyaki_store::WriteBatch;

use super::change::with_parameters;
use super::insert::{Cell, Insert, column_of, now};
use super::read::Read;
use crate::base::interrupt::Execution;
use crate::base::value::ValueRef;
use crate::catalog::{Catalog, Table};
use crate::engine::Moment;
use crate::sql::dml::blind::Blind;
use crate::sql::dml::conflict::updated;
use crate::sql::dml::foreign_keys;
use crate::sql::prepared::Executed;
use crate::sql::{Outcome, SqlSession};
use crate::write::apply::TableChange;
use crate::write::assign::assign;
use crate::write::checks::verify_rows;
use crate::write::rows::TableRows;
use crate::write::{finish_upserts, submit_upserts};
use crate::{Result, Switch};

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
    /// The statement as a message that reads nothing, if it has such a form.
    pub blind: Option<BlindUpsert>,
}

/// A blind upsert of one row.
#[derive(Debug)]
pub(crate) struct BlindUpsert {
    pub blind: Blind,
    /// For each table column the cell of the argument; empty if the new row has the arguments.
    pub arguments: Vec<Option<Vec<Cell>>>,
}

impl BlindUpsert {
    /// The message for a new row; `None` if an argument does not fit into its column.
    fn batch(
        &self,
        session: &SqlSession,
        table: &Arc<Table>,
        new: &TableRows,
        values: &[ValueRef<'_>],
    ) -> Result<Option<WriteBatch>> {
        let Some(rows) = new.columns.iter().cloned().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let mut arguments = None;
        if !self.arguments.is_empty() {
            let now = LazyCell::<ArrayRef>::new(|| now(1));
            let mut arrays = Vec::with_capacity(self.arguments.len());
            for (cells, column) in self.arguments.iter().zip(&table.def.columns) {
                arrays.push(match cells {
                    None => None,
                    Some(cells) => {
                        let array = column_of(cells, (values, &now), column, session.zone())
                            .and_then(|array| assign(&array, &table.def.name, column, session.zone()));
                        match array {
                            Ok(array) => Some(array),
                            Err(_) => return Ok(None),
                        }
                    }
                });
            }
            arguments = Some(arrays);
        }
        self.blind.messages(table, &rows, arguments).map(Some)
    }
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
        if let Some(blind) = self.blind.as_ref().filter(|_| session.options().blind_upserts == Switch::On)
            && let Some(batch) = blind.batch(session, table, &new, values)?
        {
            let statement = session.write(writer.clone());
            if let Some(accepted) = submit_upserts(&statement, table, batch, 1).await? {
                drop(writer);
                let rows = finish_upserts(statement, table, accepted).await?;
                return Ok(Some(Executed::Outcome(Outcome::rows("INSERT", rows))));
            }
        }
        let moment = Moment::of(current, snapshot.clone());
        let Some(found) = self.read.run_at(&session.engine, moment, parameters).await? else { return Ok(None) };
        let change = match &self.assigned {
            _ if found.num_rows() == 0 => TableChange::insertion(table, new),
            None => TableChange::insertion(table, TableRows::default()),
            Some(assigned) => {
                let found = with_parameters(table, found, &self.parameters, parameters)?;
                let (old, new) = updated(table, assigned, &found, session.zone())?;
                TableChange::update(table, old, new, assigned.clone())
            }
        };
        let count = change.new.len as u64;
        foreign_keys::commit(session, writer, catalog, snapshot, change).await?;
        Ok(Some(Executed::Outcome(Outcome::rows("INSERT", count))))
    }
}
