//! Which border nodes a walk comes to next, as their parents tell: they are asked for before the walk is there.
//!
//! It is only a hint: what has been split or unlinked meanwhile is asked for late, or for nothing.

use crate::descend::Ancestors;
use crate::node::{Interior, Node, WIDTH, prefetch_node};

/// Nodes that are asked for ahead: copying one and giving its entries takes a third of the time that memory needs to deliver it.
const AHEAD: usize = 4;

#[derive(Clone, Copy)]
pub(super) struct Siblings<'g> {
    /// The parent of what was asked for last, and where that is.
    parent: (Interior<'g>, usize),
    /// The parent's parent, and where the parent is in it.
    above: Option<(Interior<'g>, usize)>,
    /// Moves since there was nothing to ask for.
    beyond: usize,
}

impl<'g> Siblings<'g> {
    /// Asks for the nodes after the one for a slice, whose ancestors are given.
    pub fn find<const FORWARD: bool>(ancestors: Ancestors<'g>, slice: u64) -> Option<Self> {
        let place = |interior: Interior<'g>| (interior, interior.position(slice, interior.version().stable().count()));
        let mut siblings = Siblings { parent: place(ancestors[0]?), above: ancestors[1].map(place), beyond: 0 };
        siblings.prefetch_parent::<FORWARD>();
        for _ in 0..AHEAD {
            siblings.prefetch_next::<FORWARD>();
        }
        Some(siblings)
    }

    /// Whether the walk has come to where nothing was asked for.
    pub fn is_far(&mut self) -> bool {
        self.beyond += 1;
        self.beyond > AHEAD
    }

    /// Asks for one more of the nodes to come. False if it is not known.
    #[inline]
    pub fn prefetch_next<const FORWARD: bool>(&mut self) -> bool {
        let word = beside::<FORWARD>(&mut self.parent);
        if word != 0 {
            prefetch_node(word);
            if self.parent.1 == WIDTH / 2 {
                self.prefetch_parent::<FORWARD>();
            }
            return true;
        }
        self.next_parent::<FORWARD>()
    }

    /// Asks for the parent's neighbour.
    fn prefetch_parent<const FORWARD: bool>(&self) {
        if let Some(mut above) = self.above {
            let word = beside::<FORWARD>(&mut above);
            if word != 0 {
                prefetch_node(word);
            }
        }
    }

    /// Goes on with the children of the parent's neighbour.
    fn next_parent<const FORWARD: bool>(&mut self) -> bool {
        let word = self.above.as_mut().map_or(0, beside::<FORWARD>);
        if word == 0 {
            return false;
        }
        // SAFETY: a child word read from a node that was in the tree under this guard, see the module about interior nodes.
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

/// The child beside the one at the place, which becomes the place; zero if there is none.
#[inline]
fn beside<const FORWARD: bool>((interior, position): &mut (Interior<'_>, usize)) -> u64 {
    let next = if FORWARD { *position + 1 } else { position.wrapping_sub(1) };
    let word = if next <= WIDTH { interior.child(next) } else { 0 };
    if word != 0 {
        *position = next;
    }
    word
}
