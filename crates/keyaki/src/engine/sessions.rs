//! The sessions of a database and their current statements: the rows of `pg_stat_activity`.
//!
//! Each session has an [`Activity`]. Only its own statements write it. Its mutex is contended only while a statement reads
//! `pg_stat_activity`. The registry is locked when a session begins or ends, and by readers.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use super::transaction::TransactionStatus;
use crate::base::interrupt::{Interrupts, Started};
use crate::{Error, Result};

/// Bytes of a statement that are shown, at most.
const TEXT_BYTES_MAX: usize = 1024;
/// The text of a statement that may contain a password.
const SECRET: &str = "<not shown: it may contain a password>";

/// Requests to the owner of a session, for example the connection of a server ([`Session::attach`](crate::Session::attach)).
pub trait SessionControl: Debug + Send + Sync {
    /// The running statement is being cancelled. The statements of the session are interrupted afterwards.
    fn cancel(&self);

    /// A notification has arrived that the session has not taken yet.
    fn notify(&self) {}

    /// The session is being terminated: its statements fail from now on. The running one is interrupted afterwards.
    fn terminate(&self);
}

/// All sessions of a database.
#[derive(Debug)]
pub(crate) struct Sessions {
    last: AtomicU32,
    known: Mutex<BTreeMap<i32, Arc<Activity>>>,
    /// When the database was opened.
    pub opened_at: SystemTime,
}

impl Default for Sessions {
    fn default() -> Self {
        Sessions { last: AtomicU32::new(0), known: Mutex::default(), opened_at: SystemTime::now() }
    }
}

impl Sessions {
    /// The activity of a new session, which is not listed yet.
    pub fn new_activity(&self, interrupts: Arc<Interrupts>) -> Arc<Activity> {
        let process = loop {
            let next = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & i32::MAX.unsigned_abs();
            if next != 0 {
                break next as i32;
            }
        };
        let now = SystemTime::now();
        Arc::new(Activity {
            process,
            begun_at: now,
            is_terminated: AtomicBool::new(false),
            current: Mutex::new(Current {
                running: 0,
                text: None,
                statement_start: None,
                transaction_start: None,
                changed_at: now,
                transaction: TransactionStatus::Idle,
            }),
            owner: Mutex::default(),
            interrupts,
        })
    }

    /// Lists a session until [`Sessions::remove`].
    pub fn add(&self, activity: &Arc<Activity>) {
        self.known.lock().insert(activity.process, activity.clone());
    }

    pub fn remove(&self, activity: &Arc<Activity>) {
        let mut known = self.known.lock();
        if known.get(&activity.process).is_some_and(|of| Arc::ptr_eq(of, activity)) {
            known.remove(&activity.process);
        }
    }

    /// All sessions, by their numbers.
    pub fn list(&self) -> Vec<Arc<Activity>> {
        self.known.lock().values().cloned().collect()
    }

    /// The session with a number.
    pub fn find(&self, process: i32) -> Option<Arc<Activity>> {
        self.known.lock().get(&process).cloned()
    }
}

/// What one session does.
// A cache line of its own: sessions on other processors do not share it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Activity {
    /// The number of the session.
    pub process: i32,
    is_terminated: AtomicBool,
    current: Mutex<Current>,
    interrupts: Arc<Interrupts>,
    pub begun_at: SystemTime,
    owner: Mutex<Owner>,
}

/// The current statement of a session, or the last one.
#[derive(Debug, Clone)]
pub(crate) struct Current {
    /// Number of running statements and open results.
    running: u32,
    pub text: Option<Arc<str>>,
    pub statement_start: Option<SystemTime>,
    pub transaction_start: Option<SystemTime>,
    pub changed_at: SystemTime,
    transaction: TransactionStatus,
}

impl Current {
    /// PostgreSQL's name of the state.
    pub fn state(&self) -> &'static str {
        match (self.running, self.transaction) {
            (1.., _) => "active",
            (0, TransactionStatus::Idle) => "idle",
            (0, TransactionStatus::Open) => "idle in transaction",
            (0, TransactionStatus::Failed) => "idle in transaction (aborted)",
        }
    }

    pub fn is_active(&self) -> bool {
        self.running > 0
    }
}

/// Who uses a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owner {
    /// The name and identifier of the role that has logged in; `None` for a session without a role.
    pub role: Option<(Arc<str>, u64)>,
    pub application: Arc<str>,
    /// The address of the client of a server; `None` for Unix sockets and sessions of this program.
    pub address: Option<SocketAddr>,
    control: Option<Arc<dyn SessionControl>>,
}

impl Activity {
    /// Notes the start of a statement.
    ///
    /// # Errors
    /// `Terminated` after [`Activity::terminate`].
    pub fn begin(&self, text: Arc<str>) -> Result<()> {
        if self.is_terminated.load(Ordering::Relaxed) {
            return Err(Error::Terminated);
        }
        let now = SystemTime::now();
        let mut current = self.current.lock();
        if current.running == 0 && current.transaction == TransactionStatus::Idle {
            current.transaction_start = Some(now);
        }
        current.running += 1;
        current.text = Some(text);
        current.statement_start = Some(now);
        current.changed_at = now;
        Ok(())
    }

    /// Notes that the result of a statement is being read after [`Activity::end`].
    pub fn read(&self) {
        self.current.lock().running += 1;
    }

    /// Notes the end of a statement, or of its result. `transaction`: the state of the transaction then; `None` if the
    /// statement has not changed it.
    pub fn end(&self, transaction: Option<TransactionStatus>) {
        let now = SystemTime::now();
        let mut current = self.current.lock();
        current.running = current.running.saturating_sub(1);
        current.transaction = transaction.unwrap_or(current.transaction);
        if current.running == 0 {
            current.changed_at = now;
            if current.transaction == TransactionStatus::Idle {
                current.transaction_start = None;
            }
        }
    }

    /// Notes that the open transaction has failed outside of a statement.
    pub fn fail(&self, transaction: TransactionStatus) {
        self.current.lock().transaction = transaction;
    }

    pub fn current(&self) -> Current {
        self.current.lock().clone()
    }

    pub fn owner(&self) -> Owner {
        self.owner.lock().clone()
    }

    /// Notes the role that has logged in: its name and identifier.
    pub fn set_role(&self, role: Option<(Arc<str>, u64)>) {
        self.owner.lock().role = role;
    }

    pub fn set_application(&self, name: &str) {
        self.owner.lock().application = name.into();
    }

    /// Notes the client of a server.
    pub fn attach(&self, address: Option<SocketAddr>, control: Arc<dyn SessionControl>) {
        let mut owner = self.owner.lock();
        (owner.address, owner.control) = (address, Some(control));
    }

    /// Tells the owner that a notification has arrived.
    pub fn notify(&self) {
        let control = self.owner.lock().control.clone();
        if let Some(control) = control {
            control.notify();
        }
    }

    /// The interrupts of the session until now.
    pub fn interrupts_so_far(&self) -> Started {
        self.interrupts.start()
    }

    /// True if the session was interrupted since then, or terminated.
    pub fn is_interrupted(&self, since: Started) -> bool {
        self.is_terminated.load(Ordering::Relaxed) || self.interrupts.since(since)
    }

    /// Cancels the running statements.
    pub fn cancel(&self) {
        let control = self.owner.lock().control.clone();
        if let Some(control) = control {
            control.cancel();
        }
        self.interrupts.raise();
    }

    /// Ends the session: the running statements are cancelled, and further ones fail.
    pub fn terminate(&self) {
        self.is_terminated.store(true, Ordering::Relaxed);
        let control = self.owner.lock().control.clone();
        if let Some(control) = control {
            control.terminate();
        }
        self.interrupts.raise();
    }
}

/// The beginning of a statement as it is shown. The texts of statements that may contain a password are not.
pub(crate) fn shown(text: &str) -> Arc<str> {
    const WORD: &[u8] = b"password";
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    let is_word = |bytes: &[u8]| bytes[0] | 0x20 == WORD[0] && bytes.eq_ignore_ascii_case(WORD);
    match text.as_bytes().windows(WORD.len()).any(is_word) {
        true => SECRET.into(),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Requests(Mutex<Vec<&'static str>>);

    impl SessionControl for Requests {
        fn cancel(&self) {
            self.0.lock().push("cancel");
        }

        fn terminate(&self) {
            self.0.lock().push("terminate");
        }
    }

    #[test]
    fn states_follow_statements_and_transactions() {
        let sessions = Sessions::default();
        let activity = sessions.new_activity(Arc::default());
        sessions.add(&activity);
        let state = || sessions.find(activity.process).unwrap().current().state();
        assert_eq!(state(), "idle");
        activity.begin("BEGIN".into()).unwrap();
        assert_eq!(state(), "active");
        activity.end(Some(TransactionStatus::Open));
        let begun = activity.current().transaction_start;
        assert!(begun.is_some());
        assert_eq!(state(), "idle in transaction");
        activity.begin("SELECT 1".into()).unwrap();
        activity.read();
        activity.end(Some(TransactionStatus::Open));
        assert_eq!(state(), "active");
        activity.end(None);
        assert_eq!((state(), activity.current().transaction_start), ("idle in transaction", begun));
        activity.fail(TransactionStatus::Failed);
        assert_eq!(state(), "idle in transaction (aborted)");
        activity.begin("ROLLBACK".into()).unwrap();
        activity.end(Some(TransactionStatus::Idle));
        assert_eq!((state(), activity.current().transaction_start), ("idle", None));
        assert_eq!(activity.current().text.as_deref(), Some("ROLLBACK"));
        sessions.remove(&activity);
        assert!(sessions.list().is_empty());
    }

    #[test]
    fn requests_reach_the_owner_and_the_statements() {
        let (interrupts, requests) = (Arc::new(Interrupts::default()), Arc::new(Requests::default()));
        let started = interrupts.start();
        let activity = Sessions::default().new_activity(interrupts.clone());
        activity.attach(None, requests.clone());
        activity.cancel();
        assert!(interrupts.since(started) && activity.begin("SELECT 1".into()).is_ok());
        activity.terminate();
        assert_eq!(*requests.0.lock(), ["cancel", "terminate"]);
        assert!(matches!(activity.begin("SELECT 1".into()), Err(Error::Terminated)));
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(&*shown("SELECT 1"), "SELECT 1");
        assert_eq!(&*shown("ALTER ROLE a PassWord 'secret'"), SECRET);
        assert_eq!(shown(&"ß".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
    }
}
