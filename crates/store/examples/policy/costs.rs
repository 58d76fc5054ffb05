//! The costs of a tree of sizes: reads, space, memory.
//!
//! Reads are those of keys that are uniform over all rows, from a page cache of a given size. The cache keeps index
//! pages longest, so its model has two stages: index pages in the order of their access rates, then data pages in the
//! rest.

use std::collections::HashMap;
use std::rc::Rc;

use keyaki_primitives::Random;

use crate::tree::{Child, Extent, Inner, Origin, Tree, unit};

/// Number of positions at which read costs are computed.
const SAMPLES: usize = 4000;
/// Share of absent keys that pass a filter of 16 bits per key.
const FALSE_POSITIVES: f64 = 0.001;
/// Rows that a scan of 1,000 rows merges: chunks of 64, 128, 256, 512 and 1,024 rows.
const SCAN_ROWS: f64 = 1984.0;
/// Bytes of an entry of the node table: an extent with its keys, a part with its bounds (`engine/node_table`).
const EXTENT_ENTRY_BYTES: u64 = 92;
const PART_ENTRY_BYTES: u64 = 61;

/// Figures of a tree.
#[derive(Debug, Clone, Copy, Default)]
pub struct Costs {
    /// Levels of nodes, including the leaves.
    pub depth: usize,
    /// Runs on the path of a key.
    pub runs: f64,
    /// Data pages of a point read without filters and cache.
    pub pages_unfiltered: f64,
    /// Data and index pages of a point read that miss the cache.
    pub pages_get: f64,
    /// Data pages of a scan of 1,000 rows, and index pages that miss the cache.
    pub pages_scan: f64,
    /// Data pages of a scan of 1,000 rows.
    pub pages_scanned: f64,
    /// Bytes of all extents.
    pub space: u64,
    /// Bytes of all index pages.
    pub index_bytes: u64,
    /// Share of the rows that are in runs.
    pub pending: f64,
    /// Bytes of the node table.
    pub node_table: u64,
}

/// Pages with equal access rates.
struct PageClass {
    bytes: f64,
    /// Accesses of all pages of the class by a point read.
    rate: f64,
}

/// Extents that nodes refer to.
#[derive(Default)]
struct Extents {
    leaves: Vec<Extent>,
    /// The extents of each origin that are in use, with the lowest level (0: the root) of a node that refers to them.
    runs: HashMap<*const Origin, HashMap<usize, (Extent, usize)>>,
    parts: u64,
    depth: usize,
}

impl Extents {
    fn node_table_bytes(&self) -> u64 {
        let extents = self.leaves.len() + self.runs.values().map(HashMap::len).sum::<usize>();
        extents as u64 * EXTENT_ENTRY_BYTES + self.parts * PART_ENTRY_BYTES
    }

    fn add(&mut self, node: &Inner, level: usize) {
        self.depth = self.depth.max(level + 2);
        for run in &node.runs {
            let slots = || node.bounds.windows(2).zip(&run.rows).filter(|(_, rows)| **rows > 0).map(|(slot, _)| slot);
            let found = self.runs.entry(Rc::as_ptr(&run.origin)).or_default();
            // Neighbouring slots refer to the same extents.
            let mut until = 0;
            for slot in slots() {
                let extents = run.origin.extents_in(slot[0], slot[1]);
                self.parts += (extents.end - extents.start.max(until).min(extents.end)) as u64;
                until = extents.end;
                for i in extents {
                    let (_, least) = found.entry(i).or_insert((run.origin.extents[i], level));
                    *least = level.min(*least);
                }
            }
        }
        for child in &node.children {
            match child {
                Child::Leaf(leaf) => self.leaves.push(*leaf),
                Child::Inner(inner) => self.add(inner, level + 1),
            }
        }
    }
}

/// What a read of a key finds on its path.
#[derive(Debug, Clone, Copy, Default)]
struct Path {
    runs: f64,
    unfiltered: f64,
    /// Probability that the row is in the leaf.
    in_leaf: f64,
    /// Data pages of a scan.
    scanned: f64,
}

/// Computes the figures of a tree that has `rows` rows, read from a cache of `cache_bytes` bytes.
pub fn costs(tree: &Tree, rows: u64, cache_bytes: f64) -> Costs {
    let mut extents = Extents::default();
    extents.add(&tree.root, 0);
    let mut runs_on = vec![0.0; extents.depth];
    let mut random = Random::new(1);
    let mut mean = Path::default();
    for i in 0..SAMPLES {
        let at = (i as f64 + unit(&mut random)) / SAMPLES as f64;
        let path = path_of(tree, rows, at, &mut runs_on);
        mean.runs += path.runs / SAMPLES as f64;
        mean.unfiltered += path.unfiltered / SAMPLES as f64;
        mean.in_leaf += path.in_leaf / SAMPLES as f64;
        mean.scanned += path.scanned / SAMPLES as f64;
    }
    // Index pages, by level of the runs, then those of leaves.
    let sum = |extents: &[Extent], bytes: fn(&Extent) -> u64| extents.iter().map(bytes).sum::<u64>() as f64;
    let mut levels: Vec<Vec<Extent>> = vec![Vec::new(); extents.depth];
    extents.runs.values().flat_map(HashMap::values).for_each(|(extent, level)| levels[*level].push(*extent));
    let mut index: Vec<PageClass> = levels
        .iter()
        .zip(&runs_on)
        .map(|(extents, rate)| PageClass { bytes: sum(extents, |extent| extent.index_bytes), rate: *rate })
        .collect();
    index.push(PageClass { bytes: sum(&extents.leaves, |leaf| leaf.index_bytes), rate: mean.in_leaf });
    let run_data: f64 = levels.iter().map(|extents| sum(extents, |extent| extent.bytes - extent.index_bytes)).sum();
    let leaf_data = sum(&extents.leaves, |leaf| leaf.bytes - leaf.index_bytes);
    let index_bytes: f64 = index.iter().map(|class| class.bytes).sum();
    let (index_missing, rest) = misses(&mut index, cache_bytes);
    let found = 1.0 - mean.in_leaf + mean.runs * FALSE_POSITIVES;
    let mut data = [PageClass { bytes: run_data, rate: found }, PageClass { bytes: leaf_data, rate: mean.in_leaf }];
    let (data_missing, _) = misses(&mut data, rest);
    Costs {
        depth: extents.depth,
        runs: mean.runs,
        pages_unfiltered: mean.unfiltered,
        pages_get: index_missing + data_missing,
        pages_scan: mean.scanned + index_missing,
        pages_scanned: mean.scanned,
        space: (run_data + leaf_data + index_bytes) as u64,
        index_bytes: index_bytes as u64,
        pending: 1.0 - tree.leaf_rows() as f64 / rows as f64,
        node_table: extents.node_table_bytes(),
    }
}

/// Accesses that miss a cache which prefers pages with high access rates, and the bytes that no page takes.
fn misses(classes: &mut [PageClass], cache_bytes: f64) -> (f64, f64) {
    classes.sort_by(|a, b| (b.rate / b.bytes.max(1.0)).total_cmp(&(a.rate / a.bytes.max(1.0))));
    let (mut rest, mut missing) = (cache_bytes, 0.0);
    for class in classes {
        let cached = class.bytes.min(rest);
        rest -= cached;
        missing += class.rate * (1.0 - cached / class.bytes.max(1.0));
    }
    (missing, rest)
}

/// The path to the key at a position. Adds the runs that it meets on each level to `runs_on`, as a mean.
fn path_of(tree: &Tree, rows: u64, at: f64, runs_on: &mut [f64]) -> Path {
    let page_rows = tree.encoding.page_rows as f64;
    let (mut path, mut node, mut level) = (Path { in_leaf: 1.0, ..Path::default() }, &tree.root, 0);
    let width = SCAN_ROWS / rows as f64;
    loop {
        let slot = node.bounds[1..node.bounds.len() - 1].partition_point(|bound| *bound <= at);
        let share = width / (node.bounds[slot + 1] - node.bounds[slot]);
        for run in node.runs.iter().filter(|run| run.rows[slot] > 0) {
            path.runs += 1.0;
            runs_on[level] += 1.0 / SAMPLES as f64;
            path.unfiltered += path.in_leaf;
            let scanned = run.rows[slot] as f64 * share;
            path.in_leaf -= (scanned / SCAN_ROWS).min(path.in_leaf);
            path.scanned += 1.0 + (scanned - 1.0).max(0.0) / page_rows;
        }
        match &node.children[slot] {
            Child::Inner(inner) => node = inner,
            Child::Leaf(leaf) => {
                path.unfiltered += path.in_leaf;
                // A scan that crosses the end of the leaf begins another page.
                path.scanned += 1.0 + (leaf.rows as f64 * share - 1.0).max(0.0) / page_rows + share.min(1.0);
                return path;
            }
        }
        level += 1;
    }
}
