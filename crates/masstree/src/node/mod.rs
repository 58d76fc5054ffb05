//! Nodes: border nodes hold entries, interior nodes lead to them.
//!
//! A *word* identifies a node: its address, a multiple of 64, with bit 0 set for border nodes. A descent can therefore
//! prefetch all of the next node before the first of its bytes has arrived.
//!
//! Handles ([`Border`], [`Interior`], [`Node`]) stand for nodes that stay allocated during `'g`, the lifetime of an
//! epoch guard or of exclusive access to the tree. Making a handle from a word is unsafe; reading through a handle is
//! not. A handle that has write access is an [`Exclusive`].
//!
//! Invariant: every word stored in a node or in the tree is that of a node (or of a user's value). The node stays
//! allocated until it has been unlinked and the guards of that time are gone, see [`crate::retire`].

mod bag;
mod border;
mod copy;
mod exclusive;
mod interior;
mod permutation;
mod search;
mod version;
mod view;

use keyaki_primitives::{CACHE_LINE_BYTES, prefetch};

pub(crate) use bag::Bag;
pub(crate) use border::{BAG, Border, BorderLayout, Continuation, LAYER, Lookup, TAIL_BYTES_MAX, rank};
pub(crate) use copy::BorderCopy;
pub(crate) use exclusive::{Exclusive, Handle, UnlockOnDrop};
pub(crate) use interior::{Entries, Interior};
pub(crate) use permutation::{Permutation, WIDTH};
pub(crate) use version::{INSERTING, ROOT, SPLITTING, Version, VersionSnapshot};
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
        // SAFETY: the tag tells the kinds apart; the node is allocated during 'g by the caller's promise.
        unsafe {
            if word & BORDER_TAG != 0 {
                Node::Border(Border::from_address(word & !BORDER_TAG))
            } else {
                Node::Interior(Interior::from_address(word))
            }
        }
    }

    /// The node's address and kind as a number that is not zero.
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

/// Cache lines of a border node that are prefetched: all of a full-width node with one word of tail.
const BORDER_LINES: u64 = 6;
const INTERIOR_LINES: u64 = (Interior::BYTES / CACHE_LINE_BYTES) as u64;

/// Prefetches the node behind a word. Any word is allowed.
#[inline]
pub(crate) fn prefetch_node(word: u64) {
    let lines = if word & BORDER_TAG != 0 { BORDER_LINES } else { INTERIOR_LINES };
    for line in 0..lines {
        let address = (word & !BORDER_TAG).wrapping_add(CACHE_LINE_BYTES as u64 * line);
        prefetch(std::ptr::without_provenance::<u8>(address as usize));
    }
}
