//! The validation phase: from the slot in which the traversal ended to the answer, in an array of plain keys.
//!
//! The answer is never before the slot and at most `reach` rows after its beginning. A slot of many cache lines is
//! narrowed down to two by halving. These two are compared completely, and the keys below the search key are counted.
//! If the search is open (see `descend`), one more line is counted; if it is not, the same line is counted again and
//! ignored, which avoids a branch. Only if all these keys are below the search key, a galloping search continues up to
//! the bound: the steps double until they pass the answer, and halve afterwards.
//!
//! In a batch all searches take each of these steps together and share the latency of memory. The few searches that
//! continue after their slots are deferred until the others are done, instead of counting one more line for each open
//! search.

use std::hint::select_unpredictable;

use keyaki_primitives::{CACHE_LINE_BYTES, prefetch};

use super::Tree;
use super::descend::{BATCH, SlotPrefetch};
use crate::key::Key;
use crate::memory::read;
use crate::simd::Simd;

/// Number of cache lines that are compared completely. Larger slots are narrowed down first.
const LINES_COUNTED: usize = 2;

/// An array of plain keys at any address. Answers are right if the keys are sorted.
#[derive(Debug)]
pub(crate) struct PlainKeys<'a, K> {
    start: *const u8,
    length: usize,
    _keys: std::marker::PhantomData<&'a [K]>,
}

impl<K> Clone for PlainKeys<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for PlainKeys<'_, K> {}

impl<'a, K: Key> PlainKeys<'a, K> {
    pub fn new(keys: &'a [K]) -> Self {
        PlainKeys { start: keys.as_ptr().cast(), length: keys.len(), _keys: std::marker::PhantomData }
    }

    /// Keys in bytes at any address, little-endian. An incomplete last key is ignored.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        PlainKeys { start: bytes.as_ptr(), length: bytes.len() / K::BYTES, _keys: std::marker::PhantomData }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// # Safety
    /// `row` is below the length.
    #[inline(always)]
    unsafe fn get(&self, row: usize) -> K {
        // SAFETY: the row is within the keys, which are integers.
        unsafe { read(self.start.add(row * K::BYTES)) }
    }

    /// The address of a row.
    #[inline(always)]
    fn line(&self, row: usize) -> *const u8 {
        self.start.wrapping_add(row.wrapping_mul(K::BYTES))
    }

    #[inline(always)]
    fn prefetch(&self, row: usize) {
        prefetch(self.line(row));
    }
}

/// The validation in one array of keys. See [`Tree`] for the fields that it copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validation<'a, K> {
    keys: PlainKeys<'a, K>,
    slot_rows: usize,
    window_lines: usize,
    reach: usize,
    /// For slots that begin before this row, all lines that may be compared are within the keys.
    whole: usize,
}

/// A galloping search: the answer is in `from..=to`, and the next probe is at most `step` rows from `from`.
#[derive(Clone, Copy, Debug, Default)]
struct Gallop {
    /// Index of the search in the batch.
    at: usize,
    from: usize,
    to: usize,
    step: usize,
}

impl<'a, K: Key> Validation<'a, K> {
    const PER_LINE: usize = CACHE_LINE_BYTES / K::BYTES;

    pub fn new(tree: &Tree<K>, keys: PlainKeys<'a, K>) -> Self {
        let compared = (tree.window_lines + 1) * Self::PER_LINE;
        Validation {
            keys,
            slot_rows: tree.slot_rows,
            window_lines: tree.window_lines,
            reach: tree.reach,
            whole: (keys.len() + 1).saturating_sub(compared),
        }
    }

    /// Returns whether no search continues after its slot.
    pub fn is_closed(&self) -> bool {
        self.reach <= self.slot_rows
    }

    /// The lines that are read first in a slot.
    pub fn slot_prefetch(&self) -> SlotPrefetch {
        let narrowed = self.window_lines > LINES_COUNTED;
        SlotPrefetch {
            start: self.keys.start,
            slot_bytes: self.slot_rows * K::BYTES,
            first: if narrowed { (self.window_lines / 2) * CACHE_LINE_BYTES - K::BYTES } else { 0 },
            lines: if narrowed { 1 } else { self.window_lines },
        }
    }

    /// The answer for a slot. `CLOSED` promises that no search continues after its slot.
    ///
    /// # Safety
    /// The processor has `S`. The number of keys is that of the tree's rows, and the slot is one of the tree's.
    #[inline(always)]
    pub unsafe fn one<S: Simd, const CLOSED: bool>(&self, slot: usize, open: bool, key: K) -> usize {
        let start = slot * self.slot_rows;
        if start >= self.whole {
            // SAFETY: the slot begins within the keys.
            return unsafe { self.gallop(start, start, key) };
        }
        let (mut at, mut lines) = (start, self.window_lines);
        while lines > LINES_COUNTED {
            let half = lines / 2;
            // SAFETY: the slot's lines are within the keys, as checked above.
            let below = unsafe { self.keys.get(at + half * Self::PER_LINE - 1) } < key;
            at = select_unpredictable(below, at + half * Self::PER_LINE, at);
            lines -= half;
        }
        // SAFETY: all lines of the slot and one more are within the keys, as checked above.
        unsafe {
            let mut count = self.count::<S>(start, at, lines, key);
            if CLOSED {
                return start + count;
            }
            let window = self.window_lines * Self::PER_LINE;
            let beyond = start + select_unpredictable(open, window, 0);
            let more = S::line_below(self.keys.line(beyond), key);
            count += select_unpredictable((count == window) & open, more, 0);
            if count < window + Self::PER_LINE { start + count } else { self.gallop(start, start + count, key) }
        }
    }

    /// Replaces up to [`BATCH`] slots in `rows` by their answers.
    ///
    /// # Safety
    /// The processor has `S`. The number of keys is that of the tree's rows, and the slots are those of the tree.
    #[inline(always)]
    pub unsafe fn many<S: Simd, const CLOSED: bool>(&self, rows: &mut [usize], open: &[bool], wanted: &[K]) {
        let mut starts = [0; BATCH];
        for (start, row) in starts.iter_mut().zip(rows.iter_mut()) {
            *row *= self.slot_rows;
            *start = *row;
        }
        let mut lines = self.window_lines;
        while lines > LINES_COUNTED {
            let half = lines / 2;
            lines -= half;
            let next = if lines > LINES_COUNTED { lines / 2 * Self::PER_LINE - 1 } else { 0 };
            for (row, &key) in rows.iter_mut().zip(wanted) {
                let probe = (*row + half * Self::PER_LINE - 1).min(self.keys.len() - 1);
                // SAFETY: the probe is within the keys. The result is ignored for slots at the end of the keys.
                let below = unsafe { self.keys.get(probe) } < key;
                *row += select_unpredictable(below, half * Self::PER_LINE, 0);
                self.keys.prefetch(*row + next);
            }
        }
        let mut ends = false;
        for ((row, &key), &start) in rows.iter_mut().zip(wanted).zip(&starts) {
            if start >= self.whole {
                *row = start;
                ends = true;
                continue;
            }
            // SAFETY: all lines of the slot are within the keys, as checked above.
            *row = start + unsafe { self.count::<S>(start, *row, lines, key) };
        }
        if CLOSED && !ends {
            return;
        }
        let window = self.window_lines * Self::PER_LINE;
        // Searches that continue after their slots.
        let (mut open_searches, mut count) = ([0; BATCH], 0);
        for (at, (&row, (&start, &open))) in rows.iter().zip(starts.iter().zip(open)).enumerate() {
            // The store is unconditional to avoid a branch. `count` is at most `at`, so that the index is valid.
            open_searches[count] = at;
            count += (((row - start == window) & open & !CLOSED) | (start >= self.whole)) as usize;
        }
        for &at in &open_searches[..count] {
            self.keys.prefetch(rows[at]);
        }
        if count > 0 {
            // SAFETY: the rows found so far are within the keys or at their end.
            unsafe { self.gallop_many(&open_searches[..count], &starts, rows, wanted) };
        }
    }

    /// Continues searches at the rows found so far.
    ///
    /// # Safety
    /// The rows are at most the number of keys.
    #[inline(never)]
    unsafe fn gallop_many(&self, searches: &[usize], starts: &[usize; BATCH], rows: &mut [usize], wanted: &[K]) {
        let mut gallops = [Gallop::default(); BATCH];
        for (gallop, &at) in gallops.iter_mut().zip(searches) {
            let from = rows[at];
            *gallop = Gallop { at, from, to: self.end(starts[at]).max(from), step: Self::PER_LINE / 2 };
        }
        // SAFETY: `to` is at most the number of keys, as `end` and the rows are.
        unsafe { self.finish(&mut gallops[..searches.len()], rows, wanted) };
    }

    /// The number of rows from `start` on whose keys are below the key: all rows before `at`, and the keys counted in
    /// `lines` lines from there.
    ///
    /// # Safety
    /// The processor has `S`, and the lines are within the keys.
    #[inline(always)]
    unsafe fn count<S: Simd>(&self, start: usize, at: usize, lines: usize, key: K) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let mut count = at - start + S::line_below(self.keys.line(at), key);
            if lines > 1 {
                count += S::line_below(self.keys.line(at + Self::PER_LINE), key);
            }
            count
        }
    }

    /// The last row that can be the answer for a slot beginning at `start`.
    #[inline(always)]
    fn end(&self, start: usize) -> usize {
        start.saturating_add(self.reach).min(self.keys.len())
    }

    /// Continues a search at row `from`.
    ///
    /// # Safety
    /// `from` is at most the number of keys.
    #[cold]
    #[inline(never)]
    unsafe fn gallop(self, start: usize, from: usize, key: K) -> usize {
        let mut rows = [from];
        let mut gallops = [Gallop { at: 0, from, to: self.end(start).max(from), step: Self::PER_LINE }];
        // SAFETY: `to` is at most the number of keys, as `end` and `from` are.
        unsafe { self.finish(&mut gallops, &mut rows, &[key]) };
        rows[0]
    }

    /// Finishes galloping searches, which take every step together.
    ///
    /// # Safety
    /// `to` of each is at most the number of keys.
    #[inline(always)]
    unsafe fn finish(&self, mut gallops: &mut [Gallop], rows: &mut [usize], wanted: &[K]) {
        while !gallops.is_empty() {
            let mut count = 0;
            for index in 0..gallops.len() {
                let Gallop { at, mut from, mut to, mut step } = gallops[index];
                if from < to {
                    let probe = from + step.min((to - from).div_ceil(2)) - 1;
                    // SAFETY: the probe is below `to`, which is at most the number of keys.
                    let below = unsafe { self.keys.get(probe) } < wanted[at];
                    from = select_unpredictable(below, probe + 1, from);
                    to = select_unpredictable(below, to, probe);
                    step = select_unpredictable(below, step.saturating_mul(2), step);
                }
                rows[at] = from;
                gallops[count] = Gallop { at, from, to, step };
                count += (from < to) as usize;
                self.keys.prefetch(from + step.min((to - from).div_ceil(2)));
            }
            gallops = &mut std::mem::take(&mut gallops)[..count];
        }
    }
}
