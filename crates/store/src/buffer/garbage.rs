//! Garbage collection in memory trees: removes messages that no snapshot can see. (Trees on disk drop such messages
//! when they merge.)
//!
//! A reader with sequence number s takes the newest message of a key with a number of at most s. A message is therefore
//! *needed* if a live or future snapshot has a number s with `message <= s < next newer message`, or if the next newer
//! message is an upsert. All other messages are removed from the chain. A delete at the bottom of a chain has no effect
//! and is removed at once; if it is the only message, its key leaves the map.
//!
//! **Correctness for concurrent readers.** A reader must not find an old row after the delete above it was removed. A
//! reader reads the word of a key once and follows the chain from there. Removed messages, with their links, stay in
//! memory until all guards are released that existed at the removal. There are two cases:
//! - The reader has read a word from which the delete is reachable. It stops at the delete, or continues to older messages
//!   that its own number needs; needed messages are never removed.
//! - The word was removed from the map before the read. The reader then finds no word, or a newer one, and no path to an
//!   older message.
//!
//! The direction of a walk does not matter, because each key is one entry of the map.
//!
//! **Work.** A key with more than one message is *dirty* and stands in exactly one of two queues. It is in `fresh`
//! until its newest message is visible to all future snapshots. It is in `held` if a live snapshot needed one of its
//! older messages, until all snapshots that were live at the time are gone. Each commit processes slightly more keys
//! than it made dirty, and prunes the keys that it wrote and that were dirty already. The background thread processes
//! the remaining keys. A key thus has at most one message for each live snapshot, plus two.
//!
//! *Invariant.* All changes happen under the commit lock.

use std::collections::VecDeque;

use keyaki_masstree::{Guard, Masstree, pin};

use crate::base::{Live, Prior};
use crate::buffer::{MessageChain, MessageChainRef, RootBuffer, resolve};
use crate::message::{MessageBytes, Upserts};

/// The dirty keys of a buffer, each with the sequence number at which it becomes due.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Due when all future snapshots see this number.
    fresh: VecDeque<(u64, Box<[u8]>)>,
    /// Due when all live snapshots have at least this number.
    held: VecDeque<(u64, Box<[u8]>)>,
}

impl Dirty {
    /// Removes and returns the next due key.
    fn next(&mut self, live: &Live) -> Option<Box<[u8]>> {
        let due = |queue: &mut VecDeque<(u64, Box<[u8]>)>, number| {
            queue.pop_front_if(|(sequence, _)| *sequence <= number).map(|(_, key)| key)
        };
        due(&mut self.fresh, live.visible()).or_else(|| due(&mut self.held, live.oldest()))
    }
}

impl RootBuffer {
    /// Adds a message, at least as new as the existing messages of the key, to the buffer of a memory tree. An upsert
    /// is applied at once, because the buffer holds the whole tree. If the upsert function fails, the upsert stays in
    /// the chain, and reads of the key return its error. Returns the change of the number of rows; `None` if such an upsert
    /// makes it unknown.
    pub fn insert_in_memory(
        &self,
        key: &[u8],
        sequence: u64,
        message: MessageBytes<'_>,
        live: &Live,
        functions: Upserts<'_>,
    ) -> Option<i64> {
        let guard = pin();
        let map = self.map_or_new();
        let applied;
        let mut message = message;
        if let MessageBytes::Upsert { function, operand } = message {
            let old = map.get(key, &guard).map_or(Ok(None), |old| resolve(old, functions));
            let new = old.and_then(|old| functions.apply(function, old.as_deref(), operand));
            match new {
                Ok(Some(value)) => {
                    applied = value;
                    message = MessageBytes::Insert(&applied);
                }
                Ok(None) => message = MessageBytes::Delete,
                Err(_) => {}
            }
        }
        let old = map.insert_with(
            key,
            |old| match (old, &message) {
                // A delete of a missing key has no effect.
                (None, MessageBytes::Delete) => None,
                (old, message) => {
                    Some(MessageChain::new(sequence, message, Prior::Unknown, old.map(MessageChainRef::to_owned)))
                }
            },
            &guard,
        );
        assert!(old.is_none_or(|old| old.sequence() <= sequence), "messages of a key come in the order of commits");
        let prior = match old.map(MessageChainRef::message) {
            None | Some(MessageBytes::Delete) => Prior::Absent,
            Some(MessageBytes::Insert(_)) => Prior::Present,
            Some(MessageBytes::Upsert { .. }) => Prior::Unknown,
        };
        let delta = message.delta(prior);
        if old.is_none() && message == MessageBytes::Delete {
            return delta;
        }
        self.add(1, MessageChain::heap_bytes_of(&message, old.is_some()), key.len() + message.len());
        self.add_net_rows(message.net_rows(old.map(MessageChainRef::message), prior));
        match old {
            None => {}
            Some(old) if old.older().is_none() => self.dirty.lock().fresh.push_back((sequence, key.into())),
            // The key is dirty already and stands in a queue.
            Some(old) => self.prune(key, old, live, &guard),
        }
        delta
    }

    /// Processes up to `keys` due keys. Returns false if no due key remains.
    pub fn collect_garbage(&self, keys: usize, live: &Live) -> bool {
        let Some(map) = self.map() else { return false };
        let mut dirty = self.dirty.lock();
        // If no snapshot is older than the visible sequence number, only a failing upsert keeps a key dirty. The key is
        // then not due before the next commit.
        let again = live.visible() + u64::from(live.oldest() == live.visible());
        for _ in 0..keys {
            let Some(key) = dirty.next(live) else { return false };
            match self.clean(map, &key, live) {
                Some(newest) if newest > live.visible() => dirty.fresh.push_back((newest, key)),
                Some(_) => dirty.held.push_back((again, key)),
                None => {}
            }
        }
        true
    }

    /// Number of dirty keys: not processed yet, and waiting for the end of snapshots.
    pub fn dirty_keys(&self) -> (usize, usize) {
        let dirty = self.dirty.lock();
        (dirty.fresh.len(), dirty.held.len())
    }

    /// Removes the messages of a key that no snapshot can see. Returns the sequence number of the newest message if the
    /// key is still dirty.
    fn clean(&self, map: &Masstree<MessageChain>, key: &[u8], live: &Live) -> Option<u64> {
        let guard = pin();
        let newest = map.get(key, &guard)?;
        self.prune(key, newest, live, &guard);
        if newest.older().is_some() {
            return Some(newest.sequence());
        }
        // A lone delete is removed with its key. A lone insert without value bytes moves from the heap into the word.
        let (message, bytes) = (newest.message(), newest.heap_bytes());
        let gone = message == MessageBytes::Delete;
        if gone || MessageChain::heap_bytes_of(&message, false) < bytes {
            let alone = (!gone).then(|| MessageChain::new(newest.sequence(), &message, Prior::Unknown, None));
            // Cannot fail: under the commit lock, no other thread changes the key.
            let _ = map.compare_exchange(key, |now| now.is_some_and(|now| now.is_same(newest)), alone, &guard);
            let (gone, content) = if gone { (1, key.len()) } else { (0, 0) };
            self.subtract(gone, bytes, content);
        }
        None
    }

    /// Removes the messages below `top` that no snapshot can see.
    fn prune(&self, key: &[u8], top: MessageChainRef<'_>, live: &Live, guard: &Guard) {
        let (mut upper, mut count, mut heap, mut content) = (top, 0, 0, 0);
        while let Some(lower) = upper.older() {
            let (message, below) = (lower.message(), lower.older());
            let is_hidden = !matches!(upper.message(), MessageBytes::Upsert { .. })
                && !live.asks_between(lower.sequence(), upper.sequence());
            if is_hidden || (message == MessageBytes::Delete && below.is_none()) {
                count += 1;
                heap += lower.heap_bytes();
                content += key.len() + message.len();
                upper.replace_older(below.map(MessageChainRef::to_owned), guard);
            } else {
                upper = lower;
            }
        }
        if count > 0 {
            self.subtract(count, heap, content);
        }
    }
}
