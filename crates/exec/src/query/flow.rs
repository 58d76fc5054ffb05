//! Back-pressure: the bytes that each level of a query holds, and may hold.
//!
//! ```text
//!   driver ─▶ level 0 ─▶ step 0 ─▶ level 1 ─▶ … ─▶ step n-1 ─▶ level n ─▶ consumer
//! ```
//!
//! Level l holds the rows of the driver (l = 0) or of step l - 1, from their decoding until the last reference to them is
//! dropped. A scan has one level, its output. A task starts, or continues, only if its level has room. A level may exceed
//! its limit by the rows that tasks already admitted add. Work on a level never waits for a level nearer to the driver:
//! the last level drains into the consumer, the level before it into the last one, and so on. So there is no deadlock.
//!
//! Invariant: the bytes of a level are the sum of the [`Charge`]s on it, so a level never becomes negative, and all bytes
//! are returned when the query ends. [`Flow`] asserts both.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of output that wait for the consumer, at most.
const OUTPUT_BYTES_MAX: usize = 32 << 20;

/// The levels of one query.
#[derive(Debug)]
pub(crate) struct Flow {
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    bytes: AtomicUsize,
    limit: usize,
}

impl Flow {
    /// Levels 0 to `last`, with equal shares of `memory_bytes`. The share of the last one is at most [`OUTPUT_BYTES_MAX`].
    pub fn new(last: usize, memory_bytes: usize) -> Self {
        let share = (memory_bytes / (last + 1)).max(1);
        let limit = |level| if level == last { share.min(OUTPUT_BYTES_MAX) } else { share };
        Flow { levels: (0..=last).map(|level| Level { bytes: AtomicUsize::new(0), limit: limit(level) }).collect() }
    }

    /// The level of the output.
    pub fn last(&self) -> usize {
        self.levels.len() - 1
    }

    pub fn has_room(&self, level: usize) -> bool {
        let level = &self.levels[level];
        level.bytes.load(Ordering::SeqCst) < level.limit
    }

    fn add(&self, level: usize, bytes: usize) {
        self.levels[level].bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Returns true if the level was full before, so that tasks may be waiting for room.
    fn subtract(&self, level: usize, bytes: usize) -> bool {
        let Level { bytes: held, limit } = &self.levels[level];
        let before = held.fetch_sub(bytes, Ordering::SeqCst);
        assert!(before >= bytes, "level {level} holds {before} bytes, {bytes} are returned");
        before >= *limit
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Every charge holds the flow, so all charges have been dropped.
        if !std::thread::panicking() {
            for (number, level) in self.levels.iter_mut().enumerate() {
                assert_eq!(*level.bytes.get_mut(), 0, "bytes of level {number} at the end of the query");
            }
        }
    }
}

/// Bytes held on a level until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    flow: Arc<Flow>,
    level: usize,
    bytes: usize,
}

impl Charge {
    /// A charge of 0 bytes.
    pub fn new(flow: &Arc<Flow>, level: usize) -> Self {
        assert!(level <= flow.last(), "level {level} of {}", flow.levels.len());
        Charge { flow: flow.clone(), level, bytes: 0 }
    }

    /// Changes the charge to `bytes`.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.flow.add(self.level, bytes - self.bytes);
        } else {
            self.flow.subtract(self.level, self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Returns the bytes. True if the level was full before, so that tasks may be waiting for room.
    pub fn release(mut self) -> bool {
        self.flow.subtract(self.level, std::mem::take(&mut self.bytes))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.flow.subtract(self.level, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_fill_a_level_and_return_their_bytes() {
        let flow = Arc::new(Flow::new(1, 200));
        let (mut first, mut second) = (Charge::new(&flow, 1), Charge::new(&flow, 1));
        first.set(60);
        second.set(70);
        assert!(!flow.has_room(1) && flow.has_room(0));
        second.set(30);
        assert!(flow.has_room(1));
        second.set(40);
        assert!(second.release(), "the level was full");
        assert!(!first.release(), "the level had room");
        assert!(flow.has_room(1));
    }

    #[test]
    fn a_level_without_memory_admits_one_addition() {
        let flow = Arc::new(Flow::new(0, 0));
        assert!(flow.has_room(0));
        let mut charge = Charge::new(&flow, 0);
        charge.set(1000);
        assert!(!flow.has_room(0));
    }
}
