//! LISTEN, UNLISTEN, NOTIFY, `pg_notify` and `pg_listening_channels`.
//!
//! As in PostgreSQL, these take effect when their transaction commits, and not at all if it is rolled back: the session keeps
//! them until then. Messages that are equal to earlier ones of the same transaction are left out. A session that listens
//! receives its own messages, too.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::sqlparser::ast::Ident;
use futures::StreamExt;
use parking_lot::Mutex;

use super::names::plain_ident;
use super::{Outcome, SqlSession};
use crate::engine::Engine;
use crate::engine::notifications::{Inbox, Notification};
use crate::engine::sessions::Activity;
use crate::{Error, Result};

/// Maximum length of the name of a channel.
const CHANNEL_BYTES_MAX: usize = 63;
/// Payloads are shorter than this.
const PAYLOAD_BYTES: usize = 8000;
/// Maximum bytes of the payloads and channels of one transaction.
const PENDING_BYTES_MAX: usize = 16 << 20;
/// Maximum number of channels of a session.
const CHANNELS_MAX: usize = 10_000;

/// The channels of a session, and what its transaction will do to them.
#[derive(Debug)]
pub(crate) struct Channels {
    engine: Arc<Engine>,
    process: i32,
    pub inbox: Arc<Inbox>,
    listening: Mutex<BTreeSet<String>>,
    pending: Mutex<Pending>,
    /// `pending` may have actions.
    has_pending: AtomicBool,
}

/// The actions of a transaction, in their order.
#[derive(Debug, Default)]
struct Pending {
    actions: Vec<Action>,
    /// The messages in `actions`.
    messages: HashSet<(Arc<str>, Arc<str>)>,
    bytes: usize,
    /// The names of the transaction's savepoints, with the number of actions at each.
    savepoints: Vec<(String, usize)>,
}

#[derive(Debug)]
enum Action {
    Listen(String),
    Unlisten(String),
    UnlistenAll,
    Notify(Arc<str>, Arc<str>),
}

impl Pending {
    /// Adds a message, unless there is an equal one.
    ///
    /// # Errors
    /// `InvalidParameter` for an invalid channel or a long payload; `LimitExceeded`.
    fn notify(&mut self, channel: &str, payload: &str) -> Result<()> {
        let channel = checked(channel.into())?;
        if payload.len() >= PAYLOAD_BYTES {
            let value = payload.chars().take(CHANNEL_BYTES_MAX).collect();
            let expected = format!("fewer than {PAYLOAD_BYTES} bytes");
            return Err(Error::InvalidParameter { name: "payload".into(), value, expected });
        }
        let message: (Arc<str>, Arc<str>) = (channel.into(), payload.into());
        if self.messages.contains(&message) {
            return Ok(());
        }
        let bytes = self.bytes + message_bytes(&message.0, &message.1);
        if bytes > PENDING_BYTES_MAX {
            return Err(Error::LimitExceeded("too many notifications in one transaction".into()));
        }
        self.bytes = bytes;
        self.messages.insert(message.clone());
        self.actions.push(Action::Notify(message.0, message.1));
        Ok(())
    }
}

/// The messages of a query outside of a transaction, which is evaluated after its statement.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Mutex<Pending>);

impl Outbox {
    /// As [`Channels::notify`].
    ///
    /// # Errors
    /// As [`Channels::notify`].
    pub fn notify(&self, channel: &str, payload: &str) -> Result<()> {
        self.0.lock().notify(channel, payload)
    }
}

/// Bytes of a message in the lists of a session.
fn message_bytes(channel: &str, payload: &str) -> usize {
    /// Of the entries, and of the allocations of the texts.
    const OVERHEAD: usize = 160;
    OVERHEAD + channel.len() + payload.len()
}

/// A channel name that is neither empty nor too long.
fn checked(channel: String) -> Result<String> {
    match channel.len() {
        1..=CHANNEL_BYTES_MAX => Ok(channel),
        _ => {
            let value = channel.chars().take(CHANNEL_BYTES_MAX).collect();
            let expected = format!("1 to {CHANNEL_BYTES_MAX} bytes");
            Err(Error::InvalidParameter { name: "channel".into(), value, expected })
        }
    }
}

impl Channels {
    pub fn new(engine: Arc<Engine>, activity: Arc<Activity>) -> Channels {
        Channels {
            engine,
            process: activity.process,
            inbox: Arc::new(Inbox::new(activity)),
            listening: Mutex::default(),
            pending: Mutex::default(),
            has_pending: AtomicBool::new(false),
        }
    }

    /// The channels that the session listens to.
    pub fn listening(&self) -> Vec<String> {
        self.listening.lock().iter().cloned().collect()
    }

    /// Adds an action other than a message.
    ///
    /// # Errors
    /// `LimitExceeded`.
    fn add(&self, action: Action) -> Result<()> {
        let mut pending = self.pending.lock();
        let begun = || pending.actions.iter().filter(|action| matches!(action, Action::Listen(_))).count();
        if matches!(action, Action::Listen(_)) && self.listening.lock().len() + begun() >= CHANNELS_MAX {
            return Err(Error::LimitExceeded(format!("a session listens to at most {CHANNELS_MAX} channels")));
        }
        pending.actions.push(action);
        self.has_pending.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Adds a message, unless the transaction has an equal one.
    ///
    /// # Errors
    /// `InvalidParameter` for an invalid channel or a long payload; `LimitExceeded`.
    pub fn notify(&self, channel: &str, payload: &str) -> Result<()> {
        self.pending.lock().notify(channel, payload)?;
        self.has_pending.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Adds a savepoint.
    pub fn save(&self, name: &str) {
        let mut pending = self.pending.lock();
        let count = pending.actions.len();
        pending.savepoints.push((name.into(), count));
        self.has_pending.store(true, Ordering::Relaxed);
    }

    /// Removes the newest savepoint with a name, and later ones.
    pub fn release(&self, name: &str) {
        let mut pending = self.pending.lock();
        if let Some(place) = pending.savepoints.iter().rposition(|(known, _)| known == name) {
            pending.savepoints.truncate(place);
        }
    }

    /// Forgets the actions since the newest savepoint with a name, and removes later savepoints.
    pub fn roll_back_to(&self, name: &str) {
        let mut guard = self.pending.lock();
        let pending = &mut *guard;
        let Some(place) = pending.savepoints.iter().rposition(|(known, _)| known == name) else { return };
        pending.savepoints.truncate(place + 1);
        for action in pending.actions.drain(pending.savepoints[place].1..) {
            if let Action::Notify(channel, payload) = action {
                pending.bytes -= message_bytes(&channel, &payload);
                pending.messages.remove(&(channel, payload));
            }
        }
    }

    /// Forgets the actions of a transaction that is rolled back.
    pub fn discard(&self) {
        if self.has_pending.swap(false, Ordering::Relaxed) {
            *self.pending.lock() = Pending::default();
        }
    }

    /// Performs the actions of a transaction that was committed. The session hears its own messages if it begins to listen in
    /// the same transaction, also after them.
    pub fn publish(&self) {
        if !self.has_pending.swap(false, Ordering::Relaxed) {
            return;
        }
        let pending = std::mem::take(&mut *self.pending.lock());
        self.perform(pending);
    }

    fn perform(&self, Pending { actions, .. }: Pending) {
        let mut messages = Vec::new();
        for action in actions {
            match action {
                Action::Listen(channel) => {
                    self.engine.notifications.listen(&channel, &self.inbox);
                    self.listening.lock().insert(channel);
                }
                Action::Unlisten(channel) => {
                    self.engine.notifications.unlisten(&channel, &self.inbox);
                    self.listening.lock().remove(&channel);
                }
                Action::UnlistenAll => self.unlisten_all(),
                Action::Notify(channel, payload) => {
                    messages.push(Notification { process: self.process, channel, payload });
                }
            }
        }
        if !messages.is_empty() {
            self.engine.notifications.publish(&messages);
        }
    }

    /// Listens to no channel any more.
    pub fn unlisten_all(&self) {
        let channels = std::mem::take(&mut *self.listening.lock());
        channels.iter().for_each(|channel| self.engine.notifications.unlisten(channel, &self.inbox));
    }
}

/// LISTEN.
///
/// # Errors
/// `InvalidParameter`, `LimitExceeded`.
pub(super) fn listen(session: &SqlSession, channel: &Ident) -> Result<Outcome> {
    session.channels.add(Action::Listen(checked(plain_ident(channel))?))?;
    Ok(Outcome::done("LISTEN"))
}

/// UNLISTEN of a channel, or of all.
///
/// # Errors
/// `LimitExceeded`.
pub(super) fn unlisten(session: &SqlSession, channel: &Ident) -> Result<Outcome> {
    let channels = &session.channels;
    match channel.quote_style.is_none() && channel.value == "*" {
        true if !session.transaction.is_open() => channels.unlisten_all(),
        true => channels.add(Action::UnlistenAll)?,
        false => channels.add(Action::Unlisten(plain_ident(channel)))?,
    }
    Ok(Outcome::done("UNLISTEN"))
}

/// NOTIFY.
///
/// # Errors
/// As [`Channels::notify`].
pub(super) fn notify(session: &SqlSession, channel: &Ident, payload: Option<&str>) -> Result<Outcome> {
    session.channels.notify(&plain_ident(channel), payload.unwrap_or_default())?;
    Ok(Outcome::done("NOTIFY"))
}

/// Performs what a statement outside of a transaction has done, or forgets it after an error. The transactions of several
/// statements do this when they end.
pub(crate) fn end_statement(session: &SqlSession, has_succeeded: bool) {
    if !session.channels.has_pending.load(Ordering::Relaxed) || session.transaction.is_open() {
        return;
    }
    match has_succeeded {
        true => session.channels.publish(),
        false => session.channels.discard(),
    }
}

/// Passes on the rows of a query outside of a transaction, and sends the messages of its functions after the last row. The messages of a
/// query that fails or is not read to its end are not sent.
pub(super) fn watched(
    session: &SqlSession,
    outbox: Arc<Outbox>,
    rows: SendableRecordBatchStream,
) -> SendableRecordBatchStream {
    let (schema, channels) = (rows.schema(), session.channels.clone());
    let rows = futures::stream::unfold((rows, Some(outbox)), move |(mut rows, outbox)| {
        let channels = channels.clone();
        async move {
            match rows.next().await {
                Some(Ok(batch)) => Some((Ok(batch), (rows, outbox))),
                Some(Err(error)) => Some((Err(error), (rows, None))),
                None => {
                    let pending = outbox.map(|outbox| std::mem::take(&mut *outbox.0.lock()));
                    channels.perform(pending.unwrap_or_default());
                    None
                }
            }
        }
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows.fuse()))
}
