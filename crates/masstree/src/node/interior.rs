//! Interior nodes: up to 15 key slices and 16 children, in 256 bytes.
//!
//! ```text
//!   0  version (with the number of keys)
//!   8  slice × 15, ascending; unused ones are all ones
//! 128  child word × 16
//! ```
//!
//! Child i+1 holds the slices from slice i on. Entries are shifted in place, under the lock and a mark: readers who meet
//! that read again. A child word at or below the count a reader has seen is that of a node that was a child when the
//! reader looked or later, hence still allocated while the reader's guard lasts.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::permutation::WIDTH;
use super::search;
use super::version::{Seen, Version};
use crate::sync::{Acquire, AtomicU64, Relaxed, Release};

#[repr(C, align(64))]
struct Layout {
    version: Version,
    slices: [AtomicU64; WIDTH],
    children: [AtomicU64; WIDTH + 1],
}

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

    /// A node with the given flags in its version, in fresh memory.
    ///
    /// # Safety
    /// `memory` has [`BYTES`](Self::BYTES) bytes, 64-byte aligned, that stay allocated during `'g`, and nobody else has it.
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
        // The version, then the slices, which ascend. Unused ones count only for the highest slice of all, for which the used
        // ones count too.
        // SAFETY: the version and the fifteen slices are sixteen words in this order, allocated and initialised during 'g, and
        // only ever used as atomics.
        let words = unsafe { self.node.cast::<[AtomicU64; WIDTH + 1]>().as_ref() };
        let below = (search::at_most(words, slice) >> 1).trailing_ones() as usize;
        below.min(count)
    }

    /// The child word for a slice. Zero only if the node is being changed.
    #[inline]
    pub fn child_for(self, slice: u64, seen: Seen) -> u64 {
        self.child(self.position(slice, seen.count()))
    }

    #[inline]
    pub fn child(self, position: usize) -> u64 {
        self.layout().children[position & WIDTH].load(Acquire)
    }

    pub fn slice(self, position: usize) -> u64 {
        self.layout().slices[position].load(Relaxed)
    }

    /// Adds a key and the child to its right; the node is locked, marked, and not full.
    pub fn insert(self, slice: u64, child: u64) {
        let count = self.version().own().count();
        let layout = self.layout();
        let position = self.position(slice, count);
        for i in (position..count).rev() {
            layout.slices[i + 1].store(layout.slices[i].load(Relaxed), Relaxed);
            layout.children[i + 2].store(layout.children[i + 1].load(Relaxed), Release);
        }
        layout.slices[position].store(slice, Relaxed);
        layout.children[position + 1].store(child, Release);
        self.version().set_count(count + 1);
    }

    /// Removes the child at `position` and a key beside it; the node is locked, marked, and has a key.
    pub fn remove(self, position: usize) {
        let count = self.version().own().count();
        let layout = self.layout();
        for i in position.saturating_sub(1)..count - 1 {
            layout.slices[i].store(layout.slices[i + 1].load(Relaxed), Relaxed);
        }
        for i in position..count {
            layout.children[i].store(layout.children[i + 1].load(Relaxed), Release);
        }
        layout.slices[count - 1].store(u64::MAX, Relaxed);
        layout.children[count].store(0, Release);
        self.version().set_count(count - 1);
    }

    /// The keys and children of a full, locked node with one more of each.
    pub fn entries_with(self, slice: u64, child: u64) -> ([u64; WIDTH + 1], [u64; WIDTH + 2]) {
        let layout = self.layout();
        let position = self.position(slice, WIDTH);
        let mut slices = [slice; WIDTH + 1];
        let mut children = [child; WIDTH + 2];
        for i in 0..WIDTH {
            slices[i + usize::from(i >= position)] = layout.slices[i].load(Relaxed);
        }
        for i in 0..=WIDTH {
            children[i + usize::from(i > position)] = layout.children[i].load(Relaxed);
        }
        (slices, children)
    }

    /// Replaces what is in a locked and marked node.
    pub fn assign(self, entries: &Entries) {
        let layout = self.layout();
        for i in 0..WIDTH {
            layout.slices[i].store(if i < entries.count { entries.slices[i] } else { u64::MAX }, Relaxed);
        }
        for i in 0..=WIDTH {
            layout.children[i].store(if i <= entries.count { entries.children[i] } else { 0 }, Release);
        }
        self.version().set_count(entries.count);
    }
}

/// Keys and children of an interior node to be.
pub(crate) struct Entries {
    pub count: usize,
    pub slices: [u64; WIDTH],
    pub children: [u64; WIDTH + 1],
}

impl Entries {
    /// From `n` keys and `n + 1` children.
    pub fn new(slices: &[u64], children: &[u64]) -> Self {
        debug_assert!(slices.len() + 1 == children.len() && slices.len() <= WIDTH);
        let mut entries = Entries { count: slices.len(), slices: [0; WIDTH], children: [0; WIDTH + 1] };
        entries.slices[..slices.len()].copy_from_slice(slices);
        entries.children[..children.len()].copy_from_slice(children);
        entries
    }
}
