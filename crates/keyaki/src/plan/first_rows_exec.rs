//! The physical operator of [`super::first_rows`].
//!
//! A scan of the index with a limit collects the primary keys of the rows. A pipeline whose driver has one point range
//! for each key, and no lookup steps, then reads the rows with many reads in flight. Output order is undefined; the
//! sort above the operator orders the rows.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayFormatType, Partitioning, PlanProperties};
use futures::{StreamExt, TryStreamExt};
use keyaki_exec::{Driver, DriverScan, Pipeline, Rows, Scan};
use keyaki_store::KeyRange;

use super::first_rows::FirstRowsSpec;
use crate::table::{LeafExec, LeafOperator, PlanContext, record};

/// [`FirstRowsOperator`] in a physical plan.
pub(super) type FirstRowsExec = LeafExec<FirstRowsOperator>;

/// The operator of a [`FirstRowsSpec`].
#[derive(Debug)]
pub(super) struct FirstRowsOperator {
    pub spec: Arc<FirstRowsSpec>,
    pub context: PlanContext,
}

/// Registers the statistics of a scan or pipeline with the session, under a name for display.
fn register_stats(context: &PlanContext, name: &str, rows: &Rows) {
    context.last_stats.lock().push((name.into(), rows.stats().clone()));
}

/// Reads the index and returns the encoded primary keys of the first rows, in key order.
async fn keys(
    spec: &FirstRowsSpec,
    context: &PlanContext,
    batch_rows: usize,
    metrics: &ExecutionPlanMetricsSet,
) -> Result<Vec<Vec<u8>>> {
    let scan = Scan {
        view: spec.index.stored()?.clone(),
        ranges: spec.ranges.clone(),
        direction: spec.direction,
        columns: spec.key.clone(),
        filters: Vec::new(),
        limit: Some(spec.rows as u64),
        batch_rows,
        kept: Vec::new(),
    };
    let mut entries = context.executor.scan_as(scan, context.options.execution, context.cache.lookups());
    register_stats(context, &format!("first rows of {}", spec.name), &entries);
    let mut keys: Vec<Vec<u8>> = Vec::with_capacity(spec.rows.min(batch_rows));
    while let Some(batch) = entries.next().await {
        let batch = batch.map_err(crate::Error::from)?;
        let (bytes, ends) = spec.table.key_codec().encode_batch(batch.columns(), 0..batch.num_rows());
        keys.extend(ends.windows(2).map(|ends| bytes[ends[0]..ends[1]].to_vec()));
    }
    record(entries.stats(), metrics, 0);
    keys.sort_unstable();
    Ok(keys)
}

/// Starts reading the rows with these keys from the table. `keys` are sorted.
fn rows(spec: &FirstRowsSpec, context: &PlanContext, batch_rows: usize, keys: Vec<Vec<u8>>) -> Rows {
    let pipeline = Pipeline {
        driver: Driver::Scan(DriverScan {
            view: spec.table.clone(),
            ranges: keys.into_iter().map(KeyRange::point).collect(),
            columns: spec.columns.clone(),
            filter: None,
        }),
        steps: Vec::new(),
        mode: context.options.execution,
        batch_rows,
        memory_bytes: context.pipeline_memory_bytes,
        whole_pages: false,
    };
    let rows = context.executor.pipeline_as(pipeline, context.cache.lookups());
    register_stats(context, "lookups of first rows", &rows);
    rows
}

impl LeafOperator for FirstRowsOperator {
    const NAME: &'static str = "FirstRowsExec";

    fn properties(&self) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(self.spec.schema.inner().clone()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
    }

    fn describe(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => write!(f, "{}", self.spec),
            _ => {
                let fields = self.spec.schema.fields().iter();
                let columns: Vec<&str> = fields.map(|field| field.name().as_str()).collect();
                write!(f, "FirstRowsExec: {}, columns=[{}]", self.spec, columns.join(", "))?;
                self.context.cache.class_of_pipeline().map_or(Ok(()), |class| write!(f, ", class={class}"))
            }
        }
    }

    fn execute(
        &self,
        _partition: usize,
        task: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let schema = self.spec.schema.inner().clone();
        let (spec, context, metrics) = (self.spec.clone(), self.context.clone(), metrics.clone());
        let (output, batch_rows) = (schema.clone(), task.session_config().batch_size());
        let found = async move {
            let keys = keys(&spec, &context, batch_rows, &metrics).await?;
            let rows = rows(&spec, &context, batch_rows, keys);
            let stats = rows.stats().clone();
            let end = move || {
                record(&stats, &metrics, 0);
                None
            };
            let relabel = move |batch: std::result::Result<RecordBatch, _>| {
                let batch = batch.map_err(crate::Error::from)?;
                let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                Ok(RecordBatch::try_new_with_options(output.clone(), batch.columns().to_vec(), &options)?)
            };
            let end = futures::stream::iter(std::iter::from_fn(end));
            Ok::<_, datafusion::error::DataFusionError>(rows.map(relabel).chain(end))
        };
        let rows = futures::stream::once(found).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn statistics(&self, _: Option<usize>) -> Arc<Statistics> {
        Arc::new(Statistics {
            num_rows: Precision::Inexact(self.spec.rows),
            total_byte_size: Precision::Absent,
            column_statistics: vec![ColumnStatistics::new_unknown(); self.spec.columns.len()],
        })
    }
}
