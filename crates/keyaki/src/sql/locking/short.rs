//! Queries of few rows by key that lock them: [`crate::sql::short`] reads the rows.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::logical_expr::LogicalPlan;

use super::clauses::Clauses;
use super::plan::{LockedTable, LockingPlan, with_keys};
use super::rows::{Found, Rows};
use super::{Locked, OUTDATED_RUNS_MAX, acknowledged, granted, holder, waits, writer};
use crate::base::interrupt::Execution;
use crate::catalog::Catalog;
use crate::engine::Moment;
use crate::sql::SqlSession;
use crate::sql::columns::in_zone;
use crate::sql::prepared::Executed;
use crate::sql::short::Read;
use crate::sql::state::StatementState;
use crate::write::RowBuffer;
use crate::{Error, Result};

/// A query of few rows by key, with the keys of the tables that it locks.
#[derive(Debug)]
pub(crate) struct LockingRead {
    read: Read,
    tables: Vec<LockedTable>,
    /// Number of columns of the result.
    columns: usize,
    /// The schema of the result.
    schema: SchemaRef,
}

impl LockingRead {
    /// Compiles a query; `None` if it does not have the form of the short path.
    pub fn compile(
        plan: &LogicalPlan,
        state: &StatementState,
        clauses: &Clauses,
        types: &[Option<DataType>],
    ) -> Option<LockingRead> {
        // With a limit, rows that others have locked are replaced by further ones.
        if clauses.skips() && clauses.has_limit {
            return None;
        }
        let types: Vec<DataType> = types.iter().cloned().collect::<Option<_>>()?;
        // The long path reports the error.
        let LockingPlan { plan, columns, tables } = with_keys(state, plan.clone(), clauses).ok()?;
        let mut read = Read::compile(&plan, &state.state, &types)?;
        read.schema = in_zone(&read.schema, state.zone);
        let (fields, metadata) = (&read.schema.fields()[..columns], read.schema.metadata().clone());
        let schema = Arc::new(Schema::new_with_metadata(fields.to_vec(), metadata));
        Some(LockingRead { read, tables, columns, schema })
    }

    /// Executes the query; `None` if the long path has to.
    ///
    /// # Errors
    /// As [`super::query`].
    pub async fn run(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        catalog: &Arc<Catalog>,
        parameters: &[ArrayRef],
    ) -> Result<Option<Executed>> {
        let (engine, holder) = (&session.engine, holder(session, execution));
        let (mark, mut outdated) = (holder.len(), 0);
        loop {
            let writer = writer(session, execution).await?;
            let (current, snapshot) = engine.latest(&writer);
            if !Arc::ptr_eq(&current, catalog) {
                return Ok(None);
            }
            let moment = Moment::of(current, snapshot);
            let Some(batch) = self.read.run_at(engine, moment, parameters).await? else { return Ok(None) };
            let (schema, mut buffer) = (batch.schema(), RowBuffer::unreserved());
            buffer.push(batch)?;
            let found = {
                let rows = Rows::new(&engine.row_locks, &self.tables, &buffer, &schema)?;
                match rows.lock(&holder, &writer, waits(session, &writer), None)? {
                    Found::Locked(selected) => {
                        rows.keep(&selected, |tree, range| engine.depend_on(&writer, tree, range));
                        Ok(rows.result(&selected)?)
                    }
                    other => Err(other),
                }
            };
            match found {
                Ok(batches) => {
                    drop(writer);
                    acknowledged(session).await?;
                    let places: Vec<usize> = (0..self.columns).collect();
                    let batches = batches.iter().map(|batch| batch.project(&places));
                    let batches = batches.collect::<std::result::Result<_, _>>()?;
                    return Locked { schema: self.schema.clone(), batches }.executed().map(Some);
                }
                Err(Found::Wait(wait)) => {
                    writer.run_again();
                    drop((writer, buffer));
                    granted(session, wait).await?;
                }
                Err(_) => {
                    outdated += 1;
                    if outdated >= OUTDATED_RUNS_MAX {
                        return Err(Error::Conflict { relation: None });
                    }
                    // The next run may find other rows.
                    holder.release_after(mark);
                    writer.run_again();
                }
            }
        }
    }
}
