//! From sorted keys to a tree, by ranges side by side.
//!
//! The slices that all keys share are peeled off first: they become layers of one entry. In the first layer in which keys
//! differ, the keys are cut into ranges between different slices. Each range becomes a run of border nodes with the layers
//! below them; the runs are linked, and interior levels built above all. A slice with so many keys that a range of its own
//! would keep one thread busy while the others wait is built first, by all threads, in the same way.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::layer::{Borders, Builder, Fill, interior_levels, link, shared_layers, wrap};
use super::parallel::{Workers, part};
use super::sort::{Record, Run};
use super::{Duplicates, Resolve};
use crate::key::Cursor;
use crate::node::prefetch;
use crate::tree::Tree;

/// Keys in order, and their values' words.
pub(crate) trait Source: Sync {
    fn len(&self) -> usize;

    /// A reader that starts at a key.
    fn reader(&self, start: usize) -> impl Reader + '_;
}

/// Reads keys one after another.
pub(crate) trait Reader {
    /// The next key, written into `key`; its position among those given, and its value's word. It is within the source.
    fn next(&mut self, key: &mut Vec<u8>) -> (usize, u64);
}

/// What a build needs to know.
pub(crate) struct Plan<'a, S> {
    pub tree: &'a Tree,
    pub source: &'a S,
    pub fill: Fill,
    pub workers: Workers,
    pub duplicates: &'a Duplicates,
    /// Position of the first key (in order) found to be a duplicate where there must be none.
    pub duplicate: AtomicUsize,
}

/// Part of a layer: keys of different slices, or a slice with very many keys that go on, built already.
enum Part {
    Keys(Range<usize>),
    Slice { keys: Range<usize>, root: u64 },
}

impl<S: Source> Plan<'_, S> {
    /// Builds the tree; there is at least one key. Returns the root's word.
    pub fn build(&self) -> u64 {
        let all = 0..self.source.len();
        let (root, _) = self.build_layers(all, 0);
        root
    }

    fn key(&self, i: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.source.reader(i).next(&mut key);
        key
    }

    /// Builds the layer for keys that share the slices above it.
    fn build_layers(&self, keys: Range<usize>, layer: usize) -> (u64, usize) {
        let (first, last) = (self.key(keys.start), self.key(keys.end - 1));
        let differ = shared_layers(&first, &last).max(layer);
        let (root, entries) = self.build_layer(keys, differ);
        let mut top = root;
        if differ > layer {
            top = wrap_from(self.tree, &first, layer, differ, root);
        }
        (top, entries)
    }

    /// Builds a layer in which keys differ.
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
        let mut borders: Borders = Vec::with_capacity(built.iter().map(|(part, _)| part.len()).sum());
        let mut entries = 0;
        for (part, count) in built {
            if let (Some(&(_, left)), Some(&(_, right))) = (borders.last(), part.first()) {
                link(left, right);
            }
            borders.extend(part);
            entries += count;
        }
        (interior_levels(self.tree, self.fill, &borders), entries)
    }

    /// Cuts the keys of a layer into parts, and builds slices of very many keys.
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
            // The keys with the target's slice.
            let slice = self.slice(target, layer);
            let from = search(start..target, |i| self.slice(i, layer) < slice);
            let to = search(target..keys.end, |i| self.slice(i, layer) <= slice);
            if to - from <= wanted {
                parts.push(Part::Keys(start..to));
            } else {
                if from > start {
                    parts.push(Part::Keys(start..from));
                }
                // Those that end with the slice come first.
                let on = search(from..to, |i| self.key(i).len() <= 8 * (layer + 1));
                let root = if to - on > SMALL { self.build_layers(on..to, layer + 1).0 } else { 0 };
                parts.push(if root == 0 { Part::Keys(from..to) } else { Part::Slice { keys: from..on, root } });
                if root != 0 {
                    self.check_neighbours(on, layer);
                }
            }
            start = to;
        }
        parts
    }

    fn check_neighbours(&self, on: usize, layer: usize) {
        debug_assert!(
            on == 0 || self.key(on - 1).len() <= 8 * (layer + 1) || self.slice(on - 1, layer) < self.slice(on, layer)
        );
    }

    fn slice(&self, i: usize, layer: usize) -> u64 {
        Cursor::at_layer(&self.key(i), layer).slice()
    }

    /// Builds border nodes for a part, with the layers below.
    fn build_part(&self, part: &Part, layer: usize) -> (Builder<'_>, usize) {
        let mut builder = Builder::new(self.tree, self.fill, layer);
        match part {
            Part::Keys(keys) => self.add_keys(&mut builder, keys.clone(), layer),
            Part::Slice { keys, root } => {
                self.add_keys(&mut builder, keys.clone(), layer);
                // SAFETY of the slice: the layer's keys are those right after `keys`.
                builder.add_layer(self.slice(keys.end, layer), *root);
            }
        }
        let entries = builder.entries;
        (builder, entries)
    }

    fn add_keys(&self, builder: &mut Builder<'_>, keys: Range<usize>, layer: usize) {
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

    /// Of two values of the same key, what becomes of them.
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

/// Layers of one entry each for the slices of a key from one layer up to another's root.
fn wrap_from(tree: &Tree, key: &[u8], from: usize, to: usize, root: u64) -> u64 {
    wrap(tree, &key[8 * from..], to - from, root)
}

/// The first of a range for which `before` is false.
fn search(range: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Keys that are in order already.
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

/// Keys in the order that a sort has found.
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
        ByRunReader { source: self, at: start, bucket, bucket_end, exact: self.run.digest.exact_length.is_some() }
    }
}

struct ByRunReader<'a, K, R> {
    source: &'a ByRun<'a, K, R>,
    at: usize,
    bucket: usize,
    bucket_end: usize,
    exact: bool,
}

/// How far ahead keys and values are requested: enough for the memory's latency at some ten nanoseconds a key.
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
        run.digest.key_of(run.number(at, self.bucket), key);
        (position, word)
    }
}

impl<K: AsRef<[u8]> + Sync, R: Record> ByRunReader<'_, K, R> {
    /// Asks for keys and values to come: they are anywhere.
    #[inline]
    fn prefetch(&self, at: usize) {
        let (source, run) = (self.source, self.source.run);
        if at + AHEAD < run.records.len() {
            let ahead = run.position(at + AHEAD);
            prefetch(&raw const source.words[ahead] as u64);
            if !self.exact {
                prefetch(&raw const source.keys[ahead] as u64);
                prefetch(source.keys[run.position(at + AHEAD / 2)].as_ref().as_ptr() as u64);
            }
        }
    }
}

/// Whether keys are in order; if not, the first position that is lower than its predecessor.
pub(crate) fn check_order<K: AsRef<[u8]> + Sync>(workers: Workers, keys: &[K]) -> Option<usize> {
    let found = workers.run(|worker| {
        {
            let part = part(keys.len(), worker, workers.count());
            part.start.max(1)..part.end
        }
        .find(|&i| keys[i].as_ref() < keys[i - 1].as_ref())
    });
    found.into_iter().flatten().min()
}
