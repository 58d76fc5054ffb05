//! Gradual back-pressure: commits slow down to the speed of the flushes before the buffers are full.
//!
//! Once the buffers exceed one and a half times their budget, each commit adds the time that a flush takes for its bytes,
//! divided by the share of the room that is left, to a common debt. A commit sleeps once the debt exceeds 1 ms. Without this,
//! the commit that fills the buffers waits for a whole flush.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use keyaki_primitives::sync::Mutex;
use keyaki_primitives::sync::thread::sleep;

use crate::base::Result;
use crate::engine::{Shared, nanoseconds_since};
use crate::message::WriteBatch;

/// Debt up to which commits do not sleep.
const SLACK: Duration = Duration::from_millis(1);
/// Longest wait of a commit.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The debt of the commits, and the speed of the flushes.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    /// Bytes of messages that are flushed per second; 0 before the first flush.
    rate: AtomicU64,
    /// When the debt is paid.
    paid: Mutex<Option<Instant>>,
}

impl Pacing {
    /// Records a flush of buffers with `bytes` bytes of messages. Flushes of less than an eighth of the `budget` of the buffers
    /// say nothing about the speed of large ones.
    pub fn flushed(&self, bytes: usize, budget: usize, elapsed: Duration) {
        if bytes < budget / 8 {
            return;
        }
        let rate = (bytes as f64 / elapsed.as_secs_f64().max(1e-6)) as u64;
        let before = self.rate.load(Ordering::Relaxed);
        let rate = if before == 0 { rate } else { before / 2 + rate / 2 };
        self.rate.store(rate.max(1), Ordering::Relaxed);
    }

    /// The time that a commit of `bytes` bytes waits beside `used` bytes in buffers of a budget of `budget` bytes.
    pub fn delay(&self, bytes: usize, used: usize, budget: usize) -> Option<Duration> {
        let cost = cost(bytes, used, budget, self.rate.load(Ordering::Relaxed))?;
        let now = Instant::now();
        let mut paid = self.paid.lock();
        let until = paid.map_or(now, |paid| paid.max(now)) + cost;
        *paid = Some(until.min(now + WAIT_MAX));
        let debt = until - now;
        (debt > SLACK).then_some(debt.min(WAIT_MAX))
    }
}

impl Shared {
    /// Slows a writer down while the buffers exceed one and a half times their budget, and blocks it while they exceed it
    /// twice, unless its batch drops trees, and with them their buffers.
    ///
    /// # Errors
    /// The error of a failed flush; [`Error::Poisoned`].
    pub fn wait_for_room(&self, batch: &WriteBatch) -> Result<()> {
        let (used, budget) = (self.buffer_bytes(), self.options.buffer_bytes);
        if used <= pacing_start(budget) || batch.frees_space()?.drops_trees {
            return Ok(());
        }
        let delay = self.pacing.delay(batch.bytes.len(), used, budget);
        if delay.is_none() && used <= 2 * budget {
            return Ok(());
        }
        let started = Instant::now();
        self.stalls.start(batch.bytes.len());
        if let Some(delay) = delay {
            self.ask_for_work(&mut self.work.lock());
            sleep(delay);
        }
        let waited = self.wait_for_flush();
        self.stalls.complete(nanoseconds_since(started), waited.is_ok());
        waited
    }
}

/// Bytes in buffers of a budget of `budget` bytes from which on commits slow down.
pub(crate) fn pacing_start(budget: usize) -> usize {
    budget + budget / 2
}

/// The debt of a commit: `None` while the buffers have room.
fn cost(bytes: usize, used: usize, budget: usize, rate: u64) -> Option<Duration> {
    let (start, end) = (pacing_start(budget), 2 * budget);
    if used <= start || rate == 0 {
        return None;
    }
    let room = end.saturating_sub(used) as f64 / (end - start).max(1) as f64;
    // A hundredth of the room is left for the rounding of sleeps.
    let seconds = bytes as f64 / (rate as f64 * room.max(0.01));
    Some(Duration::from_secs_f64(seconds).min(WAIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debt_grows_as_the_room_shrinks() {
        let rate = 1_000_000;
        assert_eq!(cost(1000, 1500, 1000, rate), None);
        assert_eq!(cost(1000, 1600, 1000, 0), None, "the speed is not known");
        // At the beginning, commits have the speed of the flushes.
        let costs: Vec<Duration> =
            [1501, 1600, 1750, 1900, 1999].iter().map(|used| cost(1000, *used, 1000, rate).unwrap()).collect();
        assert!(costs[0] >= Duration::from_millis(1) && costs[0] < Duration::from_micros(1010), "{costs:?}");
        assert!(costs.is_sorted() && costs[2] == Duration::from_millis(2), "{costs:?}");
        assert_eq!(cost(1 << 30, 5000, 1000, 1), Some(WAIT_MAX));
    }

    #[test]
    fn small_debts_add_up_to_a_wait() {
        let pacing = Pacing::default();
        pacing.flushed(100, 1000, Duration::from_secs(100));
        assert_eq!(pacing.delay(100, 1600, 1000), None, "a small flush does not count");
        pacing.flushed(1_000_000, 1000, Duration::from_secs(1));
        let waits = (0..100).filter(|_| pacing.delay(100, 1600, 1000).is_some()).count();
        assert!(waits > 50, "{waits} of 100 commits with a debt of 0.125 ms each have waited");
        assert_eq!(pacing.delay(100, 1000, 1000), None);
    }
}
