//! OFFSET below ORDER BY.
//!
//! A sort above a limit is pushed below it, unless the limit has ordered rows. DataFusion makes two mistakes then:
//! - The sort gets the limit without the offset: `SELECT x FROM (SELECT x FROM t LIMIT 3 OFFSET 2) ORDER BY x` returns one
//!   row.
//! - An offset without a limit counts as not ordered: `SELECT x FROM (SELECT x FROM t ORDER BY y OFFSET 2) ORDER BY x` skips
//!   the first rows by `x`.
//!
//! [`SplitOffsets`] divides the first one into a limit of five rows and an offset, and gives the second one and its
//! sort a limit. Limits are moved below projections, which can hide the order.

use std::sync::Arc;

use crate::base::tree::Tree;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
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
        let mut split = |plan: Arc<dyn ExecutionPlan>| match plan.downcast_ref::<GlobalLimitExec>() {
            Some(limit) if limit.skip() > 0 => {
                let split = split_limit(limit.input(), limit.skip(), limit.fetch())?;
                Ok(split.map_or(Transformed::no(plan), Transformed::yes))
            }
            _ => Ok(Transformed::no(plan)),
        };
        Ok(plan.transform_up_dyn(&mut split)?.data)
    }

    fn name(&self) -> &str {
        "split_offsets"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The limit of the rows of `input`, in a form that DataFusion keeps; `None` if its own form is one.
fn split_limit(
    input: &Arc<dyn ExecutionPlan>,
    skip: usize,
    fetch: Option<usize>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let limited = |input: &Arc<dyn ExecutionPlan>, skip, fetch| -> Arc<dyn ExecutionPlan> {
        Arc::new(GlobalLimitExec::new(input.clone(), skip, fetch))
    };
    // A projection can hide the order of its rows.
    if let Some(projection) = input.downcast_ref::<ProjectionExec>() {
        let below = projection.input();
        let below = split_limit(below, skip, fetch)?.unwrap_or_else(|| limited(below, skip, fetch));
        let recompute = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        return Ok(Some(input.clone().replace_children(vec![below], recompute)?));
    }
    let is_ordered = input.output_ordering().is_some();
    let rows = fetch.and_then(|fetch| skip.checked_add(fetch));
    Ok(match (is_ordered, rows) {
        (false, Some(rows)) => Some(limited(&limited(input, 0, Some(rows)), skip, None)),
        (true, None) => {
            // A sort without a limit is removed if no operator above needs the order.
            let limited_sort = input.downcast_ref::<SortExec>().map(|sort| sort.with_fetch(Some(ROWS_MAX)));
            let limited_sort = limited_sort.map(|sort| Arc::new(sort) as Arc<dyn ExecutionPlan>);
            Some(limited(&limited_sort.unwrap_or_else(|| input.clone()), skip, Some(ROWS_MAX)))
        }
        _ => None,
    })
}
