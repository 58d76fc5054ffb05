//! The physical operator of [`super::summary`].
//!
//! It returns one row. Each value comes from its own scan, and all scans run concurrently. COUNT scans decode no
//! columns and are split into up to [`PARTS`] parts; MIN and MAX scans stop after one row. The number of rows of a whole
//! tree comes from the store without a scan, if the store knows it.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayFormatType, Partitioning, PlanProperties};
use futures::StreamExt;
use futures::future::try_join_all;
use keyaki_exec::Scan;
use keyaki_store::{Direction, KeyRange, TreeView};

use super::summary::{SummaryFunction, SummaryItem, SummarySpec};
use crate::table::{LeafExec, LeafOperator, PlanContext, record};

/// Batch size of a counting scan in rows, large enough for one batch per scan.
const COUNT_ROWS: usize = 1 << 40;
/// Maximum number of parts counted concurrently.
const PARTS: usize = 32;
/// A single range of at least this many pages is split.
const PAGES_TO_SPLIT: f64 = 256.0;

/// [`SummaryOperator`] in a physical plan.
pub(super) type SummaryExec = LeafExec<SummaryOperator>;

/// The operator of a [`SummarySpec`].
#[derive(Debug)]
pub(super) struct SummaryOperator {
    pub spec: Arc<SummarySpec>,
    pub context: PlanContext,
}

/// Computes an aggregate, as an array of one value.
async fn value(item: &SummaryItem, context: &PlanContext, metrics: &ExecutionPlanMetricsSet) -> Result<ArrayRef> {
    if item.function != SummaryFunction::Count {
        return Ok(part(item, item.ranges.clone(), context, metrics).await?.1);
    }
    let whole = item.ranges == [KeyRange::all()];
    let view = item.view.stored()?;
    // The store knows the number of rows of most trees.
    if let Some(rows) = view.live_rows().filter(|_| whole) {
        return Ok(Arc::new(Int64Array::from(vec![rows as i64])));
    }
    let parts = parts(item, view).into_iter().map(|ranges| part(item, ranges, context, metrics));
    let rows: usize = try_join_all(parts).await?.into_iter().map(|(rows, _)| rows).sum();
    if whole {
        view.settle_rows(rows as u64);
    }
    Ok(Arc::new(Int64Array::from(vec![rows as i64])))
}

/// Splits the ranges of a COUNT. Pages with pending messages have to be read to count them; several parts overlap these
/// reads.
fn parts(item: &SummaryItem, view: &TreeView) -> Vec<Vec<KeyRange>> {
    match &item.ranges[..] {
        [range] if view.estimate(range).pages >= PAGES_TO_SPLIT => {
            view.split(range, PARTS).into_iter().map(|range| vec![range]).collect()
        }
        ranges => ranges.chunks(ranges.len().div_ceil(PARTS).max(1)).map(<[KeyRange]>::to_vec).collect(),
    }
}

/// Scans ranges. Returns the number of rows and, for MIN and MAX, the first value in scan order (null if there is no
/// row), as an array of one.
async fn part(
    item: &SummaryItem,
    mut ranges: Vec<KeyRange>,
    context: &PlanContext,
    metrics: &ExecutionPlanMetricsSet,
) -> Result<(usize, ArrayRef)> {
    let mode = context.options.execution;
    let counts = item.function == SummaryFunction::Count;
    let direction = if item.function == SummaryFunction::Max { Direction::Descending } else { Direction::Ascending };
    if direction == Direction::Descending {
        ranges.reverse();
    }
    let scan = Scan {
        view: item.view.stored()?.clone(),
        ranges,
        direction,
        columns: if counts { Vec::new() } else { vec![item.column] },
        filters: Vec::new(),
        limit: if counts { None } else { Some(1) },
        batch_rows: if counts { COUNT_ROWS } else { 1 },
        kept: Vec::new(),
    };
    let mut rows = context.executor.scan_as(scan, mode, context.cache.lookups());
    context.last_stats.lock().push((format!("summary {}", item.name), rows.stats().clone()));
    let (mut count, mut first) = (0, None);
    while let Some(batch) = rows.next().await {
        let batch = batch.map_err(crate::Error::from)?;
        count += batch.num_rows();
        if !counts && batch.num_rows() > 0 && first.is_none() {
            first = Some(batch.column(0).slice(0, 1));
        }
    }
    record(rows.stats(), metrics, 0);
    let none = || ScalarValue::try_from(item.view.schema().columns()[item.column].ty.arrow())?.to_array();
    Ok((count, first.map_or_else(none, Ok)?))
}

impl LeafOperator for SummaryOperator {
    const NAME: &'static str = "SummaryExec";

    fn properties(&self) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(self.spec.schema.inner().clone()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        )
    }

    fn describe(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => write!(f, "{}", self.spec),
            _ => {
                write!(f, "SummaryExec: {}", self.spec)?;
                self.context.cache.class_of_pipeline().map_or(Ok(()), |class| write!(f, ", class={class}"))
            }
        }
    }

    fn execute(
        &self,
        _partition: usize,
        _: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let schema = self.spec.schema.inner().clone();
        let (spec, context, metrics) = (self.spec.clone(), self.context.clone(), metrics.clone());
        let output = schema.clone();
        let row = async move {
            let values = spec.items.iter().map(|item| value(item, &context, &metrics));
            Ok(RecordBatch::try_new(output, try_join_all(values).await?)?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::once(row))))
    }

    fn statistics(&self, _: Option<usize>) -> Arc<Statistics> {
        Arc::new(Statistics {
            num_rows: Precision::Exact(1),
            total_byte_size: Precision::Absent,
            column_statistics: vec![ColumnStatistics::new_unknown(); self.spec.items.len()],
        })
    }
}
