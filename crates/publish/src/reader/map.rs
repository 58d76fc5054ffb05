//! The map from ranges of the data file to frames of objects.

use std::ops::Range;

use crate::format::{BLOCK_BYTES, Manifest, ObjectEntry, RESERVED_BYTES};

/// Offsets of the superblock in the data file.
pub(crate) const SUPERBLOCKS: [u64; 2] = [0, 32 << 10];

/// A manifest without what only publishers need.
#[derive(Debug)]
pub(crate) struct DataMap {
    pub data_bytes: u64,
    superblock: Vec<u8>,
    pub objects: Vec<ObjectEntry>,
    /// The object that begins with the node table: opening the database needs all of it.
    pub first_object: Option<u32>,
    /// Ascending ranges. Adjacent ranges of the manifest in adjacent places are one.
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    offset: u64,
    len: u64,
    object: u32,
    start: u64,
}

/// The place of a part of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A hole.
    Zeros,
    /// The superblock, from this byte on.
    Superblock(usize),
    /// The payload of an object, from this byte on.
    Object(u32, u64),
}

impl DataMap {
    pub fn new(manifest: Manifest) -> DataMap {
        let mut pieces: Vec<Piece> = Vec::new();
        for range in &manifest.ranges {
            match pieces.last_mut() {
                Some(last)
                    if last.offset + last.len == range.offset
                        && last.object == range.object
                        && last.start + last.len == range.start =>
                {
                    last.len += range.len;
                }
                _ => {
                    let (offset, len, object, start) = (range.offset, range.len, range.object, range.start);
                    pieces.push(Piece { offset, len, object, start });
                }
            }
        }
        pieces.shrink_to_fit();
        // The node table is behind all extents.
        let first_object = manifest.ranges.last().filter(|range| range.start == 0).map(|range| range.object);
        let Manifest { data_bytes, superblock, objects, .. } = manifest;
        DataMap { data_bytes, superblock, objects, first_object, pieces }
    }

    /// The places of the bytes of a range, in order, with their lengths in bytes. The range lies within the data file.
    pub fn places(&self, range: Range<u64>) -> Vec<(usize, Place)> {
        assert!(range.end <= self.data_bytes, "{range:?} ends behind the data file");
        let (mut places, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let (place, end) =
                if at < RESERVED_BYTES { self.reserved(at, range.end) } else { self.data(at, range.end) };
            assert!(end > at, "no bytes at offset {at}");
            places.push(((end - at) as usize, place));
            at = end;
        }
        places
    }

    /// The place of an offset before the extents, and its end, at most `limit`.
    fn reserved(&self, at: u64, limit: u64) -> (Place, u64) {
        for start in SUPERBLOCKS {
            if at < start {
                return (Place::Zeros, start.min(limit));
            }
            let end = start + BLOCK_BYTES;
            if at < end {
                let end = end.min(limit);
                return (Place::Superblock((at - start) as usize), end);
            }
        }
        (Place::Zeros, RESERVED_BYTES.min(limit))
    }

    fn data(&self, at: u64, limit: u64) -> (Place, u64) {
        let next = self.pieces.partition_point(|piece| piece.offset <= at);
        let piece = next.checked_sub(1).map(|before| self.pieces[before]);
        match piece.filter(|piece| at < piece.offset + piece.len) {
            Some(piece) => {
                let end = (piece.offset + piece.len).min(limit);
                (Place::Object(piece.object, piece.start + (at - piece.offset)), end)
            }
            None => {
                let end = self.pieces.get(next).map_or(self.data_bytes, |piece| piece.offset);
                (Place::Zeros, end.min(limit))
            }
        }
    }

    /// The ranges of the data file that have bytes, except for the superblock, in parts of at most `part_bytes` bytes
    /// of the payload of an object, which end at multiples of it.
    pub fn parts(&self, part_bytes: u64) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        for piece in &self.pieces {
            let mut done = 0;
            while done < piece.len {
                let len = (part_bytes - (piece.start + done) % part_bytes).min(piece.len - done);
                parts.push(piece.offset + done..piece.offset + done + len);
                done += len;
            }
        }
        parts
    }

    pub fn superblock(&self) -> &[u8] {
        &self.superblock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DataRange, ObjectId};

    const BLOCK: u64 = BLOCK_BYTES;

    fn map() -> DataMap {
        let object = |hash| ObjectEntry { id: ObjectId { hash, nonce: 0 }, payload_bytes: 100 * BLOCK };
        let range = |block: u64, blocks: u64, object, start: u64| {
            let (offset, len) = (RESERVED_BYTES + block * BLOCK, blocks * BLOCK);
            DataRange { offset, len, object, start: start * BLOCK, identity: 0 }
        };
        DataMap::new(Manifest {
            number: 1,
            published_us: 0,
            nonce: 0,
            database_id: 0,
            sequence: 0,
            data_bytes: RESERVED_BYTES + 40 * BLOCK,
            superblock: vec![1; BLOCK as usize],
            objects: vec![object(0), object(1)],
            // The first two are one piece.
            ranges: vec![range(0, 4, 0, 10), range(4, 4, 0, 14), range(10, 4, 0, 18), range(14, 4, 1, 22)],
        })
    }

    #[test]
    fn every_range_has_its_places() {
        let map = map();
        assert_eq!(map.pieces.len(), 3);
        let places = |from: u64, to: u64| map.places(RESERVED_BYTES + from * BLOCK..RESERVED_BYTES + to * BLOCK);
        let block = BLOCK as usize;
        assert_eq!(places(1, 6), [(5 * block, Place::Object(0, 11 * BLOCK))]);
        assert_eq!(
            places(7, 20),
            [
                (block, Place::Object(0, 17 * BLOCK)),
                (2 * block, Place::Zeros),
                (4 * block, Place::Object(0, 18 * BLOCK)),
                (4 * block, Place::Object(1, 22 * BLOCK)),
                (2 * block, Place::Zeros),
            ]
        );
        assert_eq!(places(18, 40), [(22 * block, Place::Zeros)]);
        assert_eq!(
            map.places(0..RESERVED_BYTES),
            [
                (block, Place::Superblock(0)),
                (7 * block, Place::Zeros),
                (block, Place::Superblock(0)),
                (7 * block, Place::Zeros),
            ]
        );
        assert_eq!(map.places(100..200), [(100, Place::Superblock(100))]);
        assert_eq!(map.places(5..5), []);
        let parts: Vec<_> =
            map.parts(8 * BLOCK).into_iter().map(|part| (part.start - RESERVED_BYTES) / BLOCK).collect();
        assert_eq!(parts, [0, 6, 10, 14, 16]);
    }
}
