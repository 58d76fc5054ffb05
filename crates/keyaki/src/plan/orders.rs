//! Sorts and limits that DataFusion omits although they are needed.
//!
//! *Sorts.* DataFusion 55 omits a sort by a unique column and further ones if its input is sorted by the unique column,
//! for example a sort of groups by their key and an aggregate. Later, a projection moves into a filter, and the order
//! of its columns hides that the column is unique. The final check of the plan then fails. [`RestoreOrders`] comes
//! before this check and sorts the inputs that do not have the order that an operator requires.
//!
//! *Limits.* If such a sort has a limit, the limit is lost with it where the projection already lies between the sort
//! and the groups. [`KeepLimits`] comes before sorts are omitted and makes the limits of sorts over partly sorted rows
//! operators of their own. Where the sort stays, a later rule of DataFusion moves the limit back into it.

use std::sync::Arc;

use crate::base::tree::Tree;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Adds the rules: one before sorts are omitted, one before the final check of plans.
pub(super) fn restored(mut rules: Vec<Rule>) -> Vec<Rule> {
    let omits = rules.iter().position(|rule| rule.name() == "EnsureRequirements").unwrap_or(0);
    rules.insert(omits, Arc::new(KeepLimits));
    let check = rules.iter().position(|rule| rule.name() == "SanityCheckPlan").unwrap_or(rules.len());
    rules.insert(check, Arc::new(RestoreOrders));
    rules
}

#[derive(Debug)]
struct KeepLimits;

impl PhysicalOptimizerRule for KeepLimits {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(plan.transform_up_dyn(&mut separate_limit)?.data)
    }

    fn name(&self) -> &str {
        "keep_limits"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Replaces a sort with a limit by a sort and a limit, if the rows have the order of the first sort expressions only.
fn separate_limit(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(sort) = plan.downcast_ref::<SortExec>() else { return Ok(Transformed::no(plan)) };
    let Some(limit) = sort.fetch() else { return Ok(Transformed::no(plan)) };
    let (sorted, is_complete) =
        sort.input().equivalence_properties().extract_common_sort_prefix(sort.expr().clone())?;
    Ok(match sorted.is_empty() || is_complete {
        true => Transformed::no(plan),
        false => Transformed::yes(with_limit(sort, limit)),
    })
}

/// The rows of a sort, without its own limit, below a limit.
pub(super) fn with_limit(sort: &SortExec, limit: usize) -> Arc<dyn ExecutionPlan> {
    let all = SortExec::new(sort.expr().clone(), sort.input().clone());
    let all: Arc<dyn ExecutionPlan> = Arc::new(all.with_preserve_partitioning(sort.preserve_partitioning()));
    match all.output_partitioning().partition_count() {
        1 => Arc::new(GlobalLimitExec::new(all, 0, Some(limit))),
        _ => Arc::new(LocalLimitExec::new(all, limit)),
    }
}

#[derive(Debug)]
struct RestoreOrders;

impl PhysicalOptimizerRule for RestoreOrders {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(plan.transform_up_dyn(&mut sort_inputs)?.data)
    }

    fn name(&self) -> &str {
        "restore_orders"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Sorts the inputs of an operator that do not have the required order.
fn sort_inputs(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let mut is_changed = false;
    let mut inputs = Vec::new();
    for (input, required) in plan.children().into_iter().zip(plan.required_input_ordering()) {
        let mut input = input.clone();
        if let Some(required) = required.map(|required| required.into_single())
            && !input.equivalence_properties().ordering_satisfy_requirement(required.clone())?
        {
            let sort = SortExec::new(LexOrdering::from(required), input).with_preserve_partitioning(true);
            (input, is_changed) = (Arc::new(sort), true);
        }
        inputs.push(input);
    }
    if !is_changed {
        return Ok(Transformed::no(plan));
    }
    let recompute = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Ok(Transformed::yes(plan.replace_children(inputs, recompute)?))
}
