//! Which snapshots are alive: what they see of trees in memory must stay (trees on disk see to that by references).
//!
//! A snapshot enters its sequence number, and leaves with its last clone, view and cursor. The number is read and entered in one
//! step, and the numbers that snapshots get only grow: so a collector that looks here, and at the number that the next
//! snapshot would get, knows all that anybody may ever ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Sequence numbers of live snapshots, and how many have each.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<u64, usize>>,
}

/// A live snapshot's entry; leaves when it is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    snapshots: Arc<Snapshots>,
    sequence: u64,
}

/// What readers may ask for, now and later.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    /// Of live snapshots, ascending, none above `visible`.
    sequences: Vec<u64>,
    /// Later snapshots have this one, or a higher one.
    visible: u64,
}

impl Snapshots {
    /// Enters a snapshot with the number that `sequence` gives.
    pub fn enter(self: &Arc<Self>, sequence: impl FnOnce() -> u64) -> Registration {
        let mut live = self.live.lock();
        let sequence = sequence();
        *live.entry(sequence).or_default() += 1;
        Registration { snapshots: self.clone(), sequence }
    }

    /// `visible`: the number that the next snapshot would get.
    pub fn live(&self, visible: impl FnOnce() -> u64) -> Live {
        let live = self.live.lock();
        let visible = visible();
        Live { sequences: live.keys().copied().take_while(|&sequence| sequence < visible).collect(), visible }
    }
}

impl Registration {
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut live = self.snapshots.live.lock();
        let Some(count) = live.get_mut(&self.sequence) else { unreachable!("a live snapshot is registered") };
        *count -= 1;
        if *count == 0 {
            live.remove(&self.sequence);
        }
    }
}

impl Live {
    /// Nobody who comes later asks for less.
    pub fn visible(&self) -> u64 {
        self.visible
    }

    /// Nobody asks for less.
    pub fn oldest(&self) -> u64 {
        self.sequences.first().map_or(self.visible, |&first| first.min(self.visible))
    }

    /// Whether somebody may ask for a number from `from` on, below `to`.
    pub fn asks_between(&self, from: u64, to: u64) -> bool {
        if to > self.visible {
            return from < to;
        }
        let next = self.sequences.partition_point(|&sequence| sequence < from);
        self.sequences.get(next).is_some_and(|&sequence| sequence < to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_ask_for_what() {
        let snapshots = Arc::new(Snapshots::default());
        let (a, b) = (snapshots.enter(|| 3), snapshots.enter(|| 7));
        let again = snapshots.enter(|| 3);
        let live = snapshots.live(|| 9);
        assert_eq!(live.oldest(), 3);
        let asked: Vec<bool> = [(0, 3), (3, 4), (4, 7), (4, 8), (8, 9), (8, 10), (9, 12), (7, 7)]
            .map(|(a, b)| live.asks_between(a, b))
            .into();
        assert_eq!(asked, [false, true, false, true, false, true, true, false]);
        drop(a);
        assert_eq!(snapshots.live(|| 9).oldest(), 3);
        drop(again);
        assert_eq!(snapshots.live(|| 9).oldest(), 7);
        drop(b);
        assert_eq!((snapshots.live(|| 9).oldest(), snapshots.live(|| 9).asks_between(0, 9)), (9, false));
    }
}
