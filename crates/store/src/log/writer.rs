//! The writing side of the log: appends, leaders and followers, and the background thread.
//!
//! Leaders take turns, numbered from 1. Committers whose record is in the current turn wait at one [`Gate`], committers
//! for the next turn at the other. At the end of a turn the leader wakes all of the former, and one of the latter, which
//! leads the next turn. Committers that wait without a thread leave a waker; the background thread leads for them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use keyaki_device::{BLOCK, Buffer, File, Operation};
use keyaki_primitives::sync::atomic::{AtomicU64, Ordering};
use keyaki_primitives::sync::thread::yield_now;
use keyaki_primitives::sync::{Condvar, Mutex, MutexGuard};

use super::format::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES};
use super::gate::Gate;
use super::segment::{LogSegments, allocate, empty_group, extend_file};
use super::state::{GROUP_BYTES, Group, MARK_BYTES, State, Tail, Zeros, group_span};
use super::{LogPosition, LogReserve};
use crate::base::{Durability, Error, Result};

/// Bytes appended and not yet written above which `append` waits for a turn.
const PENDING_BYTES_MAX: usize = 64 * GROUP_BYTES;
/// Maximum number of times that a leader yields the CPU before it takes the appended records.
const REJOIN_YIELDS: usize = 64;
/// Time that pending records wait, at most, for the background thread.
const BACKGROUND_INTERVAL: Duration = Duration::from_millis(100);

/// The state that a record must reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncTarget {
    /// Handed to the operating system.
    Written,
    /// On the medium.
    Synced,
}

#[derive(Debug)]
pub(super) struct Writer {
    segments: LogSegments,
    state: Mutex<State>,
    /// A copy of `State::durable` that can be read without the mutex.
    durable: AtomicU64,
    /// Bytes of records since the last checkpoint.
    bytes: AtomicU64,
    /// The value of `bytes` at the last cut.
    bytes_at_cut: AtomicU64,
    /// Where committers wait, by the parity of their turn.
    gates: [Gate; 2],
    /// Signalled after the creation of a segment, successful or not.
    rolled: Condvar,
    /// Signalled when there is work for the background thread.
    work: Condvar,
}

impl Writer {
    pub(super) fn new(segments: LogSegments, state: State, bytes: u64) -> Writer {
        Writer {
            segments,
            durable: AtomicU64::new(state.durable),
            bytes: AtomicU64::new(bytes),
            bytes_at_cut: AtomicU64::new(0),
            state: Mutex::new(state),
            gates: [Gate::default(), Gate::default()],
            rolled: Condvar::new(),
            work: Condvar::new(),
        }
    }

    pub(super) fn append(&self, sequence: u64, payload: &[u8], reserve: LogReserve) -> Result<()> {
        if payload.len() > MAX_RECORD_BYTES {
            let (bytes, limit) = (payload.len() as u64, MAX_RECORD_BYTES as u64);
            return Err(Error::TooLarge { what: "log record", bytes, limit });
        }
        let mut state = self.state.lock();
        loop {
            state.check()?;
            assert_eq!(sequence, state.appended + 1, "log records are appended in sequence order");
            if state.rolling {
                self.rolled.wait(&mut state);
            } else if state.pending_bytes > 0 && state.pending_bytes + payload.len() > PENDING_BYTES_MAX {
                self.take_turn(&mut state, SyncTarget::Written);
            } else if reserve == LogReserve::Keep && !self.has_spare(&state) {
                self.provide_spare(&mut state)?;
            } else if state.push(sequence, payload) {
                break;
            } else {
                self.roll(&mut state, group_span(payload.len()) as u64)?;
            }
        }
        let added = RECORD_HEADER_BYTES + payload.len();
        self.bytes.fetch_add(added as u64, Ordering::Relaxed);
        let bytes = state.pending_bytes;
        if state.durability != Durability::Full && (bytes >= GROUP_BYTES || bytes == added) {
            self.work.notify_one();
        }
        Ok(())
    }

    pub(super) fn commit(&self, sequence: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.check()?;
        if sequence <= state.durable {
            return Ok(());
        }
        assert!(sequence <= state.appended, "commit of log record {sequence}, but the last one is {}", state.appended);
        match state.durability {
            Durability::Full => {
                state.arrivals += 1;
                self.reach(state, sequence, SyncTarget::Synced)
            }
            Durability::Normal | Durability::Off => Ok(()),
        }
    }

    /// Like [`Writer::commit`], but leaves `waker` instead of blocking. `arrived` is false in the first call for a commit.
    pub(super) fn poll_commit(&self, sequence: u64, arrived: &mut bool, waker: &Waker) -> Poll<Result<()>> {
        let mut state = self.state.lock();
        state.check()?;
        assert!(sequence <= state.appended, "commit of log record {sequence}, but the last one is {}", state.appended);
        if sequence <= state.durable || state.durability != Durability::Full {
            return Poll::Ready(Ok(()));
        }
        if state.closing {
            return Poll::Ready(self.reach(state, sequence, SyncTarget::Synced));
        }
        state.arrivals += u64::from(!std::mem::replace(arrived, true));
        if !state.wakers.iter().any(|(waiting, other)| *waiting == sequence && other.will_wake(waker)) {
            state.wakers.push((sequence, waker.clone()));
        }
        if !state.leading {
            self.work.notify_one();
        }
        Poll::Pending
    }

    pub(super) fn reach_appended(&self, target: SyncTarget) -> Result<()> {
        let state = self.state.lock();
        let sequence = state.appended;
        self.reach(state, sequence, target)
    }

    /// Waits until record `sequence` has reached `target`. Leads a turn if no other thread leads one.
    fn reach<'a>(&'a self, mut state: MutexGuard<'a, State>, sequence: u64, target: SyncTarget) -> Result<()> {
        loop {
            state.check()?;
            let reached = match target {
                SyncTarget::Written => state.written,
                SyncTarget::Synced => state.durable,
            };
            if reached >= sequence {
                return Ok(());
            }
            if state.leading {
                // Records behind those in flight are written in the next turn.
                let turn = state.turn + u64::from(sequence > state.in_flight);
                drop(state);
                self.gate(turn).wait(turn);
                if self.durable() >= sequence {
                    return Ok(());
                }
                state = self.state.lock();
            } else {
                self.lead(&mut state, target);
            }
        }
    }

    /// Waits for the end of the current turn, or leads a turn if there is none.
    fn take_turn(&self, state: &mut MutexGuard<'_, State>, target: SyncTarget) {
        if state.leading {
            let turn = state.turn;
            MutexGuard::unlocked(state, || self.gate(turn).wait(turn));
        } else {
            self.lead(state, target);
        }
    }

    /// Where committers of a turn wait.
    fn gate(&self, turn: u64) -> &Gate {
        &self.gates[(turn & 1) as usize]
    }

    /// Leads a turn: writes all appended records, and syncs them if this is the target.
    fn lead(&self, state: &mut MutexGuard<'_, State>, target: SyncTarget) {
        state.turn += 1;
        state.leading = true;
        if target == SyncTarget::Synced {
            Self::await_rejoining_committers(state);
        }
        if state.poison.is_some() {
            state.leading = false;
            self.wake_all(state);
            return;
        }
        state.in_flight = state.appended;
        let mut groups = state.take_groups();
        let zeros = if target == SyncTarget::Synced { state.take_zeros(&groups) } else { None };
        let mut unsynced = std::mem::take(&mut state.unsynced);
        let (through, bytes, synced_through) = (state.appended, state.pending_bytes, state.durable);
        // A panic must not leave the turn open: later committers would wait for its end forever.
        let write = || self.write(&mut groups, zeros, &mut unsynced, synced_through, target);
        let result = MutexGuard::unlocked(state, || catch_unwind(AssertUnwindSafe(write)));
        state.leading = false;
        let result = result.unwrap_or_else(|panic| {
            state.set_poison("the log writer panicked");
            self.wake_all(state);
            resume_unwind(panic)
        });
        assert!(bytes <= state.pending_bytes, "{bytes} bytes written, {} were pending", state.pending_bytes);
        state.pending_bytes -= bytes;
        state.recycle(groups);
        match result {
            Ok(()) => {
                assert!(state.durable <= state.written && state.written <= through, "records are written in order");
                state.written = through;
                if target == SyncTarget::Synced {
                    state.durable = through;
                    self.durable.store(through, Ordering::Release);
                }
                state.unsynced = unsynced;
            }
            Err(error) => state.set_poison(&error.to_string()),
        }
        if state.poison.is_some() {
            self.wake_all(state);
        } else {
            let turn = state.turn;
            let wakers = state.take_synced_wakers();
            if !state.wakers.is_empty() {
                self.work.notify_one();
            }
            MutexGuard::unlocked(state, || {
                self.gate(turn).end(turn);
                self.gate(turn + 1).offer(turn + 1);
                wakers.into_iter().for_each(Waker::wake);
            });
        }
    }

    /// Committers woken by the last sync may rejoin and share this one. Yields the CPU until as many commits have
    /// arrived as for the last turn, at most [`REJOIN_YIELDS`] times. A single committer does not wait.
    fn await_rejoining_committers(state: &mut MutexGuard<'_, State>) {
        // Commits that arrive meanwhile belong to this turn.
        state.in_flight = u64::MAX;
        for _ in 0..REJOIN_YIELDS {
            if state.arrivals >= state.arrivals_before {
                break;
            }
            MutexGuard::unlocked(state, yield_now);
        }
        state.arrivals_before = std::mem::take(&mut state.arrivals);
    }

    fn write(
        &self,
        groups: &mut [Group],
        zeros: Option<Zeros>,
        unsynced: &mut Vec<Arc<dyn File>>,
        synced_through: u64,
        target: SyncTarget,
    ) -> Result<()> {
        for group in groups {
            let exact = group.seal(self.segments.log_id, synced_through);
            group.file.write_at(group.offset, exact.as_ref().unwrap_or(group.buffer()))?;
            if !unsynced.last().is_some_and(|last| Arc::ptr_eq(last, &group.file)) {
                unsynced.push(group.file.clone());
            }
        }
        if let Some(Zeros { file, offset, len }) = zeros {
            file.write_at(offset, &Buffer::zeroed(len))?;
        }
        if target == SyncTarget::Synced {
            for file in unsynced.drain(..) {
                file.sync_data()?;
            }
        }
        Ok(())
    }

    /// True if there is a spare segment of the required length.
    fn has_spare(&self, state: &State) -> bool {
        state.spare.as_ref().is_some_and(|spare| spare.has(self.segments.spare_bytes()))
    }

    /// Creates the spare segment, or extends it to the required length.
    fn provide_spare(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        assert!(!state.rolling, "one thread at a time changes segments");
        state.rolling = true;
        let spare = state.spare.take();
        let provided = MutexGuard::unlocked(state, || self.segments.provide_spare(spare));
        state.rolling = false;
        self.rolled.notify_all();
        match provided {
            Ok(spare) => {
                state.spare = Some(spare);
                Ok(())
            }
            Err((error, spare)) => {
                state.spare = spare;
                self.failed(state, error)
            }
        }
    }

    pub(super) fn lengthen(&self) -> Result<()> {
        if !self.segments.is_short() {
            return Ok(());
        }
        let mut state = self.state.lock();
        while state.rolling {
            self.rolled.wait(&mut state);
        }
        state.check()?;
        self.segments.set_short(false);
        let lengthened = self.lengthen_tail(&mut state).and_then(|()| {
            // A log without records needs no spare segment yet.
            if state.tail.is_none() || self.has_spare(&state) { Ok(()) } else { self.provide_spare(&mut state) }
        });
        if lengthened.is_err() {
            self.segments.set_short(true);
        }
        lengthened
    }

    /// Extends the current segment to the length of a spare one, which it may become.
    fn lengthen_tail(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        let len = self.segments.spare_bytes();
        let Some(tail) = state.tail.as_ref().filter(|tail| tail.capacity < len) else { return Ok(()) };
        let (file, from) = (tail.file.clone(), tail.capacity);
        state.rolling = true;
        let extended = MutexGuard::unlocked(state, || extend_file(&*file, from, len));
        state.rolling = false;
        self.rolled.notify_all();
        match extended {
            Ok(()) => {
                let Some(tail) = state.tail.as_mut() else { unreachable!("segments change one at a time") };
                tail.capacity = len;
                Ok(())
            }
            Err(error) => self.failed(state, error),
        }
    }

    pub(super) fn set_short(&self, is_short: bool) {
        self.segments.set_short(is_short);
    }

    pub(super) fn newest_segment(&self) -> Option<u64> {
        self.state.lock().next_segment.checked_sub(1)
    }

    /// Provides space for a group of `needed` bytes and a mark: extends the current segment if it is empty, otherwise
    /// starts a new one.
    fn roll(&self, state: &mut MutexGuard<'_, State>, needed: u64) -> Result<()> {
        let (needed, len) = (needed + MARK_BYTES, self.segments.bytes_after(state.tail.as_ref()));
        if state.tail_is_empty()
            && let Some(tail) = state.tail.as_mut()
        {
            // Happens only after opening, or for a record longer than a segment, so the mutex may be held.
            let ends = [len, self.segments.spare_bytes()];
            match allocate(&*tail.file, ends, tail.capacity, tail.offset + needed - tail.capacity) {
                Ok(capacity) => {
                    tail.capacity = capacity;
                    return Ok(());
                }
                // The spare segment may have the space.
                Err(Error::DiskFull { .. }) if state.spare.is_some() => {}
                Err(error) => return self.failed(state, error),
            }
        }
        if state.spare.is_none() {
            self.provide_spare(state)?;
        }
        let Some(spare) = state.spare.take() else { unreachable!("it was provided under the mutex") };
        state.rolling = true;
        let (number, next, durable) = (state.next_segment, state.appended + 1, state.durable);
        let created = MutexGuard::unlocked(state, || self.segments.create(spare, number, next, durable, len, needed));
        state.rolling = false;
        self.rolled.notify_all();
        match (created, number.checked_add(1)) {
            (Ok(tail), Some(after)) => {
                state.next_segment = after;
                state.replace_tail(tail);
                Ok(())
            }
            (Ok(_), None) => self.failed(state, Error::TooMany { what: "log segments", limit: u64::MAX }),
            (Err((error, spare)), _) => {
                state.spare = spare;
                self.failed(state, error)
            }
        }
    }

    /// Handles a failure to provide space. A full disk changes nothing. Any other failure poisons the log.
    fn failed<T>(&self, state: &mut MutexGuard<'_, State>, error: Error) -> Result<T> {
        if !matches!(error, Error::DiskFull { .. }) {
            state.set_poison(&error.to_string());
            self.wake_all(state);
        }
        Err(error)
    }

    pub(super) fn cut(&self) -> Result<LogPosition> {
        let mut state = self.state.lock();
        while state.rolling {
            self.rolled.wait(&mut state);
        }
        state.check()?;
        let mut position = LogPosition::default();
        if !state.tail_is_empty() {
            match self.roll(&mut state, BLOCK as u64) {
                // The disk is full, but a checkpoint may free space.
                Err(error @ Error::DiskFull { .. }) => {
                    position.offset = state.push_mark().ok_or(error)?;
                    self.finish_turns(&mut state)?;
                }
                result => result?,
            }
        }
        self.bytes_at_cut.store(self.bytes(), Ordering::Relaxed);
        position.segment = state.tail.as_ref().map_or(state.next_segment, |tail| tail.number);
        Ok(position)
    }

    /// Writes and syncs all groups, including groups without records. No record may be appended during the call.
    fn finish_turns(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        while state.leading || !state.is_synced() {
            self.take_turn(state, SyncTarget::Synced);
            state.check()?;
        }
        Ok(())
    }

    /// The caller serialises this with [`Writer::cut`] (both are parts of a checkpoint), so that the bytes at the cut are
    /// those of `position`.
    pub(super) fn remove_before(&self, position: LogPosition) -> Result<()> {
        // The records are obsolete even if the removal of the files fails.
        let removed = self.bytes_at_cut.swap(0, Ordering::Relaxed);
        let before = self.bytes.fetch_sub(removed, Ordering::Relaxed);
        assert!(removed <= before, "{removed} bytes of {before} removed from the log");
        // Pending groups of the segments to be removed must not be written to removed files.
        self.reach_appended(SyncTarget::Synced)?;
        let removed = self.segments.remove_all_but_last(position.segment);
        let removed = removed.and_then(|last| match last {
            Some(last) => self.recycle(last).and_then(|()| self.segments.sync_dir()),
            None => Ok(()),
        });
        if let Err(Error::Device(error)) = &removed
            && error.operation == Operation::SyncDir
        {
            // The directory also has the entries of later segments.
            self.poison(&error.to_string());
        }
        removed?;
        // Before other files take the space of the removed segments.
        self.keep_spare().map(drop)
    }

    /// Makes an obsolete segment the spare one, or removes it. Appends that need a segment wait.
    fn recycle(&self, segment: u64) -> Result<()> {
        let mut state = self.state.lock();
        while state.rolling {
            self.rolled.wait(&mut state);
        }
        state.check()?;
        state.rolling = true;
        let spare = state.spare.take();
        let recycled = MutexGuard::unlocked(&mut state, || self.segments.recycle(segment, spare));
        state.rolling = false;
        self.rolled.notify_all();
        state.spare = recycled?;
        Ok(())
    }

    pub(super) fn keep_spare(&self) -> Result<bool> {
        let mut state = self.state.lock();
        while state.rolling {
            self.rolled.wait(&mut state);
        }
        state.check()?;
        // A log without records needs none yet.
        if self.has_spare(&state) || state.tail.is_none() {
            return Ok(true);
        }
        match self.provide_spare(&mut state) {
            Err(Error::DiskFull { .. }) => Ok(false),
            result => result.map(|()| true),
        }
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn check(&self) -> Result<()> {
        self.state.lock().check()
    }

    pub(super) fn poison(&self, cause: &str) {
        let mut state = self.state.lock();
        state.set_poison(cause);
        self.wake_all(&mut state);
    }

    pub(super) fn set_durability(&self, durability: Durability) {
        self.state.lock().durability = durability;
        self.work.notify_one();
    }

    /// Wakes all threads and tasks after a failure.
    fn wake_all(&self, state: &mut MutexGuard<'_, State>) {
        let wakers = std::mem::take(&mut state.wakers);
        MutexGuard::unlocked(state, || {
            for gate in &self.gates {
                gate.end(u64::MAX);
            }
            self.rolled.notify_all();
            self.work.notify_all();
            wakers.into_iter().for_each(|(_, waker)| waker.wake());
        });
    }

    /// The loop of the background thread. Under `Normal` and `Off` it writes the pending records after
    /// [`BACKGROUND_INTERVAL`], or at once if they fill a group. Under `Normal` it also syncs them. It syncs at once if
    /// committers have left wakers.
    pub(super) fn run_background(&self) {
        let mut state = self.state.lock();
        while !state.closing && state.poison.is_none() {
            if !state.has_background_work() {
                self.work.wait(&mut state);
                continue;
            }
            if state.wakers.is_empty() && state.pending_bytes < GROUP_BYTES {
                self.work.wait_for(&mut state, BACKGROUND_INTERVAL);
            }
            let newest_waiting = state.wakers.iter().map(|(sequence, _)| *sequence).max();
            let (target, sequence) = match (newest_waiting, state.durability) {
                (Some(sequence), _) => (SyncTarget::Synced, sequence),
                (None, Durability::Full) => continue,
                (None, Durability::Normal) => (SyncTarget::Synced, state.appended),
                (None, Durability::Off) => (SyncTarget::Written, state.appended),
            };
            // A failure poisons the log, which ends the loop.
            let _ = self.reach(state, sequence, target);
            state = self.state.lock();
        }
    }

    pub(super) fn stop_background(&self) {
        self.state.lock().closing = true;
        self.work.notify_all();
    }

    /// Writes pending records, appends an empty group that proves their durability, and frees the unused space of the
    /// last segment. No other thread may use the log any more.
    pub(super) fn close(&self) -> Result<()> {
        let target = {
            let state = self.state.lock();
            let is_synced = state.durability != Durability::Off || !state.wakers.is_empty();
            if is_synced { SyncTarget::Synced } else { SyncTarget::Written }
        };
        self.reach_appended(target)?;
        let mut state = self.state.lock();
        let durable = state.durable;
        let Some(Tail { number, file, capacity, mut offset, .. }) = state.tail.take() else { return Ok(()) };
        let (has_records, spare) = (offset > BLOCK as u64, state.spare.take());
        if has_records && durable == state.appended && offset < capacity {
            file.write_at(offset, &empty_group(self.segments.log_id, number, offset, durable + 1, durable))?;
            offset += BLOCK as u64;
        }
        // Without a spare segment, the next process needs the space of this one. If the spare segment is short, the
        // disk may be full: the next process makes the spare segment its first one, and this one its spare segment.
        let spare_bytes = self.segments.spare_bytes();
        let is_needed = spare.is_none() && capacity - offset < spare_bytes;
        if !is_needed {
            let is_short = spare.as_ref().is_some_and(|spare| !spare.is_long());
            file.truncate(if is_short { offset.max(spare_bytes.min(capacity)) } else { offset })?;
        }
        if target == SyncTarget::Synced {
            file.sync_data()?;
        }
        match spare {
            Some(spare) => spare.shorten(spare_bytes),
            None if is_needed => Ok(()),
            None => self.segments.recover_spare().map(drop),
        }
    }
}

impl State {
    fn check(&self) -> Result<()> {
        match &self.poison {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    fn has_background_work(&self) -> bool {
        let of_durability = match self.durability {
            Durability::Full => false,
            Durability::Normal => self.durable < self.appended,
            Durability::Off => self.written < self.appended,
        };
        of_durability || !self.wakers.is_empty()
    }

    /// Takes the wakers of the commits that are synced.
    fn take_synced_wakers(&mut self) -> Vec<Waker> {
        let durable = self.durable;
        self.wakers.extract_if(.., |(sequence, _)| *sequence <= durable).map(|(_, waker)| waker).collect()
    }

    /// Poisons the log. The first cause is kept.
    fn set_poison(&mut self, cause: &str) {
        self.poison.get_or_insert_with(|| cause.to_owned());
    }
}
