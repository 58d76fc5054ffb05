//! A task's share of the partitions of a leaf.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, EmptyRecordBatchStream, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use datafusion_distributed::DistributedTaskContext;

/// A leaf whose partitions several tasks execute: task `t` of `n` has the partitions `t`, `t + n`, `t + 2 n` and so on. The rows
/// of a partition are those of one partition of the leaf, in the same order.
#[derive(Debug)]
pub(crate) struct ShareExec {
    leaf: Arc<dyn ExecutionPlan>,
    tasks: usize,
    properties: Arc<PlanProperties>,
}

impl ShareExec {
    /// Divides the partitions of a leaf among `tasks` tasks.
    pub fn new(leaf: Arc<dyn ExecutionPlan>, tasks: usize) -> Self {
        let tasks = tasks.max(1);
        let partitions = leaf.output_partitioning().partition_count().div_ceil(tasks);
        let properties = leaf.properties().as_ref().clone();
        let properties = Arc::new(properties.with_partitioning(Partitioning::UnknownPartitioning(partitions)));
        ShareExec { leaf, tasks, properties }
    }
}

impl DisplayAs for ShareExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.leaf.fmt_as(format, f)?;
        match format {
            DisplayFormatType::TreeRender => write!(f, "\ntasks={}", self.tasks),
            _ => write!(f, ", tasks={}", self.tasks),
        }
    }
}

impl ExecutionPlan for ShareExec {
    fn name(&self) -> &str {
        self.leaf.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.leaf.apply_expressions(f)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let task = DistributedTaskContext::from_ctx(&context);
        assert_eq!(task.task_count, self.tasks, "a leaf is divided among the tasks of its stage");
        let of_leaf = partition * self.tasks + task.task_index;
        match of_leaf < self.leaf.output_partitioning().partition_count() {
            true => self.leaf.execute(of_leaf, context),
            false => Ok(Box::pin(EmptyRecordBatchStream::new(self.leaf.schema()))),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.leaf.metrics()
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.leaf.statistics_from_inputs(inputs, args)
    }
}
