//! Other ways to search sorted keys. All return the first row whose key is at least the search key.

use std::collections::BTreeMap;

use keyaki_primitives::{AlignedMemory, prefetch};
use keyaki_vast::Key;

use crate::splus::{self, SPlus};

/// A way to search.
pub trait Search<K: Copy> {
    /// Size of the index in bytes, without the sorted keys unless it contains them.
    fn bytes(&self) -> usize;
    fn single(&self, key: K) -> usize;
    fn many(&self, wanted: &[K], rows: &mut [usize]) {
        for (row, &key) in rows.iter_mut().zip(wanted) {
            *row = self.single(key);
        }
    }
}

/// `partition_point` of the standard library.
pub struct Partition<'a, K>(pub &'a [K]);

impl<K: Key> Search<K> for Partition<'_, K> {
    fn bytes(&self) -> usize {
        0
    }
    fn single(&self, key: K) -> usize {
        self.0.partition_point(|&other| other < key)
    }
}

/// Branchless binary search that prefetches both possible next probes.
pub struct Branchless<'a, K>(pub &'a [K]);

impl<K: Key> Search<K> for Branchless<'_, K> {
    fn bytes(&self) -> usize {
        0
    }
    fn single(&self, key: K) -> usize {
        let (mut from, mut length) = (0, self.0.len());
        while length > 1 {
            let half = length / 2;
            let next = (length - half) / 2;
            prefetch(self.0.as_ptr().wrapping_add(from + next));
            prefetch(self.0.as_ptr().wrapping_add(from + half + next));
            from = std::hint::select_unpredictable(self.0[from + half - 1] < key, from + half, from);
            length -= half;
        }
        from + (length == 1 && self.0[from] < key) as usize
    }
}

/// The binary search tree of the publication: each node has a key, a value and two children.
pub struct BinaryTree<K> {
    nodes: Vec<(K, u32, u32, u32)>,
    length: usize,
}

impl<K: Key> BinaryTree<K> {
    /// A balanced tree of keys and their values.
    pub fn new(keys: &[K], values: &[u32]) -> Self {
        let mut tree = BinaryTree { nodes: Vec::with_capacity(keys.len()), length: keys.len() };
        tree.add(keys, values, 0, keys.len());
        tree
    }

    fn add(&mut self, keys: &[K], values: &[u32], from: usize, to: usize) -> u32 {
        if from >= to {
            return u32::MAX;
        }
        let middle = from + (to - from) / 2;
        let at = self.nodes.len();
        self.nodes.push((keys[middle], values[middle], 0, 0));
        self.nodes[at].2 = self.add(keys, values, from, middle);
        self.nodes[at].3 = self.add(keys, values, middle + 1, to);
        at as u32
    }

    /// The sum of the values with keys in a range, by traversing the tree.
    pub fn sum(&self, from: K, to: K) -> u64 {
        self.walk(0, from, to)
    }

    fn walk(&self, at: u32, from: K, to: K) -> u64 {
        let Some(&(key, row, left, right)) = self.nodes.get(at as usize) else { return 0 };
        let mut sum = 0;
        if key >= from {
            sum += self.walk(left, from, to);
            if key < to {
                sum += row as u64;
            }
        }
        if key < to { sum + self.walk(right, from, to) } else { sum }
    }
}

impl<K: Key> Search<K> for BinaryTree<K> {
    fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<(K, u32, u32, u32)>()
    }
    fn single(&self, wanted: K) -> usize {
        let (mut at, mut found) = (0, self.length);
        while let Some(&(key, row, left, right)) = self.nodes.get(at as usize) {
            if key < wanted {
                at = right;
            } else {
                (at, found) = (left, row as usize);
            }
        }
        found
    }
}

/// The keys in breadth-first order of a binary search tree, and a second array with the row of each node.
pub struct Eytzinger<K> {
    keys: AlignedMemory,
    rows: Vec<u32>,
    _keys: std::marker::PhantomData<K>,
}

impl<K: Key> Eytzinger<K> {
    pub fn new(keys: &[K]) -> Self {
        let mut buffer = AlignedMemory::zeroed((keys.len() + 1) * K::BYTES);
        let mut rows = vec![keys.len() as u32; keys.len() + 1];
        // SAFETY: the buffer is aligned to cache lines and has room for so many keys.
        let placed = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<K>(), keys.len() + 1) };
        fn place<K: Key>(keys: &[K], placed: &mut [K], rows: &mut [u32], at: usize, next: &mut usize) {
            if at < placed.len() {
                place(keys, placed, rows, 2 * at, next);
                placed[at] = keys[*next];
                rows[at] = *next as u32;
                *next += 1;
                place(keys, placed, rows, 2 * at + 1, next);
            }
        }
        place(keys, placed, &mut rows, 1, &mut 0);
        Eytzinger { keys: buffer, rows, _keys: std::marker::PhantomData }
    }
}

impl<K: Key> Search<K> for Eytzinger<K> {
    fn bytes(&self) -> usize {
        self.keys.len()
    }
    fn single(&self, key: K) -> usize {
        // SAFETY: the buffer is aligned to cache lines and has so many keys.
        let keys = unsafe { std::slice::from_raw_parts(self.keys.as_ptr().cast::<K>(), self.rows.len()) };
        let per_line = 64 / K::BYTES;
        let mut at = 1;
        while at < keys.len() {
            prefetch(keys.as_ptr().wrapping_add(at * per_line));
            at = 2 * at + (keys[at] < key) as usize;
        }
        at >>= at.trailing_ones() + 1;
        self.rows[at] as usize
    }
}

/// A tree like FAST: uncompressed keys in SIMD blocks of one register within blocks of a cache line, with a separator
/// for each row.
pub struct Fast<'a, K: Key> {
    tree: keyaki_vast::Tree<K>,
    keys: &'a [K],
}

impl<'a, K: Key> Fast<'a, K> {
    pub fn new(keys: &'a [K]) -> Option<Self> {
        let per_register = (16 / K::BYTES as u32).ilog2();
        let height = usize::BITS - keys.len().saturating_sub(1).leading_zeros();
        // SIMD blocks of 128 bits. For 32-bit keys a cache line holds two levels of them.
        let depth = 2u32.min(4 / per_register.max(1)).max(1);
        let levels = height.div_ceil(per_register * depth);
        let shape = keyaki_vast::Shape::published(K::BYTES as u8, 16, depth as u8);
        let plan = keyaki_vast::Plan { slot_rows: 1, shapes: vec![shape; levels as usize] };
        Some(Fast { tree: keyaki_vast::Tree::build_with(keys, &plan).ok()?, keys })
    }
}

impl<K: Key> Search<K> for Fast<'_, K> {
    fn bytes(&self) -> usize {
        self.tree.bytes()
    }
    fn single(&self, key: K) -> usize {
        self.tree.lower_bound(self.keys, key)
    }
}

impl<K: Key> Search<K> for SPlus<K> {
    fn bytes(&self) -> usize {
        SPlus::bytes(self)
    }
    fn single(&self, key: K) -> usize {
        self.lower_bound(key)
    }
    fn many(&self, wanted: &[K], rows: &mut [usize]) {
        self.lower_bound_many(wanted, rows);
    }
}

/// The standard library's map from keys to rows.
pub struct Standard<K>(pub BTreeMap<K, u64>, pub usize);

impl<K: Key> Search<K> for Standard<K> {
    fn bytes(&self) -> usize {
        self.0.len() * (K::BYTES + 8)
    }
    fn single(&self, key: K) -> usize {
        self.0.range(key..).next().map_or(self.1, |(_, &row)| row as usize)
    }
}

/// A PGM-index: line segments that predict the row of each key with an error of at most `EPSILON` rows, under levels of
/// segments over their first keys. The segments are found by a shrinking cone, which gives slightly more of them than
/// the optimum.
pub struct Pgm<'a, K> {
    keys: &'a [K],
    /// The levels, the lowest first.
    levels: Vec<Vec<Line>>,
}

/// A segment: its first key and row, and its slope.
#[derive(Clone, Copy)]
struct Line {
    key: u64,
    row: u64,
    slope: f64,
}

/// Maximum error of the lowest level and of the levels above, in rows and in segments.
const EPSILON: usize = 64;
const EPSILON_ABOVE: usize = 4;
/// Number of lookups that advance together.
const LANES: usize = 128;

/// Divides a sequence of keys and rows into segments.
fn lines(keys: &mut dyn Iterator<Item = (u64, u64)>, epsilon: f64) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    let (mut least, mut most) = (0.0f64, f64::INFINITY);
    let mut before = None;
    for (key, row) in keys {
        if before == Some(key) {
            continue;
        }
        before = Some(key);
        if let Some(line) = all.last_mut() {
            let (x, y) = ((key - line.key) as f64, (row - line.row) as f64);
            let (low, high) = ((y - epsilon) / x, (y + epsilon) / x);
            if low.max(least) <= high.min(most) {
                (least, most) = (least.max(low), most.min(high));
                line.slope = if most.is_finite() { (least + most) / 2.0 } else { least };
                continue;
            }
        }
        all.push(Line { key, row, slope: 0.0 });
        (least, most) = (0.0, f64::INFINITY);
    }
    all
}

impl<'a, K: Key + Into<u64>> Pgm<'a, K> {
    pub fn new(keys: &'a [K]) -> Self {
        let mut levels = vec![lines(&mut keys.iter().map(|&key| key.into()).zip(0..), EPSILON as f64)];
        while levels[levels.len() - 1].len() > 64 {
            let below = &levels[levels.len() - 1];
            let above = lines(&mut below.iter().map(|line| line.key).zip(0..), EPSILON_ABOVE as f64);
            levels.push(above);
        }
        Pgm { keys, levels }
    }

    /// The segment of a key, near a predicted index.
    fn line(level: &[Line], guess: usize, epsilon: usize, key: u64) -> usize {
        let from = guess.saturating_sub(epsilon + 1).min(level.len() - 1);
        let to = (guess + epsilon + 2).min(level.len());
        from + level[from..to].partition_point(|line| line.key <= key).saturating_sub(1)
    }

    /// The row, or the index in the level below, that a segment predicts for a key.
    fn guess(level: &[Line], at: usize, key: u64) -> usize {
        let line = &level[at];
        let guess = line.row + (line.slope * key.saturating_sub(line.key) as f64) as u64;
        // The prediction is limited to the beginning of the next segment.
        level.get(at + 1).map_or(guess, |next| guess.min(next.row)) as usize
    }

    /// The answer near a predicted row.
    fn last(&self, guess: usize, key: K) -> usize {
        let from = guess.saturating_sub(EPSILON + 1).min(self.keys.len());
        let to = (guess + EPSILON + 2).min(self.keys.len());
        let found = from + self.keys[from.min(to)..to].partition_point(|&other| other < key);
        // Runs of equal keys may be longer than the error bound.
        let near = (found == from && from > 0) || (found == to && to < self.keys.len());
        if near { self.keys.partition_point(|&other| other < key) } else { found }
    }
}

impl<K: Key + Into<u64>> Search<K> for Pgm<'_, K> {
    fn bytes(&self) -> usize {
        self.levels.iter().map(|level| level.len() * size_of::<Line>()).sum()
    }
    fn single(&self, key: K) -> usize {
        let number: u64 = key.into();
        let (mut guess, mut epsilon) = (0, 64);
        for level in self.levels.iter().rev() {
            guess = Self::guess(level, Self::line(level, guess, epsilon, number), number);
            epsilon = EPSILON_ABOVE;
        }
        self.last(guess, key)
    }
    fn many(&self, wanted: &[K], rows: &mut [usize]) {
        for (wanted, rows) in wanted.chunks(LANES).zip(rows.chunks_mut(LANES)) {
            rows.fill(0);
            let mut epsilon = 64;
            for (number, level) in self.levels.iter().enumerate().rev() {
                for (row, &key) in rows.iter_mut().zip(wanted) {
                    let key: u64 = key.into();
                    *row = Self::guess(level, Self::line(level, *row, epsilon, key), key);
                    match number.checked_sub(1).map(|below| &self.levels[below]) {
                        Some(below) => prefetch(below.as_ptr().wrapping_add(*row)),
                        None => {
                            // All cache lines that the binary search may read.
                            let per_line = 64 / K::BYTES;
                            for line in 0..=2 * EPSILON / per_line {
                                let at = row.saturating_sub(EPSILON) + line * per_line;
                                prefetch(self.keys.as_ptr().wrapping_add(at));
                            }
                        }
                    }
                }
                epsilon = EPSILON_ABOVE;
            }
            for (row, &key) in rows.iter_mut().zip(wanted) {
                *row = self.last(*row, key);
            }
        }
    }
}

/// The Elias-Fano encoding of `sux`, which replaces the keys: the sequence, its length, and its size in bytes.
pub struct EliasFano(sux::dict::EfSeqDict<u64>, usize, usize);

impl EliasFano {
    pub fn new<K: Key + Into<u64>>(keys: &[K]) -> Option<Self> {
        let last = (*keys.last()?).into();
        let mut builder = sux::dict::EliasFanoBuilder::new(keys.len(), last);
        for &key in keys {
            builder.push(key.into());
        }
        let low = (last as f64 / keys.len() as f64).log2().max(0.0).floor();
        // Low and high bits, and about a twentieth more for selection.
        let bytes = (keys.len() as f64 * (low + 2.0) * 1.05 / 8.0) as usize;
        Some(EliasFano(builder.build_with_seq_and_dict(), keys.len(), bytes))
    }
}

impl<K: Key + Into<u64>> Search<K> for EliasFano {
    fn bytes(&self) -> usize {
        self.2
    }
    fn single(&self, key: K) -> usize {
        use sux::traits::Succ;
        let key: u64 = key.into();
        self.0.succ(key).map_or(self.1, |(row, _)| row)
    }
}

/// The sum of values, with AVX-512 where it is available.
pub fn sum(values: &[u32]) -> u64 {
    if splus::avx512() {
        // SAFETY: the processor has AVX-512.
        unsafe { sum_avx512(values) }
    } else {
        values.iter().map(|&value| value as u64).sum()
    }
}

#[target_feature(enable = "avx512f,avx2")]
fn sum_avx512(values: &[u32]) -> u64 {
    use std::arch::x86_64::*;
    let chunks = values.chunks_exact(32);
    let rest: u64 = chunks.remainder().iter().map(|&value| value as u64).sum();
    let mut sums = [_mm512_setzero_si512(); 4];
    for chunk in chunks {
        for (sum, eight) in sums.iter_mut().zip(chunk.chunks_exact(8)) {
            // SAFETY: the slice has eight values of four bytes.
            let eight = unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) };
            *sum = _mm512_add_epi64(*sum, _mm512_cvtepu32_epi64(eight));
        }
    }
    let both = [_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3])];
    _mm512_reduce_add_epi64(_mm512_add_epi64(both[0], both[1])) as u64 + rest
}
