//! Vocabulary of the crate: errors, options, schemas, key ranges, upsert functions and the sequence numbers of live
//! snapshots.
//!
//! Nothing here does I/O or depends on an encoding. Every other folder may use this one.

mod bytes;
mod compression;
mod error;
mod format;
mod options;
mod prior;
mod range;
mod schema;
mod selection;
mod snapshots;
mod tree_id;
mod type_code;
mod upsert;

pub(crate) use bytes::{Malformed, Reader};
pub use compression::Compression;
pub use error::{Error, Result};
pub(crate) use format::FORMAT_VERSION;
pub use options::{Durability, MergePolicy, Options};
pub use prior::Prior;
pub use range::{Direction, KeyRange, RangeEstimate, successor};
pub(crate) use range::{Key, key_between, position_between};
pub use schema::{Column, ColumnType, Schema};
pub(crate) use schema::{
    KEY_COLUMNS_MAX, UUID_LEN, interval_of_wide, uuid_of_wide, uuids, wide_of_interval, wide_of_uuid,
};
pub(crate) use selection::{is_selected, is_selected_hash, selection_hash};
pub(crate) use snapshots::{Live, Registration, Snapshots};
pub use tree_id::{TreeId, TreeKind};
pub use type_code::ListType;
pub use upsert::{UpsertFunction, UpsertFunctions};
