//! Repartitioning that cannot wait for ever.
//!
//! DataFusion's `RepartitionExec` writes batches to temporary files when the memory is exhausted. With several inputs, the
//! writers of an output share a queue of files. The reader can wait for a file that an input has open, while this input
//! waits until a reader empties its channel (`docs/upstream.md`). [`ExchangeExec`] runs one repartitioning for each input:
//!
//! ```text
//! input 1 ── repartition ──┬─> output 1
//!                          ╳
//! input 2 ── repartition ──┴─> output 2
//! ```
//!
//! Each reader then finds the batches of an input in one file, in the order in which the input announced them.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements, Partitioning,
    PlanProperties,
};
use futures::stream::select_all;

/// A repartitioning. EXPLAIN shows it as `RepartitionExec`.
#[derive(Debug)]
pub(in crate::plan) struct ExchangeExec {
    /// The operator over the input of the plan.
    repartition: Arc<dyn ExecutionPlan>,
    /// The operator over each partition of the input.
    running: Vec<RepartitionExec>,
}

impl ExchangeExec {
    /// Replaces a repartitioning of several partitions that does not keep an order.
    pub fn replacing(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(repartition) = plan.downcast_ref::<RepartitionExec>() else { return Ok(plan) };
        let (input, count) = (repartition.input(), repartition.input().output_partitioning().partition_count());
        if count == 1 || repartition.preserve_order() {
            return Ok(plan);
        }
        let part = |partition| {
            let input: Arc<dyn ExecutionPlan> = Arc::new(PartitionExec::new(input.clone(), partition));
            RepartitionExec::try_new(input, repartition.partitioning().clone())
        };
        let running = (0..count).map(part).collect::<Result<_>>()?;
        Ok(Arc::new(ExchangeExec { repartition: plan, running }))
    }
}

impl DisplayAs for ExchangeExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.repartition.fmt_as(format, f)
    }
}

impl ExecutionPlan for ExchangeExec {
    fn name(&self) -> &str {
        self.repartition.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.repartition.properties()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.repartition.input_distribution_requirements()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.repartition.maintains_input_order()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.repartition.benefits_from_input_partitioning()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.repartition.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.repartition.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Self::replacing(self.repartition.clone().replace_children(children, options)?)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Self::replacing(self.repartition.clone().reset_state()?)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let parts = self.running.iter().map(|part| part.execute(partition, context.clone()));
        let parts = select_all(parts.collect::<Result<Vec<_>>>()?);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), parts)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut metrics = MetricsSet::new();
        for part in self.running.iter().filter_map(|part| part.metrics()) {
            part.iter().for_each(|metric| metrics.push(metric.clone()));
        }
        Some(metrics)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.repartition.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.repartition.statistics_from_inputs(inputs, args)
    }
}

/// One partition of an input.
#[derive(Debug)]
struct PartitionExec {
    input: Arc<dyn ExecutionPlan>,
    partition: usize,
    properties: Arc<PlanProperties>,
}

impl PartitionExec {
    fn new(input: Arc<dyn ExecutionPlan>, partition: usize) -> PartitionExec {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(1),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        PartitionExec { input, partition, properties: Arc::new(properties) }
    }
}

impl DisplayAs for PartitionExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "PartitionExec: {}", self.partition)
    }
}

impl ExecutionPlan for PartitionExec {
    fn name(&self) -> &str {
        "PartitionExec"
    }
    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
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
        let input = children.into_iter().next().unwrap_or_else(|| self.input.clone());
        Ok(Arc::new(PartitionExec::new(input, self.partition)))
    }
    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }
    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(self.partition, context)
    }
}
