//! Index pages: where the data pages of an extent are, the fence before each, and a filter over the keys.
//!
//! ```text
//! header      as of every page (see the module above), kind 2, no directory
//! checksums   4 bytes for each entry: of the data page, as in its header
//! distances   integers, one per entry: how far before the index page the data page begins, in units of 4096 bytes
//! lengths     integers: length in units of 4096 bytes
//! rows        integers
//! ends        integers: where in the heap each fence ends
//! heap        varint length, bytes: fences, one after another
//! blocks      varint: number of filter blocks
//! filter      from the next multiple of 32 on; see `filter`
//! ```
//!
//! At opening every entry is looked at: the data pages lie one behind the other, right before the index page, and the
//! fences ascend. A search compares fences in place.

use std::ops::Range;

use super::open::ROWS_MAX;
use super::{BLOCK, HEADER_LEN, Ints, MAGIC, PAGE_BYTES_MAX, PAGE_FORMAT, PageRef, filter};
use crate::codec::column::{IntsEncoder, partition_point};
use crate::codec::varint::{Reader, put_varint};

/// Bytes of a checksum.
const CHECKSUM_LEN: usize = 4;

/// One data page of an extent, for its index.
#[derive(Debug, Clone)]
pub struct IndexEntry {
    pub page: PageRef,
    pub rows: u32,
    /// A separator: above every key of the page before, not above any key of this one (empty for the first page).
    pub fence: Vec<u8>,
}

/// The index page (length a multiple of 4096, not yet sealed) of an extent, for the place right behind the last of the data
/// pages; their offsets may be relative to any origin. `key_hashes`: xxh3 of every encoded key, for the filter; empty for
/// none.
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

/// Puts the checksum of data page `i` into an encoded index page: it is not known before the extent has its place.
pub fn set_checksum(index: &mut [u8], i: usize, checksum: u32) {
    let at = HEADER_LEN + i * CHECKSUM_LEN;
    index[at..at + CHECKSUM_LEN].copy_from_slice(&checksum.to_le_bytes());
}

/// Where the parts of an index page are.
#[derive(Debug)]
pub(super) struct Index {
    entries: usize,
    /// Where the index page is.
    offset: u64,
    distances: Ints,
    lengths: Ints,
    rows: Ints,
    ends: Ints,
    heap: Range<usize>,
    filter: Range<usize>,
    /// Rows of all data pages together.
    pub row_count: u64,
}

impl Index {
    /// Finds and checks the parts of the index page at `offset`; `None` if something is not right.
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

    /// Checks that every entry is a page that could be, each page ends where the next one begins, the last one where the
    /// index begins, and the fences lie one behind the other and ascend. Gives the sum of the rows.
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

    /// The data page of entry `i`, in the tree of the index page `index`, and its rows.
    pub(super) fn entry(&self, bytes: &[u8], index: PageRef, i: usize) -> (PageRef, u32) {
        if i >= self.entries {
            return (PageRef { offset: 0, len: 0, checksum: 0, ..index }, 0);
        }
        // No distance exceeds the offset, and no length what a page can be: `parse` has looked.
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

    pub(super) fn may_contain(&self, bytes: &[u8], key: &[u8]) -> bool {
        filter::contains(&bytes[self.filter.clone()], filter::key_hash(key))
    }
}
