//! The serialised form: written once, then used where it lies, in memory that was read or mapped.
//!
//! ```text
//! 0   magic      "KEYAKIVA"
//! 8   version    u32
//! 12  kind       u32: what it is (a tree, a column, an index) and of which keys
//! 16  length     u64: of everything
//! 24  checksum   u64: XXH3 of everything before and behind
//! 32  body       numbers (u64) and sections (length, zeros to the next multiple of 64, bytes, zeros to a multiple of 8)
//! ```
//!
//! All numbers are little-endian. The sections are what searches work on: opening copies nothing. Checksums find damage, but
//! nothing relies on them: whoever reads a body checks that every reference in it leads to bytes that are there.

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::error::Error;
use crate::memory::LINE;

const MAGIC: &[u8; 8] = b"KEYAKIVA";
const VERSION: u32 = 1;
const HEADER: usize = 32;

/// What a serialised form is of.
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
        bytes.resize(HEADER, 0);
        Writer { bytes }
    }

    pub fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub fn section(&mut self, section: &[u8]) {
        self.number(section.len() as u64);
        self.bytes.resize(self.bytes.len().next_multiple_of(LINE), 0);
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
    hash.update(&bytes[HEADER..]);
    hash.digest()
}

/// Makes the checksum of bytes right, whatever they are: for tests of what is behind it.
#[doc(hidden)]
pub fn reseal(bytes: &mut [u8]) {
    if bytes.len() >= HEADER {
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
        if bytes.len() < HEADER || bytes[..8] != *MAGIC {
            return Err(Error::Damaged("it does not begin like one"));
        }
        if bytes[8..12] != VERSION.to_le_bytes() {
            return Err(Error::Damaged("it is of another version"));
        }
        if bytes[12..16] != [kind as u8, tag, 0, 0] {
            return Err(Error::Damaged("it is of another kind, or of other keys"));
        }
        if bytes[16..24] != (bytes.len() as u64).to_le_bytes() {
            return Err(Error::Damaged("it is cut off or has something behind it"));
        }
        if bytes[24..32] != checksum(&bytes).to_le_bytes() {
            return Err(Error::Damaged("its checksum is wrong"));
        }
        Ok(Reader { bytes, at: HEADER })
    }

    pub fn number(&mut self) -> Result<u64, Error> {
        let end = self.at + 8;
        let bytes = self.bytes.get(self.at..end).ok_or(Error::Damaged("it ends too early"))?;
        self.at = end;
        let mut number = [0; 8];
        number.copy_from_slice(bytes);
        Ok(u64::from_le_bytes(number))
    }

    /// A number of something in memory.
    pub fn size(&mut self) -> Result<usize, Error> {
        usize::try_from(self.number()?).map_err(|_| Error::Damaged("it is larger than the address space"))
    }

    pub fn section(&mut self) -> Result<Bytes, Error> {
        let length = self.size()?;
        let start = self.at.next_multiple_of(LINE);
        let end = start.checked_add(length).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(Error::Damaged("a section is longer than the whole"))?;
        self.at = end.next_multiple_of(8);
        Ok(self.bytes.slice(start..end))
    }

    pub fn finish(self) -> Result<(), Error> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(Error::Damaged("there is more in it than there should be"))
        }
    }
}
