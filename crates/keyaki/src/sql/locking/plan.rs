//! The keys of the rows that a query locks, as columns behind those of its result.
//!
//! The plan of a query with locking clauses is a stack of projections, filters, joins, sorts and limits over its tables. Each
//! projection passes the key columns of the locked tables on, under names of their own. A query with SKIP LOCKED reads more
//! rows than its limit if other transactions have locked rows.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Column, ScalarValue};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    Expr, FetchType, Filter, Join, Limit, LogicalPlan, Projection, SkipType, Sort, SubqueryAlias, TableScan,
    TableScanBuilder,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use super::clauses::{Clauses, Request};
use crate::catalog::{HIDDEN_ROWID, Privileges, Table};
use crate::sql::access;
use crate::sql::state::StatementState;
use crate::table::KeyakiTable;
use crate::{Error, Result};

/// Prefix of the names of the added columns.
const KEY_PREFIX: &str = "__locked_";

/// A table whose rows a query locks.
#[derive(Debug)]
pub(super) struct LockedTable {
    pub table: Arc<Table>,
    pub request: Request,
    /// The places of its key among the columns of the plan: of the primary key, or of the hidden rowid.
    pub key: Vec<usize>,
}

/// The plan of a query with locking clauses.
#[derive(Debug)]
pub(super) struct LockingPlan {
    pub plan: LogicalPlan,
    /// Number of columns of the result. The keys follow.
    pub columns: usize,
    pub tables: Vec<LockedTable>,
}

/// The plan of a query, with the keys of the tables that `clauses` names.
///
/// # Errors
/// `Unsupported` if rows of the result are not rows of the tables; `InsufficientPrivilege`.
pub(super) fn with_keys(state: &StatementState, plan: LogicalPlan, clauses: &Clauses) -> Result<LockingPlan> {
    let columns = plan.schema().fields().len();
    let mut keys = Keys { state, clauses, tables: Vec::new(), names: 0 };
    let Exposed { plan, keys: exposed } = keys.expose(plan, None)?;
    let mut tables = Vec::new();
    for ((table, request), columns) in keys.tables.into_iter().zip(exposed) {
        let key = columns.iter().map(|column| plan.schema().index_of_column(column));
        tables.push(LockedTable { table, request, key: key.collect::<datafusion::error::Result<_>>()? });
    }
    if plan.schema().fields().len() < columns || tables.iter().flat_map(|table| &table.key).any(|key| *key < columns) {
        return Err(Error::Internal("the keys of locked rows are among the columns of the result".into()));
    }
    Ok(LockingPlan { plan, columns, tables })
}

/// A plan, and the columns of the key of each locked table in it.
struct Exposed {
    plan: LogicalPlan,
    keys: Vec<Vec<Column>>,
}

struct Keys<'a> {
    state: &'a StatementState,
    clauses: &'a Clauses,
    /// The tables found, in the order of the plan.
    tables: Vec<(Arc<Table>, Request)>,
    /// Number of names given.
    names: usize,
}

impl Keys<'_> {
    /// Passes the keys of tables on. `all` is the request for all tables in the plan, within a subquery or view.
    fn expose(&mut self, plan: LogicalPlan, all: Option<Request>) -> Result<Exposed> {
        let unchanged = |plan| Ok(Exposed { plan, keys: Vec::new() });
        match plan {
            LogicalPlan::TableScan(scan) => match all.or_else(|| self.clauses.of(scan.table_name.table())) {
                Some(request) => self.scan(scan, request),
                None => unchanged(LogicalPlan::TableScan(scan)),
            },
            LogicalPlan::SubqueryAlias(alias) => match all.or_else(|| self.clauses.of(alias.alias.table())) {
                Some(request) => {
                    let Exposed { plan, mut keys } = self.expose(Arc::unwrap_or_clone(alias.input), Some(request))?;
                    for column in keys.iter_mut().flatten() {
                        column.relation = Some(alias.alias.clone());
                    }
                    let plan = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(plan), alias.alias)?);
                    Ok(Exposed { plan, keys })
                }
                None => unchanged(LogicalPlan::SubqueryAlias(alias)),
            },
            LogicalPlan::Projection(projection) => {
                let Exposed { plan, keys } = self.expose(Arc::unwrap_or_clone(projection.input), all)?;
                let mut exprs = projection.expr;
                let mut pass_on = |column: Column| {
                    self.names += 1;
                    let name = format!("{KEY_PREFIX}{}", self.names);
                    exprs.push(Expr::Column(column).alias(&name));
                    Column::new_unqualified(name)
                };
                let keys: Vec<Vec<Column>> =
                    keys.into_iter().map(|columns| columns.into_iter().map(&mut pass_on).collect()).collect();
                Ok(Exposed { plan: LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(plan))?), keys })
            }
            LogicalPlan::Join(join) => {
                let left = self.expose(Arc::unwrap_or_clone(join.left), all)?;
                let right = self.expose(Arc::unwrap_or_clone(join.right), all)?;
                let keys = left.keys.into_iter().chain(right.keys).collect();
                let join = Join { left: Arc::new(left.plan), right: Arc::new(right.plan), ..join };
                Ok(Exposed { plan: LogicalPlan::Join(join).recompute_schema()?, keys })
            }
            LogicalPlan::Filter(filter) => {
                let Exposed { plan, keys } = self.expose(Arc::unwrap_or_clone(filter.input), all)?;
                Ok(Exposed { plan: LogicalPlan::Filter(Filter::try_new(filter.predicate, Arc::new(plan))?), keys })
            }
            LogicalPlan::Sort(sort) => {
                let Exposed { plan, keys } = self.expose(Arc::unwrap_or_clone(sort.input), all)?;
                Ok(Exposed { plan: LogicalPlan::Sort(Sort { input: Arc::new(plan), ..sort }), keys })
            }
            LogicalPlan::Limit(limit) => {
                let Exposed { plan, keys } = self.expose(Arc::unwrap_or_clone(limit.input), all)?;
                Ok(Exposed { plan: LogicalPlan::Limit(Limit { input: Arc::new(plan), ..limit }), keys })
            }
            LogicalPlan::Aggregate(_) => refused("aggregate functions"),
            LogicalPlan::Window(_) => refused("window functions"),
            LogicalPlan::Unnest(_) => refused("set-returning functions in the select list"),
            LogicalPlan::Distinct(_) => refused("DISTINCT"),
            LogicalPlan::Union(_) => refused("UNION"),
            // Rows of no table.
            plan => unchanged(plan),
        }
    }

    fn scan(&mut self, scan: TableScan, request: Request) -> Result<Exposed> {
        let provider = source_as_provider(&scan.source)?;
        let known = provider.downcast_ref::<KeyakiTable>().filter(|table| !table.context.is_attached);
        let Some(known) = known else {
            return refused(&format!("\"{}\", which is no table of the database", scan.table_name.table()));
        };
        let table = known.table.clone();
        access::relation(&self.state.authority, &self.state.catalog, &table.def.name, Privileges::UPDATE)?;
        let column = |name: &str| Column::new(Some(scan.table_name.clone()), name);
        let key = match table.def.hidden_rowid {
            true => vec![column(HIDDEN_ROWID)],
            false => table.def.primary_key.iter().map(|key| column(&table.def.columns[*key].name)).collect(),
        };
        let plan = match table.def.hidden_rowid {
            true => {
                let source = provider_as_source(Arc::new(self.state.provider(&table).with_rowid()));
                let TableScan { table_name, projection, filters, fetch, .. } = scan;
                let scan = TableScanBuilder::new(table_name, source).with_projection(projection);
                scan.with_filters(filters).with_fetch(fetch).build()?
            }
            false => scan,
        };
        self.tables.push((table, request));
        Ok(Exposed { plan: LogicalPlan::TableScan(plan), keys: vec![key] })
    }
}

fn refused<T>(what: &str) -> Result<T> {
    Err(Error::Unsupported(format!("FOR UPDATE and FOR SHARE with {what}")))
}

/// The numbers of rows that a plan skips and returns, by the limit at its top.
///
/// # Errors
/// `Unsupported` for a limit that is not a constant.
pub(super) fn limit_of(plan: &LogicalPlan) -> Result<Option<(usize, Option<usize>)>> {
    match plan {
        LogicalPlan::Projection(projection) => limit_of(&projection.input),
        LogicalPlan::Limit(limit) => {
            let constant = |expr: &Option<Box<Expr>>| match expr {
                None => Ok(None),
                Some(expr) => {
                    let value = ExprSimplifier::new(SimplifyContext::default()).simplify((**expr).clone())?;
                    let value = match value {
                        Expr::Literal(value, metadata) if value.data_type().is_integer() => {
                            Expr::Literal(value.cast_to(&DataType::Int64)?, metadata)
                        }
                        other => other,
                    };
                    Ok::<_, Error>(Some(Box::new(value)))
                }
            };
            let limit =
                Limit { skip: constant(&limit.skip)?, fetch: constant(&limit.fetch)?, input: limit.input.clone() };
            match (limit.get_skip_type()?, limit.get_fetch_type()?) {
                (SkipType::Literal(skip), FetchType::Literal(fetch)) => Ok(Some((skip, fetch))),
                _ => refused("SKIP LOCKED and a limit that is not a constant"),
            }
        }
        _ => Ok(None),
    }
}

/// A plan whose limit returns other rows: the first `rows` ones, or all.
///
/// # Errors
/// Errors of DataFusion.
pub(super) fn with_limit(plan: LogicalPlan, rows: Option<usize>) -> Result<LogicalPlan> {
    Ok(match plan {
        LogicalPlan::Projection(projection) => {
            let input = with_limit(Arc::unwrap_or_clone(projection.input), rows)?;
            LogicalPlan::Projection(Projection::try_new(projection.expr, Arc::new(input))?)
        }
        LogicalPlan::Limit(limit) => match rows.map(i64::try_from) {
            Some(Ok(rows)) => {
                let fetch = Some(Box::new(Expr::Literal(ScalarValue::Int64(Some(rows)), None)));
                LogicalPlan::Limit(Limit { skip: None, fetch, input: limit.input })
            }
            _ => Arc::unwrap_or_clone(limit.input),
        },
        plan => plan,
    })
}
