//! Locks of rows: a statement at the level read committed waits for the transaction that has changed a row before it.
//!
//! Locks order writers, and nothing else. The commit of a transaction finds all conflicts without them
//! ([`keyaki_store::Transaction`]); a row without a lock costs a conflict, never a wrong answer. Therefore a row is known by a
//! hash of its key, and a holder has a bounded number of locks.
//!
//! A row has one holder and a queue. When its holder releases it, the first of the queue becomes the holder, before it runs
//! again. A holder waits for one row at a time: the holders that it waits for form a chain, and a deadlock is a chain
//! that returns to its start. A chain only grows when a holder begins to wait, so deadlocks are found at that moment.
//! (Gray and Reuter, "Transaction Processing", 1993, chapter 7; Mohan, "ARIES/KVL", 1990, for locks of key values.)
//!
//! *Invariants.* The rows of a holder are those whose `holder` it is. A waiter is in the queue of exactly the row that its
//! holder waits for.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use keyaki_store::TreeId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Error, Result};

/// A holder locks at most this many rows. Changes of further rows may conflict at the commit.
pub(crate) const ROWS_MAX: usize = 1 << 16;

/// The hash of the tree and the key of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowId(u64);

/// The locks of a database.
#[derive(Debug, Default)]
pub(crate) struct RowLocks {
    hash: RandomState,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rows: HashMap<RowId, Row, BuildHasherDefault<Hashed>>,
    holders: HashMap<u64, Held, BuildHasherDefault<Hashed>>,
}

#[derive(Debug)]
struct Row {
    holder: u64,
    queue: VecDeque<Arc<Waiter>>,
}

#[derive(Debug, Default)]
struct Held {
    rows: Vec<RowId>,
    waits_for: Option<RowId>,
}

#[derive(Debug)]
struct Waiter {
    holder: u64,
    state: AtomicU8,
    changed: Notify,
}

// States of a waiter.
const WAITING: u8 = 0;
const GRANTED: u8 = 1;
const TIMED_OUT: u8 = 2;

/// Passes on a number that is a hash, or unique, already.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing: consecutive numbers of holders differ in their upper bits.
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl RowLocks {
    /// The row with a key in a tree. The start of a range of keys stands for the range.
    pub fn row(&self, tree: TreeId, key: &[u8]) -> RowId {
        RowId(self.hash.hash_one((tree, key)))
    }

    /// A holder without locks.
    pub fn holder(self: &Arc<Self>) -> LockHolder {
        LockHolder { locks: self.clone(), id: self.next.fetch_add(1, Ordering::Relaxed) }
    }
}

/// A transaction, or a statement outside of one, that locks rows. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct LockHolder {
    locks: Arc<RowLocks>,
    id: u64,
}

impl LockHolder {
    /// The locks that it belongs to.
    pub fn locks(&self) -> &RowLocks {
        &self.locks
    }

    /// Locks rows, one after another, up to the first that another holder has locked. Returns the wait for that one: once
    /// it is granted, the caller locks the others. Those before it stay locked.
    ///
    /// # Errors
    /// `Deadlock` if the other holder waits for this one; `ActiveTransaction` if another statement of this holder waits.
    pub fn lock(self: &Arc<Self>, rows: impl IntoIterator<Item = RowId>) -> Result<Option<Wait>> {
        let mut state = self.locks.state.lock();
        let mut held = state.holders.entry(self.id).or_default().rows.len();
        for row in rows {
            if held >= ROWS_MAX {
                break;
            }
            if state.lock_free(self.id, row) {
                held += 1;
                continue;
            }
            if state.rows.get(&row).is_some_and(|known| known.holder == self.id) {
                continue;
            }
            if state.holders.get(&self.id).is_some_and(|held| held.waits_for.is_some()) {
                let problem = "another statement of the transaction waits for a row";
                return Err(Error::ActiveTransaction(problem.into()));
            }
            if state.reaches(row, self.id) {
                return Err(Error::Deadlock);
            }
            return Ok(Some(state.wait(self, row)));
        }
        Ok(None)
    }

    /// Locks those of the rows that are free.
    pub fn lock_free(&self, rows: impl IntoIterator<Item = RowId>) {
        let mut state = self.locks.state.lock();
        let mut held = state.holders.entry(self.id).or_default().rows.len();
        for row in rows {
            if held >= ROWS_MAX {
                break;
            }
            held += usize::from(state.lock_free(self.id, row));
        }
    }

    /// Releases all rows to the first holders in their queues.
    pub fn release(&self) {
        let mut state = self.locks.state.lock();
        let Some(held) = state.holders.remove(&self.id) else { return };
        for row in held.rows {
            state.release(row, self.id);
        }
    }
}

impl Drop for LockHolder {
    fn drop(&mut self) {
        self.release();
    }
}

impl State {
    /// Locks a row, unless it is locked.
    fn lock_free(&mut self, holder: u64, row: RowId) -> bool {
        let Entry::Vacant(free) = self.rows.entry(row) else { return false };
        free.insert(Row { holder, queue: VecDeque::new() });
        self.holders.entry(holder).or_default().rows.push(row);
        true
    }

    /// True if the holder of a row waits for `holder`, directly or for others that do.
    fn reaches(&self, row: RowId, holder: u64) -> bool {
        let mut row = Some(row);
        // No chain has a cycle yet.
        while let Some(known) = row.and_then(|row| self.rows.get(&row)) {
            if known.holder == holder {
                return true;
            }
            row = self.holders.get(&known.holder).and_then(|held| held.waits_for);
        }
        false
    }

    fn wait(&mut self, holder: &Arc<LockHolder>, row: RowId) -> Wait {
        let waiter = Arc::new(Waiter { holder: holder.id, state: AtomicU8::new(WAITING), changed: Notify::new() });
        let held = self.holders.entry(holder.id).or_default();
        assert!(held.waits_for.is_none(), "a holder waits for one row at a time");
        held.waits_for = Some(row);
        if let Some(known) = self.rows.get_mut(&row) {
            known.queue.push_back(waiter.clone());
        }
        Wait { holder: holder.clone(), row, waiter }
    }

    /// Hands a row to the first of its queue.
    fn release(&mut self, row: RowId, holder: u64) {
        let Entry::Occupied(mut known) = self.rows.entry(row) else {
            unreachable!("a holder has released a row of another one")
        };
        assert!(known.get().holder == holder, "a row has one holder");
        while let Some(next) = known.get_mut().queue.pop_front() {
            if next.end(GRANTED) {
                known.get_mut().holder = next.holder;
                let held = self.holders.entry(next.holder).or_default();
                held.waits_for = None;
                held.rows.push(row);
                return;
            }
        }
        known.remove();
    }

    /// Removes a waiter from the queue of a row.
    fn leave(&mut self, row: RowId, waiter: &Arc<Waiter>) {
        if let Some(known) = self.rows.get_mut(&row) {
            known.queue.retain(|other| !Arc::ptr_eq(other, waiter));
        }
        if let Some(held) = self.holders.get_mut(&waiter.holder) {
            held.waits_for = None;
        }
    }
}

impl Waiter {
    /// Ends the wait. Returns false if it has ended already.
    fn end(&self, how: u8) -> bool {
        let is_first = self.state.compare_exchange(WAITING, how, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if is_first {
            self.changed.notify_one();
        }
        is_first
    }
}

/// The wait of a holder for a row. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Wait {
    holder: Arc<LockHolder>,
    row: RowId,
    waiter: Arc<Waiter>,
}

impl Wait {
    /// Waits until the holder has the row.
    ///
    /// # Errors
    /// `LockTimeout` after [`WaitTimeout::expire`].
    pub async fn granted(self) -> Result<()> {
        loop {
            match self.waiter.state.load(Ordering::Acquire) {
                GRANTED => return Ok(()),
                WAITING => self.waiter.changed.notified().await,
                _ => return Err(Error::LockTimeout),
            }
        }
    }

    /// The right to end the wait.
    pub fn timeout(&self) -> WaitTimeout {
        WaitTimeout(Arc::downgrade(&self.waiter))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut state = self.holder.locks.state.lock();
        // The holder may have been granted the row in the meantime; it then keeps the row.
        if self.waiter.state.load(Ordering::Acquire) != GRANTED {
            state.leave(self.row, &self.waiter);
        }
    }
}

/// Ends a wait that takes too long.
#[derive(Debug)]
pub(crate) struct WaitTimeout(Weak<Waiter>);

impl WaitTimeout {
    /// Ends the wait if `is_due`, unless the row was granted. Returns false if the wait has ended.
    pub fn expire(&self, is_due: bool) -> bool {
        let Some(waiter) = self.0.upgrade() else { return false };
        if is_due {
            waiter.end(TIMED_OUT);
        }
        waiter.state.load(Ordering::Acquire) == WAITING
    }
}

/// The locks of a statement that waits for rows.
#[derive(Debug)]
pub(crate) struct StatementLocks {
    pub holder: Arc<LockHolder>,
    repeat: Mutex<Option<Repeat>>,
    /// Number of runs that have read old rows.
    outdated: AtomicUsize,
}

/// Why a statement has to run again. It has changed nothing.
#[derive(Debug)]
pub(crate) enum Repeat {
    /// Another holder has locked a row that it changes.
    After(Wait),
    /// A commit has changed such a row since the statement's snapshot.
    Now,
}

impl StatementLocks {
    /// Those of a statement for `holder`.
    pub fn new(holder: Arc<LockHolder>) -> StatementLocks {
        StatementLocks { holder, repeat: Mutex::default(), outdated: AtomicUsize::new(0) }
    }

    /// Counts a run that has read old rows, and returns the number of all of them.
    pub fn count_outdated(&self) -> usize {
        self.outdated.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Locks the rows that the statement changes. Returns false if the statement has to run again, once
    /// [`StatementLocks::repeat`] permits it.
    ///
    /// # Errors
    /// `Deadlock`.
    pub fn lock(&self, rows: impl IntoIterator<Item = RowId>) -> Result<bool> {
        let wait = self.holder.lock(rows)?;
        let is_locked = wait.is_none();
        if let Some(wait) = wait {
            *self.repeat.lock() = Some(Repeat::After(wait));
        }
        Ok(is_locked)
    }

    /// Notes that the statement has to run again, because it has read old rows, unless it has to wait before.
    pub fn set_outdated(&self) {
        self.repeat.lock().get_or_insert(Repeat::Now);
    }

    /// Why the statement has to run again, if it has to.
    pub fn repeat(&self) -> Option<Repeat> {
        self.repeat.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn locks() -> (Arc<RowLocks>, impl Fn(u8) -> RowId) {
        let locks = Arc::new(RowLocks::default());
        let rows = locks.clone();
        (locks, move |key| rows.row(TreeId::new(1), &[key]))
    }

    fn lock(holder: &Arc<LockHolder>, row: RowId) -> Option<Wait> {
        holder.lock([row]).unwrap()
    }

    fn is_granted(wait: &Wait) -> bool {
        wait.waiter.state.load(Ordering::Acquire) == GRANTED
    }

    fn is_empty(locks: &RowLocks) -> bool {
        let state = locks.state.lock();
        state.rows.is_empty() && state.holders.is_empty()
    }

    #[test]
    fn rows_are_handed_over_in_the_order_of_the_queue() {
        let (locks, row) = locks();
        let holders: Vec<_> = (0..4).map(|_| Arc::new(locks.holder())).collect();
        assert!(holders[0].lock([row(1), row(2), row(1)]).unwrap().is_none(), "a holder locks a row once");
        let waits: Vec<_> = holders[1..].iter().map(|holder| lock(holder, row(1)).unwrap()).collect();
        assert!(!waits.iter().any(is_granted));
        holders[0].release();
        assert!(is_granted(&waits[0]) && !is_granted(&waits[1]));
        assert!(lock(&holders[3], row(2)).is_none(), "the other row is free");
        holders[1].release();
        assert!(is_granted(&waits[1]) && !is_granted(&waits[2]));
        drop((waits, holders));
        assert!(is_empty(&locks));
    }

    #[test]
    fn a_wait_that_ends_leaves_the_queue() {
        let (locks, row) = locks();
        let [a, b, c] = [(); 3].map(|()| Arc::new(locks.holder()));
        assert!(lock(&a, row(1)).is_none());
        let (left, wait) = (lock(&b, row(1)).unwrap(), lock(&c, row(1)).unwrap());
        drop(left);
        a.release();
        assert!(is_granted(&wait), "the row passes over the waiter that has left");
        let late = lock(&b, row(1)).unwrap();
        assert!(late.timeout().expire(false), "the wait has not ended");
        assert!(!late.timeout().expire(true));
        let mut granted = std::pin::pin!(late.granted());
        let ended = granted.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(ended, Poll::Ready(Err(Error::LockTimeout))));
        c.release();
        assert!(lock(&a, row(1)).is_none(), "the queue is empty");
    }

    #[test]
    fn a_granted_row_survives_the_end_of_its_wait() {
        let (locks, row) = locks();
        let [a, b, c] = [(); 3].map(|()| Arc::new(locks.holder()));
        assert!(lock(&a, row(1)).is_none());
        let wait = lock(&b, row(1)).unwrap();
        a.release();
        assert!(!wait.timeout().expire(true));
        assert!(is_granted(&wait), "the grant was first");
        drop(wait);
        assert!(lock(&c, row(1)).is_some(), "the holder keeps the row");
        drop((a, b));
        assert!(lock(&c, row(1)).is_none());
    }

    #[test]
    fn deadlocks_are_found_when_the_last_holder_begins_to_wait() {
        let (locks, row) = locks();
        let [a, b, c] = [(); 3].map(|()| Arc::new(locks.holder()));
        for (holder, key) in [(&a, 1), (&b, 2), (&c, 3)] {
            assert!(lock(holder, row(key)).is_none());
        }
        let first = lock(&a, row(2)).unwrap();
        let second = lock(&b, row(3)).unwrap();
        assert!(matches!(c.lock([row(1)]), Err(Error::Deadlock)));
        // The statement that fails ends its transaction.
        c.release();
        assert!(is_granted(&second) && !is_granted(&first));
        b.release();
        assert!(is_granted(&first));
    }

    #[test]
    fn a_waiter_that_becomes_the_holder_is_part_of_the_chain() {
        let (locks, row) = locks();
        let [a, b, c] = [(); 3].map(|()| Arc::new(locks.holder()));
        assert!(lock(&a, row(1)).is_none() && lock(&c, row(2)).is_none());
        let (first, second) = (lock(&b, row(1)).unwrap(), lock(&c, row(1)).unwrap());
        a.release();
        assert!(is_granted(&first));
        assert!(matches!(b.lock([row(2)]), Err(Error::Deadlock)), "the other one waits behind it");
        b.release();
        assert!(is_granted(&second));
    }

    #[test]
    fn holders_lock_a_bounded_number_of_rows() {
        let (locks, _) = locks();
        let rows = |tree: u32| (0..ROWS_MAX as u32 + 10).map(move |key| (tree, key));
        let holder = Arc::new(locks.holder());
        let row = |(tree, key): (u32, u32)| locks.row(TreeId::new(tree), &key.to_be_bytes());
        assert!(holder.lock(rows(1).map(row)).unwrap().is_none());
        holder.lock_free(rows(2).map(row));
        assert_eq!(locks.state.lock().rows.len(), ROWS_MAX);
        drop(holder);
        assert!(is_empty(&locks));
    }

    #[test]
    fn free_rows_are_locked_without_waiting() {
        let (locks, row) = locks();
        let [a, b] = [(); 2].map(|()| Arc::new(locks.holder()));
        assert!(lock(&a, row(1)).is_none());
        b.lock_free([row(1), row(2)]);
        assert!(lock(&a, row(2)).is_some());
    }
}
