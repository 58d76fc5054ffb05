//! Asynchronous block I/O over files.
//!
//! A [`Device`] opens [`File`]s and makes [`Queue`]s. Files offer blocking calls for whoever may wait (log, flush,
//! checkpoint); a queue belongs to one worker thread and keeps many requests in flight: requests are pushed, handed to
//! the operating system in one batch by [`Queue::submit`], and come back in any order from [`Queue::complete`].
//!
//! Three devices: `uring` (Linux io_uring, direct I/O), `threads` (portable pool of blocking calls) and
//! [`simulated`] (in memory, deterministic, virtual time, faults).
//!
//! Invariants: offsets, lengths and buffer addresses are multiples of [`BLOCK`]; nothing above this crate calls the
//! operating system for data I/O.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

mod arena;
mod buffer;
pub mod calibrate;
#[cfg(test)]
mod conformance;
mod error;
#[cfg(unix)]
mod os;
mod request;
pub mod simulated;
#[cfg(unix)]
mod threads;
#[cfg(target_os = "linux")]
mod uring;

pub use buffer::Buffer;
pub use error::{Error, Result};

/// Alignment of offsets, lengths and buffer addresses, in bytes.
pub const BLOCK: usize = 4096;

/// The device that suits this machine: io_uring where the kernel permits it, else a pool of threads. The environment
/// variable `KEYAKI_IO` (`uring` or `threads`) decides otherwise.
///
/// # Errors
/// If `KEYAKI_IO` has another value, or asks for an io_uring that is not to be had.
#[cfg(unix)]
pub fn open_default() -> Result<Arc<dyn Device>> {
    choose(std::env::var_os("KEYAKI_IO").as_deref())
}

#[cfg(unix)]
fn choose(wish: Option<&std::ffi::OsStr>) -> Result<Arc<dyn Device>> {
    match wish.map(std::ffi::OsStr::as_encoded_bytes) {
        None | Some(b"") => uring().or_else(|error| {
            tracing::info!(%error, "io_uring is not available; a pool of threads does the I/O");
            threads()
        }),
        Some(b"uring") => uring(),
        Some(b"threads") => threads(),
        Some(_) => {
            let why = "the environment variable KEYAKI_IO must be `uring` or `threads`";
            Err(Error::invalid("choose I/O", Path::new(wish.unwrap_or_default()), 0, 0, why))
        }
    }
}

/// Files of the operating system, requests kept in flight by io_uring.
///
/// # Errors
/// If the kernel does not permit io_uring, or is older than Linux 5.13.
#[cfg(target_os = "linux")]
pub fn uring() -> Result<Arc<dyn Device>> {
    let setup = uring::probe().map_err(|error| Error::on_path("open", Path::new("io_uring"), error))?;
    Ok(Arc::new(os::OsDevice::new(os::Backend::Uring(setup))))
}

/// Always an error: io_uring is Linux's.
#[cfg(all(unix, not(target_os = "linux")))]
pub fn uring() -> Result<Arc<dyn Device>> {
    let error = std::io::Error::from(std::io::ErrorKind::Unsupported);
    Err(Error::on_path("open", Path::new("io_uring"), error))
}

/// Files of the operating system, requests carried out by a pool of threads with blocking calls.
#[cfg(unix)]
pub fn threads() -> Result<Arc<dyn Device>> {
    Ok(Arc::new(os::OsDevice::new(os::Backend::Threads(Arc::new(threads::Pool::new())))))
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing file, reads only.
    Read,
    /// Existing file, reads and writes.
    ReadWrite,
    /// New file; an existing one is an error.
    CreateNew,
}

/// A place that holds files: the operating system's file system, or a simulated one.
pub trait Device: Send + Sync + Debug {
    /// `"uring"`, `"threads"` or `"simulated"`.
    fn name(&self) -> &'static str;
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>>;
    /// A queue for one worker, with room for `depth` requests in flight.
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>>;
    fn create_dir(&self, path: &Path) -> Result<()>;
    /// Names (not paths) of the entries of a directory, sorted.
    fn list(&self, dir: &Path) -> Result<Vec<String>>;
    fn exists(&self, path: &Path) -> Result<bool>;
    fn remove(&self, path: &Path) -> Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Makes creations, removals and renames in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Takes the exclusive lock of `path` (created if missing) until the guard is dropped or the process dies;
    /// [`Error::is_locked`] when another process, or another opener in this one, has it.
    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>>;
    /// Nanoseconds since the device was made; virtual for the simulated device.
    fn now_ns(&self) -> u64;
}

/// Holds an exclusive lock; dropping it releases the lock.
pub trait Lock: Send + Sync + Debug {}

/// An open file. Blocking calls; see [`Queue`] for the asynchronous ones.
pub trait File: Send + Sync + Debug {
    fn path(&self) -> &Path;
    /// Length in bytes.
    fn len(&self) -> Result<u64>;
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Fills `buffer` from `offset`; reaching the end of the file before is an error (`Error::is_short`).
    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()>;
    fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()>;
    /// Makes all completed writes durable (`fdatasync`). After an error the caller must stop using the file for writes.
    fn sync_data(&self) -> Result<()>;
    fn truncate(&self, len: u64) -> Result<()>;
    /// Reserves space so that writes inside it cannot fail for lack of space; extends the file.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;
    /// For implementations of [`Queue`]: the concrete type.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// One request: `tag` is given back with its completion.
#[derive(Debug)]
pub struct Request {
    pub file: Arc<dyn File>,
    pub offset: u64,
    pub op: Op,
    pub tag: u64,
}

#[derive(Debug)]
pub enum Op {
    /// Fill the whole buffer.
    Read(Buffer),
    /// Write the whole buffer.
    Write(Buffer),
    /// `fdatasync`; `offset` is ignored.
    Sync,
}

#[derive(Debug)]
pub struct Completion {
    pub tag: u64,
    /// The request's buffer (none for [`Op::Sync`]).
    pub buffer: Option<Buffer>,
    pub result: Result<()>,
}

/// How long [`Queue::complete`] waits when nothing has completed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    No,
    /// Until one completion, a wake-up by the queue's [`Waker`], or the time-out. A wake-up is used up by the wait that
    /// it ends without a completion; one that comes with completions stays for the next.
    Until(Option<Duration>),
}

/// A worker's own queue of requests in flight. Not shared between threads, but may be moved to its worker.
///
/// Dropping a queue waits for the requests that have been started and forgets the others.
pub trait Queue: Send {
    /// A buffer of `len` bytes (multiple of [`BLOCK`]) with unspecified contents: one registered with the kernel when
    /// there is one to spare. It belongs to no queue in particular and may be kept and dropped anywhere.
    fn buffer(&mut self, len: usize) -> Buffer;
    /// Adds a request to the next batch. Never blocks; the queue keeps what exceeds its depth until there is room.
    fn push(&mut self, request: Request);
    /// Starts everything pushed so far, in one system call where possible.
    fn submit(&mut self) -> Result<()>;
    /// Appends what has completed to `out`; submits first. Returns how many were appended.
    fn complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<usize>;
    /// Requests pushed and not yet completed.
    fn in_flight(&self) -> usize;
    fn waker(&self) -> Arc<dyn Waker>;
}

/// Ends another thread's [`Queue::complete`] wait (or makes its next one return at once).
pub trait Waker: Send + Sync + Debug {
    fn wake(&self);
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_environment_chooses() {
        assert_eq!(choose(Some("threads".as_ref())).unwrap().name(), "threads");
        let default = choose(None).unwrap().name();
        assert_eq!(choose(Some("".as_ref())).unwrap().name(), default);
        assert_eq!(default, if uring().is_ok() { "uring" } else { "threads" });
        let error = choose(Some("posix".as_ref())).unwrap_err().to_string();
        assert!(error.contains("posix") && error.contains("`uring` or `threads`"), "{error}");
    }
}

/// Runs the README's example.
#[cfg(all(doctest, unix))]
#[doc = include_str!("../README.md")]
struct Readme;
