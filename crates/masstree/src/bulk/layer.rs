//! Building layers from keys in ascending order. Border nodes are filled one after another from left to right. The
//! interior nodes above them are made when a layer is complete. There are no descents and no splits, and no entry is
//! moved.
//!
//! A key's entry is in the first layer in which the key differs from both its neighbours, so that only neighbours are
//! compared. The layers that the current key runs through are *open*. When the next key leaves some of them, these are
//! completed, and their roots become entries of the layers above.
//!
//! Invariant: the tree is not published, so that this thread has exclusive access to the nodes that it makes.

use crate::key::Cursor;
use crate::node::{Border, BorderLayout, Continuation, Entries, Exclusive, LAYER, Node, Permutation, ROOT, WIDTH};
use crate::tree::Tree;

/// Number of entries and children that bulk construction puts into a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FillFactor {
    /// Entries of a border node.
    pub entries: usize,
    /// Children of an interior node.
    pub children: usize,
}

/// The linked border nodes of a layer, or of a part of it, in order: the first slice and the word of each.
pub(crate) type Borders = Vec<(u64, u64)>;

/// Code of an entry whose suffix is in [`OpenLayer::suffixes`].
const SUFFIX: u8 = 9;

/// An open layer: entries that are not in a node yet, and the nodes that are complete.
struct OpenLayer {
    count: usize,
    slices: [u64; WIDTH],
    words: [u64; WIDTH],
    codes: [u8; WIDTH],
    /// End of each entry's suffix in `suffixes`.
    ends: [u32; WIDTH],
    suffixes: Vec<u8>,
    /// Length of the longest suffix.
    longest: usize,
    borders: Borders,
    /// Slice of the entry for the open layer below, which is added when that layer is complete.
    below: u64,
}

impl OpenLayer {
    fn new() -> Self {
        OpenLayer {
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
    fn push(&mut self, slice: u64, continuation: Continuation<'_>, word: u64) {
        let at = self.count;
        self.slices[at] = slice;
        self.words[at] = word;
        self.codes[at] = match continuation {
            Continuation::Ends(length) => length,
            Continuation::Layer => LAYER,
            Continuation::Suffix(suffix) => {
                self.suffixes.extend_from_slice(suffix);
                self.longest = self.longest.max(suffix.len());
                SUFFIX
            }
        };
        self.ends[at] = self.suffixes.len() as u32;
        self.count += 1;
    }

    fn suffix(&self, entry: usize) -> &[u8] {
        let start = if entry == 0 { 0 } else { self.ends[entry - 1] };
        &self.suffixes[start as usize..self.ends[entry] as usize]
    }

    fn continuation(&self, entry: usize) -> Continuation<'_> {
        match self.codes[entry] {
            LAYER => Continuation::Layer,
            SUFFIX => Continuation::Suffix(self.suffix(entry)),
            length => Continuation::Ends(length),
        }
    }
}

/// Builds a layer, and the layers below it, from keys in ascending order.
pub(crate) struct LayerBuilder<'t> {
    tree: &'t Tree,
    fill: FillFactor,
    /// The topmost layer that is built.
    first: usize,
    /// The open layers, the topmost first, and unused ones.
    open: Vec<OpenLayer>,
    /// Number of open layers.
    depth: usize,
    /// Number of keys added.
    pub entries: usize,
}

impl<'t> LayerBuilder<'t> {
    pub fn new(tree: &'t Tree, fill: FillFactor, first: usize) -> Self {
        LayerBuilder { tree, fill, first, open: vec![OpenLayer::new()], depth: 1, entries: 0 }
    }

    /// Adds a key. `before` and `after` are the numbers of layers that it shares with the previous and the next key.
    #[inline]
    pub fn add(&mut self, key: &[u8], word: u64, before: usize, after: usize) {
        let layer = before.max(after);
        while self.first + self.depth <= layer {
            let above = &mut self.open[self.depth - 1];
            above.below = Cursor::at_layer(key, self.first + self.depth - 1).slice();
            if self.open.len() == self.depth {
                self.open.push(OpenLayer::new());
            }
            self.depth += 1;
        }
        let cursor = Cursor::at_layer(key, layer);
        self.push(layer - self.first, cursor.slice(), Continuation::of(&cursor), word);
        self.entries += 1;
        while self.first + self.depth > after + 1 && self.depth > 1 {
            self.close_layer();
        }
    }

    /// Adds an entry for a layer that has been built before.
    ///
    /// # Safety
    /// The word is that of the root of a layer built for the same tree.
    pub unsafe fn add_layer(&mut self, slice: u64, root: u64) {
        self.push(0, slice, Continuation::Layer, root);
    }

    #[inline]
    fn push(&mut self, depth: usize, slice: u64, continuation: Continuation<'_>, word: u64) {
        let open = &mut self.open[depth];
        if open.count >= self.fill.entries && (open.slices[open.count - 1] != slice || open.count == WIDTH) {
            self.flush(depth, slice);
        }
        self.open[depth].push(slice, continuation, word);
    }

    /// Completes the deepest layer, which becomes an entry of the one above.
    fn close_layer(&mut self) {
        let root = self.finish_layer(self.depth - 1);
        self.depth -= 1;
        let slice = self.open[self.depth - 1].below;
        self.push(self.depth - 1, slice, Continuation::Layer, root);
    }

    /// Makes a node of the pending entries, except those with the next key's slice: entries of one slice stay together.
    fn flush(&mut self, depth: usize, next_slice: u64) {
        let open = &mut self.open[depth];
        let flushed = open.slices[..open.count].iter().take_while(|&&slice| slice != next_slice).count();
        assert!(flushed > 0, "a slice has at most ten entries");
        let longest = (0..flushed).map(|entry| open.suffix(entry).len()).max().unwrap_or(0);
        make_border(self.tree, open, flushed, BorderLayout::wide(longest), 0);
        // The others move to the front. They have no suffixes: of a slice's entries, only the last one can.
        assert_eq!(open.ends[open.count - 1], open.ends[flushed - 1], "suffixes before the last entry of a slice");
        for entry in flushed..open.count {
            open.slices[entry - flushed] = open.slices[entry];
            open.words[entry - flushed] = open.words[entry];
            open.codes[entry - flushed] = open.codes[entry];
            open.ends[entry - flushed] = 0;
        }
        open.suffixes.clear();
        open.count -= flushed;
        open.longest = 0;
    }

    /// Completes a layer with its last border node and the interior nodes, and empties it for reuse. Returns the root's
    /// word.
    fn finish_layer(&mut self, depth: usize) -> u64 {
        let open = &mut self.open[depth];
        if open.borders.is_empty() {
            let layout = BorderLayout::for_layer(open.count, open.longest);
            make_border(self.tree, open, open.count, layout, ROOT);
        } else if open.count > 0 {
            make_border(self.tree, open, open.count, BorderLayout::wide(open.longest), 0);
        }
        open.count = 0;
        open.suffixes.clear();
        open.longest = 0;
        // SAFETY: the border nodes have been made by this builder.
        let root = unsafe { interior_levels(self.tree, self.fill, &open.borders) };
        open.borders.clear();
        root
    }

    /// Completes the builder's part of the topmost layer. Returns its border nodes, none of them a root.
    pub fn finish(mut self) -> Borders {
        while self.depth > 1 {
            self.close_layer();
        }
        let open = &mut self.open[0];
        if open.count > 0 {
            make_border(self.tree, open, open.count, BorderLayout::wide(open.longest), 0);
        }
        std::mem::take(&mut open.borders)
    }

    /// Completes the topmost layer. Returns its root's word.
    pub fn finish_root(mut self) -> u64 {
        while self.depth > 1 {
            self.close_layer();
        }
        self.finish_layer(0)
    }
}

/// Makes a border node of the first `count` entries of an open layer and links it to the previous one.
fn make_border(tree: &Tree, open: &mut OpenLayer, count: usize, layout: BorderLayout, flags: u64) {
    assert!(
        0 < count && count <= open.count && count <= usize::from(layout.width),
        "{count} entries of {}",
        open.count
    );
    assert!(open.slices[..count].is_sorted(), "the keys of a bulk build ascend");
    let mut border = tree.new_border(flags, layout);
    if open.longest > layout.tail_bytes() {
        tree.presize_bag(&mut border, (0..count).map(|entry| open.suffix(entry).len()), count);
    }
    for entry in 0..count {
        // SAFETY: the word of an entry that leads to a layer is that of the root of a layer of this tree.
        unsafe { border.fill(entry, open.slices[entry], open.continuation(entry), open.words[entry]) };
    }
    border.set_permutation(Permutation::sorted(count));
    if let Some(&(_, previous)) = open.borders.last() {
        // SAFETY: the previous node belongs to this builder's unpublished layer.
        unsafe { link(previous, border.word()) };
    }
    open.borders.push((open.slices[0], border.word()));
}

/// Makes two border nodes neighbours.
///
/// # Safety
/// The words are those of border nodes of a tree that is being built, and no other thread uses them.
pub(crate) unsafe fn link(left: u64, right: u64) {
    // SAFETY: the caller's promise.
    let (left, right) = unsafe { (Node::from_word(left), Node::from_word(right)) };
    let (Node::Border(left), Node::Border(right)) = (left, right) else { unreachable!("neighbours are border nodes") };
    // SAFETY: the caller's promise.
    let mut left: Exclusive<Border<'_>> = unsafe { Exclusive::unpublished(left) };
    left.set_next(Some(right));
    right.set_previous(Some(left.node()), &left);
}

/// Builds interior nodes above a layer's border nodes, level by level. Returns the root's word.
///
/// # Safety
/// The words are those of border nodes of the tree, which is not published.
pub(crate) unsafe fn interior_levels(tree: &Tree, fill: FillFactor, borders: &[(u64, u64)]) -> u64 {
    assert!(!borders.is_empty() && borders.is_sorted_by(|one, other| one.0 < other.0), "border nodes ascend");
    let mut level: Option<Borders> = None;
    loop {
        let nodes = level.as_deref().unwrap_or(borders);
        if let [(_, word)] = nodes {
            // SAFETY: the word is that of a node of the tree.
            unsafe { Exclusive::unpublished(Node::from_word(*word)) }.make_root();
            return *word;
        }
        // As few parents as possible, with about equally many children.
        let parents = nodes.len().div_ceil(fill.children);
        let above = (0..parents).map(|parent| {
            let children = &nodes[super::parallel::part(nodes.len(), parent, parents)];
            let slices: Vec<u64> = children[1..].iter().map(|&(slice, _)| slice).collect();
            let words: Vec<u64> = children.iter().map(|&(_, word)| word).collect();
            // SAFETY: the children are nodes of this tree.
            let entries = unsafe { Entries::new(&slices, &words) };
            (children[0].0, tree.new_interior(0, &entries).word())
        });
        level = Some(above.collect());
    }
}
