//! The superblock: two slots at the start of the data file. The valid slot with the higher generation refers to the
//! newest checkpoint.
//!
//! A new superblock is first written to the slot of its generation (even or odd) and synced. Until then the other slot,
//! with the previous checkpoint, is in force. The superblock is then copied to the other slot and synced: the space of
//! the previous checkpoint will be reused, so the loss of one slot must not bring it back. If a crash interrupts the
//! copy, opening the database completes it.
//!
//! ```text
//! 0 magic "KEYAKI\0\0" | 8 version u32 | 12 page_bytes u32 | 16 generation u64 | 24 sequence u64
//! 32 log.segment u64 | 40 log.offset u64 | 48 node_table_offset u64 | 56 node_table_len u64 | 64 node_table_hash u64
//! 72 database_id u64 | 80 zeros
//! 4092 crc32c u32 of the 4092 bytes before                                        integers are little endian
//! ```
//!
//! Magic, version and checksum keep their positions in every future version.

use keyaki_device::{BLOCK, Buffer, File};

use crate::base::{Error, FORMAT_VERSION, Result};
use crate::codec::PAGE_BYTES_MAX;
use crate::log::LogPosition;

/// Number of bytes at the start of the data file that are reserved for the superblock slots.
pub const RESERVED_BYTES: u64 = 64 << 10;

/// Maximum length of the node table of a checkpoint in bytes.
pub const NODE_TABLE_BYTES_MAX: u64 = 1 << 32;
/// Minimum length of a node table in bytes: two counts, and no trees.
const NODE_TABLE_BYTES_MIN: u64 = 8;
/// Maximum generation and sequence number. No database reaches it, and arithmetic on smaller numbers cannot overflow.
const COUNT_MAX: u64 = 1 << 62;

const MAGIC: [u8; 8] = *b"KEYAKI\0\0";
const SLOT_OFFSETS: [u64; 2] = [0, 32 << 10];
const CRC_AT: usize = BLOCK - 4;

/// End of the fields. Zeros follow up to the checksum.
const FIELDS_END: usize = 16 + 8 * 8;

const _: () = {
    assert!(BLOCK == 4096 && FIELDS_END == 80 && FIELDS_END <= CRC_AT);
    // A torn write of a slot must not touch the other one.
    assert!(SLOT_OFFSETS[0].is_multiple_of(BLOCK as u64) && SLOT_OFFSETS[1].is_multiple_of(BLOCK as u64));
    assert!(SLOT_OFFSETS[0] + BLOCK as u64 <= SLOT_OFFSETS[1]);
    assert!(SLOT_OFFSETS[1] + BLOCK as u64 <= RESERVED_BYTES && RESERVED_BYTES.is_multiple_of(BLOCK as u64));
};

/// The contents of a superblock slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Number of the checkpoint.
    pub generation: u64,
    /// Newest sequence number that the checkpoint contains.
    pub sequence: u64,
    /// Position in the log from which recovery replays.
    pub log: LogPosition,
    /// The node table of the checkpoint: offset, length in bytes (not rounded), and xxh3 hash of its bytes.
    pub node_table_offset: u64,
    pub node_table_len: u64,
    pub node_table_hash: u64,
    /// Default page length of the database in bytes.
    pub page_bytes: u32,
    /// Random number of the database and its backups; 0 if an older program has written the file.
    pub database_id: u64,
}

/// The contents of a slot.
#[derive(Debug)]
enum Slot {
    Sound(Superblock),
    /// Valid, but of another format version.
    Version(u32),
    /// Has the magic, but a wrong checksum or field.
    Damaged(&'static str),
    /// Neither zeros nor the magic.
    Foreign,
    /// Never written, or the file ends before it.
    Empty,
}

impl Superblock {
    /// Reads the newest valid superblock.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if the file does not start with the magic, [`Error::FormatVersion`] for another format
    /// version, [`Error::Corrupt`] if no slot is valid and one is damaged.
    pub fn read(file: &dyn File) -> Result<Superblock> {
        let len = file.len()?;
        let slots = [read_slot(file, len, SLOT_OFFSETS[0])?, read_slot(file, len, SLOT_OFFSETS[1])?];
        let mut newest: Option<Superblock> = None;
        for slot in &slots {
            match slot {
                Slot::Version(found) => {
                    let (path, found) = (file.path().to_path_buf(), *found);
                    return Err(Error::FormatVersion { path, found, supported: FORMAT_VERSION });
                }
                Slot::Sound(found) if newest.as_ref().is_none_or(|best| best.generation < found.generation) => {
                    newest = Some(found.clone());
                }
                _ => {}
            }
        }
        newest.ok_or_else(|| unreadable(file, len, &slots))
    }

    /// The different superblocks in the valid slots, newest first, and an error for each slot that is damaged or cannot
    /// be read.
    ///
    /// # Errors
    /// [`Error::FormatVersion`] for another format version; device errors other than of reads.
    pub fn read_all(file: &dyn File) -> Result<(Vec<Superblock>, Vec<Error>)> {
        let (len, path) = (file.len()?, file.path());
        let (mut sound, mut damaged) = (Vec::new(), Vec::new());
        for offset in SLOT_OFFSETS {
            let detail = match read_slot(file, len, offset) {
                Ok(Slot::Sound(found)) => {
                    sound.push(found);
                    continue;
                }
                Ok(Slot::Version(found)) => {
                    return Err(Error::FormatVersion { path: path.to_path_buf(), found, supported: FORMAT_VERSION });
                }
                Ok(Slot::Damaged(detail)) => detail,
                Ok(Slot::Foreign) => "it does not start with \"KEYAKI\"",
                Ok(Slot::Empty) => "it is empty",
                Err(error) if error.is_damage() => {
                    damaged.push(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (path, offset, detail) = (path.to_path_buf(), Some(offset), detail.into());
            damaged.push(Error::Corrupt { path, what: "superblock", offset, detail });
        }
        sound.sort_by_key(|superblock: &Superblock| std::cmp::Reverse(superblock.generation));
        sound.dedup();
        Ok((sound, damaged))
    }

    /// Writes and syncs the slot of this generation, then the other slot. Everything that the superblock refers to must
    /// be synced before.
    ///
    /// # Errors
    /// [`Error::TooMany`] if there were more checkpoints or commits than a superblock can count; device errors.
    pub fn write(&self, file: &dyn File) -> Result<()> {
        for (what, count) in [("checkpoints", self.generation), ("commits", self.sequence)] {
            if count >= COUNT_MAX {
                return Err(Error::TooMany { what, limit: COUNT_MAX });
            }
        }
        let block = self.encode();
        let slot = (self.generation & 1) as usize;
        for offset in [SLOT_OFFSETS[slot], SLOT_OFFSETS[slot ^ 1]] {
            file.write_at(offset, &block)?;
            file.sync_data()?;
        }
        Ok(())
    }

    /// Completes a [`Superblock::write`] that a crash interrupted between the slots. Must be called when the database
    /// is opened, on the result of [`Superblock::read`], before anything else is written.
    pub fn mirror(&self, file: &dyn File) -> Result<()> {
        let len = file.len()?;
        let mut stale = Vec::new();
        for offset in SLOT_OFFSETS {
            if !matches!(read_slot(file, len, offset)?, Slot::Sound(found) if found == *self) {
                stale.push(offset);
            }
        }
        match stale[..] {
            [] => Ok(()),
            [offset] => {
                file.write_at(offset, &self.encode())?;
                Ok(file.sync_data()?)
            }
            _ => {
                let (path, detail) =
                    (file.path().to_path_buf(), "neither slot contains the superblock read before".into());
                Err(Error::Corrupt { path, what: "superblock", offset: None, detail })
            }
        }
    }

    /// The bytes of a slot.
    pub fn encode(&self) -> Buffer {
        // A superblock that `decode` rejects must not be written.
        assert!(
            self.node_table_offset >= RESERVED_BYTES && self.node_table_offset.is_multiple_of(BLOCK as u64),
            "{self:?}"
        );
        assert!((NODE_TABLE_BYTES_MIN..=NODE_TABLE_BYTES_MAX).contains(&self.node_table_len), "{self:?}");
        assert!(self.log.offset.is_multiple_of(BLOCK as u64), "{self:?}");
        let mut block = Buffer::zeroed(BLOCK);
        block[0..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&self.page_bytes.to_le_bytes());
        let words = [
            self.generation,
            self.sequence,
            self.log.segment,
            self.log.offset,
            self.node_table_offset,
            self.node_table_len,
            self.node_table_hash,
            self.database_id,
        ];
        for (i, word) in words.iter().enumerate() {
            block[16 + i * 8..24 + i * 8].copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        block
    }
}

fn read_slot(file: &dyn File, len: u64, offset: u64) -> Result<Slot> {
    if len < offset + BLOCK as u64 {
        return Ok(Slot::Empty);
    }
    let mut block = Buffer::zeroed(BLOCK);
    file.read_at(offset, &mut block)?;
    Ok(decode(&block, len))
}

fn decode(block: &[u8], file_len: u64) -> Slot {
    if block[0..8] != MAGIC {
        return if block.iter().all(|&byte| byte == 0) { Slot::Empty } else { Slot::Foreign };
    }
    if u32_at(block, CRC_AT) != crc32c::crc32c(&block[..CRC_AT]) {
        return Slot::Damaged("checksum mismatch");
    }
    let version = u32_at(block, 8);
    if version != FORMAT_VERSION {
        return Slot::Version(version);
    }
    let word = |i: usize| u64::from(u32_at(block, 16 + i * 8)) | u64::from(u32_at(block, 20 + i * 8)) << 32;
    let found = Superblock {
        generation: word(0),
        sequence: word(1),
        log: LogPosition { segment: word(2), offset: word(3) },
        node_table_offset: word(4),
        node_table_len: word(5),
        node_table_hash: word(6),
        page_bytes: u32_at(block, 12),
        database_id: word(7),
    };
    let aligned = |bytes: u64| bytes.is_multiple_of(BLOCK as u64);
    if !aligned(u64::from(found.page_bytes)) || found.page_bytes == 0 || found.page_bytes as usize > PAGE_BYTES_MAX {
        return Slot::Damaged("the page length is not a multiple of 4096 up to 2^30");
    }
    if found.generation >= COUNT_MAX || found.sequence >= COUNT_MAX {
        return Slot::Damaged("the generation or the sequence number is 2^62 or more");
    }
    if !aligned(found.log.offset) || !aligned(found.node_table_offset) {
        return Slot::Damaged("a position is not a multiple of 4096");
    }
    if found.node_table_offset < RESERVED_BYTES
        || !(NODE_TABLE_BYTES_MIN..=NODE_TABLE_BYTES_MAX).contains(&found.node_table_len)
    {
        return Slot::Damaged("the node table lies in the superblock, or has an invalid length");
    }
    if found.node_table_offset.checked_add(found.node_table_len).is_none_or(|end| end > file_len) {
        return Slot::Damaged("the node table ends beyond the end of the file");
    }
    Slot::Sound(found)
}

fn unreadable(file: &dyn File, len: u64, slots: &[Slot; 2]) -> Error {
    let path = file.path().to_path_buf();
    let damaged = slots.iter().position(|slot| matches!(slot, Slot::Damaged(_)));
    if let Some(slot) = damaged
        && let Slot::Damaged(detail) = slots[slot]
    {
        let offset = Some(SLOT_OFFSETS[slot]);
        return Error::Corrupt { path, what: "superblock", offset, detail: detail.into() };
    }
    let detail = if len < BLOCK as u64 {
        format!("the file has {len} bytes, too few for a superblock")
    } else if matches!(slots[0], Slot::Empty) {
        "the superblock was never written".into()
    } else {
        "the file does not start with \"KEYAKI\"".into()
    };
    Error::NotADatabase { path, detail }
}

/// Reads a little-endian number. `at + 4` must not exceed the length of the block.
fn u32_at(block: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&block[at..at + 4]);
    u32::from_le_bytes(word)
}

#[cfg(test)]
mod tests;
