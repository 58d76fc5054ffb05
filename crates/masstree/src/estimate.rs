//! Estimates of the number of keys in a range, from the positions of its ends in the nodes on their paths, without a
//! scan.
//!
//! The paths to both ends are descended. Above the node in which the paths part, subtrees beside them are outside the
//! range. Below it, subtrees to the right of the lower end's path and to the left of the upper end's path are inside.
//! The size of the subtrees beside a path is extrapolated from a sample of their nodes on each level. Small ranges come
//! out exact, because they consist of entries of one node or of neighbouring ones. Estimates of large ranges are
//! scaled: the same method applied to the whole map must give the known number of keys.

use std::ops::{Bound, RangeBounds};

use crate::descend::{Restart, descend};
use crate::guard::Guard;
use crate::key::{AsKey, Cursor};
use crate::map::Masstree;
use crate::node::{Border, BorderView, LAYER, Node, TAIL_BYTES_MAX, View, rank, view};
use crate::tree::Tree;
use crate::value::Value;

/// Nodes of a level that are read as a sample of it.
const SAMPLE: usize = 12;
/// Levels below a path that are sampled.
const LEVELS_MAX: usize = 100;

/// A node on the path to an end of the range.
struct Step {
    word: u64,
    /// The subtrees and entries of the node in order: words of children and of layers' roots, zeros for keys.
    subtrees: Vec<u64>,
    /// Index of the child or entry on the path, or of the first one that is not before the end.
    position: usize,
    /// Index of the first child or entry beyond the path.
    beyond: usize,
}

impl<V: Value> Masstree<V> {
    /// Estimates the number of keys in a range, from two descents and a sample of the nodes beside them.
    ///
    /// If no other thread writes, the estimate is exact for ranges within one node or neighbouring ones. For large
    /// ranges it is off by about a tenth, and by more if parts of the map have much longer common prefixes than others.
    /// It is never more than [`len`](Self::len).
    pub fn estimate<K: AsKey>(&self, bounds: impl RangeBounds<K>, guard: &Guard) -> usize {
        let len = self.len();
        let own = |bound: Bound<&K>| bound.map(|key| key.with_key(<[u8]>::to_vec));
        let (low, high) = (own(bounds.start_bound()), own(bounds.end_bound()));
        (self.tree.estimate(&low, &high, len as f64, guard).round() as usize).min(len)
    }

    /// Estimates the fraction of the keys that are in a range, from 0 to 1. See [`estimate`](Self::estimate).
    pub fn estimate_share<K: AsKey>(&self, bounds: impl RangeBounds<K>, guard: &Guard) -> f64 {
        self.estimate(bounds, guard) as f64 / self.len().max(1) as f64
    }
}

impl Tree {
    fn estimate(&self, low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>, len: f64, guard: &Guard) -> f64 {
        let path = |bound: &Bound<Vec<u8>>, equal_is_before: bool| match bound {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(self.path(key, equal_is_before, guard)),
            Bound::Excluded(key) => Some(self.path(key, !equal_is_before, guard)),
        };
        let (before, within, after) = match (path(low, false), path(high, true)) {
            (None, None) => return len,
            (Some(low), None) => (left_of(&low, guard), right_of(&low, guard), 0.0),
            (None, Some(high)) => (0.0, left_of(&high, guard), right_of(&high, guard)),
            (Some(low), Some(high)) => between(&low, &high, guard),
        };
        let all = before + within + after;
        if within < 1.0 || all <= 1.0 {
            return within;
        }
        // Scale by the known number of keys, the more the larger the range is.
        within * (len.max(1.0) / all).powf(within.ln() / all.ln())
    }

    /// The path to a key, from the root. An entry with the key itself counts as before it if `equal_is_before`.
    fn path(&self, key: &[u8], equal_is_before: bool, guard: &Guard) -> Vec<Step> {
        loop {
            if let Ok(path) = self.try_path(key, equal_is_before, guard) {
                return path;
            }
        }
    }

    fn try_path(&self, key: &[u8], equal_is_before: bool, guard: &Guard) -> Result<Vec<Step>, Restart> {
        let mut steps = Vec::new();
        let mut key = Cursor::new(key);
        let mut node = self.root(guard);
        loop {
            let slice = key.slice();
            // The border node responsible for the slice: the path through the views must end there.
            let (border, _) = descend(node, slice)?;
            while let Node::Interior(_) = node {
                let Some(View::Interior(interior)) = node.view() else { return Err(Restart) };
                let position = interior.position(slice);
                let subtrees = interior.children[..=interior.count].to_vec();
                steps.push(Step { word: node.word(), subtrees, position, beyond: position + 1 });
                // SAFETY: the child was in the tree when its parent was read, under the guard.
                node = unsafe { Node::from_word(interior.children[position]) };
            }
            if node.word() != border.word() {
                return Err(Restart);
            }
            let find = || find(border, &key, slice, equal_is_before);
            let (entries, position, is_link) = view(node, find).ok_or(Restart)?;
            let word_of = |entry: usize| if entries.codes[entry] == LAYER { entries.words[entry] } else { 0 };
            let subtrees = (0..entries.count).map(word_of).collect();
            steps.push(Step { word: border.word(), subtrees, position, beyond: position + usize::from(is_link) });
            if !is_link {
                return Ok(steps);
            }
            // SAFETY: as above.
            node = unsafe { Node::from_word(entries.words[position]) };
            key.advance();
        }
    }
}

/// The entries of a node, the position of the first that is not before the key, and whether that one leads to the next
/// layer on the key's path.
fn find(border: Border<'_>, key: &Cursor<'_>, slice: u64, equal_is_before: bool) -> (BorderView, usize, bool) {
    let entries = border.entries();
    let wanted = (slice, key.rank());
    let order = |entry: usize| (entries.slices[entry], rank(entries.codes[entry]));
    let position = (0..entries.count).take_while(|&entry| order(entry) < wanted).count();
    if position == entries.count || order(position) != wanted {
        return (entries, position, false);
    }
    let is_before = match entries.codes[position] {
        LAYER => return (entries, position, true),
        0..=8 => equal_is_before,
        _ => {
            let mut tail = [0; TAIL_BYTES_MAX];
            let suffix = border.continuation(entries.slots[position].into(), &mut tail).suffix();
            match suffix.cmp(key.suffix()) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => equal_is_before,
                std::cmp::Ordering::Greater => false,
            }
        }
    };
    (entries, position + usize::from(is_before), false)
}

/// Estimated number of keys to the left of a path.
fn left_of(path: &[Step], guard: &Guard) -> f64 {
    // SAFETY: the words of a path have been read under the guard.
    path.iter().map(|step| unsafe { keys_below(&step.subtrees[..step.position], guard) }).sum()
}

/// Estimated number of keys to the right of a path.
fn right_of(path: &[Step], guard: &Guard) -> f64 {
    // SAFETY: the words of a path have been read under the guard.
    path.iter().map(|step| unsafe { keys_below(&step.subtrees[step.beyond..], guard) }).sum()
}

/// Estimated numbers of keys before, between and after two paths.
fn between(low: &[Step], high: &[Step], guard: &Guard) -> (f64, f64, f64) {
    let same = |(a, b): &(&Step, &Step)| a.word == b.word && (a.position, a.beyond) == (b.position, b.beyond);
    let common = low.iter().zip(high).take_while(same).count();
    let (before, after) = (left_of(low, guard), right_of(high, guard));
    let within = match (low.get(common), high.get(common)) {
        (Some(a), Some(b)) if a.word == b.word => {
            if a.beyond > b.position || b.position > a.subtrees.len() {
                0.0
            } else {
                // SAFETY: the words of a path have been read under the guard.
                let between = unsafe { keys_below(&a.subtrees[a.beyond..b.position], guard) };
                right_of(&low[common + 1..], guard) + between + left_of(&high[common + 1..], guard)
            }
        }
        (None, _) | (_, None) => 0.0,
        // The map changed between the two descents.
        _ => (left_of(high, guard) - before).max(0.0),
    };
    (before, within, after)
}

/// Estimated number of keys in subtrees with roots of these words. A zero is a key.
///
/// # Safety
/// The words that are not zero have been read in the tree under the guard.
pub(crate) unsafe fn keys_below(words: &[u64], _: &Guard) -> f64 {
    let mut nodes: Vec<u64> = words.iter().copied().filter(|&word| word != 0).collect();
    let mut keys = (words.len() - nodes.len()) as f64;
    // Number of nodes that each sampled node stands for.
    let mut weight = 1.0;
    for _ in 0..LEVELS_MAX {
        if nodes.len() > SAMPLE {
            let chosen: Vec<u64> = (0..SAMPLE).map(|i| nodes[(2 * i + 1) * nodes.len() / (2 * SAMPLE)]).collect();
            weight *= nodes.len() as f64 / SAMPLE as f64;
            nodes = chosen;
        }
        let mut next = Vec::new();
        for word in nodes {
            // SAFETY: the word was read in the tree under the guard.
            match (unsafe { Node::from_word(word) }).view() {
                None => {}
                Some(View::Interior(node)) => next.extend_from_slice(&node.children[..=node.count]),
                Some(View::Border(node)) => {
                    let layers = (0..node.count).filter(|&i| node.codes[i] == LAYER).map(|i| node.words[i]);
                    let others = next.len() + node.count;
                    next.extend(layers);
                    keys += weight * (others - next.len()) as f64;
                }
            }
        }
        if next.is_empty() {
            return keys;
        }
        nodes = next;
    }
    keys + weight * nodes.len() as f64
}
