//! The choice between the two paths for new rows.
//!
//! | path | how | suited for |
//! |---|---|---|
//! | [`WritePath::Batch`] | one write batch through log and root buffers | few rows: little work, durable with the log |
//! | [`WritePath::Bulk`] | directly to leaf extents, without log and buffers ([`super::bulk`]) | many rows: each is written once |
//!
//! [`choose`] decides for INSERT, COPY, CREATE TABLE AS and loads by a program. It reads rows until they exceed
//! [`BatchLimits`] or end. Statements in a transaction use write batches, several for many rows. Three other cases need no choice: VALUES of literals, UPDATE and DELETE always use a write batch,
//! because their rows are in memory; CREATE INDEX always builds in bulk, because a new tree has no other entries.

use arrow::array::{RecordBatch, UInt64Array};
use arrow::compute::take_record_batch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, stream};
use keyaki_store::compact;

use super::bulk::batch_bytes;
use crate::catalog::Table;
use crate::engine::Engine;
use crate::{Error, Result};

/// Maximum rows of a query's result in a write batch, and their maximum bytes as a share of the query memory.
const QUERY_ROWS_MAX: usize = 100_000;
const QUERY_SHARE: usize = 8;
/// Maximum rows and bytes of loaded rows in a write batch.
const LOAD_ROWS_MAX: usize = 20_000;
const LOAD_BYTES_MAX: usize = 16 << 20;
/// Maximum rows of a write batch that loads into an empty table. The limit is lower because a bulk load builds full
/// first leaves.
const LOAD_ROWS_MAX_EMPTY: usize = 2_000;

/// Maximum rows and bytes of a part of a statement, as a share of the query memory and within bounds.
const PART_ROWS_MAX: usize = 100_000;
const PART_SHARE: usize = 32;
const PART_BYTES_MIN: usize = 16 << 10;
const PART_BYTES_MAX: usize = 16 << 20;
/// As for a part, for one whose rows are joined with the table: each part may read the whole table.
const JOINED_ROWS_MAX: usize = 1_000_000;
const JOINED_SHARE: usize = 16;
/// Memory that a batch may share with others.
const SHARED_BYTES_MAX: usize = 64 << 10;
/// Memory of a row beside its values.
const ROW_BYTES: usize = 48;

/// Maximum size of a write batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchLimits {
    rows: usize,
    bytes: usize,
}

impl BatchLimits {
    /// Limits for the rows of a query.
    pub fn of_query(engine: &Engine) -> Self {
        BatchLimits { rows: QUERY_ROWS_MAX, bytes: engine.query_bytes() / QUERY_SHARE }
    }

    /// Limits for rows of files and programs. `rows_before` is the estimated number of rows in the table.
    pub fn of_load(rows_before: f64) -> Self {
        let rows = if rows_before > 0.0 { LOAD_ROWS_MAX } else { LOAD_ROWS_MAX_EMPTY };
        BatchLimits { rows, bytes: LOAD_BYTES_MAX }
    }

    /// No limits: the caller reserves memory for the rows.
    pub fn none() -> Self {
        BatchLimits { rows: usize::MAX, bytes: usize::MAX }
    }

    /// False if the rows must be in one part.
    fn divide(self) -> bool {
        self != Self::none()
    }

    /// Limits for a part of the rows of a statement in a transaction: a small share of the query memory, divided among the
    /// trees of the table.
    pub fn of_part(engine: &Engine, table: &Table) -> Self {
        let trees = 1 + table.def.indexes.len();
        let bytes = (engine.query_bytes() / PART_SHARE / trees).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
        BatchLimits { rows: PART_ROWS_MAX, bytes }
    }

    /// As [`of_part`](Self::of_part), for rows that are joined with the table.
    pub fn of_joined_part(engine: &Engine, table: &Table) -> Self {
        let trees = 1 + table.def.indexes.len();
        let bytes = (engine.query_bytes() / JOINED_SHARE / trees).max(PART_BYTES_MIN);
        BatchLimits { rows: JOINED_ROWS_MAX.min(bytes / ROW_BYTES), bytes }
    }

    /// Limits for a chunk of appended rows: one write batch, unless the table is empty.
    pub fn of_chunk(rows_before: f64) -> Self {
        if rows_before > 0.0 { Self::none() } else { Self::of_load(rows_before) }
    }
}

/// The chosen path, with the rows.
pub(crate) enum WritePath {
    /// All rows.
    Batch(Vec<RecordBatch>),
    /// All rows; the stream starts with the batches that [`choose`] has read.
    Bulk(SendableRecordBatchStream),
}

/// Reads rows until they end or exceed `limits`, and chooses the path.
///
/// # Errors
/// The first error of the stream; `OutOfMemory` if the rows exceed the query memory.
pub(super) async fn choose(
    mut rows: SendableRecordBatchStream,
    limits: BatchLimits,
    mut buffer: RowBuffer,
) -> Result<WritePath> {
    if buffer.fill(&mut rows, limits).await? {
        return Ok(WritePath::Batch(buffer.batches));
    }
    Ok(WritePath::Bulk(buffer.followed_by(rows)))
}

/// Batches of rows in memory, with their number.
pub(crate) struct RowBuffer {
    pub batches: Vec<RecordBatch>,
    pub rows: usize,
    /// Reservation in the query memory; `None` if the rows are not accounted there.
    reservation: Option<MemoryReservation>,
    /// The first rows of the next buffer, if the query memory ended the last [`fill`](Self::fill).
    next: Option<RecordBatch>,
}

impl RowBuffer {
    /// A buffer whose batches are reserved in the query memory. `statement` names the consumer in `OutOfMemory` errors.
    pub fn reserved(engine: &Engine, statement: &str) -> Self {
        let pool = &engine.base_state.runtime_env().memory_pool;
        let reservation = MemoryConsumer::new(format!("rows of {statement}")).register(pool);
        RowBuffer { batches: Vec::new(), rows: 0, reservation: Some(reservation), next: None }
    }

    /// A buffer without a reservation, for rows whose number and bytes the caller limits.
    pub fn unreserved() -> Self {
        RowBuffer { batches: Vec::new(), rows: 0, reservation: None, next: None }
    }

    /// An empty buffer of the same kind, for the rows after those of this one.
    pub fn another(&mut self) -> Self {
        let reservation = self.reservation.as_ref().map(MemoryReservation::new_empty);
        RowBuffer { batches: Vec::new(), rows: 0, reservation, next: self.next.take() }
    }

    /// The rows of the buffer, then those of a stream. The rows are not reserved any more.
    pub fn followed_by(self, rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let first = stream::iter(self.batches.into_iter().chain(self.next).map(Ok));
        Box::pin(RecordBatchStreamAdapter::new(rows.schema(), first.chain(rows)))
    }

    /// Adds a batch; drops it if it is empty.
    ///
    /// # Errors
    /// `OutOfMemory` if the reservation cannot grow.
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let added = batch.num_rows();
        if added > 0 {
            let Some(reservation) = &mut self.reservation else {
                self.rows += added;
                self.batches.push(batch);
                return Ok(());
            };
            // Batches of joins and sorts share the texts of their inputs, which would stay in memory with each of them.
            let bytes = batch.get_array_memory_size();
            let batch = if bytes > 2 * batch_bytes(&batch) + SHARED_BYTES_MAX { compact(&batch) } else { batch };
            reservation.try_grow(batch.get_array_memory_size())?;
            self.rows += added;
            self.batches.push(batch);
        }
        Ok(())
    }

    /// The rows in slices within `limits`, in order. A batch of a file can be much larger.
    pub fn slices(&self, limits: BatchLimits) -> Vec<Vec<RecordBatch>> {
        let mut slices: Vec<(usize, Vec<RecordBatch>)> = Vec::new();
        for batch in &self.batches {
            let row_bytes = batch_bytes(batch).div_ceil(batch.num_rows().max(1)).max(1);
            let rows_max = limits.rows.min(limits.bytes / row_bytes).max(1);
            for start in (0..batch.num_rows()).step_by(rows_max) {
                let slice = batch.slice(start, rows_max.min(batch.num_rows() - start));
                let bytes = slice.num_rows() * row_bytes;
                match slices.last_mut().filter(|(filled, _)| filled + bytes <= limits.bytes) {
                    Some((filled, last)) => {
                        *filled += bytes;
                        last.push(slice);
                    }
                    None => slices.push((bytes, vec![slice])),
                }
            }
        }
        slices.into_iter().map(|(_, slice)| slice).collect()
    }

    /// The number of buffered rows, or of as many as `limits` allow for rows of this size, if it is smaller.
    pub fn rows_within(&self, limits: BatchLimits) -> usize {
        let bytes: usize = self.batches.iter().map(batch_bytes).sum();
        // The memory may have ended the buffer after few rows.
        let rows = if self.next.is_some() { limits.rows } else { self.rows.min(limits.rows) };
        rows.min(limits.bytes / bytes.div_ceil(self.rows.max(1)).max(1)).max(1)
    }

    /// Adds batches of a stream until it ends or the buffer exceeds `limits`, or, if there are limits, further rows do not fit into
    /// the query memory. Returns true at the end.
    ///
    /// # Errors
    /// The first error of the stream; `OutOfMemory` if the first row does not fit, or any without limits.
    pub async fn fill(&mut self, rows: &mut SendableRecordBatchStream, limits: BatchLimits) -> Result<bool> {
        let mut bytes = 0;
        while self.rows <= limits.rows && bytes <= limits.bytes {
            let batch = match self.next.take() {
                Some(batch) => batch,
                None => match rows.next().await {
                    Some(batch) => batch?,
                    None => return Ok(true),
                },
            };
            bytes += batch_bytes(&batch);
            match self.push(batch.clone()) {
                Err(error) if limits.divide() && is_out_of_memory(&error) => {
                    let added = if self.rows > 0 { 0 } else { self.push_part(&batch)? };
                    self.next = Some(batch.slice(added, batch.num_rows() - added));
                    return Ok(false);
                }
                pushed => pushed?,
            }
        }
        Ok(false)
    }

    /// Adds as many of the first rows of a batch as fit into the query memory. Returns their number.
    ///
    /// # Errors
    /// `OutOfMemory` if the first row does not fit.
    fn push_part(&mut self, batch: &RecordBatch) -> Result<usize> {
        let mut rows = batch.num_rows().div_ceil(2);
        loop {
            let first = take_record_batch(batch, &UInt64Array::from_iter_values(0..rows as u64))?;
            match self.push(compact(&first)) {
                Err(error) if rows > 1 && is_out_of_memory(&error) => rows = rows.div_ceil(2),
                pushed => return pushed.map(|()| rows),
            }
        }
    }

    /// Adds all batches of a stream.
    pub async fn collect(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        while let Some(batch) = stream.next().await {
            self.push(batch?)?;
        }
        Ok(self)
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    matches!(error.root(), Error::OutOfMemory { .. })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringViewArray};
    use datafusion::execution::memory_pool::MemoryPool;
    use futures::executor::block_on;

    use super::*;
    use crate::engine::query_memory::QueryPool;

    const ROWS: i64 = 4000;

    fn buffer(bytes: usize) -> RowBuffer {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(bytes));
        let reservation = MemoryConsumer::new("rows of a test").register(&pool);
        RowBuffer { batches: Vec::new(), rows: 0, reservation: Some(reservation), next: None }
    }

    /// A stream of batches with numbers, or with texts.
    fn stream_of(sizes: &[i64], has_texts: bool) -> SendableRecordBatchStream {
        let mut start = 0;
        let batch = |&size: &i64| {
            let numbers = start..start + size;
            start += size;
            let column: ArrayRef = match has_texts {
                true => Arc::new(StringViewArray::from_iter_values(numbers.map(|n| format!("{n:0>40}")))),
                false => Arc::new(Int64Array::from_iter_values(numbers)),
            };
            RecordBatch::try_from_iter([("c", column)]).unwrap()
        };
        let batches: Vec<RecordBatch> = sizes.iter().map(batch).collect();
        let schema = batches[0].schema();
        Box::pin(RecordBatchStreamAdapter::new(schema, stream::iter(batches.into_iter().map(Ok))))
    }

    /// The numbers of rows of the parts.
    fn parts(mut buffer: RowBuffer, mut rows: SendableRecordBatchStream, limits: BatchLimits) -> Result<Vec<usize>> {
        let mut parts = Vec::new();
        loop {
            let is_last = block_on(buffer.fill(&mut rows, limits))?;
            assert_eq!(buffer.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), buffer.rows);
            parts.push(buffer.rows);
            if is_last {
                return Ok(parts);
            }
            buffer = buffer.another();
        }
    }

    #[test]
    fn rows_that_do_not_fit_into_the_memory_are_the_next_part() {
        let limits = BatchLimits { rows: 1 << 20, bytes: 1 << 30 };
        for has_texts in [false, true] {
            for sizes in [&[ROWS][..], &[ROWS / 4; 4], &[1, ROWS - 2, 1]] {
                for bytes in [10_000, 30_000, 1 << 20] {
                    let found = parts(buffer(bytes), stream_of(sizes, has_texts), limits).unwrap();
                    assert_eq!(found.iter().sum::<usize>(), ROWS as usize, "{sizes:?}, {bytes} bytes: {found:?}");
                    assert_eq!(found.len() > 1, bytes < 1 << 20, "{sizes:?}, {bytes} bytes: {found:?}");
                }
                // Rows that must be in one part, and a row that does not fit.
                for (bytes, limits) in [(10_000, BatchLimits::none()), (1, limits)] {
                    let error = parts(buffer(bytes), stream_of(sizes, has_texts), limits).unwrap_err();
                    assert!(is_out_of_memory(&error), "{error}");
                }
            }
        }
    }
}
