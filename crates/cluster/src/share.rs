//! A task's share of the partitions of a leaf.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};
use datafusion_distributed::DistributedTaskContext;

/// A leaf whose partitions several tasks execute: task `t` of `n` has the partitions `t`, `t + n`, `t + 2 n` and so on. The rows
/// of a partition are those of one partition of the leaf, in the same order. A worker replaces it by [`ShareExec::of_task`].
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

    /// The leaf with the partitions of a task. It has as many as this operator; some may be empty.
    pub fn of_task(&self, task: &DistributedTaskContext) -> Result<Arc<dyn ExecutionPlan>> {
        if task.task_count != self.tasks || task.task_index >= self.tasks {
            return Err(DataFusionError::Internal(
                "a leaf is divided among other tasks than those of its stage".into(),
            ));
        }
        let count = |properties: &PlanProperties| properties.output_partitioning().partition_count();
        let (shares, partitions) = (count(&self.properties), count(self.leaf.properties()));
        let chosen = (0..shares).map(|share| share * self.tasks + task.task_index);
        let chosen: Vec<Option<usize>> = chosen.map(|place| Some(place).filter(|place| *place < partitions)).collect();
        let name = self.leaf.name();
        let leaf = keyaki::with_partitions(&self.leaf, &chosen);
        leaf.ok_or_else(|| DataFusionError::Internal(format!("{name} cannot be divided")))
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

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(DataFusionError::Internal("a divided leaf is executed without its task".into()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.leaf.metrics()
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.leaf.statistics_from_inputs(inputs, args)
    }
}
