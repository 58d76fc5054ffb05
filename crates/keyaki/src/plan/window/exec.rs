//! The operator in a plan.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, SpillMetrics};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, InputOrderMode, PlanProperties,
    SpillManager,
};

use super::functions::Functions;
use super::stream::{Resources, Windows};

/// Window functions. EXPLAIN shows it as the operator that it replaces.
#[derive(Debug)]
pub(in crate::plan) struct WindowExec {
    plan: Arc<dyn ExecutionPlan>,
    functions: Arc<Functions>,
    metrics: ExecutionPlanMetricsSet,
}

impl WindowExec {
    /// Replaces an operator of window functions if its input is sorted by the partition keys.
    pub fn replacing(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let functions = if let Some(window) = plan.downcast_ref::<BoundedWindowAggExec>() {
            if window.input_order_mode != InputOrderMode::Sorted {
                return Ok(Transformed::no(plan));
            }
            Functions::new(window.window_expr(), &window.input().schema(), true)?
        } else if let Some(window) = plan.downcast_ref::<WindowAggExec>() {
            Functions::new(window.window_expr(), &window.input().schema(), false)?
        } else {
            return Ok(Transformed::no(plan));
        };
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(Transformed::yes(Arc::new(WindowExec { plan, functions: Arc::new(functions), metrics })))
    }

    fn input(&self) -> &Arc<dyn ExecutionPlan> {
        self.plan.children()[0]
    }
}

impl DisplayAs for WindowExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.plan.fmt_as(format, f)
    }
}

impl ExecutionPlan for WindowExec {
    fn name(&self) -> &str {
        self.plan.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.plan.input_distribution_requirements()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.plan.required_input_ordering()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.plan.maintains_input_order()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.plan.benefits_from_input_partitioning()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.plan.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.plan.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::replacing(self.plan.clone().replace_children(children, options)?)?.data)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::replacing(self.plan.clone().reset_state()?)?.data)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input().execute(partition, context.clone())?;
        let consumer = MemoryConsumer::new(format!("WindowExec[{partition}]"));
        let spills = SpillMetrics::new(&self.metrics, partition);
        let resources = Resources {
            batch_rows: context.session_config().batch_size(),
            reservation: consumer.register(context.memory_pool()),
            spills: SpillManager::new(context.runtime_env(), spills, input.schema()),
        };
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        Ok(Windows::new(input, self.functions.clone(), self.schema(), resources, metrics).into_stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.plan.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.plan.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
