//! Free space of the data file. Not stored: what no checkpointed or live extent uses is free.

use std::sync::Arc;

use keyaki_device::File;

use crate::Result;

/// Hands out and takes back block-aligned ranges of the data file, best fit, low offsets preferred; grows the file in
/// large steps. All methods take `&self`.
#[derive(Debug)]
pub struct Space {
    _todo: (),
}

impl Space {
    /// `used`: (offset, length) of everything in use, in any order; overlap is an error (damaged metadata).
    pub fn new(_file: Arc<dyn File>, _used: Vec<(u64, u64)>) -> Result<Space> {
        todo!()
    }
    /// A free range of `len` bytes (multiple of 4096).
    ///
    /// # Errors
    /// `Device` (no space) when the file cannot grow; nothing changes then.
    pub fn allocate(&self, _len: u64) -> Result<u64> {
        todo!()
    }
    pub fn free(&self, _offset: u64, _len: u64) {
        todo!()
    }
    /// Gives free space at the end of the file back to the file system, keeping one growth step.
    pub fn trim(&self) -> Result<()> {
        todo!()
    }
    /// (bytes in use, length of the file)
    pub fn usage(&self) -> (u64, u64) {
        todo!()
    }
}
