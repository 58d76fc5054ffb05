//! The superblock: two slots at the start of the data file, written in turn; the sound one with the higher generation
//! names the newest checkpoint.

use keyaki_device::File;

use crate::Result;
use crate::log::LogPosition;

/// Version of everything in the data file and the log.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes at the start of the data file that belong to the superblock slots.
pub const RESERVED_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Counts checkpoints.
    pub generation: u64,
    /// Newest sequence number contained in the checkpoint.
    pub sequence: u64,
    /// Where the log continues after it.
    pub log: LogPosition,
    /// The checkpoint's metadata: place, length in bytes (not rounded), xxh3 of its bytes.
    pub meta_offset: u64,
    pub meta_len: u64,
    pub meta_hash: u64,
    /// Default page length of the database.
    pub page_bytes: u32,
}

impl Superblock {
    /// The newest sound superblock.
    ///
    /// # Errors
    /// `Foreign` if the file does not start with Keyaki's magic, `Version` if it is of another format version,
    /// `Damaged` if neither slot is sound.
    pub fn read(_file: &dyn File) -> Result<Superblock> {
        todo!()
    }
    /// Writes the slot of this generation and syncs. (Everything it names must be synced before.)
    pub fn write(&self, _file: &dyn File) -> Result<()> {
        todo!()
    }
}
