//! Advisory locks: locks of numbers, whose meaning is that of the programs that use them.
//!
//! A session locks a key for itself, or shares it with others. It can lock a key several times, at the level of the session or
//! of its transaction, and releases it as often. A request that conflicts with the locks of others, or with requests before it,
//! waits in the queue of the key. A session that has the key does not wait behind the requests of others, which wait for it.
//!
//! A session waits for one key at a time, and with that for the holders that its request conflicts with, and for the requests
//! before it. A deadlock is a cycle of such waits. It closes when a session begins to wait, and is found at that moment. (Gray
//! and Reuter, "Transaction Processing", 1993, chapter 7.)
//!
//! *Invariants.* A key without holders has no queue, and is not kept. The keys of a session are the keys that it holds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Error, Result};

/// A session locks at most this many keys.
const KEYS_MAX: usize = 1 << 16;

/// What is locked. Keys of one number and of two numbers are different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockKey {
    One(i64),
    Two(i32, i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockMode {
    Exclusive,
    Shared,
}

/// What ends a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockLevel {
    /// The session releases it.
    Session,
    /// The end of the transaction.
    Transaction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockRequest {
    pub key: LockKey,
    pub mode: LockMode,
    pub level: LockLevel,
}

/// The advisory locks of a database.
#[derive(Debug, Default)]
pub(crate) struct AdvisoryLocks {
    next: AtomicU64,
    state: Mutex<State>,
}

impl AdvisoryLocks {
    /// A session without locks.
    pub fn session(self: &Arc<Self>) -> LockSession {
        LockSession {
            locks: self.clone(),
            id: self.next.fetch_add(1, Ordering::Relaxed),
            has_locks: AtomicBool::new(false),
            savepoints: Mutex::default(),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    locks: HashMap<LockKey, Lock>,
    sessions: HashMap<u64, Held>,
}

#[derive(Debug, Default)]
struct Lock {
    holders: Vec<Holding>,
    queue: VecDeque<Arc<Waiter>>,
}

/// How often a session has locked a key.
#[derive(Debug)]
struct Holding {
    session: u64,
    /// By mode and level.
    counts: [[u32; 2]; 2],
}

#[derive(Debug, Default)]
struct Held {
    keys: HashSet<LockKey>,
    waits_for: Option<LockKey>,
    /// The locks of the transaction, in the order in which they were taken.
    of_transaction: Vec<LockRequest>,
}

#[derive(Debug)]
struct Waiter {
    session: u64,
    request: LockRequest,
    state: AtomicU8,
    changed: Notify,
}

// States of a waiter.
const WAITING: u8 = 0;
const GRANTED: u8 = 1;
const TIMED_OUT: u8 = 2;

fn conflicts(a: LockMode, b: LockMode) -> bool {
    a == LockMode::Exclusive || b == LockMode::Exclusive
}

impl Holding {
    fn count(&mut self, request: LockRequest) -> &mut u32 {
        &mut self.counts[request.mode as usize][request.level as usize]
    }

    fn has(&self, mode: LockMode) -> bool {
        self.counts[mode as usize].iter().any(|count| *count > 0)
    }

    fn is_empty(&self) -> bool {
        !self.has(LockMode::Exclusive) && !self.has(LockMode::Shared)
    }

    fn conflicts(&self, mode: LockMode) -> bool {
        self.has(LockMode::Exclusive) || mode == LockMode::Exclusive
    }
}

impl Lock {
    fn add(&mut self, session: u64, request: LockRequest) {
        let own = self.holders.iter().position(|holder| holder.session == session);
        let own = own.unwrap_or_else(|| {
            self.holders.push(Holding { session, counts: [[0; 2]; 2] });
            self.holders.len() - 1
        });
        let count = self.holders[own].count(request);
        *count = count.saturating_add(1);
    }

    fn is_held_by(&self, session: u64) -> bool {
        self.holders.iter().any(|holder| holder.session == session)
    }

    /// The other holders that a request conflicts with.
    fn conflicting(&self, session: u64, mode: LockMode) -> impl Iterator<Item = u64> + '_ {
        let others = self.holders.iter().filter(move |holder| holder.session != session && holder.conflicts(mode));
        others.map(|holder| holder.session)
    }

    /// The requests before one that is at this place of the queue, or will be, and that it waits for.
    fn before(&self, place: usize, session: u64, mode: LockMode) -> impl Iterator<Item = u64> + '_ {
        let is_held = self.is_held_by(session);
        let others = self.queue.iter().take(place).filter(move |other| !is_held && conflicts(other.request.mode, mode));
        others.map(|other| other.session)
    }
}

impl State {
    /// The sessions that a request waits for.
    fn blockers(&self, session: u64, request: LockRequest) -> Vec<u64> {
        let Some(lock) = self.locks.get(&request.key) else { return Vec::new() };
        let own = lock.queue.iter().position(|waiter| waiter.session == session);
        let before = lock.before(own.unwrap_or(lock.queue.len()), session, request.mode);
        lock.conflicting(session, request.mode).chain(before).collect()
    }

    /// True if one of the sessions waits for `session`, directly or for others that do.
    fn reach(&self, mut sessions: Vec<u64>, session: u64) -> bool {
        let mut seen = HashSet::new();
        while let Some(next) = sessions.pop() {
            if next == session {
                return true;
            }
            if !seen.insert(next) {
                continue;
            }
            let key = self.sessions.get(&next).and_then(|held| held.waits_for);
            let queue = key.and_then(|key| self.locks.get(&key)).map(|lock| &lock.queue);
            let waiter = queue.and_then(|queue| queue.iter().find(|waiter| waiter.session == next));
            sessions.extend(waiter.into_iter().flat_map(|waiter| self.blockers(next, waiter.request)));
        }
        false
    }

    fn add(&mut self, session: u64, request: LockRequest) {
        self.locks.entry(request.key).or_default().add(session, request);
        let held = self.sessions.entry(session).or_default();
        held.keys.insert(request.key);
        if request.level == LockLevel::Transaction {
            held.of_transaction.push(request);
        }
    }

    /// Releases a lock once. False if the session does not have it.
    fn remove(&mut self, session: u64, request: LockRequest) -> bool {
        let Some(lock) = self.locks.get_mut(&request.key) else { return false };
        let Some(place) = lock.holders.iter().position(|holder| holder.session == session) else { return false };
        let count = lock.holders[place].count(request);
        if *count == 0 {
            return false;
        }
        *count -= 1;
        if lock.holders[place].is_empty() {
            lock.holders.swap_remove(place);
            if let Some(held) = self.sessions.get_mut(&session) {
                held.keys.remove(&request.key);
            }
        }
        self.grant(request.key);
        true
    }

    /// Grants a key to the first in its queue, and to others that share it.
    fn grant(&mut self, key: LockKey) {
        let Some(lock) = self.locks.get_mut(&key) else { return };
        let (mut granted, mut place) = (Vec::new(), 0);
        while let Some(waiter) = lock.queue.get(place).cloned() {
            let (session, mode) = (waiter.session, waiter.request.mode);
            if lock.conflicting(session, mode).chain(lock.before(place, session, mode)).next().is_some() {
                place += 1;
                continue;
            }
            lock.queue.remove(place);
            if waiter.end(GRANTED) {
                lock.add(session, waiter.request);
                granted.push(waiter);
            }
        }
        if lock.holders.is_empty() && lock.queue.is_empty() {
            self.locks.remove(&key);
        }
        for waiter in granted {
            let held = self.sessions.entry(waiter.session).or_default();
            held.waits_for = None;
            held.keys.insert(key);
            if waiter.request.level == LockLevel::Transaction {
                held.of_transaction.push(waiter.request);
            }
        }
    }
}

/// The locks of a session. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct LockSession {
    locks: Arc<AdvisoryLocks>,
    id: u64,
    /// The session may have locks at the level of the transaction, or savepoints.
    has_locks: AtomicBool,
    /// The savepoints of the transaction, with the number of its locks before them.
    savepoints: Mutex<Vec<(String, usize)>>,
}

impl LockSession {
    /// Locks a key. Returns the wait for it, unless it is free.
    ///
    /// # Errors
    /// `Deadlock` if others wait for the session; `ActiveTransaction` if another statement of the session waits;
    /// `PrerequisiteState` with too many locks.
    pub fn lock(self: &Arc<Self>, request: LockRequest) -> Result<Option<LockWait>> {
        let mut state = self.locks.state.lock();
        if self.take(&mut state, request)? {
            return Ok(None);
        }
        if state.sessions.get(&self.id).is_some_and(|held| held.waits_for.is_some()) {
            return Err(Error::ActiveTransaction("another statement of the session waits for a lock".into()));
        }
        if state.reach(state.blockers(self.id, request), self.id) {
            return Err(Error::Deadlock);
        }
        let waiter =
            Arc::new(Waiter { session: self.id, request, state: AtomicU8::new(WAITING), changed: Notify::new() });
        state.sessions.entry(self.id).or_default().waits_for = Some(request.key);
        let lock = state.locks.entry(request.key).or_default();
        match lock.is_held_by(self.id) {
            true => lock.queue.push_front(waiter.clone()),
            false => lock.queue.push_back(waiter.clone()),
        }
        Ok(Some(LockWait { session: self.clone(), waiter, is_kept: false }))
    }

    /// Locks a key, unless others have it or wait for it. Returns true if the session has it.
    ///
    /// # Errors
    /// `PrerequisiteState` with too many locks.
    pub fn try_lock(&self, request: LockRequest) -> Result<bool> {
        self.take(&mut self.locks.state.lock(), request)
    }

    fn take(&self, state: &mut State, request: LockRequest) -> Result<bool> {
        let held = state.sessions.entry(self.id).or_default();
        if held.of_transaction.len().max(held.keys.len()) >= KEYS_MAX {
            let problem = format!("a session has at most {KEYS_MAX} advisory locks");
            return Err(Error::PrerequisiteState(problem));
        }
        if request.level == LockLevel::Transaction {
            self.has_locks.store(true, Ordering::Relaxed);
        }
        let is_free = state.blockers(self.id, request).is_empty();
        if is_free {
            state.add(self.id, request);
        }
        Ok(is_free)
    }

    /// Releases a lock at the level of the session once. False if the session does not have it.
    pub fn unlock(&self, key: LockKey, mode: LockMode) -> bool {
        self.locks.state.lock().remove(self.id, LockRequest { key, mode, level: LockLevel::Session })
    }

    /// Releases all locks at the level of the session.
    pub fn unlock_all(&self) {
        let mut state = self.locks.state.lock();
        let keys: Vec<LockKey> = state.sessions.get(&self.id).into_iter().flat_map(|held| held.keys.clone()).collect();
        for key in keys {
            for mode in [LockMode::Exclusive, LockMode::Shared] {
                while state.remove(self.id, LockRequest { key, mode, level: LockLevel::Session }) {}
            }
        }
    }

    /// True if the session may have locks at the level of the transaction, or savepoints.
    pub fn has_locks(&self) -> bool {
        self.has_locks.load(Ordering::Relaxed)
    }

    /// Releases the locks of the transaction, which has ended.
    pub fn end_transaction(&self) {
        self.has_locks.store(false, Ordering::Relaxed);
        self.savepoints.lock().clear();
        self.release_after(0);
    }

    /// Releases the locks of the transaction but the first ones.
    fn release_after(&self, kept: usize) {
        let mut state = self.locks.state.lock();
        let Some(held) = state.sessions.get_mut(&self.id) else { return };
        let released = held.of_transaction.split_off(kept.min(held.of_transaction.len()));
        for request in released {
            state.remove(self.id, request);
        }
    }

    /// Adds a savepoint of the transaction.
    pub fn save(&self, name: &str) {
        let taken = self.locks.state.lock().sessions.get(&self.id).map_or(0, |held| held.of_transaction.len());
        self.has_locks.store(true, Ordering::Relaxed);
        self.savepoints.lock().push((name.into(), taken));
    }

    /// Removes the newest savepoint with a name, and later ones.
    pub fn release(&self, name: &str) {
        let mut savepoints = self.savepoints.lock();
        if let Some(place) = savepoints.iter().rposition(|(known, _)| known == name) {
            savepoints.truncate(place);
        }
    }

    /// Releases the locks that the transaction has taken since the newest savepoint with a name, and removes later ones.
    pub fn roll_back_to(&self, name: &str) {
        let mut savepoints = self.savepoints.lock();
        let Some(place) = savepoints.iter().rposition(|(known, _)| known == name) else { return };
        savepoints.truncate(place + 1);
        self.release_after(savepoints[place].1);
    }
}

impl Drop for LockSession {
    fn drop(&mut self) {
        self.release_after(0);
        self.unlock_all();
        self.locks.state.lock().sessions.remove(&self.id);
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

/// The wait of a session for a lock. Dropping it leaves the queue, and releases a lock that was granted in the meantime.
#[derive(Debug)]
pub(crate) struct LockWait {
    session: Arc<LockSession>,
    waiter: Arc<Waiter>,
    is_kept: bool,
}

impl LockWait {
    /// Waits until the session has the lock.
    ///
    /// # Errors
    /// `LockTimeout` after [`LockTimeout::expire`].
    pub async fn granted(mut self) -> Result<()> {
        loop {
            match self.waiter.state.load(Ordering::Acquire) {
                GRANTED => {
                    self.is_kept = true;
                    return Ok(());
                }
                WAITING => self.waiter.changed.notified().await,
                _ => return Err(Error::LockTimeout),
            }
        }
    }

    /// The right to end the wait.
    pub fn timeout(&self) -> LockTimeout {
        LockTimeout(Arc::downgrade(&self.waiter))
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let (session, request) = (self.session.id, self.waiter.request);
        let mut state = self.session.locks.state.lock();
        if self.waiter.state.load(Ordering::Acquire) == GRANTED {
            // The statement was cancelled at the same time.
            if let Some(held) = state.sessions.get_mut(&session)
                && let Some(place) = held.of_transaction.iter().rposition(|taken| *taken == request)
            {
                held.of_transaction.remove(place);
            }
            state.remove(session, request);
            return;
        }
        if let Some(held) = state.sessions.get_mut(&session) {
            held.waits_for = None;
        }
        if let Some(lock) = state.locks.get_mut(&request.key) {
            lock.queue.retain(|other| !Arc::ptr_eq(other, &self.waiter));
        }
        // Requests behind this one may have waited for it only.
        state.grant(request.key);
    }
}

/// Ends a wait that takes too long.
#[derive(Debug)]
pub(crate) struct LockTimeout(Weak<Waiter>);

impl LockTimeout {
    /// Ends the wait if `is_due`, unless the lock was granted. Returns false if the wait has ended.
    pub fn expire(&self, is_due: bool) -> bool {
        let Some(waiter) = self.0.upgrade() else { return false };
        if is_due {
            waiter.end(TIMED_OUT);
        }
        waiter.state.load(Ordering::Acquire) == WAITING
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const ONE: LockKey = LockKey::One(1);

    fn sessions<const N: usize>() -> [Arc<LockSession>; N] {
        let locks = Arc::new(AdvisoryLocks::default());
        [(); N].map(|()| Arc::new(locks.session()))
    }

    fn exclusive(key: LockKey) -> LockRequest {
        LockRequest { key, mode: LockMode::Exclusive, level: LockLevel::Session }
    }

    fn shared(key: LockKey) -> LockRequest {
        LockRequest { mode: LockMode::Shared, ..exclusive(key) }
    }

    fn of_transaction(request: LockRequest) -> LockRequest {
        LockRequest { level: LockLevel::Transaction, ..request }
    }

    fn has(wait: LockWait) -> bool {
        wait.granted().now_or_never().is_some_and(|granted| granted.is_ok())
    }

    #[test]
    fn locks_are_counted() {
        let [a, b] = sessions();
        assert!(a.try_lock(exclusive(ONE)).unwrap() && a.try_lock(exclusive(ONE)).unwrap());
        assert!(a.try_lock(shared(ONE)).unwrap(), "the session has it");
        assert!(!b.try_lock(shared(ONE)).unwrap());
        assert!(b.try_lock(exclusive(LockKey::Two(0, 1))).unwrap(), "another key");
        assert!(a.unlock(ONE, LockMode::Exclusive) && !b.try_lock(shared(ONE)).unwrap());
        assert!(a.unlock(ONE, LockMode::Exclusive) && b.try_lock(shared(ONE)).unwrap());
        assert!(!a.unlock(ONE, LockMode::Exclusive), "released already");
        assert!(!b.try_lock(exclusive(ONE)).unwrap(), "another session shares it");
        a.unlock_all();
        assert!(b.try_lock(exclusive(ONE)).unwrap());
        drop(b);
        assert!(a.locks.state.lock().locks.is_empty() && a.try_lock(exclusive(ONE)).unwrap());
    }

    #[test]
    fn locks_are_granted_in_order() {
        let [a, b, c, d] = sessions();
        assert!(a.lock(shared(ONE)).unwrap().is_none() && d.lock(shared(ONE)).unwrap().is_none());
        let of_b = b.lock(exclusive(ONE)).unwrap().unwrap();
        assert!(!c.try_lock(shared(ONE)).unwrap(), "b is before it");
        assert!(d.try_lock(shared(ONE)).unwrap(), "d has the key");
        let of_c = c.lock(shared(ONE)).unwrap().unwrap();
        a.unlock_all();
        assert!(of_b.timeout().expire(false), "d shares it");
        d.unlock_all();
        assert!(has(of_b), "the last holder has released it");
        assert!(of_c.timeout().expire(false), "c waits for b");
        b.unlock_all();
        assert!(has(of_c));
    }

    #[test]
    fn a_wait_that_ends_lets_others_pass() {
        let [a, b, c] = sessions();
        assert!(a.try_lock(shared(ONE)).unwrap());
        let of_b = b.lock(exclusive(ONE)).unwrap().unwrap();
        let of_c = c.lock(shared(ONE)).unwrap().unwrap();
        of_b.timeout().expire(true);
        assert!(matches!(of_b.granted().now_or_never(), Some(Err(Error::LockTimeout))));
        assert!(has(of_c));
        // A lock that is granted to a cancelled statement is released.
        let of_b = b.lock(of_transaction(exclusive(ONE))).unwrap().unwrap();
        a.unlock_all();
        c.unlock_all();
        drop(of_b);
        assert!(a.try_lock(exclusive(ONE)).unwrap());
    }

    #[test]
    fn transactions_release_their_locks() {
        let [a, b] = sessions();
        let [two, three] = [2, 3].map(LockKey::One);
        assert!(a.try_lock(of_transaction(exclusive(ONE))).unwrap());
        a.save("s");
        assert!(a.try_lock(of_transaction(exclusive(two))).unwrap() && a.try_lock(exclusive(three)).unwrap());
        assert!(!a.unlock(ONE, LockMode::Exclusive), "not at the level of the session");
        a.roll_back_to("s");
        assert!(!b.try_lock(exclusive(ONE)).unwrap() && b.try_lock(exclusive(two)).unwrap());
        a.end_transaction();
        assert!(b.try_lock(exclusive(ONE)).unwrap() && !b.try_lock(exclusive(three)).unwrap());
    }

    #[test]
    fn deadlocks_are_errors() {
        let [a, b, c] = sessions();
        let keys = [1, 2, 3].map(LockKey::One);
        for (session, key) in [&a, &b, &c].into_iter().zip(keys) {
            assert!(session.try_lock(exclusive(key)).unwrap());
        }
        let of_a = a.lock(exclusive(keys[1])).unwrap().unwrap();
        let of_b = b.lock(shared(keys[2])).unwrap().unwrap();
        assert!(matches!(c.lock(shared(keys[0])), Err(Error::Deadlock)));
        drop(of_b);
        let of_c = c.lock(shared(keys[0])).unwrap().unwrap();
        b.unlock_all();
        assert!(has(of_a));
        a.unlock_all();
        assert!(has(of_c));
    }

    #[test]
    fn two_sharers_cannot_both_lock_exclusively() {
        let [a, b] = sessions();
        assert!(a.try_lock(shared(ONE)).unwrap() && b.try_lock(shared(ONE)).unwrap());
        let of_a = a.lock(exclusive(ONE)).unwrap().unwrap();
        assert!(matches!(b.lock(exclusive(ONE)), Err(Error::Deadlock)));
        b.unlock_all();
        assert!(has(of_a));
    }
}
