//! The operators of [`Shared`](super::Shared).

use std::collections::HashMap;
use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, EmptyRecordBatchStream, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::TryStreamExt;

use crate::base::tree::Tree;
use crate::plan::materialize::SharedRows;

/// Returns the rows of its input, which is executed once for all operators with the same name. Rows are in no order.
#[derive(Debug)]
pub(in crate::plan) struct SharedExec {
    name: String,
    /// `None` if another operator with the same name has the input.
    input: Option<Arc<dyn ExecutionPlan>>,
    /// `None` before [`bind`].
    rows: Option<Arc<SharedRows>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl SharedExec {
    /// An operator that is not bound yet.
    pub fn new(name: String, input: Arc<dyn ExecutionPlan>) -> Self {
        // Other operators with the name may have an input with other properties.
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let (properties, metrics) = (Arc::new(properties), ExecutionPlanMetricsSet::new());
        SharedExec { name, input: Some(input), rows: None, properties, metrics }
    }

    /// The operator that reads `rows`. It is their source if it `has_input`.
    fn bound(&self, rows: Arc<SharedRows>, has_input: bool) -> Self {
        let metrics = ExecutionPlanMetricsSet::new();
        let input = self.input.clone().filter(|_| has_input);
        if let Some(input) = &input {
            rows.set_source(input.clone(), metrics.clone());
        }
        let (name, properties) = (self.name.clone(), self.properties.clone());
        SharedExec { name, input, rows: Some(rows), properties, metrics }
    }
}

impl DisplayAs for SharedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "SharedExec: {}", self.name)
    }
}

impl ExecutionPlan for SharedExec {
    fn name(&self) -> &str {
        "SharedExec"
    }
    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.input.iter().collect()
    }
    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (<[_; 1]>::try_from(children), &self.rows) {
            (Ok([input]), None) => Ok(Arc::new(SharedExec::new(self.name.clone(), input))),
            // A recursive query resets the state of its plan before each step.
            (Ok([input]), Some(rows)) if reads_work_table(&input) => {
                Ok(Arc::new(SharedExec::new(self.name.clone(), input).bound(rows.clone(), true)))
            }
            (_, Some(_)) => Ok(self),
            (Err(_), None) => Err(DataFusionError::Internal("SharedExec has one input".into())),
        }
    }
    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }
    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }
    /// Rows are kept, unless they depend on the step of a recursive query.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let children = self.input.iter().cloned().collect();
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(rows) = &self.rows else {
            return Err(DataFusionError::Internal(format!("{} is not bound", self.name)));
        };
        let own = self.properties.partitioning.partition_count();
        // Operators without the input may have been planned with another number of partitions.
        let rows = match (rows.partitions()? == own, partition) {
            (true, partition) => rows.partition(partition, &context)?,
            (false, 0) => rows.all(&context)?,
            (false, _) => return Ok(Box::pin(EmptyRecordBatchStream::new(self.schema()))),
        };
        let count = MetricBuilder::new(&self.metrics).output_rows(partition);
        let schema = self.schema();
        let rows = rows.map_ok(move |batch| {
            count.add(batch.num_rows());
            batch
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(inputs.first().cloned().unwrap_or_else(|| Arc::new(Statistics::new_unknown(&self.schema()))))
    }
}

fn reads_work_table(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.name() == "WorkTableExec" || plan.children().into_iter().any(reads_work_table)
}

/// Connects the operators with the same name in a physical plan. To be called once, after all changes of the plan.
pub(in crate::plan) fn bind(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let mut known: HashMap<String, Arc<SharedRows>> = HashMap::new();
    // Inputs come before the operators that read them: an input that shares rows itself is bound once.
    let bound = plan.transform_up_dyn(&mut |node| {
        let Some(shared) = node.downcast_ref::<SharedExec>() else { return Ok(Transformed::no(node)) };
        let new = match known.get(&shared.name) {
            Some(rows) => shared.bound(rows.clone(), false),
            None => shared.bound(known.entry(shared.name.clone()).or_default().clone(), true),
        };
        Ok(Transformed::yes(Arc::new(new) as Arc<dyn ExecutionPlan>))
    });
    Ok(bound?.data)
}
