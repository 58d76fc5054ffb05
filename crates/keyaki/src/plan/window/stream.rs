//! The execution over one input.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::metrics::BaselineMetrics;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use keyaki_store::compact;

use super::functions::Functions;
use super::held::{Held, sliced, starts};
use super::running::Running;
use super::whole::{Finished, Whole};

/// Rows of an incomplete partition from which on it is large, in batches.
const LARGE_BATCHES: usize = 8;
/// Bytes of held rows from which on complete partitions are evaluated, and an incomplete one is large.
const LARGE_BYTES: usize = 4 << 20;

/// The memory and the temporary files of an execution.
pub(super) struct Resources {
    pub batch_rows: usize,
    pub reservation: MemoryReservation,
    /// For rows of the input.
    pub spills: SpillManager,
}

/// The rows of an input with the results of the functions.
pub(super) struct Windows {
    input: SendableRecordBatchStream,
    functions: Arc<Functions>,
    schema: SchemaRef,
    resources: Resources,
    metrics: BaselineMetrics,
    /// Rows of small partitions.
    held: Held,
    /// The large partition of the last row.
    large: Option<Large>,
    /// The partition keys of the last row.
    last: Option<Vec<ArrayRef>>,
    output: VecDeque<RecordBatch>,
    /// A complete partition, and the number of its rows that have been returned. The rows of `held` follow it.
    finished: Option<(Finished, usize)>,
    has_ended: bool,
}

enum Large {
    Running(Running),
    Whole(Whole),
}

impl Windows {
    pub fn new(
        input: SendableRecordBatchStream,
        functions: Arc<Functions>,
        schema: SchemaRef,
        resources: Resources,
        metrics: BaselineMetrics,
    ) -> Windows {
        Windows {
            input,
            functions,
            schema,
            resources,
            metrics,
            held: Held::default(),
            large: None,
            last: None,
            output: VecDeque::new(),
            finished: None,
            has_ended: false,
        }
    }

    pub fn into_stream(self) -> SendableRecordBatchStream {
        let schema = self.schema.clone();
        let batches = futures::stream::try_unfold(self, |mut windows| async move {
            Ok(windows.next().await?.map(|batch| (batch, windows)))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.output.pop_front() {
                self.metrics.record_output(batch.num_rows());
                return Ok(Some(batch));
            }
            if let Some((finished, returned)) = &mut self.finished {
                match finished.next().await? {
                    Some(batch) => {
                        let (first, rows) = (*returned, batch.num_rows());
                        *returned += rows;
                        let results = finished.results.iter().map(|column| column.slice(first, rows));
                        let results = results.collect::<Result<Vec<_>>>()?;
                        self.output(&[batch], results)?;
                    }
                    None => {
                        self.finished = None;
                        self.resources.reservation.free();
                        self.advance()?;
                    }
                }
                continue;
            }
            if self.has_ended {
                return Ok(None);
            }
            match self.input.next().await.transpose()? {
                Some(batch) if batch.num_rows() == 0 => {}
                Some(batch) => {
                    let timer = self.metrics.elapsed_compute().clone();
                    let _timer = timer.timer();
                    self.add(batch)?;
                }
                None => {
                    let timer = self.metrics.elapsed_compute().clone();
                    let _timer = timer.timer();
                    self.has_ended = true;
                    self.end_large()?;
                    if self.finished.is_none() {
                        self.advance()?;
                    }
                }
            }
        }
    }

    fn add(&mut self, batch: RecordBatch) -> Result<()> {
        // Each batch of a sort refers to the buffers of all rows.
        let mut batch = compact(&batch);
        let keys = self.functions.keys(&batch)?;
        let rows = batch.num_rows();
        let mut starts = starts(&keys, self.last.as_deref(), rows)?;
        self.last = Some(keys.iter().map(|key| key.slice(rows - 1, 1)).collect());
        if self.large.is_some() {
            let first = starts.first().copied().unwrap_or(rows);
            if first > 0 {
                self.add_large(vec![sliced(&batch, 0, first)?])?;
            }
            if first == rows {
                return Ok(());
            }
            self.end_large()?;
            batch = sliced(&batch, first, rows - first)?;
            starts.iter_mut().for_each(|start| *start -= first);
        }
        self.held.push(batch, &starts);
        match self.finished {
            // Its rows leave first.
            Some(_) => Ok(()),
            None => self.advance(),
        }
    }

    /// Evaluates held partitions if there are enough rows. The last one is incomplete until the input ends.
    fn advance(&mut self) -> Result<()> {
        let complete = if self.has_ended { self.held.rows } else { self.held.complete_rows() };
        let batch_rows = self.resources.batch_rows;
        let open = self.held.rows - complete;
        let is_heavy = self.held.bytes >= LARGE_BYTES;
        let is_large = open >= batch_rows.saturating_mul(LARGE_BATCHES) || (is_heavy && open > 0 && complete == 0);
        if complete > 0 && (complete >= batch_rows || is_large || is_heavy || self.has_ended) {
            let (batches, starts) = self.held.take(complete)?;
            let narrow = self.functions.narrow(batches.iter())?;
            let results = self.functions.evaluate(&narrow, &starts)?;
            self.output(&batches, results)?;
        }
        if is_large {
            let (batches, _) = self.held.take(self.held.rows)?;
            self.large = Some(match self.functions.moves {
                true => Large::Running(Running::new(&self.functions)?),
                false => Large::Whole(Whole::new(&self.functions)?),
            });
            self.add_large(batches)?;
        }
        Ok(())
    }

    /// Adds rows to the large partition.
    fn add_large(&mut self, batches: Vec<RecordBatch>) -> Result<()> {
        let Resources { reservation, spills, .. } = &self.resources;
        match &mut self.large {
            Some(Large::Running(running)) => {
                let (rows, results) = running.add(&self.functions, batches, false)?;
                reservation.try_resize(running.memory_bytes())?;
                self.output(&rows, results)
            }
            Some(Large::Whole(whole)) => {
                batches.into_iter().try_for_each(|batch| whole.add(&self.functions, batch, reservation, spills))
            }
            None => Ok(()),
        }
    }

    /// Completes the large partition, if there is one.
    fn end_large(&mut self) -> Result<()> {
        let Resources { reservation, spills, .. } = &self.resources;
        match self.large.take() {
            Some(Large::Running(mut running)) => {
                let (rows, results) = running.add(&self.functions, Vec::new(), true)?;
                reservation.free();
                self.output(&rows, results)
            }
            Some(Large::Whole(whole)) => {
                self.finished = Some((whole.finish(&self.functions, reservation, spills)?, 0));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Rows with their results are returned next.
    fn output(&mut self, batches: &[RecordBatch], results: Vec<ArrayRef>) -> Result<()> {
        let results = self.functions.results(results)?;
        let mut first = 0;
        for batch in batches {
            let output = self.with_results(batch, &results, first)?;
            self.output.push_back(output);
            first += batch.num_rows();
        }
        Ok(())
    }

    /// A batch with the columns of its results, which start at row `first` of `results`.
    fn with_results(&self, batch: &RecordBatch, results: &RecordBatch, first: usize) -> Result<RecordBatch> {
        let results = sliced(results, first, batch.num_rows())?;
        let columns = batch.columns().iter().chain(results.columns()).cloned().collect();
        Ok(RecordBatch::try_new(self.schema.clone(), columns)?)
    }
}
