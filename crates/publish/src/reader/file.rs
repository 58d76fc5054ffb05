//! The data file of a version.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer, Error, ErrorKind, File, Operation, Result};

use super::fetch::{Fetcher, Planned};

#[derive(Debug)]
pub(super) struct VersionFile {
    pub fetcher: Arc<Fetcher>,
    path: PathBuf,
}

impl VersionFile {
    pub fn new(fetcher: Arc<Fetcher>, path: &Path) -> Self {
        VersionFile { fetcher, path: path.into() }
    }

    /// Checks a read.
    pub fn check_read(&self, offset: u64, len: usize) -> Result<()> {
        let end = offset.checked_add(len as u64);
        let kind = if !offset.is_multiple_of(BLOCK as u64) {
            ErrorKind::UnalignedOffset
        } else if end.is_none_or(|end| end > self.fetcher.map().data_bytes) {
            ErrorKind::EndOfFile
        } else {
            return Ok(());
        };
        Err(Error::in_range(Operation::Read, &self.path, offset, len as u64, kind))
    }

    fn read_only(&self, operation: Operation) -> Error {
        read_only(operation, &self.path)
    }
}

/// The error of a read of `len` bytes from `offset` on.
pub(super) fn failed(path: &Path, offset: u64, len: usize, error: crate::Error) -> Error {
    Error::in_range(Operation::Read, path, offset, len as u64, std::io::Error::other(error))
}

/// The error of a call that would change a version.
pub(super) fn read_only(operation: Operation, path: &Path) -> Error {
    Error::new(operation, path, std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem))
}

impl File for VersionFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> Result<u64> {
        Ok(self.fetcher.map().data_bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()> {
        let len = buffer.len();
        self.check_read(offset, len)?;
        let range = offset..offset + len as u64;
        let wait = |planned: Planned| match planned.is_ready() {
            true => Ok(planned),
            false => self.fetcher.remote().run(planned.wait()),
        };
        for planned in self.fetcher.plan(&[range]) {
            let planned = wait(planned).map_err(|error| failed(&self.path, offset, len, error))?;
            self.fetcher.copy(&planned, buffer);
        }
        Ok(())
    }

    fn write_at(&self, _: u64, _: &Buffer) -> Result<()> {
        Err(self.read_only(Operation::Write))
    }

    fn sync_data(&self) -> Result<()> {
        Err(self.read_only(Operation::Sync))
    }

    fn truncate(&self, _: u64) -> Result<()> {
        Err(self.read_only(Operation::Truncate))
    }

    fn allocate(&self, _: u64, _: u64) -> Result<()> {
        Err(self.read_only(Operation::Allocate))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
