//! Back-pressure: how many bytes each level of a pipeline holds, and may hold.
//!
//! ```text
//!   driver ─▶ level 0 ─▶ step 0 ─▶ level 1 ─▶ … ─▶ step n-1 ─▶ level n ─▶ consumer
//! ```
//!
//! Level l holds the rows that came out of the driver (l = 0) or of step l - 1, from the moment they are decoded until
//! nothing refers to them any more. Whoever adds to a level first asks whether there is room; a level may overshoot by
//! what the tasks that have been told so are adding. Nothing ever waits for a level above it (closer to the driver), so
//! the last level drains into the consumer, then the one before it into the last, and so on: no deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes of finished output that wait for the consumer.
const OUTPUT_BYTES_MAX: usize = 32 << 20;

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
    /// Levels 0 to `last`, which together may hold about `memory_bytes`.
    pub fn new(last: usize, memory_bytes: usize) -> Self {
        let share = (memory_bytes / (last + 1)).max(1);
        let limit = |level| if level == last { share.min(OUTPUT_BYTES_MAX) } else { share };
        Flow { levels: (0..=last).map(|level| Level { bytes: AtomicUsize::new(0), limit: limit(level) }).collect() }
    }

    pub fn last(&self) -> usize {
        self.levels.len() - 1
    }

    pub fn has_room(&self, level: usize) -> bool {
        let level = &self.levels[level];
        level.bytes.load(Ordering::SeqCst) < level.limit
    }

    pub fn add(&self, level: usize, bytes: usize) {
        self.levels[level].bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Returns whether the level was full before, so that somebody may wait for the room that this has made.
    pub fn subtract(&self, level: usize, bytes: usize) -> bool {
        let level = &self.levels[level];
        level.bytes.fetch_sub(bytes, Ordering::SeqCst) >= level.limit
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
    pub fn new(flow: &Arc<Flow>, level: usize) -> Self {
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
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.flow.subtract(self.level, self.bytes);
    }
}
