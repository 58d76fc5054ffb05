//! How many keys a range has, about: from the positions of its ends in the nodes on the way down, without walking.
//!
//! Both ends are descended to. Up to the node in which their ways part, everything beside the way is outside of the range;
//! from there on, what is to the right of the lower end's way and to the left of the upper one's is inside. How much is in
//! subtrees beside a way is guessed from a few of their nodes on each level. So small ranges come out exactly, as entries of one
//! node or neighbouring ones; for large ones, what the same counting makes of the whole map is compared with the number
//! of keys, which is known.

use std::ops::{Bound, RangeBounds};

use crate::descend::{Restart, descend};
use crate::guard::Guard;
use crate::key::{AsKey, Cursor};
use crate::map::Masstree;
use crate::node::{Border, BorderView, LAYER, Node, Shape, View, rank, view};
use crate::tree::Tree;
use crate::value::Value;

/// Nodes of a level that stand for all of it.
const SAMPLE: usize = 12;
/// Levels that are looked at.
const LEVELS_MAX: usize = 100;

/// A node on the way to an end of the range.
struct Step {
    word: u64,
    /// What it has, in order: words of children and layers, zeros for keys.
    below: Vec<u64>,
    /// The child or entry on the way, or the first one that is not before the end.
    position: usize,
    /// The first child or entry that is beyond the way.
    beyond: usize,
}

impl<V: Value> Masstree<V> {
    /// About how many keys a range has, from two descents and a few nodes beside them. Exact (if nobody writes) where both
    /// ends are in one node or in neighbouring ones; off by about a tenth where they are far apart, more if parts of the
    /// map have much longer common beginnings than others. Never more than [`len`](Self::len).
    pub fn estimate<K: AsKey>(&self, bounds: impl RangeBounds<K>, guard: &Guard) -> usize {
        let len = self.len();
        let own = |bound: Bound<&K>| bound.map(|key| key.with_key(<[u8]>::to_vec));
        let (low, high) = (own(bounds.start_bound()), own(bounds.end_bound()));
        (self.tree.estimate(&low, &high, len as f64, guard).round() as usize).min(len)
    }

    /// About which share of the keys are in a range, from 0 to 1. See [`estimate`](Self::estimate).
    pub fn estimate_share<K: AsKey>(&self, bounds: impl RangeBounds<K>, guard: &Guard) -> f64 {
        self.estimate(bounds, guard) as f64 / self.len().max(1) as f64
    }
}

impl Tree {
    fn estimate(&self, low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>, len: f64, guard: &Guard) -> f64 {
        let way = |bound: &Bound<Vec<u8>>, equal_is_before: bool| match bound {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(self.way(key, equal_is_before, guard)),
            Bound::Excluded(key) => Some(self.way(key, !equal_is_before, guard)),
        };
        let (before, within, after) = match (way(low, false), way(high, true)) {
            (None, None) => return len,
            (Some(low), None) => (left_of(&low, guard), right_of(&low, guard), 0.0),
            (None, Some(high)) => (0.0, left_of(&high, guard), right_of(&high, guard)),
            (Some(low), Some(high)) => between(&low, &high, guard),
        };
        let all = before + within + after;
        if within < 1.0 || all <= 1.0 {
            return within;
        }
        // The larger the range, the more the number of keys tells.
        within * (len.max(1.0) / all).powf(within.ln() / all.ln())
    }

    /// The way to a key, from the top.
    fn way(&self, key: &[u8], equal_is_before: bool, guard: &Guard) -> Vec<Step> {
        loop {
            if let Ok(way) = self.try_way(key, equal_is_before, guard) {
                return way;
            }
        }
    }

    fn try_way(&self, key: &[u8], equal_is_before: bool, guard: &Guard) -> Result<Vec<Step>, Restart> {
        let mut steps = Vec::new();
        let mut key = Cursor::new(key);
        let mut node = self.root(guard);
        loop {
            let slice = key.slice();
            // A node that is responsible for the slice: the way must lead there.
            let (border, _) = descend(node, slice)?;
            while let Node::Interior(_) = node {
                let Some(View::Interior(interior)) = node.view() else { return Err(Restart) };
                let position = interior.position(slice);
                let below = interior.children[..=interior.count].to_vec();
                steps.push(Step { word: node.word(), below, position, beyond: position + 1 });
                // SAFETY: the child was in the tree when its parent was looked at, under the guard.
                node = unsafe { Node::from_word(interior.children[position]) };
            }
            if node.word() != border.word() {
                return Err(Restart);
            }
            let find = || find(border, &key, slice, equal_is_before);
            let (entries, position, on_way) = view(node, find).ok_or(Restart)?;
            let word_of = |entry: usize| if entries.codes[entry] == LAYER { entries.words[entry] } else { 0 };
            let below = (0..entries.count).map(word_of).collect();
            steps.push(Step { word: border.word(), below, position, beyond: position + usize::from(on_way) });
            if !on_way {
                return Ok(steps);
            }
            // SAFETY: as above.
            node = unsafe { Node::from_word(entries.words[position]) };
            key.advance();
        }
    }
}

/// The entries of a node, the position of the first that is not before the key, and whether that one is a layer on the key's way.
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
            let mut tail = [0; 4 * Shape::TAIL_MAX as usize];
            let suffix = border.rest(entries.slots[position].into(), &mut tail).suffix();
            match suffix.cmp(key.suffix()) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => equal_is_before,
                std::cmp::Ordering::Greater => false,
            }
        }
    };
    (entries, position + usize::from(is_before), false)
}

fn left_of(way: &[Step], guard: &Guard) -> f64 {
    way.iter().map(|step| keys_below(&step.below[..step.position], guard)).sum()
}

fn right_of(way: &[Step], guard: &Guard) -> f64 {
    way.iter().map(|step| keys_below(&step.below[step.beyond..], guard)).sum()
}

/// Keys before, between and after two ways.
fn between(low: &[Step], high: &[Step], guard: &Guard) -> (f64, f64, f64) {
    let same = |(a, b): &(&Step, &Step)| a.word == b.word && (a.position, a.beyond) == (b.position, b.beyond);
    let common = low.iter().zip(high).take_while(same).count();
    let (before, after) = (left_of(low, guard), right_of(high, guard));
    let within = match (low.get(common), high.get(common)) {
        (Some(a), Some(b)) if a.word == b.word => {
            if a.beyond > b.position || b.position > a.below.len() {
                0.0
            } else {
                right_of(&low[common + 1..], guard)
                    + keys_below(&a.below[a.beyond..b.position], guard)
                    + left_of(&high[common + 1..], guard)
            }
        }
        (None, _) | (_, None) => 0.0,
        // The map has changed between the descents.
        _ => (left_of(high, guard) - before).max(0.0),
    };
    (before, within, after)
}

/// About how many keys are below these nodes; zeros are keys themselves.
pub(crate) fn keys_below(words: &[u64], _: &Guard) -> f64 {
    let mut nodes: Vec<u64> = words.iter().copied().filter(|&word| word != 0).collect();
    let mut keys = (words.len() - nodes.len()) as f64;
    // What each of the nodes looked at stands for.
    let mut weight = 1.0;
    for _ in 0..LEVELS_MAX {
        if nodes.len() > SAMPLE {
            let chosen: Vec<u64> = (0..SAMPLE).map(|i| nodes[(2 * i + 1) * nodes.len() / (2 * SAMPLE)]).collect();
            weight *= nodes.len() as f64 / SAMPLE as f64;
            nodes = chosen;
        }
        let mut next = Vec::new();
        for word in nodes {
            // SAFETY: a word found in the tree under the guard.
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
