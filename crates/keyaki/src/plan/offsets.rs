//! OFFSET below ORDER BY.
//!
//! A sort above `LIMIT 3 OFFSET 2` is pushed below it, which is right if no order decides about its rows. DataFusion gives
//! the sort the limit without the offset: `SELECT x FROM (SELECT x FROM t LIMIT 3 OFFSET 2) ORDER BY x` returns one row.
//! [`SplitOffsets`] divides such a limit into one of five rows, and an offset.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::limit::GlobalLimitExec;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Adds the rule before the rule that moves sorts.
pub(super) fn split(mut rules: Vec<Rule>) -> Vec<Rule> {
    let place = rules.iter().position(|rule| rule.name() == "EnsureRequirements").unwrap_or(0);
    rules.insert(place, Arc::new(SplitOffsets));
    rules
}

#[derive(Debug)]
struct SplitOffsets;

impl PhysicalOptimizerRule for SplitOffsets {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let split = |plan: Arc<dyn ExecutionPlan>| {
            let limit = plan.downcast_ref::<GlobalLimitExec>().filter(|limit| limit.skip() > 0);
            let Some((limit, fetch)) = limit.and_then(|limit| Some((limit, limit.fetch()?))) else {
                return Ok(Transformed::no(plan));
            };
            let Some(rows) = limit.skip().checked_add(fetch) else { return Ok(Transformed::no(plan)) };
            let first = Arc::new(GlobalLimitExec::new(limit.input().clone(), 0, Some(rows)));
            let offset: Arc<dyn ExecutionPlan> = Arc::new(GlobalLimitExec::new(first, limit.skip(), None));
            Ok(Transformed::yes(offset))
        };
        Ok(plan.transform_up(split)?.data)
    }

    fn name(&self) -> &str {
        "split_offsets"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
