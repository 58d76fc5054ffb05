//! Index pages: the data pages of an extent, the fence key of each, and a filter over the keys.
//!
//! ```text
//! header      as in every page (see the module above), kind 2, no directory
//! checksums   4 bytes per entry: the checksum in the header of the data page
//! distances   integers: distance from the start of the data page to the index page, in units of 4096 bytes
//! lengths     integers: length of the data page in units of 4096 bytes
//! rows        integers: rows of the data page
//! ends        integers: the end of each fence in the heap
//! heap        varint length, bytes: the fences, concatenated
//! blocks      varint: number of filter blocks
//! filter      starts at the next multiple of 32; see `filter`
//! ```
//!
//! Opening an index page checks every entry: the data pages are contiguous and end where the index page begins, and the
//! fences ascend. A search compares fences in place.

use std::ops::Range;

use super::open::ROWS_MAX;
use super::{BLOCK, HEADER_LEN, Ints, MAGIC, PAGE_BYTES_MAX, PAGE_FORMAT, PageRef, filter};
use crate::codec::column::{IntsEncoder, partition_point};
use crate::codec::varint::{Reader, put_varint};

/// Length of a checksum in bytes.
const CHECKSUM_LEN: usize = 4;

/// One data page of an extent, for its index.
#[derive(Debug, Clone)]
pub struct IndexEntry {
    /// The reference of the data page.
    pub page: PageRef,
    /// Number of rows of the data page.
    pub rows: u32,
    /// The fence key: greater than every key of the page before, not greater than any key of this page. Empty for the
    /// first page.
    pub fence: Vec<u8>,
}

/// Encodes the index page of an extent. Its length is a multiple of 4096, and it is not yet sealed. It must be placed
/// directly behind the last data page. The offsets in `entries` may be relative to any origin. `key_hashes` has the
/// xxh3 hash of every encoded key for the filter; without hashes there is no filter.
pub fn encode_index(entries: &[IndexEntry], key_hashes: &[u64]) -> Vec<u8> {
    let mut out = vec![0; HEADER_LEN];
    out[..4].copy_from_slice(&MAGIC);
    (out[24], out[25]) = (2, PAGE_FORMAT);
    out[28..32].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    entries.iter().for_each(|entry| out.extend_from_slice(&entry.page.checksum.to_le_bytes()));
    let end = entries.last().map_or(0, |last| last.page.offset + u64::from(last.page.len));
    let distance = |entry: &IndexEntry| end.wrapping_sub(entry.page.offset) as i64 / BLOCK as i64;
    let mut ints = IntsEncoder::default();
    let mut put_ints = |values: &mut dyn Iterator<Item = i64>, out: &mut Vec<u8>| {
        ints.values.clear();
        ints.values.extend(values);
        ints.plan();
        ints.write(out);
    };
    put_ints(&mut entries.iter().map(distance), &mut out);
    put_ints(&mut entries.iter().map(|entry| i64::from(entry.page.len) / BLOCK as i64), &mut out);
    put_ints(&mut entries.iter().map(|entry| i64::from(entry.rows)), &mut out);
    let mut heap_len = 0;
    let ends = entries.iter().map(|entry| {
        heap_len += entry.fence.len() as i64;
        heap_len
    });
    put_ints(&mut { ends }, &mut out);
    put_varint(heap_len as u64, &mut out);
    entries.iter().for_each(|entry| out.extend_from_slice(&entry.fence));
    let blocks = filter::block_count(key_hashes.len());
    put_varint(blocks as u64, &mut out);
    let start = if blocks == 0 { out.len() } else { out.len().next_multiple_of(filter::BLOCK_BYTES) };
    out.resize(start + blocks * filter::BLOCK_BYTES, 0);
    key_hashes.iter().for_each(|&hash| filter::insert(&mut out[start..], hash));
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

/// Length in bytes of a filter for `keys` keys.
pub(crate) fn filter_bytes(keys: usize) -> usize {
    filter::block_count(keys) * filter::BLOCK_BYTES
}

/// Sets the checksum of data page `i` in an encoded index page. The checksums are known only after the extent was
/// placed.
pub fn set_checksum(index: &mut [u8], i: usize, checksum: u32) {
    let at = HEADER_LEN + i * CHECKSUM_LEN;
    index[at..at + CHECKSUM_LEN].copy_from_slice(&checksum.to_le_bytes());
}

/// The layout of an index page.
#[derive(Debug)]
pub(super) struct Index {
    entries: usize,
    /// Offset of the index page in the data file.
    offset: u64,
    distances: Ints,
    lengths: Ints,
    rows: Ints,
    ends: Ints,
    heap: Range<usize>,
    filter: Range<usize>,
    /// Number of rows of all data pages together.
    pub row_count: u64,
}

impl Index {
    /// Parses and checks the index page at `offset`; `None` if it is invalid.
    pub(super) fn parse(mut reader: Reader<'_>, entries: usize, offset: u64) -> Option<Index> {
        reader.skip(entries * CHECKSUM_LEN)?;
        let mut ints = || Ints::parse(&mut reader, entries);
        let (distances, lengths, rows, ends) = (ints()?, ints()?, ints()?, ints()?);
        let heap_len = reader.len()?;
        let heap = reader.skip(heap_len)?;
        let blocks = reader.len()?;
        let mut filter = 0..0;
        if blocks > 0 {
            reader.skip(reader.at.next_multiple_of(filter::BLOCK_BYTES) - reader.at)?;
            let len = blocks.checked_mul(filter::BLOCK_BYTES)?;
            let start = reader.skip(len)?;
            filter = start..start + len;
        }
        let heap = heap..heap + heap_len;
        let mut index = Index { entries, offset, distances, lengths, rows, ends, heap, filter, row_count: 0 };
        index.row_count = index.check_entries(reader.bytes)?;
        Some(index)
    }

    /// Checks that every entry has a valid length and number of rows, that the data pages are contiguous up to the
    /// index page, and that the fences ascend within the heap. Returns the sum of the rows.
    fn check_entries(&self, bytes: &[u8]) -> Option<u64> {
        let before_index = (self.offset / BLOCK as u64) as i64;
        let (mut start, mut before, mut row_count) = (0, &[][..], 0);
        let mut distance = self.distances.get(bytes, 0);
        for i in 0..self.entries {
            let length = self.lengths.get(bytes, i);
            let end = self.ends.get(bytes, i);
            let rows = self.rows.get(bytes, i);
            let sound = distance == self.distances.get(bytes, i)
                && (0..=before_index).contains(&distance)
                && (1..=(PAGE_BYTES_MAX / BLOCK) as i64).contains(&length)
                && (1..=ROWS_MAX as i64).contains(&rows)
                && start <= end
                && end <= self.heap.len() as i64;
            if !sound {
                return None;
            }
            let fence = self.fence(bytes, i);
            if if i == 0 { !fence.is_empty() } else { fence <= before } {
                return None;
            }
            (start, before) = (end, fence);
            distance -= length;
            row_count += rows as u64;
        }
        (distance == 0).then_some(row_count)
    }

    /// The reference of data page `i` and its number of rows. `index` is the reference of the index page.
    pub(super) fn entry(&self, bytes: &[u8], index: PageRef, i: usize) -> (PageRef, u32) {
        if i >= self.entries {
            return (PageRef { offset: 0, len: 0, checksum: 0, ..index }, 0);
        }
        // `parse` has checked that no distance exceeds the offset and no length the maximum page length.
        let offset = self.offset - self.distances.get(bytes, i) as u64 * BLOCK as u64;
        let len = self.lengths.get(bytes, i) as u32 * BLOCK as u32;
        let checksum = bytes[HEADER_LEN + i * CHECKSUM_LEN..].first_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
        (PageRef { offset, len, tree: index.tree, checksum }, self.rows.get(bytes, i) as u32)
    }

    pub(super) fn fence<'a>(&self, bytes: &'a [u8], i: usize) -> &'a [u8] {
        if i >= self.entries {
            return &[];
        }
        let start = if i == 0 { 0 } else { self.ends.get(bytes, i - 1) as usize };
        let end = self.ends.get(bytes, i) as usize;
        &bytes[self.heap.start + start..self.heap.start + end]
    }

    pub(super) fn find(&self, bytes: &[u8], entries: usize, key: &[u8]) -> usize {
        partition_point(0..entries, |i| self.fence(bytes, i) <= key).saturating_sub(1)
    }

    /// The address of the filter block of a hash.
    pub(super) fn filter_block(&self, bytes: &[u8], hash: u64) -> *const u8 {
        let at = filter::block_of(hash, self.filter.len() / filter::BLOCK_BYTES) * filter::BLOCK_BYTES;
        bytes.as_ptr().wrapping_add(self.filter.start + at)
    }

    pub(super) fn may_contain(&self, bytes: &[u8], hash: u64) -> bool {
        filter::contains(&bytes[self.filter.clone()], hash)
    }
}
