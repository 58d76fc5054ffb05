//! The operators of [`Materialize`](super::Materialize) and [`MaterializedScan`](super::MaterializedScan).

use std::collections::HashMap;
use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
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
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use futures::{StreamExt, TryStreamExt};

use super::rows::SharedRows;
use crate::base::tree::Tree;
use crate::table::{LeafExec, LeafOperator};

/// Keeps the rows of its input, and returns them with the partitions and the order of the input.
#[derive(Debug)]
pub(in crate::plan) struct MaterializeExec {
    name: String,
    /// Positions of the columns that scans read.
    columns: Vec<usize>,
    input: Arc<dyn ExecutionPlan>,
    /// `None` before [`bind`]: the operator passes rows on.
    rows: Option<Arc<SharedRows>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl MaterializeExec {
    pub fn new(name: String, columns: Vec<usize>, input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = Arc::new(PlanProperties::clone(input.properties()));
        MaterializeExec { name, columns, input, rows: None, properties, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl DisplayAs for MaterializeExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "MaterializeExec: {}", self.name)
    }
}

impl ExecutionPlan for MaterializeExec {
    fn name(&self) -> &str {
        "MaterializeExec"
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
    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return Err(DataFusionError::Internal("MaterializeExec has one input".into()));
        };
        let new = MaterializeExec::new(self.name.clone(), self.columns.clone(), input);
        Ok(Arc::new(match &self.rows {
            Some(rows) => new.bound(rows.clone()),
            None => new,
        }))
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
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = self.input.clone();
        self.replace_children(vec![input], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        match &self.rows {
            Some(rows) => {
                let count = MetricBuilder::new(&self.metrics).output_rows(partition);
                let rows = rows.partition(partition, &context)?;
                let counted = rows.inspect_ok(move |batch| count.add(batch.num_rows()));
                Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), counted)))
            }
            None => self.input.execute(partition, context),
        }
    }
    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(inputs[0].clone())
    }
}

impl MaterializeExec {
    /// The operator that keeps its rows in `rows`.
    fn bound(self, rows: Arc<SharedRows>) -> Self {
        rows.set_source(self.input.clone(), self.metrics.clone());
        MaterializeExec { rows: Some(rows), ..self }
    }
}

/// [`MaterializedScanOperator`] in a physical plan.
pub(in crate::plan) type MaterializedScanExec = LeafExec<MaterializedScanOperator>;

/// Returns columns of rows that a [`MaterializeExec`] keeps.
#[derive(Debug)]
pub(in crate::plan) struct MaterializedScanOperator {
    name: String,
    /// Before [`bind`], indices into [`Materialize::columns`](super::Materialize::columns). After it, positions in the rows.
    columns: Vec<usize>,
    schema: SchemaRef,
    /// Estimated rows.
    estimate: u64,
    rows: Option<Arc<SharedRows>>,
}

impl MaterializedScanOperator {
    pub fn new(name: String, columns: Vec<usize>, schema: SchemaRef, estimate: u64) -> Self {
        MaterializedScanOperator { name, columns, schema, estimate, rows: None }
    }
}

impl LeafOperator for MaterializedScanOperator {
    const NAME: &'static str = "MaterializedScanExec";

    fn properties(&self) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(self.schema.clone()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
    }

    fn describe(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        let columns: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "{}: {}, columns=[{}]", Self::NAME, self.name, columns.join(", "))
    }

    fn execute(
        &self,
        _partition: usize,
        task: &Arc<TaskContext>,
        _: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let Some(rows) = &self.rows else {
            return Err(DataFusionError::Internal(format!("{} is not bound", self.name)));
        };
        let (schema, columns) = (self.schema.clone(), self.columns.clone());
        let projected = rows.all(task)?.map(move |batch| {
            let batch = batch?;
            // The optimizer may have changed whether a column of the input is nullable.
            let columns = columns.iter().map(|&column| batch.column(column).clone()).collect();
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), projected)))
    }

    fn statistics(&self, _: Option<usize>) -> Arc<Statistics> {
        let mut statistics = Statistics::new_unknown(&self.schema);
        statistics.num_rows = Precision::Inexact(self.estimate as usize);
        Arc::new(statistics)
    }
}

/// Connects the scans of a physical plan with the operators that keep their rows. To be called once, after all changes
/// of the plan.
///
/// The optimizer may have copied a subquery: a predicate in which it occurs twice becomes two joins. Then several
/// operators have the same name. The rows of a scan are kept by the operator below the lowest node that has both below
/// it.
///
/// # Errors
/// `Internal` if the rows of a scan are not kept, or if several operators below that node keep them.
pub(in crate::plan) fn bind(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let mut sources = Sources::default();
    if let Some((name, _)) = sources.visit(&plan)?.scans.first() {
        return Err(DataFusionError::Internal(format!("the rows of {name} are not kept")));
    }
    if sources.of_scans.is_empty() {
        return Ok(plan);
    }
    let mut nodes = 0;
    let bound = plan.transform_up_dyn(&mut |node| {
        let place = nodes;
        nodes += 1;
        if let Some(node) = node.downcast_ref::<MaterializeExec>() {
            let new = MaterializeExec::new(node.name.clone(), node.columns.clone(), node.input.clone());
            let rows = sources.kept.get(&place).filter(|kept| kept.is_scanned).map(|kept| kept.rows.clone());
            let new = rows.into_iter().fold(new, MaterializeExec::bound);
            return Ok(Transformed::yes(Arc::new(new) as Arc<dyn ExecutionPlan>));
        }
        let scan = node.downcast_ref::<MaterializedScanExec>().map(LeafExec::operator);
        let Some(scan) = scan else { return Ok(Transformed::no(node)) };
        let kept = &sources.kept[&sources.of_scans[&place]];
        let columns = scan.columns.iter().map(|&column| kept.columns[column]).collect();
        let new = MaterializedScanOperator::new(scan.name.clone(), columns, scan.schema.clone(), scan.estimate);
        let new = MaterializedScanOperator { rows: Some(kept.rows.clone()), ..new };
        Ok(Transformed::yes(Arc::new(MaterializedScanExec::new(new)) as Arc<dyn ExecutionPlan>))
    })?;
    Ok(bound.data)
}

/// The operators whose rows the scans of a plan read. A node is identified by its place in post-order.
#[derive(Default)]
struct Sources {
    /// Nodes visited.
    nodes: usize,
    kept: HashMap<usize, Kept>,
    /// The operator that keeps the rows of each scan.
    of_scans: HashMap<usize, usize>,
}

/// The rows of a [`MaterializeExec`].
struct Kept {
    columns: Vec<usize>,
    rows: Arc<SharedRows>,
    is_scanned: bool,
}

/// Names and places of nodes in a part of a plan.
#[derive(Default)]
struct Names {
    kept: Vec<(String, usize)>,
    /// Scans whose rows are kept elsewhere.
    scans: Vec<(String, usize)>,
}

impl Sources {
    fn visit(&mut self, node: &Arc<dyn ExecutionPlan>) -> Result<Names> {
        let mut names = Names::default();
        for child in node.children() {
            let below = self.visit(child)?;
            names.kept.extend(below.kept);
            names.scans.extend(below.scans);
        }
        for (name, scan) in std::mem::take(&mut names.scans) {
            let mut places = names.kept.iter().filter(|(kept, _)| *kept == name).map(|&(_, place)| place);
            match (places.next(), places.next()) {
                (None, _) => names.scans.push((name, scan)),
                (Some(place), None) => {
                    self.of_scans.insert(scan, place);
                    self.kept.entry(place).and_modify(|kept| kept.is_scanned = true);
                }
                (Some(_), Some(_)) => return Err(DataFusionError::Internal(format!("{name} is kept twice"))),
            }
        }
        let place = self.nodes;
        self.nodes += 1;
        if let Some(scan) = node.downcast_ref::<MaterializedScanExec>() {
            names.scans.push((scan.operator().name.clone(), place));
        }
        if let Some(node) = node.downcast_ref::<MaterializeExec>() {
            if names.scans.iter().any(|(name, _)| *name == node.name) {
                return Err(DataFusionError::Internal(format!("{} is scanned by its own input", node.name)));
            }
            let kept = Kept { columns: node.columns.clone(), rows: Arc::default(), is_scanned: false };
            self.kept.insert(place, kept);
            names.kept.push((node.name.clone(), place));
        }
        Ok(names)
    }
}
