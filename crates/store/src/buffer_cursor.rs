//! Walking over a root buffer: some keys ahead are copied at a time, so that nothing of the buffer is held meanwhile.
//!
//! What a cursor gives depends only on its snapshot's sequence number. Messages that come in meanwhile are newer; those that
//! are taken out meanwhile are nobody's (see `collect`), and each key is looked at once.

use std::ops::{Bound, Range};
use std::sync::Arc;

use keyaki_masstree::pin;

use crate::buffer::RootBuffer;
use crate::chunk::RowBatch;
use crate::overlay::{Change, Resolver};
use crate::range::is_empty;
use crate::tree::Key;
use crate::upsert::UpsertFunctions;
use crate::versions::VersionsRef;
use crate::write::MessageBytes;
use crate::{Direction, KeyRange, Result};

/// Keys that are copied at a time: few at first, for short ranges.
const KEYS_FIRST: usize = 32;
const KEYS_MAX: usize = 1024;
/// Bytes copied at a time (the last key may exceed them).
const BYTES_MAX: usize = 256 << 10;
/// Keys without messages that are to be seen, for each key that is copied: readers must not hold back for long what is to
/// be freed.
const PASSED_PER_KEY: usize = 16;

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

/// How much has been copied.
struct Quota {
    keys: usize,
    passed: usize,
}

impl Quota {
    /// Whether there may be more.
    fn goes_on(&mut self, keys: usize, bytes: usize) -> bool {
        self.passed += 1;
        keys < self.keys && bytes < BYTES_MAX && self.passed < self.keys * PASSED_PER_KEY
    }
}

impl Ahead {
    fn clear(&mut self) {
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

    fn push(&mut self, key: &[u8], newest: VersionsRef<'_>) {
        let bytes = self.copy(key);
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
        self.keys.push(AheadKey { bytes, messages: start..self.messages.len() });
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

impl BufferCursor {
    pub fn new(buffer: Arc<RootBuffer>, range: KeyRange, sequence: u64, direction: Direction) -> Self {
        let rest = (!is_empty(&range)).then_some(range);
        BufferCursor { buffer, sequence, direction, rest, keys_ahead: KEYS_FIRST, ahead: Ahead::default() }
    }

    /// The next key.
    pub fn key(&mut self) -> Option<Key> {
        while self.ahead.taken == self.ahead.keys.len() && self.rest.is_some() {
            self.fill();
        }
        let key = self.ahead.keys.get(self.ahead.taken)?;
        Some(self.ahead.bytes[key.bytes.clone()].into())
    }

    /// Takes all messages for `key`, which is the next one; gives the key after it.
    pub fn take(&mut self, key: &[u8], resolver: &mut Resolver) -> Option<Key> {
        if let Some(next) = self.ahead.keys.get(self.ahead.taken)
            && self.ahead.bytes[next.bytes.clone()] == *key
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
        let (sequence, mut ahead) = (self.sequence, std::mem::take(&mut self.ahead));
        ahead.clear();
        // `visit` gives no errors.
        let _ = self.walk(|key, versions, quota| {
            if let Some(newest) = versions.up_to(sequence) {
                ahead.push(key, newest);
            }
            Ok(quota.goes_on(ahead.keys.len(), ahead.bytes.len()))
        });
        self.ahead = ahead;
    }

    /// The next rows, if the buffer's messages are all there are: deletes and upserts are taken into account. None at the end.
    /// Not to be mixed with the other calls.
    ///
    /// # Errors
    /// Those of upsert functions; they come again.
    pub fn next_rows(&mut self, functions: &UpsertFunctions) -> Result<Option<RowBatch>> {
        let sequence = self.sequence;
        let mut rows = RowBatch::default();
        while rows.is_empty() && self.rest.is_some() {
            self.walk(|key, versions, quota| {
                let newest = versions.up_to(sequence);
                match newest.map(VersionsRef::message) {
                    Some(MessageBytes::Insert(value)) => rows.push(key, value),
                    Some(MessageBytes::Delete) | None => {}
                    Some(MessageBytes::Upsert { .. }) => {
                        if let Some(value) = newest.map_or(Ok(None), |newest| resolve(newest, functions))? {
                            rows.push(key, &value);
                        }
                    }
                }
                Ok(quota.goes_on(rows.len(), rows.bytes()))
            })?;
        }
        Ok((!rows.is_empty()).then_some(rows))
    }

    /// Visits keys until `visit` says that it is enough. An error changes nothing.
    fn walk(&mut self, mut visit: impl FnMut(&[u8], VersionsRef<'_>, &mut Quota) -> Result<bool>) -> Result<()> {
        let Some(range) = &self.rest else { return Ok(()) };
        let mut quota = Quota { keys: self.keys_ahead, passed: 0 };
        let mut stopped = Ok(None);
        let descending = self.direction == Direction::Descending;
        self.buffer.walk(range, descending, &pin(), |key, versions| match visit(key, versions, &mut quota) {
            Ok(true) => true,
            Ok(false) => {
                stopped = Ok(Some(key.to_vec()));
                false
            }
            Err(error) => {
                stopped = Err(error);
                false
            }
        });
        let last = stopped?;
        self.keys_ahead = (self.keys_ahead * 4).min(KEYS_MAX);
        self.rest = self.rest.take().zip(last).map(|(range, last)| match self.direction {
            Direction::Ascending => KeyRange { start: Bound::Excluded(last), end: range.end },
            Direction::Descending => KeyRange { start: range.start, end: Bound::Excluded(last) },
        });
        self.rest = self.rest.take().filter(|rest| !is_empty(rest));
        Ok(())
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
