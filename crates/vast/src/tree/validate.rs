//! The validation: from the slot that the traversal ended in to the answer, in an array of plain keys.
//!
//! The answer is never before the slot and at most `reach` rows behind its beginning. Slots of many cache lines are narrowed
//! down to two by halving; these are compared whole and the keys below the search key counted. If the search is open to the
//! right (see `descend`), one more line is counted in, without a branch: it is the same line again when it is not. Only if all of
//! that is below is there more to do: steps twice as long each time, then half as long each time, up to the bound.
//!
//! In a batch the searches take each of these steps together, so that they wait for memory together; and the few that go on
//! behind the slot are put aside until the others are done, instead of a line more for all that are open.

use std::hint::select_unpredictable;

use super::Tree;
use super::descend::{Ask, BATCH};
use crate::key::Key;
use crate::memory::{LINE, prefetch, read};
use crate::simd::Simd;

/// Lines that are counted whole; more are first narrowed down.
const LINES_COUNTED: usize = 2;

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

    /// Where a row is.
    #[inline(always)]
    fn line(&self, row: usize) -> *const u8 {
        self.start.wrapping_add(row.wrapping_mul(K::BYTES))
    }

    #[inline(always)]
    fn ask(&self, row: usize) {
        prefetch(self.line(row));
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

/// A search that goes on behind the lines compared: the answer is from `from` to `to`; of which rows the next one looked at is
/// `step` away at most.
#[derive(Clone, Copy, Debug, Default)]
struct Further {
    at: usize,
    from: usize,
    to: usize,
    step: usize,
}

impl<'a, K: Key> Validation<'a, K> {
    const PER_LINE: usize = LINE / K::BYTES;

    pub fn new(tree: &Tree<K>, keys: Plain<'a, K>) -> Self {
        let compared = (tree.window_lines + 1) * Self::PER_LINE;
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

    /// The lines that are looked at first.
    pub fn ask(&self) -> Ask {
        let narrowed = self.window_lines > LINES_COUNTED;
        Ask {
            start: self.keys.start,
            slot_bytes: self.slot_rows * K::BYTES,
            first: if narrowed { (self.window_lines / 2) * LINE - K::BYTES } else { 0 },
            lines: if narrowed { 1 } else { self.window_lines },
        }
    }

    /// The answer for a slot. `CLOSED` means that no search goes beyond its slot.
    ///
    /// # Safety
    /// The processor has `S`; the keys are as many as the tree was made for; the slot is one of the tree's.
    #[inline(always)]
    pub unsafe fn one<S: Simd, const CLOSED: bool>(&self, slot: usize, open: bool, key: K) -> usize {
        let start = slot * self.slot_rows;
        if start >= self.whole {
            return self.further(start, start, key);
        }
        let (mut at, mut lines) = (start, self.window_lines);
        while lines > LINES_COUNTED {
            let half = lines / 2;
            // SAFETY: the slot's lines are within the keys, as was just checked.
            let below = unsafe { self.keys.get(at + half * Self::PER_LINE - 1) } < key;
            at = select_unpredictable(below, at + half * Self::PER_LINE, at);
            lines -= half;
        }
        // SAFETY: all lines of the slot and one more are within the keys, as was just checked.
        unsafe {
            let mut count = self.count::<S>(start, at, lines, key);
            if CLOSED {
                return start + count;
            }
            let window = self.window_lines * Self::PER_LINE;
            let beyond = start + select_unpredictable(open, window, 0);
            let more = S::line_below(self.keys.line(beyond), key);
            count += select_unpredictable((count == window) & open, more, 0);
            if count < window + Self::PER_LINE { start + count } else { self.further(start, start + count, key) }
        }
    }

    /// The answers for up to [`BATCH`] slots, which they replace.
    ///
    /// # Safety
    /// The processor has `S`; the keys are as many as the tree was made for; the slots are of the tree.
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
                // SAFETY: the probe is a row that there is. (Where the keys end, what it gives does not matter.)
                let below = unsafe { self.keys.get(probe) } < key;
                *row += select_unpredictable(below, half * Self::PER_LINE, 0);
                self.keys.ask(*row + next);
            }
        }
        let mut ends = false;
        for ((row, &key), &start) in rows.iter_mut().zip(wanted).zip(&starts) {
            if start >= self.whole {
                *row = start;
                ends = true;
                continue;
            }
            // SAFETY: all lines of the slot are within the keys, as was just checked.
            *row = start + unsafe { self.count::<S>(start, *row, lines, key) };
        }
        if CLOSED && !ends {
            return;
        }
        let window = self.window_lines * Self::PER_LINE;
        let (mut left, mut count) = ([0; BATCH], 0);
        for (at, (&row, (&start, &open))) in rows.iter().zip(starts.iter().zip(open)).enumerate() {
            // Without a branch: room for one more there always is.
            left[count] = at;
            count += (((row - start == window) & open & !CLOSED) | (start >= self.whole)) as usize;
        }
        for &at in &left[..count] {
            self.keys.ask(rows[at]);
        }
        if count > 0 {
            self.rest(&left[..count], &starts, rows, wanted);
        }
    }

    /// The answers that are at or behind the rows found so far.
    #[inline(never)]
    fn rest(&self, left: &[usize], starts: &[usize; BATCH], rows: &mut [usize], wanted: &[K]) {
        let mut searches = [Further::default(); BATCH];
        for (search, &at) in searches.iter_mut().zip(left) {
            let from = rows[at];
            *search = Further { at, from, to: self.end(starts[at]).max(from), step: Self::PER_LINE / 2 };
        }
        self.finish(&mut searches[..left.len()], rows, wanted);
    }

    /// How many rows from `start` on are below the key, by the lines from `at` on, before which all are.
    ///
    /// # Safety
    /// The processor has `S`; the lines are within the keys.
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

    /// Behind the last row that the answer can be for a slot.
    #[inline(always)]
    fn end(&self, start: usize) -> usize {
        start.saturating_add(self.reach).min(self.keys.len())
    }

    /// The answer, which is at or behind row `from`.
    #[cold]
    #[inline(never)]
    fn further(self, start: usize, from: usize, key: K) -> usize {
        let mut rows = [from];
        let mut left = [Further { at: 0, from, to: self.end(start).max(from), step: Self::PER_LINE }];
        self.finish(&mut left, &mut rows, &[key]);
        rows[0]
    }

    /// Answers for searches that go on, which take every step together.
    #[inline(always)]
    fn finish(&self, mut left: &mut [Further], rows: &mut [usize], wanted: &[K]) {
        while !left.is_empty() {
            let mut count = 0;
            for index in 0..left.len() {
                let Further { at, mut from, mut to, mut step } = left[index];
                if from < to {
                    let probe = from + step.min((to - from).div_ceil(2)) - 1;
                    // SAFETY: the probe is below `to`, which is at most the length.
                    let below = unsafe { self.keys.get(probe) } < wanted[at];
                    from = select_unpredictable(below, probe + 1, from);
                    to = select_unpredictable(below, to, probe);
                    step = select_unpredictable(below, step.saturating_mul(2), step);
                }
                rows[at] = from;
                left[count] = Further { at, from, to, step };
                count += (from < to) as usize;
                self.keys.ask(from + step.min((to - from).div_ceil(2)));
            }
            left = &mut std::mem::take(&mut left)[..count];
        }
    }
}
