//! Plans of few rows have one partition.
//!
//! With several partitions, DataFusion exchanges rows between operators, which takes longer than the work on a few
//! thousand rows: more operators to plan, a task for each partition, and threads that wake one another.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{LogicalPlan, TableScan};

use super::first_rows::FirstRowsNode;
use super::materialize::{Materialize, MaterializedScan};
use super::node::PipelineNode;
use super::shared::Shared;
use super::summary::SummaryNode;
use crate::base::tree::PlanTree;
use crate::table::KeyakiTable;

/// A plan is small if its inputs together have at most this many combinations of rows, so that a join without a condition
/// does not have more either.
const COMBINATIONS_MAX: f64 = 65_536.0;

/// The state for plans with one partition, if a rewritten plan is estimated to be small.
pub(super) fn state_of(plan: &LogicalPlan, state: Option<&SessionState>) -> Result<Option<SessionState>> {
    let Some(state) = state.filter(|state| state.config().target_partitions() > 1) else { return Ok(None) };
    if !is_small(plan)? {
        return Ok(None);
    }
    let mut state = state.clone();
    state.config_mut().options_mut().execution.target_partitions = 1;
    Ok(Some(state))
}

fn is_small(plan: &LogicalPlan) -> Result<bool> {
    let mut combinations = 1.0;
    plan.apply_with_subqueries_dyn(&mut |node| {
        combinations *= input_rows(node)?.max(1.0);
        Ok(if combinations > COMBINATIONS_MAX { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(combinations <= COMBINATIONS_MAX)
}

/// Estimated rows that a node reads or makes itself; 1 for nodes that only pass on rows, and infinite if it is unknown.
fn input_rows(node: &LogicalPlan) -> Result<f64> {
    Ok(match node {
        LogicalPlan::TableScan(TableScan { source, projection, filters, .. }) => {
            match source_as_provider(source)?.downcast_ref::<KeyakiTable>() {
                Some(table) => table.scanned_rows(projection.as_ref(), filters)?,
                None => f64::INFINITY,
            }
        }
        LogicalPlan::Extension(extension) => {
            let node = extension.node.as_any();
            if let Some(pipeline) = node.downcast_ref::<PipelineNode>() {
                // The rows of an input are counted below.
                if pipeline.input.is_some() { 1.0 } else { pipeline.spec.rows }
            } else if let Some(first) = node.downcast_ref::<FirstRowsNode>() {
                first.spec.rows as f64
            } else if node.is::<SummaryNode>() || node.is::<Materialize>() || node.is::<MaterializedScan>() {
                // Scans of kept rows are joined with these by keys.
                1.0
            } else if node.is::<Shared>() {
                // The rows of the input are counted below.
                1.0
            } else {
                f64::INFINITY
            }
        }
        LogicalPlan::Values(values) => values.values.len() as f64,
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Union(_)
        | LogicalPlan::EmptyRelation(_)
        | LogicalPlan::Subquery(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Explain(_)
        | LogicalPlan::Analyze(_)
        | LogicalPlan::Distinct(_) => 1.0,
        _ => f64::INFINITY,
    })
}
