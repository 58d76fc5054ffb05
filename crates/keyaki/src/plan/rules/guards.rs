//! Conditions under which rules of DataFusion 55 are not applied.

use datafusion::common::cse::NormalizeEq;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Aggregate, Distinct, Expr, ExprSchemable, Filter, Join, LogicalPlan, Window};
use datafusion::optimizer::OptimizerConfig;

use super::{Rule, inferred};
use crate::base::tree::{PlanTree, Tree};
use crate::plan::first_rows::unalias;
use crate::plan::node::PipelineNode;
use crate::plan::shared::Shared;

/// DataFusion pushes conditions without columns below aggregates and other nodes. An aggregate without GROUP BY has a
/// row even if its input has none, and a volatile condition on groups, or on the rows of an index pipeline, is not one
/// on the rows of the input.
pub(super) fn push_down_filter(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    match &plan {
        LogicalPlan::Filter(filter) if is_bound_to_aggregate(filter) => Ok(Transformed::no(plan)),
        LogicalPlan::Filter(filter) if is_volatile_above_pipeline(filter) => Ok(Transformed::no(plan)),
        LogicalPlan::Filter(filter) if is_above_shared(filter) => Ok(Transformed::no(plan)),
        _ => inferred::push_below_join(rule, plan, config),
    }
}

/// True for a filter over an aggregate that must stay there. Filters in between are merged by DataFusion.
fn is_bound_to_aggregate(filter: &Filter) -> bool {
    let mut volatile = filter.predicate.is_volatile();
    let mut input = filter.input.as_ref();
    while let LogicalPlan::Filter(below) = input {
        volatile |= below.predicate.is_volatile();
        input = &below.input;
    }
    let LogicalPlan::Aggregate(aggregate) = input else { return false };
    volatile || aggregate.group_expr.is_empty() || matches!(aggregate.group_expr[..], [Expr::GroupingSet(_)])
}

fn is_volatile_above_pipeline(filter: &Filter) -> bool {
    let LogicalPlan::Extension(extension) = filter.input.as_ref() else { return false };
    filter.predicate.is_volatile() && extension.node.as_any().is::<PipelineNode>()
}

/// True for a filter over one of several occurrences of a subquery, which must not filter the rows of the others.
fn is_above_shared(filter: &Filter) -> bool {
    let mut input = filter.input.as_ref();
    while let LogicalPlan::Filter(below) = input {
        input = &below.input;
    }
    Shared::of(input).is_some()
}

/// DataFusion omits DISTINCT if a unique column of its input is selected. A key of a table is not unique above a join
/// or UNNEST, but is taken for unique if the groups of the rows have it beside other columns, or above UNNEST.
pub(super) fn replace_distinct_aggregate(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    match &plan {
        LogicalPlan::Distinct(Distinct::All(input))
            if !input.schema().fields().is_empty() && is_above_groups(input)? =>
        {
            let columns = input.schema().columns().into_iter().map(Expr::Column).collect();
            Ok(Transformed::yes(LogicalPlan::Aggregate(Aggregate::try_new(input.clone(), columns, Vec::new())?)))
        }
        _ => rule.rewrite(plan, config),
    }
}

/// True for a plan with UNNEST or groups of the rows of a join, unless it has all columns by which they are grouped.
fn is_above_groups(plan: &LogicalPlan) -> Result<bool> {
    if selects_groups(plan) {
        return Ok(false);
    }
    let mut found = false;
    plan.apply_dyn(&mut |node| {
        found |= match node {
            LogicalPlan::Unnest(_) => true,
            LogicalPlan::Aggregate(aggregate) => aggregate.input.exists_dyn(&mut |node| Ok(!is_of_one_table(node)))?,
            _ => false,
        };
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// True for nodes whose rows are those of their input, or of a table.
fn is_of_one_table(node: &LogicalPlan) -> bool {
    use LogicalPlan as P;
    matches!(node, P::Projection(_) | P::Filter(_) | P::SubqueryAlias(_) | P::Sort(_) | P::Limit(_) | P::TableScan(_))
}

/// True for a projection of groups that has all columns by which they are grouped.
fn selects_groups(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => selects_groups(&alias.input),
        LogicalPlan::Aggregate(_) => true,
        LogicalPlan::Projection(projection) => {
            let LogicalPlan::Aggregate(aggregate) = projection.input.as_ref() else { return false };
            let is_selected = |key: &Expr| {
                let column = Column::from_name(key.schema_name().to_string());
                let key = Expr::Column(if let Expr::Column(key) = key { key.clone() } else { column });
                projection.expr.iter().any(|expr| *unalias(expr) == key)
            };
            aggregate.group_expr.iter().all(is_selected)
        }
        _ => false,
    }
}

/// DataFusion moves an expression that occurs twice into a projection below. A projection cannot compute a window
/// function. Plans have a window function twice if the simplifier made them equal, or if they differ in the order of
/// operands.
pub(super) fn common_sub_expression_eliminate(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    match has_repeated_window_function(&plan)? {
        true => Ok(Transformed::no(plan)),
        false => rule
            .rewrite(plan, config)?
            .transform_data(|plan| plan.transform_down_with_subqueries_dyn(&mut unalias_keys)),
    }
}

/// Removes the names that the rule gives to keys of window functions. The functions of a node have the same keys, and
/// the physical planner panics if only some of them have names.
fn unalias_keys(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Window(window) = &plan else { return Ok(Transformed::no(plan)) };
    let has_name = |key: &Expr| matches!(key, Expr::Alias(_));
    let has_names = |expr: &Expr| match unalias(expr) {
        Expr::WindowFunction(call) => {
            let mut keys = call.params.partition_by.iter().chain(call.params.order_by.iter().map(|sort| &sort.expr));
            keys.any(has_name)
        }
        _ => false,
    };
    if !window.window_expr.iter().any(has_names) {
        return Ok(Transformed::no(plan));
    }
    let names = NamePreserver::new(&plan);
    plan.map_expressions_dyn(&mut |expr| {
        let name = names.save(&expr);
        let unnamed = expr.transform_up_dyn(&mut |expr| match expr {
            Expr::WindowFunction(mut call) => {
                for key in &mut call.params.partition_by {
                    *key = std::mem::take(key).unalias();
                }
                for sort in &mut call.params.order_by {
                    sort.expr = std::mem::take(&mut sort.expr).unalias();
                }
                Ok(Transformed::yes(Expr::WindowFunction(call)))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(unnamed.update_data(|expr| name.restore(expr)))
    })
}

fn has_repeated_window_function(plan: &LogicalPlan) -> Result<bool> {
    let mut repeats = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        // The rule optimizes windows above one another together.
        let (mut node, mut functions) = (node, Vec::new());
        while let LogicalPlan::Window(Window { input, window_expr, .. }) = node {
            for function in window_expr.iter().map(unalias) {
                repeats |= functions.iter().any(|other: &&Expr| function.normalize_eq(other));
                functions.push(function);
            }
            node = input;
        }
        Ok(if repeats { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(repeats)
}

/// DataFusion flattens a tree of inner joins and rebuilds it with one equality for all keys: either NULL equals NULL
/// for all of them, or for none. Trees with a join on `IS NOT DISTINCT FROM` are not flattened.
pub(super) fn eliminate_cross_join(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    if !has_null_safe_join(&plan)? {
        return rule.rewrite(plan, config);
    }
    plan.map_children(|child| eliminate_cross_join(rule, child, config))
}

fn has_null_safe_join(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        let null_safe =
            |join: &Join| join.join_type == JoinType::Inner && join.null_equality == NullEquality::NullEqualsNull;
        found |= matches!(node, LogicalPlan::Join(join) if null_safe(join));
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// DataFusion adds ordinary equalities to the keys of a join whose keys are NULL-safe.
pub(super) fn extract_equijoin_predicate(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    match &plan {
        LogicalPlan::Join(join) if join.null_equality == NullEquality::NullEqualsNull && !join.on.is_empty() => {
            Ok(Transformed::no(plan))
        }
        _ => rule.rewrite(plan, config),
    }
}

/// DataFusion removes sort keys that others determine, but takes all columns of an aggregate for determined by a key of
/// one of its tables.
pub(super) fn eliminate_duplicated_expr(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    match &plan {
        LogicalPlan::Sort(sort) if !sort.input.schema().functional_dependencies().is_empty() => {
            Ok(Transformed::no(plan))
        }
        _ => rule.rewrite(plan, config),
    }
}

/// DataFusion removes the last column of an input of which a mark join needs the number of rows only: the mark then
/// belongs to no table, and is not found.
pub(super) fn eliminate_join(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let mut marks = false;
    plan.apply_with_subqueries_dyn(&mut |plan| {
        let is_mark = |join: &Join| matches!(join.join_type, JoinType::LeftMark | JoinType::RightMark);
        marks |= matches!(plan, LogicalPlan::Join(join) if is_mark(join));
        Ok(TreeNodeRecursion::Continue)
    })?;
    if marks { Ok(Transformed::no(plan)) } else { rule.rewrite(plan, config) }
}

/// DataFusion computes `sum(x)` beside `count(DISTINCT y)` as a sum of sums. The precision of a decimal grows with each
/// sum: the aggregate then has another type than the expressions that use it. A partial sum of integers may be out of
/// range where the total is not.
pub(super) fn single_distinct_to_group_by(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    match &plan {
        LogicalPlan::Aggregate(aggregate) if sums_exactly(aggregate) => Ok(Transformed::no(plan)),
        _ => rule.rewrite(plan, config),
    }
}

/// True for sums of integers and decimals.
fn sums_exactly(aggregate: &Aggregate) -> bool {
    let is_exact = |expr: &Expr| match expr.get_type(aggregate.input.schema()) {
        Ok(ty) => ty.is_decimal() || ty.is_integer(),
        Err(_) => true,
    };
    aggregate.aggr_expr.iter().any(|expr| match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            !params.distinct && func.name() == "sum" && params.args.iter().any(is_exact)
        }
        _ => false,
    })
}
