//! Queries that lock rows: SELECT … FOR UPDATE, FOR NO KEY UPDATE, FOR SHARE and FOR KEY SHARE.
//!
//! ```text
//! parse ([`tokens`]) ──► clauses ([`clauses`]) ──► plan with the keys of the locked tables ([`plan`])
//!   ┌──► read all rows ──► lock them ──► changed since the snapshot? ──no──► rows without the keys
//!   └──── wait, new snapshot ◄──┴───────────yes──────────┘
//! ```
//!
//! The rows that a query returns are locked to the end of the transaction ([`crate::base::row_locks`]); outside of one, to
//! the end of the statement. If another transaction has one of them, the query waits and runs again from its start, as a
//! statement that changes rows does. With NOWAIT it fails, and with SKIP LOCKED it leaves the row out.
//!
//! Writers at other levels than read committed lock only free rows. Each locked row is therefore also a dependency of the
//! commit: it fails with a conflict if another commit has changed the row since it was locked. A transaction that keeps its
//! snapshot fails at once if a row has changed since then.
//!
//! Queries within other statements are executed first, and replaced by their rows ([`nested`]).
//!
//! *Invariant.* A query that waits for a row holds neither the writer lock nor the turn of its transaction.

mod clauses;
mod nested;
mod plan;
mod rows;
mod short;
mod tokens;

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::sqlparser::ast::Statement;

use super::prepared::Executed;
use super::repeat::{OUTDATED_RUNS_MAX, granted};
use super::state::StatementState;
use super::template::Template;
use super::{Outcome, SqlSession, set_config};
use crate::base::interrupt::Execution;
use crate::base::options::Switch;
use crate::base::row_locks::{LockHolder, Wait};
use crate::catalog::Catalog;
use crate::engine::Writer;
use crate::write::RowBuffer;
use crate::{Error, Result};
use clauses::NAME;
use rows::{Found, Rows};

pub(super) use clauses::{Clauses, is_locking, is_outermost, of_query, without};
pub(super) use nested::resolve;
pub(super) use short::LockingRead;
pub(super) use tokens::in_clauses;

/// The rows of a query that are locked.
struct Locked {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Locked {
    /// The rows as one batch.
    fn executed(self) -> Result<Executed> {
        Ok(Executed::Rows(concat_batches(&self.schema, &self.batches)?))
    }

    fn outcome(self) -> Result<Outcome> {
        Ok(Outcome::Rows(Box::pin(MemoryStream::try_new(self.batches, self.schema, None)?)))
    }
}

/// The result of one run of a query.
enum Run {
    Locked(Locked),
    /// Another transaction has a row.
    Wait(Wait),
    /// A commit has changed a row since the snapshot.
    Outdated,
}

/// The plan of a query without its locking clauses.
enum Source<'a> {
    Statement(&'a Statement),
    /// A template for a version of the catalog, with the values of its parameters.
    Template(&'a Template, &'a Arc<Catalog>, &'a [ArrayRef]),
}

impl Source<'_> {
    /// The plan; `None` if the template does not fit.
    async fn plan(&self, state: &StatementState) -> Result<Option<LogicalPlan>> {
        match self {
            Source::Statement(statement) => Ok(Some(state.plan(Statement::clone(statement)).await?)),
            Source::Template(_, catalog, _) if !Arc::ptr_eq(&state.catalog, catalog) => Ok(None),
            // Planning from the syntax tree reports an error in the terms of the statement.
            Source::Template(template, _, values) => Ok(template.bind(state, values).ok()),
        }
    }
}

/// Executes a query with locking clauses, or with queries within that have them.
///
/// # Errors
/// `LockNotAvailable`, `LockTimeout`, `Deadlock`, `Conflict`, `ReadOnlyTransaction`, `Unsupported`; errors of the query.
pub(super) async fn query(
    session: &SqlSession,
    execution: &Execution<'_>,
    mut statement: Statement,
) -> Result<Outcome> {
    set_config::apply(session, &mut statement)?;
    let holder = holder(session, execution);
    let clauses = match &mut statement {
        Statement::Query(query) => clauses::take(query)?,
        _ => None,
    };
    nested::replace(session, execution, &holder, &mut statement).await?;
    let Some(clauses) = clauses else {
        let state = StatementState::reading(session)?;
        let plan = state.plan(statement).await?;
        let rows = state.run(&plan).await?;
        return Ok(Outcome::Rows(session.transaction.watch(&session.engine, rows)));
    };
    let locked = locked(session, execution, &holder, &clauses, &Source::Statement(&statement)).await?;
    locked.ok_or_else(|| Error::Internal("a query without a template has none that fits".into()))?.outcome()
}

/// Executes a query from its template; `None` if it does not fit.
///
/// # Errors
/// As [`query`].
pub(super) async fn query_of_template(
    session: &SqlSession,
    execution: &Execution<'_>,
    clauses: &Clauses,
    (template, catalog): (&Template, &Arc<Catalog>),
    values: &[ArrayRef],
) -> Result<Option<Outcome>> {
    let holder = holder(session, execution);
    let source = Source::Template(template, catalog, values);
    locked(session, execution, &holder, clauses, &source).await?.map(Locked::outcome).transpose()
}

/// The holder of the locks: that of the open transaction, of the statement, or a new one for the statement.
fn holder(session: &SqlSession, execution: &Execution<'_>) -> Arc<LockHolder> {
    let of_statement = || execution.decision().locks().map(|locks| locks.holder.clone());
    let new = || Arc::new(session.engine.row_locks.holder(session.activity.process));
    session.transaction.query_holder(&session.engine).or_else(of_statement).unwrap_or_else(new)
}

/// The right to lock rows: the turn of the transaction, or the writer lock.
async fn writer(session: &SqlSession, execution: &Execution<'_>) -> Result<Writer> {
    if session.is_read_only() {
        session.transaction.check()?;
        return Err(Error::ReadOnlyTransaction { statement: NAME.into() });
    }
    session.writer(execution, NAME).await
}

/// Runs a query until its rows are locked; `None` if its template does not fit.
async fn locked(
    session: &SqlSession,
    execution: &Execution<'_>,
    holder: &Arc<LockHolder>,
    clauses: &Clauses,
    source: &Source<'_>,
) -> Result<Option<Locked>> {
    let mark = holder.len();
    let mut outdated = 0;
    loop {
        let writer = writer(session, execution).await?;
        let (catalog, snapshot) = session.engine.latest(&writer);
        let state = StatementState::new(session, catalog, snapshot)?;
        let Some(plan) = source.plan(&state).await? else { return Ok(None) };
        let plan = plan::with_keys(&state, plan, clauses)?;
        match run(session, &state, &writer, holder, clauses, &plan).await? {
            Run::Locked(locked) => {
                drop(writer);
                acknowledged(session).await?;
                return Ok(Some(locked));
            }
            Run::Wait(wait) => {
                writer.run_again();
                drop((writer, state, plan));
                granted(session, wait).await?;
            }
            Run::Outdated => {
                outdated += 1;
                if outdated >= OUTDATED_RUNS_MAX {
                    return Err(Error::Conflict { relation: None });
                }
                if clauses.skips() {
                    // The next run may find other rows.
                    holder.release_after(mark);
                }
                writer.run_again();
            }
        }
    }
}

/// Waits until all commits that the query has seen are durable.
async fn acknowledged(session: &SqlSession) -> Result<()> {
    if session.transaction.is_open() {
        return session.transaction.acknowledged(&session.engine).await;
    }
    session.engine.store.pending().committed().await?;
    Ok(())
}

/// True if statements of the session wait for rows.
fn waits(session: &SqlSession, writer: &Writer) -> bool {
    session.options.lock().row_locks == Switch::On && writer.may_wait()
}

/// Reads the rows once, and locks them.
async fn run(
    session: &SqlSession,
    state: &StatementState,
    writer: &Writer,
    holder: &Arc<LockHolder>,
    clauses: &Clauses,
    locking: &plan::LockingPlan,
) -> Result<Run> {
    let limit = match clauses.skips() {
        true => plan::limit_of(&locking.plan)?,
        false => None,
    };
    if limit.is_none() && clauses.skips() && clauses.has_limit {
        return Err(Error::Unsupported("SKIP LOCKED with this limit".into()));
    }
    // Number of rows that the query needs, those before its offset included.
    let needed = limit.and_then(|(skip, fetch)| fetch.map(|fetch| fetch.saturating_add(skip)));
    // So many rows more are read, because others may have locked them.
    let mut further = session.engine.row_locks.len().saturating_sub(holder.len()).min(FURTHER_ROWS);
    loop {
        let fetch = needed.map(|needed| needed.saturating_add(further));
        let stream = match limit {
            Some(_) => state.run(&plan::with_limit(locking.plan.clone(), fetch)?).await?,
            None => state.run(&locking.plan).await?,
        };
        let schema = stream.schema();
        let buffer = RowBuffer::reserved(&session.engine, NAME).collect(stream).await?;
        let is_end = fetch.is_none_or(|fetch| buffer.rows < fetch);
        let rows = Rows::new(&session.engine.row_locks, &locking.tables, &buffer, &schema)?;
        let selected = match rows.lock(holder, writer, waits(session, writer), needed)? {
            Found::Locked(selected) => selected,
            Found::Wait(wait) => return Ok(Run::Wait(wait)),
            Found::Outdated => return Ok(Run::Outdated),
        };
        if needed.is_some_and(|needed| selected.len() < needed) && !is_end {
            further = further.saturating_mul(FURTHER_GROWTH).max(FURTHER_ROWS);
            continue;
        }
        rows.keep(&selected, |tree, range| session.engine.depend_on(writer, tree, range));
        let skip = limit.map_or(0, |(skip, _)| skip.min(selected.len()));
        let columns: Vec<usize> = (0..locking.columns).collect();
        let batches = rows.result(&selected[skip..])?;
        let batches = batches.iter().map(|batch| batch.project(&columns)).collect::<std::result::Result<_, _>>()?;
        let fields = &schema.fields()[..locking.columns];
        let schema = Arc::new(Schema::new_with_metadata(fields.to_vec(), schema.metadata().clone()));
        return Ok(Run::Locked(Locked { schema, batches }));
    }
}

/// A query with SKIP LOCKED and a limit reads at most this many rows more than the limit at first.
const FURTHER_ROWS: usize = 64;
/// Factor by which it reads more rows if others have locked too many of them.
const FURTHER_GROWTH: usize = 8;
