//! The choice between the two ways to write new rows.
//!
//! | way | how | for |
//! |---|---|---|
//! | [`WritePath::Batch`] | one write batch through log and root buffers | few rows: cheap, synced with the log |
//! | [`WritePath::Bulk`] | straight to leaf extents, past log and buffers ([`super::bulk`]) | many rows: each is written once |
//!
//! [`choose`] decides for INSERT, COPY, CREATE TABLE AS and loads by a program: it reads rows until they exceed
//! [`BatchLimits`] or end. Three cases need no choice. VALUES of literals, UPDATE and DELETE always form a batch: their rows
//! are in memory anyway. CREATE INDEX always builds in bulk, because a new tree has no other entries.

use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, stream};

use super::bulk::batch_bytes;
use crate::Result;
use crate::engine::Engine;

/// Rows of a write batch that holds the result of a query, at most.
const QUERY_ROWS_MAX: usize = 100_000;
/// Rows and bytes of a write batch that holds loaded rows, at most.
const LOAD_ROWS_MAX: usize = 20_000;
const LOAD_BYTES_MAX: usize = 16 << 20;
/// As [`LOAD_ROWS_MAX`], for a table without rows: its first leaves are better made by a bulk load.
const LOAD_ROWS_MAX_EMPTY: usize = 2_000;

/// What fits into one write batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchLimits {
    rows: usize,
    bytes: usize,
}

impl BatchLimits {
    /// For the rows of a query. Their bytes are limited by the memory for queries.
    pub fn of_query() -> Self {
        BatchLimits { rows: QUERY_ROWS_MAX, bytes: usize::MAX }
    }

    /// For rows of files and programs, given the rows that the table has already.
    pub fn of_load(rows_before: f64) -> Self {
        let rows = if rows_before > 0.0 { LOAD_ROWS_MAX } else { LOAD_ROWS_MAX_EMPTY };
        BatchLimits { rows, bytes: LOAD_BYTES_MAX }
    }
}

/// New rows on one of the two ways.
pub(crate) enum WritePath {
    /// All rows.
    Batch(Vec<RecordBatch>),
    /// All rows, the first ones read already.
    Bulk(SendableRecordBatchStream),
}

/// Reads rows until they end or exceed `limits`.
///
/// # Errors
/// The first error of the stream; exhausted memory for queries.
pub(super) async fn choose(
    mut rows: SendableRecordBatchStream,
    limits: BatchLimits,
    mut buffer: RowBuffer,
) -> Result<WritePath> {
    let mut bytes = 0;
    while buffer.rows <= limits.rows && bytes <= limits.bytes {
        let Some(batch) = rows.next().await else { return Ok(WritePath::Batch(buffer.batches)) };
        let batch = batch?;
        bytes += batch_bytes(&batch);
        buffer.push(batch)?;
    }
    let first = stream::iter(std::mem::take(&mut buffer.batches).into_iter().map(Ok));
    Ok(WritePath::Bulk(Box::pin(RecordBatchStreamAdapter::new(rows.schema(), first.chain(rows)))))
}

/// Batches of rows in memory.
pub(crate) struct RowBuffer {
    pub batches: Vec<RecordBatch>,
    pub rows: usize,
    /// In the memory for queries; none if the rows are not counted there.
    reservation: Option<MemoryReservation>,
}

impl RowBuffer {
    /// For rows that occupy memory of queries; `statement` is named if it is exhausted.
    pub fn reserved(engine: &Engine, statement: &str) -> Self {
        let pool = &engine.base_state.runtime_env().memory_pool;
        let reservation = MemoryConsumer::new(format!("rows of {statement}")).register(pool);
        RowBuffer { batches: Vec::new(), rows: 0, reservation: Some(reservation) }
    }

    /// For rows whose number and size are limited.
    pub fn unreserved() -> Self {
        RowBuffer { batches: Vec::new(), rows: 0, reservation: None }
    }

    /// # Errors
    /// Exhausted memory for queries.
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() > 0 {
            if let Some(reservation) = &mut self.reservation {
                reservation.try_grow(batch.get_array_memory_size())?;
            }
            self.rows += batch.num_rows();
            self.batches.push(batch);
        }
        Ok(())
    }

    /// Everything that a plan gives.
    pub async fn collect(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        while let Some(batch) = stream.next().await {
            self.push(batch?)?;
        }
        Ok(self)
    }
}
