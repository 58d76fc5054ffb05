//! Open files and locks of a simulated device.
//!
//! A handle belongs to the generation of the machine in which it was opened: after a restart all its calls fail.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Shared;
use super::namespace::InodeRef;
use super::world::World;
use crate::interface::{ByteRange, Error, ErrorKind, File, Lock, Operation, Result, check_aligned_range, check_range};
use crate::memory::Buffer;

/// An open file.
#[derive(Debug)]
pub(super) struct SimulatedFile {
    pub(super) shared: Arc<Shared>,
    pub(super) inode: InodeRef,
    pub(super) path: PathBuf,
    pub(super) writable: bool,
    pub(super) generation: u64,
}

impl SimulatedFile {
    /// Runs `call` on the world if this handle is still valid. Errors name `range`.
    fn with_world<T>(
        &self,
        operation: Operation,
        range: Option<ByteRange>,
        call: impl FnOnce(&mut World) -> Result<T, ErrorKind>,
    ) -> Result<T> {
        let mut world = self.shared.world.lock();
        let result = world.check(self.generation).and_then(|()| call(&mut world));
        drop(world);
        // The clock may have moved, which may end the wait of a queue.
        self.shared.changed.notify_all();
        result.map_err(|kind| Error { range, ..Error::new(operation, &self.path, kind) })
    }

    fn check_writable(&self) -> Result<(), ErrorKind> {
        if self.writable { Ok(()) } else { Err(std::io::ErrorKind::PermissionDenied.into()) }
    }

    /// Checks the range of a read or write, and that the file may be written to.
    pub(super) fn check_request(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        check_range(&self.path, operation, offset, len)?;
        if operation == Operation::Write {
            self.check_writable().map_err(|kind| Error::in_range(operation, &self.path, offset, len, kind))?;
        }
        Ok(())
    }
}

impl File for SimulatedFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> Result<u64> {
        self.with_world(Operation::Length, None, |_| Ok(self.inode.lock().len()))
    }

    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()> {
        let len = buffer.len() as u64;
        self.check_request(Operation::Read, offset, len)?;
        self.with_world(Operation::Read, Some(ByteRange { offset, len }), |world| {
            world.spend(&self.inode, offset, len);
            self.inode.lock().read(offset, buffer)
        })
    }

    fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()> {
        let len = buffer.len() as u64;
        self.check_request(Operation::Write, offset, len)?;
        self.with_world(Operation::Write, Some(ByteRange { offset, len }), |world| {
            world.spend(&self.inode, offset, len);
            world.check(self.generation)?;
            world.write(&self.inode, offset, buffer)
        })
    }

    fn sync_data(&self) -> Result<()> {
        self.with_world(Operation::Sync, None, |world| {
            let covers = self.inode.lock().last_change();
            world.spend(&self.inode, 0, 0);
            world.check(self.generation)?;
            world.sync(&self.inode, covers)
        })
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.with_world(Operation::Truncate, Some(ByteRange { offset: len, len: 0 }), |world| {
            self.check_writable()?;
            let crashes = world.operation_crashes();
            self.inode.lock().truncate(len);
            if crashes { Err(ErrorKind::PowerLost) } else { Ok(()) }
        })
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        check_aligned_range(&self.path, Operation::Allocate, offset, len)?;
        self.with_world(Operation::Allocate, Some(ByteRange { offset, len }), |world| {
            self.check_writable()?;
            let crashes = world.operation_crashes();
            self.inode.lock().allocate(offset, len)?;
            if crashes { Err(ErrorKind::PowerLost) } else { Ok(()) }
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A lock; dropping it releases the lock if the machine was not restarted since.
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
