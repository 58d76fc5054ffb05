//! Works around wrong plans of DataFusion's physical rule that answers aggregates from statistics.
//!
//! DataFusion 55 looks for the partial aggregation below a final one and passes other operators on the way. If the partial
//! aggregation has a FILTER, which statistics do not answer, it takes that of an aggregate in a subquery, and replaces the
//! outer aggregate by the inner one. [`GuardedStatistics`] does not apply the rule to plans with such aggregates.

use std::sync::Arc;

use crate::base::tree::Tree;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// The rules with that of aggregates wrapped in a [`GuardedStatistics`].
pub(super) fn guarded(rules: Vec<Rule>) -> Vec<Rule> {
    let guard = |rule: Rule| match rule.name() == "aggregate_statistics" {
        true => Arc::new(GuardedStatistics { inner: rule }) as Rule,
        false => rule,
    };
    rules.into_iter().map(guard).collect()
}

#[derive(Debug)]
struct GuardedStatistics {
    inner: Rule,
}

impl PhysicalOptimizerRule for GuardedStatistics {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if has_filter(&plan)? { Ok(plan) } else { self.inner.optimize(plan, config) }
    }

    fn name(&self) -> &str {
        "aggregate_statistics(guarded)"
    }

    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }
}

/// True if an aggregate of the plan has a FILTER.
fn has_filter(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists_dyn(&mut |node| {
        let aggregate = node.downcast_ref::<AggregateExec>();
        Ok(aggregate.is_some_and(|aggregate| aggregate.filter_expr().iter().any(Option::is_some)))
    })
}
