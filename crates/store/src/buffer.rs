//! Root buffers: the newest messages of a tree, in memory, sorted by (key, newest first).
//!
//! One buffer of a tree is *active* and takes the messages of new commits; freezing puts a fresh one in its place, and the
//! frozen one stays readable until it has become a run on disk. Readers take no locks; they see the messages up to
//! their snapshot's sequence number.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_skiplist::SkipMap;

use crate::overlay::Resolver;
use crate::tree::Key;
use crate::{Direction, KeyRange};

/// A message as it is buffered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// Value bytes, see [`crate::RowCodec`].
    Insert(Arc<[u8]>),
    Delete,
    Upsert {
        function: u32,
        operand: Arc<[u8]>,
    },
}

impl Message {
    fn bytes(&self) -> usize {
        match self {
            Message::Insert(value) => value.len(),
            Message::Delete => 0,
            Message::Upsert { operand, .. } => operand.len() + 4,
        }
    }
}

/// Sorts by key, then newest first: higher sequence numbers first, later messages of one commit first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    key: Arc<[u8]>,
    /// Complement of the sequence number.
    age: u64,
    /// Complement of the message's number in its commit.
    index: u32,
}

/// What a slot and its map entry cost beside key and value bytes: two `Arc` headers, tower, slot, message.
const ENTRY_OVERHEAD_BYTES: usize = 160;

/// Messages that a cursor copies at a time.
const MESSAGES_AHEAD: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct RootBuffer {
    messages: SkipMap<Slot, Message>,
    bytes: AtomicUsize,
    newest: AtomicU64,
}

impl RootBuffer {
    pub fn insert(&self, key: &[u8], sequence: u64, index: u32, message: Message) -> usize {
        let bytes = key.len() + message.bytes() + ENTRY_OVERHEAD_BYTES;
        self.messages.insert(Slot { key: key.into(), age: !sequence, index: !index }, message);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.newest.fetch_max(sequence, Ordering::Relaxed);
        bytes
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Bytes in memory, approximately.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of keys, values and operands.
    pub fn message_bytes(&self) -> usize {
        self.bytes().saturating_sub(self.len() * ENTRY_OVERHEAD_BYTES)
    }

    /// Messages held.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// The first and the last key.
    pub fn ends(&self) -> Option<(Key, Key)> {
        Some((self.messages.front()?.key().key.clone(), self.messages.back()?.key().key.clone()))
    }

    /// Calls `visit` with the messages for a key up to `sequence`, newest first, until it returns false.
    pub fn visit(&self, key: &[u8], sequence: u64, mut visit: impl FnMut(&Message) -> bool) {
        if self.is_empty() {
            return;
        }
        let slots = Slot::newest(key, sequence)..=Slot::oldest(key);
        for entry in self.messages.range(slots) {
            if !visit(entry.value()) {
                return;
            }
        }
    }
}

impl Slot {
    /// Slots of one key up to a sequence number lie between this one …
    fn newest(key: &[u8], sequence: u64) -> Slot {
        Slot { key: key.into(), age: !sequence, index: 0 }
    }

    /// … and this one.
    fn oldest(key: &[u8]) -> Slot {
        Slot { key: key.into(), age: u64::MAX, index: u32::MAX }
    }
}

/// Walks over a buffer's messages in a range up to a sequence number: by key in either direction, newest first among
/// those of a key. Holds some messages ahead; messages that come in meanwhile have higher sequence numbers.
#[derive(Debug)]
pub(crate) struct BufferCursor {
    buffer: Arc<RootBuffer>,
    sequence: u64,
    direction: Direction,
    /// What is left behind `ahead`; `None`: nothing.
    rest: Option<(Bound<Slot>, Bound<Slot>)>,
    ahead: VecDeque<(Key, Message)>,
}

impl BufferCursor {
    pub fn new(buffer: Arc<RootBuffer>, range: &KeyRange, sequence: u64, direction: Direction) -> Self {
        let start = match &range.start {
            Bound::Included(key) => Bound::Included(Slot::newest(key, u64::MAX)),
            Bound::Excluded(key) => Bound::Excluded(Slot::oldest(key)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let end = match &range.end {
            Bound::Included(key) => Bound::Included(Slot::oldest(key)),
            Bound::Excluded(key) => Bound::Excluded(Slot::newest(key, u64::MAX)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let rest = (!is_empty(&start, &end)).then_some((start, end));
        BufferCursor { buffer, sequence, direction, rest, ahead: VecDeque::new() }
    }

    /// The next message's key.
    pub fn key(&mut self) -> Option<Key> {
        while self.ahead.is_empty() && self.rest.is_some() {
            match self.direction {
                Direction::Ascending => self.fill(),
                Direction::Descending => self.fill_descending(),
            }
        }
        self.ahead.front().map(|(key, _)| key.clone())
    }

    /// Takes all messages for `key`, which is the next one; gives the key after it.
    pub fn take(&mut self, key: &[u8], resolver: &mut Resolver) -> Option<Key> {
        loop {
            while let Some((_, message)) = self.ahead.pop_front_if(|(next, _)| **next == *key) {
                resolver.add_message(&message);
            }
            match self.key() {
                Some(next) if *next == *key => {}
                next => return next,
            }
        }
    }

    /// Gets the next messages.
    fn fill(&mut self) {
        let Some((start, end)) = self.rest.take() else { return };
        let mut last = None;
        for entry in self.buffer.messages.range((start, end.clone())) {
            if !entry.key().age <= self.sequence {
                self.ahead.push_back((entry.key().key.clone(), entry.value().clone()));
                if self.ahead.len() >= MESSAGES_AHEAD {
                    last = Some(entry.key().clone());
                    break;
                }
            }
        }
        self.rest = last.map(|last| (Bound::Excluded(last), end)).filter(|(start, end)| !is_empty(start, end));
    }

    /// Gets the next messages: of whole keys, since they come oldest first.
    fn fill_descending(&mut self) {
        let Some((start, end)) = self.rest.take() else { return };
        let mut last: Option<Slot> = None;
        let mut of_key = Vec::new();
        let mut full = false;
        for entry in self.buffer.messages.range((start.clone(), end)).rev() {
            let slot = entry.key();
            if last.as_ref().is_some_and(|last| last.key != slot.key) {
                self.ahead.extend(of_key.drain(..).rev());
                full = self.ahead.len() >= MESSAGES_AHEAD;
                if full {
                    break;
                }
            }
            if !slot.age <= self.sequence {
                of_key.push((slot.key.clone(), entry.value().clone()));
            }
            last = Some(slot.clone());
        }
        self.ahead.extend(of_key.drain(..).rev());
        self.rest = last.filter(|_| full).map(|last| (start, Bound::Excluded(last))).filter(|(a, b)| !is_empty(a, b));
    }
}

fn is_empty(start: &Bound<Slot>, end: &Bound<Slot>) -> bool {
    match (start, end) {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a >= b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(
        buffer: &Arc<RootBuffer>,
        range: &KeyRange,
        sequence: u64,
        direction: Direction,
    ) -> Vec<(Vec<u8>, Message)> {
        let mut cursor = BufferCursor::new(buffer.clone(), range, sequence, direction);
        let mut seen = Vec::new();
        while cursor.key().is_some() {
            seen.extend(cursor.ahead.pop_front().map(|(key, message)| (key.to_vec(), message)));
        }
        seen
    }

    #[test]
    fn newest_first_up_to_the_snapshot() {
        let buffer = Arc::new(RootBuffer::default());
        let value = |byte: u8| Message::Insert([byte].as_slice().into());
        buffer.insert(b"a", 1, 0, value(1));
        buffer.insert(b"a", 3, 0, value(3));
        buffer.insert(b"a", 3, 1, Message::Delete);
        buffer.insert(b"b", 2, 0, value(2));
        let all = KeyRange::all();
        assert_eq!(keys(&buffer, &all, 1, Direction::Ascending), [(b"a".to_vec(), value(1))]);
        let expected = [
            (b"a".to_vec(), Message::Delete),
            (b"a".to_vec(), value(3)),
            (b"a".to_vec(), value(1)),
            (b"b".to_vec(), value(2)),
        ];
        assert_eq!(keys(&buffer, &all, 3, Direction::Ascending), expected);
        let descending = [&expected[3..], &expected[..3]].concat();
        assert_eq!(keys(&buffer, &all, 3, Direction::Descending), descending);
        let point = KeyRange { start: Bound::Included(b"b".to_vec()), end: Bound::Included(b"b".to_vec()) };
        assert_eq!(keys(&buffer, &point, 9, Direction::Ascending), expected[3..]);
        let none = KeyRange { start: Bound::Excluded(b"b".to_vec()), end: Bound::Excluded(b"b".to_vec()) };
        assert_eq!(keys(&buffer, &none, 9, Direction::Ascending), []);
        let mut visited = Vec::new();
        buffer.visit(b"a", 2, |message| {
            visited.push(message.clone());
            true
        });
        assert_eq!(visited, [value(1)]);
    }

    #[test]
    fn more_messages_than_are_copied_at_a_time() {
        let buffer = Arc::new(RootBuffer::default());
        let mut expected = Vec::new();
        for key in 0..1000_u32 {
            // A few keys with many messages.
            for index in (0..if key % 300 == 7 { 600 } else { 1 }).rev() {
                let message = Message::Insert(u32::to_be_bytes(index).as_slice().into());
                buffer.insert(&key.to_be_bytes(), 5, index, message.clone());
                expected.push((key.to_be_bytes().to_vec(), message));
            }
        }
        let all = KeyRange::all();
        assert!(keys(&buffer, &all, 5, Direction::Ascending) == expected);
        expected.sort_by(|a, b| b.0.cmp(&a.0));
        assert!(keys(&buffer, &all, 5, Direction::Descending) == expected);
    }
}
