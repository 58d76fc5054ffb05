//! Works around wrong results of DataFusion's physical filter pushdown.
//!
//! DataFusion 55 pushes filters (including the dynamic filters of joins and of ORDER BY … LIMIT) through operators by
//! column *name*. If two columns of a schema have the same name, as after a join of two tables with a column `id`, a
//! filter on the second column becomes a filter on the first, and the query silently loses rows.
//!
//! [`GuardedPushdown`] applies the rule only to subplans in which no operator below the root has duplicate column
//! names. The root may have them: its own filters reach its inputs by index. DataFusion pushes a filter on a key of a semi
//! join into both inputs: a semi join is excluded, too, if the other input has another column with the name of the key.

use std::collections::HashSet;
use std::sync::Arc;

use crate::base::tree::Tree;
use datafusion::common::JoinType;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{CaseExpr, Column};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

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
///
/// When the rule exchanges a filter with a projection above it, it uses indices of columns behind the filter's own
/// projection for columns before it. Projections of filters become operators of their own first; the rule puts them back.
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
        if has_lazy_join? {
            return Ok(plan);
        }
        self.inner.optimize(plan.transform_up_dyn(&mut without_projection)?.data, config)
    }
    fn name(&self) -> &str {
        Self::NAME
    }
    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }
}

/// A filter with a projection becomes a projection of the filter.
fn without_projection(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(filter) = plan.downcast_ref::<FilterExec>() else { return Ok(Transformed::no(plan)) };
    let Some(columns) = filter.projection() else { return Ok(Transformed::no(plan)) };
    let all = Arc::new(FilterExecBuilder::from(filter).apply_projection(None)?.build()?);
    let schema = all.schema();
    let column = |&index: &usize| {
        let name = schema.field(index).name();
        ProjectionExpr { expr: Arc::new(Column::new(name, index)), alias: name.clone() }
    };
    let columns: Vec<ProjectionExpr> = columns.iter().map(column).collect();
    Ok(Transformed::yes(Arc::new(ProjectionExec::try_new(columns, all)?)))
}

/// True if every operator of a subplan has unique column names, and no semi join misleads filters.
fn has_unique_names(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let schema = plan.schema();
    let mut names = HashSet::with_capacity(schema.fields().len());
    schema.fields().iter().all(|field| names.insert(field.name()))
        && !plan.downcast_ref::<HashJoinExec>().is_some_and(is_misleading)
        && plan.children().into_iter().all(has_unique_names)
}

/// True for a semi join if a key of its result has the name of another column of the other input.
fn is_misleading(join: &HashJoinExec) -> bool {
    let (left, right) = (join.left().schema(), join.right().schema());
    join.on().iter().any(|(left_key, right_key)| {
        let (kept, other_key, other) = match join.join_type() {
            JoinType::LeftSemi => (left_key, right_key, &right),
            JoinType::RightSemi => (right_key, left_key, &left),
            _ => return false,
        };
        let name = |key: &PhysicalExprRef| key.downcast_ref::<Column>().map(|column| column.name().to_string());
        name(kept).is_some_and(|kept| {
            other.fields().iter().any(|field| *field.name() == kept) && name(other_key).as_ref() != Some(&kept)
        })
    })
}
