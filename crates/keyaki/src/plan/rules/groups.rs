//! Dependencies between the columns of aggregates.
//!
//! DataFusion 55 takes all columns of an aggregate for determined by a key of one of its input tables, also the columns
//! of other tables: after `GROUP BY c.id, o.x`, `c.id` seems to determine `o.x`. It then removes `o.x` from GROUP BY of
//! an aggregate above. UNNEST repeats the rows of a key, too. [`optimize_projections`] hides such dependencies from the
//! rule, by a projection of all columns, which the rule removes. The others stay: DataFusion adds the columns that a key
//! in GROUP BY determines to the key, and the rule removes the unused ones among them.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{FunctionalDependence, FunctionalDependencies, JoinType};
use datafusion::error::Result;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Projection};
use datafusion::optimizer::OptimizerConfig;

use super::Rule;
use crate::base::tree::Tree;

/// Prunes columns, without removing keys of GROUP BY by wrong dependencies.
pub(super) fn optimize_projections(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let hidden = plan.transform_up_dyn(&mut |plan| match plan {
        LogicalPlan::Aggregate(aggregate) if depends_on_aggregate(&aggregate)? => {
            Ok(Transformed::yes(LogicalPlan::Aggregate(with_sound_dependencies(aggregate)?)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    rule.rewrite(hidden.data, config)
}

/// True for an aggregate with several keys over another aggregate or UNNEST.
fn depends_on_aggregate(aggregate: &Aggregate) -> Result<bool> {
    if aggregate.group_expr.len() < 2 || aggregate.input.schema().functional_dependencies().is_empty() {
        return Ok(false);
    }
    repeats_keys(&aggregate.input)
}

/// True if there is an aggregate or UNNEST in a plan, whose dependencies are wrong.
fn repeats_keys(plan: &LogicalPlan) -> Result<bool> {
    plan.exists_dyn(&mut |node| Ok(matches!(node, LogicalPlan::Aggregate(_) | LogicalPlan::Unnest(_))))
}

/// The aggregate over an input that has only the dependencies between columns of one source.
fn with_sound_dependencies(aggregate: Aggregate) -> Result<Aggregate> {
    let schema = aggregate.input.schema();
    let sources: Vec<Option<&LogicalPlan>> =
        (0..schema.fields().len()).map(|index| source(&aggregate.input, index)).collect::<Result<_>>()?;
    let sound = schema.functional_dependencies().iter().filter_map(|dependence| {
        let of = sources[*dependence.source_indices.first()?]?;
        let is_same = |index: &usize| sources[*index].is_some_and(|other| std::ptr::eq(of, other));
        let targets = dependence.target_indices.iter().copied().filter(is_same).collect();
        dependence.source_indices.iter().all(is_same).then(|| {
            FunctionalDependence::new(dependence.source_indices.clone(), targets, dependence.nullable)
                .with_mode(dependence.mode)
        })
    });
    let sound = FunctionalDependencies::new(sound.collect());
    let columns = schema.columns().into_iter().map(Expr::Column).collect();
    let schema = schema.as_ref().clone().with_functional_dependencies(sound)?;
    let input = Projection::try_new_with_schema(columns, aggregate.input.clone(), Arc::new(schema))?;
    let input = Arc::new(LogicalPlan::Projection(input));
    Aggregate::try_new_with_schema(input, aggregate.group_expr, aggregate.aggr_expr, aggregate.schema)
}

/// The table, or the derived table without aggregates, whose column an output column of a plan is. `None` for computed
/// columns, and for those of other nodes than joins, filters, projections and sorts.
fn source(plan: &LogicalPlan, index: usize) -> Result<Option<&LogicalPlan>> {
    match plan {
        LogicalPlan::TableScan(_) => Ok(Some(plan)),
        LogicalPlan::SubqueryAlias(alias) => {
            if repeats_keys(&alias.input)? {
                source(&alias.input, index)
            } else {
                Ok(Some(plan))
            }
        }
        LogicalPlan::Join(join) => {
            let left = match join.join_type {
                JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => 0,
                _ => join.left.schema().fields().len(),
            };
            match join.join_type {
                _ if index < left => source(&join.left, index),
                JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => Ok(None),
                // The mark comes after the columns of the right side.
                _ if index - left < join.right.schema().fields().len() => source(&join.right, index - left),
                _ => Ok(None),
            }
        }
        LogicalPlan::Projection(projection) => {
            let mut expr = &projection.expr[index];
            while let Expr::Alias(alias) = expr {
                expr = &alias.expr;
            }
            let Expr::Column(column) = expr else { return Ok(None) };
            match projection.input.schema().maybe_index_of_column(column) {
                Some(index) => source(&projection.input, index),
                None => Ok(None),
            }
        }
        LogicalPlan::Filter(filter) => source(&filter.input, index),
        LogicalPlan::Sort(sort) => source(&sort.input, index),
        LogicalPlan::Limit(limit) => source(&limit.input, index),
        _ => Ok(None),
    }
}
