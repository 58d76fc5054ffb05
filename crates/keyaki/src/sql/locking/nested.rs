//! Queries with locking clauses within other statements: `UPDATE … WHERE id IN (SELECT … FOR UPDATE SKIP LOCKED)`.
//!
//! They are executed before the statement, each different one once. Their rows, as a list of VALUES, take their places in the
//! syntax tree. The statement itself runs afterwards: it sees the rows that were locked, and keeps them locked to its end. If it
//! has to run again, the rows stay the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::new_null_array;
use datafusion::sql::sqlparser::ast::{Query, Statement, Visitor, VisitorMut};
use futures::future::BoxFuture;

use super::clauses::{is_locking, take};
use super::{Locked, Source, holder, locked};
use crate::base::identifiers::quoted;
use crate::base::interrupt::Execution;
use crate::base::row_locks::LockHolder;
use crate::sql::parameters::literal;
use crate::sql::visit::{walk, walk_mut};
use crate::sql::{SqlSession, parse_query};
use crate::{Error, Result};

/// The name of the rows in FROM.
const ROWS: &str = "__locked";

/// Executes the queries with locking clauses in a statement that changes rows. Returns the holder of their locks, which the
/// caller keeps to the end of the statement; `None` if there are none.
///
/// # Errors
/// As [`super::query`].
pub(in crate::sql) async fn resolve(
    session: &SqlSession,
    execution: &Execution<'_>,
    statement: &mut Statement,
) -> Result<Option<Arc<LockHolder>>> {
    if !is_locking(statement) {
        return Ok(None);
    }
    let holder = holder(session, execution);
    replace(session, execution, &holder, statement).await?;
    Ok(Some(holder))
}

/// Executes the queries with locking clauses in a statement, and replaces them by their rows.
///
/// # Errors
/// As [`super::query`].
pub(super) fn replace<'a>(
    session: &'a SqlSession,
    execution: &'a Execution<'_>,
    holder: &'a Arc<LockHolder>,
    statement: &'a mut Statement,
) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move {
        let mut outermost = Outermost::default();
        _ = walk(statement, &mut outermost);
        let mut rows: HashMap<String, Query> = HashMap::new();
        for query in outermost.queries {
            if let Entry::Vacant(entry) = rows.entry(query.to_string()) {
                entry.insert(executed(session, execution, holder, query).await?);
            }
        }
        if !rows.is_empty() {
            _ = walk_mut(statement, &mut Replace(rows));
        }
        Ok(())
    })
}

/// The rows of a query with locking clauses, as a query.
async fn executed(
    session: &SqlSession,
    execution: &Execution<'_>,
    holder: &Arc<LockHolder>,
    mut query: Query,
) -> Result<Query> {
    let Some(clauses) = take(&mut query)? else { return Ok(query) };
    let mut statement = Statement::Query(Box::new(query));
    replace(session, execution, holder, &mut statement).await?;
    let found = locked(session, execution, holder, &clauses, &Source::Statement(&statement)).await;
    let found = found.map_err(|error| match error.root() {
        // It may be one of the outer query.
        Error::NotFound { .. } | Error::UndefinedColumn { .. } | Error::MissingFromEntry(_) => {
            error.within("subquery with FOR UPDATE or FOR SHARE, which is executed on its own".to_string())
        }
        _ => error,
    })?;
    let found = found.ok_or_else(|| Error::Internal("a query without a template has none that fits".into()))?;
    as_query(&found)
}

/// A query that returns rows that are known.
fn as_query(Locked { schema, batches }: &Locked) -> Result<Query> {
    let fields = schema.fields();
    let names: Vec<String> = fields.iter().map(|field| quoted(field.name()).to_string()).collect();
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let values = batch.columns().iter().map(|column| Ok(literal(&column.slice(row, 1))?.to_string()));
            rows.push(format!("({})", values.collect::<Result<Vec<_>>>()?.join(", ")));
        }
    }
    if rows.is_empty() {
        let nulls = fields
            .iter()
            .zip(&names)
            .map(|(field, name)| Ok(format!("{} AS {name}", literal(&new_null_array(field.data_type(), 1))?)));
        let nulls = nulls.collect::<Result<Vec<_>>>()?.join(", ");
        return Ok(*parse_query(&format!("SELECT {nulls} WHERE FALSE"))?);
    }
    let (rows, names) = (rows.join(", "), names.join(", "));
    Ok(*parse_query(&format!("SELECT * FROM (VALUES {rows}) AS {ROWS} ({names})"))?)
}

/// The queries with locking clauses that are not within others.
#[derive(Default)]
struct Outermost {
    queries: Vec<Query>,
    /// Number of open queries, from one with locking clauses on.
    depth: usize,
}

impl Visitor for Outermost {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if self.depth == 0 && !query.locks.is_empty() {
            self.queries.push(query.clone());
            self.depth = 1;
        } else if self.depth > 0 {
            self.depth += 1;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.depth = self.depth.saturating_sub(1);
        ControlFlow::Continue(())
    }
}

/// Replaces queries by others, by their texts.
struct Replace(HashMap<String, Query>);

impl VisitorMut for Replace {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if !query.locks.is_empty()
            && let Some(rows) = self.0.get(&query.to_string())
        {
            *query = rows.clone();
        }
        ControlFlow::Continue(())
    }
}
