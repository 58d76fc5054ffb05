//! Bulk construction of root buffers: messages are collected in commit order, sorted by a parallel radix sort, and
//! built into the map from the bottom up.
//!
//! Used to build memory trees and to replay the log. Several times faster than single inserts, with the same result:
//! the sort is stable, so the messages of a key keep their order.
//!
//! *Invariant.* The keys and values collected have equal numbers; the accounting of the buffer is the same as after
//! single inserts.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use keyaki_masstree::{Bulk, BulkError, KEY_BYTES_MAX};

use crate::base::{Error, Prior, Result};
use crate::buffer::{MessageChain, RootBuffer};
use crate::message::MessageBytes;

/// Maximum size of a piece of keys, in bytes, unless a single key is longer.
const PIECE_BYTES: usize = 1 << 20;

/// Temporary bytes for each message during sorting and building, besides its key: key slice, value word, two sort
/// records.
const WORK_BYTES: usize = 72;

/// Messages in commit order, to be inserted into a buffer in bulk.
#[derive(Debug, Default)]
pub(crate) struct BufferBuilder {
    /// Keys, concatenated in pieces that never move.
    keys: Vec<Piece>,
    values: Vec<MessageChain>,
    key_bytes: usize,
    /// Heap bytes of the messages.
    heap_bytes: usize,
    /// Bytes of values and operands.
    value_bytes: usize,
    /// Estimated change of the number of rows, as if each message were the only one of its key.
    net_rows: i64,
}

#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    /// End of each key in `bytes`.
    ends: Vec<usize>,
}

impl BufferBuilder {
    pub fn push(&mut self, key: &[u8], sequence: u64, message: &MessageBytes<'_>, prior: Prior) {
        if self.keys.last().is_none_or(|piece| piece.bytes.len() + key.len() > piece.bytes.capacity()) {
            // The first piece is small, because replay may have many trees with few messages each.
            let capacity = if self.keys.is_empty() { 4 * key.len() } else { 2 * self.key_bytes };
            let bytes = Vec::with_capacity(capacity.min(PIECE_BYTES).max(key.len()));
            self.keys.push(Piece { bytes, ends: Vec::new() });
        }
        if let Some(piece) = self.keys.last_mut() {
            piece.bytes.extend_from_slice(key);
            piece.ends.push(piece.bytes.len());
        }
        self.key_bytes += key.len();
        self.push_value(sequence, message, prior);
    }

    /// Adds inserts with sequence number 0: keys concatenated in `bytes`, the end of each key, and one value per key.
    /// `content` is the sum of the values' lengths in bytes.
    pub fn push_rows(
        &mut self,
        bytes: Vec<u8>,
        ends: Vec<usize>,
        values: impl Iterator<Item = MessageChain>,
        content: usize,
    ) {
        let count_heap_bytes = |value: MessageChain, sum: &mut usize| {
            *sum += value.heap_bytes();
            value
        };
        let mut sum = 0;
        self.values.extend(values.map(|value| count_heap_bytes(value, &mut sum)));
        self.heap_bytes += sum;
        self.value_bytes += content;
        self.key_bytes += bytes.len();
        self.net_rows += ends.len() as i64;
        self.keys.push(Piece { bytes, ends });
    }

    fn push_value(&mut self, sequence: u64, message: &MessageBytes<'_>, prior: Prior) {
        self.heap_bytes += MessageChain::heap_bytes_of(message, false);
        self.value_bytes += message.len();
        self.net_rows += message.net_rows(None, prior);
        self.values.push(MessageChain::new(sequence, message, prior, None));
    }

    /// Appends the messages of `other`.
    pub fn append(&mut self, other: BufferBuilder) {
        self.keys.extend(other.keys);
        self.values.extend(other.values);
        self.key_bytes += other.key_bytes;
        self.heap_bytes += other.heap_bytes;
        self.value_bytes += other.value_bytes;
        self.net_rows += other.net_rows;
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Bytes in memory, including the temporary memory of the sort.
    pub fn bytes(&self) -> usize {
        self.work_bytes() + self.heap_bytes
    }

    /// Bytes that are freed once the messages are in a buffer.
    pub fn work_bytes(&self) -> usize {
        self.key_bytes + self.values.len() * WORK_BYTES
    }

    /// All keys, in commit order.
    fn keys(pieces: &[Piece], count: usize) -> Vec<&[u8]> {
        let mut keys = Vec::with_capacity(count);
        for piece in pieces {
            let mut start = 0;
            keys.extend(piece.ends.iter().map(|&end| &piece.bytes[std::mem::replace(&mut start, end)..end]));
        }
        keys
    }

    /// Builds a buffer from messages with distinct keys.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`] if two messages have the same key, [`Error::TooLarge`] if a key is too long.
    pub fn build(self, threads: usize) -> Result<RootBuffer> {
        let count = self.len();
        let keys = Self::keys(&self.keys, count);
        let map = Bulk::new().threads(threads).from_unsorted(&keys, self.values).map_err(bulk_error)?;
        let buffer = RootBuffer::default();
        buffer.set_map(map);
        buffer.add(count, self.heap_bytes, self.key_bytes + self.value_bytes);
        buffer.add_net_rows(self.net_rows);
        Ok(buffer)
    }

    /// Inserts the messages, which are newer than those in `buffer`. The caller is the only writer of the buffer.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if a key is too long.
    pub fn merge_into(self, buffer: &RootBuffer) -> Result<()> {
        let count = self.len();
        if count == 0 {
            return Ok(());
        }
        let keys = Self::keys(&self.keys, count);
        // Heap bytes of messages that were in a word and moved to the heap, because they now have older messages.
        let more_bytes = Arc::new(AtomicUsize::new(0));
        // Corrects the change of the number of rows for messages that have older messages.
        let more_rows = Arc::new(AtomicI64::new(0));
        let bulk = Bulk::new().threads(std::thread::available_parallelism().map_or(1, NonZero::get)).merge({
            let (more_bytes, more_rows) = (more_bytes.clone(), more_rows.clone());
            move |older, newer: MessageChain| {
                let before = newer.heap_bytes();
                let (message, prior) = (newer.as_ref().message(), newer.as_ref().prior());
                let rows = message.net_rows(Some(older.message()), prior) - message.net_rows(None, prior);
                more_rows.fetch_add(rows, Ordering::Relaxed);
                let merged = newer.put_on(older.to_owned());
                more_bytes.fetch_add(merged.heap_bytes() - before, Ordering::Relaxed);
                merged
            }
        });
        match buffer.map() {
            Some(map) => bulk.extend(map, &keys, self.values).map_err(bulk_error)?,
            None => buffer.set_map(bulk.from_unsorted(&keys, self.values).map_err(bulk_error)?),
        }
        let heap_bytes = self.heap_bytes + more_bytes.load(Ordering::Relaxed);
        buffer.add(count, heap_bytes, self.key_bytes + self.value_bytes);
        buffer.add_net_rows(self.net_rows + more_rows.load(Ordering::Relaxed));
        Ok(())
    }
}

/// Converts an error of a bulk build; positions count messages in commit order.
fn bulk_error(error: BulkError) -> Error {
    match error {
        BulkError::Duplicate { position } => Error::DuplicateKey { row: position as u64 },
        BulkError::Unsorted { position } => Error::OutOfOrder { row: position as u64 },
        BulkError::TooLong { bytes, .. } => {
            Error::TooLarge { what: "key", bytes: bytes as u64, limit: KEY_BYTES_MAX as u64 }
        }
        BulkError::Lengths { keys, values } => unreachable!("{keys} keys were added with {values} values"),
    }
}

#[cfg(test)]
mod tests {
    use keyaki_masstree::pin;

    use super::*;
    use crate::base::KeyRange;

    /// The messages of a buffer as text, and its counters.
    fn content(buffer: &RootBuffer) -> (Vec<String>, [usize; 3]) {
        let mut lines = Vec::new();
        buffer.walk(&KeyRange::all(), false, &pin(), |key, chain| {
            lines.push(format!("{key:?} {chain:?}"));
            true
        });
        (lines, [buffer.len(), buffer.message_bytes(), buffer.bytes() - buffer.map_bytes()])
    }

    #[test]
    fn bulk_inserts_equal_single_inserts() {
        let (one, all) = (RootBuffer::default(), RootBuffer::default());
        let mut pending = BufferBuilder::default();
        let mut random = keyaki_primitives::Random::new(1);
        for sequence in 1..4000 {
            let number = random.next_u64();
            let key = [&b"some key "[..], &(number >> 33 & 0x3ff).to_be_bytes()].concat();
            let value = vec![7; (number >> 20) as usize % 3];
            let message = match number >> 43 & 3 {
                0 => MessageBytes::Delete,
                1 => MessageBytes::Upsert { function: 9, operand: &value },
                _ => MessageBytes::Insert(&value),
            };
            // Only the knowledge below the oldest message of a key counts.
            let is_first = one.map().is_none_or(|map| map.get(&key[..], &pin()).is_none());
            let prior = [Prior::Unknown, Prior::Absent, Prior::Present][(number >> 45) as usize % 3];
            let prior = if is_first { prior } else { Prior::Unknown };
            one.insert(&key, sequence, message, prior);
            pending.push(&key, sequence, &message, prior);
            if sequence % 1500 == 0 {
                assert!(pending.bytes() >= pending.work_bytes());
                std::mem::take(&mut pending).merge_into(&all).unwrap();
                assert_eq!(content(&one), content(&all));
            }
        }
        pending.merge_into(&all).unwrap();
        assert_eq!(content(&one), content(&all));
        assert!(BufferBuilder::default().merge_into(&all).is_ok());
    }
}
