//! The rows of a cursor and its position.
//!
//! ```text
//!     kept batches                 the stream
//! ┌──────────┬──────────┐
//! │ 1 2 3 4  │ 5 6 7    │  8 9 …
//! └──────────┴──────────┘
//!                ▲       ▲
//!                position read
//! ```
//!
//! Rows have numbers from 1. The position is the number of the current row, 0 before the first row, and one more than the number
//! of all rows after the last one. A cursor with SCROLL keeps all rows that it has read, counted as memory of queries. Others
//! keep the batch with the current row only, and move forward only.

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use futures::stream;
use tokio::sync::OwnedMutexGuard;

use super::statement::Direction;
use crate::{Error, Result};

/// The rows of a cursor.
pub(super) struct CursorRows {
    /// Rows that were not read yet; `None` after the last one.
    stream: Option<SendableRecordBatchStream>,
    /// Batches that were read, each with the number of rows before it.
    kept: Vec<(u64, RecordBatch)>,
    /// Number of rows that were read from the stream.
    read: u64,
    position: u64,
    scrolls: bool,
    /// The query has failed.
    has_failed: bool,
    /// The memory of `kept`, unless the cursor keeps one batch only.
    reservation: MemoryReservation,
}

impl std::fmt::Debug for CursorRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CursorRows").field("read", &self.read).field("position", &self.position).finish_non_exhaustive()
    }
}

impl CursorRows {
    pub fn new(stream: SendableRecordBatchStream, scrolls: bool, reservation: MemoryReservation) -> CursorRows {
        CursorRows {
            stream: Some(stream),
            kept: Vec::new(),
            read: 0,
            position: 0,
            scrolls,
            has_failed: false,
            reservation,
        }
    }

    /// Reads a batch from the stream; false after the last one. `counts`: its memory is counted.
    async fn pull(&mut self, counts: bool) -> Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let batch = loop {
            match stream.next().await {
                Some(Ok(batch)) if batch.num_rows() == 0 => {}
                Some(batch) => break batch,
                None => {
                    self.stream = None;
                    return Ok(false);
                }
            }
        };
        let added = batch.map_err(Error::from).and_then(|batch| {
            if counts {
                self.reservation.try_grow(get_record_batch_memory_size(&batch))?;
            }
            Ok(batch)
        });
        match added {
            Ok(batch) => {
                let rows = batch.num_rows() as u64;
                self.kept.push((self.read, batch));
                self.read += rows;
                Ok(true)
            }
            Err(error) => {
                // A row is missing.
                (self.stream, self.has_failed) = (None, true);
                Err(error)
            }
        }
    }

    /// Reads all rows up to the one with a number; false if there is none. The cursor keeps the rows from its position, or all.
    async fn reach(&mut self, number: u64) -> Result<bool> {
        while self.read < number {
            if !self.scrolls {
                self.kept.clear();
            }
            if !self.pull(self.scrolls).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads and keeps all rows.
    ///
    /// # Errors
    /// Errors of the query; `OutOfMemory`.
    pub async fn read_all(&mut self) -> Result<()> {
        if self.has_failed {
            return Ok(());
        }
        if !self.scrolls && self.stream.is_some() {
            self.kept.retain(|(before, batch)| before + batch.num_rows() as u64 > self.position);
            let kept = self.kept.iter().map(|(_, batch)| get_record_batch_memory_size(batch)).sum();
            self.reservation.try_grow(kept)?;
        }
        while self.pull(true).await? {}
        Ok(())
    }

    /// The place in `kept` of the batch that has the row with a number.
    fn place(&self, number: u64) -> Option<usize> {
        let place = self.kept.partition_point(|(before, _)| *before < number).checked_sub(1)?;
        let (before, batch) = &self.kept[place];
        (number <= before + batch.num_rows() as u64).then_some(place)
    }

    /// The next rows, at most `rows`, in one batch; `None` after the last one, where the cursor is then.
    async fn forward(&mut self, rows: u64) -> Result<Option<RecordBatch>> {
        let next = self.position.saturating_add(1);
        if !self.reach(next).await? {
            self.position = self.read + 1;
            return Ok(None);
        }
        let Some(place) = self.place(next) else { return Err(gone()) };
        let (before, batch) = &self.kept[place];
        let offset = (next - before - 1) as usize;
        let len = (batch.num_rows() - offset).min(usize::try_from(rows).unwrap_or(usize::MAX));
        let batch = batch.slice(offset, len);
        self.position += len as u64;
        Ok(Some(batch))
    }

    /// The rows before the current one, at most `rows`, in one batch and in reverse order; `None` before the first one, where the
    /// cursor is then.
    fn backward(&mut self, rows: u64) -> Result<Option<RecordBatch>> {
        let Some(last) = self.position.checked_sub(1).filter(|last| *last > 0) else {
            self.position = 0;
            return Ok(None);
        };
        let Some(place) = self.place(last) else { return Err(gone()) };
        let (before, batch) = &self.kept[place];
        let end = (last - before) as usize;
        let len = end.min(usize::try_from(rows).unwrap_or(usize::MAX));
        let indices = UInt32Array::from_iter_values((end - len..end).rev().map(|row| row as u32));
        let batch = take_record_batch(batch, &indices)?;
        self.position = last + 1 - len as u64;
        Ok(Some(batch))
    }

    /// Moves to the row with a number, and returns it; `None` before the first one and after the last one.
    async fn seek(&mut self, number: u64) -> Result<Option<RecordBatch>> {
        if number == 0 {
            self.position = 0;
            return Ok(None);
        }
        if !self.reach(number).await? {
            self.position = self.read + 1;
            return Ok(None);
        }
        self.position = number;
        let Some(place) = self.place(number) else { return Err(gone()) };
        let (before, batch) = &self.kept[place];
        Ok(Some(batch.slice((number - before - 1) as usize, 1)))
    }

    /// The number of the row in a direction; 0 before the first one. `None` if the cursor would have to move backward, and does
    /// not scroll.
    async fn target(&mut self, direction: Direction) -> Result<Option<u64>> {
        let target = match direction {
            Direction::Relative(distance) => self.position.saturating_add_signed(distance),
            Direction::Absolute(number @ 0..) => number.unsigned_abs(),
            Direction::Absolute(number) => {
                if !self.scrolls {
                    return Ok(None);
                }
                while self.pull(true).await? {}
                (self.read + 1).saturating_sub(number.unsigned_abs())
            }
            Direction::Forward(_) | Direction::Backward(_) => return Err(gone()),
        };
        // The current row cannot be read again, as in PostgreSQL. Before the first row and after the last one there is none.
        let is_at_end = self.position == 0 || (self.stream.is_none() && self.position > self.read);
        let is_ahead = target > self.position || (target == self.position && is_at_end);
        Ok((self.scrolls || is_ahead).then_some(target))
    }
}

/// A row that the cursor should have kept.
fn gone() -> Error {
    Error::Internal("a row of a cursor is not kept".into())
}

/// The rows in a direction. The cursor moves as they are read.
///
/// # Errors
/// `PrerequisiteState` for a direction that needs SCROLL, and for a query that has failed; errors of the query.
pub(super) async fn fetch(
    mut rows: OwnedMutexGuard<CursorRows>,
    name: &str,
    schema: SchemaRef,
    direction: Direction,
) -> Result<SendableRecordBatchStream> {
    if rows.has_failed {
        return Err(Error::PrerequisiteState(format!("cursor \"{name}\" cannot be run: its query has failed")));
    }
    let forward_only =
        || Error::PrerequisiteState("cursor can only scan forward (declare it with SCROLL to scan backward)".into());
    match direction {
        Direction::Forward(count) => {
            let batches = stream::unfold((rows, count), |(mut rows, left)| async move {
                if left == 0 {
                    return None;
                }
                let batch = rows.forward(left).await.transpose()?;
                let left = batch.as_ref().map_or(0, |batch| left - batch.num_rows() as u64);
                Some((batch.map_err(Into::into), (rows, left)))
            });
            Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches.fuse())))
        }
        Direction::Backward(_) if !rows.scrolls => Err(forward_only()),
        Direction::Backward(count) => {
            let batches = stream::unfold((rows, count), |(mut rows, left)| async move {
                if left == 0 {
                    return None;
                }
                let batch = rows.backward(left).transpose()?;
                let left = batch.as_ref().map_or(0, |batch| left - batch.num_rows() as u64);
                Some((batch.map_err(Into::into), (rows, left)))
            });
            Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches.fuse())))
        }
        Direction::Absolute(_) | Direction::Relative(_) => {
            let target = rows.target(direction).await?.ok_or_else(forward_only)?;
            let found = rows.seek(target).await?;
            Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream::iter(found.map(Ok)))))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
    use keyaki_primitives::Random;
    use tokio::sync::Mutex;

    use super::*;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]))
    }

    /// A cursor of the numbers from 1 in batches of these sizes.
    fn cursor(batches: &[u64], scrolls: bool, memory: usize) -> Arc<Mutex<CursorRows>> {
        let mut next = 1;
        let batches: Vec<_> = batches
            .iter()
            .map(|len| {
                let numbers = Int64Array::from_iter_values((next..next + len).map(|number| number as i64));
                next += len;
                Ok(RecordBatch::try_new(schema(), vec![Arc::new(numbers)]).unwrap())
            })
            .collect();
        let stream = Box::pin(RecordBatchStreamAdapter::new(schema(), stream::iter(batches)));
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(memory));
        Arc::new(Mutex::new(CursorRows::new(stream, scrolls, MemoryConsumer::new("test").register(&pool))))
    }

    async fn numbers(cursor: &Arc<Mutex<CursorRows>>, direction: Direction) -> Result<Vec<i64>> {
        let rows = cursor.clone().try_lock_owned().unwrap();
        let mut batches = fetch(rows, "c", schema(), direction).await?;
        let mut numbers = Vec::new();
        while let Some(batch) = batches.next().await {
            numbers.extend(batch?.column(0).as_primitive::<Int64Type>().values());
        }
        Ok(numbers)
    }

    /// Compares random movements with those over a list of numbers.
    #[tokio::test]
    async fn movements_are_those_over_a_list() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let sizes: Vec<u64> = (0..random.below(5)).map(|_| random.below(4)).collect();
            let count: u64 = sizes.iter().sum();
            let scrolls = random.below(4) > 0;
            let cursor = cursor(&sizes, scrolls, 1 << 20);
            // 0 before the first row, `count + 1` after the last one.
            let mut position = 0_u64;
            for _ in 0..30 {
                let number = random.below(9) as i64 - 4;
                let direction = match random.below(4) {
                    0 => Direction::Forward(number.unsigned_abs().max(1)),
                    1 => Direction::Backward(number.unsigned_abs().max(1)),
                    2 => Direction::Absolute(number),
                    _ => Direction::Relative(number),
                };
                let single = |target: u64| (1..=count).contains(&target).then_some(target as i64).into_iter().collect();
                let (expected, after): (Vec<i64>, u64) = match direction {
                    Direction::Forward(n) => {
                        let end = (position + n).min(count + 1);
                        ((position + 1..=end.min(count)).map(|row| row as i64).collect(), end)
                    }
                    Direction::Backward(n) => {
                        let start = position.saturating_sub(n);
                        ((start.max(1)..position).rev().map(|row| row as i64).collect(), start)
                    }
                    Direction::Absolute(n) => {
                        let target = if n < 0 { (count + 1).saturating_sub(n.unsigned_abs()) } else { n as u64 };
                        (single(target), target.min(count + 1))
                    }
                    Direction::Relative(n) => {
                        let target = position.saturating_add_signed(n);
                        (single(target), target.min(count + 1))
                    }
                };
                match numbers(&cursor, direction).await {
                    Ok(found) => {
                        assert_eq!(found, expected, "seed {seed}: {direction:?} at {position}");
                        position = after;
                    }
                    Err(Error::PrerequisiteState(_)) if !scrolls => {}
                    Err(error) => panic!("seed {seed}: {direction:?} at {position}: {error}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn rows_are_read_as_they_are_fetched() {
        let cursor = cursor(&[3, 3, 3], false, 0);
        assert_eq!(numbers(&cursor, Direction::Forward(2)).await.unwrap(), [1, 2]);
        assert_eq!(cursor.lock().await.read, 3);
        assert_eq!(numbers(&cursor, Direction::Forward(3)).await.unwrap(), [3, 4, 5]);
        let rows = cursor.lock().await;
        assert_eq!((rows.read, rows.kept.len(), rows.reservation.size()), (6, 1, 0));
    }

    #[tokio::test]
    async fn rows_that_are_kept_are_counted() {
        let scrolling = cursor(&[100, 100], true, 1000);
        assert_eq!(numbers(&scrolling, Direction::Forward(100)).await.unwrap().len(), 100);
        assert!(matches!(numbers(&scrolling, Direction::Forward(1)).await, Err(Error::OutOfMemory { .. })));
        assert!(matches!(numbers(&scrolling, Direction::Absolute(1)).await, Err(Error::PrerequisiteState(_))));
        let held = cursor(&[100, 100], false, 1000);
        assert!(matches!(held.lock().await.read_all().await, Err(Error::OutOfMemory { .. })));
        let held = cursor(&[4, 4], false, 1000);
        assert_eq!(numbers(&held, Direction::Forward(3)).await.unwrap(), [1, 2, 3]);
        held.lock().await.read_all().await.unwrap();
        assert_eq!(numbers(&held, Direction::Forward(u64::MAX)).await.unwrap(), [4, 5, 6, 7, 8]);
    }
}
