//! The trie of B+-trees, holding words: everything that does not depend on the type of values.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::arena::{Arena, Charge};
use crate::guard::Guard;
use crate::node::{Bag, Border, Entries, Interior, Node, ROOT, Shape};
use crate::retire::{DropWord, Retired};
use crate::sync::{Acquire, AtomicU64, Relaxed, Release, STRIPES, stripe};

pub(crate) struct Tree {
    /// Word of the root of the first layer. Changed by the holder of the old root's lock.
    root: AtomicU64,
    retired: Retired,
    drop_word: Option<DropWord>,
    /// Keys, each stripe's part modulo 2^64.
    counts: [CachePadded<std::sync::atomic::AtomicU64>; STRIPES],
    // Last: blocks that wait in `retired` lie in it.
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
        // The first node does not know its keys yet: a word of tail.
        let root = tree.new_border(ROOT, Shape::wide(4));
        tree.set_root(root.word());
        tree
    }

    #[inline]
    pub fn root<'g>(&self, _: &'g Guard) -> Node<'g> {
        // SAFETY: a root is retired after it has been replaced here, and the guard keeps it from being freed.
        unsafe { Node::from_word(self.root_word()) }
    }

    #[inline]
    pub fn root_word(&self) -> u64 {
        self.root.load(Acquire)
    }

    /// The caller holds the old root's lock, or the tree is not shared yet.
    pub fn set_root(&self, word: u64) {
        self.root.store(word, Release);
    }

    /// Puts a built tree in the place of the empty root of a tree that is not shared yet.
    pub fn exchange_root(&self, word: u64) {
        // SAFETY: the old root is ours, and nobody else has seen it.
        let old = unsafe { Node::from_word(self.root_word()) };
        self.set_root(word);
        if let Node::Border(border) = old {
            // SAFETY: as above; it has no bag.
            unsafe { self.arena.free(border.memory(), border.shape().bytes()) };
        }
    }

    /// Keys, exactly if nobody is writing.
    pub fn len(&self) -> usize {
        self.counts.iter().fold(0u64, |sum, count| sum.wrapping_add(count.load(Relaxed))) as usize
    }

    #[inline]
    pub fn count(&self, change: i64) {
        self.counts[stripe()].fetch_add(change as u64, Relaxed);
    }

    pub fn flush(&self, guard: &Guard) {
        self.retired.flush(guard);
        guard.flush();
    }

    pub fn new_border<'g>(&self, flags: u64, shape: Shape) -> Border<'g> {
        let memory = self.arena.allocate(shape.bytes());
        // SAFETY: fresh memory of that size; it is freed only after having been unlinked and retired.
        unsafe { Border::create(memory, flags, shape) }
    }

    pub fn new_interior<'g>(&self, flags: u64, entries: &Entries) -> Interior<'g> {
        let memory = self.arena.allocate(Interior::BYTES);
        // SAFETY: as for border nodes.
        unsafe { Interior::create(memory, flags, entries) }
    }

    /// An empty bag with room for `bytes` bytes of suffixes and their lengths.
    pub fn new_bag<'g>(&self, bytes: usize) -> Bag<'g> {
        let total = (Bag::EMPTY_BYTES + bytes).next_multiple_of(64);
        let memory = self.arena.allocate(total);
        // SAFETY: fresh memory of that size; it is freed only after having been replaced and retired.
        unsafe { Bag::create(memory, total) }
    }

    pub fn retire_bag(&self, bag: Bag<'_>, guard: &Guard) {
        // SAFETY: the caller has replaced the bag in its node, or retires the node.
        unsafe { self.retired.block(bag.memory(), bag.bytes(), guard) };
    }

    /// Retires a node that has been unlinked, with its bag. The values are moved or retired by the caller.
    pub fn retire_node(&self, node: Node<'_>, guard: &Guard) {
        let (memory, bytes) = match node {
            Node::Interior(interior) => (interior.memory(), Interior::BYTES),
            Node::Border(border) => {
                if let Some(bag) = border.bag() {
                    self.retire_bag(bag, guard);
                }
                (border.memory(), border.shape().bytes())
            }
        };
        // SAFETY: nothing leads to the node any more, says the caller.
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

    /// Calls `visit` with every node; nobody writes meanwhile.
    pub fn visit_nodes(&self, mut visit: impl FnMut(Node<'_>)) {
        let mut pending = vec![self.root_word()];
        while let Some(word) = pending.pop() {
            // SAFETY: nobody writes, says the caller: every word in the tree is that of a node.
            let node = unsafe { Node::from_word(word) };
            visit(node);
            match node {
                Node::Interior(interior) => {
                    let count = interior.version().stable().count();
                    pending.extend((0..=count).rev().map(|position| interior.child(position)));
                }
                Node::Border(border) => {
                    let layers = border.permutation().slots().filter(|&slot| border.code(slot) == crate::node::LAYER);
                    pending.extend(layers.map(|slot| border.value(slot).load(Acquire)));
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
                for slot in border.permutation().slots().filter(|&slot| border.code(slot) != crate::node::LAYER) {
                    // SAFETY: the tree owns the values it holds, and nobody else can see it any more.
                    unsafe { drop_word(border.value(slot).load(Relaxed)) };
                }
            }
        });
    }
}
