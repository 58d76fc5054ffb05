//! A correlated subquery for all values of the outer columns at once.
//!
//! The *domain* of a subquery is the set of the different values that the outer query has in the columns referred to.
//! [`Rewriter::for_all`] moves a join with the domain down to the leaves of the subquery: each row then carries the outer
//! values for which the subquery returns it, references to outer columns become references to columns of the domain, and
//! aggregates, limits and window functions work within one value of the domain (Neumann and Kemper, Unnesting Arbitrary
//! Queries, BTW 2015).
//!
//! The rows of the outer query are computed once and [kept](crate::plan::materialize) for the domain. The joins with the
//! domain become index pipelines where that is cheaper: the subquery then runs for many outer values at the same time, out
//! of order.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, merge_schema};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Distinct, DistinctOn, Expr, ExprFunctionExt, ExprSchemable, FetchType, Filter, Join,
    JoinConstraint, Limit, LogicalPlan, LogicalPlanBuilder, Operator, Projection, SkipType, Sort, SortExpr, Union,
    Window, lit,
};

use super::lateral::is_lateral;
use super::limits::check_order;
use super::references::bind;
use super::values::Input;
use super::{Rewriter, unsupported};
use crate::base::tree::Tree;

/// The values of the outer columns.
#[derive(Debug)]
pub(super) struct Domain {
    plan: LogicalPlan,
    /// The outer columns and the columns of `plan` with their values.
    pub columns: Vec<(Column, Column)>,
}

impl Domain {
    /// The columns as expressions.
    pub fn expressions(&self) -> Vec<Expr> {
        self.columns.iter().map(|(_, new)| Expr::Column(new.clone())).collect()
    }

    /// The types of the columns.
    pub fn types(&self) -> Result<Vec<DataType>> {
        let field = |new: &Column| Ok(self.plan.schema().field_from_column(new)?.data_type().clone());
        self.columns.iter().map(|(_, new)| field(new)).collect()
    }

    /// Replaces outer columns in an expression over `scope`.
    pub fn bind(&self, expr: Expr, scope: &DFSchema) -> Result<Expr> {
        let new = |column: &Column| self.columns.iter().find(|(outer, _)| outer == column).map(|(_, new)| new.clone());
        bind(expr, scope, &new)
    }

    /// As [`bind`](Domain::bind), for expressions that are columns of the result.
    fn bind_all(&self, expressions: &[Expr], scope: &DFSchema) -> Result<Vec<Expr>> {
        let names = NamePreserver::new_for_projection();
        let bound = expressions.iter().map(|expr| Ok(names.save(expr).restore(self.bind(expr.clone(), scope)?)));
        bound.collect()
    }

    fn bind_keys(&self, keys: &[SortExpr], scope: &DFSchema) -> Result<Vec<SortExpr>> {
        keys.iter().map(|key| Ok(SortExpr { expr: self.bind(key.expr.clone(), scope)?, ..key.clone() })).collect()
    }

    /// For each column: it equals the column of `other`, NULL included.
    fn equals(&self, other: &Domain) -> Vec<(Expr, Expr)> {
        self.expressions().into_iter().zip(other.expressions()).collect()
    }
}

impl Rewriter {
    /// The domain of a subquery with the outer columns `columns` of `input`.
    pub(super) fn domain(&mut self, input: &mut Input, columns: BTreeSet<Column>) -> Result<Domain> {
        if let Some(column) = columns.iter().find(|column| !input.plan.schema().has_column(column)) {
            return Err(unsupported(format!("a subquery that uses column {column}, which is not in the select list")));
        }
        let outer: Vec<Column> = columns.iter().cloned().collect();
        let rows = input.scan(&outer, self)?;
        let named = columns.into_iter().map(|outer| (outer, Column::new_unqualified(self.name("outer"))));
        let columns: Vec<(Column, Column)> = named.collect();
        let values = columns.iter().map(|(outer, new)| Expr::Column(outer.clone()).alias(&new.name)).collect();
        let values = LogicalPlan::Projection(Projection::try_new(values, Arc::new(rows))?);
        Ok(Domain { plan: LogicalPlan::Distinct(Distinct::All(Arc::new(values))), columns })
    }

    /// The same domain with other names.
    fn renamed(&mut self, domain: &Domain) -> Result<Domain> {
        let named =
            domain.columns.iter().map(|(outer, _)| (outer.clone(), Column::new_unqualified(self.name("outer"))));
        let columns: Vec<(Column, Column)> = named.collect();
        let values = domain.expressions().into_iter().zip(&columns).map(|(old, (_, new))| old.alias(&new.name));
        let plan = Projection::try_new(values.collect(), Arc::new(domain.plan.clone()))?;
        Ok(Domain { plan: LogicalPlan::Projection(plan), columns })
    }

    /// The rows of a subquery for each value of the domain: its columns and those of the domain.
    pub(super) fn for_all(&mut self, plan: &LogicalPlan, domain: &Domain) -> Result<LogicalPlan> {
        if !self.depends(plan)? {
            return LogicalPlanBuilder::from(domain.plan.clone()).cross_join(plan.clone())?.build();
        }
        let scope = merge_schema(&plan.inputs());
        match plan {
            LogicalPlan::Filter(filter) => {
                let input = self.for_all(&filter.input, domain)?;
                let predicate = domain.bind(filter.predicate.clone(), &scope)?;
                Ok(LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input))?))
            }
            LogicalPlan::Projection(projection) => {
                let input = self.for_all(&projection.input, domain)?;
                let mut expressions = domain.expressions();
                expressions.extend(domain.bind_all(&projection.expr, &scope)?);
                Ok(LogicalPlan::Projection(Projection::try_new(expressions, Arc::new(input))?))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let input = self.for_all(&alias.input, domain)?;
                renamed_columns(domain, input, alias.input.schema(), &alias.schema)
            }
            LogicalPlan::Distinct(Distinct::All(input)) => {
                Ok(LogicalPlan::Distinct(Distinct::All(Arc::new(self.for_all(input, domain)?))))
            }
            LogicalPlan::Distinct(Distinct::On(distinct)) => self.distinct_on_for_all(distinct, &scope, domain),
            LogicalPlan::RecursiveQuery(query) => self.recursive_for_all(query, domain),
            LogicalPlan::TableScan(scan) if let Some(rows) = self.work_table_for_all(scan, domain)? => Ok(rows),
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.for_all(&sort.input, domain),
            LogicalPlan::Limit(limit) => self.limit(limit, domain),
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate, &scope, domain),
            LogicalPlan::Window(window) => {
                let input = self.for_all(&window.input, domain)?;
                let within = |expr: Expr| {
                    let within = expr.transform_down_dyn(&mut |expr| match expr {
                        Expr::WindowFunction(mut function) => {
                            function.params.partition_by.extend(domain.expressions());
                            Ok(Transformed::new(Expr::WindowFunction(function), true, TreeNodeRecursion::Jump))
                        }
                        other => Ok(Transformed::no(other)),
                    });
                    within.map(|within| within.data)
                };
                let names = NamePreserver::new_for_projection();
                let expressions = window
                    .window_expr
                    .iter()
                    .map(|expr| Ok(names.save(expr).restore(within(domain.bind(expr.clone(), &scope)?)?)));
                let expressions = expressions.collect::<Result<Vec<_>>>()?;
                Ok(LogicalPlan::Window(Window::try_new(expressions, Arc::new(input))?))
            }
            LogicalPlan::Union(union) => self.union(union, domain),
            // Without a table before it, LATERAL has no effect.
            LogicalPlan::Subquery(subquery) => self.for_all(&subquery.subquery, domain),
            LogicalPlan::Unnest(unnest) => {
                let input = self.for_all(&unnest.input, domain)?;
                let (columns, options) = (unnest.exec_columns.clone(), unnest.options.clone());
                let rows = LogicalPlanBuilder::from(input).unnest_columns_with_options(columns, options)?.build()?;
                let mut columns = domain.expressions();
                columns.extend(unnest.schema.columns().into_iter().map(Expr::Column));
                Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(rows))?))
            }
            LogicalPlan::Join(join) if is_lateral(plan) => self.lateral_for_all(join, domain),
            LogicalPlan::Join(join) => self.join_for_all(join, &scope, domain),
            other => Err(unsupported(format!("a correlated subquery with {}", construct(other)))),
        }
    }

    /// The first rows for each value of the domain, by their numbers.
    fn limit(&mut self, limit: &Limit, domain: &Domain) -> Result<LogicalPlan> {
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (limit.get_skip_type()?, limit.get_fetch_type()?)
        else {
            let computed = self.computed_limit(limit.clone())?;
            return self.for_all(&computed, domain);
        };
        check_order(&limit.input)?;
        let lower = |input: &Arc<LogicalPlan>| Limit { input: input.clone(), ..limit.clone() };
        // The order is that of a sort below projections, which keep rows.
        match limit.input.as_ref() {
            LogicalPlan::Projection(projection) => {
                let input = Arc::new(LogicalPlan::Limit(lower(&projection.input)));
                let below = Projection::try_new_with_schema(projection.expr.clone(), input, projection.schema.clone())?;
                return self.for_all(&LogicalPlan::Projection(below), domain);
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let limited = self.for_all(&LogicalPlan::Limit(lower(&alias.input)), domain)?;
                return renamed_columns(domain, limited, alias.input.schema(), &alias.schema);
            }
            _ => {}
        }
        let (input, keys) = match limit.input.as_ref() {
            LogicalPlan::Sort(sort @ Sort { fetch: None, .. }) => {
                let scope = sort.input.schema();
                (self.for_all(&sort.input, domain)?, domain.bind_keys(&sort.expr, scope)?)
            }
            other => (self.for_all(other, domain)?, Vec::new()),
        };
        let (input, keys, columns) = self.keys_as_columns(input, keys)?;
        let number = self.name("number");
        let numbered = row_number().partition_by(domain.expressions()).order_by(keys).build()?.alias(&number);
        let position = Expr::Column(Column::new_unqualified(&number));
        let mut kept = position.clone().gt(lit(skip as u64));
        if let Some(fetch) = fetch {
            kept = kept.and(position.lt_eq(lit(skip.saturating_add(fetch) as u64)));
        }
        LogicalPlanBuilder::from(input.clone()).window(vec![numbered])?.filter(kept)?.project(columns)?.build()
    }

    /// Sort keys as columns of the input, with its original columns. DataFusion takes `abs(x - y)` for sorted within the values of
    /// y if y is a column of PARTITION BY.
    pub(super) fn keys_as_columns(
        &mut self,
        input: LogicalPlan,
        mut keys: Vec<SortExpr>,
    ) -> Result<(LogicalPlan, Vec<SortExpr>, Vec<Expr>)> {
        let columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
        if keys.iter().all(|key| matches!(key.expr, Expr::Column(_))) {
            return Ok((input, keys, columns));
        }
        let mut computed = columns.clone();
        for key in keys.iter_mut().filter(|key| !matches!(key.expr, Expr::Column(_))) {
            let name = self.name("key");
            let expr = std::mem::replace(&mut key.expr, Expr::Column(Column::new_unqualified(&name)));
            computed.push(expr.alias(name));
        }
        let input = LogicalPlan::Projection(Projection::try_new(computed, Arc::new(input))?);
        Ok((input, keys, columns))
    }

    /// The first row for each value of the domain and of the expressions of DISTINCT ON.
    fn distinct_on_for_all(&mut self, distinct: &DistinctOn, scope: &DFSchema, domain: &Domain) -> Result<LogicalPlan> {
        let input = self.for_all(&distinct.input, domain)?;
        let keys = domain.bind_keys(distinct.sort_expr.as_deref().unwrap_or_default(), scope)?;
        let (input, keys, _) = self.keys_as_columns(input, keys)?;
        let mut groups = domain.expressions();
        for expr in &distinct.on_expr {
            groups.push(domain.bind(expr.clone(), scope)?);
        }
        let number = self.name("number");
        let numbered = row_number().partition_by(groups).order_by(keys).build()?.alias(&number);
        let is_first = Expr::Column(Column::new_unqualified(&number)).eq(lit(1_u64));
        let mut columns = domain.expressions();
        columns.extend(domain.bind_all(&distinct.select_expr, scope)?);
        LogicalPlanBuilder::from(input).window(vec![numbered])?.filter(is_first)?.project(columns)?.build()
    }

    fn aggregate(&mut self, aggregate: &Aggregate, scope: &DFSchema, domain: &Domain) -> Result<LogicalPlan> {
        if aggregate.group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_))) {
            return Err(unsupported("a correlated subquery with GROUPING SETS"));
        }
        let input = Arc::new(self.for_all(&aggregate.input, domain)?);
        let mut group = domain.expressions();
        group.extend(domain.bind_all(&aggregate.group_expr, scope)?);
        let mut aggregates = domain.bind_all(&aggregate.aggr_expr, scope)?;
        if !aggregate.group_expr.is_empty() {
            return Ok(LogicalPlan::Aggregate(Aggregate::try_new(input, group, aggregates)?));
        }
        // An aggregate without GROUP BY has a row for every value of the domain, also without input.
        let rows = self.name("rows");
        let columns = aggregate.schema.columns();
        let mut values = Vec::with_capacity(columns.len());
        for (expr, column) in aggregate.aggr_expr.iter().zip(columns) {
            let Expr::AggregateFunction(function) = expr.clone().unalias() else {
                return Err(unsupported(format!("the aggregate {expr} in a correlated subquery")));
            };
            let empty = function.func.default_value(&expr.get_type(aggregate.input.schema())?)?;
            let value = Expr::Column(column.clone());
            let value = match empty.is_null() {
                true => value,
                false => {
                    let missing = Expr::Column(Column::new_unqualified(&rows)).is_null();
                    let when_then_expr = vec![(Box::new(missing), Box::new(lit(empty)))];
                    Expr::Case(Case { expr: None, when_then_expr, else_expr: Some(Box::new(value)) })
                }
            };
            values.push(value.alias_qualified(column.relation, column.name));
        }
        aggregates.push(count(lit(1_i64)).alias(&rows));
        let groups = LogicalPlan::Aggregate(Aggregate::try_new(input, group, aggregates)?);
        let all = self.renamed(domain)?;
        let (on, nulls) = (all.equals(domain), NullEquality::NullEqualsNull);
        let (left, right) = (Arc::new(all.plan.clone()), Arc::new(groups));
        let joined = Join::try_new(left, right, on, None, JoinType::Left, JoinConstraint::On, nulls, false)?;
        let both = all.columns.iter().zip(&domain.columns);
        let mut expressions: Vec<Expr> =
            both.map(|((_, all), (_, new))| Expr::Column(all.clone()).alias(&new.name)).collect();
        expressions.extend(values);
        Ok(LogicalPlan::Projection(Projection::try_new(expressions, Arc::new(LogicalPlan::Join(joined)))?))
    }

    fn union(&mut self, union: &Union, domain: &Domain) -> Result<LogicalPlan> {
        let mut inputs = Vec::with_capacity(union.inputs.len());
        for input in &union.inputs {
            let rows = self.for_all(input, domain)?;
            let mut columns = domain.expressions();
            let own = input.schema().columns().into_iter().enumerate();
            columns.extend(own.map(|(i, column)| Expr::Column(column).alias(format!("__column_{i}"))));
            inputs.push(Arc::new(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(rows))?)));
        }
        let rows = LogicalPlan::Union(Union::try_new(inputs)?);
        let skipped = domain.columns.len();
        let mut columns = domain.expressions();
        for (position, column) in union.schema.columns().into_iter().enumerate() {
            let own = Expr::Column(rows.schema().qualified_field(skipped + position).into());
            columns.push(own.alias_qualified(column.relation, column.name));
        }
        Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(rows))?))
    }

    fn join_for_all(&mut self, join: &Join, scope: &DFSchema, domain: &Domain) -> Result<LogicalPlan> {
        use JoinType as J;
        let bind_pair =
            |(left, right): &(Expr, Expr)| Ok((domain.bind(left.clone(), scope)?, domain.bind(right.clone(), scope)?));
        let on = join.on.iter().map(bind_pair).collect::<Result<Vec<_>>>()?;
        let filter = join.filter.clone().map(|filter| domain.bind(filter, scope)).transpose()?;
        // The rows of the input that the join preserves have the columns of the domain.
        let other = self.renamed(domain)?;
        let (left, right, shared) = match join.join_type {
            J::Inner | J::Left | J::LeftSemi | J::LeftAnti if !self.depends(&join.right)? => {
                (self.for_all(&join.left, domain)?, join.right.as_ref().clone(), false)
            }
            J::Inner | J::Left | J::LeftSemi | J::LeftAnti => {
                (self.for_all(&join.left, domain)?, self.for_all(&join.right, &other)?, true)
            }
            J::Right => (self.for_all(&join.left, &other)?, self.for_all(&join.right, domain)?, true),
            J::Full => (self.for_all(&join.left, domain)?, self.for_all(&join.right, &other)?, true),
            kind => {
                let kind = kind.to_string().to_uppercase();
                return Err(unsupported(format!("a correlated subquery with a {kind} join")));
            }
        };
        let same = domain.equals(&other).into_iter().filter(|_| shared).map(|(one, other)| {
            Expr::BinaryExpr(BinaryExpr {
                left: Box::new(one),
                op: Operator::IsNotDistinctFrom,
                right: Box::new(other),
            })
        });
        let filter = conjunction(filter.into_iter().chain(same));
        let (left, right, nulls) = (Arc::new(left), Arc::new(right), join.null_equality);
        let joined = Join::try_new(left, right, on, filter, join.join_type, JoinConstraint::On, nulls, false)?;
        let mut columns = domain.expressions();
        if join.join_type == J::Full {
            let both = domain.columns.iter().zip(other.expressions());
            let either =
                both.map(|((_, new), other)| coalesce(vec![Expr::Column(new.clone()), other]).alias(&new.name));
            columns = either.collect();
        }
        columns.extend(join.schema.columns().into_iter().map(Expr::Column));
        Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(LogicalPlan::Join(joined)))?))
    }
}

/// Renames the columns of a subquery; those of the domain stay.
fn renamed_columns(domain: &Domain, input: LogicalPlan, old: &DFSchema, new: &DFSchema) -> Result<LogicalPlan> {
    let mut columns = domain.expressions();
    let both = old.columns().into_iter().zip(new.columns());
    columns.extend(both.map(|(old, new)| Expr::Column(old).alias_qualified(new.relation, new.name)));
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input))?))
}

/// The name of a node in error messages.
fn construct(plan: &LogicalPlan) -> &'static str {
    match plan {
        LogicalPlan::Sort(_) => "ORDER BY and LIMIT",
        _ => "a table function",
    }
}
