//! The version word of a node: a spin lock, and the marks and counters by which optimistic readers detect concurrent
//! changes.
//!
//! ```text
//! 63            36 35             10 9     6    4       3         2         1        0
//! | split counter | insert counter  | count |  root | deleted | splitting | inserting | locked |
//! ```
//!
//! A writer locks the node. Before it changes anything that a reader of the current state could misread, it marks the
//! node as *inserting* or *splitting*. Unlocking clears the marks and increments the counter of each mark that was set.
//!
//! A reader takes a version without marks, reads the node, and loads the version again. If the two are equal apart from
//! the lock bit, everything it read is of one moment. If only the insert counter differs, it reads the node again. If
//! the split counter differs or the node is deleted, the key may be in another node, and the reader restarts from the
//! root.
//!
//! The memory orderings are those of a sequence lock: a release fence follows each mark, and an acquire fence precedes
//! the reader's second load. A reader that saw a store made after a mark therefore sees the mark or a later version.
//!
//! `count` is the number of keys of an interior node; border nodes keep theirs in the permutation.
//!
//! Invariants: marks are set only while the lock is held, and a deleted node never becomes live again.

use super::permutation::WIDTH;
use crate::sync::{Acquire, AtomicU64, Backoff, Relaxed, Release, fence};

const LOCKED: u64 = 1;
pub(crate) const INSERTING: u64 = 1 << 1;
pub(crate) const SPLITTING: u64 = 1 << 2;
pub(crate) const DELETED: u64 = 1 << 3;
pub(crate) const ROOT: u64 = 1 << 4;
const MARKS: u64 = INSERTING | SPLITTING;
const COUNT_SHIFT: u32 = 6;
const COUNT: u64 = 15 << COUNT_SHIFT;
const INSERTS: u64 = ((1 << 26) - 1) << 10;
const ONE_INSERT: u64 = 1 << 10;
const ONE_SPLIT: u64 = 1 << 36;

const _: () = assert!((WIDTH as u64) << COUNT_SHIFT == COUNT, "the count field holds the keys of a full node");
const _: () = assert!(INSERTS & COUNT == 0 && INSERTS + ONE_INSERT == ONE_SPLIT, "fields are adjacent and disjoint");

#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Version(AtomicU64);

/// The value of a version word at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VersionSnapshot(u64);

impl VersionSnapshot {
    #[inline]
    pub fn is_root(self) -> bool {
        self.0 & ROOT != 0
    }

    #[inline]
    pub fn is_deleted(self) -> bool {
        self.0 & DELETED != 0
    }

    /// Number of keys of an interior node.
    #[inline]
    pub fn count(self) -> usize {
        ((self.0 & COUNT) >> COUNT_SHIFT) as usize
    }

    /// The version with the lock bit cleared, for comparisons.
    #[inline]
    pub fn unlocked(self) -> Self {
        VersionSnapshot(self.0 & !LOCKED)
    }

    /// Returns whether keys may have left the node between this version and a later one: it was split or deleted.
    #[inline]
    pub fn keys_left(self, later: VersionSnapshot) -> bool {
        self.0 ^ later.0 >= ONE_SPLIT || later.is_deleted()
    }
}

impl Version {
    /// The version of a new node, unlocked.
    pub fn new(flags: u64, count: usize) -> Self {
        assert!(count <= WIDTH, "a node of {count} keys");
        Version(AtomicU64::new(flags | (count as u64) << COUNT_SHIFT))
    }

    /// A version without marks. Waits until the writer that has set marks unlocks the node.
    #[inline]
    pub fn stable(&self) -> VersionSnapshot {
        let observed = self.0.load(Acquire);
        if observed & MARKS == 0 { VersionSnapshot(observed) } else { self.wait() }
    }

    #[cold]
    fn wait(&self) -> VersionSnapshot {
        let mut backoff = Backoff::default();
        loop {
            backoff.wait();
            let observed = self.0.load(Acquire);
            if observed & MARKS == 0 {
                return VersionSnapshot(observed);
            }
        }
    }

    /// Returns whether the node may have changed since `observed`. If not, everything read in between is of one moment.
    #[inline]
    pub fn changed(&self, observed: VersionSnapshot) -> bool {
        fence(Acquire);
        (self.0.load(Relaxed) ^ observed.0) & !LOCKED != 0
    }

    /// Locks the node.
    #[inline]
    pub(super) fn lock(&self) {
        let mut backoff = Backoff::default();
        loop {
            let observed = self.0.load(Relaxed);
            if observed & LOCKED == 0
                && self.0.compare_exchange_weak(observed, observed | LOCKED, Acquire, Relaxed).is_ok()
            {
                return;
            }
            backoff.wait();
        }
    }

    /// The version of a node that is locked, by the current thread.
    #[inline]
    pub(super) fn locked(&self) -> VersionSnapshot {
        let observed = self.0.load(Relaxed);
        assert!(observed & LOCKED != 0, "the node is not locked");
        VersionSnapshot(observed)
    }

    /// Marks a locked node before it is changed.
    #[inline]
    pub(super) fn mark(&self, mark: u64) {
        let observed = self.locked().0;
        self.0.store(observed | mark, Relaxed);
        fence(Release);
    }

    /// Sets the number of keys of a locked and marked interior node.
    pub(super) fn set_count(&self, count: usize) {
        let observed = self.locked().0;
        assert!(observed & MARKS != 0 && count <= WIDTH, "{count} keys in a node with version {observed:#x}");
        self.0.store(observed & !COUNT | (count as u64) << COUNT_SHIFT, Relaxed);
    }

    /// Makes an unpublished node the root of its layer.
    pub(super) fn make_root(&self) {
        let observed = self.0.load(Relaxed);
        assert!(observed & (LOCKED | MARKS | DELETED) == 0, "a new root with version {observed:#x}");
        self.0.store(observed | ROOT, Relaxed);
    }

    /// A locked and marked node is no longer the root of its layer.
    pub(super) fn clear_root(&self) {
        let observed = self.locked().0;
        assert!(observed & MARKS != 0 && observed & ROOT != 0, "an old root with version {observed:#x}");
        self.0.store(observed & !ROOT, Relaxed);
    }

    /// Increments the counters of the marks that are set, clears the marks and unlocks the node.
    #[inline]
    pub(super) fn unlock(&self) {
        let mut observed = self.locked().0;
        if observed & INSERTING != 0 {
            observed = observed & !INSERTS | observed.wrapping_add(ONE_INSERT) & INSERTS;
        }
        if observed & SPLITTING != 0 {
            observed = observed.wrapping_add(ONE_SPLIT);
        }
        self.0.store(observed & !(LOCKED | MARKS), Release);
    }

    /// Marks a locked node as no longer part of the tree, and unlocks it.
    pub(super) fn unlock_deleted(&self) {
        let observed = self.locked().0;
        assert!(observed & DELETED == 0, "a node is deleted once");
        self.0.store(observed | SPLITTING | DELETED, Relaxed);
        self.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlocking_counts_the_marks() {
        let version = Version::new(ROOT, 3);
        let first = version.stable();
        assert!(first.is_root() && first.count() == 3 && !version.changed(first));
        version.lock();
        assert!(!version.changed(first), "a lock alone changes nothing");
        version.unlock();
        assert!(!version.changed(first));
        version.lock();
        version.mark(INSERTING);
        assert!(version.changed(first));
        version.set_count(4);
        version.unlock();
        let second = version.stable();
        assert!(version.changed(first) && !first.keys_left(second) && second.count() == 4);
        version.lock();
        version.mark(SPLITTING);
        version.clear_root();
        version.unlock();
        let third = version.stable();
        assert!(second.keys_left(third) && !third.is_root() && third.count() == 4);
        version.lock();
        version.unlock_deleted();
        assert!(third.keys_left(version.stable()));
    }

    #[test]
    fn the_insert_counter_wraps_without_touching_the_split_counter() {
        let version = Version(AtomicU64::new(INSERTS | LOCKED | INSERTING));
        version.unlock();
        assert_eq!(version.stable(), VersionSnapshot(0));
    }

    #[test]
    #[should_panic(expected = "not locked")]
    fn an_unlocked_node_cannot_be_unlocked() {
        Version::new(0, 0).unlock();
    }
}
