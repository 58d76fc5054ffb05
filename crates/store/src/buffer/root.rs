//! The root buffer: map, accounting, point lookups and range walks.
//!
//! A buffer is a Masstree from keys to message chains (see [`chain`](super::chain)). The map has one entry for each
//! key, and one descent finds all messages of a key. A reader copies the word of a chain once and therefore sees a
//! consistent chain. One buffer of a tree is *active* and takes the messages of new commits. Freezing replaces it by an
//! empty buffer; the frozen buffer stays readable until its messages are in a run on disk. Readers take no locks and
//! skip messages above the sequence number of their snapshot.
//!
//! *Accounting.* The bytes of a buffer are the bytes of the map's nodes plus the heap bytes of messages, rounded as the
//! allocator rounds them. The bytes of the nodes are refreshed every [`MESSAGES_PER_REFRESH`] messages.
//!
//! *Invariant.* The messages of a key are inserted in the order of their sequence numbers, because commits are applied
//! under the commit lock.

use std::ops::Bound;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use keyaki_masstree::{Ascending, Guard, Masstree, pin};
use keyaki_primitives::sync::Mutex;

use crate::base::{Key, KeyRange, Prior, RangeEstimate, is_selected, key_between};
use crate::buffer::{Dirty, MessageChain, MessageChainRef};
use crate::codec::{ROW_UPSERT, RowCodec, RowUpsert};
use crate::message::MessageBytes;

/// Number of messages between two refreshes of `map_bytes`.
const MESSAGES_PER_REFRESH: usize = 64;

/// Number of keys that an estimate visits one by one. If a range has more keys, they are one of the samples.
const KEYS_WALKED: usize = 64;
/// As [`KEYS_WALKED`], if the first keys are mostly deleted: the difference of two large numbers needs exact ones.
const DELETES_WALKED: usize = 512;
/// Number of further samples between the first and the last keys of a range.
const SAMPLES: usize = 3;
/// Number of keys of each further sample.
const KEYS_PER_SAMPLE: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct RootBuffer {
    /// Created with the first message, because most buffers are empty most of the time and an empty map takes memory.
    map: OnceLock<Masstree<MessageChain>>,
    messages: AtomicUsize,
    /// Bytes of the map's nodes at the last refresh.
    map_bytes: AtomicUsize,
    /// Heap bytes of the messages.
    heap_bytes: AtomicUsize,
    /// Bytes of keys, values and operands, the key counted once for each message.
    content_bytes: AtomicUsize,
    /// Estimated change of the number of rows by all messages.
    net_rows: AtomicI64,
    /// Keys with garbage; used for memory trees only.
    pub dirty: Mutex<Dirty>,
}

impl RootBuffer {
    /// The map; `None` until the first message.
    #[inline]
    pub fn map(&self) -> Option<&Masstree<MessageChain>> {
        self.map.get()
    }

    /// Installs a bulk-built map. No effect if the buffer already has a map.
    pub fn set_map(&self, map: Masstree<MessageChain>) {
        let _ = self.map.set(map);
    }

    pub fn map_or_new(&self) -> &Masstree<MessageChain> {
        self.map.get_or_init(Masstree::new)
    }

    /// Adds a message that is at least as new as the existing messages of the key.
    #[cfg(test)]
    pub fn insert(&self, key: &[u8], sequence: u64, message: MessageBytes<'_>, prior: Prior) {
        self.writer(sequence, &pin()).insert(key, message, prior);
    }

    /// A writer of messages of one commit, which is at least as new as the existing messages of the keys.
    pub fn writer<'g>(&'g self, sequence: u64, guard: &'g Guard) -> BufferWriter<'g> {
        let keys = self.map_or_new().ascending(guard);
        BufferWriter { buffer: self, keys, sequence, messages: 0, heap_bytes: 0, content_bytes: 0, net_rows: 0 }
    }

    /// Adds to the estimated change of the number of rows.
    pub fn add_net_rows(&self, rows: i64) {
        self.net_rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Accounts for messages inserted into the map.
    pub fn add(&self, messages: usize, heap_bytes: usize, content_bytes: usize) {
        self.heap_bytes.fetch_add(heap_bytes, Ordering::Relaxed);
        self.content_bytes.fetch_add(content_bytes, Ordering::Relaxed);
        let before = self.messages.fetch_add(messages, Ordering::Release);
        if before / MESSAGES_PER_REFRESH != (before + messages) / MESSAGES_PER_REFRESH
            || before < MESSAGES_PER_REFRESH / 4
        {
            self.refresh_map_bytes();
        }
    }

    /// Accounts for messages removed from the map.
    pub fn subtract(&self, messages: usize, heap_bytes: usize, content_bytes: usize) {
        let heap = self.heap_bytes.fetch_sub(heap_bytes, Ordering::Relaxed);
        let content = self.content_bytes.fetch_sub(content_bytes, Ordering::Relaxed);
        let before = self.messages.fetch_sub(messages, Ordering::Release);
        assert!(
            heap_bytes <= heap && content_bytes <= content && messages <= before,
            "removed {messages} of {before} messages, {heap_bytes} of {heap} heap bytes, {content_bytes} of {content} content bytes"
        );
        if before / MESSAGES_PER_REFRESH != (before - messages) / MESSAGES_PER_REFRESH {
            self.refresh_map_bytes();
        }
    }

    /// Reads the map's memory statistics into `map_bytes`.
    fn refresh_map_bytes(&self) {
        let bytes = self.map().map_or(0, |map| map.memory().used_bytes);
        self.map_bytes.store(bytes, Ordering::Relaxed);
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in memory; the part of the map's nodes is as of the last refresh.
    pub fn bytes(&self) -> usize {
        self.map_bytes.load(Ordering::Relaxed) + self.heap_bytes.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn map_bytes(&self) -> usize {
        self.map_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of keys, values and operands; a key counts once for each of its messages.
    pub fn message_bytes(&self) -> usize {
        self.content_bytes.load(Ordering::Relaxed)
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.messages.load(Ordering::Acquire)
    }

    /// The first and the last key; `None` if the buffer is empty.
    pub fn ends(&self) -> Option<(Key, Key)> {
        let (guard, map) = (pin(), self.map()?);
        Some((map.first(&guard)?.0.into(), map.last(&guard)?.0.into()))
    }

    /// Calls `visit` with the messages for a key up to `sequence`, newest first, until it returns false.
    pub fn visit(&self, key: &[u8], sequence: u64, mut visit: impl FnMut(MessageBytes<'_>) -> bool) {
        self.visit_newest(key, sequence, |newest| {
            let mut next = Some(newest);
            while let Some(chain) = next
                && visit(chain.message())
            {
                next = chain.older();
            }
        });
    }

    /// Calls `visit` with the message chain of a key from the newest message up to `sequence`, if there is one.
    pub fn visit_newest(&self, key: &[u8], sequence: u64, visit: impl FnOnce(MessageChainRef<'_>)) {
        let Some(map) = self.map() else { return };
        let guard = pin();
        if let Some(newest) = map.get(key, &guard).and_then(|chain| chain.up_to(sequence)) {
            visit(newest);
        }
    }

    /// Estimated change of the number of rows in a range by the messages up to `sequence`. Exact for the messages of at
    /// most [`KEYS_WALKED`] keys, if the writers knew the keys, or if the keys of
    /// inserts had no rows before and those of deletes had.
    pub fn net_rows(&self, range: &KeyRange, sequence: u64) -> f64 {
        self.sum(range, |chain| chain.up_to(sequence).map_or(0, MessageChainRef::net_rows))
    }

    /// Estimated number of rows in a range of a memory tree, and their bytes; `pages` is 0.
    pub fn estimate(&self, range: &KeyRange, sequence: u64) -> RangeEstimate {
        // The messages below a delete may have been garbage-collected.
        let is_row = |chain: MessageChainRef<'_>| chain.message() != MessageBytes::Delete;
        let rows = self.sum(range, |chain| i64::from(chain.up_to(sequence).is_some_and(is_row))).max(0.0);
        let bytes = self.message_bytes() as f64 / self.len().max(1) as f64;
        RangeEstimate { rows, pages: 0.0, bytes: rows * bytes }
    }

    /// The sum of `rows_of` over the keys of a range, by a walk over a few keys and an estimate for more keys: their
    /// number multiplied by the average of samples.
    fn sum(&self, range: &KeyRange, rows_of: impl Fn(MessageChainRef<'_>) -> i64) -> f64 {
        let Some(map) = self.map().filter(|_| !range.is_empty()) else { return 0.0 };
        if *range == KeyRange::all() {
            return self.net_rows.load(Ordering::Relaxed) as f64;
        }
        let guard = pin();
        // The first of up to `keys_max` keys, their number and sum.
        let walk = |range: &KeyRange, descending: bool, keys_max: usize| {
            let (mut first, mut keys, mut rows) = (None, 0, 0);
            self.walk(range, descending, &guard, |key, chain| {
                first.get_or_insert_with(|| key.to_vec());
                keys += 1;
                rows += rows_of(chain);
                keys < keys_max && (keys < KEYS_WALKED || -2 * rows > keys as i64)
            });
            (first.unwrap_or_default(), keys, rows)
        };
        let (low, mut keys, mut rows) = walk(range, false, DELETES_WALKED);
        if keys < KEYS_WALKED || (keys < DELETES_WALKED && -2 * rows > keys as i64) {
            return rows as f64;
        }
        let high = match &range.end {
            Bound::Included(key) | Bound::Excluded(key) => key.clone(),
            Bound::Unbounded => walk(range, true, 1).0,
        };
        for sample in 1..=SAMPLES {
            let start = Bound::Included(key_between(&low, &high, sample as f64 / (SAMPLES + 1) as f64));
            let sample = walk(&KeyRange { start, end: range.end.clone() }, false, KEYS_PER_SAMPLE);
            (keys, rows) = (keys + sample.1, rows + sample.2);
        }
        if rows == 0 {
            return 0.0;
        }
        map.estimate::<&[u8]>(slices(range), &guard) as f64 * rows as f64 / keys as f64
    }

    /// Up to `count` ascending keys within a range that divide it into parts of about equal numbers of keys.
    pub fn split_keys(&self, range: &KeyRange, count: usize) -> Vec<Vec<u8>> {
        match self.map() {
            Some(map) if count > 0 && !range.is_empty() => map.split_keys::<&[u8]>(count, slices(range), &pin()),
            _ => Vec::new(),
        }
    }

    /// True if a sample of this level has one of the keys.
    pub fn has_selected_key(&self, level: u32) -> bool {
        let (mut found, guard) = (false, pin());
        self.walk(&KeyRange::all(), false, &guard, |key, _| {
            found = is_selected(key, level);
            !found
        });
        found
    }

    /// Calls `visit` with each key of a range and its message chain, in ascending or descending order, until `visit`
    /// returns false.
    pub fn walk<'g>(
        &'g self,
        range: &KeyRange,
        descending: bool,
        guard: &'g Guard,
        mut visit: impl FnMut(&[u8], MessageChainRef<'g>) -> bool,
    ) {
        let Some(map) = self.map() else { return };
        let bounds = slices(range);
        if descending {
            let mut walk = map.range_rev::<&[u8]>(bounds, guard);
            while let Some((key, chain)) = walk.next_entry()
                && visit(key, chain)
            {}
        } else {
            let mut walk = map.range::<&[u8]>(bounds, guard);
            while let Some((key, chain)) = walk.next_entry()
                && visit(key, chain)
            {}
        }
    }
}

/// Adds the messages of a commit to a buffer, fastest in ascending order of their keys. The buffer accounts for them
/// when the writer is dropped.
pub(crate) struct BufferWriter<'g> {
    buffer: &'g RootBuffer,
    keys: Ascending<'g, MessageChain>,
    sequence: u64,
    messages: usize,
    heap_bytes: usize,
    content_bytes: usize,
    net_rows: i64,
}

impl BufferWriter<'_> {
    /// Adds a message.
    #[inline]
    pub fn insert(&mut self, key: &[u8], message: MessageBytes<'_>, prior: Prior) {
        let (sequence, mut bytes) = (self.sequence, 0);
        let old = self.keys.insert_with(key, |old: Option<MessageChainRef<'_>>| {
            bytes = MessageChain::heap_bytes_of(&message, old.is_some());
            Some(MessageChain::new(sequence, &message, prior, old.map(MessageChainRef::to_owned)))
        });
        assert!(
            old.is_none_or(|old| old.sequence() <= sequence),
            "messages of a key must be inserted in sequence order"
        );
        let old = old.map(MessageChainRef::message);
        debug_assert!(
            match old {
                Some(MessageBytes::Insert(_)) => prior != Prior::Absent,
                Some(MessageBytes::Delete) => prior != Prior::Present,
                Some(MessageBytes::Upsert { .. }) | None => true,
            },
            "a writer claims {prior:?} for key {key:?}, whose newest message is {old:?}"
        );
        self.messages += 1;
        self.heap_bytes += bytes;
        self.content_bytes += key.len() + message.len();
        self.net_rows += message.net_rows(old, prior);
    }

    /// Adds a row upsert. If the newest message of the key decides its effect, the new row is added instead, so that reads
    /// of a key with many upserts stop at the newest one. Returns the change of the number of rows; `None` if it is unknown.
    pub fn upsert(&mut self, key: &[u8], operand: &[u8], codec: &RowCodec) -> Option<i64> {
        let mut row = None;
        if let Some(upsert) = RowUpsert::decode(codec, operand) {
            self.buffer.visit(key, self.sequence, |message| {
                row = match message {
                    MessageBytes::Insert(old) => upsert.apply(Some(old)).map(|row| (row, Prior::Present)),
                    MessageBytes::Delete => upsert.apply(None).map(|row| (row, Prior::Absent)),
                    MessageBytes::Upsert { .. } => None,
                };
                false
            });
        }
        let message = MessageBytes::Upsert { function: ROW_UPSERT, operand };
        let (message, prior) = match &row {
            Some((row, prior)) => (MessageBytes::Insert(row), *prior),
            None => (message, Prior::Unknown),
        };
        self.insert(key, message, prior);
        message.delta(prior)
    }
}

impl Drop for BufferWriter<'_> {
    fn drop(&mut self) {
        self.buffer.add_net_rows(self.net_rows);
        self.buffer.add(self.messages, self.heap_bytes, self.content_bytes);
    }
}

fn slices(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (range.start.as_ref().map(Vec::as_slice), range.end.as_ref().map(Vec::as_slice))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::{Direction, Schema, UpsertFunctions};
    use crate::buffer::BufferCursor;
    use crate::codec::Codecs;
    use crate::message::{Change, Resolver, Upserts};

    fn keys(buffer: &Arc<RootBuffer>, range: &KeyRange, sequence: u64, direction: Direction) -> Vec<(Vec<u8>, Change)> {
        let mut cursor = BufferCursor::new(buffer.clone(), range.clone(), sequence, direction);
        let mut seen = Vec::new();
        let mut resolver = Resolver::default();
        while cursor.has_key() {
            let key = cursor.next_key().to_vec();
            let more = cursor.take(&mut resolver);
            assert_eq!(more, cursor.has_key());
            let (functions, codecs) = (UpsertFunctions::default(), Codecs::new(Schema::key_value()));
            let change = resolver.finish(Upserts::new(&functions, &codecs)).unwrap().unwrap().0;
            seen.push((key, change));
        }
        seen
    }

    fn value(byte: u8) -> Change {
        Change::Insert([byte].as_slice().into())
    }

    #[test]
    fn newest_up_to_the_snapshot() {
        let buffer = Arc::new(RootBuffer::default());
        assert!(buffer.is_empty() && buffer.ends().is_none() && buffer.bytes() == 0);
        buffer.insert(b"a", 1, MessageBytes::Insert(&[1]), Prior::Unknown);
        buffer.insert(b"a", 3, MessageBytes::Insert(&[3]), Prior::Unknown);
        buffer.insert(b"a", 3, MessageBytes::Delete, Prior::Unknown);
        buffer.insert(b"b", 2, MessageBytes::Insert(&[2]), Prior::Unknown);
        assert_eq!((buffer.len(), buffer.message_bytes()), (4, 7));
        let all = KeyRange::all();
        assert_eq!(keys(&buffer, &all, 1, Direction::Ascending), [(b"a".to_vec(), value(1))]);
        let expected = [(b"a".to_vec(), Change::Delete), (b"b".to_vec(), value(2))];
        assert_eq!(keys(&buffer, &all, 3, Direction::Ascending), expected);
        let descending = [&expected[1..], &expected[..1]].concat();
        assert_eq!(keys(&buffer, &all, 3, Direction::Descending), descending);
        let point = KeyRange { start: Bound::Included(b"b".to_vec()), end: Bound::Included(b"b".to_vec()) };
        assert_eq!(keys(&buffer, &point, 9, Direction::Ascending), expected[1..]);
        let none = KeyRange { start: Bound::Excluded(b"b".to_vec()), end: Bound::Excluded(b"b".to_vec()) };
        assert_eq!(keys(&buffer, &none, 9, Direction::Ascending), []);
        let mut visited = 0;
        buffer.visit(b"a", 2, |message| {
            visited += 1;
            assert_eq!(message, MessageBytes::Insert(&[1]));
            true
        });
        buffer.visit(b"a", 3, |message| {
            visited += 1;
            message == MessageBytes::Delete
        });
        assert_eq!(visited, 3);
    }

    #[test]
    fn more_messages_than_one_batch_of_a_cursor() {
        let buffer = Arc::new(RootBuffer::default());
        let mut expected = Vec::new();
        for key in 0..10_000_u32 {
            // A few keys with many messages.
            for index in 0..if key % 300 == 7 { 600 } else { 1 } {
                buffer.insert(&key.to_be_bytes(), 5, MessageBytes::Insert(&[index as u8]), Prior::Unknown);
            }
            // Messages above the snapshot, in existing and in new keys.
            buffer.insert(&key.to_be_bytes(), 6, MessageBytes::Delete, Prior::Unknown);
            buffer.insert(&[&key.to_be_bytes()[..], &[1]].concat(), 6, MessageBytes::Delete, Prior::Unknown);
            expected.push((key.to_be_bytes().to_vec(), value(if key % 300 == 7 { 599_u32 as u8 } else { 0 })));
        }
        let all = KeyRange::all();
        assert!(keys(&buffer, &all, 5, Direction::Ascending) == expected);
        expected.reverse();
        assert!(keys(&buffer, &all, 5, Direction::Descending) == expected);
    }
}
