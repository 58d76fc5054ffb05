//! Keeps DataFusion from pushing physical filters to the wrong column.
//!
//! DataFusion 55 moves filters (also the dynamic ones of joins and of ORDER BY … LIMIT) down through operators by column
//! *name*: where two columns of a schema have one name, as after joining two tables with an `id` each, a filter on the
//! second becomes one on the first, and rows are lost silently. So its rule is applied to just those parts of a plan in
//! which nothing but the root has such a schema: a root's own filters go to its inputs by index.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// All rules, those that push filters guarded.
pub(super) fn guarded(optimizer: Option<PhysicalOptimizer>) -> Vec<Rule> {
    let rules = optimizer.unwrap_or_default().rules.into_iter();
    rules
        .map(|rule| match rule.name().starts_with("FilterPushdown") && rule.name() != GuardedPushdown::NAME {
            true => Arc::new(GuardedPushdown { inner: rule }) as Rule,
            false => rule,
        })
        .collect()
}

#[derive(Debug)]
struct GuardedPushdown {
    inner: Rule,
}

impl GuardedPushdown {
    const NAME: &'static str = "FilterPushdown(guarded)";

    fn apply(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if plan.children().into_iter().all(is_clear) {
            return self.inner.optimize(plan, config);
        }
        let children: Vec<Arc<dyn ExecutionPlan>> = plan.children().into_iter().cloned().collect();
        let children = children.into_iter().map(|child| self.apply(child, config)).collect::<Result<Vec<_>>>()?;
        plan.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }
}

impl PhysicalOptimizerRule for GuardedPushdown {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        self.apply(plan, config)
    }
    fn name(&self) -> &str {
        Self::NAME
    }
    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }
}

/// Whether all columns have names of their own, here and below.
fn is_clear(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let schema = plan.schema();
    let mut names = HashSet::with_capacity(schema.fields().len());
    schema.fields().iter().all(|field| names.insert(field.name())) && plan.children().into_iter().all(is_clear)
}
