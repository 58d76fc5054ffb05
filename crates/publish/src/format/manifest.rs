//! Manifests: the map from ranges of a version's data file to ranges of objects.
//!
//! ```text
//! 0 magic "KEYAKIPV" | 8 format version u32 | 12 frame length u32 | 16 number u64 | 24 time i64 | 32 nonce u64
//! 40 database id u64 | 48 sequence u64 | 56 length of the data file u64 | 64 objects u32 | 68 ranges u32
//! 72 superblock (4096 bytes)
//! objects  hash (16), nonce (8), varint blocks of payload
//! ranges   varints: blocks since the end of the range before, blocks, object (zigzag difference to the one before),
//!          first block in the payload; identity (8)
//! end      xxh3 of all bytes before                                                  integers are little endian
//! ```
//!
//! *One request.* A reader needs all of it, as it needs all of the node table, which has the keys of every extent and
//! is five to ten times as long. A database of 1 TB has about a million extents of 1 MiB: 14 MB of ranges if no two
//! adjacent ones are in adjacent places, and 130,000 to 260,000 objects, 3 to 7 MB. Opening it therefore takes one
//! listing, one request for the manifest, and one to three for the node table. A tree of pages would let a reader
//! begin with less, but the node table would still be read, and each first access to a part of the database would
//! take another round trip.
//!
//! *Invariants.* Ranges ascend, do not overlap, are whole blocks behind the superblock and within the data file, and
//! lie within the payload of their object. Decoding checks this, even for maliciously crafted bytes.

use xxhash_rust::xxh3::xxh3_64;

use super::frame::{FRAME_BYTES, ObjectId};
use super::varint::{self, Reader};

/// Length of a block in bytes: the unit of ranges.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Bytes at the start of a data file that have only the superblock.
pub(crate) const RESERVED_BYTES: u64 = 64 << 10;

const MAGIC: [u8; 8] = *b"KEYAKIPV";
const FORMAT_VERSION: u32 = 1;
const CHECKSUM_BYTES: usize = 8;
/// Minimum length of an encoded object and an encoded range, in bytes.
const OBJECT_MIN: usize = 16 + 8 + 1;
const RANGE_MIN: usize = 4 + 8;
/// Maximum length of a data file in blocks, so that sums cannot overflow.
const BLOCKS_MAX: u64 = 1 << 50;

/// A version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub number: u64,
    /// Time of the publisher's clock, in microseconds since 1970.
    pub published_us: i64,
    /// Random: manifests of different publishers differ.
    pub nonce: u64,
    pub database_id: u64,
    pub sequence: u64,
    /// Length of the data file.
    pub data_bytes: u64,
    /// A block, for the offsets 0 and 32,768 of the data file.
    pub superblock: Vec<u8>,
    pub objects: Vec<ObjectEntry>,
    pub ranges: Vec<DataRange>,
}

/// An object of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectEntry {
    pub id: ObjectId,
    /// Length of the payload in bytes.
    pub payload_bytes: u64,
}

/// A range of the data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataRange {
    pub offset: u64,
    pub len: u64,
    /// Index in [`Manifest::objects`].
    pub object: u32,
    /// Offset in the payload of the object.
    pub start: u64,
    /// Identity of the extent ([`keyaki_store::ImageExtent`]), or a hash of the node table.
    pub identity: u64,
}

/// A reason for which bytes are not a usable manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// They are not the bytes that were written.
    Damaged(String),
    /// They have another format version.
    Version(u32),
    /// They contradict each other at this offset.
    Malformed(usize, String),
}

impl Problem {
    /// The only format version that this program reads.
    pub const SUPPORTED: u32 = FORMAT_VERSION;
}

impl Manifest {
    /// The bytes of the manifest.
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.superblock.len() as u64, BLOCK_BYTES, "the superblock is a block");
        let mut out = Vec::with_capacity(8192 + self.objects.len() * 28 + self.ranges.len() * 18);
        out.extend_from_slice(&MAGIC);
        for number in [FORMAT_VERSION, FRAME_BYTES as u32] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let published = self.published_us as u64;
        for number in [self.number, published, self.nonce, self.database_id, self.sequence, self.data_bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for count in [self.objects.len(), self.ranges.len()] {
            out.extend_from_slice(&(count as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.superblock);
        for object in &self.objects {
            out.extend_from_slice(&object.id.hash.to_le_bytes());
            out.extend_from_slice(&object.id.nonce.to_le_bytes());
            varint::put(object.payload_bytes / BLOCK_BYTES, &mut out);
        }
        let (mut end, mut before) = (0, 0_i64);
        for range in &self.ranges {
            let step = i64::from(range.object) - before;
            varint::put((range.offset - end) / BLOCK_BYTES, &mut out);
            varint::put(range.len / BLOCK_BYTES, &mut out);
            varint::put((step << 1 ^ step >> 63) as u64, &mut out);
            varint::put(range.start / BLOCK_BYTES, &mut out);
            out.extend_from_slice(&range.identity.to_le_bytes());
            (end, before) = (range.offset + range.len, i64::from(range.object));
        }
        let checksum = xxh3_64(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Decodes and checks the bytes of a manifest.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, Problem> {
        let damaged = |detail: &str| Problem::Damaged(detail.into());
        let (contents, checksum) =
            bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(|| damaged("it is too short"))?;
        if xxh3_64(contents) != u64::from_le_bytes(*checksum) {
            return Err(damaged("checksum mismatch"));
        }
        let mut reader = Reader::new(contents);
        if reader.array() != Some(MAGIC) {
            return Err(Problem::Malformed(0, "it does not start with \"KEYAKIPV\"".into()));
        }
        match reader.u32() {
            Some(FORMAT_VERSION) => {}
            found => return Err(Problem::Version(found.unwrap_or(0))),
        }
        match Manifest::read(&mut reader) {
            Ok(manifest) if reader.remaining() == 0 => Ok(manifest),
            Ok(_) => Err(Problem::Malformed(reader.position(), "bytes follow the last range".into())),
            Err(detail) => Err(Problem::Malformed(reader.position(), detail.into())),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Manifest, &'static str> {
        const CUT: &str = "it ends early";
        if reader.u32().ok_or(CUT)? != FRAME_BYTES as u32 {
            return Err("it has frames of another length");
        }
        let mut word = || reader.u64().ok_or(CUT);
        let (number, published_us, nonce) = (word()?, word()? as i64, word()?);
        let (database_id, sequence, data_bytes) = (word()?, word()?, word()?);
        let is_whole = data_bytes.is_multiple_of(BLOCK_BYTES) && data_bytes / BLOCK_BYTES <= BLOCKS_MAX;
        if !is_whole || data_bytes < RESERVED_BYTES {
            return Err("the length of the data file is impossible");
        }
        let counts = (reader.u32().ok_or(CUT)? as usize, reader.u32().ok_or(CUT)? as usize);
        let superblock = reader.bytes(BLOCK_BYTES as usize).ok_or(CUT)?.to_vec();
        // Before the allocation: the counts may be wrong.
        let least = counts.0.checked_mul(OBJECT_MIN).zip(counts.1.checked_mul(RANGE_MIN));
        if least.and_then(|(objects, ranges)| objects.checked_add(ranges)).is_none_or(|len| len > reader.remaining()) {
            return Err("it has fewer bytes than its objects and ranges need");
        }
        let mut objects = Vec::with_capacity(counts.0);
        for _ in 0..counts.0 {
            objects.push(read_object(reader).ok_or("an object is invalid")?);
        }
        let mut ranges = Vec::with_capacity(counts.1);
        let (mut end, mut before) = (0, 0_i64);
        for _ in 0..counts.1 {
            let range = read_range(reader, end, before).ok_or("a range is invalid")?;
            let object = objects.get(range.object as usize).ok_or("a range is in an object that does not exist")?;
            let is_inside = range.start + range.len <= object.payload_bytes;
            if !is_inside || range.offset < RESERVED_BYTES || range.offset + range.len > data_bytes {
                return Err("a range is outside of its object or of the data file");
            }
            (end, before) = (range.offset + range.len, i64::from(range.object));
            ranges.push(range);
        }
        Ok(Manifest { number, published_us, nonce, database_id, sequence, data_bytes, superblock, objects, ranges })
    }
}

fn read_object(reader: &mut Reader<'_>) -> Option<ObjectEntry> {
    let id = ObjectId { hash: u128::from_le_bytes(reader.array()?), nonce: reader.u64()? };
    let blocks = reader.varint().filter(|blocks| (1..=BLOCKS_MAX).contains(blocks))?;
    Some(ObjectEntry { id, payload_bytes: blocks * BLOCK_BYTES })
}

/// The range behind the offset `end`, after one in the object `before`. Its numbers are too small for overflows.
fn read_range(reader: &mut Reader<'_>, end: u64, before: i64) -> Option<DataRange> {
    let mut blocks = || reader.varint().filter(|&blocks| blocks <= BLOCKS_MAX);
    let (gap, len, step, start) = (blocks()?, blocks()?, blocks()?, blocks()?);
    let object = before + ((step >> 1) as i64 ^ -((step & 1) as i64));
    let identity = reader.u64()?;
    let offset = end.checked_add(gap * BLOCK_BYTES)?;
    let (object, len, start) = (u32::try_from(object).ok()?, len * BLOCK_BYTES, start * BLOCK_BYTES);
    (len > 0 && offset / BLOCK_BYTES <= BLOCKS_MAX).then_some(DataRange { offset, len, object, start, identity })
}

#[cfg(test)]
mod tests {
    use keyaki_primitives::Random;

    use super::*;

    fn manifest(ranges: u64) -> Manifest {
        let mut random = Random::new(ranges);
        let objects: Vec<ObjectEntry> = (0..ranges.div_ceil(4))
            .map(|i| ObjectEntry { id: ObjectId { hash: u128::from(i) << 70, nonce: i }, payload_bytes: 64 << 12 })
            .collect();
        let (mut end, mut of) = (RESERVED_BYTES, Vec::new());
        for _ in 0..ranges {
            let (gap, len) = (random.below(3) << 12, (1 + random.below(16)) << 12);
            let object = random.index(objects.len()) as u32;
            let (start, identity) = (random.below(48) << 12, random.next_u64());
            of.push(DataRange { offset: end + gap, len, object, start, identity });
            end += gap + len;
        }
        Manifest {
            number: 7,
            published_us: -3,
            nonce: 9,
            database_id: 11,
            sequence: 13,
            data_bytes: end + 4096,
            superblock: vec![5; 4096],
            objects,
            ranges: of,
        }
    }

    /// Bytes with the right checksum.
    fn sealed(mut contents: Vec<u8>) -> Vec<u8> {
        contents.truncate(contents.len() - CHECKSUM_BYTES);
        let checksum = xxh3_64(&contents);
        contents.extend_from_slice(&checksum.to_le_bytes());
        contents
    }

    #[test]
    fn manifests_are_read_back() {
        for ranges in [0, 1, 2, 100, 1000] {
            let manifest = manifest(ranges);
            assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }
    }

    #[test]
    fn changed_bytes_are_found() {
        let bytes = manifest(20).encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(matches!(Manifest::decode(&changed), Err(Problem::Damaged(_))), "byte {at}");
        }
        for len in 0..bytes.len() {
            assert!(matches!(Manifest::decode(&bytes[..len]), Err(Problem::Damaged(_))), "length {len}");
        }
    }

    #[test]
    fn contradictions_are_found() {
        let bytes = manifest(20).encode();
        let at = |position: usize, byte: u8| {
            let mut changed = bytes.clone();
            changed[position] = byte;
            Manifest::decode(&sealed(changed))
        };
        assert_eq!(at(8, 2), Err(Problem::Version(2)));
        for position in [0, 12, 56, 63, 64, 67, 68, 71] {
            assert!(matches!(at(position, 0xff), Err(Problem::Malformed(..))), "byte {position}");
        }
        let change = |change: fn(&mut Manifest)| {
            let mut changed = manifest(20);
            change(&mut changed);
            Manifest::decode(&changed.encode())
        };
        let wrong: [fn(&mut Manifest); 5] = [
            |manifest| manifest.ranges[3].object = 5,
            |manifest| manifest.ranges[3].start = 64 << 12,
            |manifest| manifest.data_bytes -= 8192,
            |manifest| manifest.objects[0].payload_bytes = 0,
            |manifest| manifest.ranges[0].offset = 0,
        ];
        for (i, wrong) in wrong.into_iter().enumerate() {
            assert!(matches!(change(wrong), Err(Problem::Malformed(..))), "{i}");
        }
    }

    #[test]
    fn any_bytes_with_a_right_checksum_are_survived() {
        let bytes = manifest(20).encode();
        let mut random = Random::new(5);
        for _ in 0..3_000 {
            let mut changed = bytes.clone();
            for _ in 0..=random.below(3) {
                let at = if random.one_in(2) { 12 + random.index(60) } else { random.index(bytes.len()) };
                changed[at] = random.next_u64() as u8;
            }
            if let Ok(manifest) = Manifest::decode(&sealed(changed)) {
                let _ = manifest.encode();
            }
        }
    }

    /// The figures in the module's documentation.
    #[test]
    fn a_terabyte_takes_one_request_of_a_few_megabytes() {
        let (extents, objects) = (1_000_000_u64, 260_000_u64);
        let mut random = Random::new(1);
        let manifest = Manifest {
            objects: (0..objects)
                .map(|i| ObjectEntry { id: ObjectId { hash: i.into(), nonce: i }, payload_bytes: 4 << 20 })
                .collect(),
            ranges: (0..extents)
                .map(|i| {
                    let (object, start) = (random.below(objects) as u32, random.below(700) << 12);
                    DataRange { offset: RESERVED_BYTES + (i << 20), len: 1 << 20, object, start, identity: i << 40 }
                })
                .collect(),
            data_bytes: RESERVED_BYTES + (extents << 20),
            ..manifest(0)
        };
        let bytes = manifest.encode();
        assert!((15_000_000..25_000_000).contains(&bytes.len()), "{} bytes", bytes.len());
        assert_eq!(Manifest::decode(&bytes).map(|manifest| manifest.ranges.len()), Ok(1_000_000));
    }
}
