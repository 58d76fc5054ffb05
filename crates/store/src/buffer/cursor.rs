//! Cursors over a root buffer. A cursor copies a batch of keys with their messages, so that it holds no guard between
//! calls.
//!
//! *Invariant.* The result depends only on the snapshot's sequence number: messages inserted between calls are newer
//! than the snapshot, and messages removed between calls are invisible to every live snapshot (see
//! [`garbage`](super::garbage)). Each key is read once.

use std::ops::{Bound, Range};
use std::sync::Arc;

use keyaki_masstree::{Guard, pin};

use crate::base::{Direction, KeyRange, Prior, Result, is_selected};
use crate::buffer::{MessageChainRef, RootBuffer};
use crate::codec::RowBatch;
use crate::message::{BlockBuilder, Change, MessageBytes, Resolver, Upserts};

/// Keys in the first batch, which is small for short ranges; each batch has twice the keys of the batch before.
const KEYS_FIRST: usize = 16;
/// Maximum number of keys in a batch.
const KEYS_MAX: usize = 1024;
/// A batch ends with the key that brings it to this number of bytes.
const BYTES_MAX: usize = 256 << 10;

/// A cursor over the keys of a range that have messages up to a sequence number, in either direction.
#[derive(Debug)]
pub(crate) struct BufferCursor {
    buffer: Arc<RootBuffer>,
    sequence: u64,
    direction: Direction,
    /// The range after the batch in `ahead`; `None` at the end.
    rest: Option<KeyRange>,
    /// Maximum number of keys of the next batch.
    keys_ahead: usize,
    ahead: Ahead,
    /// [`BufferCursor::next_messages`] leaves out the keys that a sample of this level does not have.
    level: u32,
}

/// A batch of keys. Each has its messages, newest first, up to and including the newest insert or delete.
#[derive(Debug, Default)]
struct Ahead {
    key_bytes: Vec<u8>,
    bytes: Vec<u8>,
    keys: Vec<AheadKey>,
    messages: Vec<AheadMessage>,
    /// Number of keys consumed.
    taken: usize,
}

#[derive(Debug)]
struct AheadKey {
    bytes: Range<usize>,
    /// Knowledge of the row below all messages of the key.
    prior: Prior,
    messages: Range<usize>,
}

/// A message; ranges refer to [`Ahead::bytes`].
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

    /// Adds a key whose bytes are in `key_bytes` already.
    fn push(&mut self, key: Range<usize>, newest: MessageChainRef<'_>) {
        let start = self.messages.len();
        let mut next = Some(newest);
        while let Some(chain) = next {
            let message = chain.message();
            next = None;
            let message = match message {
                MessageBytes::Insert(value) => AheadMessage::Insert(self.copy(value)),
                MessageBytes::Delete => AheadMessage::Delete,
                MessageBytes::Upsert { function, operand } => {
                    next = chain.older();
                    AheadMessage::Upsert(function, self.copy(operand))
                }
            };
            self.messages.push(message);
        }
        self.keys.push(AheadKey { bytes: key, prior: newest.prior(), messages: start..self.messages.len() });
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

/// A key found by a walk: the range of its bytes in the buffer passed to the walk, and its message chain.
struct Found<'g> {
    key: Range<usize>,
    chain: MessageChainRef<'g>,
}

impl BufferCursor {
    pub fn new(buffer: Arc<RootBuffer>, range: KeyRange, sequence: u64, direction: Direction) -> Self {
        let rest = (!range.is_empty()).then_some(range);
        BufferCursor { buffer, sequence, direction, rest, keys_ahead: KEYS_FIRST, ahead: Ahead::default(), level: 0 }
    }

    /// Leaves out the messages of keys that a sample of this level does not have, in [`BufferCursor::next_messages`].
    pub fn selecting(self, level: u32) -> Self {
        BufferCursor { level, ..self }
    }

    /// Provides the next key for [`BufferCursor::next_key`]; false at the end. Does not consume it.
    pub fn has_key(&mut self) -> bool {
        while self.ahead.taken == self.ahead.keys.len() && self.rest.is_some() {
            self.fill();
        }
        self.ahead.taken < self.ahead.keys.len()
    }

    /// The next key, after [`BufferCursor::has_key`] has returned true; otherwise empty.
    pub fn next_key(&self) -> &[u8] {
        let key = self.ahead.keys.get(self.ahead.taken);
        key.map_or(&[], |key| &self.ahead.key_bytes[key.bytes.clone()])
    }

    /// Consumes the next key, adding its messages to `resolver`. Returns false if it was the last one.
    pub fn take(&mut self, resolver: &mut Resolver) -> bool {
        if let Some(next) = self.ahead.keys.get(self.ahead.taken) {
            for number in next.messages.clone() {
                resolver.add_message(self.ahead.message(number));
            }
            resolver.set_prior(next.prior);
            self.ahead.taken += 1;
        }
        self.has_key()
    }

    /// True if the newest message of the next key is an upsert.
    pub fn is_upsert(&self) -> bool {
        let next = self.ahead.keys.get(self.ahead.taken);
        next.is_some_and(|next| matches!(self.ahead.messages[next.messages.start], AheadMessage::Upsert(..)))
    }

    /// Consumes the next key. Returns false if it was the last one.
    pub fn skip(&mut self) -> bool {
        self.ahead.taken += usize::from(self.ahead.taken < self.ahead.keys.len());
        self.has_key()
    }

    /// Copies the next batch.
    fn fill(&mut self) {
        let (guard, buffer, mut ahead) = (pin(), self.buffer.clone(), std::mem::take(&mut self.ahead));
        ahead.clear();
        let (found, mut is_end) = self.find_keys(&buffer, &guard, &mut ahead.key_bytes);
        let mut last = 0..0;
        for (i, Found { key, chain }) in found.iter().enumerate() {
            last = key.clone();
            if let Some(newest) = chain.up_to(self.sequence) {
                ahead.push(key.clone(), newest);
            }
            if ahead.bytes.len() >= BYTES_MAX {
                is_end &= i + 1 == found.len();
                break;
            }
        }
        self.advance((!is_end).then(|| ahead.key_bytes[last].to_vec()));
        self.ahead = ahead;
    }

    /// Adds the messages of the next keys, one for each key, to `block`; adds nothing at the end. A cursor used with this
    /// method must not be used with `next_key` and `take`.
    ///
    /// # Errors
    /// Errors of upsert functions.
    pub fn next_messages(&mut self, block: &mut BlockBuilder, functions: Upserts<'_>) -> Result<()> {
        self.keys_ahead = KEYS_MAX;
        let (guard, buffer, mut keys) = (pin(), self.buffer.clone(), Vec::new());
        while block.len() == 0 && self.rest.is_some() {
            keys.clear();
            let (found, mut is_end) = self.find_keys(&buffer, &guard, &mut keys);
            let mut last = 0..0;
            for (i, Found { key, chain }) in found.iter().enumerate() {
                last = key.clone();
                let (key, Some(newest)) = (&keys[key.clone()], chain.up_to(self.sequence)) else { continue };
                if !is_selected(key, self.level) {
                    continue;
                }
                match newest.message() {
                    MessageBytes::Upsert { .. } => {
                        if let Some(change) = resolved(newest, functions)? {
                            block.push_change(key, &change, newest.prior());
                        }
                    }
                    message => block.push(key, message, newest.prior()),
                }
                if block.bytes() >= BYTES_MAX {
                    is_end &= i + 1 == found.len();
                    break;
                }
            }
            self.advance((!is_end).then(|| keys[last].to_vec()));
        }
        Ok(())
    }

    /// The next rows of a memory tree, whose buffer holds all its messages: deletes and upserts are resolved. `None` at
    /// the end. A cursor used with this method must not be used with `next_key` and `take`.
    ///
    /// # Errors
    /// Errors of upsert functions. The cursor does not advance past an error: the next call returns it again.
    pub fn next_rows(&mut self, functions: Upserts<'_>) -> Result<Option<RowBatch>> {
        let mut rows = RowBatch::default();
        while rows.is_empty() && self.rest.is_some() {
            let (guard, buffer, mut keys) = (pin(), self.buffer.clone(), Vec::new());
            let (found, mut is_end) = self.find_keys(&buffer, &guard, &mut keys);
            rows.reserve(found.len());
            let mut last = 0..0;
            for (i, Found { key, chain }) in found.iter().enumerate() {
                last = key.clone();
                let newest = chain.up_to(self.sequence);
                match newest.map(MessageChainRef::message) {
                    Some(MessageBytes::Insert(value)) => rows.push(key.clone(), value),
                    Some(MessageBytes::Delete) | None => {}
                    Some(MessageBytes::Upsert { .. }) => {
                        if let Some(value) = newest.map_or(Ok(None), |newest| resolve(newest, functions))? {
                            rows.push(key.clone(), &value);
                        }
                    }
                }
                if rows.bytes() >= BYTES_MAX {
                    is_end &= i + 1 == found.len();
                    break;
                }
            }
            self.advance((!is_end).then(|| keys[last].to_vec()));
            rows.set_keys(keys);
        }
        Ok((!rows.is_empty()).then_some(rows))
    }

    /// The number of the next rows, as [`BufferCursor::next_rows`] returns them; `None` at the end.
    ///
    /// # Errors
    /// Those of [`BufferCursor::next_rows`].
    pub fn count_rows(&mut self, functions: Upserts<'_>) -> Result<Option<u64>> {
        if self.rest.is_none() {
            return Ok(None);
        }
        let (guard, buffer, mut keys) = (pin(), self.buffer.clone(), Vec::new());
        let (found, is_end) = self.find_keys(&buffer, &guard, &mut keys);
        let mut rows = 0;
        for newest in found.iter().filter_map(|found| found.chain.up_to(self.sequence)) {
            rows += u64::from(match newest.message() {
                MessageBytes::Insert(_) => true,
                MessageBytes::Delete => false,
                MessageBytes::Upsert { .. } => resolve(newest, functions)?.is_some(),
            });
        }
        let last = found.last().filter(|_| !is_end).map(|found| keys[found.key.clone()].to_vec());
        self.advance(last);
        Ok(Some(rows))
    }

    /// The next keys, whose bytes are appended to `keys`, and true if they reach the end of the range. Prefetches the
    /// newest message of each key without reading it.
    fn find_keys<'g>(&self, buffer: &'g RootBuffer, guard: &'g Guard, keys: &mut Vec<u8>) -> (Vec<Found<'g>>, bool) {
        let Some(range) = &self.rest else { return (Vec::new(), true) };
        let (mut found, mut is_end) = (Vec::with_capacity(KEYS_FIRST), true);
        buffer.walk(range, self.direction == Direction::Descending, guard, |key, chain| {
            chain.prefetch();
            let start = keys.len();
            keys.extend_from_slice(key);
            found.push(Found { key: start..keys.len(), chain });
            is_end = found.len() < self.keys_ahead && keys.len() < BYTES_MAX;
            is_end
        });
        (found, is_end)
    }

    /// Continues the range after `last`; ends it if `last` is `None`.
    fn advance(&mut self, last: Option<Vec<u8>>) {
        self.keys_ahead = (self.keys_ahead * 2).min(KEYS_MAX);
        let rest = self.rest.take().zip(last).map(|(range, last)| match self.direction {
            Direction::Ascending => KeyRange { start: Bound::Excluded(last), end: range.end },
            Direction::Descending => KeyRange { start: range.start, end: Bound::Excluded(last) },
        });
        self.rest = rest.filter(|rest| !rest.is_empty());
    }
}

/// The value that the chain from `newest` on resolves to, with no row below it; `None` if the key has no row.
///
/// # Errors
/// Errors of upsert functions.
pub(crate) fn resolve(newest: MessageChainRef<'_>, functions: Upserts<'_>) -> Result<Option<Arc<[u8]>>> {
    match resolved(newest, functions)? {
        None => Ok(None),
        Some(change) => Change::apply(&change, None, functions),
    }
}

/// The change that the chain from `newest` on resolves to.
fn resolved(newest: MessageChainRef<'_>, functions: Upserts<'_>) -> Result<Option<Change>> {
    let mut resolver = Resolver::default();
    let mut next = Some(newest);
    while let Some(chain) = next.filter(|_| !resolver.is_settled()) {
        resolver.add_message(chain.message());
        next = chain.older();
    }
    Ok(resolver.finish(functions)?.map(|(change, _)| change))
}
