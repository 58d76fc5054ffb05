//! The order of the rows of a subquery for aggregates that depend on it, as `SELECT string_agg(name, ',') FROM (SELECT name
//! FROM t ORDER BY name)`.
//!
//! SQL leaves this order open; in PostgreSQL, SQLite and DuckDB, aggregates without an order of their own see the rows in
//! the order of the subquery. DataFusion does not keep it. [`aggregates`] gives it to the aggregates.

use std::sync::Arc;

use crate::base::tree::PlanTree;
use datafusion::common::Column;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::Sort as SortExpr;
use datafusion::logical_expr::{Aggregate, Expr, Filter, LogicalPlan, Projection, Sort, SubqueryAlias};

/// Aggregates whose results depend on the order of the rows.
const ORDERED: [&str; 6] = ["array_agg", "string_agg", "string_agg_by_row", "first_value", "last_value", "nth_value"];
/// The names of sort keys that are not in the select list of their subquery.
const KEY: &str = "__order";

/// Gives aggregates the order of the subqueries whose rows they see.
///
/// # Errors
/// None is expected.
pub(super) fn aggregates(plan: LogicalPlan) -> Result<LogicalPlan> {
    let changed = plan.transform_up_with_subqueries_dyn(&mut |node| {
        let LogicalPlan::Aggregate(mut aggregate) = node else { return Ok(Transformed::no(node)) };
        if !aggregate.aggr_expr.iter().any(is_open) {
            return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
        }
        let Some((input, keys)) = ordered(&aggregate.input)? else {
            return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
        };
        for expr in &mut aggregate.aggr_expr {
            if is_open(expr) {
                let name = expr.schema_name().to_string();
                let mut ordered = expr.clone().unalias();
                if let Some(call) = call(&mut ordered) {
                    call.params.order_by = keys.clone();
                }
                *expr = ordered.alias(name);
            }
        }
        let ordered = Aggregate::try_new(Arc::new(input), aggregate.group_expr, aggregate.aggr_expr)?;
        Ok(Transformed::yes(LogicalPlan::Aggregate(ordered)))
    })?;
    Ok(changed.data)
}

fn call(expr: &mut Expr) -> Option<&mut datafusion::logical_expr::expr::AggregateFunction> {
    match expr {
        Expr::Alias(alias) => call(&mut alias.expr),
        Expr::AggregateFunction(call) => Some(call),
        _ => None,
    }
}

/// True for an aggregate of all values that depends on their order, and has none.
fn is_open(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_open(&alias.expr),
        Expr::AggregateFunction(call) => {
            ORDERED.contains(&call.func.name()) && call.params.order_by.is_empty() && !call.params.distinct
        }
        _ => false,
    }
}

/// The rows of a plan with the sort keys of the subquery that orders them; `None` if none does.
fn ordered(plan: &LogicalPlan) -> Result<Option<(LogicalPlan, Vec<SortExpr>)>> {
    Ok(match plan {
        LogicalPlan::Sort(sort) => {
            let is_column = |key: &SortExpr| matches!(key.expr, Expr::Column(_));
            if sort.expr.iter().all(is_column) {
                return Ok(Some((plan.clone(), sort.expr.clone())));
            }
            // The keys are computed once, below the sort.
            let names = sort.input.schema().columns().into_iter().map(Expr::Column);
            let named = |(i, key): (usize, &SortExpr)| key.expr.clone().alias(name_of(i));
            let columns = names.chain(sort.expr.iter().enumerate().map(named)).collect();
            let input = LogicalPlan::Projection(Projection::try_new(columns, sort.input.clone())?);
            let keys = sort
                .expr
                .iter()
                .enumerate()
                .map(|(i, key)| SortExpr { expr: Expr::Column(Column::new_unqualified(name_of(i))), ..key.clone() });
            let keys: Vec<SortExpr> = keys.collect();
            let sorted = Sort { expr: keys.clone(), input: Arc::new(input), fetch: sort.fetch };
            Some((LogicalPlan::Sort(sorted), keys))
        }
        LogicalPlan::Limit(limit) => ordered(&limit.input)?.map(|(input, keys)| {
            let mut limit = limit.clone();
            limit.input = Arc::new(input);
            (LogicalPlan::Limit(limit), keys)
        }),
        LogicalPlan::Filter(filter) => match ordered(&filter.input)? {
            Some((input, keys)) => {
                let filter = Filter::try_new(filter.predicate.clone(), Arc::new(input))?;
                Some((LogicalPlan::Filter(filter), keys))
            }
            None => None,
        },
        LogicalPlan::SubqueryAlias(alias) => match ordered(&alias.input)? {
            Some((input, keys)) => {
                let keys = keys.into_iter().map(|key| match key.expr {
                    Expr::Column(column) => {
                        SortExpr { expr: Expr::Column(Column::new(Some(alias.alias.clone()), column.name)), ..key }
                    }
                    _ => key,
                });
                let keys = keys.collect();
                let input = SubqueryAlias::try_new(Arc::new(input), alias.alias.clone())?;
                Some((LogicalPlan::SubqueryAlias(input), keys))
            }
            None => None,
        },
        LogicalPlan::Projection(projection) => match ordered(&projection.input)? {
            Some((input, keys)) => {
                let mut columns = projection.expr.clone();
                let mut renamed = Vec::new();
                for key in keys {
                    let place = columns.iter().position(|column| match column {
                        Expr::Alias(alias) => *alias.expr == key.expr,
                        column => *column == key.expr,
                    });
                    let expr = match place {
                        Some(i) => column_of(&columns[i]),
                        None => {
                            let name = name_of(columns.len());
                            columns.push(key.expr.clone().alias(&name));
                            Column::new_unqualified(name)
                        }
                    };
                    renamed.push(SortExpr { expr: Expr::Column(expr), ..key });
                }
                let projection = Projection::try_new(columns, Arc::new(input))?;
                Some((LogicalPlan::Projection(projection), renamed))
            }
            None => None,
        },
        _ => None,
    })
}

fn name_of(key: usize) -> String {
    format!("{KEY}_{key}")
}

/// The column of an expression in a select list.
fn column_of(expr: &Expr) -> Column {
    let (qualifier, name) = expr.qualified_name();
    Column::new(qualifier, name)
}
