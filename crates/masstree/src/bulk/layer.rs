//! Building layers from keys in order: border nodes are filled one after another, left to right; what is above them is made when
//! a layer is complete. There are no descents, no splits, and nothing is moved.
//!
//! A key's entry is in the layer in which it differs from both its neighbours, so that only neighbours are compared. The
//! layers that the present key runs through are open; when the next key leaves some of them, they are completed, and their
//! roots become entries of the layers above.

use crate::key::Cursor;
use crate::node::{Border, Entries, LAYER, Node, Permutation, ROOT, Rest, Shape, WIDTH};
use crate::sync::{Relaxed, Release};
use crate::tree::Tree;

/// How full nodes are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fill {
    /// Entries of a border node.
    pub entries: usize,
    /// Children of an interior node.
    pub children: usize,
}

/// Border nodes of a layer, or of a part of it, in order, linked: the first slice of each and its word.
pub(crate) type Borders = Vec<(u64, u64)>;

/// The layers in which two keys in order run together: slices that are equal, after which both go on.
#[inline]
pub(crate) fn shared_layers(one: &[u8], other: &[u8]) -> usize {
    let limit = one.len().min(other.len()).saturating_sub(1) / 8;
    if limit == 0 || one.first_chunk::<8>() != other.first_chunk::<8>() {
        return 0;
    }
    1 + (1..limit).take_while(|layer| one[8 * layer..][..8] == other[8 * layer..][..8]).count()
}

/// An open layer: entries that wait for their node, and the nodes that are complete.
struct Open {
    count: usize,
    slices: [u64; WIDTH],
    words: [u64; WIDTH],
    codes: [u8; WIDTH],
    /// Where each entry's suffix ends.
    ends: [u32; WIDTH],
    suffixes: Vec<u8>,
    longest: usize,
    borders: Borders,
    /// Which of the entries that wait is not in the layer yet: the slice of the open layer below.
    below: u64,
}

impl Open {
    fn new() -> Self {
        Open {
            count: 0,
            slices: [0; WIDTH],
            words: [0; WIDTH],
            codes: [0; WIDTH],
            ends: [0; WIDTH],
            suffixes: Vec::new(),
            longest: 0,
            borders: Vec::new(),
            below: 0,
        }
    }

    #[inline]
    fn push(&mut self, slice: u64, rest: Rest<'_>, word: u64) {
        let at = self.count;
        self.slices[at] = slice;
        self.words[at] = word;
        self.codes[at] = match rest {
            Rest::Ends(length) => length,
            Rest::Layer => LAYER,
            Rest::Suffix(suffix) => {
                self.suffixes.extend_from_slice(suffix);
                self.longest = self.longest.max(suffix.len());
                9
            }
        };
        self.ends[at] = self.suffixes.len() as u32;
        self.count += 1;
    }

    fn suffix(&self, entry: usize) -> &[u8] {
        let start = if entry == 0 { 0 } else { self.ends[entry - 1] };
        &self.suffixes[start as usize..self.ends[entry] as usize]
    }

    fn rest(&self, entry: usize) -> Rest<'_> {
        match self.codes[entry] {
            LAYER => Rest::Layer,
            9 => Rest::Suffix(self.suffix(entry)),
            length => Rest::Ends(length),
        }
    }
}

/// Builds a layer, and those below it, from keys in order.
pub(crate) struct Builder<'t> {
    tree: &'t Tree,
    fill: Fill,
    /// The layer that is built.
    first: usize,
    open: Vec<Open>,
    /// Layers in use.
    depth: usize,
    /// Entries put into nodes, layers apart.
    pub entries: usize,
}

impl<'t> Builder<'t> {
    pub fn new(tree: &'t Tree, fill: Fill, first: usize) -> Self {
        Builder { tree, fill, first, open: vec![Open::new()], depth: 1, entries: 0 }
    }

    /// Adds a key. `before` and `after` tell in how many layers it runs together with its neighbours.
    #[inline]
    pub fn add(&mut self, key: &[u8], word: u64, before: usize, after: usize) {
        let layer = before.max(after);
        while self.first + self.depth <= layer {
            let above = &mut self.open[self.depth - 1];
            above.below = Cursor::at_layer(key, self.first + self.depth - 1).slice();
            if self.open.len() == self.depth {
                self.open.push(Open::new());
            }
            self.depth += 1;
        }
        let cursor = Cursor::at_layer(key, layer);
        self.push(layer - self.first, cursor.slice(), Rest::of(&cursor), word);
        self.entries += 1;
        while self.first + self.depth > after + 1 && self.depth > 1 {
            self.close_layer();
        }
    }

    /// Adds a layer that is there already.
    pub fn add_layer(&mut self, slice: u64, root: u64) {
        self.push(0, slice, Rest::Layer, root);
    }

    #[inline]
    fn push(&mut self, depth: usize, slice: u64, rest: Rest<'_>, word: u64) {
        let open = &mut self.open[depth];
        if open.count >= self.fill.entries && (open.slices[open.count - 1] != slice || open.count == WIDTH) {
            self.flush(depth, slice);
        }
        self.open[depth].push(slice, rest, word);
    }

    /// Completes the deepest layer, which becomes an entry of the one above.
    fn close_layer(&mut self) {
        let root = self.finish_layer(self.depth - 1);
        self.depth -= 1;
        let slice = self.open[self.depth - 1].below;
        self.push(self.depth - 1, slice, Rest::Layer, root);
    }

    /// Makes a node of the entries that wait, less those of the slice to come: a slice's entries stay together.
    fn flush(&mut self, depth: usize, next_slice: u64) {
        let open = &mut self.open[depth];
        let kept = open.slices[..open.count].iter().take_while(|&&slice| slice != next_slice).count();
        let longest = (0..kept).map(|entry| open.suffix(entry).len()).max().unwrap_or(0);
        make_border(self.tree, open, kept, Shape::wide(longest), 0);
        // What is left moves to the front.
        let suffixes = if kept == 0 { 0 } else { open.ends[kept - 1] };
        for entry in kept..open.count {
            open.slices[entry - kept] = open.slices[entry];
            open.words[entry - kept] = open.words[entry];
            open.codes[entry - kept] = open.codes[entry];
            open.ends[entry - kept] = open.ends[entry] - suffixes;
        }
        open.suffixes.drain(..suffixes as usize);
        open.count -= kept;
        open.longest = 0;
    }

    /// Completes a layer: its last node, and the nodes above. The layer is empty then. Returns the root's word.
    fn finish_layer(&mut self, depth: usize) -> u64 {
        let open = &mut self.open[depth];
        if open.borders.is_empty() {
            let shape = Shape::for_layer(open.count, open.longest);
            make_border(self.tree, open, open.count, shape, ROOT);
        } else if open.count > 0 {
            make_border(self.tree, open, open.count, Shape::wide(open.longest), 0);
        }
        open.count = 0;
        open.suffixes.clear();
        open.longest = 0;
        let root = interior_levels(self.tree, self.fill, &open.borders);
        open.borders.clear();
        root
    }

    /// All border nodes of the layer that is built, none of them a root.
    pub fn finish(mut self) -> Borders {
        while self.depth > 1 {
            self.close_layer();
        }
        let open = &mut self.open[0];
        if open.count > 0 {
            make_border(self.tree, open, open.count, Shape::wide(open.longest), 0);
        }
        std::mem::take(&mut open.borders)
    }

    /// The root of the layer that is built.
    pub fn finish_root(mut self) -> u64 {
        while self.depth > 1 {
            self.close_layer();
        }
        self.finish_layer(0)
    }
}

/// Makes a border node of the first entries of an open layer and links it to the one before.
fn make_border(tree: &Tree, open: &mut Open, count: usize, shape: Shape, flags: u64) {
    let border: Border<'_> = tree.new_border(flags, shape);
    if open.longest > shape.tail_bytes() {
        tree.presize_bag(border, (0..count).map(|entry| open.suffix(entry).len()), count.max(1));
    }
    for entry in 0..count {
        border.fill(entry, open.slices[entry], open.rest(entry), open.words[entry]);
    }
    border.set_permutation(Permutation::sorted(count));
    if let Some(&(_, previous)) = open.borders.last() {
        link(previous, border.word());
    }
    open.borders.push((open.slices[0], border.word()));
}

/// Makes two border nodes neighbours.
pub(crate) fn link(left: u64, right: u64) {
    // SAFETY: both are words of border nodes of a tree that is being built.
    let (left, right) = unsafe { (Node::from_word(left), Node::from_word(right)) };
    if let (Node::Border(left), Node::Border(right)) = (left, right) {
        left.set_next(right.word());
        right.set_previous(left.word());
    }
}

/// Builds interior nodes above a layer's border nodes, level by level; returns the root's word.
pub(crate) fn interior_levels(tree: &Tree, fill: Fill, borders: &[(u64, u64)]) -> u64 {
    let mut level: Option<Borders> = None;
    loop {
        let nodes = level.as_deref().unwrap_or(borders);
        if let [(_, word)] = nodes {
            return mark_root(*word);
        }
        // As few parents as possible, with about as many children each.
        let parents = nodes.len().div_ceil(fill.children);
        let above = (0..parents).map(|parent| {
            let children = &nodes[super::parallel::part(nodes.len(), parent, parents)];
            let slices: Vec<u64> = children[1..].iter().map(|&(slice, _)| slice).collect();
            let words: Vec<u64> = children.iter().map(|&(_, word)| word).collect();
            (children[0].0, tree.new_interior(0, &Entries::new(&slices, &words)).word())
        });
        level = Some(above.collect());
    }
}

/// The node is the root of its layer.
fn mark_root(word: u64) -> u64 {
    // SAFETY: a node of a tree that is being built.
    let node = unsafe { Node::from_word(word) };
    node.version().make_root();
    word
}

/// Layers of one entry each above a root: those of the slices that all keys share.
pub(crate) fn wrap(tree: &Tree, key: &[u8], layers: usize, root: u64) -> u64 {
    (0..layers).rev().fold(root, |below, layer| {
        let border: Border<'_> = tree.new_border(ROOT, Shape::for_layer(1, 0));
        border.slice(0).store(Cursor::at_layer(key, layer).slice(), Relaxed);
        border.value(0).store(below, Release);
        border.set_layer(0, below);
        border.set_permutation(Permutation::sorted(1));
        border.word()
    })
}
