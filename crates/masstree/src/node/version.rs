//! The version word of a node: a spin lock, and the counters by which readers without locks find out that what they read
//! was not all of one moment.
//!
//! ```text
//! 63            36 35             10 9     6    4       3         2         1        0
//! | split counter | insert counter  | count |  root | deleted | splitting | inserting | locked |
//! ```
//!
//! A writer locks the node, marks it *inserting* or *splitting* before it changes what readers of the present state could
//! misread, and unlocks: that counts the change. A reader takes a version without such marks, reads, and looks whether the
//! version is still the same, the lock bit aside. If entries were only inserted it reads the node again; if the node was
//! split or deleted, what it looks for may be elsewhere, and it starts again.
//!
//! The orderings are those of a sequence lock: marks are followed by a release fence, the reader's second look is
//! preceded by an acquire fence; whoever read a word stored after the mark therefore sees the mark or a later version.
//! `count` is the number of keys of an interior node (border nodes have a permutation).

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

#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Version(AtomicU64);

/// A version as read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    #[inline]
    pub fn is_root(self) -> bool {
        self.0 & ROOT != 0
    }

    #[inline]
    pub fn is_deleted(self) -> bool {
        self.0 & DELETED != 0
    }

    /// Keys of an interior node.
    #[inline]
    pub fn count(self) -> usize {
        ((self.0 & COUNT) >> COUNT_SHIFT) as usize
    }

    /// The version whether or not the node was locked.
    #[inline]
    pub fn unlocked(self) -> Self {
        Seen(self.0 & !LOCKED)
    }

    /// Whether, between this version and a later one, keys may have left the node.
    #[inline]
    pub fn moved_on(self, later: Seen) -> bool {
        self.0 ^ later.0 >= ONE_SPLIT || later.is_deleted()
    }
}

impl Version {
    /// For a node that nobody else sees yet.
    pub fn new(flags: u64, count: usize) -> Self {
        Version(AtomicU64::new(flags | (count as u64) << COUNT_SHIFT))
    }

    /// A version without marks; waits for the writer that has set some.
    #[inline]
    pub fn stable(&self) -> Seen {
        let seen = self.0.load(Acquire);
        if seen & MARKS == 0 { Seen(seen) } else { self.wait() }
    }

    #[cold]
    fn wait(&self) -> Seen {
        let mut backoff = Backoff::default();
        loop {
            backoff.wait();
            let seen = self.0.load(Acquire);
            if seen & MARKS == 0 {
                return Seen(seen);
            }
        }
    }

    /// Whether anything read since `seen` may be of another moment.
    #[inline]
    pub fn changed(&self, seen: Seen) -> bool {
        fence(Acquire);
        (self.0.load(Relaxed) ^ seen.0) & !LOCKED != 0
    }

    /// Locks the node and returns its version.
    #[inline]
    pub fn lock(&self) -> Seen {
        let mut backoff = Backoff::default();
        loop {
            let seen = self.0.load(Relaxed);
            if seen & LOCKED == 0 && self.0.compare_exchange_weak(seen, seen | LOCKED, Acquire, Relaxed).is_ok() {
                return Seen(seen);
            }
            backoff.wait();
        }
    }

    /// The version of a node that the caller has locked.
    #[inline]
    pub fn own(&self) -> Seen {
        let seen = self.0.load(Relaxed);
        debug_assert!(seen & LOCKED != 0);
        Seen(seen)
    }

    /// Marks a locked node before it is changed.
    #[inline]
    pub fn mark(&self, mark: u64) {
        let seen = self.own().0;
        self.0.store(seen | mark, Relaxed);
        fence(Release);
    }

    /// Sets the number of keys of a locked and marked interior node.
    pub fn set_count(&self, count: usize) {
        let seen = self.own().0;
        debug_assert!(seen & MARKS != 0 && count < 16);
        self.0.store(seen & !COUNT | (count as u64) << COUNT_SHIFT, Relaxed);
    }

    /// A node that nobody else sees yet becomes the root of its layer.
    pub fn make_root(&self) {
        self.0.store(self.0.load(Relaxed) | ROOT, Relaxed);
    }

    /// A locked and marked node is no longer the root of its layer.
    pub fn clear_root(&self) {
        let seen = self.own().0;
        debug_assert!(seen & MARKS != 0);
        self.0.store(seen & !ROOT, Relaxed);
    }

    /// Counts what the marks announced and unlocks.
    #[inline]
    pub fn unlock(&self) {
        let mut seen = self.own().0;
        if seen & INSERTING != 0 {
            seen = seen & !INSERTS | seen.wrapping_add(ONE_INSERT) & INSERTS;
        }
        if seen & SPLITTING != 0 {
            seen = seen.wrapping_add(ONE_SPLIT);
        }
        self.0.store(seen & !(LOCKED | MARKS), Release);
    }

    /// Marks a locked node as no longer part of the tree, and unlocks it.
    pub fn unlock_deleted(&self) {
        let seen = self.own().0;
        self.0.store(seen | SPLITTING | DELETED, Relaxed);
        self.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_was_marked() {
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
        assert!(version.changed(first) && !first.moved_on(second) && second.count() == 4);
        version.lock();
        version.mark(SPLITTING);
        version.clear_root();
        version.unlock();
        let third = version.stable();
        assert!(second.moved_on(third) && !third.is_root() && third.count() == 4);
        version.lock();
        version.unlock_deleted();
        assert!(third.moved_on(version.stable()));
    }

    #[test]
    fn the_insert_counter_does_not_run_into_the_split_counter() {
        let version = Version(AtomicU64::new(INSERTS | LOCKED | INSERTING));
        version.unlock();
        assert_eq!(version.stable(), Seen(0));
    }
}
