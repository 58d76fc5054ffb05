//! Registry of live snapshots, used by the garbage collection of memory trees. (Trees on disk are kept by reference
//! counts instead.)
//!
//! A snapshot registers its sequence number; its last clone, view or cursor removes the entry. The number is read and
//! registered under one lock, and the sequence numbers of new snapshots never decrease. The registry and the sequence
//! number of the next snapshot, read under the same lock, therefore bound everything that current and future snapshots
//! can see.

use std::collections::BTreeMap;
use std::sync::Arc;

use keyaki_primitives::sync::Mutex;

/// The sequence numbers of live snapshots, with the number of snapshots of each.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<u64, usize>>,
}

/// The entry of a live snapshot, removed on drop.
#[derive(Debug)]
pub(crate) struct Registration {
    snapshots: Arc<Snapshots>,
    sequence: u64,
}

/// The sequence numbers that current and future snapshots can have.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    /// Sequence numbers of live snapshots, ascending, all below `visible`.
    sequences: Vec<u64>,
    /// Lower bound on the sequence number of any future snapshot.
    visible: u64,
}

impl Snapshots {
    /// Registers a snapshot. `sequence` is called under the lock of the registry and returns the sequence number of the
    /// snapshot.
    pub fn enter(self: &Arc<Self>, sequence: impl FnOnce() -> u64) -> Registration {
        let mut live = self.live.lock();
        let sequence = sequence();
        *live.entry(sequence).or_default() += 1;
        Registration { snapshots: self.clone(), sequence }
    }

    /// The live snapshots. `visible` is called under the lock of the registry and returns the sequence number of the
    /// next snapshot.
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
    /// Lower bound on the sequence number of any future snapshot.
    pub fn visible(&self) -> u64 {
        self.visible
    }

    /// Lower bound on the sequence number of any live or future snapshot.
    pub fn oldest(&self) -> u64 {
        self.sequences.first().map_or(self.visible, |&first| first.min(self.visible))
    }

    /// Returns true if a live or future snapshot can have a sequence number in `from..to`.
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
    fn bounds_follow_live_snapshots() {
        let snapshots = Arc::new(Snapshots::default());
        let (a, b) = (snapshots.enter(|| 3), snapshots.enter(|| 7));
        let again = snapshots.enter(|| 3);
        let live = snapshots.live(|| 9);
        assert_eq!(live.oldest(), 3);
        let visible: Vec<bool> = [(0, 3), (3, 4), (4, 7), (4, 8), (8, 9), (8, 10), (9, 12), (7, 7)]
            .map(|(a, b)| live.asks_between(a, b))
            .into();
        assert_eq!(visible, [false, true, false, true, false, true, true, false]);
        drop(a);
        assert_eq!(snapshots.live(|| 9).oldest(), 3);
        drop(again);
        assert_eq!(snapshots.live(|| 9).oldest(), 7);
        drop(b);
        assert_eq!((snapshots.live(|| 9).oldest(), snapshots.live(|| 9).asks_between(0, 9)), (9, false));
    }
}
