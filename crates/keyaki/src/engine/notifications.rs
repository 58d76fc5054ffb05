//! Notifications: messages from committed transactions to the sessions that listen to a channel.
//!
//! Each listening session has an [`Inbox`]. [`Notifications::publish`] appends the messages of a transaction to the inboxes of
//! all listeners under one lock, so that all listeners receive them in the same order, and wakes the owners of the sessions
//! afterwards. An inbox is bounded: if its session does not read it, it overflows, and the session learns that messages are
//! missing ([`Inbox::take`]).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::sessions::Activity;
use crate::{Error, Result};

/// Maximum number of messages in an inbox.
const MESSAGES_MAX: usize = 65_536;
/// Maximum bytes of the payloads and channels of the messages in an inbox.
const INBOX_BYTES_MAX: usize = 16 << 20;

/// A message to the sessions that listen to a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The number of the session that has sent it.
    pub process: i32,
    /// The channel.
    pub channel: Arc<str>,
    /// The message; empty without one.
    pub payload: Arc<str>,
}

impl Notification {
    fn bytes(&self) -> usize {
        self.channel.len() + self.payload.len()
    }
}

/// The messages that a session has not read yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    activity: Arc<Activity>,
    queue: Mutex<Queue>,
    /// True if `queue` has messages or has lost some.
    has_any: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Notification>,
    bytes: usize,
    has_lost: bool,
}

impl Inbox {
    pub fn new(activity: Arc<Activity>) -> Inbox {
        Inbox { activity, queue: Mutex::default(), has_any: AtomicBool::new(false) }
    }

    fn put(&self, message: &Notification) {
        let mut queue = self.queue.lock();
        let bytes = message.bytes();
        match queue.messages.len() < MESSAGES_MAX && queue.bytes + bytes <= INBOX_BYTES_MAX {
            true => {
                queue.messages.push_back(message.clone());
                queue.bytes += bytes;
            }
            false => queue.has_lost = true,
        }
        self.has_any.store(true, Ordering::Release);
    }

    /// Removes and returns all messages, the oldest one first.
    ///
    /// # Errors
    /// `LimitExceeded` after messages were lost because the inbox was full. The messages before them are lost, too.
    pub fn take(&self) -> Result<Vec<Notification>> {
        if !self.has_any.swap(false, Ordering::Acquire) {
            return Ok(Vec::new());
        }
        let queue = std::mem::take(&mut *self.queue.lock());
        match queue.has_lost {
            true => Err(Error::LimitExceeded("too many notifications in the queue of the session".into())),
            false => Ok(queue.messages.into()),
        }
    }
}

/// The listeners of a channel, by the numbers of their sessions.
type Listeners = BTreeMap<i32, Arc<Inbox>>;

/// The channels of a database.
#[derive(Debug, Default)]
pub(crate) struct Notifications(Mutex<HashMap<String, Listeners>>);

impl Notifications {
    /// Adds a listener to a channel.
    pub fn listen(&self, channel: &str, inbox: &Arc<Inbox>) {
        let mut channels = self.0.lock();
        channels.entry(channel.into()).or_default().insert(inbox.activity.process, inbox.clone());
    }

    /// Removes a listener from a channel.
    pub fn unlisten(&self, channel: &str, inbox: &Arc<Inbox>) {
        let mut channels = self.0.lock();
        let Some(listeners) = channels.get_mut(channel) else { return };
        if listeners.get(&inbox.activity.process).is_some_and(|known| Arc::ptr_eq(known, inbox)) {
            listeners.remove(&inbox.activity.process);
        }
        if listeners.is_empty() {
            channels.remove(channel);
        }
    }

    /// Sends the messages of a transaction, in their order.
    pub fn publish(&self, messages: &[Notification]) {
        let mut reached = Listeners::new();
        {
            let channels = self.0.lock();
            for message in messages {
                for (process, inbox) in channels.get(&*message.channel).into_iter().flatten() {
                    inbox.put(message);
                    reached.entry(*process).or_insert_with(|| inbox.clone());
                }
            }
        }
        reached.values().for_each(|inbox| inbox.activity.notify());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sessions::Sessions;

    fn message(channel: &str, payload: &str) -> Notification {
        Notification { process: 1, channel: channel.into(), payload: payload.into() }
    }

    #[test]
    fn messages_reach_the_listeners_of_their_channel() {
        let (notifications, sessions) = (Notifications::default(), Sessions::default());
        let [a, b] = [(); 2].map(|()| Arc::new(Inbox::new(sessions.new_activity(Arc::default()))));
        notifications.listen("x", &a);
        notifications.listen("x", &b);
        notifications.listen("y", &b);
        notifications.publish(&[message("x", "1"), message("y", "2"), message("z", "3"), message("x", "4")]);
        assert_eq!(a.take().unwrap(), [message("x", "1"), message("x", "4")]);
        assert_eq!(b.take().unwrap(), [message("x", "1"), message("y", "2"), message("x", "4")]);
        assert!(a.take().unwrap().is_empty());
        notifications.unlisten("x", &b);
        notifications.unlisten("y", &b);
        notifications.publish(&[message("x", "5"), message("y", "6")]);
        assert_eq!((a.take().unwrap().len(), b.take().unwrap().len()), (1, 0));
        notifications.unlisten("x", &a);
        assert!(notifications.0.lock().is_empty());
    }

    #[test]
    fn a_full_inbox_loses_messages_and_reports_it() {
        let (notifications, sessions) = (Notifications::default(), Sessions::default());
        let inbox = Arc::new(Inbox::new(sessions.new_activity(Arc::default())));
        notifications.listen("x", &inbox);
        let long = "p".repeat(7000);
        let messages = vec![message("x", &long); INBOX_BYTES_MAX / long.len() + 1];
        notifications.publish(&messages);
        assert!(matches!(inbox.take(), Err(Error::LimitExceeded(_))));
        notifications.publish(&messages[..1]);
        assert_eq!(inbox.take().unwrap().len(), 1);
    }
}
