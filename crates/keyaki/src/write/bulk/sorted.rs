//! Sorts the rows of a stream.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, stream};

use super::sort::Sorter;
use super::spill::SpillDir;
use crate::base::interrupt::Decision;
use crate::engine::Engine;
use crate::{Error, Result};

/// The sorter takes at most this share of the query memory, and at least so many bytes.
const SORT_SHARE: usize = 4;
const SORT_BYTES_MIN: usize = 256 << 10;

/// Sorts the rows of a stream by their columns `keys`, ascending and nulls first. Rows with the same keys keep their order. The
/// result has batches of at most `batch_rows` rows. The function reads the whole stream before it returns, and writes the rows
/// that do not fit into the memory to temporary files. `statement` names the consumer in `OutOfMemory` errors.
///
/// # Errors
/// Errors of the stream and of the files; `Cancelled`; `OutOfMemory`.
pub(crate) async fn sorted(
    engine: &Arc<Engine>,
    statement: &str,
    decision: &Decision,
    mut rows: SendableRecordBatchStream,
    keys: &[usize],
    batch_rows: usize,
) -> Result<SendableRecordBatchStream> {
    let schema = rows.schema();
    let columns = schema.fields().len();
    // Sorters expect the key first.
    let order: Vec<usize> = keys.iter().copied().chain((0..columns).filter(|column| !keys.contains(column))).collect();
    let places = (0..columns).map(|column| order.iter().position(|other| *other == column));
    let places: Vec<usize> =
        places.collect::<Option<_>>().ok_or_else(|| Error::Internal("a sort loses a column".into()))?;
    let reordered = Arc::new(schema.project(&order)?);
    let reservation = reserve(engine, statement)?;
    let bytes = reservation.size();
    let mut sorter = Sorter::new(reordered.clone(), keys.len(), bytes, SpillDir::new(&engine.path))?;
    while let Some(batch) = rows.next().await {
        decision.check()?;
        let batch = batch?;
        let columns = order.iter().map(|&column| batch.column(column).clone()).collect();
        let batch = RecordBatch::try_new(reordered.clone(), columns)?;
        sorter = blocking(move || {
            sorter.push(&batch)?;
            Ok(sorter)
        })
        .await?;
    }
    drop(rows);
    let merge = blocking(move || sorter.finish_in_batches(Vec::new(), batch_rows)).await?;
    // The order and the encoded keys are gone, or the rows are in files.
    reservation.shrink(bytes / 2);
    let sorted = stream::try_unfold((merge, reservation), move |(mut merge, reservation)| async move {
        let (batch, merge) = blocking(move || Ok((merge.next()?, merge))).await?;
        Ok(batch.map(|batch| (batch, (merge, reservation))))
    });
    let of_stream = schema.clone();
    let sorted = sorted.map(move |batch: Result<RecordBatch>| {
        let batch = batch?;
        let columns = places.iter().map(|&place| batch.column(place).clone()).collect();
        Ok(RecordBatch::try_new(of_stream.clone(), columns)?)
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, sorted)))
}

/// The memory of a sorter: as much as is left, up to its share.
fn reserve(engine: &Engine, statement: &str) -> Result<MemoryReservation> {
    let pool = &engine.base_state.runtime_env().memory_pool;
    let reservation = MemoryConsumer::new(format!("the sort of {statement}")).register(pool);
    let mut bytes = (engine.query_bytes() / SORT_SHARE).max(SORT_BYTES_MIN);
    loop {
        match reservation.try_grow(bytes) {
            Ok(()) => return Ok(reservation),
            Err(_) if bytes > SORT_BYTES_MIN => bytes = (bytes / 2).max(SORT_BYTES_MIN),
            Err(error) => return Err(error.into()),
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::task(&error))?
}
