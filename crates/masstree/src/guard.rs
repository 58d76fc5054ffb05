//! Epoch guards: while a thread holds one, nothing it could have seen in a map is freed.

use std::fmt;

use crate::value::Value;

/// Keeps what a thread sees in any map from being freed. Made by [`pin`]; cheap (about ten nanoseconds), and cheaper still if
/// kept for several operations. A guard kept for long holds back all memory retired meanwhile: call
/// [`refresh`](Guard::refresh) now and then, or make a new one.
pub struct Guard(crossbeam_epoch::Guard);

/// Pins the calling thread.
#[inline]
pub fn pin() -> Guard {
    Guard(crossbeam_epoch::pin())
}

impl Guard {
    /// Lets go of everything seen so far; references made with this guard end here.
    pub fn refresh(&mut self) {
        self.0.repin();
    }

    /// Hands what this thread has retired to whoever collects next, and collects a little.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Drops a value when no guard is left that is held now: whoever saw it, or something in it, goes on seeing it.
    pub fn retire<V: Value>(&self, value: V) {
        self.0.defer(move || drop(value));
    }

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
