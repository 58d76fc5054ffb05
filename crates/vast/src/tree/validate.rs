//! The validation: from the slot that the traversal ended in to the answer, in an array of plain keys.
//!
//! The answer is never before the slot and at most `reach` rows behind its beginning. A slot's cache lines are compared whole
//! and the keys below the search key counted. If the search is open to the right (see `descend`), one more line is counted in,
//! without a branch: it is the same line again when it is not. Only if all of that is below is there more to do, and that is a
//! binary search up to the bound.

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
        prefetch(self.start.wrapping_add(row * K::BYTES));
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
            from = if below { from + half } else { from };
            length = if below { length - half } else { half - 1 };
        }
        from
    }
}

impl<K: Key> Tree<K> {
    /// Asks for the lines that `validate` will read.
    #[inline(always)]
    pub(super) fn ask(&self, keys: Plain<'_, K>, slot: usize, open: bool) {
        let start = slot * self.slot_rows;
        let per_line = LINE / K::BYTES;
        if self.window_lines <= LINES_COUNTED {
            for line in 0..self.window_lines {
                keys.ask(start + line * per_line);
            }
        } else {
            keys.ask(start + self.window_lines / 2 * per_line - 1);
        }
        keys.ask(start + (self.window_lines - !open as usize) * per_line);
    }

    /// The answer for a slot.
    ///
    /// # Safety
    /// The processor has `S`; `keys` are as many as the tree was made for.
    #[inline(always)]
    pub(super) unsafe fn validate<S: Simd>(&self, keys: Plain<'_, K>, slot: usize, open: bool, key: K) -> usize {
        let start = slot * self.slot_rows;
        let per_line = LINE / K::BYTES;
        let window = self.window_lines * per_line;
        let end = (start + self.reach).min(keys.len());
        if start + window + per_line > keys.len() {
            // SAFETY: the end is at most the length.
            return unsafe { keys.partition(start, end, key) };
        }
        // SAFETY: window and one more line are within the keys, as was just checked.
        unsafe {
            let line = |row: usize| keys.start.add(row * K::BYTES);
            let mut at = start;
            let mut lines = self.window_lines;
            while lines > LINES_COUNTED {
                let half = lines / 2;
                at += if keys.get(at + half * per_line - 1) < key { half * per_line } else { 0 };
                lines -= half;
            }
            let mut count = at - start;
            for number in 0..lines {
                count += S::line_below(line(at + number * per_line), key);
            }
            let more = S::line_below(line(start + (self.window_lines - !open as usize) * per_line), key);
            let full = (count == window) & open;
            count += if full { more } else { 0 };
            if count < window + per_line {
                return start + count;
            }
            keys.partition(start + count, end.max(start + count), key)
        }
    }
}
