//! The short path: statements that touch a few rows by key, executed on the calling thread from cached pages, without
//! DataFusion's planner and without another thread.
//!
//! A prepared statement is compiled once ([`ShortPlan`]). The compilation starts from the logical plan that the long
//! path would execute, so both mean the same. At execution, the short path gives way to the long one if the catalog has
//! changed, or if there are more rows than expected: a plan made for a rare value never reads a frequent one. The
//! executor reads pages that are not cached.
//!
//! *Invariant.* A statement is not compiled if the optimizer might treat a parameter differently from a literal of its
//! value ([`read`]).
//!
//! | module | contents |
//! |---|---|
//! | [`read`] | the form of queries, their compilation and execution |
//! | [`scan`] | the conditions on a table |
//! | [`joins`], [`lookup`] | joins of a few tables by lookups |
//! | [`keys`], [`order`] | the ranges of keys that conditions give; the first rows in an order |
//! | [`access`], [`pages`] | reads of ranges of tables and indexes, from cached pages |
//! | [`expressions`] | expressions over rows and parameters |
//! | [`steps`], [`aggregate`] | filters, projections, aggregates, sorts and limits over the rows found |
//! | [`insert`], [`upsert`], [`change`] | INSERT … VALUES, with ON CONFLICT; UPDATE and DELETE |
//!
//! Queries with FOR UPDATE and FOR SHARE are those of [`LockingRead`].

mod access;
mod aggregate;
mod change;
mod expressions;
mod insert;
mod joins;
mod keys;
mod lookup;
mod order;
mod pages;
mod read;
mod scan;
mod steps;
mod upsert;

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::logical_expr::LogicalPlan;

use super::columns::in_zone;
use super::locking::LockingRead;
use super::parameters::bind_all;
use super::prepared::Executed;
use super::state::StatementState;
use super::{SqlSession, repeat};
use crate::Result;
use crate::base::interrupt::Execution;
use crate::base::value::ValueRef;
use crate::catalog::Catalog;

pub(crate) use change::{Change, ChangeKind};
pub(crate) use expressions::parameter_index;
pub(crate) use insert::{Cell, Insert, now};
pub(crate) use read::Read;
pub(crate) use upsert::{BlindUpsert, Upsert};

/// A statement compiled for the short path.
#[derive(Debug)]
pub(crate) enum ShortPlan {
    Read(Box<Read>),
    Lock(Box<LockingRead>),
    Insert(Insert),
    Change(Box<Change>),
    Upsert(Box<Upsert>),
}

impl ShortPlan {
    /// Compiles a query; `None` if it does not have the form of the short path, or if the type of a parameter is not
    /// known.
    pub fn of_query(plan: &LogicalPlan, state: &StatementState, parameters: &[Option<DataType>]) -> Option<ShortPlan> {
        let parameters: Vec<DataType> = parameters.iter().cloned().collect::<Option<_>>()?;
        let mut read = Read::compile(plan, &state.state, &parameters)?;
        read.schema = in_zone(&read.schema, state.zone);
        Some(ShortPlan::Read(Box::new(read)))
    }

    /// Executes the statement; `None` if the long path has to. `catalog` is the one that the plan was made for; `types`
    /// are those of the parameters.
    ///
    /// # Errors
    /// `Context` with the parameter for a value that cannot be converted to its type; errors of the statement.
    pub async fn run(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        catalog: &Arc<Catalog>,
        types: &[Option<DataType>],
        values: &[ValueRef<'_>],
    ) -> Result<Option<Executed>> {
        if let ShortPlan::Read(read) = self {
            let arrays = bind_all(values, types, session.zone())?;
            let rows = read.run(session, catalog, &arrays).await?;
            session.transaction.acknowledged(&session.engine).await?;
            return Ok(rows.map(Executed::Rows));
        }
        let arrays = match self {
            ShortPlan::Insert(_) => Vec::new(),
            _ => bind_all(values, types, session.zone())?,
        };
        if let ShortPlan::Lock(read) = self {
            return Box::pin(read.run(session, execution, catalog, &arrays)).await;
        }
        repeat::begin(session, execution);
        loop {
            let changed = match self {
                ShortPlan::Insert(insert) => insert.run(session, execution, catalog, values).await,
                ShortPlan::Change(change) => change.run(session, execution, catalog, &arrays).await,
                ShortPlan::Upsert(upsert) => upsert.run(session, execution, catalog, values, &arrays).await,
                ShortPlan::Read(_) | ShortPlan::Lock(_) => Ok(None),
            };
            if repeat::again(session, execution).await? {
                continue;
            }
            if changed.is_err() {
                session.transaction.acknowledged(&session.engine).await?;
            }
            return changed;
        }
    }
}
