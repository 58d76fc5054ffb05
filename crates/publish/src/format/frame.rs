//! Objects: payload in frames with checksums.
//!
//! ```text
//! frame 0: payload (64 KiB) | xxh3 (8) | frame 1: payload | xxh3 | … | last frame: payload (1 byte to 64 KiB) | xxh3
//! ```
//!
//! The seed of a checksum is the low half of the object's hash plus the frame's number, so a frame of another object
//! or another position fails as well as a changed one. A frame is the unit of requests and of caches: its place in
//! the object follows from its number, and every request consists of whole frames, which are verified by themselves.
//!
//! *The length of a frame.* A request takes 20 ms and more, whatever its length up to about 1 MiB; a frame takes less
//! than 1 ms of transfer. Eight pages in a frame make up for the bytes around the wanted page whenever neighbours are
//! read too. Checksums take 0.012 % of the space.

use std::fmt;
use std::ops::Range;

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// Length of the payload of a frame in bytes, except for the last one of an object.
pub(crate) const FRAME_BYTES: u64 = 64 << 10;
/// Length of a checksum in bytes.
const CHECKSUM_BYTES: u64 = 8;

/// Identifies an object among all that were ever written: no two uploads have the same, even of equal payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ObjectId {
    /// xxh3 (128 bits) of the payload.
    pub hash: u128,
    /// Random.
    pub nonce: u64,
}

impl ObjectId {
    /// The id of a payload.
    pub fn of(payload: &[u8], nonce: u64) -> ObjectId {
        ObjectId { hash: xxh3_128(payload), nonce }
    }

    fn seed(self, frame: u64) -> u64 {
        (self.hash as u64).wrapping_add(frame)
    }

    /// Parses [`Display`](fmt::Display).
    pub fn parse(name: &str) -> Option<ObjectId> {
        let (hash, nonce) = name.split_once('-')?;
        let is_hex = |text: &str, len: usize| text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parsed = is_hex(hash, 32) && is_hex(nonce, 16);
        let (hash, nonce) = (u128::from_str_radix(hash, 16).ok()?, u64::from_str_radix(nonce, 16).ok()?);
        parsed.then_some(ObjectId { hash, nonce })
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:016x}", self.hash, self.nonce)
    }
}

/// Number of frames of a payload.
pub(crate) fn frame_count(payload_bytes: u64) -> u64 {
    payload_bytes.div_ceil(FRAME_BYTES)
}

/// Length in bytes of the object with a payload.
pub(crate) fn stored_bytes(payload_bytes: u64) -> u64 {
    payload_bytes + frame_count(payload_bytes) * CHECKSUM_BYTES
}

/// The bytes of the object that have the given frames.
pub(crate) fn stored_range(frames: Range<u64>, payload_bytes: u64) -> Range<u64> {
    let start = |frame: u64| (frame * (FRAME_BYTES + CHECKSUM_BYTES)).min(stored_bytes(payload_bytes));
    start(frames.start)..start(frames.end)
}

/// The bytes of an object.
pub(crate) fn encode_object(id: ObjectId, payload: &[u8]) -> Vec<u8> {
    let mut object = Vec::with_capacity(stored_bytes(payload.len() as u64) as usize);
    for (frame, bytes) in (0..).zip(payload.chunks(FRAME_BYTES as usize)) {
        object.extend_from_slice(bytes);
        object.extend_from_slice(&xxh3_64_with_seed(bytes, id.seed(frame)).to_le_bytes());
    }
    object
}

/// The payload of a frame with this number, whose bytes are those of [`stored_range`]; `None` if the checksum is wrong.
pub(crate) fn verify_frame(id: ObjectId, frame: u64, bytes: &[u8]) -> Option<&[u8]> {
    let (payload, checksum) = bytes.split_last_chunk::<8>()?;
    (xxh3_64_with_seed(payload, id.seed(frame)) == u64::from_le_bytes(*checksum)).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 / 3) as u8).collect()
    }

    #[test]
    fn every_frame_returns_its_payload() {
        let frame = FRAME_BYTES as usize;
        for len in [1, 4096, frame - 1, frame, frame + 1, 3 * frame, 3 * frame + 4096] {
            let payload = payload(len);
            let id = ObjectId::of(&payload, 3);
            let object = encode_object(id, &payload);
            assert_eq!(object.len() as u64, stored_bytes(len as u64));
            let mut found = Vec::new();
            for number in 0..frame_count(len as u64) {
                let range = stored_range(number..number + 1, len as u64);
                found.extend_from_slice(
                    verify_frame(id, number, &object[range.start as usize..range.end as usize]).unwrap(),
                );
            }
            assert_eq!(found, payload);
            assert_eq!(stored_range(0..frame_count(len as u64), len as u64), 0..object.len() as u64);
        }
    }

    #[test]
    fn other_frames_and_objects_and_changed_bytes_fail() {
        let payload = payload(3 * FRAME_BYTES as usize);
        let id = ObjectId::of(&payload, 3);
        let object = encode_object(id, &payload);
        let range = stored_range(1..2, payload.len() as u64);
        let frame = &object[range.start as usize..range.end as usize];
        assert!(verify_frame(id, 1, frame).is_some());
        assert!(verify_frame(id, 0, frame).is_none());
        assert!(verify_frame(ObjectId { hash: id.hash + 5, ..id }, 1, frame).is_none());
        assert!(verify_frame(id, 1, &frame[1..]).is_none());
        assert!(verify_frame(id, 1, &frame[..4]).is_none());
        for at in [0, 100, frame.len() - 1] {
            let mut changed = frame.to_vec();
            changed[at] ^= 1;
            assert!(verify_frame(id, 1, &changed).is_none());
        }
    }

    #[test]
    fn names_of_objects_are_parsed() {
        let id = ObjectId::of(b"payload", 77);
        assert_eq!(ObjectId::parse(&id.to_string()), Some(id));
        for name in ["", "ab-cd", &id.to_string()[1..], &format!("{id}0"), &format!("+{}", &id.to_string()[1..])] {
            assert_eq!(ObjectId::parse(name), None, "{name}");
        }
    }
}
