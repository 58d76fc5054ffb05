//! The operator: a join, and its execution in parts when the memory is exhausted.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::LimitStream;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, SpillMetrics};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties, SpillManager,
};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::files::{Parts, Split};
use super::input::{FeedExec, Input};
use super::keys::KeyFilter;
use super::order::{Order, Runs};
use super::shape::Shape;
use crate::base::tree::Tree;

/// Number of times that a part is split again. Each time divides it by the number of parts.
const DEPTH_MAX: usize = 4;

/// A join that spills. EXPLAIN shows it as the join.
#[derive(Debug)]
pub(in crate::plan) struct SpillingJoinExec {
    /// The join over the inputs of the plan.
    join: Arc<dyn ExecutionPlan>,
    shape: Shape,
    /// The join over [`Input`]s.
    running: Arc<dyn ExecutionPlan>,
    /// One for each left input.
    groups: Vec<Arc<Group>>,
    /// Number of times that the inputs have been split already.
    depth: usize,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// A left input and the right inputs that are joined with it.
#[derive(Debug)]
struct Group {
    left: Arc<Input>,
    rights: Vec<Arc<Input>>,
    left_parts: Mutex<Option<SharedParts>>,
    right_parts: Mutex<Option<SharedParts>>,
    /// Number of output partitions that are not finished.
    open: AtomicUsize,
}

/// A task that writes parts for several output partitions. It goes on if one of them is dropped.
type SharedParts = Shared<BoxFuture<'static, std::result::Result<Arc<Parts>, Arc<DataFusionError>>>>;

impl SpillingJoinExec {
    /// Replaces an operator if it is a join that can spill. `keeps_order`: it returns its rows in the order of its right
    /// input.
    pub fn replacing(plan: Arc<dyn ExecutionPlan>, keeps_order: bool) -> Result<Arc<dyn ExecutionPlan>> {
        let order = if keeps_order { Order::Right } else { Order::Any };
        Self::at(plan, order, 0, ExecutionPlanMetricsSet::new())
    }

    fn at(
        plan: Arc<dyn ExecutionPlan>,
        order: Order,
        depth: usize,
        metrics: ExecutionPlanMetricsSet,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match Shape::new(plan.as_ref(), order) {
            Some(shape) => Ok(Arc::new(Self::new(plan, shape, depth, metrics)?)),
            None => Ok(plan),
        }
    }

    fn new(
        join: Arc<dyn ExecutionPlan>,
        shape: Shape,
        depth: usize,
        metrics: ExecutionPlanMetricsSet,
    ) -> Result<SpillingJoinExec> {
        let [left, right] = join.children()[..] else {
            return Err(DataFusionError::Internal("a join has two inputs".into()));
        };
        let partitions = |plan: &Arc<dyn ExecutionPlan>| plan.output_partitioning().partition_count();
        let hash = join.downcast_ref::<HashJoinExec>();
        let filter = match hash {
            Some(hash) => KeyFilter::of(hash, partitions(left))?.map(Arc::new),
            None => None,
        };
        let build = |partition| Arc::new(Input::build(left.clone(), partition, filter.clone()));
        let lefts: Vec<Arc<Input>> = (0..partitions(left)).map(build).collect();
        let probe = |partition| Arc::new(Input::probe(right.clone(), partition));
        let rights: Vec<Arc<Input>> = (0..partitions(right)).map(probe).collect();
        let group = |(i, left): (usize, &Arc<Input>)| {
            let rights = if shape.shares_left { rights.clone() } else { vec![rights[i].clone()] };
            let (open, left) = (AtomicUsize::new(rights.len()), left.clone());
            Arc::new(Group { left, rights, left_parts: Mutex::default(), right_parts: Mutex::default(), open })
        };
        let groups = lefts.iter().enumerate().map(group).collect();
        let feeds: Vec<Arc<dyn ExecutionPlan>> = vec![
            Arc::new(FeedExec::new(left.clone(), lefts.clone(), None)),
            Arc::new(FeedExec::new(right.clone(), rights, Some(lefts))),
        ];
        let running = match hash.filter(|_| filter.is_some()) {
            // The join gets no filter of its own.
            Some(hash) => hash.builder().reset_state().with_new_children(feeds)?.build_exec()?,
            None => join.clone().replace_children(feeds, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))?,
        };
        let mut properties = join.properties().clone();
        if shape.order == Order::Any {
            // The parts are not joined in the order of the right input, so the operator declares no order.
            let mut equivalences = join.equivalence_properties().clone();
            equivalences.clear_orderings();
            properties = Arc::new(PlanProperties::clone(&properties).with_eq_properties(equivalences));
        }
        Ok(SpillingJoinExec { join, shape, running, groups, depth, properties, metrics })
    }

    /// Starts the join. The nested loop join gets no temporary files: its own fallback is switched off.
    fn start(&self, partition: usize, context: &Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if !self.shape.is_nested_loop() {
            return self.running.execute(partition, context.clone());
        }
        let disabled = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let runtime = RuntimeEnvBuilder::from_runtime_env(&context.runtime_env());
        let runtime = runtime.with_disk_manager_builder(disabled).build_arc()?;
        let context = TaskContext::new(
            context.task_id(),
            context.session_id(),
            context.session_config().clone(),
            context.scalar_functions().clone(),
            context.higher_order_functions().clone(),
            context.aggregate_functions().clone(),
            context.window_functions().clone(),
            runtime,
        );
        self.running.execute(partition, Arc::new(context))
    }
}

impl DisplayAs for SpillingJoinExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.join.fmt_as(format, f)
    }
}

impl ExecutionPlan for SpillingJoinExec {
    fn name(&self) -> &str {
        self.join.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.join.input_distribution_requirements()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        match self.shape.order {
            Order::Any => vec![false, false],
            Order::Right | Order::Numbered => self.join.maintains_input_order(),
        }
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.join.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.join.apply_expressions(f)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.join.dynamic_expressions_produced()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let join = self.join.clone().replace_children(children, options)?;
        Self::at(join, self.shape.order, self.depth, ExecutionPlanMetricsSet::new())
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Self::at(self.join.clone().reset_state()?, self.shape.order, self.depth, ExecutionPlanMetricsSet::new())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (group, place) = match self.shape.shares_left {
            true => (self.groups[0].clone(), partition),
            false => (self.groups[partition].clone(), 0),
        };
        group.left.start(&context)?;
        group.rights[place].start(&context)?;
        let joined = self.start(partition, &context)?;
        let open = Open { group: group.clone(), place };
        let spill = Spill {
            join: self.join.clone(),
            shape: self.shape.clone(),
            depth: self.depth,
            metrics: self.metrics.clone(),
            context,
            group,
            partition,
            place,
        };
        let rows = futures::stream::once(run(joined, spill)).try_flatten();
        let mut open = Some(open);
        let rows = rows.chain(futures::stream::poll_fn(move |_| {
            drop(open.take());
            Poll::Ready(None)
        }));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut metrics = self.running.metrics().unwrap_or_default();
        self.metrics.clone_inner().iter().for_each(|metric| metrics.push(metric.clone()));
        Some(metrics)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.join.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.join.statistics_from_inputs(inputs, args)
    }

    fn fetch(&self) -> Option<usize> {
        self.shape.fetch
    }
}

/// An output partition. At its end, or when it is dropped, its inputs are dropped, and with the last one the files of the group.
struct Open {
    group: Arc<Group>,
    place: usize,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.group.rights[self.place].close();
        if self.group.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.group.left.close();
            *self.group.left_parts.lock() = None;
            *self.group.right_parts.lock() = None;
        }
    }
}

/// Runs the join, and joins in parts if the memory is exhausted before it reads its right input.
async fn run(mut joined: SendableRecordBatchStream, spill: Spill) -> Result<SendableRecordBatchStream> {
    let first = joined.next().await;
    match first {
        Some(Err(error)) if spill.is_remedy(&error) => {
            drop(joined);
            spill.run().await
        }
        None => Ok(Box::pin(RecordBatchStreamAdapter::new(joined.schema(), futures::stream::empty()))),
        first => {
            let schema = joined.schema();
            Ok(Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::iter(first).chain(joined))))
        }
    }
}

/// The join of a partition in parts.
struct Spill {
    join: Arc<dyn ExecutionPlan>,
    shape: Shape,
    depth: usize,
    metrics: ExecutionPlanMetricsSet,
    context: Arc<TaskContext>,
    group: Arc<Group>,
    partition: usize,
    /// Place of the right input in the group.
    place: usize,
}

impl Spill {
    /// The error is one that a join in parts may avoid.
    fn is_remedy(&self, error: &DataFusionError) -> bool {
        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
            && self.depth < DEPTH_MAX
            && self.shape.is_divisible()
            && self.context.runtime_env().disk_manager.tmp_files_enabled()
            && !self.group.left.has_failed()
            && !self.group.rights[self.place].is_polled()
    }

    async fn run(self) -> Result<SendableRecordBatchStream> {
        let (left_split, right_split) = self.shape.splits(self.depth);
        let (metrics, order) = (SpillMetrics::new(&self.metrics, self.partition), self.shape.order);
        let group = self.group.clone();
        let lefts = vec![group.left.clone()];
        let left = self.shared(&group.left_parts, lefts, left_split, Order::Any, &metrics)?;
        // Left rows are returned once, so that one output partition joins a left part with all right rows. Otherwise each
        // output partition joins all left parts with its own right rows, whose partitioning the result keeps.
        let (right, step, first) = if self.shape.returns_left() && group.rights.len() > 1 {
            for input in &group.rights {
                input.start(&self.context)?;
            }
            let right = self.shared(&group.right_parts, group.rights.clone(), right_split, order, &metrics)?;
            (right, group.rights.len(), self.place)
        } else {
            let rights = vec![group.rights[self.place].clone()];
            (self.shared(&Mutex::default(), rights, right_split, order, &metrics)?, 1, 0)
        };
        let left = left.await.map_err(DataFusionError::Shared)?;
        let right = right.await.map_err(DataFusionError::Shared)?;
        let count = left.len().max(right.len());
        let pairs = (first..count).step_by(step);
        let (schema, fetch) = (self.join.schema(), self.shape.fetch);
        let baseline = BaselineMetrics::new(&self.metrics, self.partition);
        let rows_of = baseline.output_rows().clone();
        let counts = self.depth == 0;
        let rows: SendableRecordBatchStream = match order {
            Order::Any => {
                let pair = move |part: usize| self.pair(&left, &right, part);
                let rows = futures::stream::iter(pairs).map(pair).try_flatten();
                Box::pin(RecordBatchStreamAdapter::new(schema.clone(), rows))
            }
            Order::Right | Order::Numbered => {
                let manager = self.manager(order.schema_of_parts(&schema), &metrics);
                let mut runs = Runs::new(manager, self.context.clone());
                for part in pairs {
                    runs.write(self.pair(&left, &right, part)?).await?;
                }
                runs.merge(self.partition, schema.clone())?
            }
        };
        let rows = rows.inspect_ok(move |batch| {
            if counts {
                rows_of.add(batch.num_rows());
            }
        });
        let rows: SendableRecordBatchStream = Box::pin(RecordBatchStreamAdapter::new(schema, rows));
        match fetch {
            None => Ok(rows),
            Some(_) => {
                let uncounted = BaselineMetrics::new(&ExecutionPlanMetricsSet::new(), 0);
                Ok(Box::pin(LimitStream::new(rows, 0, fetch, uncounted)))
            }
        }
    }

    /// Writes and reads files of rows.
    fn manager(&self, schema: SchemaRef, metrics: &SpillMetrics) -> SpillManager {
        let manager = SpillManager::new(self.context.runtime_env(), metrics.clone(), schema);
        manager.with_compression_type(self.context.session_config().spill_compression())
    }

    /// Starts to write the parts of an input, or joins the task that writes them.
    fn shared(
        &self,
        parts: &Mutex<Option<SharedParts>>,
        inputs: Vec<Arc<Input>>,
        split: Split,
        order: Order,
        metrics: &SpillMetrics,
    ) -> Result<SharedParts> {
        let mut parts = parts.lock();
        if let Some(parts) = &*parts {
            return Ok(parts.clone());
        }
        let manager = self.manager(order.schema_of_parts(&inputs[0].schema()), metrics);
        let write = Parts::write(inputs, split, order, manager);
        let write = async move { write.await.map(Arc::new).map_err(Arc::new) };
        Ok(parts.insert(write.boxed().shared()).clone())
    }

    /// Joins a pair of parts.
    fn pair(&self, left: &Parts, right: &Parts, part: usize) -> Result<SendableRecordBatchStream> {
        let (l, r) = (part % left.len(), part % right.len());
        let (needs_left, needs_right) = self.shape.needs();
        if (needs_left && left.is_empty(l)) || (needs_right && right.is_empty(r)) {
            let schema = self.shape.order.schema_of_parts(&self.join.schema());
            return Ok(Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::empty())));
        }
        let join = self.shape.over(&self.join, left.read(l), right.read(r))?;
        let (order, depth) = (self.shape.order.of_parts(), self.depth + 1);
        let mut spilling = |plan: Arc<dyn ExecutionPlan>| match Shape::new(plan.as_ref(), order) {
            Some(_) => Ok(Transformed::yes(SpillingJoinExec::at(plan, order, depth, self.metrics.clone())?)),
            None => Ok(Transformed::no(plan)),
        };
        join.transform_up_dyn(&mut spilling)?.data.execute(0, self.context.clone())
    }
}
