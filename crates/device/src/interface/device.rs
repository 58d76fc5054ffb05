//! The interface of devices and files: calls that block.
//!
//! Everything that touches a medium goes through these traits, so that tests can replace it by a simulation that loses
//! power, fails and delays.

use std::any::Any;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use super::{Queue, Result};
use crate::memory::Buffer;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reads only.
    Read,
    /// An existing file, for reads and writes.
    ReadWrite,
    /// A new file, for reads and writes. An existing file is an error ([`Error::is_exists`](crate::Error::is_exists)).
    CreateNew,
}

/// A tree of files: the file systems of the operating system, or a simulated one.
///
/// Every call fails with the error of the operating system, or of the simulation.
pub trait Device: Send + Sync + Debug {
    /// `"uring"`, `"threads"`, `"simulated"`, `"paced"`, or `"object"` for a version in an object store.
    fn name(&self) -> &'static str;

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// If the file does not exist (or does, for [`OpenMode::CreateNew`]), is a directory, or may not be accessed so.
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>>;

    /// Creates a queue for one worker, with room for `depth` requests in flight. A depth of 0 counts as 1, and `uring`
    /// grants 32767 at most.
    ///
    /// # Errors
    /// If the operating system has no memory or descriptors for it.
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>>;

    /// As [`Device::queue`], for a queue that different threads use one after another, also while requests are in flight.
    /// Other queues belong to one thread while requests are in flight, which is faster with `uring`.
    ///
    /// # Errors
    /// As [`Device::queue`].
    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>>;

    /// Creates a directory in an existing directory.
    ///
    /// # Errors
    /// If the path exists, or its parent does not.
    fn create_dir(&self, path: &Path) -> Result<()>;

    /// Names (not paths) of the entries of a directory, sorted.
    ///
    /// # Errors
    /// If `dir` is not a directory.
    fn list(&self, dir: &Path) -> Result<Vec<String>>;

    /// True if there is a file or directory at `path`.
    ///
    /// # Errors
    /// If the operating system cannot find out.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// Removes a file or an empty directory. Open handles of the file stay usable.
    ///
    /// # Errors
    /// If the path does not exist, or is a directory with entries.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Renames a file or directory, atomically replacing a file at `to`.
    ///
    /// # Errors
    /// If `from` or the parent of `to` does not exist.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Makes creations, removals and renames in `dir` durable.
    ///
    /// # Errors
    /// If `dir` is not a directory, or the sync fails.
    fn sync_dir(&self, dir: &Path) -> Result<()>;

    /// Takes the exclusive lock of the file at `path`, which is created if missing. The lock ends when the guard is
    /// dropped or the process dies.
    ///
    /// # Errors
    /// [`Error::is_locked`](crate::Error::is_locked) if another process, or another opener in this one, holds the lock.
    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>>;

    /// As [`lock`](Device::lock), without writing: the file must exist, and the file system may be mounted read-only.
    ///
    /// # Errors
    /// As [`lock`](Device::lock); [`Error::is_not_found`](crate::Error::is_not_found) if the file does not exist.
    fn lock_existing(&self, path: &Path) -> Result<Box<dyn Lock>>;

    /// Marks the file at `path`, which must exist, with a number below 2^62. Any number of openers may hold equal or different
    /// marks, also while another one holds the lock. The file is neither written nor opened for writing. The mark ends when
    /// the guard is dropped or the process dies.
    ///
    /// # Errors
    /// [`Error::is_not_found`](crate::Error::is_not_found) if the file does not exist. An error of the operating system if its
    /// file system has no locks of byte ranges.
    fn mark(&self, path: &Path, number: u64) -> Result<Box<dyn Lock>>;

    /// The different numbers with which openers have marked the file at `path`, in ascending order.
    ///
    /// # Errors
    /// As [`mark`](Device::mark).
    fn marks(&self, path: &Path) -> Result<Vec<u64>>;

    /// Nanoseconds since the device was created: real time, or the virtual time of a simulated device. Never decreases.
    fn now_ns(&self) -> u64;
}

/// Holds an exclusive lock or a mark. Dropping it releases the lock or mark.
pub trait Lock: Send + Sync + Debug {}

/// An open file with blocking calls; see [`Queue`] for asynchronous ones. Any number of threads may use it.
///
/// Offsets, and the lengths of buffers and allocations, are multiples of [`BLOCK`](crate::BLOCK).
pub trait File: Send + Sync + Debug {
    /// The path with which the file was opened.
    fn path(&self) -> &Path;

    /// Length in bytes.
    ///
    /// # Errors
    /// If the operating system cannot find out.
    fn len(&self) -> Result<u64>;

    /// True if the length is 0.
    ///
    /// # Errors
    /// As [`File::len`].
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::is_end_of_file`](crate::Error::is_end_of_file) if the file ends before the buffer is full. The contents
    /// of the buffer are unspecified after an error.
    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()>;

    /// Writes the whole buffer at `offset`, extending the file if necessary.
    ///
    /// # Errors
    /// If the file is open for reads only, the disk is full, or the write fails. A part may have been written.
    fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()>;

    /// Makes all completed writes durable (`fdatasync`).
    ///
    /// # Errors
    /// If the sync fails. The contents of the file are unknown then: the caller must not use it for writes any more.
    fn sync_data(&self) -> Result<()>;

    /// Sets the length to `len` bytes, which need not be a multiple of a block. New bytes are zero.
    ///
    /// # Errors
    /// If the file is open for reads only, or the file system refuses.
    fn truncate(&self, len: u64) -> Result<()>;

    /// Reserves space, so that writes inside the range cannot fail for lack of space. Extends the file to the end of
    /// the range; new bytes are zero.
    ///
    /// # Errors
    /// [`Error::is_no_space`](crate::Error::is_no_space) if the disk is full.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;

    /// The concrete type, for implementations of [`Queue`].
    fn as_any(&self) -> &dyn Any;
}
