//! Exclusive write access to a node, as a type.
//!
//! Everything that changes a node is a method of [`Exclusive`]. A value of it proves that no other thread changes the
//! node: the current thread holds the node's lock, or the node is not published yet, so that no other thread can reach
//! it. Readers may read the node meanwhile, unless it is unpublished.
//!
//! Unlocking is explicit, because most changes end with several nodes that are unlocked in a certain order. A thread
//! that forgets to unlock blocks the writers of the node; memory safety does not depend on it. [`UnlockOnDrop`] keeps a
//! node locked across calls of the user's closures, which may panic.

use std::ops::Deref;

use super::version::{Version, VersionSnapshot};
use super::{Border, Interior, Node};

/// A handle of a node of any kind.
pub(crate) trait Handle: Copy {
    fn version(&self) -> &Version;

    /// The node's word, see [`Node::word`].
    fn word(&self) -> u64;
}

macro_rules! handle {
    ($($handle:ident),*) => {$(
        impl Handle for $handle<'_> {
            #[inline]
            fn version(&self) -> &Version {
                $handle::version(*self)
            }

            #[inline]
            fn word(&self) -> u64 {
                $handle::word(*self)
            }
        }
    )*};
}

handle!(Border, Interior, Node);

/// A node that only the current thread may change.
#[must_use = "a locked node must be unlocked"]
pub(crate) struct Exclusive<N>(N);

impl<N: Handle> Exclusive<N> {
    /// Locks a node. Waits for the thread that holds the lock.
    #[inline]
    pub fn lock(node: N) -> Self {
        node.version().lock();
        Exclusive(node)
    }

    /// # Safety
    /// No other thread can reach the node as long as the result is used.
    #[inline]
    pub unsafe fn unpublished(node: N) -> Self {
        Exclusive(node)
    }

    /// The handle, for links to a node that is built completely.
    #[inline]
    pub fn node(&self) -> N {
        self.0
    }

    /// The version of the node, which is locked.
    #[inline]
    pub fn locked_version(&self) -> VersionSnapshot {
        self.0.version().locked()
    }

    /// Marks the locked node, before it is changed such that readers of its current state could misread it.
    #[inline]
    pub fn mark(&mut self, mark: u64) {
        self.0.version().mark(mark);
    }

    /// Makes the unpublished node the root of its layer.
    pub fn make_root(&mut self) {
        self.0.version().make_root();
    }

    /// The locked and marked node is no longer the root of its layer.
    pub fn clear_root(&mut self) {
        self.0.version().clear_root();
    }

    pub(super) fn set_count(&mut self, count: usize) {
        self.0.version().set_count(count);
    }

    #[inline]
    pub fn unlock(self) {
        self.0.version().unlock();
    }

    /// Unlocks the node, which has left the tree: readers that reach it restart.
    pub fn unlock_deleted(self) -> N {
        self.0.version().unlock_deleted();
        self.0
    }
}

impl<'g> Exclusive<Border<'g>> {
    /// Forgets the kind of the node.
    #[inline]
    pub fn into_node(self) -> Exclusive<Node<'g>> {
        Exclusive(Node::Border(self.0))
    }
}

impl<'g> Exclusive<Interior<'g>> {
    /// Forgets the kind of the node.
    #[inline]
    pub fn into_node(self) -> Exclusive<Node<'g>> {
        Exclusive(Node::Interior(self.0))
    }
}

impl<N> Deref for Exclusive<N> {
    type Target = N;

    #[inline]
    fn deref(&self) -> &N {
        &self.0
    }
}

/// A locked border node that is unlocked when this is dropped.
pub(crate) struct UnlockOnDrop<'g>(Border<'g>);

impl<'g> UnlockOnDrop<'g> {
    #[inline]
    pub fn new(border: Exclusive<Border<'g>>) -> Self {
        UnlockOnDrop(border.0)
    }

    /// Gives the node back, still locked.
    #[inline]
    pub fn into_locked(self) -> Exclusive<Border<'g>> {
        let border = self.0;
        std::mem::forget(self);
        Exclusive(border)
    }
}

impl<'g> Deref for UnlockOnDrop<'g> {
    type Target = Border<'g>;

    #[inline]
    fn deref(&self) -> &Border<'g> {
        &self.0
    }
}

impl Drop for UnlockOnDrop<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.version().unlock();
    }
}
