//! Building the tree from sorted keys, several key ranges in parallel.
//!
//! Slices that all keys share become layers of one entry. The first layer in which keys differ is cut into parts, at
//! boundaries between different slices. Each part becomes a run of border nodes with the layers below them. The runs
//! are linked, and the interior levels are built above all of them. A slice with so many keys that its part would keep
//! one thread busy while the others wait is built first, by all threads in the same way.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyaki_primitives::prefetch;

use super::layer::{Borders, FillFactor, LayerBuilder, interior_levels, link};
use super::parallel::{Workers, part};
use super::sort::{Record, Run};
use super::{Duplicates, Resolve};
use crate::key::{Cursor, shared_layers};
use crate::node::Node;
use crate::tree::Tree;

/// Keys in ascending order, and the words of their values.
pub(crate) trait Source: Sync {
    fn len(&self) -> usize;

    /// A reader that starts at the key with this index.
    fn reader(&self, start: usize) -> impl Reader + '_;
}

/// Reads keys in ascending order.
pub(crate) trait Reader {
    /// Writes the next key into `key`. Returns its position among the keys given by the user, and its value's word. The
    /// caller does not read beyond the end of the source.
    fn next(&mut self, key: &mut Vec<u8>) -> (usize, u64);
}

/// A bulk build.
pub(crate) struct BulkBuild<'a, S> {
    /// The tree, which is not published.
    pub tree: &'a Tree,
    pub source: &'a S,
    pub fill: FillFactor,
    pub workers: Workers,
    pub duplicates: &'a Duplicates,
    /// Lowest position of a duplicate that was refused; `usize::MAX` if there is none.
    pub duplicate: AtomicUsize,
}

/// A part of a layer.
enum Part {
    /// Keys of any slices.
    Keys(Range<usize>),
    /// A slice with very many keys that continue after it. Their layer has been built; `keys` are those that end in the
    /// slice.
    Slice { keys: Range<usize>, root: u64, entries: usize },
}

impl<S: Source> BulkBuild<'_, S> {
    /// Builds the tree from at least one key. Returns the root's word.
    pub fn build(&self) -> u64 {
        let (root, entries) = self.build_layers(0..self.source.len(), 0);
        assert_eq!(entries, self.tree.len(), "the parts count their entries");
        root
    }

    fn key(&self, i: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.source.reader(i).next(&mut key);
        key
    }

    /// Builds the layer for keys that share the slices above it. Returns the root's word and the number of entries.
    fn build_layers(&self, keys: Range<usize>, layer: usize) -> (u64, usize) {
        let (first, last) = (self.key(keys.start), self.key(keys.end - 1));
        let differing = shared_layers(&first, &last).max(layer);
        let (root, entries) = self.build_layer(keys, differing);
        // SAFETY: the root has just been built for this tree, which lives as long as `self`.
        let root = unsafe { Node::from_word(root) };
        (self.tree.wrap(&first[8 * layer..], differing - layer, root).word(), entries)
    }

    /// Builds a layer in which keys differ. Returns the root's word and the number of entries.
    fn build_layer(&self, keys: Range<usize>, layer: usize) -> (u64, usize) {
        let parts = self.cut(keys, layer);
        if let [Part::Keys(keys)] = parts.as_slice() {
            let (builder, entries) = self.build_part(&Part::Keys(keys.clone()), layer);
            self.tree.count(entries as i64);
            return (builder.finish_root(), entries);
        }
        let built: Vec<(Borders, usize)> = self.workers.run_tasks(parts.len(), |(): &mut (), part| {
            let (builder, entries) = self.build_part(&parts[part], layer);
            self.tree.count(entries as i64);
            (builder.finish(), entries)
        });
        assert_eq!(built.len(), parts.len(), "every part is built once");
        let mut borders: Borders = Vec::with_capacity(built.iter().map(|(part, _)| part.len()).sum());
        let mut entries = 0;
        for (part, count) in built {
            if let (Some(&(_, left)), Some(&(_, right))) = (borders.last(), part.first()) {
                // SAFETY: border nodes of neighbouring parts; their builders have finished.
                unsafe { link(left, right) };
            }
            borders.extend(part);
            entries += count;
        }
        let below: usize =
            parts.iter().map(|part| if let Part::Slice { entries, .. } = part { *entries } else { 0 }).sum();
        // SAFETY: the border nodes are those of all parts of the layer.
        let root = unsafe { interior_levels(self.tree, self.fill, &borders) };
        (root, entries + below)
    }

    /// Cuts the keys of a layer into parts, and builds the layers below slices of very many keys.
    fn cut(&self, keys: Range<usize>, layer: usize) -> Vec<Part> {
        const SMALL: usize = 4096;
        let workers = self.workers.count();
        if workers == 1 || keys.len() < SMALL {
            return vec![Part::Keys(keys)];
        }
        let tasks = (8 * workers).min(keys.len() / (SMALL / 8)).max(1);
        let wanted = keys.len().div_ceil(tasks);
        let mut parts = Vec::new();
        let mut start = keys.start;
        while start < keys.end {
            let target = start + wanted;
            if target >= keys.end {
                parts.push(Part::Keys(start..keys.end));
                break;
            }
            // The range of the keys with the target's slice.
            let slice = self.slice(target, layer);
            let from = search(start..target, |i| self.slice(i, layer) < slice);
            let to = search(target..keys.end, |i| self.slice(i, layer) <= slice);
            if to - from <= wanted {
                parts.push(Part::Keys(start..to));
            } else {
                if from > start {
                    parts.push(Part::Keys(start..from));
                }
                // Keys that end in the slice come before those that continue.
                let continuing = search(from..to, |i| self.key(i).len() <= 8 * (layer + 1));
                if to - continuing > SMALL {
                    let (root, entries) = self.build_layers(continuing..to, layer + 1);
                    parts.push(Part::Slice { keys: from..continuing, root, entries });
                } else {
                    parts.push(Part::Keys(from..to));
                }
            }
            start = to;
        }
        parts
    }

    fn slice(&self, i: usize, layer: usize) -> u64 {
        Cursor::at_layer(&self.key(i), layer).slice()
    }

    /// Adds a part's keys to a new builder. Returns it and the number of keys, without those of layers built before.
    fn build_part(&self, part: &Part, layer: usize) -> (LayerBuilder<'_>, usize) {
        let mut builder = LayerBuilder::new(self.tree, self.fill, layer);
        match part {
            Part::Keys(keys) => self.add_keys(&mut builder, keys.clone(), layer),
            Part::Slice { keys, root, .. } => {
                self.add_keys(&mut builder, keys.clone(), layer);
                // The keys of the layer come right after `keys`.
                let slice = self.slice(keys.end, layer);
                // SAFETY: `cut` has built the layer for this tree.
                unsafe { builder.add_layer(slice, *root) };
            }
        }
        let entries = builder.entries;
        (builder, entries)
    }

    fn add_keys(&self, builder: &mut LayerBuilder<'_>, keys: Range<usize>, layer: usize) {
        if keys.is_empty() {
            return;
        }
        let mut reader = self.source.reader(keys.start);
        let (mut key, mut next) = (Vec::new(), Vec::new());
        let (mut position, mut word) = reader.next(&mut key);
        let mut before = layer;
        for _ in keys.start + 1..keys.end {
            let (next_position, next_word) = reader.next(&mut next);
            let after = shared_layers(&key, &next);
            if after + 1 >= next.len().div_ceil(8) && key == next {
                word = self.resolve(word, next_word, position, next_position);
                continue;
            }
            builder.add(&key, word, before, after);
            std::mem::swap(&mut key, &mut next);
            (position, word, before) = (next_position, next_word, after);
        }
        builder.add(&key, word, before, layer);
    }

    /// Applies the policy for duplicates to two values of one key. Returns the word that stays.
    #[cold]
    fn resolve(&self, earlier: u64, later: u64, position: usize, later_position: usize) -> u64 {
        match self.duplicates.resolve(earlier, later) {
            Resolve::Word(word) => word,
            Resolve::Refuse => {
                self.duplicate.fetch_min(position.max(later_position), Ordering::Relaxed);
                self.duplicates.discard(later);
                earlier
            }
        }
    }
}

/// The first index of a range for which `before` is false.
fn search(range: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Keys given in ascending order.
pub(crate) struct InOrder<'a, K> {
    pub keys: &'a [K],
    pub words: &'a [u64],
}

impl<K: AsRef<[u8]> + Sync> Source for InOrder<'_, K> {
    fn len(&self) -> usize {
        self.keys.len()
    }

    fn reader(&self, start: usize) -> impl Reader + '_ {
        InOrderReader { source: self, at: start }
    }
}

struct InOrderReader<'a, K> {
    source: &'a InOrder<'a, K>,
    at: usize,
}

impl<K: AsRef<[u8]>> Reader for InOrderReader<'_, K> {
    #[inline]
    fn next(&mut self, key: &mut Vec<u8>) -> (usize, u64) {
        let at = self.at;
        key.clear();
        key.extend_from_slice(self.source.keys[at].as_ref());
        self.at += 1;
        (at, self.source.words[at])
    }
}

/// Keys in the order found by a sort.
pub(crate) struct ByRun<'a, K, R> {
    pub keys: &'a [K],
    pub run: &'a Run<R>,
    pub words: &'a [u64],
}

impl<K: AsRef<[u8]> + Sync, R: Record> Source for ByRun<'_, K, R> {
    fn len(&self) -> usize {
        self.run.records.len()
    }

    fn reader(&self, start: usize) -> impl Reader + '_ {
        let bucket = self.run.bucket(start);
        let bucket_end = self.run.bucket_end(bucket);
        ByRunReader { source: self, at: start, bucket, bucket_end, exact: self.run.codec.exact_length.is_some() }
    }
}

struct ByRunReader<'a, K, R> {
    source: &'a ByRun<'a, K, R>,
    at: usize,
    bucket: usize,
    bucket_end: usize,
    /// True if keys are decoded from the records.
    exact: bool,
}

/// Number of keys by which keys and values are prefetched ahead: the latency of memory at about ten nanoseconds a key.
const AHEAD: usize = 24;

impl<K: AsRef<[u8]> + Sync, R: Record> Reader for ByRunReader<'_, K, R> {
    #[inline]
    fn next(&mut self, key: &mut Vec<u8>) -> (usize, u64) {
        let (source, run) = (self.source, self.source.run);
        let at = self.at;
        self.at += 1;
        if !(self.exact && run.has_words()) {
            self.prefetch(at);
        }
        let position = run.position(at);
        let word = run.word(at).unwrap_or_else(|| source.words[position]);
        if !self.exact {
            key.clear();
            key.extend_from_slice(source.keys[position].as_ref());
            return (position, word);
        }
        while at >= self.bucket_end {
            self.bucket += 1;
            self.bucket_end = run.bucket_end(self.bucket);
        }
        run.codec.decode(run.number(at, self.bucket), key);
        (position, word)
    }
}

impl<K: AsRef<[u8]> + Sync, R: Record> ByRunReader<'_, K, R> {
    /// Prefetches following keys and values, which are in no particular order in memory.
    #[inline]
    fn prefetch(&self, at: usize) {
        let (source, run) = (self.source, self.source.run);
        if at + AHEAD < run.records.len() {
            let ahead = run.position(at + AHEAD);
            prefetch(&raw const source.words[ahead]);
            if !self.exact {
                prefetch(&raw const source.keys[ahead]);
                prefetch(source.keys[run.position(at + AHEAD / 2)].as_ref().as_ptr());
            }
        }
    }
}

/// The first position of a key that is lower than its predecessor; `None` if the keys are in ascending order.
pub(crate) fn check_order<K: AsRef<[u8]> + Sync>(workers: Workers, keys: &[K]) -> Option<usize> {
    let found = workers.run(|worker| {
        let part = part(keys.len(), worker, workers.count());
        (part.start.max(1)..part.end).find(|&i| keys[i].as_ref() < keys[i - 1].as_ref())
    });
    found.into_iter().flatten().min()
}
