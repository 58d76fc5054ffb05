//! Subqueries in expressions become joins.
//!
//! DataFusion 55 turns EXISTS and IN in WHERE, and correlated aggregates with equalities, into joins. It leaves all other
//! forms to the physical planner, which refuses them, and takes NULL for false where IN is an operand of NOT, OR or CASE.
//! This rule runs after the types are resolved and rewrites those forms; the forms that DataFusion handles well stay
//! ([`forms`]).
//!
//! | module | contents |
//! |---|---|
//! | [`forms`] | the forms that DataFusion handles |
//! | [`values`] | EXISTS, IN, ANY, ALL and scalar subqueries as columns of joins, with NULL as a third truth value |
//! | [`nullable`] | the nullability of scalar subqueries |
//! | [`lateral`] | LATERAL subqueries in FROM |
//! | [`outer_joins`] | conditions of outer joins |
//! | [`limits`] | LIMIT and OFFSET |
//! | [`references`] | references to outer queries: finding and replacing them |
//! | [`types`] | the types of such references |
//! | [`domain`] | a correlated subquery for all values of the outer columns at once |
//! | [`recursive`] | such a subquery with WITH RECURSIVE |
//! | [`single`] | the aggregate function that fails for more than one row |
//!
//! *Invariant.* The rewritten plan has the columns of the original one.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchemaRef, JoinType};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Distinct, DistinctOn, Expr, Filter, Join, LogicalPlan, Projection, Sort, SortExpr, Window,
};
use datafusion::optimizer::AnalyzerRule;

mod domain;
mod forms;
mod lateral;
mod limits;
mod nullable;
mod outer_joins;
mod recursive;
mod references;
mod single;
mod types;
mod values;

use crate::base::tree::{PlanTree, Tree};
use lateral::{before_lateral, is_lateral};
use nullable::with_nullable_values;
pub(super) use references::outer_columns;
pub(super) use types::OuterTypes;
use values::{Input, Position};

/// The rule.
#[derive(Debug)]
pub(super) struct SubqueriesToJoins;

impl AnalyzerRule for SubqueriesToJoins {
    fn name(&self) -> &str {
        "subqueries_to_joins"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !has_subqueries(&plan)? {
            return Ok(plan);
        }
        let mut rewriter = Rewriter::default();
        let plan = rewriter.with_hidden_keys(with_nullable_values(plan)?)?;
        rewriter.rewrite(plan)
    }
}

fn unsupported(what: impl Into<String>) -> DataFusionError {
    DataFusionError::NotImplemented(what.into())
}

/// Rewrites the subqueries of one statement.
#[derive(Debug, Default)]
struct Rewriter {
    /// Number of the names given so far.
    names: usize,
    /// The recursive queries whose recursive terms are being rewritten, the innermost last.
    recursions: Vec<recursive::Recursion>,
}

impl Rewriter {
    /// A new name, not used elsewhere in the statement.
    fn name(&mut self, what: &str) -> String {
        self.names += 1;
        format!("__{what}_{}", self.names)
    }

    fn rewrite(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        if !has_subqueries(&plan)? {
            return Ok(plan);
        }
        let plan = match plan {
            LogicalPlan::Filter(filter) if is_lateral(&filter.input) => before_lateral(filter)?,
            other => other,
        };
        let plan = match &plan {
            LogicalPlan::Join(join) if is_lateral(&plan) => self.lateral(join)?,
            _ => self.rewrite_node(plan)?,
        };
        let plan = plan.map_subqueries(|subquery| self.rewrite(subquery).map(Transformed::yes))?.data;
        Ok(plan.map_children(|child| self.rewrite(child).map(Transformed::yes))?.data)
    }

    /// Rewrites the subqueries in the expressions of the root.
    fn rewrite_node(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        if !plan.expressions().iter().any(is_subquery_in) {
            return Ok(plan);
        }
        let names = NamePreserver::new_for_projection();
        let schema = plan.schema().clone();
        match plan {
            LogicalPlan::Filter(filter) => self.filter(filter),
            LogicalPlan::Projection(Projection { expr, input, .. }) => {
                let mut input = Input::new(&input, &expr, self)?;
                let expr = self.expressions(expr, &mut input, Position::Projected, &names)?;
                Ok(LogicalPlan::Projection(Projection::try_new(expr, Arc::new(input.finish()?))?))
            }
            LogicalPlan::Aggregate(Aggregate { input, group_expr, aggr_expr, .. }) => {
                let all: Vec<Expr> = group_expr.iter().chain(&aggr_expr).cloned().collect();
                let mut input = Input::new(&input, &all, self)?;
                let group = self.expressions(group_expr, &mut input, Position::Value, &names)?;
                let aggregates = self.expressions(aggr_expr, &mut input, Position::Value, &names)?;
                Ok(LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input.finish()?), group, aggregates)?))
            }
            LogicalPlan::Window(Window { input, window_expr, .. }) => {
                let mut input = Input::new(&input, &window_expr, self)?;
                let window = self.expressions(window_expr, &mut input, Position::Value, &names)?;
                restricted(LogicalPlan::Window(Window::try_new(window, Arc::new(input.finish()?))?), &schema)
            }
            LogicalPlan::Sort(sort) => self.sort(sort),
            LogicalPlan::Distinct(Distinct::On(distinct)) => self.distinct_on(distinct, &names),
            LogicalPlan::Join(join) => self.join(join, &schema),
            LogicalPlan::Limit(limit) => self.computed_limit(limit),
            other => Ok(other),
        }
    }

    fn expressions(
        &mut self,
        expressions: Vec<Expr>,
        input: &mut Input,
        position: Position,
        names: &NamePreserver,
    ) -> Result<Vec<Expr>> {
        let mut rewritten = Vec::with_capacity(expressions.len());
        for expr in expressions {
            let name = names.save(&expr);
            rewritten.push(name.restore(self.value(expr, input, position)?));
        }
        Ok(rewritten)
    }

    fn filter(&mut self, filter: Filter) -> Result<LogicalPlan> {
        let schema = filter.input.schema().clone();
        let (with, without): (Vec<Expr>, Vec<Expr>) = split_conjunction_owned(filter.predicate)
            .into_iter()
            .partition(|c| is_subquery_in(c) || c.contains_outer());
        // The subqueries are evaluated for the rows that pass the other conditions. DataFusion moves conditions with outer
        // columns, but not from below other nodes.
        let passing = match conjunction(without) {
            Some(predicate) => Arc::new(LogicalPlan::Filter(Filter::try_new(predicate, filter.input)?)),
            None => filter.input,
        };
        let mut input = Input::new(&passing, &with, self)?;
        let mut conditions = Vec::new();
        for condition in with {
            conditions.push(self.value(condition, &mut input, Position::Conjunct)?);
        }
        let plan = Arc::new(input.finish()?);
        let Some(predicate) = conjunction(conditions) else { return Ok(Arc::unwrap_or_clone(plan)) };
        restricted(LogicalPlan::Filter(Filter::try_new(predicate, plan)?), &schema)
    }

    /// Sort keys with subqueries become columns below the sort.
    fn sort(&mut self, sort: Sort) -> Result<LogicalPlan> {
        let schema = sort.input.schema().clone();
        let keys: Vec<Expr> = sort.expr.iter().map(|key| key.expr.clone()).collect();
        let mut input = Input::new(&sort.input, &keys, self)?;
        let mut columns: Vec<Expr> = sort.input.schema().columns().into_iter().map(Expr::Column).collect();
        let mut keys = sort.expr;
        for key in keys.iter_mut().filter(|key| is_subquery_in(&key.expr)) {
            let name = self.name("key");
            let expr = std::mem::replace(&mut key.expr, Expr::Column(Column::new_unqualified(&name)));
            columns.push(self.value(expr, &mut input, Position::Value)?.alias(name));
        }
        let input = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input.finish()?))?);
        restricted(LogicalPlan::Sort(Sort { expr: keys, input: Arc::new(input), fetch: sort.fetch }), &schema)
    }

    /// Applies [`Rewriter::with_hidden_columns`] to all sorts, before their keys are taken for references to outer queries.
    fn with_hidden_keys(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let plan = plan.map_subqueries(|subquery| self.with_hidden_keys(subquery).map(Transformed::yes))?.data;
        let plan = plan.map_children(|child| self.with_hidden_keys(child).map(Transformed::yes))?.data;
        match plan {
            LogicalPlan::Sort(sort) if sort.expr.iter().any(|key| is_subquery_in(&key.expr)) => {
                let schema = sort.input.schema().clone();
                restricted(LogicalPlan::Sort(self.with_hidden_columns(sort)?), &schema)
            }
            other => Ok(other),
        }
    }

    /// The columns of FROM that subqueries among the keys use, and the select list does not have, become columns of it under
    /// other names.
    fn with_hidden_columns(&mut self, mut sort: Sort) -> Result<Sort> {
        let LogicalPlan::Projection(projection) = sort.input.as_ref() else { return Ok(sort) };
        let mut hidden: Vec<(Column, Column)> = Vec::new();
        for key in sort.expr.iter().filter(|key| is_subquery_in(&key.expr)) {
            for column in references::used_columns(&key.expr)? {
                let is_missing =
                    !projection.schema.has_column(&column) && projection.input.schema().has_column(&column);
                if is_missing && !hidden.iter().any(|(known, _)| *known == column) {
                    hidden.push((column, Column::new_unqualified(self.name("hidden"))));
                }
            }
        }
        if hidden.is_empty() {
            return Ok(sort);
        }
        let replace = |column: &Column| hidden.iter().find(|(known, _)| known == column).map(|(_, new)| new.clone());
        for key in &mut sort.expr {
            let expr = std::mem::take(&mut key.expr).transform_up_dyn(&mut |expr| {
                references::with_subquery(expr, |plan| references::rename_outer(plan, &replace)).map(Transformed::yes)
            })?;
            key.expr = expr.data;
        }
        let hidden = hidden.iter().map(|(column, new)| Expr::Column(column.clone()).alias(&new.name));
        let columns = projection.expr.iter().cloned().chain(hidden).collect();
        sort.input = Arc::new(LogicalPlan::Projection(Projection::try_new(columns, projection.input.clone())?));
        Ok(sort)
    }

    /// Expressions with subqueries become columns below DISTINCT ON.
    fn distinct_on(&mut self, distinct: DistinctOn, names: &NamePreserver) -> Result<LogicalPlan> {
        let DistinctOn { on_expr, select_expr, sort_expr, input, .. } = distinct;
        let sorted = sort_expr.iter().flatten().map(|key| &key.expr);
        let all: Vec<Expr> = on_expr.iter().chain(&select_expr).chain(sorted).cloned().collect();
        let mut columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
        let mut input = Input::new(&input, &all, self)?;
        let mut known: Vec<(Expr, Expr)> = Vec::new();
        for expr in all.into_iter().filter(is_subquery_in) {
            if known.iter().any(|(known, _)| *known == expr) {
                continue;
            }
            let name = self.name("key");
            columns.push(self.value(expr.clone(), &mut input, Position::Value)?.alias(&name));
            known.push((expr, Expr::Column(Column::new_unqualified(name))));
        }
        let column = |expr: Expr| match known.iter().find(|(known, _)| *known == expr) {
            Some((_, column)) => names.save(&expr).restore(column.clone()),
            None => expr,
        };
        let on_expr = on_expr.into_iter().map(|expr| column(expr).unalias()).collect();
        let select_expr = select_expr.into_iter().map(column).collect();
        let key = |key: SortExpr| SortExpr { expr: column(key.expr.clone()).unalias(), ..key };
        let sort_expr = sort_expr.map(|keys| keys.into_iter().map(key).collect());
        let input = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input.finish()?))?);
        let distinct = DistinctOn::try_new(on_expr, select_expr, sort_expr, Arc::new(input))?;
        Ok(LogicalPlan::Distinct(Distinct::On(distinct)))
    }

    /// Subqueries in ON: above an inner join, they are conditions of a filter; otherwise they belong to one input.
    fn join(&mut self, mut join: Join, schema: &DFSchemaRef) -> Result<LogicalPlan> {
        let (with, without): (Vec<Expr>, Vec<Expr>) =
            join.filter.take().map(split_conjunction_owned).unwrap_or_default().into_iter().partition(is_subquery_in);
        if join.join_type == JoinType::Inner {
            join.filter = conjunction(without);
            let Some(predicate) = conjunction(with) else { return Ok(LogicalPlan::Join(join)) };
            let filter = Filter::try_new(predicate, Arc::new(LogicalPlan::Join(join)))?;
            return self.filter(filter);
        }
        let mut conditions = without;
        let mut left = Input::new(&join.left, &with, self)?;
        let mut right = Input::new(&join.right, &with, self)?;
        let mut sides = Vec::with_capacity(with.len());
        for condition in &with {
            let outer = references::used_columns(condition)?;
            let has_all = |side: &Input| outer.iter().all(|column| side.plan.schema().has_column(column));
            sides.push(if has_all(&left) { Some(true) } else { has_all(&right).then_some(false) });
        }
        if sides.contains(&None) {
            join.filter = conjunction(conditions);
            return self.outer_join(join, with);
        }
        for (condition, is_left) in with.into_iter().zip(sides.into_iter().flatten()) {
            let side = if is_left { &mut left } else { &mut right };
            conditions.push(self.value(condition, side, Position::Value)?);
        }
        let Join { on, join_type, join_constraint, null_equality, null_aware, .. } = join;
        let (left, right, filter) = (Arc::new(left.finish()?), Arc::new(right.finish()?), conjunction(conditions));
        let join = Join::try_new(left, right, on, filter, join_type, join_constraint, null_equality, null_aware)?;
        restricted(LogicalPlan::Join(join), schema)
    }
}

/// Removes the columns that are not in `schema`.
fn restricted(plan: LogicalPlan, schema: &DFSchemaRef) -> Result<LogicalPlan> {
    if plan.schema().fields().len() == schema.fields().len() {
        return Ok(plan);
    }
    let columns = schema.columns().into_iter().map(Expr::Column).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?))
}

fn is_subquery(expr: &Expr) -> bool {
    matches!(expr, Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) | Expr::ScalarSubquery(_))
}

/// True if an expression contains a subquery.
fn is_subquery_in(expr: &Expr) -> bool {
    let mut found = false;
    // The closure never fails.
    let _ = expr.apply_dyn(&mut |expr| {
        found |= is_subquery(expr);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found
}

fn has_subqueries(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_dyn(&mut |node| {
        found |= is_lateral(node);
        node.apply_expressions_dyn(&mut |expr| {
            found |= is_subquery_in(expr);
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}
