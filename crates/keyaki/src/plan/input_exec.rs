//! The physical operator of an index pipeline whose driver is another operator.
//!
//! Each batch of the input starts lookups; the input is polled when the pipeline has room for more. Otherwise the operator
//! equals [`IndexPipelineExec`](super::exec::IndexPipelineExec). If several machines execute the plan, rows of the input with the
//! same first key to look up are in one partition, and each partition drives a pipeline.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements, Partitioning,
    PlanProperties,
};

use super::exec::IndexPipelineOperator;
use crate::table::LeafOperator;

/// An index pipeline over the rows of `input`, with a partition for each of its partitions.
#[derive(Debug)]
pub(super) struct InputPipelineExec {
    operator: IndexPipelineOperator,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl InputPipelineExec {
    /// The columns of `input` are those of the operator's first access.
    pub fn new(operator: IndexPipelineOperator, input: Arc<dyn ExecutionPlan>) -> Self {
        let partitions = Partitioning::UnknownPartitioning(input.output_partitioning().partition_count());
        let properties = Arc::new(operator.properties().with_partitioning(partitions));
        InputPipelineExec { operator, input, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    pub fn operator(&self) -> &IndexPipelineOperator {
        &self.operator
    }
}

impl DisplayAs for InputPipelineExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.operator.describe(format, f)
    }
}

impl ExecutionPlan for InputPipelineExec {
    fn name(&self) -> &str {
        IndexPipelineOperator::NAME
    }
    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }
    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let keys = self.operator.divided_by(&self.input.schema());
        InputDistributionRequirements::new(vec![match keys.is_empty() {
            true => Distribution::SinglePartition,
            false => Distribution::KeyPartitioned(keys),
        }])
    }
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }
    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return Err(DataFusionError::Internal("an index pipeline has one input".into()));
        };
        Ok(Arc::new(InputPipelineExec::new(self.operator.clone(), input)))
    }
    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }
    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut recursion = TreeNodeRecursion::Continue;
        for expr in self.operator.expressions() {
            recursion = recursion.visit_sibling(|| f(expr))?;
        }
        Ok(recursion)
    }
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context.clone())?;
        Ok(self.operator.stream(partition, Some(input), &context, &self.metrics))
    }
    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(self.operator.statistics(args.partition()))
    }
    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(Arc::new(InputPipelineExec::new(self.operator.with_fetch(fetch)?, self.input.clone())))
    }
    fn fetch(&self) -> Option<usize> {
        self.operator.fetch()
    }
}
