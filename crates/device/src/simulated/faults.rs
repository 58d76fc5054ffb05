//! Planned faults of a simulated device.
//!
//! Faults are planned by the number of successful calls before them, so that a test can interrupt every call in turn.

use crate::interface::ErrorKind;

/// A fault of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The write fails with an I/O error and changes nothing.
    Eio,
    /// The write fails for lack of space and changes nothing.
    NoSpace,
    /// The power fails during the write. The write and all later calls fail until
    /// [`Simulated::crash`](super::Simulated::crash), after which the write has survived, is lost, or is torn.
    Crash,
    /// The write reports success and changes nothing.
    Lose,
    /// The write reports success and goes to another offset of the file.
    Misdirect {
        /// Distance in blocks; the offset does not go below 0.
        blocks: i64,
    },
}

/// Planned faults, and the counters that trigger them.
#[derive(Debug, Default)]
pub(super) struct Faults {
    writes: u64,
    operations: u64,
    syncs: u64,
    /// Number of the write, and its fault.
    at_write: Vec<(u64, FaultKind)>,
    /// Number of the sync, and the error with which it fails.
    at_sync: Vec<(u64, ErrorKind)>,
    /// Number of the operation during which the power fails.
    crash_at_operation: Option<u64>,
    /// Syncs report success and make nothing durable.
    pub(super) lying_syncs: bool,
}

impl Faults {
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// Plans a fault for the write after `successes` more writes.
    pub(super) fn plan_write(&mut self, successes: u64, kind: FaultKind) {
        self.at_write.push((self.writes + successes, kind));
    }

    /// Plans a failure of the sync after `successes` more syncs.
    pub(super) fn plan_sync(&mut self, successes: u64, error: ErrorKind) {
        self.at_sync.push((self.syncs + successes, error));
    }

    /// Plans a power failure during the operation after `successes` more operations of any kind.
    pub(super) fn plan_crash(&mut self, successes: u64) {
        self.crash_at_operation = Some(self.operations + successes);
    }

    /// Clears all planned faults. The counters continue.
    pub(super) fn clear(&mut self) {
        *self = Faults { writes: self.writes, operations: self.operations, syncs: self.syncs, ..Faults::default() };
    }

    /// Counts an operation. True: the power fails during it.
    pub(super) fn operation(&mut self) -> bool {
        let index = self.operations;
        self.operations += 1;
        self.crash_at_operation.take_if(|at| *at == index).is_some()
    }

    /// Counts a write, which is also an operation. Returns its fault, if one was planned.
    pub(super) fn write(&mut self) -> Option<FaultKind> {
        let crash = self.operation();
        let fault = take(&mut self.at_write, |(at, _)| *at == self.writes).map(|(_, kind)| kind);
        self.writes += 1;
        if crash { Some(FaultKind::Crash) } else { fault }
    }

    /// Counts a sync, which the caller has counted as an operation. Returns the error with which it fails, if one was
    /// planned.
    pub(super) fn sync(&mut self) -> Option<ErrorKind> {
        let fault = take(&mut self.at_sync, |(at, _)| *at == self.syncs).map(|(_, error)| error);
        self.syncs += 1;
        fault
    }
}

/// Removes the first plan that is due.
fn take<T>(plans: &mut Vec<T>, is_due: impl Fn(&T) -> bool) -> Option<T> {
    plans.iter().position(is_due).map(|index| plans.remove(index))
}
