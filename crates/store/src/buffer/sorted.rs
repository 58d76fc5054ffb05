//! Messages gathered to be put into a root buffer all at once: sorted by a parallel radix sort, and built from the bottom up.
//!
//! That is how memory trees are made, and how the log's tail comes back into buffers: many times quicker than one message after
//! another, and the same in the end, since the sort keeps the order of equal keys.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyaki_masstree::{Bulk, BulkError, KEY_BYTES_MAX};

use crate::buffer::{RootBuffer, Versions};
use crate::message::MessageBytes;
use crate::{Error, Result};

/// Bytes of keys that are kept together.
const PIECE_BYTES: usize = 1 << 20;

/// What sorting and building takes for each message, beside its key: the key's place, the value's word, sort records twice.
const WORK_BYTES: usize = 72;

/// Messages in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Keys, one behind the other, in pieces that never move.
    keys: Vec<Piece>,
    values: Vec<Versions>,
    key_bytes: usize,
    /// Of messages behind their words.
    behind_bytes: usize,
    /// Of values and operands.
    value_bytes: usize,
}

#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<usize>,
}

impl Gathered {
    pub fn push(&mut self, key: &[u8], sequence: u64, message: &MessageBytes<'_>) {
        if self.keys.last().is_none_or(|piece| piece.bytes.len() + key.len() > piece.bytes.capacity()) {
            // The first one is no larger than it must be: there may be many trees with few messages.
            let capacity = if self.keys.is_empty() { 4 * key.len() } else { 2 * self.key_bytes };
            let bytes = Vec::with_capacity(capacity.min(PIECE_BYTES).max(key.len()));
            self.keys.push(Piece { bytes, ends: Vec::new() });
        }
        if let Some(piece) = self.keys.last_mut() {
            piece.bytes.extend_from_slice(key);
            piece.ends.push(piece.bytes.len());
        }
        self.key_bytes += key.len();
        self.push_value(sequence, message);
    }

    /// Inserts with these keys (all of them, and where each ends) and values, all of number 0.
    pub fn push_rows(
        &mut self,
        bytes: Vec<u8>,
        ends: Vec<usize>,
        values: impl Iterator<Item = Versions>,
        content: usize,
    ) {
        let behind = |value: Versions, sum: &mut usize| {
            *sum += value.behind_bytes();
            value
        };
        let mut sum = 0;
        self.values.extend(values.map(|value| behind(value, &mut sum)));
        self.behind_bytes += sum;
        self.value_bytes += content;
        self.key_bytes += bytes.len();
        self.keys.push(Piece { bytes, ends });
    }

    fn push_value(&mut self, sequence: u64, message: &MessageBytes<'_>) {
        self.behind_bytes += Versions::bytes_of(message, false);
        self.value_bytes += message.len();
        self.values.push(Versions::new(sequence, message, None));
    }

    /// Adds what another one has, behind its own.
    pub fn append(&mut self, other: Gathered) {
        self.keys.extend(other.keys);
        self.values.extend(other.values);
        self.key_bytes += other.key_bytes;
        self.behind_bytes += other.behind_bytes;
        self.value_bytes += other.value_bytes;
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Bytes held, with what sorting will take.
    pub fn bytes(&self) -> usize {
        self.work_bytes() + self.behind_bytes
    }

    /// Bytes that are held only until the messages are in a buffer.
    pub fn work_bytes(&self) -> usize {
        self.key_bytes + self.values.len() * WORK_BYTES
    }

    /// Each key, in the order in which they came.
    fn keys(pieces: &[Piece], count: usize) -> Vec<&[u8]> {
        let mut keys = Vec::with_capacity(count);
        for piece in pieces {
            let mut start = 0;
            keys.extend(piece.ends.iter().map(|&end| &piece.bytes[std::mem::replace(&mut start, end)..end]));
        }
        keys
    }

    /// A buffer of messages that all have different keys.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`], [`Error::TooLarge`].
    pub fn into_buffer(self, threads: usize) -> Result<RootBuffer> {
        let count = self.len();
        let keys = Self::keys(&self.keys, count);
        let map = Bulk::new().threads(threads).from_unsorted(&keys, self.values).map_err(bulk_error)?;
        let buffer = RootBuffer::default();
        buffer.set_map(map);
        buffer.add(count, self.behind_bytes, self.key_bytes + self.value_bytes);
        Ok(buffer)
    }

    /// Puts the messages, which are newer than those that `buffer` has, into it. Nobody else writes to it.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn flow_into(self, buffer: &RootBuffer) -> Result<()> {
        let count = self.len();
        if count == 0 {
            return Ok(());
        }
        let keys = Self::keys(&self.keys, count);
        // Words that became messages with others below.
        let more_bytes = Arc::new(AtomicUsize::new(0));
        let bulk = Bulk::new().threads(std::thread::available_parallelism().map_or(1, NonZero::get)).merge({
            let more_bytes = more_bytes.clone();
            move |older, newer: Versions| {
                let before = newer.behind_bytes();
                let merged = newer.put_on(older.to_owned());
                more_bytes.fetch_add(merged.behind_bytes() - before, Ordering::Relaxed);
                merged
            }
        });
        match buffer.map() {
            Some(map) => bulk.extend(map, &keys, self.values).map_err(bulk_error)?,
            None => buffer.set_map(bulk.from_unsorted(&keys, self.values).map_err(bulk_error)?),
        }
        let behind = self.behind_bytes + more_bytes.load(Ordering::Relaxed);
        buffer.add(count, behind, self.key_bytes + self.value_bytes);
        Ok(())
    }
}

/// The store's error for one of a bulk load; positions count messages in the order in which they came.
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

    /// What a buffer has, and what it says that it has.
    fn content(buffer: &RootBuffer) -> (Vec<String>, [usize; 3]) {
        let mut lines = Vec::new();
        buffer.walk(&KeyRange::all(), false, &pin(), |key, versions| {
            lines.push(format!("{key:?} {versions:?}"));
            true
        });
        (lines, [buffer.len(), buffer.message_bytes(), buffer.bytes() - buffer.map_bytes()])
    }

    #[test]
    fn as_one_after_another() {
        let (one, all) = (RootBuffer::default(), RootBuffer::default());
        let mut gathered = Gathered::default();
        let mut number = 1_u64;
        for sequence in 1..4000 {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = [&b"some key "[..], &(number >> 33 & 0x3ff).to_be_bytes()].concat();
            let value = vec![7; (number >> 20) as usize % 3];
            let message = match number >> 43 & 3 {
                0 => MessageBytes::Delete,
                1 => MessageBytes::Upsert { function: 9, operand: &value },
                _ => MessageBytes::Insert(&value),
            };
            one.insert(&key, sequence, message);
            gathered.push(&key, sequence, &message);
            if sequence % 1500 == 0 {
                assert!(gathered.bytes() >= gathered.work_bytes());
                std::mem::take(&mut gathered).flow_into(&all).unwrap();
                assert_eq!(content(&one), content(&all));
            }
        }
        gathered.flow_into(&all).unwrap();
        assert_eq!(content(&one), content(&all));
        assert!(Gathered::default().flow_into(&all).is_ok());
    }
}
