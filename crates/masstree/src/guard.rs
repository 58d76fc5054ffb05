//! Epoch guards: while a thread holds one, no node or value that it may have seen in a map is freed.

use std::fmt;

use crate::value::Value;

/// Keeps the nodes and values that a thread sees in any map from being freed.
///
/// [`pin`] makes a guard in about ten nanoseconds. One guard can serve several operations. A guard that is held for
/// long holds back all memory retired meanwhile: call [`refresh`](Guard::refresh) from time to time, or make a new one.
pub struct Guard(crossbeam_epoch::Guard);

/// Pins the calling thread.
#[inline]
pub fn pin() -> Guard {
    Guard(crossbeam_epoch::pin())
}

impl Guard {
    /// Releases everything seen so far. References made with this guard end here.
    pub fn refresh(&mut self) {
        self.0.repin();
    }

    /// Passes the memory that this thread has retired to the global collector and lets it free memory that no guard
    /// protects.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Drops a value when all guards that exist now are gone. Threads that see the value, or parts of it, can use it
    /// until then.
    pub fn retire<V: Value>(&self, value: V) {
        self.0.defer(move || drop(value));
    }

    /// Runs `action` when all guards that exist now are gone.
    ///
    /// # Safety
    /// As for `crossbeam_epoch::Guard::defer_unchecked`: the closure may run on any thread, at any later time.
    pub(crate) unsafe fn defer(&self, action: impl FnOnce()) {
        // SAFETY: the caller's promise.
        unsafe { self.0.defer_unchecked(action) };
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Guard")
    }
}
