//! Columns that are constant in an input, but not in the result.
//!
//! DataFusion 55 keeps the properties of both inputs of an outer join. A column that is the same in all rows of the
//! optional input, for example a literal, may be NULL in the result, but DataFusion omits it from sorts and takes its
//! groups for sorted. A column that is constant in each input of UNION ALL is omitted from sorts, too; but if there is a
//! limit, the partitions of a sort share a filter, which then discards rows of other inputs. [`ForgetConstants`] puts an
//! [`UnconstantExec`] above such inputs of outer joins and above such unions, which declares no constants.

use std::sync::Arc;

use crate::base::tree::Tree;
use datafusion::common::JoinType;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};

/// The rule. It comes before all rules that use the properties of operators.
#[derive(Debug)]
pub(super) struct ForgetConstants;

impl PhysicalOptimizerRule for ForgetConstants {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let rewritten = plan.transform_up_dyn(&mut |plan| {
            let optional = optional_inputs(plan.as_ref());
            let children: Vec<Arc<dyn ExecutionPlan>> = plan.children().into_iter().cloned().collect();
            let concerned = |(i, child): (usize, &Arc<dyn ExecutionPlan>)| {
                (optional.get(i) == Some(&true) || child.is::<UnionExec>())
                    && !plan.is::<UnconstantExec>()
                    && !child.equivalence_properties().constants().is_empty()
            };
            if !children.iter().enumerate().any(concerned) {
                return Ok(Transformed::no(plan));
            }
            let wrap = |(i, child)| match concerned((i, child)) {
                true => Arc::new(UnconstantExec::new(child.clone())) as Arc<dyn ExecutionPlan>,
                false => child.clone(),
            };
            let wrapped = children.iter().enumerate().map(wrap).collect();
            let recompute = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Ok(Transformed::yes(plan.replace_children(wrapped, recompute)?))
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "forget_constants"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// For each input of a join: the join supplies NULLs for its columns.
fn optional_inputs(plan: &dyn ExecutionPlan) -> [bool; 2] {
    let hash = plan.downcast_ref::<HashJoinExec>().map(|join| *join.join_type());
    let nested = plan.downcast_ref::<NestedLoopJoinExec>().map(|join| *join.join_type());
    let merge = plan.downcast_ref::<SortMergeJoinExec>().map(|join| join.join_type());
    match hash.or(nested).or(merge) {
        Some(JoinType::Left) => [false, true],
        Some(JoinType::Right) => [true, false],
        Some(JoinType::Full) => [true, true],
        _ => [false, false],
    }
}

/// Passes its input on, without the property that columns are constant.
#[derive(Debug, Clone)]
struct UnconstantExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl UnconstantExec {
    fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let orderings = input.equivalence_properties().oeq_class().iter().cloned();
        let equivalences = EquivalenceProperties::new_with_orderings(input.schema(), orderings);
        let properties = PlanProperties::clone(input.properties()).with_eq_properties(equivalences);
        UnconstantExec { input, properties: Arc::new(properties) }
    }
}

impl DisplayAs for UnconstantExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UnconstantExec")
    }
}

impl ExecutionPlan for UnconstantExec {
    fn name(&self) -> &str {
        "UnconstantExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(UnconstantExec::new(input))),
            Err(_) => Err(DataFusionError::Internal("UnconstantExec has one input".into())),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
