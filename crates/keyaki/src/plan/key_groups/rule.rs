//! The physical rule.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::exec::KeyGroupsExec;
use crate::base::tree::Tree;
use crate::table::{ScanExec, ScanPlan};

/// Replaces the two steps of aggregations over scans along the key of their groups.
#[derive(Debug)]
pub(in crate::plan) struct AggregateAlongKeys;

impl PhysicalOptimizerRule for AggregateAlongKeys {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let partitions = config.execution.target_partitions;
        let replaced = plan.transform_up_dyn(&mut |plan| {
            Ok(match replacement(&plan, partitions)? {
                Some(replacement) => Transformed::yes(replacement),
                None => Transformed::no(plan),
            })
        });
        Ok(replaced?.data)
    }

    fn name(&self) -> &str {
        "aggregate_along_keys"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// One step in place of two; `None` if the rows of a group may be apart, or an aggregate depends on the order of rows.
/// `partitions`: DataFusion divides the input of filters and computations among this number of partitions if it has fewer.
fn replacement(plan: &Arc<dyn ExecutionPlan>, partitions: usize) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(last) = plan.downcast_ref::<AggregateExec>() else { return Ok(None) };
    if !matches!(last.mode(), AggregateMode::Final | AggregateMode::FinalPartitioned) {
        return Ok(None);
    }
    let Some(first) = last.input().downcast_ref::<AggregateExec>() else { return Ok(None) };
    let groups = first.group_expr();
    let is_plain = *first.mode() == AggregateMode::Partial
        && groups.is_single()
        && !groups.is_empty()
        && first.limit_options().is_none()
        && last.limit_options().is_none()
        && first.aggr_expr().iter().all(|aggregate| aggregate.order_bys().is_empty())
        && stays_undivided(first.input(), partitions);
    if !is_plain {
        return Ok(None);
    }
    let columns: Option<Vec<usize>> = groups.expr().iter().map(|(expr, _)| place(expr)).collect();
    let Some(columns) = columns.filter(|columns| follow_each_other(first.input(), columns)) else { return Ok(None) };
    let once = AggregateExec::try_new(
        AggregateMode::SinglePartitioned,
        groups.clone(),
        first.aggr_expr().to_vec(),
        first.filter_expr().to_vec(),
        first.input().clone(),
        first.input_schema(),
    )?;
    // The rules above rely on the names and types of the result.
    if once.schema().fields() != last.schema().fields() {
        return Ok(None);
    }
    Ok(Some(Arc::new(KeyGroupsExec::new(once, columns)?)))
}

/// True if no operator of a plan with one leaf makes DataFusion divide its input among more partitions.
fn stays_undivided(plan: &Arc<dyn ExecutionPlan>, partitions: usize) -> bool {
    plan.children().iter().zip(plan.benefits_from_input_partitioning()).all(|(input, benefits)| {
        (!benefits || input.output_partitioning().partition_count() >= partitions) && stays_undivided(input, partitions)
    })
}

/// The column that an expression is.
fn place(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// True if rows with the same values in `columns` are in one partition, and follow each other there.
pub(super) fn follow_each_other(plan: &Arc<dyn ExecutionPlan>, columns: &[usize]) -> bool {
    if let Some(scan) = plan.downcast_ref::<ScanExec>() {
        return are_leading(scan.operator().plan(), columns);
    }
    let below: Option<Vec<usize>> = if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        columns.iter().map(|&column| place(&projection.expr()[column].expr)).collect()
    } else if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let input = |&column: &usize| filter.projection().as_ref().map_or(column, |projection| projection[column]);
        Some(columns.iter().map(input).collect())
    } else if plan.is::<CooperativeExec>() {
        Some(columns.to_vec())
    } else {
        None
    };
    below.is_some_and(|columns| plan.children().first().is_some_and(|input| follow_each_other(input, &columns)))
}

/// True if a scan keeps rows with the same values in its output columns `columns` together.
fn are_leading(scan: &ScanPlan, columns: &[usize]) -> bool {
    let Some(leading) = scan.grouped else { return false };
    let keys: Vec<usize> = columns.iter().map(|&column| scan.columns[column]).collect();
    keys.iter().all(|key| *key < leading) && (0..leading).all(|key| key < scan.fixed || keys.contains(&key))
}
