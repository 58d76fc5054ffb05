//! Interrupts: cancel the running statements of a connection from another thread.
//!
//! An interrupt increments a counter. A statement notes the counter when it starts and fails as soon as the counter
//! differs, so an interrupt affects exactly the statements that have started before it and not ended.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::{Error, Result};

/// The interrupts of one connection.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    count: AtomicU64,
    raised: Notify,
}

/// The number of interrupts when a statement started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started(u64);

impl Interrupts {
    /// Notes the start of a statement.
    pub fn start(&self) -> Started {
        Started(self.count.load(Ordering::SeqCst))
    }

    /// True if there was an interrupt since the start of a statement.
    pub fn since(&self, started: Started) -> bool {
        self.count.load(Ordering::SeqCst) != started.0
    }

    /// Runs `work`, a part of a statement. An interrupt drops it.
    ///
    /// # Errors
    /// `Cancelled` after an interrupt; errors of `work`.
    pub async fn guard<T>(&self, started: Started, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut raised = pin!(self.raised.notified());
        // Registered before the counter is read: no interrupt goes unnoticed.
        raised.as_mut().enable();
        if self.since(started) {
            return Err(Error::Cancelled);
        }
        tokio::select! {
            biased;
            () = raised => Err(Error::Cancelled),
            result = work => result,
        }
    }
}

/// Cancels statements of a connection ([`Connection::interrupt_handle`](super::Connection::interrupt_handle)).
///
/// ```
/// # fn main() -> keyaki::Result<()> {
/// let connection = keyaki::Connection::open_temporary()?;
/// let handle = connection.interrupt_handle();
/// let timer = std::thread::spawn(move || {
///     std::thread::sleep(std::time::Duration::from_millis(50));
///     handle.interrupt();
/// });
/// let slow = "SELECT sum(a.value % b.value) FROM generate_series(1, 10000) a, generate_series(1, 100000000) b";
/// let result = connection.query_row(slow, (), |row| row.get::<_, i64>(0));
/// assert!(matches!(result, Err(keyaki::Error::Cancelled)));
/// # timer.join().unwrap();
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct InterruptHandle {
    pub(super) interrupts: Arc<Interrupts>,
}

impl InterruptHandle {
    /// Cancels the running statements of the connection: their calls, and the next calls that read from their
    /// [`Rows`](crate::Rows), fail with [`Error::Cancelled`]. Other statements are not affected.
    ///
    /// A statement whose commit has started takes effect nevertheless.
    pub fn interrupt(&self) {
        self.interrupts.count.fetch_add(1, Ordering::SeqCst);
        self.interrupts.raised.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_interrupt_cancels_started_work_only() {
        let handle = InterruptHandle { interrupts: Arc::default() };
        let interrupts = &handle.interrupts;
        handle.interrupt();
        let first = interrupts.start();
        assert_eq!(interrupts.guard(first, async { Ok(1) }).await.unwrap(), 1);
        let waiting = interrupts.guard(first, std::future::pending::<Result<()>>());
        let (result, ()) = tokio::join!(waiting, async { handle.interrupt() });
        assert!(matches!(result, Err(Error::Cancelled)));
        assert!(matches!(interrupts.guard(first, async { Ok(1) }).await, Err(Error::Cancelled)), "stays cancelled");
        assert_eq!(interrupts.guard(interrupts.start(), async { Ok(2) }).await.unwrap(), 2);
    }
}
