//! The S+-tree: a static B+-tree whose nodes are cache lines that are compared completely. Its lowest level is the
//! array of the keys.
//!
//! Nodes have 16 keys of 32 bits or 8 of 64 bits and implicit children. They are in huge pages and compared with
//! AVX-512 where it is available. Batched searches advance level by level and prefetch the next level's lines.

use keyaki_primitives::{AlignedMemory, CACHE_LINE_BYTES, prefetch};
use keyaki_vast::Key;

/// Searches that advance together.
pub const BATCH: usize = 128;

pub struct SPlus<K> {
    /// Number of the first node of each level, the root's first.
    levels: Vec<usize>,
    nodes: AlignedMemory,
    /// The keys, padded to whole lines with the greatest key of the type.
    keys: AlignedMemory,
    length: usize,
    _keys: std::marker::PhantomData<K>,
}

const LINE: usize = CACHE_LINE_BYTES;

/// Copies keys into memory aligned to cache lines, padded with `greatest`.
pub fn lines_of<K: Key>(keys: &[K], greatest: K) -> AlignedMemory {
    let per_line = LINE / K::BYTES;
    let mut buffer = AlignedMemory::zeroed(keys.len().div_ceil(per_line).max(1) * LINE);
    let start = buffer.as_mut_ptr().cast::<K>();
    for at in 0..keys.len().div_ceil(per_line).max(1) * per_line {
        // SAFETY: the buffer has room for so many keys and is aligned to cache lines.
        unsafe { start.add(at).write(keys.get(at).copied().unwrap_or(greatest)) };
    }
    buffer
}

impl<K: Key> SPlus<K> {
    pub fn new(keys: &[K], greatest: K) -> Self {
        let per_line = LINE / K::BYTES;
        let fanout = per_line + 1;
        let mut counts = vec![];
        let mut below = keys.len().div_ceil(per_line);
        while below > 1 {
            below = below.div_ceil(fanout);
            counts.push(below);
        }
        counts.reverse();
        let mut levels = vec![];
        let mut total = 0;
        for count in &counts {
            levels.push(total);
            total += count;
        }
        let mut nodes = AlignedMemory::zeroed(total.max(1) * LINE);
        let start = nodes.as_mut_ptr().cast::<K>();
        for (index, (&first, &count)) in levels.iter().zip(&counts).enumerate() {
            let span = fanout.pow((levels.len() - 1 - index) as u32) * per_line;
            for node in 0..count {
                for lane in 0..per_line {
                    let row = (node * fanout + lane + 1).saturating_mul(span);
                    let key = keys.get(row).copied().unwrap_or(greatest);
                    // SAFETY: the node is within the memory allocated above.
                    unsafe { start.add((first + node) * per_line + lane).write(key) };
                }
            }
        }
        let keys_buffer = lines_of(keys, greatest);
        SPlus { levels, nodes, keys: keys_buffer, length: keys.len(), _keys: std::marker::PhantomData }
    }

    pub fn bytes(&self) -> usize {
        self.nodes.len()
    }

    pub fn lower_bound(&self, key: K) -> usize {
        if avx512() {
            // SAFETY: the processor has AVX-512.
            unsafe { self.single_avx512(key) }
        } else {
            self.single(key, |line| count(line, key))
        }
    }

    pub fn lower_bound_many(&self, wanted: &[K], rows: &mut [usize]) {
        for (wanted, rows) in wanted.chunks(BATCH).zip(rows.chunks_mut(BATCH)) {
            if avx512() {
                // SAFETY: the processor has AVX-512.
                unsafe { self.many_avx512(wanted, rows) }
            } else {
                self.many(wanted, rows, |line, key| count(line, key))
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,popcnt,bmi1,bmi2")]
    fn single_avx512(&self, key: K) -> usize {
        self.single(key, |line| count_avx512(line, key))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,popcnt,bmi1,bmi2")]
    fn many_avx512(&self, wanted: &[K], rows: &mut [usize]) {
        self.many(wanted, rows, |line, key| count_avx512(line, key))
    }

    #[inline(always)]
    fn single(&self, _: K, count: impl Fn(*const u8) -> usize) -> usize {
        let fanout = LINE / K::BYTES + 1;
        let mut at = 0;
        for first in &self.levels {
            at = at * fanout + count(self.nodes.as_ptr().wrapping_add((first + at) * LINE));
        }
        let line = self.keys.as_ptr().wrapping_add(at * LINE);
        (at * (LINE / K::BYTES) + if at * LINE < self.keys.len() { count(line) } else { 0 }).min(self.length)
    }

    #[inline(always)]
    fn many(&self, wanted: &[K], rows: &mut [usize], count: impl Fn(*const u8, K) -> usize) {
        let fanout = LINE / K::BYTES + 1;
        rows.fill(0);
        for (level, first) in self.levels.iter().enumerate() {
            let start = self.nodes.as_ptr().wrapping_add(first * LINE);
            let next = match self.levels.get(level + 1) {
                Some(next) => self.nodes.as_ptr().wrapping_add(next * LINE),
                None => self.keys.as_ptr(),
            };
            for (row, &key) in rows.iter_mut().zip(wanted) {
                *row = *row * fanout + count(start.wrapping_add(*row * LINE), key);
                prefetch(next.wrapping_add(*row * LINE));
            }
        }
        for (row, &key) in rows.iter_mut().zip(wanted) {
            let found = if *row * LINE < self.keys.len() {
                count(self.keys.as_ptr().wrapping_add(*row * LINE), key)
            } else {
                0
            };
            *row = (*row * (LINE / K::BYTES) + found).min(self.length);
        }
    }
}

pub fn avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// The number of keys of a line below `key`.
#[inline(always)]
pub fn count<K: Key>(line: *const u8, key: K) -> usize {
    // SAFETY: callers pass lines of nodes or keys.
    (0..LINE / K::BYTES).filter(|&lane| unsafe { line.cast::<K>().add(lane).read() } < key).count()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,popcnt,bmi1,bmi2")]
#[inline]
pub fn count_avx512<K: Key>(line: *const u8, key: K) -> usize {
    use std::arch::x86_64::*;
    // SAFETY: callers pass aligned lines of nodes or keys. Keys are unsigned integers of four or eight bytes.
    unsafe {
        let lanes = _mm512_load_si512(line.cast());
        if K::BYTES == 4 {
            let key = _mm512_set1_epi32(std::mem::transmute_copy::<K, i32>(&key));
            _mm512_cmplt_epu32_mask(lanes, key).count_ones() as usize
        } else {
            let key = _mm512_set1_epi64(std::mem::transmute_copy::<K, i64>(&key));
            _mm512_cmplt_epu64_mask(lanes, key).count_ones() as usize
        }
    }
}
