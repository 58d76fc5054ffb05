//! Split keys: keys that divide a range into parts of about equal size, found in the upper levels without a scan.
//!
//! The map is divided from the root down. A piece with more keys than the limit is replaced by its children, until all
//! pieces are small enough. Sizes are estimates: the nodes of one level of a layer are assumed to have equally many
//! keys. The range may be cut at the first key of every piece.

use std::collections::HashMap;
use std::ops::{Bound, RangeBounds};

use crate::estimate::keys_below;
use crate::guard::Guard;
use crate::key::AsKey;
use crate::map::Masstree;
use crate::node::{BorderView, InteriorView, LAYER, Node, View};
use crate::tree::Tree;
use crate::value::Value;

/// Number of pieces per requested part.
const PIECES: f64 = 16.0;

/// A part of the key space.
struct Piece {
    /// Estimated number of keys; NaN until it is known.
    size: f64,
    /// Lower bound of its keys.
    start: Vec<u8>,
    subtree: Subtree,
}

enum Subtree {
    /// A root or a child, the common prefix of its keys up to its layer, and the word of the layer's root.
    Node { word: u64, prefix: Vec<u8>, layer: u64 },
    /// A single key.
    Key,
}

impl<V: Value> Masstree<V> {
    /// Up to `count` keys, ascending and strictly within the bounds, that divide a range into parts of about equally
    /// many keys. In a map of random keys, the largest part has about twice as many keys as the smallest. The split
    /// keys need not be in the map. There are fewer of them if the range has few entries.
    ///
    /// A few nodes are read for each part. While other threads write, the split keys are still ascending and within the
    /// bounds.
    pub fn split_keys<K: AsKey>(&self, count: usize, bounds: impl RangeBounds<K>, guard: &Guard) -> Vec<Vec<u8>> {
        let own = |bound: Bound<&K>| bound.map(|key| key.with_key(<[u8]>::to_vec));
        let (low, high) = (own(bounds.start_bound()), own(bounds.end_bound()));
        let pieces = self.tree.pieces(count, &low, &high, guard);
        choose(count, &pieces, &low, &high)
    }
}

impl Tree {
    /// Divides the range into pieces, in order.
    fn pieces(&self, count: usize, low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>, guard: &Guard) -> Vec<Piece> {
        let root = self.root_word();
        let subtree = Subtree::Node { word: root, prefix: Vec::new(), layer: root };
        let mut pieces = vec![Piece { size: self.len() as f64, start: Vec::new(), subtree }];
        loop {
            let all: f64 = pieces.iter().map(|piece| piece.size).sum();
            let limit = (all / (PIECES * (count as f64 + 1.0))).max(1.0);
            let mut smaller = Vec::with_capacity(2 * pieces.len());
            let mut opened = false;
            // For each layer: the number of keys, and of nodes on the level that is reached, within the range.
            let mut levels: HashMap<u64, (f64, usize)> = HashMap::new();
            for piece in pieces {
                match piece.subtree {
                    Subtree::Node { word, prefix, layer } if piece.size > limit => {
                        opened = true;
                        // SAFETY: the word is that of the root, or was read in a node of the tree, under the guard.
                        match (unsafe { Node::from_word(word) }).view() {
                            // The node has left the tree.
                            None => {}
                            Some(View::Border(node)) => open_border(&node, prefix, &mut smaller, guard),
                            Some(View::Interior(node)) => {
                                let level = levels.entry(layer).or_default();
                                *level = (level.0 + piece.size, level.1 + node.count + 1);
                                open_interior(&node, prefix, piece.start, layer, &mut smaller);
                            }
                        }
                    }
                    _ => smaller.push(piece),
                }
            }
            for piece in &mut smaller {
                if let (Subtree::Node { layer, .. }, true) = (&piece.subtree, piece.size.is_nan())
                    && let Some((size, nodes)) = levels.get(layer)
                {
                    piece.size = size / *nodes as f64;
                }
            }
            pieces = keep_within(smaller, low, high);
            if !opened {
                return pieces;
            }
        }
    }
}

/// Adds the children of a node as pieces of unknown size.
fn open_interior(node: &InteriorView, prefix: Vec<u8>, start: Vec<u8>, layer: u64, pieces: &mut Vec<Piece>) {
    let subtree = |child: usize| Subtree::Node { word: node.children[child], prefix: prefix.clone(), layer };
    pieces.push(Piece { size: f64::NAN, start, subtree: subtree(0) });
    for (child, slice) in (1..).zip(&node.slices[..node.count]) {
        // Trailing zeros may be the padding of a shorter key.
        let bytes = 8 - slice.trailing_zeros() as usize / 8;
        let start = [prefix.as_slice(), &slice.to_be_bytes()[..bytes]].concat();
        pieces.push(Piece { size: f64::NAN, start, subtree: subtree(child) });
    }
}

/// Adds the entries of a node as pieces.
fn open_border(node: &BorderView, prefix: Vec<u8>, pieces: &mut Vec<Piece>, guard: &Guard) {
    for entry in 0..node.count {
        let slice = node.slices[entry].to_be_bytes();
        let (code, word) = (node.codes[entry], node.words[entry]);
        let start = [prefix.as_slice(), &slice[..usize::from(code).min(8)]].concat();
        pieces.push(match code {
            LAYER => Piece {
                // SAFETY: the view of the node has been read under the guard.
                size: unsafe { keys_below(&[word], guard) },
                start: start.clone(),
                subtree: Subtree::Node { word, prefix: start, layer: word },
            },
            _ => Piece { size: 1.0, start, subtree: Subtree::Key },
        });
    }
}

/// Removes pieces without keys within the bounds.
fn keep_within(mut pieces: Vec<Piece>, low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>) -> Vec<Piece> {
    if let Bound::Included(high) | Bound::Excluded(high) = high {
        pieces.truncate(pieces.partition_point(|piece| piece.start <= *high));
    }
    if let Bound::Included(low) | Bound::Excluded(low) = low {
        let beyond = pieces.partition_point(|piece| piece.start <= *low);
        pieces.drain(..beyond.saturating_sub(1));
    }
    pieces
}

/// Chooses the starts of pieces that come nearest to parts of equal size.
fn choose(count: usize, pieces: &[Piece], low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>) -> Vec<Vec<u8>> {
    let all: f64 = pieces.iter().map(|piece| piece.size).sum();
    let part = all / (count as f64 + 1.0);
    let above = |key: &Vec<u8>| match low {
        Bound::Included(low) | Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    };
    let below = |key: &Vec<u8>| match high {
        Bound::Included(high) | Bound::Excluded(high) => key < high,
        Bound::Unbounded => true,
    };
    let mut chosen: Vec<Vec<u8>> = Vec::new();
    let mut before = 0.0;
    for (i, piece) in pieces.iter().enumerate() {
        let target = part * (chosen.len() + 1) as f64;
        let is_next = chosen.last().is_none_or(|last| piece.start > *last);
        if i > 0
            && chosen.len() < count
            && before + piece.size / 2.0 > target
            && is_next
            && above(&piece.start)
            && below(&piece.start)
        {
            chosen.push(piece.start.clone());
        }
        before += piece.size;
    }
    chosen
}
