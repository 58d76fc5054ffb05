//! Nodes: border nodes hold entries, interior nodes lead to them.
//!
//! A node is reached by a *word*: its address (a multiple of 64), with bit 0 set for border nodes, so that a descent knows
//! what it is going to read, and prefetches it, before the first byte of it has arrived. Handles ([`Border`], [`Interior`],
//! [`Node`]) stand for nodes that stay allocated during `'g`, the lifetime of an epoch guard or of exclusive access; that is
//! promised where a handle is made from a word, and makes everything else about them safe.

mod bag;
mod border;
mod copy;
mod interior;
mod permutation;
mod search;
mod version;
mod view;

pub(crate) use bag::Bag;
pub(crate) use border::{BAG, Border, LAYER, Lookup, Rest, Shape, rank};
pub(crate) use copy::{Copy, TAIL_BYTES};
pub(crate) use interior::{Entries, Interior};
pub(crate) use permutation::{Permutation, WIDTH};
pub(crate) use version::{INSERTING, ROOT, SPLITTING, Seen, Version};
pub(crate) use view::{BorderView, InteriorView, View, view};

const BORDER_TAG: u64 = 1;

/// A node of either kind.
#[derive(Clone, Copy)]
pub(crate) enum Node<'g> {
    Border(Border<'g>),
    Interior(Interior<'g>),
}

impl<'g> Node<'g> {
    /// # Safety
    /// The word comes from [`word`](Self::word) of a node that stays allocated during `'g`.
    #[inline]
    pub unsafe fn from_word(word: u64) -> Self {
        debug_assert_ne!(word, 0);
        // SAFETY: the tag tells the kind; liveness is the caller's promise.
        unsafe {
            if word & BORDER_TAG != 0 {
                Node::Border(Border::from_address(word & !BORDER_TAG))
            } else {
                Node::Interior(Interior::from_address(word))
            }
        }
    }

    #[inline]
    pub fn word(self) -> u64 {
        match self {
            Node::Border(border) => border.word(),
            Node::Interior(interior) => interior.word(),
        }
    }

    #[inline]
    pub fn version(self) -> &'g Version {
        match self {
            Node::Border(border) => border.version(),
            Node::Interior(interior) => interior.version(),
        }
    }
}

/// Asks for the lines of the node behind a word, whatever it is.
#[inline]
pub(crate) fn prefetch_node(word: u64) {
    let lines = if word & BORDER_TAG != 0 { 6 } else { 4 };
    for line in 0..lines {
        prefetch((word & !BORDER_TAG) + 64 * line);
    }
}

/// Asks for a cache line; any address is fine.
#[inline]
pub(crate) fn prefetch(address: u64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on caches, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch(address as *const i8, _MM_HINT_T0);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
