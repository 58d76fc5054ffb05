//! What is to go wrong on a simulated device, and when.

/// What happens to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// It fails with an I/O error and changes nothing.
    Eio,
    /// It fails for lack of space and changes nothing.
    NoSpace,
    /// The power fails while it is under way: the write, and every call after it, fails until
    /// [`Simulated::crash`](super::Simulated::crash); then the write has survived, is lost, or is torn.
    Crash,
    /// It reports success and changes nothing.
    Lose,
    /// It reports success, and has written so many blocks away (not before the start of the file).
    Misdirect { blocks: i64 },
}

/// Faults to come, and the counters that they go by.
#[derive(Debug, Default)]
pub(super) struct Faults {
    writes: u64,
    operations: u64,
    syncs: u64,
    at_write: Vec<(u64, FaultKind)>,
    at_sync: Vec<u64>,
    crash_at_operation: Option<u64>,
    pub(super) lying_syncs: bool,
}

impl Faults {
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// After `successes` more writes one meets `kind`.
    pub(super) fn plan_write(&mut self, successes: u64, kind: FaultKind) {
        self.at_write.push((self.writes + successes, kind));
    }

    /// After `successes` more syncs one fails.
    pub(super) fn plan_sync(&mut self, successes: u64) {
        self.at_sync.push(self.syncs + successes);
    }

    /// After `successes` more operations of any kind the power fails during one.
    pub(super) fn plan_crash(&mut self, successes: u64) {
        self.crash_at_operation = Some(self.operations + successes);
    }

    /// Forgets what has not happened yet. The counters go on.
    pub(super) fn clear(&mut self) {
        *self = Faults { writes: self.writes, operations: self.operations, syncs: self.syncs, ..Faults::default() };
    }

    /// Counts an operation; true: the power fails during it.
    pub(super) fn operation(&mut self) -> bool {
        let index = self.operations;
        self.operations += 1;
        self.crash_at_operation.take_if(|at| *at == index).is_some()
    }

    /// Counts a write, which is an operation; its fault, if it has one.
    pub(super) fn write(&mut self) -> Option<FaultKind> {
        let crash = self.operation();
        let fault = take(&mut self.at_write, |(at, _)| *at == self.writes).map(|(_, kind)| kind);
        self.writes += 1;
        if crash { Some(FaultKind::Crash) } else { fault }
    }

    /// Counts a sync (which the caller has counted as an operation); true: it fails.
    pub(super) fn sync_fails(&mut self) -> bool {
        let fails = take(&mut self.at_sync, |at| *at == self.syncs).is_some();
        self.syncs += 1;
        fails
    }
}

fn take<T>(plans: &mut Vec<T>, is_due: impl Fn(&T) -> bool) -> Option<T> {
    plans.iter().position(is_due).map(|index| plans.remove(index))
}
