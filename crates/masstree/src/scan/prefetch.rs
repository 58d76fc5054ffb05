//! Prefetching the border nodes that a scan comes to next, whose words are in their parents.
//!
//! This is only a hint: the parents are read without checking their versions. Nodes that have been split or unlinked
//! meanwhile are prefetched late or in vain.

use crate::descend::Ancestors;
use crate::node::{Interior, Node, WIDTH, prefetch_node};

/// Number of nodes prefetched ahead. Copying a node and returning its entries takes a third of the time of a memory
/// access.
const AHEAD: usize = 4;

#[derive(Clone, Copy)]
pub(super) struct SiblingPrefetch<'g> {
    /// The parent of the node prefetched last, and that node's position in it.
    parent: (Interior<'g>, usize),
    /// The parent's parent, and the parent's position in it.
    grandparent: Option<(Interior<'g>, usize)>,
    /// Moves of the scan since there was nothing left to prefetch.
    moves_without: usize,
}

impl<'g> SiblingPrefetch<'g> {
    /// Starts at the node for a slice, whose ancestors are given, and prefetches the nodes after it.
    pub fn start<const FORWARD: bool>(ancestors: Ancestors<'g>, slice: u64) -> Option<Self> {
        let position =
            |interior: Interior<'g>| (interior, interior.position(slice, interior.version().stable().count()));
        let mut siblings = SiblingPrefetch {
            parent: position(ancestors[0]?),
            grandparent: ancestors[1].map(position),
            moves_without: 0,
        };
        siblings.prefetch_parent::<FORWARD>();
        for _ in 0..AHEAD {
            siblings.prefetch_next::<FORWARD>();
        }
        Some(siblings)
    }

    /// Counts a move without a prefetch. Returns whether the scan has used up the nodes prefetched before.
    pub fn is_exhausted(&mut self) -> bool {
        self.moves_without += 1;
        self.moves_without > AHEAD
    }

    /// Prefetches one more node. Returns false if the next one is not known.
    #[inline]
    pub fn prefetch_next<const FORWARD: bool>(&mut self) -> bool {
        let word = advance::<FORWARD>(&mut self.parent);
        if word != 0 {
            prefetch_node(word);
            if self.parent.1 == WIDTH / 2 {
                self.prefetch_parent::<FORWARD>();
            }
            return true;
        }
        self.next_parent::<FORWARD>()
    }

    /// Prefetches the parent's neighbour.
    fn prefetch_parent<const FORWARD: bool>(&self) {
        if let Some(mut grandparent) = self.grandparent {
            let word = advance::<FORWARD>(&mut grandparent);
            if word != 0 {
                prefetch_node(word);
            }
        }
    }

    /// Moves to the parent's neighbour and prefetches its first child in the direction of the scan.
    fn next_parent<const FORWARD: bool>(&mut self) -> bool {
        let word = self.grandparent.as_mut().map_or(0, advance::<FORWARD>);
        if word == 0 {
            return false;
        }
        // SAFETY: the word was read from a node that was in the tree under this guard, see the module about interior
        // nodes.
        let Node::Interior(parent) = (unsafe { Node::from_word(word) }) else { return false };
        let position = if FORWARD { 0 } else { parent.version().stable().count() };
        self.parent = (parent, position);
        let word = parent.child(position);
        if word != 0 {
            prefetch_node(word);
        }
        word != 0
    }
}

/// Advances a position by one child. Returns the child's word; zero, without advancing, if there is none.
#[inline]
fn advance<const FORWARD: bool>((interior, position): &mut (Interior<'_>, usize)) -> u64 {
    let next = if FORWARD { *position + 1 } else { position.wrapping_sub(1) };
    let word = if next <= WIDTH { interior.child(next) } else { 0 };
    if word != 0 {
        *position = next;
    }
    word
}
