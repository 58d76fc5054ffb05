//! When a read is slow: the latencies of recent reads of about its length.
//!
//! A read that takes longer than twice the median of its class gets a second request. In a store whose reads take 20
//! ms, and 200 ms one time in ten, slow reads then take 60 ms. At most one read in eight gets a second request, so
//! that a store that has become slow as a whole does not get twice the load. Reads earn credits for second requests up
//! to a limit, so that millions of fast reads do not permit millions of second requests.

use std::time::Duration;

use parking_lot::Mutex;

/// Classes of lengths: 1 frame, up to 2, up to 4, …, more than 64 frames.
const CLASSES: usize = 8;
/// Latencies that a class remembers.
const REMEMBERED: usize = 32;
/// Latencies that a class needs.
const NEEDED: usize = 4;
/// Credits that a second request takes. A read earns one.
const READS_PER_HEDGE: u64 = 8;
/// Limit of the credits: 64 second requests.
const CREDITS_MAX: u64 = 64 * READS_PER_HEDGE;

#[derive(Debug, Default)]
pub(super) struct Latencies(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    classes: [Class; CLASSES],
    credits: u64,
}

/// The latest latencies of a class, in microseconds, as a ring.
#[derive(Debug, Default)]
struct Class {
    recent: Vec<u32>,
    next: usize,
}

impl Class {
    fn add(&mut self, latency: Duration) {
        let latency = u32::try_from(latency.as_micros()).unwrap_or(u32::MAX);
        match self.recent.get_mut(self.next) {
            Some(oldest) => *oldest = latency,
            None => self.recent.push(latency),
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    fn median(&self) -> Option<Duration> {
        let mut sorted = self.recent.clone();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2)?;
        (sorted.len() >= NEEDED).then(|| Duration::from_micros((*median).into()))
    }
}

/// The class of a read of `frames` frames.
fn class(frames: u64) -> usize {
    (frames.max(1).next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1)
}

impl Latencies {
    /// The time after which a read gets a second request; `None` while nothing is known of such reads.
    pub fn hedge_after(&self, frames: u64) -> Option<Duration> {
        self.0.lock().classes[class(frames)].median().map(|median| median * 2)
    }

    /// The median of the recent latencies of the shortest reads that there were.
    pub fn shortest(&self) -> Option<Duration> {
        let state = self.0.lock();
        let class = state.classes.iter().find(|class| !class.recent.is_empty())?;
        let mut sorted = class.recent.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map(|&median| Duration::from_micros(median.into()))
    }

    /// Counts a read.
    pub fn add_read(&self) {
        let mut state = self.0.lock();
        state.credits = (state.credits + 1).min(CREDITS_MAX);
    }

    /// True if a slow read may have a second request, which is counted.
    pub fn take_hedge(&self) -> bool {
        let mut state = self.0.lock();
        let left = state.credits.checked_sub(READS_PER_HEDGE);
        state.credits = left.unwrap_or(state.credits);
        left.is_some()
    }

    /// Remembers the latency of a first request of a read.
    pub fn add(&self, frames: u64, latency: Duration) {
        self.0.lock().classes[class(frames)].add(latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_slow_after_twice_the_median_of_their_class() {
        let latencies = Latencies::default();
        assert_eq!((latencies.hedge_after(1), latencies.shortest()), (None, None));
        latencies.add(64, Duration::from_millis(70));
        assert_eq!((latencies.hedge_after(64), latencies.shortest()), (None, Some(Duration::from_millis(70))));
        for i in 0..100 {
            latencies.add(1, Duration::from_millis(if i % 10 == 0 { 200 } else { 20 }));
        }
        assert_eq!(latencies.hedge_after(1), Some(Duration::from_millis(40)));
        assert_eq!(latencies.shortest(), Some(Duration::from_millis(20)));
        assert_eq!(latencies.hedge_after(2), None);
        (0..32).for_each(|_| latencies.add(1, Duration::from_millis(5)));
        assert_eq!(latencies.hedge_after(1), Some(Duration::from_millis(10)));
        assert_eq!([0, 1, 2, 3, 4, 64, 65, 1 << 40].map(class), [0, 0, 1, 2, 2, 6, 7, 7]);
    }

    #[test]
    fn few_reads_get_second_requests() {
        let latencies = Latencies::default();
        let mut hedges = 0;
        for _ in 0..800 {
            latencies.add_read();
            hedges += u64::from(latencies.take_hedge());
        }
        assert_eq!(hedges, 100);
    }

    #[test]
    fn fast_reads_permit_few_second_requests() {
        let latencies = Latencies::default();
        (0..100_000).for_each(|_| latencies.add_read());
        assert_eq!((0..1000).filter(|_| latencies.take_hedge()).count(), 64);
        (0..8).for_each(|_| latencies.add_read());
        assert!(latencies.take_hedge() && !latencies.take_hedge());
    }
}
