//! The scan operator: reads key ranges of one tree and filters the rows.
//!
//! Each partition runs one scan of the executor over consecutive key ranges. The scan starts at the first poll of its
//! stream: by then a hash join above has built its table, and its dynamic filters are complete. Bounds of the leading key
//! column in them limit the ranges.
//!
//! Invariant: rows of a partition arrive in key order. The operator declares this ordering, so that an ORDER BY along
//! the key needs no sort.

use std::fmt::{self, Formatter};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::SortOptions;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::Statistics;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::utils::{collect_columns, conjunction, split_conjunction};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_expr_common::physical_expr::snapshot_physical_expr;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::expressions::{BinaryExpr, Column, InListExpr, Literal, NotExpr};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::{DisplayFormatType, EmptyRecordBatchStream, Partitioning, PlanProperties};
use futures::{Stream, StreamExt};
use keyaki_exec::{Rows, Scan, Stats};
use keyaki_llc::WorkClass;
use keyaki_store::{Direction, KeyRange, RangeEstimate};

use super::cost::{Machine, Readable};
use super::dynamic;
use super::filter::{ExprFilter, compact, remap};
use super::key_set::KeySetExpr;
use super::leaf::{LeafExec, LeafOperator};
use super::partitions::{choose, write_partitions};
use super::planned::PlannedTree;
use super::ranges::key_ranges;
use crate::table::PlanContext;

/// A scan whose columns beyond those of the filter weigh more evaluates the lookups of dynamic filters: it decodes the other
/// columns for the rows that pass only. A column of fixed length weighs 1.
const LOOKUP_WEIGHT: usize = 6;
/// The weight of a column of texts.
const TEXT_WEIGHT: usize = 4;

/// Columns of the tree, and a filter over batches of these columns.
type ColumnFilter = (Vec<usize>, Arc<dyn keyaki_exec::Filter>);

/// The specification of a scan.
#[derive(Debug, Clone)]
pub(crate) struct ScanPlan {
    /// Name for EXPLAIN: `orders`, or `orders.orders_by_customer` for an index.
    pub name: String,
    pub view: PlannedTree,
    /// Key ranges of each partition: disjoint, in ascending key order for both directions.
    pub partitions: Vec<Vec<KeyRange>>,
    /// Columns of the tree to return.
    pub columns: Vec<usize>,
    /// Residual filter over the columns of the tree.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
    /// Maximum number of rows that each partition returns.
    pub limit: Option<usize>,
    pub direction: Direction,
    /// Number of leading key columns with the same single value in all ranges.
    pub fixed: usize,
    /// Rows with the same values in this many leading key columns are in one partition.
    pub grouped: Option<usize>,
    /// Size of all ranges, before filters and limit.
    pub estimate: RangeEstimate,
    /// Statistics of the output of all partitions.
    pub statistics: Arc<Statistics>,
}

/// [`ScanOperator`] in a physical plan.
pub(crate) type ScanExec = LeafExec<ScanOperator>;

/// The operator of a [`ScanPlan`].
#[derive(Debug, Clone)]
pub(crate) struct ScanOperator {
    plan: Arc<ScanPlan>,
    schema: SchemaRef,
    context: PlanContext,
    /// Filters pushed down by operators above, over the output columns. Dynamic filters change while the query runs.
    pushed: Vec<Arc<dyn PhysicalExpr>>,
    /// Columns that other parts of the plan read, see [`keep`](Self::keep).
    kept: Arc<OnceLock<Vec<usize>>>,
}

impl ScanOperator {
    /// `schema` is the output schema, with one field for each of `plan.columns`.
    pub fn new(plan: ScanPlan, schema: SchemaRef, context: PlanContext) -> Self {
        ScanOperator { plan: Arc::new(plan), schema, context, pushed: Vec::new(), kept: Arc::default() }
    }

    pub fn plan(&self) -> &ScanPlan {
        &self.plan
    }

    /// The columns of the tree that the scan reads.
    pub fn read_columns(&self) -> impl Iterator<Item = usize> {
        let filtered = self.plan.filter.iter().flat_map(collect_columns).map(|column| column.index());
        self.plan.columns.iter().copied().chain(filtered)
    }

    /// Sets the columns of the tree that other parts of the plan read: the scan keeps them in memory, too. Later calls have no
    /// effect.
    pub fn keep(&self, columns: Vec<usize>) {
        _ = self.kept.set(columns);
    }

    /// The operator with some of its partitions, and with empty ones in place of `None`.
    pub fn with_partitions(&self, chosen: &[Option<usize>]) -> Self {
        self.with_plan(ScanPlan { partitions: choose(&self.plan.partitions, chosen), ..self.plan.as_ref().clone() })
    }

    fn with_plan(&self, plan: ScanPlan) -> Self {
        ScanOperator { plan: Arc::new(plan), ..self.clone() }
    }

    /// The conditions of the pushed filters and of the residual filter, over the columns that they use. Sets of keys come
    /// first, which discard most rows, then comparisons of columns of fixed length, which take the least time and cannot
    /// fail. If few rows are left, the columns of the others are decoded for these only.
    fn filters(&self) -> Result<Vec<ColumnFilter>> {
        let pushed = self.pushed.iter().map(|expr| remap(expr.clone(), &|output| self.plan.columns[output]));
        let own = self.plan.filter.iter().flat_map(split_conjunction).cloned().map(Ok);
        let mut conditions = own.chain(pushed).collect::<Result<Vec<_>>>()?;
        let used = collect_columns(&conjunction(conditions.clone()));
        let tree = self.plan.view.schema().arrow();
        let rank = |condition: &Arc<dyn PhysicalExpr>| match snapshot_physical_expr(condition.clone()) {
            Ok(current) if current.is::<KeySetExpr>() => 0,
            _ if compares_fixed(condition.as_ref(), tree) => 1,
            _ => 2,
        };
        // The sort is stable.
        conditions.sort_by_cached_key(rank);
        let others = self.plan.columns.iter().zip(self.schema.fields());
        let others = others.filter(|(column, _)| !used.iter().any(|filtered| filtered.index() == **column));
        let weights = others.map(|(_, field)| if field.data_type().is_primitive() { 1 } else { TEXT_WEIGHT });
        let is_reduced = weights.sum::<usize>() <= LOOKUP_WEIGHT;
        let filter = |condition| -> Result<ColumnFilter> {
            let (columns, condition) = compact(condition)?;
            let filter = ExprFilter::new(condition);
            Ok((columns, Arc::new(if is_reduced { filter.reduced() } else { filter })))
        };
        conditions.into_iter().map(filter).collect()
    }

    /// Estimated elapsed seconds of all partitions. Filters that operators above push down are not counted.
    pub fn seconds(&self, machine: &Machine) -> f64 {
        let RangeEstimate { rows, bytes, .. } = self.plan.estimate;
        let share = self.share();
        let view = &self.plan.view;
        let in_memory = view.tree().is_memory();
        let cached = if in_memory { 1.0 } else { view.cached_share().any };
        let readable = Readable { bytes: bytes * share, cached, rows: rows * share, in_memory };
        machine.seconds(machine.scan_of(readable, self.read_columns().count() as f64))
    }

    /// The part of the ranges that the scan is expected to read, with its limit.
    fn share(&self) -> f64 {
        let limit = self.plan.limit.filter(|_| self.plan.filter.is_none() && self.pushed.is_empty());
        limit.map_or(1.0, |limit| (limit as f64 / self.plan.estimate.rows.max(1.0)).min(1.0))
    }

    /// Cache class of the scan, from the bytes that it is expected to read; `None` if the governor is off.
    fn class(&self) -> Option<WorkClass> {
        self.context.cache.class_of_scan(self.plan.estimate.bytes * self.share())
    }

    /// The ranges of a partition, within the bounds that the pushed filters give for the leading key column now. Dynamic
    /// filters never become weaker.
    fn ranges(&self, partition: usize) -> Result<Vec<KeyRange>> {
        let ranges = &self.plan.partitions[partition];
        let mut bounds = Vec::new();
        for filter in &self.pushed {
            let filter = remap(snapshot_physical_expr(filter.clone())?, &|output| self.plan.columns[output])?;
            bounds.extend(dynamic::bounds(filter));
        }
        if bounds.is_empty() {
            return Ok(ranges.clone());
        }
        let within = key_ranges(self.plan.view.schema(), &bounds, &|column| column.name.parse().ok()).ranges;
        let both = |range: &KeyRange| within.iter().map(|other| range.intersection(other)).collect::<Vec<_>>();
        Ok(ranges.iter().flat_map(both).filter(|range| !range.is_empty()).collect())
    }

    /// The executor's scan for one partition.
    fn scan(&self, partition: usize, batch_rows: usize) -> Result<Scan> {
        let mut ranges = self.ranges(partition)?;
        if self.plan.direction == Direction::Descending {
            ranges.reverse();
        }
        Ok(Scan {
            view: self.plan.view.stored()?.clone(),
            ranges,
            direction: self.plan.direction,
            columns: self.plan.columns.clone(),
            filters: self.filters()?,
            limit: self.plan.limit.map(|rows| rows as u64),
            batch_rows,
            kept: self.kept.get().cloned().unwrap_or_default(),
        })
    }
}

/// True for comparisons of columns of fixed length with each other and with constants, and for AND, OR and NOT of such.
fn compares_fixed(condition: &dyn PhysicalExpr, tree: &Schema) -> bool {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    if let Some(column) = condition.downcast_ref::<Column>() {
        return tree.fields().get(column.index()).is_some_and(|field| field.data_type().is_primitive());
    }
    let is_comparison = match condition.downcast_ref::<BinaryExpr>().map(BinaryExpr::op) {
        Some(Operator::And | Operator::Or | Operator::IsDistinctFrom | Operator::IsNotDistinctFrom) => true,
        Some(op) => matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq),
        None => condition.is::<Literal>() || condition.is::<InListExpr>() || condition.is::<NotExpr>(),
    };
    is_comparison && condition.children().into_iter().all(|child| compares_fixed(child.as_ref(), tree))
}

/// The ordering of the output: the longest prefix of the key whose columns are returned or fixed to one value.
fn equivalences(plan: &ScanPlan, schema: &SchemaRef) -> EquivalenceProperties {
    let options = match plan.direction {
        Direction::Ascending => SortOptions { descending: false, nulls_first: true },
        Direction::Descending => SortOptions { descending: true, nulls_first: false },
    };
    let column = |key: usize| plan.columns.iter().position(|&c| c == key);
    let mut order = Vec::new();
    for key in 0..plan.view.schema().key_columns() {
        match column(key) {
            Some(place) => {
                let expr = Arc::new(Column::new(schema.field(place).name(), place));
                order.push(PhysicalSortExpr::new(expr, options));
            }
            // A column with a single value does not affect the order.
            None if key < plan.fixed => {}
            None => break,
        }
    }
    if order.is_empty() {
        return EquivalenceProperties::new(schema.clone());
    }
    // An ORDER BY may omit leading columns with a single value: declare the order without the first 1, 2, ... of them
    // too.
    let fixed = (0..plan.fixed).filter(|&key| column(key).is_some()).count().min(order.len() - 1);
    let orders: Vec<Vec<PhysicalSortExpr>> = (0..=fixed).map(|skip| order[skip..].to_vec()).collect();
    EquivalenceProperties::new_with_orderings(schema.clone(), orders)
}

impl LeafOperator for ScanOperator {
    const NAME: &'static str = "ScanExec";

    fn properties(&self) -> PlanProperties {
        PlanProperties::new(
            equivalences(&self.plan, &self.schema),
            Partitioning::UnknownPartitioning(self.plan.partitions.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative)
    }

    fn describe(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        let separator = match format {
            DisplayFormatType::TreeRender => "\n",
            _ => {
                write!(f, "ScanExec: ")?;
                ", "
            }
        };
        write!(f, "{}", plan.name)?;
        let ranges: usize = plan.partitions.iter().map(Vec::len).sum();
        let everything = plan.partitions.iter().flatten().any(|r| r.start == std::ops::Bound::Unbounded)
            && plan.partitions.iter().flatten().any(|r| r.end == std::ops::Bound::Unbounded);
        match everything {
            true => write!(f, "{separator}ranges=all")?,
            false => write!(f, "{separator}ranges={ranges}")?,
        }
        if let Some(columns) = plan.grouped {
            let key = &plan.view.schema().columns()[..columns];
            let names: Vec<&str> = key.iter().map(|column| column.name.as_str()).collect();
            write!(f, "{separator}groups=[{}]", names.join(", "))?;
        }
        if plan.direction == Direction::Descending {
            write!(f, "{separator}descending")?;
        }
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "{separator}columns=[{}]", names.join(", "))?;
        if let Some(filter) = &plan.filter {
            write!(f, "{separator}filter={filter}")?;
        }
        for filter in &self.pushed {
            write!(f, "{separator}pushed={filter}")?;
        }
        if let Some(limit) = plan.limit {
            write!(f, "{separator}limit={limit}")?;
        }
        if self.context.distribution.is_some() {
            write_partitions(f, format, &plan.partitions)?;
        }
        // Each machine has its own.
        if let Some(class) = self.class().filter(|_| self.context.distribution.is_none()) {
            write!(f, "{separator}class={class}")?;
        }
        Ok(())
    }

    fn execute(
        &self,
        partition: usize,
        task: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        if self.plan.partitions[partition].is_empty() || self.plan.limit == Some(0) {
            return Ok(Box::pin(EmptyRecordBatchStream::new(self.schema.clone())));
        }
        // With all pages cached the stream is always ready and has to yield explicitly.
        Ok(make_cooperative(Box::pin(ScanStream {
            scan: self.clone(),
            partition,
            batch_rows: task.session_config().batch_size(),
            rows: None,
            class: None,
            metrics: metrics.clone(),
            baseline: BaselineMetrics::new(metrics, partition),
        })))
    }

    fn statistics(&self, partition: Option<usize>) -> Arc<Statistics> {
        match partition {
            None => self.plan.statistics.clone(),
            Some(_) => Arc::new(super::estimate::share(&self.plan.statistics, self.plan.partitions.len())),
        }
    }

    fn expressions(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.plan.filter.iter().chain(&self.pushed).collect()
    }

    fn fetch(&self) -> Option<usize> {
        self.plan.limit
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Self> {
        Some(self.with_plan(ScanPlan { limit, ..self.plan.as_ref().clone() }))
    }

    /// A backward scan yields the reverse of the key order. A limited scan cannot be reversed: it would return other
    /// rows.
    fn reversed(&self) -> Option<Self> {
        if self.plan.limit.is_some() || self.plan.direction == Direction::Descending {
            return None;
        }
        Some(self.with_plan(ScanPlan { direction: Direction::Descending, ..self.plan.as_ref().clone() }))
    }

    /// A limited scan takes no more filters: the limit counts rows after the existing filters.
    fn with_filters(&self, filters: &[Arc<dyn PhysicalExpr>]) -> Option<Self> {
        if self.plan.limit.is_some() {
            return None;
        }
        let mut scan = self.clone();
        scan.pushed.extend(filters.iter().cloned());
        Some(scan)
    }
}

/// Output stream of one partition. Starts the scan at the first poll.
#[derive(Debug)]
struct ScanStream {
    scan: ScanOperator,
    partition: usize,
    batch_rows: usize,
    /// The running scan; `None` before the first poll.
    rows: Option<Rows>,
    /// Cache class, set at the start.
    class: Option<WorkClass>,
    metrics: ExecutionPlanMetricsSet,
    baseline: BaselineMetrics,
}

impl ScanStream {
    /// Starts the scan, unless it is running, and registers its statistics with the session.
    fn start(&mut self) -> Result<&mut Rows> {
        if self.rows.is_none() {
            let context = &self.scan.context;
            let mode = context.options.execution;
            self.class = self.scan.class();
            let cache = context.cache.cache_use(self.class);
            let rows = context.executor.scan_as(self.scan.scan(self.partition, self.batch_rows)?, mode, cache);
            context.last_stats.lock().push((format!("scan {}", self.scan.plan.name), rows.stats().clone()));
            self.rows = Some(rows);
        }
        // Set above.
        self.rows.as_mut().ok_or_else(|| DataFusionError::Internal("scan not started".into()))
    }

    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        let compute = self.baseline.elapsed_compute().clone();
        let timer = compute.timer();
        let rows = match self.start() {
            Ok(rows) => rows,
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        let next = ready!(rows.poll_next_unpin(context));
        drop(timer);
        self.scan.context.cache.tune_if_streaming(self.class);
        Poll::Ready(match next {
            Some(Ok(batch)) => Some(relabel(&self.scan.schema, batch)),
            Some(Err(error)) => Some(Err(crate::Error::from(error).into())),
            None => {
                self.finish();
                None
            }
        })
    }

    /// Records the executor's counters as metrics of the operator.
    fn finish(&mut self) {
        if let Some(rows) = &self.rows {
            record(rows.stats(), &self.metrics, self.partition);
        }
        self.baseline.done();
    }
}

/// Records the executor's counters as metrics of an operator, for EXPLAIN ANALYZE.
pub(crate) fn record(stats: &Stats, metrics: &ExecutionPlanMetricsSet, partition: usize) {
    let stats = stats.snapshot();
    let count =
        |name: &'static str, value: u64| MetricBuilder::new(metrics).counter(name, partition).add(value as usize);
    count("pages_cached", stats.pages_cached);
    count("pages_read", stats.pages_read);
    count("reads", stats.reads);
    count("bytes_read", stats.bytes_read);
    if stats.pages_spared > 0 {
        count("pages_spared", stats.pages_spared);
    }
    MetricBuilder::new(metrics).gauge("in_flight_max", partition).set(stats.in_flight_max as usize);
}

/// Replaces the schema of a batch by the declared output schema, which has other names and nullability.
fn relabel(schema: &SchemaRef, batch: RecordBatch) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let (_, columns, _) = batch.into_parts();
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

impl Stream for ScanStream {
    type Item = Result<RecordBatch>;
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let poll = this.next(context);
        this.baseline.record_poll(poll)
    }
}

impl RecordBatchStream for ScanStream {
    fn schema(&self) -> SchemaRef {
        self.scan.schema.clone()
    }
}
