//! The trie of B+-trees over words: the part of the map that does not depend on the type of its values.
//!
//! Values are opaque words here. [`crate::Masstree`] guarantees that each is the word of a value of its type, and that
//! `drop_word` drops such values.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use keyaki_primitives::CACHE_LINE_BYTES;

use crate::arena::{Arena, Charge};
use crate::guard::Guard;
use crate::node::{
    Bag, Border, BorderLayout, Continuation, Entries, Exclusive, Interior, LAYER, Node, Permutation, ROOT,
};
use crate::retire::{DropWord, Retired};
use crate::sync::{Acquire, AtomicU64, Relaxed, Release, STRIPES, stripe};

/// Room for suffixes in the first node of a map, whose keys are not known yet, in bytes.
const FIRST_SUFFIX_BYTES: usize = 4;

pub(crate) struct Tree {
    /// Word of the root of the first layer. It is changed by the thread that holds the old root's lock.
    root: AtomicU64,
    retired: Retired,
    drop_word: Option<DropWord>,
    /// Numbers of keys inserted less those removed, by the stripe of the thread, modulo 2^64.
    counts: [CachePadded<std::sync::atomic::AtomicU64>; STRIPES],
    /// Dropped after `retired`, which holds blocks of it.
    pub arena: Arc<Arena>,
}

impl Tree {
    /// An empty tree.
    pub fn new(drop_word: Option<DropWord>, charge: Option<Charge>) -> Self {
        let arena = Arc::new(Arena::new(charge));
        let tree = Tree {
            root: AtomicU64::new(0),
            retired: Retired::new(&arena, drop_word),
            drop_word,
            counts: std::array::from_fn(|_| CachePadded::default()),
            arena,
        };
        let root = tree.new_border(ROOT, BorderLayout::wide(FIRST_SUFFIX_BYTES));
        tree.root.store(root.word(), Release);
        tree
    }

    #[inline]
    pub fn root<'g>(&self, _: &'g Guard) -> Node<'g> {
        // SAFETY: a root is retired after it has been replaced here, and the guard keeps it allocated.
        unsafe { Node::from_word(self.root_word()) }
    }

    #[inline]
    pub fn root_word(&self) -> u64 {
        self.root.load(Acquire)
    }

    /// Replaces the root of the first layer, which is locked.
    pub fn set_root(&self, old: &Exclusive<Node<'_>>, new: Node<'_>) {
        assert_eq!(self.root_word(), old.word(), "the locked node is the root");
        self.root.store(new.word(), Release);
    }

    /// Replaces the empty root of a new tree by the root of a bulk build.
    ///
    /// # Safety
    /// The word is that of a root built for this tree. The tree has been empty since it was made.
    pub unsafe fn set_built_root(&mut self, word: u64) {
        // SAFETY: `&mut self` excludes other threads.
        let old = unsafe { Node::from_word(self.root_word()) };
        self.root.store(word, Release);
        if let Node::Border(border) = old {
            assert_eq!(border.permutation().count(), 0, "the tree is empty");
            // SAFETY: nothing refers to the old root any more; it has no bag.
            unsafe { self.arena.free(border.memory(), border.layout().bytes()) };
        }
    }

    /// Number of keys, exact if no other thread is writing.
    pub fn len(&self) -> usize {
        self.counts.iter().fold(0u64, |sum, count| sum.wrapping_add(count.load(Relaxed))) as usize
    }

    #[inline]
    pub fn count(&self, change: i64) {
        self.counts[stripe()].fetch_add(change as u64, Relaxed);
    }

    /// Hands all retired memory to the collector and lets it run.
    pub fn flush(&self, guard: &Guard) {
        self.retired.flush(guard);
        guard.flush();
    }

    /// Makes an empty border node, which is not published.
    pub fn new_border(&self, flags: u64, layout: BorderLayout) -> Exclusive<Border<'_>> {
        let memory = self.arena.allocate(layout.bytes());
        // SAFETY: fresh memory of that size. It is freed only after the node has been unlinked and retired.
        unsafe { Exclusive::unpublished(Border::create(memory, flags, layout)) }
    }

    /// Makes an interior node, which is not published.
    pub fn new_interior(&self, flags: u64, entries: &Entries) -> Exclusive<Interior<'_>> {
        let memory = self.arena.allocate(Interior::BYTES);
        // SAFETY: as for border nodes.
        unsafe { Exclusive::unpublished(Interior::create(memory, flags, entries)) }
    }

    /// Makes an empty bag with room for `bytes` bytes of suffixes and their lengths.
    pub fn new_bag(&self, bytes: usize) -> Bag<'_> {
        let total = (Bag::EMPTY_BYTES + bytes).next_multiple_of(CACHE_LINE_BYTES);
        let memory = self.arena.allocate(total);
        // SAFETY: fresh memory of that size. It is freed only after the bag has been replaced and retired.
        unsafe { Bag::create(memory, total) }
    }

    /// Makes layers of one entry each above the root of a layer, for the first `layers` slices of a key. Returns the
    /// topmost root; nothing is published.
    pub fn wrap<'t>(&'t self, key: &[u8], layers: usize, root: Node<'t>) -> Node<'t> {
        (0..layers).rev().fold(root, |below, layer| {
            let mut border = self.new_border(ROOT, BorderLayout::for_layer(1, 0));
            let slice = crate::key::slice_at(key, 8 * layer);
            // SAFETY: the node below becomes part of the tree together with this one.
            unsafe { border.fill(0, slice, Continuation::Layer, below.word()) };
            border.set_permutation(Permutation::sorted(1));
            Node::Border(border.node())
        })
    }

    /// Retires a bag.
    ///
    /// # Safety
    /// The bag has been replaced in its node, or its node has been unlinked. It is retired once.
    pub unsafe fn retire_bag(&self, bag: Bag<'_>, guard: &Guard) {
        // SAFETY: the caller's promise.
        unsafe { self.retired.block(bag.memory(), bag.bytes(), guard) };
    }

    /// Retires a node with its bag, but not its values.
    ///
    /// # Safety
    /// The node has been unlinked: nothing in the tree refers to it any more. It is retired once.
    pub unsafe fn retire_node(&self, node: Node<'_>, guard: &Guard) {
        let (memory, bytes) = match node {
            Node::Interior(interior) => (interior.memory(), Interior::BYTES),
            Node::Border(border) => {
                if let Some(bag) = border.bag() {
                    // SAFETY: the node has been unlinked.
                    unsafe { self.retire_bag(bag, guard) };
                }
                (border.memory(), border.layout().bytes())
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.retired.block(memory, bytes, guard) };
    }

    /// Retires a value that has been replaced or removed.
    ///
    /// # Safety
    /// Nothing in the tree holds the word any more, and it is retired once.
    #[inline]
    pub unsafe fn retire_value(&self, word: u64, guard: &Guard) {
        // SAFETY: the caller's promise.
        unsafe { self.retired.word(word, guard) };
    }

    /// Calls `visit` with every node.
    fn visit_nodes(&mut self, mut visit: impl FnMut(Node<'_>)) {
        let mut pending = vec![self.root_word()];
        while let Some(word) = pending.pop() {
            // SAFETY: `&mut self` excludes writers: every word in the tree is that of a node.
            let node = unsafe { Node::from_word(word) };
            visit(node);
            match node {
                Node::Interior(interior) => {
                    let count = interior.version().stable().count();
                    pending.extend((0..=count).rev().map(|position| interior.child(position)));
                }
                Node::Border(border) => {
                    let layers = border.permutation().slots().filter(|&slot| border.code(slot) == LAYER);
                    pending.extend(layers.map(|slot| border.value(slot)));
                }
            }
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let Some(drop_word) = self.drop_word else {
            return;
        };
        self.visit_nodes(|node| {
            if let Node::Border(border) = node {
                for slot in border.permutation().slots().filter(|&slot| border.code(slot) != LAYER) {
                    // SAFETY: the tree owns its values, and no other thread can see it any more.
                    unsafe { drop_word(border.value(slot)) };
                }
            }
        });
    }
}
