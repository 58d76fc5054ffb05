//! Generated accesses of database operators: scans, B-tree probes, builds and probes of hash tables.
//!
//! All generators are iterators of addresses. [`Access::load`](super::Access::load) turns addresses into accesses.
//! Random choices depend only on a seed.

use keyaki_primitives::Random;

/// A contiguous range of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// First address.
    pub base: u64,
    /// Length.
    pub bytes: u64,
}

impl Table {
    /// The range of `bytes` bytes from `base` on.
    pub fn new(base: u64, bytes: u64) -> Self {
        Table { base, bytes }
    }

    /// The address of each line, in order.
    pub fn scan(self) -> impl Iterator<Item = u64> + Clone {
        self.rows(super::LINE_BYTES)
    }

    /// The address of each row of `row_bytes`, in order.
    pub fn rows(self, row_bytes: u64) -> impl Iterator<Item = u64> + Clone {
        (0..self.bytes / row_bytes.max(1)).map(move |row| self.base + row * row_bytes)
    }

    /// Addresses of `count` random words.
    pub fn random(self, count: u64, seed: u64) -> impl Iterator<Item = u64> + Clone {
        let mut random = Random::new(seed);
        (0..count).map(move |_| self.base + random.below((self.bytes / 8).max(1)) * 8)
    }
}

/// A B-tree in the layout of SQLite: each page has a header, then pointers to cells, and the cells at its end.
#[derive(Debug, Clone)]
pub struct BTree {
    base: u64,
    page_bytes: u64,
    entry_bytes: u64,
    keys: u64,
    /// From the root down: the number of the first page of the level, and the number of its pages.
    levels: Vec<(u64, u64)>,
}

/// Bytes of a page header.
const HEADER_BYTES: u64 = 12;
/// Bytes of a cell pointer.
const POINTER_BYTES: u64 = 2;

impl BTree {
    /// A full tree over `keys` keys with entries of `entry_bytes`, in pages of `page_bytes`.
    ///
    /// # Panics
    /// If a page cannot hold two entries.
    pub fn new(base: u64, keys: u64, entry_bytes: u64, page_bytes: u64) -> Self {
        let per_page = Self::entries_in(page_bytes, entry_bytes);
        assert!(per_page >= 2, "pages of {page_bytes} bytes are too small for entries of {entry_bytes} bytes");
        let mut counts = vec![keys.max(1).div_ceil(per_page)];
        while counts[counts.len() - 1] > 1 {
            counts.push(counts[counts.len() - 1].div_ceil(per_page));
        }
        let mut first = 0;
        let levels = counts.iter().rev().map(|&count| {
            first += count;
            (first - count, count)
        });
        BTree { base, page_bytes, entry_bytes, keys: keys.max(1), levels: levels.collect() }
    }

    /// Entries per page.
    fn entries_in(page_bytes: u64, entry_bytes: u64) -> u64 {
        page_bytes.saturating_sub(HEADER_BYTES) / (entry_bytes + POINTER_BYTES)
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        self.levels.iter().map(|(_, count)| count * self.page_bytes).sum()
    }

    /// Number of levels, from root to leaves.
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// The address of each line of the tree.
    pub fn walk(&self) -> impl Iterator<Item = u64> + Clone {
        Table::new(self.base, self.bytes()).scan()
    }

    /// Appends the addresses that a lookup of the key with this rank touches: in each node the header, and pointers and
    /// cells by binary search.
    pub fn probe(&self, rank: u64, out: &mut Vec<u64>) {
        let per_page = Self::entries_in(self.page_bytes, self.entry_bytes);
        let rank = rank % self.keys;
        for (depth, (first, _)) in self.levels.iter().enumerate() {
            // Number of keys under one entry of this level.
            let span = per_page.pow((self.levels.len() - 1 - depth) as u32);
            let entry = rank / span;
            let page = self.base + (first + entry / per_page) * self.page_bytes;
            out.push(page);
            let (mut low, mut high, wanted) = (0, per_page, entry % per_page);
            while low < high {
                let middle = low.midpoint(high);
                out.push(page + HEADER_BYTES + middle * POINTER_BYTES);
                out.push(page + self.page_bytes - (middle + 1) * self.entry_bytes);
                if middle == wanted {
                    break;
                }
                if middle < wanted { low = middle + 1 } else { high = middle }
            }
        }
    }

    /// The addresses of `count` lookups of random keys.
    pub fn probes(&self, count: u64, seed: u64) -> impl Iterator<Item = u64> {
        let mut random = Random::new(seed);
        let mut addresses = Vec::new();
        let mut at = 0;
        let mut left = count;
        std::iter::from_fn(move || {
            if at == addresses.len() {
                left = left.checked_sub(1)?;
                addresses.clear();
                self.probe(random.below(self.keys), &mut addresses);
                at = 0;
            }
            at += 1;
            Some(addresses[at - 1])
        })
    }
}

/// A hash join: each row of the build side is written to a bucket, and each row of the probe side reads a bucket.
#[derive(Debug, Clone, Copy)]
pub struct HashJoin {
    /// The build side.
    pub build: Table,
    /// The probe side.
    pub probe: Table,
    /// Bytes of a row of both sides.
    pub row_bytes: u64,
    /// The hash table.
    pub buckets: Table,
}

impl HashJoin {
    /// The addresses of the build phase; the seed determines the buckets.
    pub fn build(self, seed: u64) -> impl Iterator<Item = u64> + Clone {
        Self::side(self.build, self.buckets, self.row_bytes, seed)
    }

    /// The addresses of the probe phase; the seed determines the buckets.
    pub fn probe(self, seed: u64) -> impl Iterator<Item = u64> + Clone {
        Self::side(self.probe, self.buckets, self.row_bytes, seed)
    }

    /// A row and its bucket, for each row of `input`.
    fn side(input: Table, buckets: Table, row_bytes: u64, seed: u64) -> impl Iterator<Item = u64> + Clone {
        let rows = input.bytes / row_bytes.max(1);
        input.rows(row_bytes).zip(buckets.random(rows, seed)).flat_map(|(row, bucket)| [row, bucket])
    }
}

/// Interleaves two streams, as on two cores: `quantum` accesses of each in turn, until both have ended.
pub fn interleave<A: Iterator>(
    first: A,
    second: impl Iterator<Item = A::Item>,
    quantum: (usize, usize),
) -> impl Iterator<Item = A::Item> {
    let (mut first, mut second) = (first.fuse(), second.fuse());
    let mut turn = 0;
    std::iter::from_fn(move || {
        let own = turn < quantum.0;
        turn = if turn + 1 >= quantum.0 + quantum.1 { 0 } else { turn + 1 };
        if own { first.next().or_else(|| second.next()) } else { second.next().or_else(|| first.next()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_tree_of_three_levels() {
        let tree = BTree::new(1 << 30, 400_000, 11, 4096);
        assert_eq!(tree.levels(), 3);
        assert!((5_000_000..6_000_000).contains(&tree.bytes()), "{}", tree.bytes());
        let end = (1 << 30) + tree.bytes();
        let pages = |rank| {
            let mut touched = Vec::new();
            tree.probe(rank, &mut touched);
            assert!(touched.iter().all(|address| (1 << 30..end).contains(address)));
            touched.iter().map(|address| address / 4096).collect::<BTreeSet<_>>()
        };
        assert_eq!(pages(0).len(), 3);
        assert_eq!(pages(0), pages(1), "adjacent keys");
        assert_ne!(pages(0), pages(399_999));
        let leaves: BTreeSet<_> = (0..400_000).step_by(50).flat_map(pages).collect();
        assert_eq!(leaves.len() as u64, tree.bytes() / 4096, "every page is on the path to a key");
        assert_eq!(tree.probes(10, 7).count(), tree.probes(10, 7).count());
        assert_eq!(BTree::new(0, 1, 8, 4096).levels(), 1);
    }

    #[test]
    fn streams_have_the_expected_addresses() {
        let table = Table::new(100, 1024);
        assert_eq!(table.scan().count(), 16);
        assert_eq!(table.rows(100).last(), Some(1000));
        assert!(table.random(100, 1).all(|address| (100..1124).contains(&address)));
        let mixed: Vec<u64> = interleave(0..4, 10..18, (1, 2)).collect();
        assert_eq!(mixed, [0, 10, 11, 1, 12, 13, 2, 14, 15, 3, 16, 17]);
        let join = HashJoin { build: table, probe: table, row_bytes: 64, buckets: Table::new(1 << 20, 4096) };
        assert_eq!((join.build(1).count(), join.probe(2).count()), (32, 32));
    }
}
