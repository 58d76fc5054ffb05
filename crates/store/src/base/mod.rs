//! Vocabulary of the crate: errors, options, schemas, key ranges, upsert functions and the sequence numbers of live snapshots.
//!
//! Nothing here does I/O or depends on an encoding. Every other folder may use this one.

mod bytes;
mod error;
mod options;
pub(crate) mod range;
mod schema;
mod snapshots;
mod upsert;

pub(crate) use bytes::Reader;
pub use error::{Error, Result};
pub use options::{Durability, Options};
pub use range::{Direction, KeyRange, successor};
pub use schema::{Column, ColumnType, Schema};
pub(crate) use snapshots::{Live, Registration, Snapshots};
pub use upsert::{UpsertFunction, UpsertFunctions};
