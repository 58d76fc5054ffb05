//! What can go wrong in the store.

use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

/// Cloneable, because one failed read may have many waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Device(#[from] keyaki_device::Error),
    /// The bytes read are not what was written. Nothing of the damaged page is ever returned as data.
    #[error("{}: damaged {what} at offset {offset}: {detail}", .path.display())]
    Damaged { path: PathBuf, what: &'static str, offset: u64, detail: String },
    #[error("{}: not a Keyaki database: {detail}", .path.display())]
    Foreign { path: PathBuf, detail: String },
    #[error("{}: format version {found}; this program reads version {supported}", .path.display())]
    Version { path: PathBuf, found: u32, supported: u32 },
    #[error("{}: the database is open in another process (or already open in this one)", .path.display())]
    Locked { path: PathBuf },
    /// A write or sync failed earlier; what reached the medium is unknown, so this handle writes no more. Reopen to recover.
    #[error("the store stopped accepting writes after an earlier failure: {cause}")]
    Poisoned { cause: String },
    /// The last handle of the store was dropped; its files may belong to another process by now.
    #[error("the store has been closed")]
    Closed,
    #[error("tree {0} does not exist")]
    NoTree(u32),
    #[error("the snapshot is read-only or the store was opened for reading only")]
    ReadOnly,
    /// Rows given to a bulk writer were not in strictly ascending key order.
    #[error("row {row} is not above its predecessor in key order{}", if *.duplicate { " (duplicate key)" } else { "" })]
    Order { row: u64, duplicate: bool },
    #[error("{what} of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge { what: &'static str, bytes: u64, limit: u64 },
    #[error("unknown upsert function {0}")]
    UnknownUpsert(u32),
    #[error("upsert function {function}: {message}")]
    Upsert { function: u32, message: String },
    #[error("{0}")]
    Invalid(String),
}
