//! Trace files: recorded accesses.
//!
//! ```text
//! file    "LLCTRACE" | version u32 | header length u32 | header (JSON: names of classes and objects) | block … | end
//! block   length u32 > 0 | accesses u32 | CRC-32C of the rest u32 | accesses, `length` bytes
//! end     0 u32 | accesses of the whole file u64
//! access  flags u8 | class u8 if it changes | object varint if it changes | core u8 if it changes | address varint
//! ```
//!
//! Numbers are little-endian. An address is encoded as the zigzag difference to the previous address. Each block starts
//! from address 0, class 0, object 0 and core 0, so it can be decoded alone. A scan takes two or three bytes per line.
//!
//! [`TraceReader`] checks everything it reads: a truncated, damaged or forged file gives an error, never a panic or a
//! large allocation.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::{Access, CLASSES_MAX, CORES_MAX, OBJECTS_MAX, Op};

const MAGIC: &[u8; 8] = b"LLCTRACE";
/// Format version.
const VERSION: u32 = 1;
const HEADER_BYTES_MAX: u32 = 1 << 20;
const BLOCK_BYTES: usize = 60_000;
const BLOCK_BYTES_MAX: u32 = 1 << 16;
/// Flags: two bits for the operation, then one bit for each changed field.
const CLASS: u8 = 4;
const OBJECT: u8 = 8;
const CORE: u8 = 16;

/// The header: names of classes and objects, by number.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceHeader {
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Names of the objects.
    pub objects: Vec<String>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading failed.
    #[error("could not read trace: {0}")]
    Io(#[from] io::Error),
    /// The file does not begin with the magic bytes.
    #[error("not a trace file")]
    NotATrace,
    /// The file has this other format version.
    #[error("trace has format version {0}, expected {VERSION}")]
    Version(u32),
    /// The file is damaged.
    #[error("damaged trace: {0}")]
    Damaged(Damage),
}

/// The damage of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The file ends too early.
    #[error("unexpected end of file")]
    Truncated,
    /// The header's length exceeds 1 MiB.
    #[error("the header is too long")]
    HeaderLength,
    /// The header is not the expected JSON.
    #[error("the header is invalid")]
    Header,
    /// The length or number of accesses of a block is out of range.
    #[error("a block has an invalid length")]
    BlockLength,
    /// The checksum of a block does not match.
    #[error("checksum mismatch in a block")]
    Checksum,
    /// An access cannot be decoded, or is out of range.
    #[error("a block has an invalid access")]
    Access,
    /// A block has bytes after its last access.
    #[error("a block is longer than its accesses")]
    BlockEnd,
    /// The number of accesses at the end does not match the blocks.
    #[error("the number of accesses does not match")]
    Count,
}

/// Writes a trace as a stream.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    out: W,
    /// The encoded accesses of the current block.
    block: Vec<u8>,
    /// Number of accesses in the block.
    in_block: u32,
    /// Number of accesses in finished blocks.
    total: u64,
    /// The previous access of the block.
    last: Access,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the header. `out` should be buffered.
    ///
    /// # Errors
    /// If writing fails, or names are too long.
    pub fn new(mut out: W, header: &TraceHeader) -> io::Result<Self> {
        let header = serde_json::to_vec(header)?;
        let len = u32::try_from(header.len()).ok().filter(|len| *len <= HEADER_BYTES_MAX);
        let len =
            len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the names of the trace are too long"))?;
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&len.to_le_bytes())?;
        out.write_all(&header)?;
        Ok(TraceWriter {
            out,
            block: Vec::with_capacity(BLOCK_BYTES + 32),
            in_block: 0,
            total: 0,
            last: Access::default(),
        })
    }

    /// Appends an access.
    ///
    /// # Errors
    /// If writing fails, or the class, object or core of the access is out of range.
    pub fn push(&mut self, access: Access) -> io::Result<()> {
        if !in_range(&access) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "class, object or core out of range"));
        }
        let changes = [
            (access.class != self.last.class, CLASS),
            (access.object != self.last.object, OBJECT),
            (access.core != self.last.core, CORE),
        ];
        let flags =
            changes.iter().filter(|(changed, _)| *changed).fold(access.op as u8, |flags, (_, flag)| flags | flag);
        self.block.push(flags);
        if flags & CLASS != 0 {
            self.block.push(access.class);
        }
        if flags & OBJECT != 0 {
            put_varint(&mut self.block, u64::from(access.object));
        }
        if flags & CORE != 0 {
            self.block.push(access.core);
        }
        let difference = access.address.wrapping_sub(self.last.address) as i64;
        put_varint(&mut self.block, (difference << 1 ^ difference >> 63) as u64);
        self.last = access;
        self.in_block += 1;
        if self.block.len() >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    /// Writes the current block, if it has accesses, and starts a new one.
    fn end_block(&mut self) -> io::Result<()> {
        if self.in_block > 0 {
            self.out.write_all(&(self.block.len() as u32).to_le_bytes())?;
            self.out.write_all(&self.in_block.to_le_bytes())?;
            self.out.write_all(&crc32c::crc32c(&self.block).to_le_bytes())?;
            self.out.write_all(&self.block)?;
            self.total += u64::from(self.in_block);
        }
        self.block.clear();
        (self.in_block, self.last) = (0, Access::default());
        Ok(())
    }

    /// Writes the end marker. Without it the trace counts as truncated.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.end_block()?;
        self.out.write_all(&0_u32.to_le_bytes())?;
        self.out.write_all(&self.total.to_le_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Reads a trace as a stream, block by block: an iterator that ends after an error.
#[derive(Debug)]
pub struct TraceReader<R: Read> {
    input: R,
    header: TraceHeader,
    block: Vec<u8>,
    /// Position in the block.
    at: usize,
    /// Accesses of the block that are not decoded yet.
    left_in_block: u32,
    /// Number of accesses in all blocks read.
    total: u64,
    /// The previous access of the block.
    last: Access,
    ended: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads the header. `input` should be buffered.
    ///
    /// # Errors
    /// If the input is not a trace, has another format version, or is damaged.
    pub fn new(mut input: R) -> Result<Self, TraceError> {
        let mut magic = [0; 8];
        input.read_exact(&mut magic).map_err(|_| TraceError::NotATrace)?;
        if magic != *MAGIC {
            return Err(TraceError::NotATrace);
        }
        let version = u32::from_le_bytes(get(&mut input)?);
        if version != VERSION {
            return Err(TraceError::Version(version));
        }
        let len = u32::from_le_bytes(get(&mut input)?);
        if len > HEADER_BYTES_MAX {
            return Err(TraceError::Damaged(Damage::HeaderLength));
        }
        let mut header = vec![0; len as usize];
        input.read_exact(&mut header)?;
        let header = serde_json::from_slice(&header).map_err(|_| TraceError::Damaged(Damage::Header))?;
        let (block, last) = (Vec::new(), Access::default());
        Ok(TraceReader { input, header, block, at: 0, left_in_block: 0, total: 0, last, ended: false })
    }

    /// The header.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The next access; `None` at the end.
    fn read(&mut self) -> Result<Option<Access>, TraceError> {
        while self.left_in_block == 0 {
            if self.at != self.block.len() {
                return Err(TraceError::Damaged(Damage::BlockEnd));
            }
            let len = u32::from_le_bytes(get(&mut self.input)?);
            if len == 0 {
                let total = u64::from_le_bytes(get(&mut self.input)?);
                let why = TraceError::Damaged(Damage::Count);
                return if total == self.total { Ok(None) } else { Err(why) };
            }
            self.read_block(len)?;
        }
        self.left_in_block -= 1;
        self.decode().map(Some).ok_or(TraceError::Damaged(Damage::Access))
    }

    /// Reads and checks a block of `len` bytes.
    fn read_block(&mut self, len: u32) -> Result<(), TraceError> {
        let accesses = u32::from_le_bytes(get(&mut self.input)?);
        let checksum = u32::from_le_bytes(get(&mut self.input)?);
        // An access takes at least two bytes.
        if len > BLOCK_BYTES_MAX || accesses == 0 || accesses > len / 2 {
            return Err(TraceError::Damaged(Damage::BlockLength));
        }
        self.block.resize(len as usize, 0);
        self.input.read_exact(&mut self.block)?;
        if crc32c::crc32c(&self.block) != checksum {
            return Err(TraceError::Damaged(Damage::Checksum));
        }
        (self.at, self.left_in_block, self.last) = (0, accesses, Access::default());
        self.total = self.total.saturating_add(u64::from(accesses));
        Ok(())
    }

    /// Decodes the next access of the block; `None` if it is invalid.
    fn decode(&mut self) -> Option<Access> {
        let mut rest = &self.block[self.at..];
        let before = rest.len();
        let mut access = self.last;
        let flags = take(&mut rest)?;
        access.op = match flags & 3 {
            0 => Op::Load,
            1 => Op::NonTemporal,
            2 => Op::Flush,
            _ => return None,
        };
        if flags & !(3 | CLASS | OBJECT | CORE) != 0 {
            return None;
        }
        if flags & CLASS != 0 {
            access.class = take(&mut rest)?;
        }
        if flags & OBJECT != 0 {
            access.object = take_varint(&mut rest)?.try_into().ok()?;
        }
        if flags & CORE != 0 {
            access.core = take(&mut rest)?;
        }
        let zigzag = take_varint(&mut rest)?;
        let difference = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        access.address = access.address.wrapping_add(difference as u64);
        self.at += before - rest.len();
        self.last = access;
        in_range(&access).then_some(access)
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Access, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let access = self.read();
        self.ended = !matches!(access, Ok(Some(_)));
        access.transpose()
    }
}

/// True if class, object and core are below their maxima.
fn in_range(access: &Access) -> bool {
    usize::from(access.class) < CLASSES_MAX
        && usize::from(access.object) < OBJECTS_MAX
        && usize::from(access.core) < CORES_MAX
}

/// Reads `N` bytes.
fn get<const N: usize>(input: &mut impl Read) -> Result<[u8; N], TraceError> {
    let mut bytes = [0; N];
    match input.read_exact(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(TraceError::Damaged(Damage::Truncated)),
        Err(error) => Err(error.into()),
    }
}

/// Appends a number, seven bits per byte, low bits first.
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes the first byte.
fn take(rest: &mut &[u8]) -> Option<u8> {
    let (&first, tail) = rest.split_first()?;
    *rest = tail;
    Some(first)
}

/// Takes a number written by [`put_varint`]; `None` if it is truncated or exceeds 64 bits.
fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take(rest)?;
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(accesses: &[Access]) -> Vec<u8> {
        let header = TraceHeader { classes: vec!["sensitive".into()], objects: vec!["orders".into(), "index".into()] };
        let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
        accesses.iter().for_each(|access| writer.push(*access).unwrap());
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Access>, TraceError> {
        TraceReader::new(bytes)?.collect()
    }

    fn any_access() -> impl Strategy<Value = Access> {
        let op = prop_oneof![Just(Op::Load), Just(Op::NonTemporal), Just(Op::Flush)];
        let address = prop_oneof![any::<u64>(), 0_u64..10_000];
        (address, 0..OBJECTS_MAX as u16, 0..CLASSES_MAX as u8, 0..CORES_MAX as u8, op)
            .prop_map(|(address, object, class, core, op)| Access { address, object, class, core, op })
    }

    proptest! {
        #[test]
        fn traces_round_trip(accesses in prop::collection::vec(any_access(), 0..300)) {
            prop_assert_eq!(read(&write(&accesses)).unwrap(), accesses);
        }

        #[test]
        fn damage_is_detected(
            accesses in prop::collection::vec(any_access(), 1..50), at in any::<prop::sample::Index>(), flip in 1_u8..,
        ) {
            let mut bytes = write(&accesses);
            let at = at.index(bytes.len());
            prop_assert!(read(&bytes[..at]).is_err(), "truncated");
            bytes[at] ^= flip;
            // The names in the header have no checksum.
            if let Ok(other) = read(&bytes) {
                prop_assert_eq!(other, accesses);
            }
        }

        #[test]
        fn any_input_is_read_or_rejected(mut bytes in prop::collection::vec(any::<u8>(), 0..300), magic in any::<bool>()) {
            if magic {
                bytes.splice(0..0, *b"LLCTRACE\x01\0\0\0\x1d\0\0\0{\"classes\":[],\"objects\":[]}  ");
            }
            let _ = read(&bytes);
        }
    }

    #[test]
    fn long_scans_are_compact() {
        let accesses: Vec<Access> = (0..100_000).map(|line| Access::load(line * 64).of(1, 1)).collect();
        let bytes = write(&accesses);
        assert!(bytes.len() < 301_000, "{}", bytes.len());
        assert_eq!(read(&bytes).unwrap(), accesses);
        assert_eq!(TraceReader::new(&bytes[..]).unwrap().header().objects, ["orders", "index"]);
    }

    #[test]
    fn other_files_are_rejected() {
        assert!(matches!(read(b"SQLite format 3"), Err(TraceError::NotATrace)));
        assert!(matches!(read(b""), Err(TraceError::NotATrace)));
        let mut bytes = write(&[]);
        bytes[8] = 2;
        assert!(matches!(read(&bytes), Err(TraceError::Version(2))));
        bytes[8] = 1;
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(read(&bytes), Err(TraceError::Damaged(_))));
        let outside = Access { class: 200, ..Access::default() };
        assert!(TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap().push(outside).is_err());
    }
}
