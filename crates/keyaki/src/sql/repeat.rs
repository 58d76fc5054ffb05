//! Statements that wait for rows, and run again ([`crate::engine::transaction`]).

use std::sync::Arc;
use std::time::Instant;

use super::SqlSession;
use crate::Result;
use crate::base::interrupt::Execution;
use crate::base::options::{Isolation, Switch};
use crate::base::row_locks::{Repeat, StatementLocks};

/// Makes a statement that changes rows wait for those that other transactions have changed, at the level read committed.
/// The caller runs the statement until [`again`] returns false.
pub(super) fn begin(session: &SqlSession, execution: &Execution<'_>) {
    let holder = match session.transaction.is_open() {
        _ if session.options.lock().row_locks == Switch::Off => None,
        true => session.transaction.waiting_holder(),
        false if session.characteristics().isolation == Isolation::ReadCommitted => {
            Some(Arc::new(session.engine.row_locks.holder()))
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
    let Some(repeat) = execution.decision().locks().and_then(StatementLocks::repeat) else { return Ok(false) };
    if let Repeat::After(wait) = repeat {
        if let Some(timeout) = session.options.lock().lock_timeout {
            let timeout_of_wait = wait.timeout();
            session.engine.timers.schedule(Instant::now() + timeout, move || {
                timeout_of_wait.expire();
                None
            });
        }
        wait.granted().await?;
    }
    Ok(true)
}
