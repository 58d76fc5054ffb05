//! ORDER BY with a large LIMIT.
//!
//! DataFusion keeps the first rows in a heap. Each row that enters it is copied, and a large heap neither fits into the
//! caches nor spills: the first million of four million rows take ten times as long as sorting all of them.
//! [`SortForLimits`] sorts all rows in such cases, and applies the limit afterwards. Above an aggregate, DataFusion keeps
//! the first groups in a table whose memory it allocates at once, for ten times the limit: it is not used for large limits
//! either.

use std::sync::Arc;

use crate::base::tree::Tree;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use super::orders::with_limit;

/// Limits below it stay: the heap fits into the caches.
const LIMIT_MIN: usize = 1 << 14;
/// The heap is slower if it receives more than this fraction of the rows. Their number is an estimate: if it is too low, all
/// rows are sorted where a heap would be faster.
const FRACTION: usize = 64;
/// Limits from which on all rows are sorted if their number is not known.
const UNKNOWN_MIN: usize = 1 << 20;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Adds the rule after the rules that move limits into sorts. The rule that gives scans the filters of heaps follows it.
pub(super) fn sorted(mut rules: Vec<Rule>) -> Vec<Rule> {
    let end = rules.iter().position(|rule| rule.name() == "EnsureCooperative").unwrap_or(rules.len());
    rules.insert(end, Arc::new(SortForLimits));
    rules
}

#[derive(Debug)]
struct SortForLimits;

impl PhysicalOptimizerRule for SortForLimits {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(plan.transform_up_dyn(&mut sort_all)?.data)
    }

    fn name(&self) -> &str {
        "sort_for_limits"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Replaces a sort with a large limit by a sort and a limit, and an aggregate that keeps many first groups by one that
/// keeps all.
fn sort_all(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>()
        && let Some(options) = aggregate.limit_options()
        && options.descending().is_some()
        && options.limit() >= LIMIT_MIN
    {
        return Ok(Transformed::yes(Arc::new(aggregate.with_new_limit_options(None))));
    }
    let Some(sort) = plan.downcast_ref::<SortExec>() else { return Ok(Transformed::no(plan)) };
    let Some(limit) = sort.fetch().filter(|limit| *limit >= LIMIT_MIN) else { return Ok(Transformed::no(plan)) };
    let rows = StatisticsContext::new().compute(sort.input().as_ref(), &StatisticsArgs::new())?.num_rows;
    let rows = rows.get_value().copied();
    if limit < rows.map_or(UNKNOWN_MIN, |rows| rows / FRACTION) {
        return Ok(Transformed::no(plan));
    }
    Ok(Transformed::yes(with_limit(sort, limit)))
}
