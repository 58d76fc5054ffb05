//! Root buffers: the newest messages of a tree, in memory, sorted by (key, newest first).
//!
//! One buffer of a tree is *active* and takes the messages of new commits; freezing puts a fresh one in its place, and the
//! frozen one stays readable until it has become a run on disk. Readers take no locks; they see the messages up to
//! their snapshot's sequence number.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_skiplist::SkipMap;

use crate::KeyRange;

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

    /// Messages held.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Calls `visit` with every message in `range` up to `sequence`, by key, newest first.
    pub fn visit(&self, range: &KeyRange, sequence: u64, mut visit: impl FnMut(&Arc<[u8]>, &Message)) {
        if self.is_empty() {
            return;
        }
        // Slots of one key lie between its newest possible and its oldest possible slot.
        let newest = |key: &[u8]| Slot { key: key.into(), age: 0, index: 0 };
        let oldest = |key: &[u8]| Slot { key: key.into(), age: u64::MAX, index: u32::MAX };
        let start = match &range.start {
            Bound::Included(key) => Bound::Included(newest(key)),
            Bound::Excluded(key) => Bound::Excluded(oldest(key)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let end = match &range.end {
            Bound::Included(key) => Bound::Included(oldest(key)),
            Bound::Excluded(key) => Bound::Excluded(newest(key)),
            Bound::Unbounded => Bound::Unbounded,
        };
        if is_empty(&start, &end) {
            return;
        }
        for entry in self.messages.range((start, end)) {
            if !entry.key().age <= sequence {
                visit(&entry.key().key, entry.value());
            }
        }
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

    fn keys(buffer: &RootBuffer, range: &KeyRange, sequence: u64) -> Vec<(Vec<u8>, Message)> {
        let mut seen = Vec::new();
        buffer.visit(range, sequence, |key, message| seen.push((key.to_vec(), message.clone())));
        seen
    }

    #[test]
    fn newest_first_up_to_the_snapshot() {
        let buffer = RootBuffer::default();
        let value = |byte: u8| Message::Insert([byte].as_slice().into());
        buffer.insert(b"a", 1, 0, value(1));
        buffer.insert(b"a", 3, 0, value(3));
        buffer.insert(b"a", 3, 1, Message::Delete);
        buffer.insert(b"b", 2, 0, value(2));
        let all = KeyRange::all();
        assert_eq!(keys(&buffer, &all, 1), [(b"a".to_vec(), value(1))]);
        let expected = [
            (b"a".to_vec(), Message::Delete),
            (b"a".to_vec(), value(3)),
            (b"a".to_vec(), value(1)),
            (b"b".to_vec(), value(2)),
        ];
        assert_eq!(keys(&buffer, &all, 3), expected);
        let point = KeyRange { start: Bound::Included(b"b".to_vec()), end: Bound::Included(b"b".to_vec()) };
        assert_eq!(keys(&buffer, &point, 9), expected[3..]);
        let none = KeyRange { start: Bound::Excluded(b"b".to_vec()), end: Bound::Excluded(b"b".to_vec()) };
        assert_eq!(keys(&buffer, &none, 9), []);
    }
}
