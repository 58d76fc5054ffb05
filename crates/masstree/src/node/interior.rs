//! Interior nodes: up to 15 key slices and 16 children, in 256 bytes.
//!
//! ```text
//!   0  version (with the number of keys)
//!   8  slice × 15, ascending; unused ones are all ones
//! 128  child word × 16
//! ```
//!
//! Child i+1 holds the slices from slice i on. A writer shifts entries in place, under the lock and a mark; a reader
//! that observes this reads the node again.
//!
//! Invariant: a child word at a position up to the count that a reader has observed belongs to a node that was a child
//! when the reader took the version, or later. It therefore stays allocated while the reader's guard lasts.

use std::marker::PhantomData;
use std::ptr::NonNull;

use keyaki_primitives::CACHE_LINE_BYTES;

use super::exclusive::Exclusive;
use super::permutation::WIDTH;
use super::version::{Version, VersionSnapshot};
use super::{Node, search};
use crate::sync::{Acquire, AtomicU64, Relaxed, Release};

#[repr(C, align(64))]
struct Layout {
    version: Version,
    slices: [AtomicU64; WIDTH],
    children: [AtomicU64; WIDTH + 1],
}

const _: () = assert!(size_of::<Layout>() == 4 * CACHE_LINE_BYTES && align_of::<Layout>() == CACHE_LINE_BYTES);
const _: () = assert!(std::mem::offset_of!(Layout, children) == 2 * CACHE_LINE_BYTES);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interior<'g> {
    node: NonNull<Layout>,
    lifetime: PhantomData<&'g Layout>,
}

impl<'g> Interior<'g> {
    pub const BYTES: usize = size_of::<Layout>();

    /// # Safety
    /// The address is that of an interior node that stays allocated during `'g`.
    #[inline]
    pub unsafe fn from_address(address: u64) -> Self {
        // SAFETY: addresses of nodes are not zero.
        let node = unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address as usize)) };
        Interior { node, lifetime: PhantomData }
    }

    /// Makes a node with the given flags in its version.
    ///
    /// # Safety
    /// `memory` has [`BYTES`](Self::BYTES) bytes, aligned to 64, that stay allocated during `'g`, and no other thread
    /// uses it.
    pub unsafe fn create(memory: NonNull<u8>, flags: u64, entries: &Entries) -> Self {
        let count = entries.count;
        let slices = std::array::from_fn(|i| AtomicU64::new(if i < count { entries.slices[i] } else { u64::MAX }));
        let children = std::array::from_fn(|i| AtomicU64::new(if i <= count { entries.children[i] } else { 0 }));
        let layout = Layout { version: Version::new(flags, count), slices, children };
        let node = memory.cast::<Layout>();
        // SAFETY: the caller gives suitable memory.
        unsafe { node.write(layout) };
        node.as_ptr().expose_provenance();
        Interior { node, lifetime: PhantomData }
    }

    #[inline]
    fn layout(self) -> &'g Layout {
        // SAFETY: the node is allocated and initialised during 'g; all its fields are atomics.
        unsafe { &*self.node.as_ptr() }
    }

    pub fn memory(self) -> NonNull<u8> {
        self.node.cast()
    }

    #[inline]
    pub fn word(self) -> u64 {
        self.node.as_ptr().addr() as u64
    }

    #[inline]
    pub fn version(self) -> &'g Version {
        &self.layout().version
    }

    /// The position of the child for a slice, in a node of `count` keys.
    #[inline]
    pub fn position(self, slice: u64, count: usize) -> usize {
        // The version and the ascending slices are compared together, and the version's bit is dropped. Unused slices
        // are all ones: they are at most the search slice only if it is all ones too, and then all used slices are
        // counted. SAFETY: the version and the fifteen slices are sixteen words in this order, allocated and
        // initialised during 'g, and only ever used as atomics.
        let words = unsafe { self.node.cast::<[AtomicU64; WIDTH + 1]>().as_ref() };
        let at_most = (search::at_most(words, slice) >> 1).trailing_ones() as usize;
        at_most.min(count)
    }

    /// The child word for a slice. It is zero only while the node is being changed.
    #[inline]
    pub fn child_for(self, slice: u64, observed: VersionSnapshot) -> u64 {
        self.child(self.position(slice, observed.count()))
    }

    #[inline]
    pub fn child(self, position: usize) -> u64 {
        self.layout().children[position & WIDTH].load(Acquire)
    }

    pub fn slice(self, position: usize) -> u64 {
        self.layout().slices[position].load(Relaxed)
    }
}

impl Exclusive<Interior<'_>> {
    /// Adds a key and the child to its right. The node is locked, marked and not full.
    pub fn insert(&mut self, slice: u64, child: Node<'_>) {
        let count = self.locked_version().count();
        assert!(count < WIDTH, "an interior node is full");
        let layout = self.layout();
        let position = self.position(slice, count);
        for i in (position..count).rev() {
            layout.slices[i + 1].store(layout.slices[i].load(Relaxed), Relaxed);
            layout.children[i + 2].store(layout.children[i + 1].load(Relaxed), Release);
        }
        layout.slices[position].store(slice, Relaxed);
        layout.children[position + 1].store(child.word(), Release);
        self.set_count(count + 1);
    }

    /// Removes the child at `position` and the key beside it. The node is locked, marked and has a key.
    pub fn remove(&mut self, position: usize) {
        let count = self.locked_version().count();
        assert!(0 < count && position <= count, "child {position} of an interior node with {count} keys");
        let layout = self.layout();
        for i in position.saturating_sub(1)..count - 1 {
            layout.slices[i].store(layout.slices[i + 1].load(Relaxed), Relaxed);
        }
        for i in position..count {
            layout.children[i].store(layout.children[i + 1].load(Relaxed), Release);
        }
        layout.slices[count - 1].store(u64::MAX, Relaxed);
        layout.children[count].store(0, Release);
        self.set_count(count - 1);
    }

    /// The keys and children of the full node, with one more of each.
    pub fn entries_with(&self, slice: u64, child: Node<'_>) -> ([u64; WIDTH + 1], [u64; WIDTH + 2]) {
        assert_eq!(self.locked_version().count(), WIDTH, "an interior node is split when it is full");
        let layout = self.layout();
        let position = self.position(slice, WIDTH);
        let mut slices = [slice; WIDTH + 1];
        let mut children = [child.word(); WIDTH + 2];
        for i in 0..WIDTH {
            slices[i + usize::from(i >= position)] = layout.slices[i].load(Relaxed);
        }
        for i in 0..=WIDTH {
            children[i + usize::from(i > position)] = layout.children[i].load(Relaxed);
        }
        (slices, children)
    }

    /// Replaces the entries of the node, which is locked and marked.
    pub fn assign(&mut self, entries: &Entries) {
        let layout = self.layout();
        for i in 0..WIDTH {
            layout.slices[i].store(if i < entries.count { entries.slices[i] } else { u64::MAX }, Relaxed);
        }
        for i in 0..=WIDTH {
            layout.children[i].store(if i <= entries.count { entries.children[i] } else { 0 }, Release);
        }
        self.set_count(entries.count);
    }
}

/// The keys and children of an interior node that is about to be made or changed.
pub(crate) struct Entries {
    count: usize,
    slices: [u64; WIDTH],
    children: [u64; WIDTH + 1],
}

impl Entries {
    /// From `n` ascending slices and the words of `n + 1` children.
    ///
    /// # Safety
    /// The words are those of nodes that stay allocated as long as a node holds them.
    pub unsafe fn new(slices: &[u64], children: &[u64]) -> Self {
        assert!(slices.len() + 1 == children.len() && slices.len() <= WIDTH);
        assert!(slices.is_sorted_by(|one, other| one < other), "the keys of an interior node ascend");
        let mut entries = Entries { count: slices.len(), slices: [0; WIDTH], children: [0; WIDTH + 1] };
        entries.slices[..slices.len()].copy_from_slice(slices);
        entries.children[..children.len()].copy_from_slice(children);
        entries
    }
}
