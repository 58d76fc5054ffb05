//! Cancellation: each execution of a statement either commits or is cancelled.
//!
//! A statement that changes something has a [`Decision`], which leaves its first state once, by a compare-and-swap:
//!
//! ```text
//!           ┌─► committing   by the statement, directly before its change
//!  running ─┤
//!           └─► cancelled    by an interrupt, or because the statement's future is dropped
//! ```
//!
//! A statement changes nothing before it has decided to commit ([`Decision::commit`]). This also holds for its work on
//! other threads, which may go on after its future was dropped. A statement that has decided to commit ends as if there
//! were no interrupt, and reports success.
//!
//! An interrupt increments a counter of the session. A statement notes the counter when it starts and is interrupted if
//! the counter differs, so an interrupt affects exactly the statements that have started before it and not ended.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use tokio::sync::Notify;

use super::row_locks::StatementLocks;
use super::{Error, Result};

/// The interrupts of one session.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    count: AtomicU64,
    raised: Notify,
    #[cfg(test)]
    pub stops: super::stops::Stops,
}

/// The number of interrupts when a statement started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started(u64);

impl Interrupts {
    /// Notes the start of a statement.
    pub fn start(&self) -> Started {
        Started(self.count.load(Ordering::SeqCst))
    }

    /// True if there was an interrupt since the start of a statement.
    pub fn since(&self, started: Started) -> bool {
        self.count.load(Ordering::SeqCst) != started.0
    }

    /// Interrupts the running statements.
    pub fn raise(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.raised.notify_waiters();
    }

    /// Runs `work`. An interrupt ends this, with `None`.
    async fn unless_raised<T>(&self, started: Started, work: impl Future<Output = T>) -> Option<T> {
        if self.since(started) {
            return None;
        }
        let mut work = pin!(work);
        // Small statements never wait.
        if let Poll::Ready(result) = futures::poll!(work.as_mut()) {
            return Some(result);
        }
        let mut raised = pin!(self.raised.notified());
        // Registered before the counter is read: no interrupt goes unnoticed.
        raised.as_mut().enable();
        if self.since(started) {
            return None;
        }
        tokio::select! {
            biased;
            () = raised => None,
            result = work => Some(result),
        }
    }
}

/// One execution of a statement. Dropping it cancels the statement, unless it has decided to commit.
#[derive(Debug)]
pub(crate) struct Execution<'s> {
    interrupts: &'s Arc<Interrupts>,
    started: Started,
    decision: OnceLock<Arc<Decision>>,
    /// The statement is COMMIT or ROLLBACK.
    ends_transaction: AtomicBool,
}

impl<'s> Execution<'s> {
    /// An execution of a statement that started at `started`.
    pub fn new(interrupts: &'s Arc<Interrupts>, started: Started) -> Execution<'s> {
        Execution { interrupts, started, decision: OnceLock::new(), ends_transaction: AtomicBool::new(false) }
    }

    /// Notes that the statement is to end the open transaction.
    pub fn set_ending(&self) {
        self.ends_transaction.store(true, Ordering::Relaxed);
    }

    /// True if the statement is to end the open transaction.
    pub fn ends_transaction(&self) -> bool {
        self.ends_transaction.load(Ordering::Relaxed)
    }

    /// The start of the statement.
    pub fn started(&self) -> Started {
        self.started
    }

    /// The start that interrupts of the reading of the result are compared with. An interrupt that was too late for the
    /// change does not affect the result.
    pub fn result_started(&self) -> Started {
        match self.decision.get() {
            Some(decision) if decision.has_committed() => self.interrupts.start(),
            _ => self.started,
        }
    }

    /// The decision of the statement. Only statements that change something have one.
    pub fn decision(&self) -> &Arc<Decision> {
        self.decision.get_or_init(|| {
            let (interrupts, started) = (self.interrupts.clone(), self.started);
            Arc::new(Decision { interrupts, started, state: AtomicU8::new(RUNNING), locks: OnceLock::new() })
        })
    }

    /// Runs `work`, the statement or a part of it. An interrupt ends this, unless the statement has decided to commit. The
    /// futures of statements are large: callers on the short path pass a pinned reference.
    ///
    /// # Errors
    /// `Cancelled` after an interrupt; errors of `work`.
    pub async fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = pin!(work);
        if let Some(result) = self.interrupts.unless_raised(self.started, work.as_mut()).await {
            return result;
        }
        match self.decision.get() {
            Some(decision) if !decision.cancel() => work.await,
            _ => Err(Error::Cancelled),
        }
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        if let Some(decision) = self.decision.get() {
            decision.cancel();
        }
    }
}

// States of a decision.
const RUNNING: u8 = 0;
const COMMITTING: u8 = 1;
const CANCELLED: u8 = 2;

/// Decides once whether a statement commits or is cancelled. Shared by its future and its work on other threads.
#[derive(Debug)]
pub(crate) struct Decision {
    interrupts: Arc<Interrupts>,
    started: Started,
    state: AtomicU8,
    locks: OnceLock<StatementLocks>,
}

impl Decision {
    /// Decides to commit. The caller then makes the change. Further calls have no effect.
    ///
    /// # Errors
    /// `Cancelled` if the statement was interrupted or its future was dropped before.
    pub fn commit(&self) -> Result<()> {
        self.reach(Stage::Deciding);
        if self.interrupts.since(self.started) {
            self.cancel();
        }
        match self.state.compare_exchange(RUNNING, COMMITTING, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) | Err(COMMITTING) => {
                self.reach(Stage::Decided);
                Ok(())
            }
            Err(_) => Err(Error::Cancelled),
        }
    }

    /// The locks of the statement; `None` if it does not wait for the rows that it changes.
    pub fn locks(&self) -> Option<&StatementLocks> {
        self.locks.get()
    }

    /// Makes the statement wait for the rows that it changes, for the holder that `locks` returns. Returns the locks.
    pub fn wait_for_rows(&self, locks: impl FnOnce() -> StatementLocks) -> &StatementLocks {
        self.locks.get_or_init(locks)
    }

    /// Cancels the statement. Returns false, without an effect, if it has decided to commit.
    fn cancel(&self) -> bool {
        let before = self.state.compare_exchange(RUNNING, CANCELLED, Ordering::SeqCst, Ordering::SeqCst);
        before != Err(COMMITTING)
    }

    fn has_committed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == COMMITTING
    }

    /// Checks that the statement is not cancelled. Called now and then by long work.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn check(&self) -> Result<()> {
        self.reach(Stage::Working);
        match self.state.load(Ordering::SeqCst) {
            RUNNING if !self.interrupts.since(self.started) => Ok(()),
            COMMITTING => Ok(()),
            _ => Err(Error::Cancelled),
        }
    }

    /// Runs work that a statement can do without after its change. An interrupt drops it.
    pub async fn unless_interrupted<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.interrupts.unless_raised(self.started, work).await
    }

    /// Notes that the statement has reached a stage. Tests can stop it there.
    #[inline]
    pub fn reach(&self, stage: Stage) {
        #[cfg(test)]
        self.interrupts.stops.reach(stage);
        #[cfg(not(test))]
        let _ = stage;
    }
}

/// Stages of a statement that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It holds the writer lock.
    Begun,
    /// It is computing its change.
    Working,
    /// It will decide to commit, unless it is cancelled.
    Deciding,
    /// It has decided to commit and changed nothing yet.
    Decided,
    /// It has changed the store.
    Committed,
}

/// Cancels statements of a session or connection ([`Session::interrupt_handle`](crate::Session::interrupt_handle),
/// [`Connection::interrupt_handle`](crate::Connection::interrupt_handle)).
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
    pub(crate) interrupts: Arc<Interrupts>,
}

impl InterruptHandle {
    /// Cancels the running statements: they fail with [`Error::Cancelled`] and change nothing. For a connection, the
    /// next calls that read from their [`Rows`](crate::Rows) fail, too. Other statements are not affected.
    ///
    /// A statement whose commit has started ends normally and reports success.
    pub fn interrupt(&self) {
        self.interrupts.raise();
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
        let first = Execution::new(interrupts, interrupts.start());
        assert_eq!(first.run(async { Ok(1) }).await.unwrap(), 1);
        let waiting = first.run(std::future::pending::<Result<()>>());
        let (result, ()) = tokio::join!(waiting, async { handle.interrupt() });
        assert!(matches!(result, Err(Error::Cancelled)));
        assert!(matches!(first.run(async { Ok(1) }).await, Err(Error::Cancelled)), "stays cancelled");
        assert!(matches!(first.decision().commit(), Err(Error::Cancelled)));
        let second = Execution::new(interrupts, interrupts.start());
        assert_eq!(second.run(async { Ok(2) }).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_statement_that_has_decided_to_commit_ends() {
        let handle = InterruptHandle { interrupts: Arc::default() };
        let interrupts = &handle.interrupts;
        let execution = Execution::new(interrupts, interrupts.start());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let work = async {
            execution.decision().commit()?;
            let received = receiver.await.unwrap();
            execution.decision().check()?;
            assert_eq!(execution.decision().unless_interrupted(async { 5 }).await, None);
            Ok(received)
        };
        let later = async {
            handle.interrupt();
            tokio::task::yield_now().await;
            sender.send(7).unwrap();
        };
        let (result, ()) = tokio::join!(execution.run(work), later);
        assert_eq!(result.unwrap(), 7);
        assert!(execution.decision().commit().is_ok());
    }

    #[test]
    fn a_dropped_execution_does_not_commit() {
        let interrupts = Arc::default();
        let execution = Execution::new(&interrupts, interrupts.start());
        let decision = execution.decision().clone();
        assert!(decision.check().is_ok());
        drop(execution);
        assert!(decision.check().is_err());
        assert!(matches!(decision.commit(), Err(Error::Cancelled)));
    }
}
