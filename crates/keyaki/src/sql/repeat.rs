//! Statements that wait for rows, and run again ([`crate::engine::transaction`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::SqlSession;
use crate::Result;
use crate::base::interrupt::Execution;
use crate::base::options::{Isolation, Switch};
use crate::base::row_locks::{Repeat, StatementLocks, Wait};

/// A statement whose rows writers without locks change each time it runs fails after this many runs.
pub(super) const OUTDATED_RUNS_MAX: usize = 50;
/// The timer of a wait that has ended is freed after at most this time.
const TIMER_INTERVAL: Duration = Duration::from_secs(1);

/// At the level read committed, makes a statement wait for rows that other transactions have changed. The caller runs the statement until [`again`] returns false.
pub(super) fn begin(session: &SqlSession, execution: &Execution<'_>) {
    let holder = match session.transaction.is_open() {
        _ if session.options.lock().row_locks == Switch::Off => None,
        true => session.transaction.waiting_holder(),
        false if session.characteristics().isolation == Isolation::ReadCommitted => {
            Some(Arc::new(session.engine.row_locks.holder(session.activity.process)))
        }
        false => None,
    };
    if let Some(holder) = holder {
        execution.decision().wait_for_rows(|| StatementLocks::new(holder));
    }
}

/// Returns true if a statement has changed nothing and has to run again, once it may.
///
/// # Errors
/// `LockTimeout`.
pub(super) async fn again(session: &SqlSession, execution: &Execution<'_>) -> Result<bool> {
    let Some(locks) = execution.decision().locks() else { return Ok(false) };
    match locks.repeat() {
        None => {
            // A statement that gives way to the long path locks its rows there.
            if !session.transaction.is_open() {
                locks.holder.release();
            }
            return Ok(false);
        }
        Some(Repeat::Now) => return Ok(locks.count_outdated() < OUTDATED_RUNS_MAX),
        Some(Repeat::After(wait)) => granted(session, wait).await?,
    }
    Ok(true)
}

/// Waits for a row.
///
/// # Errors
/// `LockTimeout`.
pub(super) async fn granted(session: &SqlSession, wait: Wait) -> Result<()> {
    if let Some(timeout) = session.options.lock().lock_timeout {
        let (deadline, waiting) = (Instant::now() + timeout, wait.timeout());
        session.engine.timers.schedule(Instant::now() + timeout.min(TIMER_INTERVAL), move || {
            let left = deadline.saturating_duration_since(Instant::now());
            waiting.expire(left.is_zero()).then(|| left.min(TIMER_INTERVAL))
        });
    }
    wait.granted().await
}
