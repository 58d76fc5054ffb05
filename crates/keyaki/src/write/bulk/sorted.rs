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
/// that do not fit into the memory to temporary files. `statement` names the consumer of the memory.
///
/// # Errors
/// Errors of the stream and of the files; `Cancelled`.
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
    let pool = &engine.base_state.runtime_env().memory_pool;
    let consumer = MemoryConsumer::new(format!("the sort of {statement}")).with_can_spill(true);
    let mut memory = consumer.register(pool);
    let budget = (engine.query_bytes() / SORT_SHARE).max(SORT_BYTES_MIN);
    let mut sorter = Sorter::new(reordered.clone(), keys.len(), budget, SpillDir::new(&engine.path))?;
    while let Some(batch) = rows.next().await {
        decision.check()?;
        let batch = batch?;
        let columns = order.iter().map(|&column| batch.column(column).clone()).collect();
        let batch = RecordBatch::try_new(reordered.clone(), columns)?;
        (sorter, memory) = blocking(move || {
            push(&mut sorter, &memory, &batch)?;
            Ok((sorter, memory))
        })
        .await?;
    }
    drop(rows);
    let (buffered, runs) = (sorter.buffered_bytes(), sorter.runs_bytes());
    memory.grow(runs);
    let merge = blocking(move || sorter.finish_in_batches(Vec::new(), batch_rows)).await?;
    // The encoded keys and the unsorted values are gone.
    memory.resize(buffered / 2 + runs);
    let sorted = stream::try_unfold((merge, memory), move |(mut merge, memory)| async move {
        let (batch, merge) = blocking(move || Ok((merge.next()?, merge))).await?;
        Ok(batch.map(|batch| (batch, (merge, memory))))
    });
    let of_stream = schema.clone();
    let sorted = sorted.map(move |batch: Result<RecordBatch>| {
        let batch = batch?;
        let columns = places.iter().map(|&place| batch.column(place).clone()).collect();
        Ok(RecordBatch::try_new(of_stream.clone(), columns)?)
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, sorted)))
}

/// Adds rows to a sorter, whose buffered rows are counted in `memory`. If the pool refuses their memory, the sorter
/// writes a run first, and after that also the new rows, if the pool refuses the memory of one batch.
fn push(sorter: &mut Sorter, memory: &MemoryReservation, batch: &RecordBatch) -> Result<()> {
    let bytes = Sorter::bytes_of(batch);
    let mut is_granted = memory.try_grow(bytes).is_ok();
    if !is_granted {
        sorter.spill()?;
        memory.free();
        is_granted = memory.try_grow(bytes).is_ok();
    }
    sorter.push(batch)?;
    if !is_granted {
        sorter.spill()?;
    }
    // The sorter may have written a run of its own accord.
    memory.shrink(memory.size().saturating_sub(sorter.buffered_bytes()));
    Ok(())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::task(&error))?
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array, StringViewArray};
    use arrow::datatypes::Int64Type;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};

    use super::*;

    #[test]
    fn rows_are_sorted_with_any_memory() {
        let batch = |first: i64| {
            let keys: Int64Array = (first..first + 500).map(|i| i * 7919 % 10_007).collect();
            let texts: StringViewArray = (first..first + 500).map(|i| Some(format!("the text of row {i}"))).collect();
            RecordBatch::try_from_iter([("key", Arc::new(keys) as _), ("text", Arc::new(texts) as _)]).unwrap()
        };
        let bytes = Sorter::bytes_of(&batch(0));
        // No memory, one batch less a byte, one batch, several batches, all rows.
        for limit in [0, bytes - 1, bytes, 3 * bytes + 1, 100 * bytes] {
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
            let memory = MemoryConsumer::new("sort").register(&pool);
            let dir = SpillDir::new(&std::env::temp_dir());
            let mut sorter = Sorter::new(batch(0).schema(), 1, 10 * bytes, dir).unwrap();
            for number in 0..20 {
                push(&mut sorter, &memory, &batch(number * 500)).unwrap();
                assert_eq!(memory.size(), sorter.buffered_bytes());
                assert!(memory.size() <= limit.min(10 * bytes));
            }
            let mut merge = sorter.finish(Vec::new()).unwrap();
            let mut keys = Vec::new();
            while let Some(batch) = merge.next().unwrap() {
                keys.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
            }
            let mut expected: Vec<i64> = (0..10_000).map(|i| i * 7919 % 10_007).collect();
            expected.sort_unstable();
            assert!(keys == expected, "limit {limit}");
        }
    }
}
