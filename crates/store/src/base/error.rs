//! Errors of the store: one variant for each case that a caller may handle in its own way.
//!
//! The comment of a variant names the SQLSTATE condition of PostgreSQL that describes it best. The mapping itself is
//! the business of the SQL layer.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_schema::{ArrowError, DataType};
use keyaki_device::{ByteRange, ErrorKind};

use crate::base::{Malformed, TreeId};

/// The result of a call into the store.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call into the store failed. `Clone`, because one failed read may have many waiters.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // The machine.
    /// A device call failed; the error has operation, path, offset and cause. SQLSTATE 58030 `io_error`.
    #[error(transparent)]
    Device(keyaki_device::Error),
    /// The disk has no room. The failed call changed nothing and may be repeated once there is space.
    /// SQLSTATE 53100 `disk_full`.
    #[error("could not {operation} \"{}\"{}: no space left on device (free disk space and retry)", .path.display(), range(*.offset, *.bytes))]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
        /// The device operation: `"allocate space in"`, `"write"` …
        operation: &'static str,
        /// Start of the range, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        bytes: u64,
    },
    /// A structure does not fit into the memory it may take. SQLSTATE 53200 `out_of_memory`.
    #[error("{what} needs {requested} bytes of memory, the limit is {budget} bytes (raise the limit)")]
    OutOfMemory {
        /// The structure.
        what: &'static str,
        /// Bytes it needs at least.
        requested: u64,
        /// Bytes it may take.
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
    /// A helper thread panicked; what it computed is lost, the store is not affected. SQLSTATE XX000 `internal_error`.
    #[error("thread \"{thread}\" panicked")]
    Panicked {
        /// Name of the thread.
        thread: &'static str,
    },

    /// The search tree of a locator could not be built. SQLSTATE XX000 `internal_error`.
    #[error("could not build the search tree of a locator: {0}")]
    SearchTree(keyaki_vast::Error),
    /// Arrow could not join two batches of rows. SQLSTATE XX000 `internal_error`.
    #[error("could not join two batches of rows: {0}")]
    Arrow(Arc<ArrowError>),

    // The database's files.
    /// The bytes read are not what was written. Nothing of the damaged part is ever returned as data.
    /// SQLSTATE XX001 `data_corrupted`.
    #[error("{}: corrupt {what}{}: {detail}", .path.display(), at(*.offset))]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The damaged structure: `"page"`, `"log"`, `"superblock"` …
        what: &'static str,
        /// Where it begins, in bytes from the start of the file; `None` if the damage has no single place.
        offset: Option<u64>,
        /// What was expected, and what was found.
        detail: String,
    },
    /// There is no database at this path, and none may be created. SQLSTATE 3D000 `invalid_catalog_name`.
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
        /// How that shows.
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

    // The state of the store.
    /// Another store has the database open. SQLSTATE 55006 `object_in_use`.
    #[error("database \"{}\" is locked: another process, or another handle of this process, has it open", .path.display())]
    Locked {
        /// The directory of the database.
        path: PathBuf,
    },
    /// A write or sync failed earlier. What reached the medium is unknown, so this handle writes nothing any more; reads
    /// go on. SQLSTATE 58030 `io_error`.
    #[error("writes are disabled after an earlier failure (reopen the database to recover): {cause}")]
    Poisoned {
        /// Text of the first failure.
        cause: String,
    },
    /// The last handle of the store was dropped; its files may belong to another process by now.
    /// SQLSTATE 57P01 `admin_shutdown`.
    #[error("the database is closed")]
    Closed,

    // Trees.
    /// SQLSTATE 42P01 `undefined_table`.
    #[error("tree {0} does not exist")]
    TreeNotFound(TreeId),
    /// SQLSTATE 42P07 `duplicate_table`.
    #[error("tree {0} already exists")]
    TreeExists(TreeId),
    /// The call is for trees of the other kind: on disk, or in memory. SQLSTATE 42809 `wrong_object_type`.
    #[error("tree {tree} is {}", if *.in_memory { "held in memory, not on disk" } else { "on disk, not held in memory" })]
    WrongTreeKind {
        /// The tree.
        tree: TreeId,
        /// The tree is one in memory, and the call is for trees on disk; or the other way round.
        in_memory: bool,
    },
    /// The tree has another schema than the call requires, or rows were loaded for another tree, schema or store than they
    /// are to go into. SQLSTATE 42804 `datatype_mismatch`.
    #[error("tree {tree}: {reason}")]
    TreeMismatch {
        /// The tree of the call.
        tree: TreeId,
        /// What differs.
        reason: &'static str,
    },

    // Limits.
    /// SQLSTATE 54000 `program_limit_exceeded`.
    #[error("{what} of {bytes} bytes exceeds the maximum of {limit} bytes")]
    TooLarge {
        /// `"key"`, `"row"`, `"operand"` …
        what: &'static str,
        /// Its length.
        bytes: u64,
        /// The longest one allowed.
        limit: u64,
    },
    /// SQLSTATE 54000 `program_limit_exceeded`.
    #[error("too many {what}: the maximum is {limit}")]
    TooMany {
        /// Plural: `"trees"`, `"columns"` …
        what: &'static str,
        /// The largest number allowed.
        limit: u64,
    },

    // Rows and keys given to the store.
    /// A bulk writer got a row whose key is below that of the row before. SQLSTATE 22023 `invalid_parameter_value`.
    #[error("row {row} is out of order: its key is less than the previous key")]
    OutOfOrder {
        /// Number of the row, counted over all calls of the writer, from 0.
        row: u64,
    },
    /// A bulk load got two rows with the same key. SQLSTATE 23505 `unique_violation`.
    #[error("row {row} has a duplicate key")]
    DuplicateKey {
        /// Number of the row, counted over all calls of the writer, from 0.
        row: u64,
    },
    /// SQLSTATE 42601 `syntax_error`; PostgreSQL uses it for lists of the wrong length.
    #[error("{found} columns given, {expected} expected")]
    ColumnCount {
        /// Columns of the schema, or of its key.
        expected: usize,
        /// Columns given.
        found: usize,
    },
    /// SQLSTATE 42804 `datatype_mismatch`.
    #[error("column \"{column}\" is of type {expected}, but the values are of type {found}")]
    ColumnType {
        /// Name of the column.
        column: String,
        /// Arrow type of the column.
        expected: DataType,
        /// Arrow type of the values given.
        found: DataType,
    },
    /// SQLSTATE 23502 `not_null_violation`.
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
    /// A write batch has an operation that cannot be decoded. SQLSTATE 22P03 `invalid_binary_representation`.
    #[error("invalid write batch: {detail} at byte {position}")]
    InvalidBatch {
        /// Bytes of the batch before the place where decoding stopped.
        position: usize,
        /// What was found there.
        detail: String,
    },
    /// An argument or option that is never valid. SQLSTATE 22023 `invalid_parameter_value`.
    #[error("invalid value for parameter \"{argument}\": {detail}")]
    InvalidArgument {
        /// Name of the argument or option.
        argument: &'static str,
        /// Which values are valid.
        detail: String,
    },

    // Upsert functions and page sources: code outside the store.
    /// SQLSTATE 42883 `undefined_function`.
    #[error("upsert function {0} does not exist")]
    UnknownUpsert(u32),
    /// An upsert function refused its arguments, or panicked. SQLSTATE 38000 `external_routine_exception`.
    #[error("upsert function {function} failed: {message}")]
    Upsert {
        /// Id of the function.
        function: u32,
        /// The function's own message.
        message: String,
    },
    /// An implementation of [`PageSource`](crate::PageSource) outside this crate failed for a reason of its own
    /// (the query was cancelled, for instance); the wrapped error has its own SQLSTATE.
    #[error(transparent)]
    PageSource(Arc<dyn std::error::Error + Send + Sync>),
}

/// A range of a file; nothing for calls that have none.
fn range(offset: u64, bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(" ({bytes} bytes at offset {offset})") }
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
        match error {
            keyaki_device::Error { operation, path: Some(path), kind: ErrorKind::NoSpace, .. } => {
                Error::DiskFull { path, operation: operation.verb(), offset: range.offset, bytes: range.len }
            }
            error => Error::Device(error),
        }
    }
}
