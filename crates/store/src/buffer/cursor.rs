//! Walking over a root buffer: some keys ahead are copied at a time, so that nothing of the buffer is held meanwhile.
//!
//! What a cursor gives depends only on its snapshot's sequence number. Messages that come in meanwhile are newer; those that
//! are taken out meanwhile are nobody's (see `garbage`), and each key is looked at once.

use std::ops::{Bound, Range};
use std::sync::Arc;

use keyaki_masstree::{Guard, pin};

use crate::base::{Direction, Key, KeyRange, Result, UpsertFunctions};
use crate::buffer::{RootBuffer, VersionsRef};
use crate::codec::RowBatch;
use crate::message::{Change, MessageBytes, Resolver};

/// Keys that are looked at at a time: few at first, for short ranges.
const KEYS_FIRST: usize = 16;
const KEYS_MAX: usize = 1024;
/// Bytes copied at a time (the last key may exceed them).
const BYTES_MAX: usize = 256 << 10;

/// Walks over a buffer's keys in a range that have messages up to a sequence number, in either direction.
#[derive(Debug)]
pub(crate) struct BufferCursor {
    buffer: Arc<RootBuffer>,
    sequence: u64,
    direction: Direction,
    /// What is left behind `ahead`; `None`: nothing.
    rest: Option<KeyRange>,
    keys_ahead: usize,
    ahead: Ahead,
}

/// Keys with their messages up to the newest one that says all, newest first.
#[derive(Debug, Default)]
struct Ahead {
    key_bytes: Vec<u8>,
    bytes: Vec<u8>,
    keys: Vec<AheadKey>,
    messages: Vec<AheadMessage>,
    /// Keys taken.
    taken: usize,
}

#[derive(Debug)]
struct AheadKey {
    bytes: Range<usize>,
    messages: Range<usize>,
}

/// A message, its bytes being somewhere else.
#[derive(Debug)]
enum AheadMessage {
    Insert(Range<usize>),
    Delete,
    Upsert(u32, Range<usize>),
}

impl Ahead {
    fn clear(&mut self) {
        self.key_bytes.clear();
        self.bytes.clear();
        self.keys.clear();
        self.messages.clear();
        self.taken = 0;
    }

    fn copy(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// Adds a key whose bytes are there already.
    fn push(&mut self, key: Range<usize>, newest: VersionsRef<'_>) {
        let start = self.messages.len();
        let mut next = Some(newest);
        while let Some(versions) = next {
            let message = versions.message();
            next = None;
            let message = match message {
                MessageBytes::Insert(value) => AheadMessage::Insert(self.copy(value)),
                MessageBytes::Delete => AheadMessage::Delete,
                MessageBytes::Upsert { function, operand } => {
                    next = versions.older();
                    AheadMessage::Upsert(function, self.copy(operand))
                }
            };
            self.messages.push(message);
        }
        self.keys.push(AheadKey { bytes: key, messages: start..self.messages.len() });
    }

    fn message(&self, number: usize) -> MessageBytes<'_> {
        match &self.messages[number] {
            AheadMessage::Insert(value) => MessageBytes::Insert(&self.bytes[value.clone()]),
            AheadMessage::Delete => MessageBytes::Delete,
            AheadMessage::Upsert(function, operand) => {
                MessageBytes::Upsert { function: *function, operand: &self.bytes[operand.clone()] }
            }
        }
    }
}

/// A key that a walk met, its bytes being somewhere else.
struct Met<'g> {
    key: Range<usize>,
    versions: VersionsRef<'g>,
}

impl BufferCursor {
    pub fn new(buffer: Arc<RootBuffer>, range: KeyRange, sequence: u64, direction: Direction) -> Self {
        let rest = (!range.is_empty()).then_some(range);
        BufferCursor { buffer, sequence, direction, rest, keys_ahead: KEYS_FIRST, ahead: Ahead::default() }
    }

    /// The next key.
    pub fn key(&mut self) -> Option<Key> {
        while self.ahead.taken == self.ahead.keys.len() && self.rest.is_some() {
            self.fill();
        }
        let key = self.ahead.keys.get(self.ahead.taken)?;
        Some(self.ahead.key_bytes[key.bytes.clone()].into())
    }

    /// Takes all messages for `key`, which is the next one; gives the key after it.
    pub fn take(&mut self, key: &[u8], resolver: &mut Resolver) -> Option<Key> {
        if let Some(next) = self.ahead.keys.get(self.ahead.taken)
            && self.ahead.key_bytes[next.bytes.clone()] == *key
        {
            for number in next.messages.clone() {
                resolver.add_message(self.ahead.message(number));
            }
            self.ahead.taken += 1;
        }
        self.key()
    }

    /// Gets the next keys.
    fn fill(&mut self) {
        let (guard, buffer, mut ahead) = (pin(), self.buffer.clone(), std::mem::take(&mut self.ahead));
        ahead.clear();
        let (met, mut is_end) = self.meet(&buffer, &guard, &mut ahead.key_bytes);
        let mut last = 0..0;
        for (i, Met { key, versions }) in met.iter().enumerate() {
            last = key.clone();
            if let Some(newest) = versions.up_to(self.sequence) {
                ahead.push(key.clone(), newest);
            }
            if ahead.bytes.len() >= BYTES_MAX {
                is_end &= i + 1 == met.len();
                break;
            }
        }
        self.advance((!is_end).then(|| ahead.key_bytes[last].to_vec()));
        self.ahead = ahead;
    }

    /// The next rows, if the buffer's messages are all there are: deletes and upserts are taken into account. None at the end.
    /// Not to be mixed with the other calls.
    ///
    /// # Errors
    /// Those of upsert functions; they come again.
    pub fn next_rows(&mut self, functions: &UpsertFunctions) -> Result<Option<RowBatch>> {
        let mut rows = RowBatch::default();
        while rows.is_empty() && self.rest.is_some() {
            let (guard, buffer, mut keys) = (pin(), self.buffer.clone(), Vec::new());
            let (met, mut is_end) = self.meet(&buffer, &guard, &mut keys);
            rows.reserve(met.len());
            let mut last = 0..0;
            for (i, Met { key, versions }) in met.iter().enumerate() {
                last = key.clone();
                let newest = versions.up_to(self.sequence);
                match newest.map(VersionsRef::message) {
                    Some(MessageBytes::Insert(value)) => rows.push(key.clone(), value),
                    Some(MessageBytes::Delete) | None => {}
                    Some(MessageBytes::Upsert { .. }) => {
                        if let Some(value) = newest.map_or(Ok(None), |newest| resolve(newest, functions))? {
                            rows.push(key.clone(), &value);
                        }
                    }
                }
                if rows.bytes() >= BYTES_MAX {
                    is_end &= i + 1 == met.len();
                    break;
                }
            }
            self.advance((!is_end).then(|| keys[last].to_vec()));
            rows.set_keys(keys);
        }
        Ok((!rows.is_empty()).then_some(rows))
    }

    /// The next keys, whose bytes go to `keys`, and whether these are all. Their messages, which may be anywhere in memory, are
    /// asked for, but not yet looked at.
    fn meet<'g>(&self, buffer: &'g RootBuffer, guard: &'g Guard, keys: &mut Vec<u8>) -> (Vec<Met<'g>>, bool) {
        let Some(range) = &self.rest else { return (Vec::new(), true) };
        let (mut met, mut is_end) = (Vec::with_capacity(KEYS_FIRST), true);
        buffer.walk(range, self.direction == Direction::Descending, guard, |key, versions| {
            versions.prefetch();
            let start = keys.len();
            keys.extend_from_slice(key);
            met.push(Met { key: start..keys.len(), versions });
            is_end = met.len() < self.keys_ahead && keys.len() < BYTES_MAX;
            is_end
        });
        (met, is_end)
    }

    /// Leaves everything up to `last` behind (everything, if there is none).
    fn advance(&mut self, last: Option<Vec<u8>>) {
        self.keys_ahead = (self.keys_ahead * 2).min(KEYS_MAX);
        let rest = self.rest.take().zip(last).map(|(range, last)| match self.direction {
            Direction::Ascending => KeyRange { start: Bound::Excluded(last), end: range.end },
            Direction::Descending => KeyRange { start: range.start, end: Bound::Excluded(last) },
        });
        self.rest = rest.filter(|rest| !rest.is_empty());
    }
}

/// What the messages from `newest` down come to, if there is nothing below them.
///
/// # Errors
/// Those of upsert functions.
pub(crate) fn resolve(newest: VersionsRef<'_>, functions: &UpsertFunctions) -> Result<Option<Arc<[u8]>>> {
    let mut resolver = Resolver::default();
    let mut next = Some(newest);
    while let Some(versions) = next.filter(|_| !resolver.is_settled()) {
        resolver.add_message(versions.message());
        next = versions.older();
    }
    match resolver.finish(functions)? {
        None => Ok(None),
        Some(change) => Change::apply(&change, None, functions),
    }
}
