//! The physical operator of an index pipeline.
//!
//! The operator translates a [`PipelineSpec`] to a [`Pipeline`] of the executor and renames the output columns. It has
//! one partition and declares no ordering: rows arrive in the order in which their reads complete. The first poll of
//! the stream starts the pipeline; dropping the stream cancels it and records its metrics.

use std::fmt::{self, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, JoinType, Statistics};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::{
    DisplayFormatType, EmptyRecordBatchStream, ExecutionPlan, Partitioning, PlanProperties,
};
use futures::{Stream, StreamExt};
use keyaki_exec::{Driver, DriverScan, Filter, Join, KeyPart, Pipeline, Rows, Stats, Step};
use keyaki_store::KeyRange;

use super::node::{AccessSpec, KeyValue, Milliseconds, PipelineSpec};
use crate::table::{
    ExprFilter, LeafExec, LeafOperator, NOTHING, Parts, PlanContext, PlannedTree, ScanExec, add, choose, partition,
    write_partitions,
};

/// Assumed average size of a value in bytes, from which DataFusion chooses the build side of a hash join.
const VALUE_BYTES: f64 = 16.0;

/// [`IndexPipelineOperator`] in a physical plan.
pub(super) type IndexPipelineExec = LeafExec<IndexPipelineOperator>;

/// The operator of a [`PipelineSpec`].
#[derive(Debug, Clone)]
pub(super) struct IndexPipelineOperator {
    spec: Arc<PipelineSpec>,
    /// Residual filter of each access of the specification.
    filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
    context: PlanContext,
    /// Maximum number of rows that each partition returns.
    fetch: Option<usize>,
    /// Key ranges of the driver for each partition; none for a driver without a tree, which has one partition.
    parts: Arc<Vec<Vec<KeyRange>>>,
}

impl IndexPipelineOperator {
    /// `filters` are the physical forms of the filters in `spec.accesses`, in the same order.
    pub(super) fn new(
        spec: Arc<PipelineSpec>,
        filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
        context: PlanContext,
    ) -> Self {
        let parts = Arc::new(parts(&spec.accesses[0], &context));
        IndexPipelineOperator { spec, filters, context, fetch: None, parts }
    }

    /// The trees that the pipeline reads, with the columns of each access.
    pub(super) fn reads(&self) -> impl Iterator<Item = (&PlannedTree, &[usize])> {
        self.spec.accesses.iter().filter_map(|access| Some((access.view.as_ref()?, &*access.columns)))
    }

    /// The columns of an input, which has this schema, by which it is divided among machines: those of the first key to look up.
    /// None if it is not divided.
    pub(super) fn divided_by(&self, input: &SchemaRef) -> Vec<Arc<dyn PhysicalExpr>> {
        let (Some(_), [driver, first, ..]) = (&self.context.distribution, self.spec.accesses.as_slice()) else {
            return Vec::new();
        };
        let column = |value: &KeyValue| {
            let KeyValue::Column(carried) = value else { return None };
            let place = driver.keep.as_ref().map_or(*carried, |kept| kept[*carried]);
            Some(Arc::new(Column::new(input.field(place).name(), place)) as Arc<dyn PhysicalExpr>)
        };
        first.key.iter().filter_map(column).collect()
    }

    /// The operator with some of its partitions, and with empty ones in place of `None`.
    fn with_partitions(&self, chosen: &[Option<usize>]) -> Self {
        IndexPipelineOperator { parts: Arc::new(choose(&self.parts, chosen)), ..self.clone() }
    }

    /// Estimated elapsed seconds without those of the input.
    pub(super) fn own_seconds(&self) -> f64 {
        self.spec.seconds - self.spec.input_seconds
    }

    /// Translates the specification for a partition. A smaller `fetch` limits the batch size.
    fn pipeline(&self, partition: usize, batch_rows: usize) -> Result<Pipeline> {
        let filter =
            |i: usize| self.filters[i].as_ref().map(|expr| Arc::new(ExprFilter::new(expr.clone())) as Arc<dyn Filter>);
        let first = &self.spec.accesses[0];
        let driver = match &first.view {
            Some(view) => Driver::Scan(DriverScan {
                view: view.stored()?.clone(),
                ranges: self.parts[partition].clone(),
                columns: first.columns.clone(),
                filter: filter(0),
            }),
            None => Driver::Pushed(first.scope.inner().clone()),
        };
        let steps = self.spec.accesses.iter().enumerate().skip(1);
        let steps = steps.map(|(i, access)| step(access, filter(i))).collect::<Result<Vec<_>>>()?;
        Ok(Pipeline {
            driver,
            steps,
            mode: self.context.options.execution,
            batch_rows: self.fetch.map_or(batch_rows, |fetch| fetch.clamp(1, batch_rows)),
            memory_bytes: self.context.pipeline_memory_bytes,
            whole_pages: false,
        })
    }

    /// The output of a partition. `input` has the rows of a driver without a tree.
    pub(super) fn stream(
        &self,
        partition: usize,
        input: Option<SendableRecordBatchStream>,
        context: &TaskContext,
        metrics: &ExecutionPlanMetricsSet,
    ) -> SendableRecordBatchStream {
        let schema = self.spec.schema.inner().clone();
        if self.fetch == Some(0) {
            return Box::pin(EmptyRecordBatchStream::new(schema));
        }
        Box::pin(PipelineStream {
            schema,
            partition,
            batch_rows: context.session_config().batch_size(),
            rows: RowsState::NotStarted,
            input,
            remaining: self.fetch,
            baseline: BaselineMetrics::new(metrics, partition),
            metrics: metrics.clone(),
            plan: self.clone(),
        })
    }

    /// Starts the pipeline and registers its statistics with the session.
    fn start(&self, partition: usize, batch_rows: usize) -> Result<Rows> {
        let cache = self.context.cache.lookups();
        let rows = self.context.executor.pipeline_as(self.pipeline(partition, batch_rows)?, cache);
        let name = format!("pipeline {}", self.spec.path());
        self.context.last_stats.lock().push((name, rows.stats().clone()));
        Ok(rows)
    }
}

/// A leaf with some of its partitions, and with empty ones in place of `None`. `None` for operators that are not divided.
pub(crate) fn with_partitions(
    leaf: &Arc<dyn ExecutionPlan>,
    chosen: &[Option<usize>],
) -> Option<Arc<dyn ExecutionPlan>> {
    if let Some(scan) = leaf.downcast_ref::<ScanExec>() {
        return Some(Arc::new(ScanExec::new(scan.operator().with_partitions(chosen))));
    }
    let pipeline = leaf.downcast_ref::<IndexPipelineExec>()?;
    Some(Arc::new(IndexPipelineExec::new(pipeline.operator().with_partitions(chosen))))
}

/// The key ranges of the driver for each partition: one, unless several machines execute the plan.
fn parts(driver: &AccessSpec, context: &PlanContext) -> Vec<Vec<KeyRange>> {
    let Some(view) = &driver.view else { return Vec::new() };
    match &context.distribution {
        Some(shared) => {
            let total = driver.ranges.iter().map(|range| view.estimate(range)).fold(NOTHING, add);
            let parts = Parts::of_rows(shared.workers, shared.split.driver_rows);
            partition(view, driver.ranges.clone(), total, parts, None)
        }
        None => vec![driver.ranges.clone()],
    }
}

fn step(access: &AccessSpec, filter: Option<Arc<dyn Filter>>) -> Result<Step> {
    let part = |value: &KeyValue| match value {
        KeyValue::Column(column) => Ok(KeyPart::Column(*column)),
        KeyValue::Constant(value) => value.to_array().map(KeyPart::Constant),
    };
    let Some(view) = &access.view else {
        return Err(DataFusionError::Internal("a lookup step without a tree".into()));
    };
    let join = match access.join {
        JoinType::Inner => Join::Inner,
        JoinType::Left => Join::LeftOuter,
        JoinType::LeftSemi => Join::LeftSemi,
        JoinType::LeftAnti => Join::LeftAnti,
        other => return Err(DataFusionError::Internal(format!("a lookup step of a {other} join"))),
    };
    Ok(Step {
        view: view.stored()?.clone(),
        key: access.key.iter().map(part).collect::<Result<Vec<_>>>()?,
        columns: access.columns.clone(),
        join,
        filter,
        keep: access.keep.clone(),
    })
}

impl LeafOperator for IndexPipelineOperator {
    const NAME: &'static str = "IndexPipelineExec";

    fn properties(&self) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(self.spec.schema.inner().clone()),
            Partitioning::UnknownPartitioning(self.parts.len().max(1)),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative)
    }

    fn describe(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        let mode = self.context.options.execution;
        let filters = self.filters.iter().flatten().map(|filter| filter.to_string());
        let filters: Vec<String> = filters.collect();
        if matches!(format, DisplayFormatType::TreeRender) {
            writeln!(f, "mode={mode}")?;
            writeln!(f, "{}", self.spec.path())?;
            return write!(f, "est_rows={:.0}\nest_ms={}", self.spec.rows, Milliseconds(self.spec.seconds));
        }
        write!(f, "IndexPipelineExec: {mode}, {}", self.spec.path())?;
        if !filters.is_empty() {
            write!(f, ", filters=[{}]", filters.join("; "))?;
        }
        if let Some(fetch) = self.fetch {
            write!(f, ", fetch={fetch}")?;
        }
        write!(f, ", {}", self.spec.estimates())?;
        if self.context.distribution.is_some() {
            write_partitions(f, format, &self.parts)?;
        }
        match self.context.cache.class_of_pipeline() {
            // Each machine has its own.
            Some(class) if self.context.distribution.is_none() => write!(f, ", class={class}"),
            _ => Ok(()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        if self.parts[partition].is_empty() {
            return Ok(Box::pin(EmptyRecordBatchStream::new(self.spec.schema.inner().clone())));
        }
        Ok(self.stream(partition, None, context, metrics))
    }

    fn statistics(&self, _: Option<usize>) -> Arc<Statistics> {
        let rows = self.fetch.map_or(self.spec.rows, |fetch| self.spec.rows.min(fetch as f64)).max(0.0);
        let columns = self.spec.distinct.iter().map(|distinct| ColumnStatistics {
            distinct_count: Precision::Inexact(distinct.min(rows).max(0.0) as usize),
            ..ColumnStatistics::new_unknown()
        });
        Arc::new(Statistics {
            num_rows: Precision::Inexact(rows as usize),
            total_byte_size: Precision::Inexact((rows * VALUE_BYTES * columns.len() as f64) as usize),
            column_statistics: columns.collect(),
        })
    }

    fn expressions(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.filters.iter().flatten().collect()
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Self> {
        Some(IndexPipelineOperator { fetch, ..self.clone() })
    }
}

/// Output stream of a pipeline. Starts the pipeline at the first poll.
struct PipelineStream {
    plan: IndexPipelineOperator,
    metrics: ExecutionPlanMetricsSet,
    schema: SchemaRef,
    partition: usize,
    batch_rows: usize,
    rows: RowsState,
    /// Rows to push to the pipeline; `None` after their end and for other drivers.
    input: Option<SendableRecordBatchStream>,
    /// Rows left to return under `fetch`.
    remaining: Option<usize>,
    baseline: BaselineMetrics,
}

/// The state of the pipeline behind a stream.
#[derive(Debug)]
enum RowsState {
    NotStarted,
    Running(Rows),
    Ended,
}

impl PipelineStream {
    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        if self.remaining == Some(0) {
            self.finish();
            return Poll::Ready(None);
        }
        if let RowsState::NotStarted = self.rows {
            match self.plan.start(self.partition, self.batch_rows) {
                Ok(rows) => self.rows = RowsState::Running(rows),
                Err(error) => return self.fail(error),
            }
        }
        loop {
            let RowsState::Running(rows) = &mut self.rows else { return Poll::Ready(None) };
            let pushed = match push_next(rows, &mut self.input, context) {
                Ok(pushed) => pushed,
                Err(error) => return self.fail(error),
            };
            return Poll::Ready(match rows.poll_next_unpin(context) {
                Poll::Pending if pushed => continue,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(batch))) => Some(self.output(&batch)),
                Poll::Ready(Some(Err(error))) => return self.fail(crate::Error::from(error).into()),
                Poll::Ready(None) => {
                    self.finish();
                    None
                }
            });
        }
    }

    /// Returns an error as the last item.
    fn fail(&mut self, error: DataFusionError) -> Poll<Option<Result<RecordBatch>>> {
        self.finish();
        Poll::Ready(Some(Err(error)))
    }

    /// Selects the output columns and truncates the batch to the remaining rows of `fetch`.
    fn output(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        let rows = self.remaining.map_or(batch.num_rows(), |remaining| remaining.min(batch.num_rows()));
        self.remaining = self.remaining.map(|remaining| remaining - rows);
        let columns = self.plan.spec.output.iter().map(|&c| batch.column(c).slice(0, rows)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }

    /// Records the executor's counters as metrics of the operator, and drops the pipeline, which cancels it if it is still
    /// running.
    fn finish(&mut self) {
        if let RowsState::Running(rows) = std::mem::replace(&mut self.rows, RowsState::Ended) {
            record(rows.stats(), &self.metrics);
        }
        self.input = None;
        self.baseline.done();
    }
}

/// Pushes the next batch of the input, or its end, if both the pipeline and the input are ready. Returns true if so.
fn push_next(
    rows: &mut Rows,
    input: &mut Option<SendableRecordBatchStream>,
    context: &mut Context<'_>,
) -> Result<bool> {
    let Some(stream) = input else { return Ok(false) };
    if rows.poll_push(context).is_pending() {
        return Ok(false);
    }
    match stream.poll_next_unpin(context) {
        Poll::Pending => return Ok(false),
        Poll::Ready(Some(batch)) => rows.push(&batch?).map_err(crate::Error::from)?,
        Poll::Ready(None) => {
            rows.end_push();
            *input = None;
        }
    }
    Ok(true)
}

impl Drop for PipelineStream {
    fn drop(&mut self) {
        self.finish();
    }
}

fn record(stats: &Stats, metrics: &ExecutionPlanMetricsSet) {
    let stats = stats.snapshot();
    let count = |name: String, value: u64| MetricBuilder::new(metrics).counter(name, 0).add(value as usize);
    let gauge = |name: &'static str, value: usize| MetricBuilder::new(metrics).gauge(name, 0).set(value);
    count("pages_requested".into(), stats.pages_requested);
    count("pages_cached".into(), stats.pages_cached);
    count("pages_shared".into(), stats.pages_shared);
    count("pages_read".into(), stats.pages_read);
    count("pages_coalesced".into(), stats.pages_read.saturating_sub(stats.reads));
    count("reads".into(), stats.reads);
    count("bytes_read".into(), stats.bytes_read);
    count("tasks".into(), stats.tasks);
    for (step, rows) in stats.rows.iter().enumerate() {
        count(format!("rows_{step}"), *rows);
    }
    for (step, busy_ns) in stats.busy_ns.iter().enumerate().filter(|(_, busy_ns)| **busy_ns > 0) {
        MetricBuilder::new(metrics).subset_time(format!("busy_{step}"), 0).add_duration(Duration::from_nanos(*busy_ns));
    }
    gauge("in_flight_max", stats.in_flight_max as usize);
    let per_second = |count: u64| count as f64 * 1e9 / stats.elapsed_ns.max(1) as f64;
    gauge("iops", per_second(stats.reads) as usize);
}

impl Stream for PipelineStream {
    type Item = Result<RecordBatch>;
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let poll = this.next(context);
        this.baseline.record_poll(poll)
    }
}

impl RecordBatchStream for PipelineStream {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
