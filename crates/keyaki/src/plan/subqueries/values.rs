//! Subquery expressions as columns of joins.
//!
//! EXISTS is the mark of a mark join. `x IN (S)` is true if S has a row with `x = value`; otherwise NULL if S has a row
//! and x is NULL, or if S has a NULL; otherwise false. ANY and ALL are analogous. Each of the three conditions is an EXISTS.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, NullEquality, ScalarValue};
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{AggregateFunction, Case, Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Distinct, Expr, ExprSchemable, FetchType, Filter, Join, JoinConstraint, LogicalPlan,
    LogicalPlanBuilder, Operator, Projection, SkipType, Subquery, SubqueryAlias, lit,
};

use super::domain::Domain;
use super::forms::{is_simple_scalar, is_simple_set};
use super::nullable::unmarked;
use super::references::{mentions, outer_columns, subquery_from, to_outer, used_columns};
use super::single::single_value;
use super::{Rewriter, is_subquery_in, unsupported};
use crate::base::tree::{PlanTree, Tree};
use crate::plan::facts::plan_rows;
use crate::plan::materialize::Materialize;

/// Rows of the tables of a subquery for each row of the outer query, from which on the subquery is computed for the values of
/// the outer query only.
const FEW: f64 = 10.0;

/// The position of an expression in its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// A filter consists of it and other conditions, all of which must be true.
    Conjunct,
    /// Below AND and OR of a filter: NULL means the same as false.
    Condition,
    /// Elsewhere in a filter.
    Filtered,
    /// In a projection.
    Projected,
    /// In another node, whose subqueries DataFusion does not turn into joins.
    Value,
}

impl Position {
    fn in_filter(self) -> bool {
        matches!(self, Position::Conjunct | Position::Condition | Position::Filtered)
    }

    /// The position of an operand.
    fn operand(self) -> Position {
        if self.in_filter() { Position::Filtered } else { self }
    }
}

/// The input of a node, which subqueries are joined with.
pub(super) struct Input {
    /// The input before, which supplies the values of outer columns.
    original: Materialize,
    /// True if the rows of `original` are read again.
    is_scanned: bool,
    pub plan: LogicalPlan,
}

impl Input {
    /// The input of a node with the expressions `expressions`.
    pub fn new(plan: &LogicalPlan, expressions: &[Expr], rewriter: &mut Rewriter) -> Result<Input> {
        let mut columns = BTreeSet::new();
        for expr in expressions.iter().filter(|expr| is_subquery_in(expr)) {
            columns.extend(used_columns(expr)?);
        }
        Ok(Input::with_columns(plan, columns, rewriter))
    }

    /// The input of a node whose subqueries use `columns`.
    pub fn with_columns(plan: &LogicalPlan, mut columns: BTreeSet<Column>, rewriter: &mut Rewriter) -> Input {
        columns.retain(|column| plan.schema().has_column(column));
        let (name, columns) = (rewriter.name("rows"), columns.into_iter().collect());
        let original = Materialize { name, columns, input: plan.clone() };
        Input { plan: original.clone().into_plan(), is_scanned: false, original }
    }

    /// A scan of the values of outer columns, which may be values of other subqueries.
    pub fn scan(&mut self, columns: &[Column], rewriter: &mut Rewriter) -> Result<LogicalPlan> {
        if columns.iter().all(|column| self.original.columns.contains(column)) {
            self.is_scanned = true;
            return self.original.scan(columns);
        }
        let name = rewriter.name("rows");
        let joined = Materialize { name, columns: columns.to_vec(), input: self.plan.clone() };
        self.plan = joined.clone().into_plan();
        joined.scan(columns)
    }

    /// The input with the columns of its subqueries.
    pub fn finish(self) -> Result<LogicalPlan> {
        if self.is_scanned {
            return Ok(self.plan);
        }
        let unused = self.plan.transform_down_dyn(&mut |node| match Materialize::of(&node) {
            Some(found) if found.name == self.original.name => {
                Ok(Transformed::new(found.input.clone(), true, TreeNodeRecursion::Stop))
            }
            _ => Ok(Transformed::no(node)),
        });
        Ok(unused?.data)
    }
}

/// A subquery whose rows are compared with an expression of the outer query.
struct Compared {
    plan: LogicalPlan,
    /// The expression, as one of the outer query.
    outer: Expr,
    /// The only column of the subquery.
    value: Expr,
    /// The subquery has columns with the names of the outer ones: DataFusion would confuse them.
    captures: bool,
}

impl Compared {
    fn with(&self, condition: Expr) -> Result<LogicalPlan> {
        Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(self.plan.clone()))?))
    }
}

impl Rewriter {
    /// Rewrites the subqueries of an expression over `input`, to which it adds the columns needed.
    pub(super) fn value(&mut self, expr: Expr, input: &mut Input, position: Position) -> Result<Expr> {
        if !is_subquery_in(&expr) {
            return Ok(expr);
        }
        match unmarked(expr) {
            Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
                let position = if position == Position::Conjunct { Position::Condition } else { position };
                let left = self.value(*left, input, position)?;
                let right = self.value(*right, input, position)?;
                Ok(Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) }))
            }
            Expr::Not(inner) => match *inner {
                Expr::Exists(Exists { subquery, negated }) => {
                    self.value(Expr::Exists(Exists { subquery, negated: !negated }), input, position)
                }
                Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                    self.value(Expr::InSubquery(InSubquery { expr, subquery, negated: !negated }), input, position)
                }
                other => Ok(Expr::Not(Box::new(self.value(other, input, position.operand())?))),
            },
            Expr::Exists(Exists { subquery, negated }) => {
                self.exists(subquery.subquery.as_ref().clone(), negated, false, input, position)
            }
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                let expr = self.value(*expr, input, position.operand())?;
                self.is_in(expr, subquery.subquery.as_ref().clone(), negated, input, position)
            }
            Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
                let expr = self.value(*expr, input, position.operand())?;
                let set = self.compared(&expr, subquery.subquery.as_ref().clone(), input)?;
                self.three_valued(expr, op, set, quantifier, input, position.operand())
            }
            Expr::ScalarSubquery(subquery) => {
                let plan = subquery.subquery.as_ref();
                let joined = (position.in_filter() || position == Position::Projected)
                    && is_simple_scalar(plan)?
                    && !is_for_few(input, plan)?;
                match outer_columns(plan)?.is_empty() {
                    // DataFusion may find out only later that the column is not nullable.
                    true if !has_a_row(plan) => Ok(Expr::ScalarSubquery(only_row(subquery)?)),
                    true => Ok(Expr::ScalarSubquery(subquery)),
                    false if joined => Ok(Expr::ScalarSubquery(subquery)),
                    false => self.scalar(plan, input),
                }
            }
            other => {
                let position = position.operand();
                Ok(other.map_children(|child| self.value(child, input, position).map(Transformed::yes))?.data)
            }
        }
    }

    fn exists(
        &mut self,
        plan: LogicalPlan,
        negated: bool,
        captures: bool,
        input: &mut Input,
        position: Position,
    ) -> Result<Expr> {
        let plan = rows_of(plan)?;
        let correlated = !outer_columns(&plan)?.is_empty();
        if !correlated && position != Position::Conjunct {
            let none: Vec<Expr> = Vec::new();
            let rows = LogicalPlanBuilder::from(plan).limit(0, Some(1))?.aggregate(none, vec![count(lit(1_i64))])?;
            let rows = Expr::ScalarSubquery(subquery_from(rows.build()?));
            return Ok(if negated { rows.eq(lit(0_i64)) } else { rows.gt(lit(0_i64)) });
        }
        if position.in_filter() && !captures && is_simple_set(&plan)? {
            return Ok(Expr::Exists(Exists { subquery: subquery_from(plan), negated }));
        }
        let mark = self.mark(&plan, input)?;
        Ok(if negated { !mark } else { mark })
    }

    fn is_in(
        &mut self,
        expr: Expr,
        plan: LogicalPlan,
        negated: bool,
        input: &mut Input,
        position: Position,
    ) -> Result<Expr> {
        let condition = matches!(position, Position::Conjunct | Position::Condition);
        let plan = set_of(plan);
        let correlated = !outer_columns(&plan)?.is_empty();
        let joined = match negated {
            false => position == Position::Conjunct && !correlated,
            // A constant is not the key of an anti join.
            true => position == Position::Conjunct && !correlated && expr.any_column_refs(),
        };
        if joined {
            let expr = if negated { self.key(expr, input)? } else { expr };
            let subquery = subquery_from(plan);
            return Ok(Expr::InSubquery(InSubquery { expr: Box::new(expr), subquery, negated }));
        }
        let set = self.compared(&expr, plan, input)?;
        let equal = set.outer.clone().eq(set.value.clone());
        if condition && !negated {
            let plan = set.with(equal)?;
            return self.exists(plan, false, set.captures, input, position);
        }
        if position == Position::Conjunct {
            let mut not_false = equal;
            if is_nullable(&expr, &input.plan)? {
                not_false = not_false.or(set.outer.clone().is_null());
            }
            if is_nullable(&set.value, &set.plan)? {
                not_false = not_false.or(set.value.clone().is_null());
            }
            let plan = set.with(not_false)?;
            return self.exists(plan, true, set.captures, input, position);
        }
        let value = self.three_valued(expr, Operator::Eq, set, SetQuantifier::Any, input, position.operand())?;
        Ok(if negated { !value } else { value })
    }

    /// The operand of NOT IN as a column of `input`: DataFusion takes expressions over columns without NULL for such.
    fn key(&mut self, expr: Expr, input: &mut Input) -> Result<Expr> {
        if matches!(expr, Expr::Column(_)) {
            return Ok(expr);
        }
        let name = self.name("key");
        let mut columns: Vec<Expr> = input.plan.schema().columns().into_iter().map(Expr::Column).collect();
        columns.push(expr.alias(&name));
        let projected = Projection::try_new(columns, Arc::new(input.plan.clone()))?;
        input.plan = LogicalPlan::Projection(projected);
        Ok(Expr::Column(Column::new_unqualified(name)))
    }

    /// Gives the column of a subquery a name of its own.
    fn compared(&mut self, expr: &Expr, plan: LogicalPlan, input: &Input) -> Result<Compared> {
        let plan = set_of(plan);
        let mut captures = false;
        for column in expr.column_refs() {
            captures |= mentions(&plan, column)?;
        }
        let name = self.name("set");
        let (column, rows) = match plan {
            LogicalPlan::Projection(Projection { expr, input, .. }) => (expr.into_iter().next(), input),
            other => (Some(Expr::Column(other.schema().qualified_field(0).into())), Arc::new(other)),
        };
        let column = column.ok_or_else(|| unsupported("a subquery without columns"))?.unalias();
        let column = column.alias_qualified(Some(name.as_str()), "value");
        let plan = LogicalPlan::Projection(Projection::try_new(vec![column], rows)?);
        let outer = to_outer(expr.clone(), input.plan.schema())?;
        let value = Expr::Column(Column::new(Some(name.as_str()), "value"));
        Ok(Compared { plan, outer, value, captures })
    }

    /// `expr op ANY (subquery)` or `expr op ALL (subquery)`, with NULL as a third truth value.
    fn three_valued(
        &mut self,
        expr: Expr,
        op: Operator,
        set: Compared,
        quantifier: SetQuantifier,
        input: &mut Input,
        position: Position,
    ) -> Result<Expr> {
        let any = quantifier == SetQuantifier::Any;
        let comparison =
            Expr::BinaryExpr(BinaryExpr { left: Box::new(set.outer.clone()), op, right: Box::new(set.value.clone()) });
        let decisive = set.with(if any { comparison } else { !comparison })?;
        let mut when_then_expr = vec![(self.exists(decisive, false, set.captures, input, position)?, lit(any))];
        let null = || lit(ScalarValue::Boolean(None));
        if is_nullable(&expr, &input.plan)? {
            let rows = self.exists(set.plan.clone(), false, set.captures, input, position)?;
            when_then_expr.push((expr.is_null().and(rows), null()));
        }
        if is_nullable(&set.value, &set.plan)? {
            let plan = set.with(set.value.clone().is_null())?;
            when_then_expr.push((self.exists(plan, false, set.captures, input, position)?, null()));
        }
        let when_then_expr = when_then_expr.into_iter().map(|(when, then)| (Box::new(when), Box::new(then))).collect();
        Ok(Expr::Case(Case { expr: None, when_then_expr, else_expr: Some(Box::new(lit(!any))) }))
    }

    /// Adds a mark join to `input`: the mark is true if the subquery has a row for the outer one.
    fn mark(&mut self, plan: &LogicalPlan, input: &mut Input) -> Result<Expr> {
        let columns = outer_columns(plan)?;
        let domain = self.domain(input, columns)?;
        let rows = self.for_all(plan, &domain)?;
        let rows = LogicalPlan::Projection(Projection::try_new(domain.expressions(), Arc::new(rows))?);
        let rows = LogicalPlan::Distinct(Distinct::All(Arc::new(rows)));
        let name = self.join_rows(rows, &domain, JoinType::LeftMark, input)?;
        Ok(Expr::Column(Column::new(Some(name), "mark")))
    }

    /// Adds the value of a scalar subquery to `input`.
    fn scalar(&mut self, plan: &LogicalPlan, input: &mut Input) -> Result<Expr> {
        let columns = outer_columns(plan)?;
        let domain = self.domain(input, columns)?;
        let rows = self.for_all(plan, &domain)?;
        let value = Expr::Column(plan.schema().qualified_field(0).into());
        let rows = match has_one_row(plan)? {
            true => {
                let mut columns = domain.expressions();
                columns.push(value.alias("value"));
                LogicalPlan::Projection(Projection::try_new(columns, Arc::new(rows))?)
            }
            false => {
                let value = only(value).alias("value");
                LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(rows), domain.expressions(), vec![value])?)
            }
        };
        let name = self.join_rows(rows, &domain, JoinType::Left, input)?;
        Ok(Expr::Column(Column::new(Some(name), "value")))
    }

    /// Joins `input` with the rows that belong to the values of its outer columns. Returns the alias of the rows.
    fn join_rows(
        &mut self,
        rows: LogicalPlan,
        domain: &Domain,
        join_type: JoinType,
        input: &mut Input,
    ) -> Result<String> {
        let name = self.name("subquery");
        let rows = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(rows), name.clone())?);
        let on = domain.columns.iter().map(|(outer, new)| {
            (Expr::Column(outer.clone()), Expr::Column(Column::new(Some(name.as_str()), new.name.clone())))
        });
        let (on, nulls) = (on.collect(), NullEquality::NullEqualsNull);
        let left = Arc::new(input.plan.clone());
        let join = Join::try_new(left, Arc::new(rows), on, None, join_type, JoinConstraint::On, nulls, false)?;
        input.plan = LogicalPlan::Join(join);
        Ok(name)
    }
}

/// True if the outer query has far fewer rows than the tables of a scalar subquery. DataFusion would compute the values of
/// the subquery for all rows of its tables.
fn is_for_few(input: &Input, plan: &LogicalPlan) -> Result<bool> {
    let mut largest: f64 = 0.0;
    plan.apply_dyn(&mut |node| {
        if matches!(node, LogicalPlan::TableScan(_)) {
            largest = largest.max(plan_rows(node));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(plan_rows(&input.original.input) * FEW < largest)
}

/// Removes DISTINCT and ORDER BY, which do not change the set of rows.
fn set_of(plan: LogicalPlan) -> LogicalPlan {
    match plan {
        LogicalPlan::Distinct(Distinct::All(input)) => set_of(input.as_ref().clone()),
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => set_of(sort.input.as_ref().clone()),
        other => other,
    }
}

/// Removes everything that does not decide whether a subquery has a row.
fn rows_of(plan: LogicalPlan) -> Result<LogicalPlan> {
    match set_of(plan) {
        LogicalPlan::Projection(projection) => rows_of(projection.input.as_ref().clone()),
        LogicalPlan::Limit(limit)
            if matches!(limit.get_skip_type()?, SkipType::Literal(0))
                && matches!(limit.get_fetch_type()?, FetchType::Literal(fetch) if fetch != Some(0)) =>
        {
            rows_of(limit.input.as_ref().clone())
        }
        other => Ok(other),
    }
}

/// True if an expression over a plan may be NULL. The schema does not know that a scalar subquery may have no row.
fn is_nullable(expr: &Expr, plan: &LogicalPlan) -> Result<bool> {
    let mut scalar = expr.nullable(plan.schema())?;
    plan.apply_with_subqueries_dyn(&mut |node| {
        node.apply_expressions_dyn(&mut |expr| {
            scalar |= expr.exists_dyn(&mut |expr| Ok(matches!(expr, Expr::ScalarSubquery(_))))?;
            Ok(if scalar { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    })?;
    Ok(scalar)
}

/// A subquery without correlation that has exactly one row, which is NULL if it had none.
pub(super) fn only_row(subquery: Subquery) -> Result<Subquery> {
    let plan = &subquery.subquery;
    let value = only(Expr::Column(plan.schema().qualified_field(0).into())).alias(plan.schema().field(0).name());
    Ok(subquery_from(LogicalPlan::Aggregate(Aggregate::try_new(plan.clone(), Vec::new(), vec![value])?)))
}

/// The only value of a group.
fn only(value: Expr) -> Expr {
    let function = Arc::new(single_value());
    Expr::AggregateFunction(AggregateFunction::new_udf(function, vec![value], false, None, vec![], None))
}

/// True if a subquery always has a row.
pub(super) fn has_a_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(empty) => empty.produce_one_row,
        LogicalPlan::Projection(projection) => has_a_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => has_a_row(&alias.input),
        _ => false,
    }
}

/// True if a subquery has at most one row for each row of the outer query.
fn has_one_row(plan: &LogicalPlan) -> Result<bool> {
    match plan {
        LogicalPlan::Aggregate(aggregate) => Ok(aggregate.group_expr.is_empty()),
        LogicalPlan::Limit(limit) if matches!(limit.get_fetch_type()?, FetchType::Literal(Some(0 | 1))) => Ok(true),
        LogicalPlan::EmptyRelation(_) => Ok(true),
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_) => plan.inputs().first().map_or(Ok(false), |input| has_one_row(input)),
        _ => Ok(false),
    }
}
