//! Dependencies between the columns of aggregates.
//!
//! DataFusion 55 takes all columns of an aggregate for determined by a key of one of its input tables, also the columns
//! of other tables: after `GROUP BY c.id, o.x`, `c.id` seems to determine `o.x`. It then removes `o.x` from GROUP BY of
//! an aggregate above. UNNEST repeats the rows of a key, too. [`optimize_projections`] hides the dependencies from the
//! rule, by a projection of all columns, which the rule removes.

use std::sync::Arc;

use datafusion::common::FunctionalDependencies;
use datafusion::common::tree_node::Transformed;
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
            Ok(Transformed::yes(LogicalPlan::Aggregate(without_dependencies(aggregate)?)))
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
    aggregate.input.exists_dyn(&mut |node| Ok(matches!(node, LogicalPlan::Aggregate(_) | LogicalPlan::Unnest(_))))
}

fn without_dependencies(aggregate: Aggregate) -> Result<Aggregate> {
    let schema = aggregate.input.schema();
    let columns = schema.columns().into_iter().map(Expr::Column).collect();
    let schema = schema.as_ref().clone().with_functional_dependencies(FunctionalDependencies::empty())?;
    let input = Projection::try_new_with_schema(columns, aggregate.input.clone(), Arc::new(schema))?;
    let input = Arc::new(LogicalPlan::Projection(input));
    Aggregate::try_new_with_schema(input, aggregate.group_expr, aggregate.aggr_expr, aggregate.schema)
}
