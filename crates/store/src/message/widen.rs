//! Messages of a tree whose schema has been extended.

use crate::codec::{ROW_UPSERT, RowCodec, RowUpsert};
use crate::message::MessageBytes;

/// A message of the codec of a schema, as one of the codec of a schema that extends it.
#[derive(Debug)]
pub(crate) enum Widened<'a> {
    /// The message does not depend on the columns.
    Same(MessageBytes<'a>),
    Insert(Vec<u8>),
    RowUpsert(Vec<u8>),
}

impl<'a> Widened<'a> {
    /// Converts a message of `old` to one of `new`; `None` if it is invalid.
    pub fn new(message: MessageBytes<'a>, old: &RowCodec, new: &RowCodec) -> Option<Self> {
        Some(match message {
            MessageBytes::Insert(row) => Widened::Insert(new.widened(old, row)?),
            MessageBytes::Upsert { function: ROW_UPSERT, operand } => {
                Widened::RowUpsert(RowUpsert::decode(old, operand)?.widened(new)?)
            }
            other => Widened::Same(other),
        })
    }

    /// The message.
    pub fn message(&self) -> MessageBytes<'_> {
        match self {
            Widened::Same(message) => *message,
            Widened::Insert(row) => MessageBytes::Insert(row),
            Widened::RowUpsert(operand) => MessageBytes::Upsert { function: ROW_UPSERT, operand },
        }
    }
}
