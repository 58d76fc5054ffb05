//! Dependencies between the columns of aggregates.
//!
//! DataFusion 55 takes all columns of an aggregate for determined by a key of one of its input tables, also the columns
//! of other tables: after `GROUP BY c.id, o.x`, `c.id` seems to determine `o.x`. It then removes `o.x` from GROUP BY of
//! an aggregate above. UNNEST repeats the rows of a key, too. [`optimize_projections`] hides such dependencies from the
//! rule, by a projection of all columns, which the rule removes. The others stay: DataFusion adds the columns that a key in
//! GROUP BY determines to the key, and the rule removes those that the query does not use.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{FunctionalDependence, FunctionalDependencies, JoinType, TableReference};
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
    aggregates_below(&aggregate.input)
}

fn aggregates_below(plan: &LogicalPlan) -> Result<bool> {
    plan.exists_dyn(&mut |node| Ok(matches!(node, LogicalPlan::Aggregate(_) | LogicalPlan::Unnest(_))))
}

/// The aggregate over an input that has the dependencies within tables only, of tables that are not below another
/// aggregate.
fn with_sound_dependencies(aggregate: Aggregate) -> Result<Aggregate> {
    let schema = aggregate.input.schema();
    let mut tables = Vec::new();
    add_tables(&aggregate.input, &mut tables)?;
    let table_of = |index: usize| schema.qualified_field(index).0.filter(|table| tables.contains(table));
    let sound = schema.functional_dependencies().iter().filter_map(|dependence| {
        let table = table_of(*dependence.source_indices.first()?)?;
        let is_within = |index: &usize| table_of(*index) == Some(table);
        let targets = dependence.target_indices.iter().copied().filter(is_within).collect();
        dependence.source_indices.iter().all(is_within).then(|| {
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

/// Adds the tables whose rows a plan has as they are, perhaps several times.
fn add_tables(plan: &LogicalPlan, tables: &mut Vec<TableReference>) -> Result<()> {
    match plan {
        LogicalPlan::TableScan(scan) => tables.push(scan.table_name.clone()),
        LogicalPlan::SubqueryAlias(alias) if !aggregates_below(&alias.input)? => tables.push(alias.alias.clone()),
        LogicalPlan::Join(join) => match join.join_type {
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => add_tables(&join.left, tables)?,
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => add_tables(&join.right, tables)?,
            JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => {
                add_tables(&join.left, tables)?;
                add_tables(&join.right, tables)?;
            }
        },
        LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::Sort(_) | LogicalPlan::Limit(_) => {
            for input in plan.inputs() {
                add_tables(input, tables)?;
            }
        }
        _ => (),
    }
    Ok(())
}
