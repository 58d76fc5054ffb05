//! Properties of inputs that the result does not have, although DataFusion derives them.
//!
//! DataFusion 55 keeps the properties of both inputs of an outer join. A column that is the same in all rows of the
//! optional input, for example a literal, may be NULL in the result, but DataFusion omits it from sorts and takes its
//! groups for sorted. A column that is constant in each input of UNION ALL is omitted from sorts, too; but if there is a
//! limit, the partitions of a sort share a filter, which then discards rows of other inputs. An aggregate with several
//! grouping sets takes an order of its input for one of its groups, but it goes through each batch once for each set: groups
//! end too early, and are returned several times. [`ForgetProperties`] puts a [`ForgetExec`] above such inputs of outer joins
//! and aggregates and above such unions, which declares no constants, or none and no order.

use std::sync::Arc;

use crate::base::tree::Tree;
use datafusion::common::JoinType;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};

/// The rule. It comes before all rules that use the properties of operators.
#[derive(Debug)]
pub(super) struct ForgetProperties;

impl PhysicalOptimizerRule for ForgetProperties {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let rewritten = plan.transform_up_dyn(&mut |plan| {
            let children: Vec<Arc<dyn ExecutionPlan>> = plan.children().into_iter().cloned().collect();
            let forgotten: Vec<_> = children.iter().enumerate().map(|(i, child)| forgotten(&*plan, i, child)).collect();
            if forgotten.iter().all(Option::is_none) {
                return Ok(Transformed::no(plan));
            }
            let wrap = |(child, forgotten)| match forgotten {
                Some(forgotten) => Arc::new(ForgetExec::new(child, forgotten)) as Arc<dyn ExecutionPlan>,
                None => child,
            };
            let wrapped = children.into_iter().zip(forgotten).map(wrap).collect();
            let recompute = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Ok(Transformed::yes(plan.replace_children(wrapped, recompute)?))
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "forget_properties"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Properties that a [`ForgetExec`] does not declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forgotten {
    Constants,
    ConstantsAndOrders,
}

/// The properties of input `i` of an operator that the operator must not use.
fn forgotten(plan: &dyn ExecutionPlan, i: usize, input: &Arc<dyn ExecutionPlan>) -> Option<Forgotten> {
    let known = input.equivalence_properties();
    let groups = plan.downcast_ref::<AggregateExec>().map_or(0, |aggregate| aggregate.group_expr().groups().len());
    let is_optional = optional_inputs(plan).get(i) == Some(&true) || input.is::<UnionExec>();
    let has_constants = !known.constants().is_empty();
    match groups {
        _ if plan.is::<ForgetExec>() => None,
        2.. if has_constants || !known.oeq_class().is_empty() => Some(Forgotten::ConstantsAndOrders),
        _ if is_optional && has_constants => Some(Forgotten::Constants),
        _ => None,
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

/// Passes its input on, without some of its properties.
#[derive(Debug, Clone)]
struct ForgetExec {
    input: Arc<dyn ExecutionPlan>,
    forgotten: Forgotten,
    properties: Arc<PlanProperties>,
}

impl ForgetExec {
    fn new(input: Arc<dyn ExecutionPlan>, forgotten: Forgotten) -> Self {
        let orderings = input.equivalence_properties().oeq_class().iter().cloned();
        let equivalences = match forgotten {
            Forgotten::Constants => EquivalenceProperties::new_with_orderings(input.schema(), orderings),
            Forgotten::ConstantsAndOrders => EquivalenceProperties::new(input.schema()),
        };
        let properties = PlanProperties::clone(input.properties()).with_eq_properties(equivalences);
        ForgetExec { input, forgotten, properties: Arc::new(properties) }
    }
}

impl DisplayAs for ForgetExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ForgetExec")
    }
}

impl ExecutionPlan for ForgetExec {
    fn name(&self) -> &str {
        "ForgetExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![self.forgotten == Forgotten::Constants]
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
            Ok([input]) => Ok(Arc::new(ForgetExec::new(input, self.forgotten))),
            Err(_) => Err(DataFusionError::Internal("ForgetExec has one input".into())),
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
