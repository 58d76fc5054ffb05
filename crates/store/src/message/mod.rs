//! Messages: the changes to one key, how a batch of them is encoded, and how the messages of one key are resolved.
//!
//! A message is an insert, a delete or an upsert. [`WriteBatch`] encodes messages for the log; [`Resolver`] folds the
//! messages of one key, newest first, into one [`Change`]. Messages of a key are ordered by sequence number, and an insert
//! or a delete hides every older message.

mod batch;
mod resolver;

pub use batch::{BulkWriter, Loaded, TreeId, WriteBatch};
pub(crate) use batch::{KEY_LIMIT, LoadedRows, MessageBytes, Operation, VALUE_LIMIT, check_columns, decode};
pub(crate) use resolver::{Change, Resolver, encode_operands};
