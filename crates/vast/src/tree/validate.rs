//! The validation: from the slot that the traversal ended in to the answer, in an array of plain keys.
//!
//! The answer is never before the slot and at most `reach` rows behind its beginning. A slot's cache lines are compared whole
//! and the keys below the search key counted. If the search is open to the right (see `descend`), one more line is counted in,
//! without a branch: it is the same line again when it is not. Only if all of that is below is there more to do, and that is a
//! binary search up to the bound.

use std::hint::select_unpredictable;

use super::Tree;
use crate::key::Key;
use crate::memory::{LINE, prefetch, read};
use crate::simd::Simd;

/// Lines that are counted whole; more are first narrowed down.
const LINES_COUNTED: usize = 4;

/// Keys somewhere in memory, in sorted order if answers are to be right.
#[derive(Debug)]
pub(crate) struct Plain<'a, K> {
    start: *const u8,
    length: usize,
    _keys: std::marker::PhantomData<&'a [K]>,
}

impl<K> Clone for Plain<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Plain<'_, K> {}

impl<'a, K: Key> Plain<'a, K> {
    pub fn new(keys: &'a [K]) -> Self {
        Plain { start: keys.as_ptr().cast(), length: keys.len(), _keys: std::marker::PhantomData }
    }

    /// Keys in bytes, at any address; of an incomplete last one nothing is seen.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Plain { start: bytes.as_ptr(), length: bytes.len() / K::BYTES, _keys: std::marker::PhantomData }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// # Safety
    /// `row` is below the length.
    #[inline(always)]
    unsafe fn get(&self, row: usize) -> K {
        // SAFETY: the row is within the keys; keys are plain integers.
        unsafe { read(self.start.add(row * K::BYTES)) }
    }

    #[inline(always)]
    fn ask(&self, row: usize) {
        prefetch(self.start.wrapping_add(row.wrapping_mul(K::BYTES)));
    }

    /// The first row from `from` to `to` whose key is not below `key`; `to` if there is none.
    ///
    /// # Safety
    /// `to` is at most the length.
    #[inline(always)]
    pub unsafe fn partition(&self, mut from: usize, to: usize, key: K) -> usize {
        let mut length = to.saturating_sub(from);
        while length > 0 {
            let half = length.div_ceil(2);
            // SAFETY: from + half - 1 < from + length <= to.
            let below = unsafe { self.get(from + half - 1) } < key;
            from = select_unpredictable(below, from + half, from);
            length = select_unpredictable(below, length - half, half - 1);
        }
        from
    }
}

/// How a tree's answers are found in an array, as far as it is the same for all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validation<'a, K> {
    keys: Plain<'a, K>,
    slot_rows: usize,
    window_lines: usize,
    reach: usize,
    /// Slots that begin at or before this row have all lines that may be compared within the keys. (One more than it, to be 0
    /// where there are none.)
    whole: usize,
}

impl<'a, K: Key> Validation<'a, K> {
    pub fn new(tree: &Tree<K>, keys: Plain<'a, K>) -> Self {
        let compared = (tree.window_lines + 1) * (LINE / K::BYTES);
        Validation {
            keys,
            slot_rows: tree.slot_rows,
            window_lines: tree.window_lines,
            reach: tree.reach,
            whole: (keys.len() + 1).saturating_sub(compared),
        }
    }

    /// Whether no search can go beyond its slot.
    pub fn is_closed(&self) -> bool {
        self.reach <= self.slot_rows
    }

    /// Lines of a slot, if they are a number there is code for; else 0.
    pub fn lines(&self) -> usize {
        if matches!(self.window_lines, 1 | 2 | 4) { self.window_lines } else { 0 }
    }

    /// Asks for the lines that `run` will read.
    #[inline(always)]
    pub fn ask<const LINES: usize, const CLOSED: bool>(&self, slot: usize, open: bool) {
        let start = slot * self.slot_rows;
        let per_line = const { LINE / K::BYTES };
        let lines = if LINES == 0 { self.window_lines } else { LINES };
        if LINES != 0 || lines <= LINES_COUNTED {
            for line in 0..lines {
                self.keys.ask(start + line * per_line);
            }
        } else {
            self.keys.ask(start + lines / 2 * per_line - 1);
        }
        if !CLOSED {
            self.keys.ask(start + (lines - !open as usize) * per_line);
        }
    }

    /// The answer for a slot. `LINES` are those of a slot, or 0 if any; `CLOSED` means that no search goes beyond its slot.
    ///
    /// # Safety
    /// The processor has `S`; the keys are as many as the tree was made for; the slot is one of the tree's.
    #[inline(always)]
    pub unsafe fn run<S: Simd, const LINES: usize, const CLOSED: bool>(
        &self,
        slot: usize,
        open: bool,
        key: K,
    ) -> usize {
        let start = slot * self.slot_rows;
        let per_line = const { LINE / K::BYTES };
        let window_lines = if LINES == 0 { self.window_lines } else { LINES };
        let window = window_lines * per_line;
        if start >= self.whole {
            // SAFETY: the end is at most the length.
            return unsafe { self.keys.partition(start, (start + self.reach).min(self.keys.len()), key) };
        }
        // SAFETY: window and one more line are within the keys, as was just checked.
        unsafe {
            let line = |row: usize| self.keys.start.add(row * K::BYTES);
            let mut at = start;
            let mut lines = window_lines;
            while LINES == 0 && lines > LINES_COUNTED {
                let half = lines / 2;
                let below = self.keys.get(at + half * per_line - 1) < key;
                at = select_unpredictable(below, at + half * per_line, at);
                lines -= half;
            }
            let mut count = at - start;
            for number in 0..lines {
                count += S::line_below(line(at + number * per_line), key);
            }
            if CLOSED {
                return start + count;
            }
            let more = S::line_below(line(start + (window_lines - !open as usize) * per_line), key);
            let full = (count == window) & open;
            count += if full { more } else { 0 };
            if count < window + per_line {
                return start + count;
            }
            self.further(start, start + count, key)
        }
    }

    /// The answer, which is at or behind row `from`.
    #[cold]
    #[inline(never)]
    fn further(&self, start: usize, from: usize, key: K) -> usize {
        let end = (start + self.reach).min(self.keys.len());
        // SAFETY: the end is at most the length.
        unsafe { self.keys.partition(from, end.max(from), key) }
    }
}
