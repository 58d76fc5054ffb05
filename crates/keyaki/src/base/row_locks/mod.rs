//! Locks of rows: a statement waits for the transaction that has locked or changed a row before it.
//!
//! Locks order writers, and queries with FOR UPDATE or FOR SHARE. The commit of a transaction finds all conflicts without
//! them ([`keyaki_store::Transaction`]). Therefore a row is known by a hash of its key, and a holder has a bounded number of
//! locks.
//!
//! | mode | taken by | conflicts with |
//! |---|---|---|
//! | `KeyShare` | FOR KEY SHARE | `Update` |
//! | `Share` | FOR SHARE | `NoKeyUpdate`, `Update` |
//! | `NoKeyUpdate` | FOR NO KEY UPDATE, changes that keep the row | `Share`, `NoKeyUpdate`, `Update` |
//! | `Update` | FOR UPDATE, changes that remove the row | all |
//!
//! A row has holders whose modes do not conflict, and a queue. A request waits if its mode conflicts with that of another
//! holder, or with that of a request before it in the queue. When a holder releases a row, the requests that no longer
//! wait for others become holders, before they run again. A holder that wants a stronger mode does not wait behind the
//! queue. A holder waits for one row at a time. A deadlock is a cycle of holders that wait for each other. Each new cycle
//! has the holder that begins to wait, so deadlocks are found at that moment.
//! (Gray and Reuter, "Transaction Processing", 1993, chapter 7; Mohan, "ARIES/KVL", 1990, for locks of key values.)
//!
//! *Invariants.* The rows of a holder are the rows that have it as a holder. A waiter is in the queue of exactly the row that
//! its holder waits for.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use keyaki_store::TreeId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Error, Result};

/// A holder locks at most this many rows. Changes of further rows may conflict at the commit.
pub(crate) const ROWS_MAX: usize = 1 << 16;

/// The tree of a row, and the hash of the tree and the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RowId {
    hash: u64,
    tree: TreeId,
}

/// The mode of a lock. A greater mode conflicts with all modes that a smaller one conflicts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockMode {
    KeyShare,
    Share,
    NoKeyUpdate,
    Update,
}

impl LockMode {
    /// True if different holders cannot have these modes at the same time.
    pub fn conflicts(self, other: LockMode) -> bool {
        self as u8 + other as u8 >= LockMode::Update as u8
    }
}

/// The locks of a database.
#[derive(Debug, Default)]
pub(crate) struct RowLocks {
    hash: RandomState,
    next: AtomicU32,
    state: Mutex<State>,
}

/// A session and a number.
type HolderId = u64;

#[derive(Debug, Default)]
struct State {
    rows: HashMap<RowId, Row, BuildHasherDefault<Hashed>>,
    holders: HashMap<HolderId, Held, BuildHasherDefault<Hashed>>,
}

#[derive(Debug)]
struct Row {
    /// `None` only while the row is handed over.
    first: Option<(HolderId, LockMode)>,
    others: Vec<(HolderId, LockMode)>,
    queue: VecDeque<Arc<Waiter>>,
}

#[derive(Debug, Default)]
struct Held {
    rows: Vec<RowId>,
    waits_for: Option<RowId>,
}

#[derive(Debug)]
struct Waiter {
    holder: HolderId,
    mode: LockMode,
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

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing: consecutive numbers of holders differ in their upper bits.
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A lock, or the request of one, for `pg_locks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KnownLock {
    pub tree: TreeId,
    /// Equal for locks of the same row.
    pub row: u64,
    pub session: i32,
    pub mode: LockMode,
    pub is_granted: bool,
}

impl RowLocks {
    /// The row with a key in a tree. The start of a range of keys stands for the range.
    pub fn row(&self, tree: TreeId, key: &[u8]) -> RowId {
        RowId { hash: self.hash.hash_one((tree, key)), tree }
    }

    /// A holder without locks, for a session.
    pub fn holder(self: &Arc<Self>, session: i32) -> LockHolder {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        LockHolder { locks: self.clone(), id: u64::from(session.cast_unsigned()) << 32 | u64::from(number) }
    }

    /// Number of locked rows.
    pub fn len(&self) -> usize {
        self.state.lock().rows.len()
    }

    /// All locks and requests, in the order of the rows.
    pub fn list(&self) -> Vec<KnownLock> {
        let state = self.state.lock();
        let of = |row: &RowId, holder: HolderId, mode: LockMode, is_granted: bool| KnownLock {
            tree: row.tree,
            row: row.hash,
            session: session_of(holder),
            mode,
            is_granted,
        };
        let mut known = Vec::new();
        for (row, locked) in &state.rows {
            known.extend(locked.holders().map(|(holder, mode)| of(row, holder, mode, true)));
            known.extend(locked.waiting().map(|waiter| of(row, waiter.holder, waiter.mode, false)));
        }
        drop(state);
        known.sort_unstable();
        known
    }

    /// The sessions that wait for a row.
    pub fn waiting(&self) -> BTreeSet<i32> {
        let state = self.state.lock();
        let waiting = state.holders.iter().filter(|(_, held)| held.waits_for.is_some());
        waiting.map(|(holder, _)| session_of(*holder)).collect()
    }

    /// The sessions that a session waits for.
    pub fn blocking(&self, session: i32) -> BTreeSet<i32> {
        let state = self.state.lock();
        let own = state.holders.keys().filter(|holder| session_of(**holder) == session);
        own.flat_map(|holder| state.blocking(*holder)).map(session_of).collect()
    }
}

fn session_of(holder: HolderId) -> i32 {
    ((holder >> 32) as u32).cast_signed()
}

/// A transaction, or a statement outside of one, that locks rows. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct LockHolder {
    locks: Arc<RowLocks>,
    id: HolderId,
}

impl LockHolder {
    /// The locks that it belongs to.
    pub fn locks(&self) -> &RowLocks {
        &self.locks
    }

    /// Locks rows, one after another, up to the first that it has to wait for. Returns that wait: once
    /// it is granted, the caller locks the others. The rows before it stay locked.
    ///
    /// # Errors
    /// `Deadlock` if another holder waits for this one; `ActiveTransaction` if another statement of this holder waits.
    pub fn lock(self: &Arc<Self>, rows: impl IntoIterator<Item = (RowId, LockMode)>) -> Result<Option<Wait>> {
        let mut state = self.locks.state.lock();
        let mut held = state.holders.entry(self.id).or_default().rows.len();
        for (row, mode) in rows {
            if held >= ROWS_MAX {
                break;
            }
            match state.acquire(self.id, row, mode) {
                Acquired::New => held += 1,
                Acquired::Before => {}
                Acquired::No => {
                    if state.holders.get(&self.id).is_some_and(|held| held.waits_for.is_some()) {
                        let problem = "another statement of the transaction waits for a row";
                        return Err(Error::ActiveTransaction(problem.into()));
                    }
                    let waiter = state.begin_to_wait(self.id, row, mode);
                    if state.waits_for_itself(self.id) {
                        state.leave(row, &waiter);
                        return Err(Error::Deadlock);
                    }
                    return Ok(Some(Wait { holder: self.clone(), row, waiter }));
                }
            }
        }
        Ok(None)
    }

    /// Locks those of the rows that it need not wait for.
    pub fn lock_free(&self, rows: impl IntoIterator<Item = (RowId, LockMode)>) {
        let mut state = self.locks.state.lock();
        let mut held = state.holders.entry(self.id).or_default().rows.len();
        for (row, mode) in rows {
            if held >= ROWS_MAX {
                break;
            }
            held += usize::from(state.acquire(self.id, row, mode) == Acquired::New);
        }
    }

    /// Locks a row, unless it has to wait for it. Returns false then.
    pub fn try_lock(&self, row: RowId, mode: LockMode) -> bool {
        self.locks.state.lock().acquire(self.id, row, mode) != Acquired::No
    }

    /// Number of locked rows.
    pub fn len(&self) -> usize {
        self.locks.state.lock().holders.get(&self.id).map_or(0, |held| held.rows.len())
    }

    /// Releases all rows to the first requests in their queues.
    pub fn release(&self) {
        let mut state = self.locks.state.lock();
        let Some(held) = state.holders.remove(&self.id) else { return };
        for row in held.rows {
            state.release(row, self.id);
        }
    }

    /// Releases some of the rows, and passes over others.
    pub fn release_rows(&self, rows: impl IntoIterator<Item = RowId>) {
        let rows: BTreeSet<RowId> = rows.into_iter().collect();
        let mut state = self.locks.state.lock();
        let Some(held) = state.holders.get_mut(&self.id) else { return };
        let released: Vec<RowId> = held.rows.extract_if(.., |row| rows.contains(row)).collect();
        for row in released {
            state.release(row, self.id);
        }
    }

    /// Releases the rows behind the first `kept` ones. Their modes stay.
    pub fn release_after(&self, kept: usize) {
        let mut state = self.locks.state.lock();
        let Some(held) = state.holders.get_mut(&self.id) else { return };
        for row in held.rows.split_off(kept.min(held.rows.len())) {
            state.release(row, self.id);
        }
    }
}

impl Drop for LockHolder {
    fn drop(&mut self) {
        self.release();
    }
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acquired {
    /// The row is locked now.
    New,
    /// The holder had locked the row before. Its mode may be stronger now.
    Before,
    /// The holder has to wait.
    No,
}

impl Row {
    fn holders(&self) -> impl Iterator<Item = (HolderId, LockMode)> + '_ {
        self.first.iter().chain(&self.others).copied()
    }

    fn waiting(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.queue.iter().filter(|waiter| waiter.is_waiting())
    }

    fn mode_of(&self, holder: HolderId) -> Option<LockMode> {
        self.holders().find(|(other, _)| *other == holder).map(|(_, mode)| mode)
    }

    /// True if no other holder has a mode that conflicts.
    fn admits(&self, holder: HolderId, mode: LockMode) -> bool {
        self.holders().all(|(other, held)| other == holder || !held.conflicts(mode))
    }

    /// Adds a holder, or makes its mode stronger. Returns true for a new one.
    fn add(&mut self, holder: HolderId, mode: LockMode) -> bool {
        if let Some((_, held)) = self.first.iter_mut().chain(&mut self.others).find(|(other, _)| *other == holder) {
            *held = mode.max(*held);
            return false;
        }
        match &mut self.first {
            None => self.first = Some((holder, mode)),
            Some(_) => self.others.push((holder, mode)),
        }
        true
    }

    fn remove(&mut self, holder: HolderId) {
        if self.first.is_some_and(|(first, _)| first == holder) {
            self.first = self.others.pop();
            return;
        }
        let place = self.others.iter().position(|(other, _)| *other == holder);
        let Some(place) = place else { unreachable!("a holder has released a row of another one") };
        self.others.swap_remove(place);
    }
}

impl State {
    /// Locks a row, unless the holder has to wait for it.
    fn acquire(&mut self, holder: HolderId, row: RowId, mode: LockMode) -> Acquired {
        let known = match self.rows.entry(row) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                free.insert(Row { first: Some((holder, mode)), others: Vec::new(), queue: VecDeque::new() });
                self.holders.entry(holder).or_default().rows.push(row);
                return Acquired::New;
            }
        };
        let own = known.mode_of(holder);
        if own.is_some_and(|own| own >= mode) {
            return Acquired::Before;
        }
        let is_behind = || known.waiting().any(|waiter| waiter.mode.conflicts(mode));
        if !known.admits(holder, mode) || (own.is_none() && is_behind()) {
            return Acquired::No;
        }
        match known.add(holder, mode) {
            true => {
                self.holders.entry(holder).or_default().rows.push(row);
                Acquired::New
            }
            false => Acquired::Before,
        }
    }

    /// Puts a holder into the queue of a row: at the end, or at the start if it has the row in a weaker mode.
    fn begin_to_wait(&mut self, holder: HolderId, row: RowId, mode: LockMode) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter { holder, mode, state: AtomicU8::new(WAITING), changed: Notify::new() });
        let held = self.holders.entry(holder).or_default();
        assert!(held.waits_for.is_none(), "a holder waits for one row at a time");
        held.waits_for = Some(row);
        if let Some(known) = self.rows.get_mut(&row) {
            match known.mode_of(holder) {
                Some(_) => known.queue.push_front(waiter.clone()),
                None => known.queue.push_back(waiter.clone()),
            }
        }
        waiter
    }

    /// The holders that a holder waits for.
    fn blocking(&self, holder: HolderId) -> Vec<HolderId> {
        let row = self.holders.get(&holder).and_then(|held| held.waits_for);
        let Some(known) = row.and_then(|row| self.rows.get(&row)) else { return Vec::new() };
        let Some(mode) = known.waiting().find(|waiter| waiter.holder == holder).map(|waiter| waiter.mode) else {
            return Vec::new();
        };
        let holders = known.holders().filter(|(other, held)| *other != holder && held.conflicts(mode));
        let before = known.waiting().take_while(|waiter| waiter.holder != holder);
        let before = before.filter(|waiter| waiter.mode.conflicts(mode)).map(|waiter| waiter.holder);
        holders.map(|(other, _)| other).chain(before).collect()
    }

    /// True if a holder waits for others that wait for it.
    ///
    /// A waiter waits for all that earlier waiters of the same row and mode wait for, unless they hold the row. The search does not follow
    /// them again, and reads a long queue once.
    fn waits_for_itself(&self, holder: HolderId) -> bool {
        let (mut next, mut seen) = (vec![holder], BTreeSet::new());
        while let Some(waiting) = next.pop() {
            let row = self.holders.get(&waiting).and_then(|held| held.waits_for);
            let Some(known) = row.and_then(|row| self.rows.get(&row)) else { continue };
            let Some(mode) = known.waiting().find(|waiter| waiter.holder == waiting).map(|waiter| waiter.mode) else {
                continue;
            };
            let holders = known.holders().filter(|(other, held)| *other != waiting && held.conflicts(mode));
            let before = known.waiting().take_while(|waiter| waiter.holder != waiting);
            let before = before.filter(|waiter| waiter.mode.conflicts(mode));
            // Holders first.
            let others = holders.map(|(other, _)| (other, true));
            for (other, is_new) in others.chain(before.map(|waiter| (waiter.holder, waiter.mode != mode))) {
                if other == holder {
                    return true;
                }
                if seen.insert(other) && is_new {
                    next.push(other);
                }
            }
        }
        false
    }

    /// Removes a holder from a row.
    fn release(&mut self, row: RowId, holder: HolderId) {
        if let Some(known) = self.rows.get_mut(&row) {
            known.remove(holder);
        }
        self.hand_over(row);
    }

    /// Makes those in the queue of a row holders that need not wait any more.
    fn hand_over(&mut self, row: RowId) {
        let State { rows, holders } = self;
        let Some(known) = rows.get_mut(&row) else { return };
        let mut place = 0;
        while let Some(waiter) = known.queue.get(place).cloned() {
            let mut before = known.queue.iter().take(place);
            let waits = !known.admits(waiter.holder, waiter.mode)
                || before.any(|other| other.is_waiting() && other.mode.conflicts(waiter.mode));
            if waits {
                place += 1;
                continue;
            }
            known.queue.remove(place);
            if waiter.end(GRANTED) {
                let held = holders.entry(waiter.holder).or_default();
                held.waits_for = None;
                if known.add(waiter.holder, waiter.mode) {
                    held.rows.push(row);
                }
            }
        }
        if known.first.is_none() {
            rows.remove(&row);
        }
    }

    /// Removes a waiter from the queue of a row.
    fn leave(&mut self, row: RowId, waiter: &Arc<Waiter>) {
        if let Some(known) = self.rows.get_mut(&row) {
            known.queue.retain(|other| !Arc::ptr_eq(other, waiter));
        }
        if let Some(held) = self.holders.get_mut(&waiter.holder) {
            held.waits_for = None;
        }
        self.hand_over(row);
    }
}

impl Waiter {
    fn is_waiting(&self) -> bool {
        self.state.load(Ordering::Acquire) == WAITING
    }

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
        waiter.is_waiting()
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
    /// The locks of a statement for `holder`.
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
    pub fn lock(&self, rows: impl IntoIterator<Item = (RowId, LockMode)>) -> Result<bool> {
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
mod tests;
