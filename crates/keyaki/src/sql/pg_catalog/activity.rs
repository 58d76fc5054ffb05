//! The view `pg_stat_activity`, and functions that cancel the statements of other sessions and end sessions.
//!
//! Statements, states and addresses of sessions are visible to their roles, to superusers and to members of `pg_read_all_stats`
//! and `pg_monitor`. Sessions without a role, for example those of the program that has opened the database, count as sessions
//! of superusers.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::{Handle, RuntimeFlavor};

use super::objects::{DATABASE, OWNER, OWNER_NAME, Source};
use super::shapes::{Rows, Value};
use crate::catalog::{Authority, Catalog, MONITOR, READ_ALL_STATS, SIGNAL_BACKEND};
use crate::engine::CATALOG_NAME;
use crate::engine::sessions::{Activity, Owner};
use crate::{Error, Result};

/// The text of a statement of another role.
const HIDDEN: &str = "<insufficient privilege>";
/// Interval at which `pg_terminate_backend` looks whether a session has ended.
const WAIT: Duration = Duration::from_millis(5);

/// Microseconds since 1970.
pub(super) fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Adds the rows of `pg_stat_activity`.
pub(super) fn add(source: &Source, rows: &mut Rows) {
    let waiting = source.engine.row_locks.waiting();
    for activity in source.engine.sessions.list() {
        let (owner, current) = (activity.owner(), activity.current());
        let is_visible = sees(source, &owner);
        let role = owner.role.as_ref().map_or(OWNER_NAME, |(name, _)| name);
        let shown = |value: Value| if is_visible { value } else { Value::Null };
        let text = match is_visible {
            true => current.text.as_deref().unwrap_or_default(),
            false => HIDDEN,
        };
        let waits = |client: &str, row: &str| {
            let waits =
                if current.is_active() { waiting.contains(&activity.process).then_some(row) } else { Some(client) };
            shown(waits.into())
        };
        rows.add(&[
            ("datid", DATABASE.into()),
            ("datname", CATALOG_NAME.into()),
            ("pid", activity.process.into()),
            ("leader_pid", Value::Null),
            ("usesysid", owner.role.as_ref().map_or(OWNER, |(name, _)| source.objects().role(name)).into()),
            ("usename", role.into()),
            ("application_name", (*owner.application).into()),
            ("client_addr", shown(owner.address.map(|address| address.ip().to_string()).into())),
            ("client_port", shown(owner.address.map(|address| i32::from(address.port())).into())),
            ("backend_start", shown(micros(activity.begun_at).into())),
            ("xact_start", shown(current.transaction_start.map(micros).into())),
            ("query_start", shown(current.statement_start.map(micros).into())),
            ("state_change", shown(micros(current.changed_at).into())),
            ("wait_event_type", waits("Client", "Lock")),
            ("wait_event", waits("ClientRead", "tuple")),
            ("state", shown(current.state().into())),
            ("backend_xid", Value::Null),
            ("backend_xmin", Value::Null),
            ("query_id", Value::Null),
            ("query", text.into()),
            ("backend_type", "client backend".into()),
        ]);
    }
}

/// True if the authority is that of the role of a session.
fn is_role(authority: &Authority, catalog: &Catalog, owner: &Owner) -> bool {
    let role = owner.role.as_ref();
    // A role that was dropped or renamed is another one than the role with its name.
    let known = role.filter(|(name, id)| catalog.roles.get(&**name).is_some_and(|role| role.id == *id));
    known.is_some_and(|(name, _)| authority.is_member_of(name))
}

/// True if the statement may see what a session does.
fn sees(source: &Source, owner: &Owner) -> bool {
    let check = |authority: &Authority, catalog: &Catalog| {
        let is_monitor = [READ_ALL_STATS, MONITOR].iter().any(|role| authority.is_member_of(role));
        match is_monitor || is_role(authority, catalog, owner) {
            true => Ok(()),
            false => Err(Error::InsufficientPrivilege(HIDDEN.into())),
        }
    };
    source.permit(check).is_ok()
}

/// The session with a number, to which the statement may send a signal; `None` if there is none. `action`: what the signal does
/// to the session.
///
/// # Errors
/// `InsufficientPrivilege`.
fn signalled(source: &Source, process: i64, action: &str) -> Result<Option<Arc<Activity>>> {
    let found = i32::try_from(process).ok().and_then(|process| source.engine.sessions.find(process));
    let Some(activity) = found else { return Ok(None) };
    let owner = activity.owner();
    source.permit(|authority, catalog| {
        if authority.is_all() {
            return Ok(());
        }
        let role = owner.role.as_ref().and_then(|(name, id)| catalog.roles.get(&**name).filter(|role| role.id == *id));
        let problem = match role {
            Some(role) if !role.superuser => {
                if is_role(authority, catalog, &owner) || authority.is_member_of(SIGNAL_BACKEND) {
                    return Ok(());
                }
                format!("must be a member of the role whose session is {action}, or of pg_signal_backend")
            }
            _ => format!("must be superuser, because the session that is {action} is one of a superuser"),
        };
        Err(Error::InsufficientPrivilege(problem))
    })?;
    Ok(Some(activity))
}

/// `pg_cancel_backend`: false if there is no such session.
///
/// # Errors
/// `InsufficientPrivilege`.
pub(super) fn cancel(source: &Source, process: i64) -> Result<Value> {
    let found = signalled(source, process, "canceled")?;
    if let Some(activity) = &found {
        activity.cancel();
    }
    Ok(found.is_some().into())
}

/// `pg_terminate_backend`: false if there is no such session, or if it does not end within `timeout` milliseconds. 0: the
/// function does not wait.
///
/// # Errors
/// `InsufficientPrivilege`; `OutOfRange` for a negative timeout; `Cancelled` if the waiting session is interrupted or terminated.
pub(super) fn terminate(source: &Source, process: i64, timeout: i64) -> Result<Value> {
    let timeout = u64::try_from(timeout);
    let timeout = timeout.map_err(|_| Error::Evaluation("\"timeout\" must not be negative".into()))?;
    let started = source.activity.interrupts_so_far();
    let Some(activity) = signalled(source, process, "terminated")? else { return Ok(false.into()) };
    activity.terminate();
    if timeout == 0 || activity.process == source.activity.process {
        return Ok(true.into());
    }
    let wait = || {
        let end = Instant::now().checked_add(Duration::from_millis(timeout));
        let is_open =
            || source.engine.sessions.find(activity.process).is_some_and(|found| Arc::ptr_eq(&found, &activity));
        while is_open() {
            if source.activity.is_interrupted(started) {
                return Err(Error::Cancelled);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(false);
            }
            std::thread::sleep(WAIT);
        }
        Ok(true)
    };
    // The session may need this thread to end, unless the runtime has others.
    let has_ended = match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait)?,
        _ => true,
    };
    Ok(has_ended.into())
}
