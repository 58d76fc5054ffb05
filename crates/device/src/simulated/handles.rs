//! Open files and locks of a simulated device.

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Shared;
use super::namespace::InodeRef;
use super::world::{World, is_down};
use crate::request::check_range;
use crate::{BLOCK, Buffer, Error, File, Lock, Result};

#[derive(Debug)]
pub(super) struct SimulatedFile {
    pub(super) shared: Arc<Shared>,
    pub(super) inode: InodeRef,
    pub(super) path: PathBuf,
    pub(super) writable: bool,
    pub(super) generation: u64,
}

impl SimulatedFile {
    /// Runs `call` on the world if this handle is still good.
    fn with_world<T>(
        &self,
        operation: &'static str,
        offset: u64,
        len: u64,
        call: impl FnOnce(&mut World) -> io::Result<T>,
    ) -> Result<T> {
        let mut world = self.shared.world.lock();
        let result = world.check(self.generation).and_then(|()| call(&mut world));
        drop(world);
        // The clock may have moved: others may have something to collect.
        self.shared.changed.notify_all();
        result.map_err(|error| Error::new(operation, &self.path, offset, len, error))
    }

    pub(super) fn check_writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    pub(super) fn check_request(&self, operation: &'static str, offset: u64, len: usize) -> Result<()> {
        check_range(&self.path, operation, offset, len)?;
        if operation == "write" {
            self.check_writable().map_err(|error| Error::new(operation, &self.path, offset, len as u64, error))?;
        }
        Ok(())
    }
}

impl File for SimulatedFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> Result<u64> {
        self.with_world("length", 0, 0, |_| Ok(self.inode.lock().len()))
    }

    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()> {
        let len = buffer.len();
        self.check_request("read", offset, len)?;
        self.with_world("read", offset, len as u64, |world| {
            world.spend(&self.inode, offset, len as u64);
            self.inode.lock().read(offset, buffer)
        })
    }

    fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()> {
        let len = buffer.len();
        self.check_request("write", offset, len)?;
        self.with_world("write", offset, len as u64, |world| {
            world.spend(&self.inode, offset, len as u64);
            world.check(self.generation)?;
            world.write(&self.inode, offset, buffer)
        })
    }

    fn sync_data(&self) -> Result<()> {
        self.with_world("sync", 0, 0, |world| {
            let covers = self.inode.lock().last_change();
            world.spend(&self.inode, 0, 0);
            world.check(self.generation)?;
            world.sync(&self.inode, covers)
        })
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.with_world("truncate", len, 0, |world| {
            self.check_writable()?;
            let crashes = world.operation_crashes();
            self.inode.lock().truncate(len);
            if crashes { Err(is_down()) } else { Ok(()) }
        })
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.check_request("allocate", offset, usize::try_from(len).unwrap_or(usize::MAX))?;
        if !len.is_multiple_of(BLOCK as u64) {
            return Err(Error::invalid("allocate", &self.path, offset, len, "the length is not block-aligned"));
        }
        self.with_world("allocate", offset, len, |world| {
            self.check_writable()?;
            let crashes = world.operation_crashes();
            self.inode.lock().allocate(offset, len)?;
            if crashes { Err(is_down()) } else { Ok(()) }
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
pub(super) struct SimulatedLock {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u64,
}

impl Lock for SimulatedLock {}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        self.shared.world.lock().unlock(self.number);
    }
}
