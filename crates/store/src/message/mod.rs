//! Messages: the changes to one key, how a batch of them is encoded, and how the messages of one key are resolved.
//!
//! A message is an insert, a delete or an upsert. [`WriteBatch`] encodes messages for the log; [`Resolver`] folds the
//! messages of one key, newest first, into one [`Change`]; a [`Block`] has decoded messages of many keys. Messages of a key are ordered by sequence number, and an insert
//! or a delete hides every older message.

mod batch;
mod block;
mod resolver;
mod upserts;
mod widen;

use crate::base::Prior;

pub use batch::WriteBatch;
pub(crate) use batch::{Operation, Operations, decode};
pub(crate) use block::{Block, BlockBuilder, prefix_of};
pub(crate) use resolver::{Change, PageRow, Resolver};
pub(crate) use upserts::Upserts;
pub(crate) use widen::Widened;

/// Maximum length of a key in bytes.
pub(crate) const KEY_LIMIT: usize = 64 << 10;
/// Maximum length of a value or an operand in bytes.
pub(crate) const VALUE_LIMIT: usize = 64 << 20;

/// A message with borrowed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageBytes<'a> {
    /// Value bytes, see [`crate::RowCodec`].
    Insert(&'a [u8]),
    Delete,
    Upsert {
        function: u32,
        operand: &'a [u8],
    },
}

impl MessageBytes<'_> {
    /// Change of the number of rows by this message; `None` if it is unknown.
    pub fn delta(&self, prior: Prior) -> Option<i64> {
        let before = prior.rows()?;
        match self {
            MessageBytes::Insert(_) => Some(1 - before),
            MessageBytes::Delete => Some(-before),
            MessageBytes::Upsert { .. } => None,
        }
    }

    /// Estimated change of the number of rows by this message, on top of the older messages of its key in the same
    /// buffer, the newest of which is `older`. Where nothing is known, an insert or upsert is assumed to add a row and a
    /// delete to remove one.
    pub fn net_rows(&self, older: Option<MessageBytes<'_>>, prior: Prior) -> i64 {
        let rows = |message: &MessageBytes<'_>| i64::from(!matches!(message, MessageBytes::Delete));
        let before = match older {
            Some(older) => rows(&older),
            None => prior.rows().unwrap_or(1 - rows(self)),
        };
        rows(self) - before
    }

    /// Length of the value, or of the operand and the function id, in bytes.
    pub fn len(&self) -> usize {
        match self {
            MessageBytes::Insert(value) => value.len(),
            MessageBytes::Delete => 0,
            MessageBytes::Upsert { operand, .. } => operand.len() + 4,
        }
    }
}
