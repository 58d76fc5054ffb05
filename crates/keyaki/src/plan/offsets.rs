//! OFFSET below ORDER BY.
//!
//! A sort above a limit is pushed below it, unless the limit has ordered rows. DataFusion makes two mistakes then:
//! - The sort gets the limit without the offset: `SELECT x FROM (SELECT x FROM t LIMIT 3 OFFSET 2) ORDER BY x` returns one
//!   row.
//! - An offset without a limit counts as not ordered: `SELECT x FROM (SELECT x FROM t ORDER BY y OFFSET 2) ORDER BY x` skips
//!   the first rows by `x`.
//!
//! [`SplitOffsets`] divides the first one into a limit of five rows and an offset, and gives offsets without a limit one.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

/// More rows than a query has.
const ROWS_MAX: usize = usize::MAX / 2;

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
            let Some(limit) = plan.downcast_ref::<GlobalLimitExec>().filter(|limit| limit.skip() > 0) else {
                return Ok(Transformed::no(plan));
            };
            let limited = |input: &Arc<dyn ExecutionPlan>, skip, fetch| -> Arc<dyn ExecutionPlan> {
                Arc::new(GlobalLimitExec::new(input.clone(), skip, fetch))
            };
            let is_ordered = limit.input().output_ordering().is_some();
            let rows = limit.fetch().and_then(|fetch| limit.skip().checked_add(fetch));
            Ok(match (is_ordered, rows) {
                (false, Some(rows)) => {
                    let first = limited(limit.input(), 0, Some(rows));
                    Transformed::yes(limited(&first, limit.skip(), None))
                }
                // A projection in between may hide the order.
                (_, None) => Transformed::yes(limited(limit.input(), limit.skip(), Some(ROWS_MAX))),
                _ => Transformed::no(plan),
            })
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
