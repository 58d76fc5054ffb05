//! A large partition that must be complete before its first row has a result.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::take;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::spill_file::SpillFile;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_plan::SpillManager;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use keyaki_store::compact;

use super::functions::{Functions, Kind};

/// Bytes of a result while a function is evaluated row by row: a scalar.
const SCALAR_BYTES: usize = 64;

/// Appends a batch to a temporary file, or completes the file. DataFusion does not export the type of the file.
type Writer = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// Rows of a partition. They are written to a temporary file when the memory is exhausted.
pub(super) struct Whole {
    rows: Vec<RecordBatch>,
    file: Option<Writer>,
    /// The columns that functions refer to, if they are evaluated at the end.
    narrow: Vec<RecordBatch>,
    keeps_narrow: bool,
    /// For each function that is an aggregate, its accumulator with one group.
    aggregates: Vec<Option<Box<dyn GroupsAccumulator>>>,
    bytes: usize,
}

/// The rows and results of a complete partition.
pub(super) struct Finished {
    pub rows: BoxStream<'static, Result<RecordBatch>>,
    pub results: Vec<Column>,
}

/// The results of a function.
pub(super) enum Column {
    /// One for each row.
    Each(ArrayRef),
    /// The same for all rows, in an array of one.
    Same(ArrayRef),
    /// The numbers of the rows.
    Numbers,
}

impl Whole {
    pub fn new(functions: &Functions) -> Result<Whole> {
        let aggregate = |kind: &Kind| match kind {
            Kind::Aggregate(aggregate) => aggregate.create_groups_accumulator().map(Some),
            _ => Ok(None),
        };
        let kinds = || functions.functions.iter().map(|function| &function.kind);
        Ok(Whole {
            rows: Vec::new(),
            file: None,
            narrow: Vec::new(),
            keeps_narrow: kinds().any(|kind| !matches!(kind, Kind::RowNumber | Kind::Aggregate(_))),
            aggregates: kinds().map(aggregate).collect::<Result<_>>()?,
            bytes: 0,
        })
    }

    /// Adds rows of the partition.
    pub fn add(
        &mut self,
        functions: &Functions,
        batch: RecordBatch,
        reservation: &MemoryReservation,
        spills: &SpillManager,
    ) -> Result<()> {
        let narrow = compact(&functions.narrow([&batch].into_iter())?);
        let group_of = vec![0; batch.num_rows()];
        for (function, aggregate) in functions.functions.iter().zip(&mut self.aggregates) {
            if let Some(aggregate) = aggregate {
                function.update(aggregate.as_mut(), &narrow, &group_of, 1)?;
            }
        }
        if self.keeps_narrow {
            self.bytes += narrow.get_array_memory_size();
            self.narrow.push(narrow);
        }
        match &mut self.file {
            Some(write) => drop(write(Some(&batch))?),
            None => {
                self.bytes += batch.get_array_memory_size();
                self.rows.push(batch);
            }
        }
        self.reserve(0, reservation, spills)
    }

    /// Reserves the bytes of rows and accumulators, and `more`. Writes the rows to a file if they do not fit.
    fn reserve(&mut self, more: usize, reservation: &MemoryReservation, spills: &SpillManager) -> Result<()> {
        let more = more + self.aggregates.iter().flatten().map(|aggregate| aggregate.size()).sum::<usize>();
        let exhausted = match reservation.try_resize(self.bytes + more) {
            Err(exhausted) if self.file.is_none() => exhausted,
            result => return result,
        };
        if self.rows.is_empty() {
            return Err(exhausted);
        }
        let mut file = spills.create_in_progress_file("a window")?;
        for batch in self.rows.drain(..) {
            self.bytes -= batch.get_array_memory_size();
            file.append_batch(&batch)?;
        }
        self.file = Some(Box::new(move |batch| match batch {
            Some(batch) => file.append_batch(batch).map(|_| None),
            None => file.finish(),
        }));
        reservation.try_resize(self.bytes + more)
    }

    /// Evaluates the functions.
    pub fn finish(
        mut self,
        functions: &Functions,
        reservation: &MemoryReservation,
        spills: &SpillManager,
    ) -> Result<Finished> {
        let mut narrow = None;
        if self.keeps_narrow {
            let rows: usize = self.narrow.iter().map(RecordBatch::num_rows).sum();
            let others = functions.functions.iter().filter(|function| matches!(function.kind, Kind::Other)).count();
            let held = self.narrow.iter().map(RecordBatch::get_array_memory_size).sum::<usize>();
            self.reserve(held + rows * others * SCALAR_BYTES, reservation, spills)?;
            narrow = Some(functions.joined(&std::mem::take(&mut self.narrow))?);
        }
        let mut results = Vec::with_capacity(functions.functions.len());
        for (function, aggregate) in functions.functions.iter().zip(self.aggregates) {
            results.push(match (aggregate, &function.kind, &narrow) {
                (Some(mut aggregate), ..) => Column::Same(aggregate.evaluate(EmitTo::All)?),
                (None, Kind::RowNumber, _) => Column::Numbers,
                (None, _, Some(narrow)) => Column::Each(function.evaluate(narrow, &[0])?),
                (None, _, None) => return Err(DataFusionError::Internal("the rows of a window are missing".into())),
            });
        }
        let rows = match self.file.map(|mut write| write(None)).transpose()?.flatten() {
            Some(file) => spills.read_spill_as_stream_unbuffered(file, None)?.boxed(),
            None => futures::stream::iter(self.rows).map(Ok).boxed(),
        };
        Ok(Finished { rows, results })
    }
}

impl Finished {
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        self.rows.try_next().await
    }
}

impl Column {
    /// The results of a range of rows.
    pub fn slice(&self, first: usize, rows: usize) -> Result<ArrayRef> {
        Ok(match self {
            Column::Each(results) => results.slice(first, rows),
            Column::Same(result) => take(result, &UInt32Array::from_value(0, rows), None)?,
            Column::Numbers => {
                let first = first as u64;
                Arc::new(UInt64Array::from_iter_values(first + 1..=first + rows as u64))
            }
        })
    }
}
