//! Files of the operating system, opened for direct I/O where the file system allows it.
//!
//! Direct I/O (`O_DIRECT`) moves bytes between the device and buffers without a copy in the page cache. Where the file
//! system refuses it, the file is read and written through the page cache without read-ahead, and each sync drops the
//! file's clean pages from the cache. [`Caching::Keep`] uses the page cache on purpose. Positioned calls use no shared file offset, so any number of threads may use one
//! file.

use std::any::Any;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::interface::{Error, ErrorKind, File, OpenMode, Operation, Result, check_aligned_range, check_range};
use crate::memory::{BLOCK, Buffer};

/// An open file.
#[derive(Debug)]
pub(crate) struct OsFile {
    file: fs::File,
    path: PathBuf,
    /// Opened for direct I/O.
    direct: bool,
    caching: Caching,
}

/// The use of the operating system's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// None, by direct I/O or by dropping pages.
    Bypass,
    /// As the operating system decides, for files that are smaller than memory and shall be as fast.
    Keep,
}

impl OsFile {
    pub(crate) fn open(path: &Path, mode: OpenMode, caching: Caching) -> Result<Self> {
        let mut file = Self::open_buffered(path, mode)?;
        file.caching = caching;
        if caching == Caching::Keep {
            return Ok(file);
        }
        file.direct = cache::bypass(&file.file);
        if !file.direct {
            cache::no_read_ahead(&file.file);
        }
        Ok(file)
    }

    fn open_buffered(path: &Path, mode: OpenMode) -> Result<Self> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(mode != OpenMode::Read).create_new(mode == OpenMode::CreateNew);
        let file = options.open(path).map_err(|error| Error::new(Operation::Open, path, error))?;
        if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(Error::new(Operation::Open, path, io::ErrorKind::IsADirectory));
        }
        Ok(OsFile { file, path: path.to_path_buf(), direct: false, caching: Caching::Bypass })
    }

    /// The descriptor; it is open as long as `self` lives.
    #[cfg(target_os = "linux")]
    pub(crate) fn raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
    }

    fn error(&self, operation: Operation, kind: impl Into<ErrorKind>) -> Error {
        Error::new(operation, &self.path, kind)
    }

    fn range_error(&self, operation: Operation, offset: u64, len: u64, kind: impl Into<ErrorKind>) -> Error {
        Error::in_range(operation, &self.path, offset, len, kind)
    }
}

/// Transfers `len` bytes by repeating `call(done)`, which transfers bytes from position `done` on and returns their
/// number. `short` is the error for a call that transfers less than a block.
fn transfer(len: usize, short: ErrorKind, mut call: impl FnMut(usize) -> io::Result<usize>) -> Result<(), ErrorKind> {
    assert!(len.is_multiple_of(BLOCK));
    let mut done = 0;
    while done < len {
        match call(done) {
            // Whole blocks only: direct I/O cannot continue from inside a block, and stops there only at the end of the
            // file or of the space.
            Ok(moved) => {
                assert!(moved <= len - done, "the kernel transferred more bytes than requested");
                match moved / BLOCK * BLOCK {
                    0 => return Err(short),
                    blocks => done += blocks,
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!(done, len);
    Ok(())
}

impl File for OsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|error| self.error(Operation::Length, error))?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()> {
        let len = buffer.len() as u64;
        check_range(&self.path, Operation::Read, offset, len)?;
        let read = |done| self.file.read_at(&mut buffer[done..], offset + done as u64);
        transfer(len as usize, ErrorKind::EndOfFile, read)
            .map_err(|error| self.range_error(Operation::Read, offset, len, error))
    }

    fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()> {
        let len = buffer.len() as u64;
        check_range(&self.path, Operation::Write, offset, len)?;
        let write = |done| self.file.write_at(&buffer[done..], offset + done as u64);
        transfer(buffer.len(), ErrorKind::NoSpace, write)
            .map_err(|error| self.range_error(Operation::Write, offset, len, error))
    }

    fn sync_data(&self) -> Result<()> {
        retry(|| Ok(rustix::fs::fdatasync(&self.file)?)).map_err(|error| self.error(Operation::Sync, error))?;
        if !self.direct && self.caching == Caching::Bypass {
            cache::drop_clean(&self.file);
        }
        Ok(())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        retry(|| self.file.set_len(len)).map_err(|error| self.range_error(Operation::Truncate, len, 0, error))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        check_aligned_range(&self.path, Operation::Allocate, offset, len)?;
        let flags = rustix::fs::FallocateFlags::empty();
        match retry(|| Ok(rustix::fs::fallocate(&self.file, flags, offset, len)?)) {
            Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                self.extend_with_zeros(offset + len)
            }
            result => result.map_err(|error| self.range_error(Operation::Allocate, offset, len, error)),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl OsFile {
    /// Writes zeros from the end of the file to `end`, for file systems that cannot reserve space.
    fn extend_with_zeros(&self, end: u64) -> Result<()> {
        let zeros = Buffer::zeroed(1 << 20);
        let mut at = self.len()?.next_multiple_of(BLOCK as u64);
        self.truncate(at)?;
        while at < end {
            let step = (end - at).min(zeros.len() as u64);
            let write = |done| self.file.write_at(&zeros[done..step as usize], at + done as u64);
            transfer(step as usize, ErrorKind::NoSpace, write)
                .map_err(|error| self.range_error(Operation::Allocate, at, step, error))?;
            at += step;
        }
        Ok(())
    }
}

/// Repeats a call that a signal interrupted.
fn retry(call: impl Fn() -> io::Result<()>) -> io::Result<()> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(target_os = "linux")]
mod cache {
    use std::fs;

    use rustix::fs::{Advice, AtFlags, OFlags, StatxFlags};

    use crate::memory::BLOCK;

    /// Enables direct I/O; false if the file system refuses it or requires a coarser alignment than [`BLOCK`].
    pub(super) fn bypass(file: &fs::File) -> bool {
        if let Ok(stat) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
            && stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
        {
            // Zero means that direct I/O is not supported.
            let fits = |align: u32| align != 0 && BLOCK.is_multiple_of(align as usize);
            if !fits(stat.stx_dio_mem_align) || !fits(stat.stx_dio_offset_align) {
                return false;
            }
        }
        // Set after opening: a failed `open` with O_DIRECT may leave a new file behind.
        rustix::fs::fcntl_getfl(file).is_ok_and(|flags| rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).is_ok())
    }

    /// Disables read-ahead. Only advice: a refusal by the kernel is harmless.
    pub(super) fn no_read_ahead(file: &fs::File) {
        let _ = rustix::fs::fadvise(file, 0, None, Advice::Random);
    }

    /// Drops the file's clean pages from the page cache. Only advice.
    pub(super) fn drop_clean(file: &fs::File) {
        let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
    }
}

#[cfg(not(target_os = "linux"))]
mod cache {
    use std::fs;

    pub(super) fn bypass(_file: &fs::File) -> bool {
        false
    }
    pub(super) fn no_read_ahead(_file: &fs::File) {}
    pub(super) fn drop_clean(_file: &fs::File) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path for file systems that refuse direct I/O and reservations.
    #[test]
    fn files_work_without_direct_io() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsFile::open_buffered(&dir.path().join("file"), OpenMode::CreateNew).unwrap();
        let mut buffer = Buffer::zeroed(3 * BLOCK);
        buffer.fill(5);
        file.write_at(BLOCK as u64, &buffer).unwrap();
        file.sync_data().unwrap();
        buffer.fill(0);
        file.read_at(BLOCK as u64, &mut buffer).unwrap();
        assert!(buffer.iter().all(|&byte| byte == 5));
        file.truncate(3 * BLOCK as u64 + 100).unwrap();
        file.extend_with_zeros(1000 * BLOCK as u64).unwrap();
        assert_eq!(file.len().unwrap(), 1000 * BLOCK as u64);
        file.read_at(3 * BLOCK as u64, &mut buffer).unwrap();
        assert!(buffer[..100].iter().all(|&byte| byte == 5) && buffer[100..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn direct_io_bypasses_the_page_cache() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsFile::open(&dir.path().join("file"), OpenMode::CreateNew, Caching::Bypass).unwrap();
        if !file.direct {
            // A temporary directory in memory refuses direct I/O.
            return;
        }
        let mut unaligned = [0; 100];
        file.write_at(0, &Buffer::zeroed(BLOCK)).unwrap();
        assert!(FileExt::read_at(&file.file, &mut unaligned, 7).is_err());
    }
}
