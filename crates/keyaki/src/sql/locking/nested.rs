//! Queries with locking clauses within other statements: `UPDATE … WHERE id IN (SELECT … FOR UPDATE SKIP LOCKED)`.
//!
//! They are executed before the statement, each different one once. Their rows, as a list of VALUES, take their places in the
//! syntax tree. The statement itself runs afterwards: it sees the rows that were locked, and keeps them locked to its end. If it
//! has to run again, the rows stay the same.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::new_null_array;
use datafusion::sql::sqlparser::ast::{
    Expr, ObjectName, ObjectNamePart, Query, SetExpr, Statement, Visitor, VisitorMut,
};
use futures::future::BoxFuture;

use super::clauses::{is_locking, take};
use super::{Locked, Source, holder, locked};
use crate::base::identifiers::quoted;
use crate::base::interrupt::Execution;
use crate::base::row_locks::LockHolder;
use crate::sql::names::plain_ident;
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
        let Outermost { queries, names, .. } = outermost;
        let mut rows: Vec<Query> = Vec::new();
        for (place, query) in queries.iter().enumerate() {
            rows.push(match queries[..place].iter().position(|before| before == query) {
                Some(before) => rows[before].clone(),
                None => {
                    check_names(query, &names)?;
                    executed(session, execution, holder, query.clone()).await?
                }
            });
        }
        if !rows.is_empty() {
            _ = walk_mut(statement, &mut Replace(rows.into_iter()));
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

/// Checks that a query, which is executed on its own, uses no WITH query of the statement around it: a table may have its name.
///
/// # Errors
/// `Unsupported`.
fn check_names(query: &Query, names: &[String]) -> Result<()> {
    struct Uses<'a>(&'a [String]);
    impl Visitor for Uses<'_> {
        type Break = String;
        fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<String> {
            match relation.0.as_slice() {
                [ObjectNamePart::Identifier(name)] if self.0.contains(&plain_ident(name)) => {
                    ControlFlow::Break(plain_ident(name))
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    match walk(query, &mut Uses(names)) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(name) => Err(Error::Unsupported(format!(
            "the WITH query \"{name}\" in a subquery with FOR UPDATE or FOR SHARE, which is executed on its own"
        ))),
    }
}

/// A query that returns rows that are known. The values become nodes of the syntax tree, and never pass through its text, which
/// does not keep all texts.
fn as_query(Locked { schema, batches }: &Locked) -> Result<Query> {
    let fields = schema.fields();
    let names = fields.iter().map(|field| quoted(field.name()).to_string()).collect::<Vec<_>>().join(", ");
    let nulls = vec!["NULL"; fields.len()].join(", ");
    let is_empty = batches.iter().all(|batch| batch.num_rows() == 0);
    let condition = if is_empty { " WHERE FALSE" } else { "" };
    let template = format!("SELECT * FROM (VALUES ({nulls})) AS {ROWS} ({names}){condition}");
    let mut query = *parse_query(&template)?;
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            rows.push(batch.columns().iter().map(|column| literal(&column.slice(row, 1))).collect::<Result<Vec<_>>>()?);
        }
    }
    if is_empty {
        // For its types.
        let nulls = fields.iter().map(|field| literal(&new_null_array(field.data_type(), 1)));
        rows.push(nulls.collect::<Result<_>>()?);
    }
    let mut put = Put(rows);
    _ = walk_mut(&mut query, &mut put);
    if put.0.is_empty() { Ok(query) } else { Err(Error::Internal("a list of VALUES without a place".into())) }
}

/// Puts rows into the list of VALUES.
struct Put(Vec<Vec<Expr>>);

impl VisitorMut for Put {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let SetExpr::Values(values) = query.body.as_mut()
            && let Some(row) = values.rows.pop()
        {
            values.rows = std::mem::take(&mut self.0)
                .into_iter()
                .map(|content| {
                    let mut row = row.clone();
                    row.content = content;
                    row
                })
                .collect();
        }
        ControlFlow::Continue(())
    }
}

/// The queries with locking clauses that are not within others.
#[derive(Default)]
struct Outermost {
    queries: Vec<Query>,
    /// The names of the WITH queries around them, and of others.
    names: Vec<String>,
    /// Number of open queries, from one with locking clauses on.
    depth: usize,
}

impl Visitor for Outermost {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if self.depth == 0
            && query.locks.is_empty()
            && let Some(with) = &query.with
        {
            self.names.extend(with.cte_tables.iter().map(|table| plain_ident(&table.alias.name)));
        }
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

/// Replaces the queries of [`Outermost`] by others, in the same order.
struct Replace(std::vec::IntoIter<Query>);

impl VisitorMut for Replace {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if !query.locks.is_empty()
            && let Some(rows) = self.0.next()
        {
            *query = rows;
        }
        ControlFlow::Continue(())
    }
}
