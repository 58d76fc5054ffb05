//! Errors of publishing and reading versions, one variant for each case that a caller can handle differently.

use std::path::PathBuf;
use std::sync::Arc;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. Cloneable, because several readers can wait for one request.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object store refused a request, or failed it each time.
    #[error("could not {operation} \"{path}\" after {attempts} attempts: {source}")]
    Request {
        /// The request: `"read"`, `"write"` …
        operation: &'static str,
        /// The object, or the prefix of listed objects.
        path: String,
        /// Number of attempts.
        attempts: u32,
        /// The error of the last attempt.
        source: Arc<object_store::Error>,
    },
    /// The object store did not answer in time, each time.
    #[error("could not {operation} \"{path}\": {attempts} attempts timed out")]
    TimedOut {
        /// The request: `"read"`, `"write"` …
        operation: &'static str,
        /// The object, or the prefix of listed objects.
        path: String,
        /// Number of attempts.
        attempts: u32,
    },
    /// Each response had another length than requested, or failed its checksums.
    #[error("object \"{path}\" is damaged at offset {offset} ({detail}; {attempts} attempts)")]
    Damaged {
        /// The object.
        path: String,
        /// First byte of the request.
        offset: u64,
        /// The difference that the last response had.
        detail: String,
        /// Number of attempts.
        attempts: u32,
    },
    /// The object does not exist. For an object of a version: retention has removed the version.
    #[error("object \"{path}\" does not exist (its version may have been removed: open a newer version)")]
    Missing {
        /// The object.
        path: String,
    },
    /// A manifest has the right checksum, but contents that contradict each other.
    #[error("manifest \"{path}\" is invalid at offset {offset}: {detail}")]
    Malformed {
        /// The manifest.
        path: String,
        /// Position in the manifest, in bytes.
        offset: usize,
        /// The contradiction.
        detail: String,
    },
    /// The manifest was written by an incompatible version of Keyaki.
    #[error("manifest \"{path}\" has format version {found}; this program reads version {supported}")]
    FormatVersion {
        /// The manifest.
        path: String,
        /// Version in the manifest.
        found: u32,
        /// The only version that this program reads.
        supported: u32,
    },
    /// The version does not exist.
    #[error("version {number} does not exist in \"{repository}\"")]
    VersionNotFound {
        /// Number of the version.
        number: u64,
        /// The repository.
        repository: String,
    },
    /// The repository has no version.
    #[error("\"{repository}\" has no published version")]
    NoVersion {
        /// The repository.
        repository: String,
    },
    /// The repository has versions of another database.
    #[error("\"{repository}\" has versions of another database (publish to another URL)")]
    OtherDatabase {
        /// The repository.
        repository: String,
    },
    /// The newest version has more commits than the database: this is an older copy of it.
    #[error(
        "version {number} in \"{repository}\" has newer commits than this database (publish copies to another URL)"
    )]
    OlderState {
        /// Number of the newest version.
        number: u64,
        /// The repository.
        repository: String,
    },
    /// Another publisher added a version meanwhile, or a collector has taken the number of the version away, because
    /// some lease had expired. Nothing was published. The next attempt reuses the uploaded objects.
    #[error("another process took version number {number} meanwhile (publish again)")]
    Conflict {
        /// The number.
        number: u64,
    },
    /// The publisher's lease expired: publishing took longer than a week, or the lease was deleted. Nothing was
    /// published.
    #[error("the lease \"{path}\" of the publisher has expired (publish again)")]
    LeaseExpired {
        /// The lease.
        path: String,
    },
    /// The text is no URL of an object store, or the program was built without the client of that store.
    #[error("invalid URL \"{url}\": {detail}")]
    InvalidUrl {
        /// The text.
        url: String,
        /// The problem.
        detail: String,
    },
    /// The target of a clone exists and has files.
    #[error("directory \"{}\" is not empty (name another directory)", .path.display())]
    DirectoryNotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The directory of the local cache cannot be used.
    #[error("could not use cache directory \"{}\": {source}", .path.display())]
    CacheDirectory {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<std::io::Error>,
    },
    /// The operating system did not start a thread.
    #[error("could not start the threads of the object store client: {0}")]
    StartThread(Arc<std::io::Error>),
    /// A task panicked, or was cancelled because the repository was closed.
    #[error("a task of the object store client ended without a result")]
    Cancelled,
    /// The database failed to read its checkpoint, or to write it.
    #[error(transparent)]
    Database(#[from] keyaki_store::Error),
    /// A call on a local file failed.
    #[error(transparent)]
    Device(#[from] keyaki_device::Error),
}
