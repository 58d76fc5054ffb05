//! Works around wrong results of DataFusion's physical filter pushdown.
//!
//! DataFusion 55 pushes filters (including the dynamic filters of joins and of ORDER BY … LIMIT) through operators by
//! column *name*. If two columns of a schema have the same name, as after a join of two tables with a column `id`, a
//! filter on the second column becomes a filter on the first, and the query silently loses rows.
//!
//! [`GuardedPushdown`] applies the rule only to subplans in which no operator below the root has duplicate column
//! names. The root may have them: its own filters reach its inputs by index.

use std::collections::HashSet;
use std::sync::Arc;

use crate::base::tree::Tree;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::CaseExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::NestedLoopJoinExec;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Wraps the rules for pushing filters down in a [`GuardedPushdown`], and the rule for projections in a
/// [`GuardedProjections`].
pub(super) fn guarded(optimizer: Option<PhysicalOptimizer>) -> Vec<Rule> {
    let rules = optimizer.unwrap_or_default().rules.into_iter();
    rules
        .map(|rule| match rule.name() {
            GuardedPushdown::NAME | GuardedProjections::NAME => rule,
            "ProjectionPushdown" => Arc::new(GuardedProjections { inner: rule }),
            name if name.starts_with("FilterPushdown") => Arc::new(GuardedPushdown { inner: rule }),
            _ => rule,
        })
        .collect()
}

/// A filter pushdown rule restricted to subplans with unique column names.
#[derive(Debug)]
struct GuardedPushdown {
    inner: Rule,
}

impl GuardedPushdown {
    const NAME: &'static str = "FilterPushdown(guarded)";

    /// Optimizes the maximal subplans whose operators below the root have unique column names.
    fn apply(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if plan.children().into_iter().all(has_unique_names) {
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

/// The rule that moves projections, except in plans with a nested loop join whose condition has a CASE: the rule computes
/// parts of the condition below the join, for rows that the CASE excludes.
#[derive(Debug)]
struct GuardedProjections {
    inner: Rule,
}

impl GuardedProjections {
    const NAME: &'static str = "ProjectionPushdown(guarded)";
}

impl PhysicalOptimizerRule for GuardedProjections {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let has_lazy_join = plan.exists_dyn(&mut |node| {
            let filter = node.downcast_ref::<NestedLoopJoinExec>().and_then(NestedLoopJoinExec::filter);
            filter.map_or(Ok(false), |filter| filter.expression().exists_dyn(&mut |expr| Ok(expr.is::<CaseExpr>())))
        });
        if has_lazy_join? { Ok(plan) } else { self.inner.optimize(plan, config) }
    }
    fn name(&self) -> &str {
        Self::NAME
    }
    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }
}

/// True if every operator of a subplan has unique column names.
fn has_unique_names(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let schema = plan.schema();
    let mut names = HashSet::with_capacity(schema.fields().len());
    schema.fields().iter().all(|field| names.insert(field.name())) && plan.children().into_iter().all(has_unique_names)
}
