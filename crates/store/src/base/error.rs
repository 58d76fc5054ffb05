//! Errors of the store, one variant for each case that a caller can handle differently.
//!
//! The documentation of each variant names the closest SQLSTATE condition of PostgreSQL. The SQL layer does the
//! mapping.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{ArrowError, DataType};
use keyaki_device::{ByteRange, ErrorKind, Operation};

use crate::base::{Malformed, TreeId, TreeKind};

/// The result of a call into the store.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the store. It implements `Clone` because several waiters can share one failed read.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // The machine.
    /// A device call failed. The source names operation, path, offset and cause. SQLSTATE 58030 `io_error`.
    #[error(transparent)]
    Device(keyaki_device::Error),
    /// No space left on the device. The failed call changed nothing and can be retried once space is free. A sync that fails
    /// for lack of space is an [`Error::Device`].
    /// SQLSTATE 53100 `disk_full`.
    #[error("could not {operation} \"{}\"{}: no space left on device (free disk space and retry)", .path.display(), range(*.offset, *.bytes))]
    DiskFull {
        /// The file that the call writes or extends.
        path: PathBuf,
        /// The device operation: `"allocate space in"`, `"write"` …
        operation: &'static str,
        /// Start of the range, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        bytes: u64,
    },
    /// A structure exceeds its memory budget. SQLSTATE 53200 `out_of_memory`.
    #[error("{what} needs {requested} bytes of memory, the limit is {budget} bytes (raise the limit)")]
    OutOfMemory {
        /// Name of the structure, for example `"locator"`.
        what: &'static str,
        /// Lower bound on the bytes it needs.
        requested: u64,
        /// Bytes it may use.
        budget: u64,
    },
    /// The operating system did not start a thread. SQLSTATE 53000 `insufficient_resources`.
    #[error("could not start thread \"{thread}\": {source}")]
    StartThread {
        /// Name of the thread.
        thread: &'static str,
        /// The operating system's error.
        source: Arc<std::io::Error>,
    },
    /// A helper thread panicked. Its result is lost, the store is unaffected. SQLSTATE XX000 `internal_error`.
    #[error("thread \"{thread}\" panicked")]
    Panicked {
        /// Name of the thread.
        thread: &'static str,
    },

    /// The search tree of a locator could not be built. SQLSTATE XX000 `internal_error`.
    #[error("could not build the search tree of a locator: {0}")]
    SearchTree(keyaki_vast::Error),
    /// Arrow could not concatenate two batches of rows. SQLSTATE XX000 `internal_error`.
    #[error("could not concatenate two batches of rows: {0}")]
    Arrow(Arc<ArrowError>),

    // The database's files.
    /// Stored bytes fail verification. The store never returns data from the damaged part.
    /// SQLSTATE XX001 `data_corrupted`.
    #[error("{}: corrupt {what}{}: {detail}", .path.display(), at(*.offset))]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The damaged structure: `"page"`, `"log"`, `"superblock"` …
        what: &'static str,
        /// Offset of the structure in the file, in bytes; `None` if the damage has no single position.
        offset: Option<u64>,
        /// The expected and the found values.
        detail: String,
    },
    /// A flush found the tree damaged. Its intact rows remain readable, its committed changes are kept, and it can be
    /// dropped. All other changes of it are refused until the database is opened again. SQLSTATE XX001
    /// `data_corrupted`.
    #[error("tree {tree} is damaged and accepts no changes (drop or truncate it): {cause}")]
    Quarantined {
        /// The tree.
        tree: TreeId,
        /// The error of the flush.
        cause: Arc<Error>,
    },
    /// No database exists at this path, and [`crate::Options::create`] is false. SQLSTATE 3D000 `invalid_catalog_name`.
    #[error("database \"{}\" does not exist", .path.display())]
    DatabaseNotFound {
        /// The directory.
        path: PathBuf,
    },
    /// The file or directory is not a Keyaki database. SQLSTATE 3D000 `invalid_catalog_name`.
    #[error("\"{}\" is not a Keyaki database: {detail}", .path.display())]
    NotADatabase {
        /// The file or directory.
        path: PathBuf,
        /// The evidence, for example a missing magic number.
        detail: String,
    },
    /// The database was written by an incompatible version of Keyaki. SQLSTATE 0A000 `feature_not_supported`.
    #[error("{}: format version {found} is not supported; this program reads version {supported}", .path.display())]
    FormatVersion {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// The only version that this program reads.
        supported: u32,
    },

    /// A commit that a transaction does not see has changed what the transaction changes, or depends on. Nothing was
    /// changed, and the transaction can be repeated. SQLSTATE 40001 `serialization_failure`.
    #[error("could not serialize access to tree {tree} due to a concurrent update (retry the transaction)")]
    Conflict {
        /// The tree with the changes of both.
        tree: TreeId,
    },

    // The state of the store.
    /// Another process, or another handle of this process, has the database open. SQLSTATE 55006 `object_in_use`.
    #[error("database \"{}\" is locked: {} has it open", .path.display(), .holder.as_deref().unwrap_or(UNKNOWN_HOLDER))]
    Locked {
        /// The directory of the database.
        path: PathBuf,
        /// The process that has it open, for example `process 1234 (keyaki)`, if it is known.
        holder: Option<String>,
    },
    /// The database was opened by [`Store::open_read_only`](crate::Store::open_read_only). SQLSTATE 25006
    /// `read_only_sql_transaction`.
    #[error("the database is open read-only")]
    ReadOnly,
    /// The process that writes the database has replaced each checkpoint before it was read completely. The call can be
    /// repeated. SQLSTATE 55006 `object_in_use`.
    #[error("the checkpoints of database \"{}\" were replaced while they were read (try again)", .path.display())]
    Overtaken {
        /// The directory of the database.
        path: PathBuf,
    },
    /// An earlier write or sync failed, so the contents of the medium are unknown. This handle refuses further writes;
    /// reads continue to work. Reopening the database recovers. SQLSTATE 58030 `io_error`.
    #[error("writes are disabled after an earlier failure (reopen the database to recover): {cause}")]
    Poisoned {
        /// Text of the first failure.
        cause: String,
    },
    /// The last handle of the store was dropped. Another process may own the files by now.
    /// SQLSTATE 57P01 `admin_shutdown`.
    #[error("the database is closed")]
    Closed,

    // Trees.
    /// No tree has this id. SQLSTATE 42P01 `undefined_table`.
    #[error("tree {0} does not exist")]
    TreeNotFound(TreeId),
    /// A tree with this id exists already. SQLSTATE 42P07 `duplicate_table`.
    #[error("tree {0} already exists")]
    TreeExists(TreeId),
    /// The call does not support trees of this kind (on disk, or in memory). SQLSTATE 42809 `wrong_object_type`.
    #[error("tree {tree} is {}", wrong_kind(*.kind))]
    WrongTreeKind {
        /// The tree.
        tree: TreeId,
        /// The kind of this tree. The call needs a tree of the other kind.
        kind: TreeKind,
    },
    /// The schema of the tree differs from the schema that the call requires, or loaded rows belong to another tree,
    /// schema or store. SQLSTATE 42804 `datatype_mismatch`.
    #[error("tree {tree}: {reason}")]
    TreeMismatch {
        /// The tree of the call.
        tree: TreeId,
        /// The difference.
        reason: &'static str,
    },

    // Limits.
    /// A value exceeds its maximum length. SQLSTATE 54000 `program_limit_exceeded`.
    #[error("{what} of {bytes} bytes exceeds the maximum of {limit} bytes")]
    TooLarge {
        /// `"key"`, `"row"`, `"operand"` …
        what: &'static str,
        /// Its length in bytes.
        bytes: u64,
        /// The maximum length in bytes.
        limit: u64,
    },
    /// A count exceeds its maximum. SQLSTATE 54000 `program_limit_exceeded`.
    #[error("too many {what}: the maximum is {limit}")]
    TooMany {
        /// Plural: `"trees"`, `"columns"` …
        what: &'static str,
        /// The maximum.
        limit: u64,
    },

    // Rows and keys given to the store.
    /// A row of a bulk load has a smaller key than the row before. SQLSTATE 22023 `invalid_parameter_value`.
    #[error("row {row} is out of order: its key is less than the previous key")]
    OutOfOrder {
        /// Index of the row over all calls of the writer, from 0.
        row: u64,
    },
    /// Two rows of a bulk load have the same key. SQLSTATE 23505 `unique_violation`.
    #[error("row {row} has a duplicate key")]
    DuplicateKey {
        /// Index of the row over all calls of the writer, from 0.
        row: u64,
    },
    /// The number of columns differs from that of the schema. SQLSTATE 42601 `syntax_error`, which PostgreSQL uses for
    /// lists of the wrong length.
    #[error("{found} columns given, {expected} expected")]
    ColumnCount {
        /// Number of columns of the schema, or of its key.
        expected: usize,
        /// Number of columns given.
        found: usize,
    },
    /// The values have another Arrow type than the column. SQLSTATE 42804 `datatype_mismatch`.
    #[error("column \"{column}\" is of type {expected}, but the values are of type {found}")]
    ColumnType {
        /// Name of the column.
        column: String,
        /// Arrow type of the column.
        expected: DataType,
        /// Arrow type of the values.
        found: DataType,
    },
    /// A column that is not nullable contains a null. SQLSTATE 23502 `not_null_violation`.
    #[error("null value in column \"{column}\" violates not-null constraint")]
    NullValue {
        /// Name of the column.
        column: String,
    },
    /// The bytes are not the encoding of a key of their tree. SQLSTATE 22P03 `invalid_binary_representation`.
    #[error("invalid encoding of a key of {len} bytes: {:02x?}", .start)]
    InvalidKey {
        /// Length in bytes.
        len: usize,
        /// The first bytes, at most 64.
        start: Vec<u8>,
    },
    /// The bytes are not the encoding of the value columns of a row of their tree.
    /// SQLSTATE 22P03 `invalid_binary_representation`.
    #[error("invalid encoding of a row of {len} bytes")]
    InvalidRow {
        /// Length in bytes.
        len: usize,
    },
    /// A write batch contains an operation that cannot be decoded. SQLSTATE 22P03 `invalid_binary_representation`.
    #[error("invalid write batch: {detail} at byte {position}")]
    InvalidBatch {
        /// Offset in the batch at which decoding stopped.
        position: usize,
        /// The problem at this position.
        detail: String,
    },
    /// An argument or option has a value that is never valid. SQLSTATE 22023 `invalid_parameter_value`.
    #[error("invalid value for parameter \"{argument}\": {detail}")]
    InvalidArgument {
        /// Name of the argument or option.
        argument: &'static str,
        /// The valid values.
        detail: String,
    },

    // Upsert functions and page sources: code outside the store.
    /// No upsert function is registered under this id. SQLSTATE 42883 `undefined_function`.
    #[error("upsert function {0} does not exist")]
    UnknownUpsert(u32),
    /// A sum of a row upsert could leave the range of its column. Nothing was written; the writer can read the row instead.
    /// SQLSTATE 22003 `numeric_value_out_of_range`.
    #[error("a sum of an upsert could leave the range of a column of tree {tree}")]
    UpsertRange {
        /// The tree of the upsert.
        tree: TreeId,
    },
    /// An upsert function returned an error or panicked. SQLSTATE 38000 `external_routine_exception`.
    #[error("upsert function {function} failed: {message}")]
    Upsert {
        /// Id of the function.
        function: u32,
        /// The error message of the function, or the message of its panic.
        message: String,
    },
    /// A [`PageSource`](crate::PageSource) outside this crate failed, for example because its query was cancelled. The
    /// wrapped error has its own SQLSTATE.
    #[error(transparent)]
    PageSource(Arc<dyn std::error::Error + Send + Sync>),
}

/// The holder of a lock in [`Error::Locked`] if it is not known.
const UNKNOWN_HOLDER: &str = "another process, or another handle of this process,";

impl Error {
    /// The error of a call that locks the database in `dir`.
    pub(crate) fn of_lock(dir: &Path, error: keyaki_device::Error) -> Error {
        match error.is_locked() {
            true => Error::Locked { path: dir.to_path_buf(), holder: error.lock_holder().map(str::to_owned) },
            false => error.into(),
        }
    }

    /// True for a device error because a file does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::Device(error) if error.is_not_found())
    }

    /// True for errors that come from a damaged or unreadable part of a tree.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Error::Corrupt { .. } => true,
            Error::Device(error) => error.operation == Operation::Read,
            _ => false,
        }
    }
}

/// The text for a byte range of a file, empty if its length is 0.
fn range(offset: u64, bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(" ({bytes} bytes at offset {offset})") }
}

/// Description of a tree of a kind that a call does not support.
fn wrong_kind(kind: TreeKind) -> &'static str {
    match kind {
        TreeKind::Disk => "on disk, not held in memory",
        TreeKind::Memory => "held in memory, not on disk",
    }
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at offset {offset}"))
}

impl From<Malformed> for Error {
    fn from(Malformed { position, detail }: Malformed) -> Self {
        Error::InvalidBatch { position, detail }
    }
}

impl From<keyaki_device::Error> for Error {
    fn from(error: keyaki_device::Error) -> Self {
        let range = error.range.unwrap_or(ByteRange { offset: 0, len: 0 });
        // A sync that fails for lack of space may have lost writes, so it is no `DiskFull`, after which calls are repeated.
        let is_sync = matches!(error.operation, Operation::Sync | Operation::SyncDir);
        match error {
            keyaki_device::Error { operation, path: Some(path), kind: ErrorKind::NoSpace, .. } if !is_sync => {
                Error::DiskFull { path, operation: operation.verb(), offset: range.offset, bytes: range.len }
            }
            error => Error::Device(error),
        }
    }
}
