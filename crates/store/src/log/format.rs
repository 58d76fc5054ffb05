//! The bytes of the log: segment names, group headers, records. See "Log" in `docs/format.md`.
//!
//! ```text
//! segment:  | opening group | group | group | … | zeros (preallocated) |     every group starts on a 4096-byte boundary
//! group:    | header (72 bytes) | record | record | … | zeros to the boundary |
//! record:   | payload length: u32 | sequence number: u64 | payload |         integers are little endian
//! ```

use crate::base::FORMAT_VERSION;
use keyaki_device::BLOCK;

/// Bytes of a group header.
pub(super) const HEADER_BYTES: usize = 72;
/// Bytes of a record header.
pub(super) const RECORD_HEADER_BYTES: usize = 12;
/// Maximum payload of a record in bytes.
pub(super) const MAX_RECORD_BYTES: usize = 1 << 31;
/// Maximum length of the records of a group in bytes: one record of maximum length. (A group of several records is much
/// shorter.)
pub(super) const MAX_BODY_BYTES: u64 = (MAX_RECORD_BYTES + RECORD_HEADER_BYTES) as u64;

const MAGIC: [u8; 8] = *b"KEYAKLOG";
const NAME_PREFIX: &str = "log-";

const _: () = {
    assert!(HEADER_BYTES == 68 + 4 && HEADER_BYTES <= BLOCK);
    assert!(RECORD_HEADER_BYTES == 4 + 8);
    // Lengths of records are stored in four bytes.
    assert!(MAX_RECORD_BYTES <= u32::MAX as usize);
};

/// The file name of a segment.
pub(super) fn segment_name(segment: u64) -> String {
    format!("{NAME_PREFIX}{segment:016x}")
}

/// The number of the segment with this file name; `None` if [`segment_name`] does not produce the name.
pub(super) fn parse_segment_name(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(NAME_PREFIX)?, 16).ok()?;
    (segment_name(number) == name).then_some(number)
}

/// `bytes` rounded up to whole blocks.
pub(super) fn round_up(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK)
}

/// The header of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupHeader {
    /// A random number, the same in all groups of one log.
    pub log_id: u64,
    /// The segment and the offset in it (in bytes) for which the group was written. They detect misdirected writes.
    pub segment: u64,
    pub offset: u64,
    /// Sequence number of the first record, or of the next record if the group is empty.
    pub first_sequence: u64,
    /// The newest sequence number that was durable when this group was written.
    pub synced_through: u64,
    pub count: u32,
    pub body_len: u64,
    /// crc32c of the records.
    pub body_crc: u32,
}

/// The reason why a position has no valid group header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoHeader {
    /// Only zeros: never written.
    Empty,
    /// Neither zeros nor the header of a group written for this position.
    Unsound,
    /// A valid header of another format version.
    Version(u32),
}

impl GroupHeader {
    /// Bytes that the group occupies in the segment.
    pub(super) fn span(&self) -> u64 {
        (HEADER_BYTES as u64 + self.body_len).next_multiple_of(BLOCK as u64)
    }

    /// The sequence number expected after this group; `None` on overflow.
    pub(super) fn next_sequence(&self) -> Option<u64> {
        self.first_sequence.checked_add(u64::from(self.count))
    }

    /// Asserts that recovery accepts the header.
    pub(super) fn assert_sound(&self) {
        assert!(self.synced_through < self.first_sequence && self.next_sequence().is_some(), "{self:?}");
        assert!(self.offset.is_multiple_of(BLOCK as u64) && self.body_len <= MAX_BODY_BYTES, "{self:?}");
    }

    /// Writes the header into the first [`HEADER_BYTES`] of `out`.
    pub(super) fn encode(&self, out: &mut [u8]) {
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..24].copy_from_slice(&self.log_id.to_le_bytes());
        out[24..32].copy_from_slice(&self.segment.to_le_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out[40..48].copy_from_slice(&self.first_sequence.to_le_bytes());
        out[48..56].copy_from_slice(&self.synced_through.to_le_bytes());
        out[56..64].copy_from_slice(&self.body_len.to_le_bytes());
        out[64..68].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32c::crc32c(&out[..68]);
        out[68..72].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes the header at the start of `bytes`. It must be valid and written for `offset` of `segment`. Does not
    /// check the body.
    pub(super) fn decode(bytes: &[u8], segment: u64, offset: u64) -> Result<GroupHeader, NoHeader> {
        let Some(bytes) = bytes.get(..HEADER_BYTES) else { return Err(NoHeader::Unsound) };
        if bytes[0..8] != MAGIC {
            return Err(if bytes.iter().all(|&byte| byte == 0) { NoHeader::Empty } else { NoHeader::Unsound });
        }
        if crc32c::crc32c(&bytes[..68]) != u32_at(bytes, 68) {
            return Err(NoHeader::Unsound);
        }
        let version = u32_at(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(NoHeader::Version(version));
        }
        let header = GroupHeader {
            log_id: u64_at(bytes, 16),
            segment: u64_at(bytes, 24),
            offset: u64_at(bytes, 32),
            first_sequence: u64_at(bytes, 40),
            synced_through: u64_at(bytes, 48),
            count: u32_at(bytes, 12),
            body_len: u64_at(bytes, 56),
            body_crc: u32_at(bytes, 64),
        };
        let fits = header.segment == segment
            && header.offset == offset
            && header.synced_through < header.first_sequence
            && header.body_len <= MAX_BODY_BYTES
            && header.next_sequence().is_some();
        if fits { Ok(header) } else { Err(NoHeader::Unsound) }
    }
}

/// Writes a record to the start of `out`, which must be long enough. Returns the length of the record.
pub(super) fn encode_record(out: &mut [u8], sequence: u64, payload: &[u8]) -> usize {
    let end = RECORD_HEADER_BYTES + payload.len();
    out[0..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    out[4..12].copy_from_slice(&sequence.to_le_bytes());
    out[12..end].copy_from_slice(payload);
    end
}

/// Splits the first record off `bytes`: its sequence number, its payload, and the remaining bytes. `None` if it is
/// incomplete.
pub(super) fn split_record(bytes: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    if bytes.len() < RECORD_HEADER_BYTES {
        return None;
    }
    let len = u32_at(bytes, 0) as usize;
    let (payload, rest) = bytes[RECORD_HEADER_BYTES..].split_at_checked(len)?;
    Some((u64_at(bytes, 4), payload, rest))
}

/// Reads a little-endian number. `bytes` must be long enough.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> GroupHeader {
        GroupHeader {
            log_id: 7,
            segment: 3,
            offset: 8192,
            first_sequence: 10,
            synced_through: 9,
            count: 2,
            body_len: 40,
            body_crc: 5,
        }
    }

    #[test]
    fn segment_names_round_trip_and_others_are_refused() {
        for number in [0, 1, 0xabc, u64::MAX] {
            assert_eq!(parse_segment_name(&segment_name(number)), Some(number));
        }
        for name in ["log-1", "log-000000000000000G", "log-+000000000000001", "log-00000000000000AB", "data", ""] {
            assert_eq!(parse_segment_name(name), None, "{name}");
        }
    }

    #[test]
    fn header_round_trips_and_every_flipped_bit_is_detected() {
        let mut bytes = vec![0; HEADER_BYTES];
        header().encode(&mut bytes);
        assert_eq!(GroupHeader::decode(&bytes, 3, 8192), Ok(header()));
        assert_eq!(GroupHeader::decode(&bytes, 3, 4096), Err(NoHeader::Unsound));
        assert_eq!(GroupHeader::decode(&bytes, 2, 8192), Err(NoHeader::Unsound));
        for bit in 0..HEADER_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(GroupHeader::decode(&bytes, 3, 8192), Err(NoHeader::Unsound), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(GroupHeader::decode(&[0; HEADER_BYTES], 3, 8192), Err(NoHeader::Empty));
        assert_eq!(GroupHeader::decode(&bytes[..70], 3, 8192), Err(NoHeader::Unsound));
    }

    #[test]
    fn records_round_trip_and_short_ones_are_none() {
        let mut bytes = vec![0; 64];
        let len = encode_record(&mut bytes, 42, b"payload");
        assert_eq!(split_record(&bytes[..len]), Some((42, b"payload".as_slice(), b"".as_slice())));
        for short in 0..len {
            assert_eq!(split_record(&bytes[..short]), None);
        }
    }
}
