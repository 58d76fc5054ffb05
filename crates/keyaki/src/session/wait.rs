//! A hook that runs on the thread of a call while the call waits.
//!
//! A program that embeds the database may have to serve its thread while a statement runs: an interpreter, for example, handles
//! signals there. The hook runs between two polls of the statement's future, so it never runs beside the statement on the same
//! thread, and statements that end without waiting never call it.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::Connection;
use crate::Result;
use crate::base::interrupt::Interrupts;

/// The hook of a connection.
pub(super) struct WaitHook {
    every: Duration,
    is_to_end: Box<dyn Fn() -> bool + Send + Sync>,
}

impl WaitHook {
    /// Runs `work` to its end and calls the hook meanwhile. Interrupts the session once the hook returns true.
    pub async fn beside<T>(&self, interrupts: &Interrupts, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = pin!(work);
        loop {
            // The timer starts only if the work waits.
            tokio::select! {
                biased;
                result = work.as_mut() => return result,
                () = tokio::time::sleep(self.every) => {}
            }
            if (self.is_to_end)() {
                interrupts.raise();
                return work.await;
            }
        }
    }
}

impl fmt::Debug for WaitHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitHook").field("every", &self.every).finish_non_exhaustive()
    }
}

impl Connection {
    /// Calls `is_to_end` about every `every` while a call of this connection, or of its statements, results and appenders, waits.
    /// If it returns true, the call is interrupted as by [`InterruptHandle::interrupt`](crate::InterruptHandle::interrupt) and
    /// fails with [`Error::Cancelled`](crate::Error::Cancelled), unless its commit has started. Replaces an earlier hook.
    ///
    /// The hook runs on the calling thread, except in threads of an async runtime. It must not use the connection.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU32, Ordering};
    ///
    /// # fn main() -> keyaki::Result<()> {
    /// let connection = keyaki::Connection::open_temporary()?;
    /// let calls = AtomicU32::new(0);
    /// connection.on_wait(std::time::Duration::from_millis(5), move || calls.fetch_add(1, Ordering::Relaxed) == 3);
    /// let slow = "SELECT sum(a.value % b.value) FROM generate_series(1, 10000) a, generate_series(1, 100000000) b";
    /// let result = connection.query_row(slow, (), |row| row.get::<_, i64>(0));
    /// assert!(matches!(result, Err(keyaki::Error::Cancelled)));
    /// # Ok(()) }
    /// ```
    pub fn on_wait(&self, every: Duration, is_to_end: impl Fn() -> bool + Send + Sync + 'static) {
        let hook = WaitHook { every, is_to_end: Box::new(is_to_end) };
        *self.shared.hook.write() = Some(Arc::new(hook));
    }
}
