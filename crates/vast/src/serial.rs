//! The serialised form of trees, columns and indexes: written once, then used in place, in memory that was read or
//! mapped.
//!
//! ```text
//! 0   magic      "KEYAKIVA"
//! 8   version    u32
//! 12  kind       u8: tree, column or index; u8: type of the keys; two zero bytes
//! 16  length     u64: bytes of the whole form
//! 24  checksum   u64: XXH3 of bytes 0 to 23 and of the body
//! 32  body       numbers (u64) and sections (length, zeros to the next multiple of 64, bytes, zeros to a multiple of 8)
//! ```
//!
//! All numbers are little-endian. Searches work on the sections in place: opening copies nothing. The checksum detects
//! damage, but memory safety does not depend on it: the code that reads a body checks every reference in it.

use bytes::Bytes;
use keyaki_primitives::CACHE_LINE_BYTES;
use xxhash_rust::xxh3::Xxh3;

use crate::error::Error;

const MAGIC: &[u8; 8] = b"KEYAKIVA";
const VERSION: u32 = 1;
/// Bytes before the body.
const HEADER_BYTES: usize = 32;
/// Alignment of sections within the form.
const SECTION_ALIGN: usize = CACHE_LINE_BYTES;

const _: () = assert!(SECTION_ALIGN == 64, "the format aligns sections to 64 bytes");
const _: () = assert!(HEADER_BYTES == MAGIC.len() + 4 + 4 + 8 + 8 && HEADER_BYTES.is_multiple_of(8));

/// The kind of structure in a serialised form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tree = 1,
    Packed = 2,
    Index = 3,
}

/// Writes a serialised form.
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub fn new(kind: Kind, tag: u8) -> Self {
        let mut bytes = Vec::from(*MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[kind as u8, tag, 0, 0]);
        bytes.resize(HEADER_BYTES, 0);
        Writer { bytes }
    }

    pub fn number(&mut self, number: u64) {
        assert!(self.bytes.len().is_multiple_of(8), "numbers are aligned");
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub fn section(&mut self, section: &[u8]) {
        self.number(section.len() as u64);
        self.bytes.resize(self.bytes.len().next_multiple_of(SECTION_ALIGN), 0);
        self.bytes.extend_from_slice(section);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    pub fn finish(mut self) -> Vec<u8> {
        let length = self.bytes.len() as u64;
        self.bytes[16..24].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(&self.bytes);
        self.bytes[24..32].copy_from_slice(&checksum.to_le_bytes());
        self.bytes
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..24]);
    hash.update(&bytes[HEADER_BYTES..]);
    hash.digest()
}

/// Corrects the length and the checksum of a serialised form. Tests use it to get forged bytes past the checksum.
#[doc(hidden)]
pub fn reseal(bytes: &mut [u8]) {
    if bytes.len() >= HEADER_BYTES {
        let length = bytes.len() as u64;
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(bytes);
        bytes[24..32].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Reads a serialised form.
#[derive(Debug)]
pub(crate) struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    /// Checks header and checksum.
    pub fn new(bytes: Bytes, kind: Kind, tag: u8) -> Result<Self, Error> {
        if bytes.len() < HEADER_BYTES || bytes[..8] != *MAGIC {
            return Err(Error::Damaged("bad magic number"));
        }
        if bytes[8..12] != VERSION.to_le_bytes() {
            return Err(Error::Damaged("unsupported version"));
        }
        if bytes[12..16] != [kind as u8, tag, 0, 0] {
            return Err(Error::Damaged("another kind of structure or type of keys"));
        }
        if bytes[16..24] != (bytes.len() as u64).to_le_bytes() {
            return Err(Error::Damaged("length differs from the one in the header"));
        }
        if bytes[24..32] != checksum(&bytes).to_le_bytes() {
            return Err(Error::Damaged("checksum mismatch"));
        }
        Ok(Reader { bytes, at: HEADER_BYTES })
    }

    pub fn number(&mut self) -> Result<u64, Error> {
        let end = self.at + 8;
        let bytes = self.bytes.get(self.at..end).ok_or(Error::Damaged("unexpected end"))?;
        self.at = end;
        let mut number = [0; 8];
        number.copy_from_slice(bytes);
        Ok(u64::from_le_bytes(number))
    }

    /// Reads a number of items or bytes in memory.
    pub fn size(&mut self) -> Result<usize, Error> {
        usize::try_from(self.number()?).map_err(|_| Error::Damaged("size exceeds the address space"))
    }

    pub fn section(&mut self) -> Result<Bytes, Error> {
        let length = self.size()?;
        let start = self.at.next_multiple_of(SECTION_ALIGN);
        let end = start.checked_add(length).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(Error::Damaged("section exceeds the end"))?;
        self.at = end.next_multiple_of(8);
        Ok(self.bytes.slice(start..end))
    }

    pub fn finish(self) -> Result<(), Error> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(Error::Damaged("bytes after the last section")) }
    }
}
