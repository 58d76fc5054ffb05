//! Collecting the messages of memory trees that nobody asks for any more. (Trees on disk get rid of theirs by merging.)
//!
//! A key's messages are chained, newest first, and a reader with number s takes the first one that is not above s. So a message
//! is *needed* if some s, of a live snapshot or one to come, lies between its number (included) and that of the message above
//! (excluded). Others are cut out of the chain. A delete with nothing below it says nothing, and goes at once, a whole key
//! with it.
//!
//! **Why no reader is misled.** A reader must not find an old row after the delete above it has gone. It looks at a key once: its walk
//! copies the word of the newest message, and the chain is followed from there. What was cut out below stays in memory,
//! with its own way down, as long as guards are held that were there before. So a reader finds on its way all messages that
//! it found needed there: either the word it has copied is the delete's, then it ends there or goes on to older messages that
//! its own number needs, which are never cut out; or the word was taken out of the map before, and there is no way to anything
//! older. Neither direction of a walk matters, since messages of one key are nowhere side by side in the map.
//!
//! **Work.** A key with more than one message is *dirty*, and stands in exactly one of two queues: `fresh`, until what has hidden
//! its older messages is visible to all snapshots to come; and `held`, if some live snapshot needed one of them nevertheless, until
//! all snapshots of that time are gone. Each commit looks at a few more keys than it made dirty, and at what lies deeper in those
//! that it wrote and that were dirty; the background thread looks at the rest. So a key has at most one message for each live
//! snapshot, and two more.
//!
//! All changes happen under the commit lock.

use std::collections::VecDeque;

use keyaki_masstree::{Guard, Masstree, pin};

use crate::base::{Live, UpsertFunctions};
use crate::buffer::{RootBuffer, Versions, VersionsRef, resolve};
use crate::message::MessageBytes;

/// The dirty keys of a buffer, with the number that must be visible to all, or asked for by nobody below it.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    fresh: VecDeque<(u64, Box<[u8]>)>,
    held: VecDeque<(u64, Box<[u8]>)>,
}

impl Dirty {
    /// The next key that is worth looking at.
    fn next(&mut self, live: &Live) -> Option<Box<[u8]>> {
        let due = |queue: &mut VecDeque<(u64, Box<[u8]>)>, number| {
            queue.pop_front_if(|(sequence, _)| *sequence <= number).map(|(_, key)| key)
        };
        due(&mut self.fresh, live.visible()).or_else(|| due(&mut self.held, live.oldest()))
    }
}

impl RootBuffer {
    /// Adds a message to a memory tree's buffer; it is newer than those that the key has. Upserts are applied at once, since
    /// all there is of the tree is here. (One whose function fails stays what it is, and whoever reads it is told.)
    pub fn insert_in_memory(
        &self,
        key: &[u8],
        sequence: u64,
        message: MessageBytes<'_>,
        live: &Live,
        functions: &UpsertFunctions,
    ) {
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
                // There is nothing to delete.
                (None, MessageBytes::Delete) => None,
                (old, message) => Some(Versions::new(sequence, message, old.map(VersionsRef::to_owned))),
            },
            &guard,
        );
        assert!(old.is_none_or(|old| old.sequence() <= sequence), "messages of a key come in the order of commits");
        if old.is_none() && message == MessageBytes::Delete {
            return;
        }
        self.add(1, Versions::bytes_of(&message, old.is_some()), key.len() + message.len());
        match old {
            None => {}
            Some(old) if old.older().is_none() => self.dirty.lock().fresh.push_back((sequence, key.into())),
            // The key stays dirty, and is in a queue.
            Some(old) => self.prune(key, old, live, &guard),
        }
    }

    /// Looks at up to `keys` dirty keys. False if there is nothing more to be done for now.
    pub fn collect(&self, keys: usize, live: &Live) -> bool {
        let Some(map) = self.map() else { return false };
        let mut dirty = self.dirty.lock();
        // What no snapshot holds is an upsert that fails: it is not worth another look before the next commit.
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

    /// Keys that have messages to be collected some time: those that were not looked at yet, and those that snapshots hold.
    pub fn dirty_keys(&self) -> (usize, usize) {
        let dirty = self.dirty.lock();
        (dirty.fresh.len(), dirty.held.len())
    }

    /// Takes out what nobody asks for of a key. The newest message's number, if the key is still dirty.
    fn clean(&self, map: &Masstree<Versions>, key: &[u8], live: &Live) -> Option<u64> {
        let guard = pin();
        let newest = map.get(key, &guard)?;
        self.prune(key, newest, live, &guard);
        if newest.older().is_some() {
            return Some(newest.sequence());
        }
        // Nothing to say; or what fits into the map's word, now that there is nothing below.
        let (message, bytes) = (newest.message(), newest.bytes());
        let gone = message == MessageBytes::Delete;
        if gone || Versions::bytes_of(&message, false) < bytes {
            let alone = (!gone).then(|| Versions::new(newest.sequence(), &message, None));
            // Nobody else changes the key meanwhile.
            let _ = map.compare_exchange(key, |now| now.is_some_and(|now| now.is_same(newest)), alone, &guard);
            let (gone, content) = if gone { (1, key.len()) } else { (0, 0) };
            self.subtract(gone, bytes, content);
        }
        None
    }

    /// Cuts out messages below `top` that nobody asks for.
    fn prune(&self, key: &[u8], top: VersionsRef<'_>, live: &Live, guard: &Guard) {
        let (mut upper, mut count, mut behind, mut content) = (top, 0, 0, 0);
        while let Some(lower) = upper.older() {
            let (message, below) = (lower.message(), lower.older());
            let is_hidden = !matches!(upper.message(), MessageBytes::Upsert { .. })
                && !live.asks_between(lower.sequence(), upper.sequence());
            if is_hidden || (message == MessageBytes::Delete && below.is_none()) {
                count += 1;
                behind += lower.bytes();
                content += key.len() + message.len();
                upper.replace_older(below.map(VersionsRef::to_owned), guard);
            } else {
                upper = lower;
            }
        }
        if count > 0 {
            self.subtract(count, behind, content);
        }
    }
}
