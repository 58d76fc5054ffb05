//! Conflicts between a transaction and the commits that it does not see.
//!
//! Messages in buffers have the sequence numbers of their commits, so a conflict check looks up keys in the buffers of
//! the current state. Flushed messages have no sequence numbers any more: while transactions are active, the flushed
//! buffers are kept here. Commits outside of transactions record nothing.
//!
//! ```text
//! base of a transaction ──── flush ──────── bulk load ───── check
//!                            kept buffers   any key         buffers of the state
//! ```
//!
//! *Invariant.* For each active transaction with base b, every message newer than b is in a buffer of the current state
//! or in [`Kept`]: a flush adds its buffers here before it removes them from the state, and a transaction registers its
//! base under the same lock. A flush before the registration has only messages that the base sees.

use std::collections::BTreeMap;
use std::sync::Arc;

use keyaki_primitives::sync::Mutex;

use crate::base::{Error, Key, KeyRange, Result, TreeId};
use crate::buffer::RootBuffer;
use crate::tree::{Snapshot, StoreVersion};

/// The kept buffers take at most this many times the budget of all root buffers.
const KEPT_BUDGETS: usize = 2;

/// The active transactions.
#[derive(Debug, Default)]
pub(crate) struct Transactions(Mutex<Active>);

#[derive(Debug, Default)]
struct Active {
    /// The bases of active transactions, with the number of transactions of each.
    bases: BTreeMap<u64, usize>,
    /// Ascending by `newest`.
    kept: Vec<Kept>,
}

/// Changes to a tree that are no longer in the buffers of the state.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    tree: TreeId,
    /// Upper bound on the sequence numbers of the changes.
    newest: u64,
    /// The changes; `None` if any key may have changed.
    buffer: Option<Arc<RootBuffer>>,
}

impl Transactions {
    /// Registers a transaction with the snapshot that `base` takes under the lock.
    pub fn enter(&self, base: impl FnOnce() -> Snapshot) -> Snapshot {
        let mut active = self.0.lock();
        let base = base();
        *active.bases.entry(base.sequence).or_default() += 1;
        base
    }

    /// Ends a transaction with this base, and frees what no other transaction needs. The bases of later transactions are at
    /// least `visible`.
    pub fn leave(&self, base: u64, visible: u64) {
        let mut freed = Vec::new();
        let mut active = self.0.lock();
        let Some(count) = active.bases.get_mut(&base) else { unreachable!("an active transaction is registered") };
        *count -= 1;
        if *count == 0 {
            active.bases.remove(&base);
        }
        let oldest = active.bases.first_key_value().map_or(visible, |(&oldest, _)| oldest);
        freed.extend(active.kept.extract_if(.., |kept| kept.newest <= oldest));
        // The buffers are freed without the lock.
        drop(active);
    }

    /// Keeps buffers that leave the state. All their messages have sequence numbers of at most `newest`.
    pub fn flushed(&self, tree: TreeId, buffers: &[Arc<RootBuffer>], newest: u64, budget: usize) {
        let mut active = self.0.lock();
        if active.bases.is_empty() {
            return;
        }
        active.kept.extend(buffers.iter().map(|buffer| Kept { tree, newest, buffer: Some(buffer.clone()) }));
        let mut excess = active.bytes().saturating_sub(KEPT_BUDGETS * budget);
        for kept in &mut active.kept {
            if excess == 0 {
                break;
            }
            // Older transactions that touch the tree will fail, rather than memory be exhausted.
            excess = excess.saturating_sub(kept.buffer.take().map_or(0, |buffer| buffer.bytes()));
        }
    }

    /// Records that commit `sequence`, which is not visible yet, may have changed any key of trees, without messages in
    /// buffers. A transaction may begin before it is visible; its base is at least `visible`.
    pub fn replaced(&self, trees: Vec<TreeId>, sequence: u64, visible: u64) {
        let mut active = self.0.lock();
        if active.bases.is_empty() {
            active.kept.retain(|kept| kept.newest > visible);
        }
        active.kept.extend(trees.into_iter().map(|tree| Kept { tree, newest: sequence, buffer: None }));
    }

    /// A checker for the commits that are in `state`, or were before. `state` is not older than this call: the caller holds the
    /// commit lock, or has read it before.
    pub fn checker<'a>(&self, state: &'a StoreVersion) -> Checker<'a> {
        Checker { state, kept: self.0.lock().kept.clone() }
    }
}

impl Active {
    fn bytes(&self) -> usize {
        self.kept.iter().filter_map(|kept| kept.buffer.as_ref()).map(|buffer| buffer.bytes()).sum()
    }
}

/// Finds changes by commits that a transaction does not see.
pub(crate) struct Checker<'a> {
    state: &'a StoreVersion,
    kept: Vec<Kept>,
}

impl Checker<'_> {
    /// Checks that no commit newer than `base` has changed a key.
    ///
    /// # Errors
    /// [`Error::Conflict`].
    pub fn check_key(&self, tree: TreeId, key: &[u8], base: u64) -> Result<()> {
        self.check(tree, base, |buffer| {
            let mut is_newer = false;
            buffer.visit_newest(key, u64::MAX, |newest| is_newer = newest.sequence() > base);
            is_newer
        })
    }

    /// Checks that no commit newer than `base` has changed a key of a range.
    ///
    /// # Errors
    /// [`Error::Conflict`].
    pub fn check_range(&self, tree: TreeId, range: &KeyRange, base: u64) -> Result<()> {
        let guard = keyaki_masstree::pin();
        self.check(tree, base, |buffer| {
            let mut is_newer = false;
            buffer.walk(range, false, &guard, |_, chain| {
                is_newer = chain.sequence() > base;
                !is_newer
            });
            is_newer
        })
    }

    /// The keys that commits newer than `base` have changed.
    ///
    /// # Errors
    /// [`Error::Conflict`] if any key may have changed.
    pub fn newer_keys(&self, tree: TreeId, base: u64) -> Result<Vec<Key>> {
        let (guard, mut keys) = (keyaki_masstree::pin(), Vec::new());
        for buffer in self.buffers(tree, base) {
            let buffer = buffer.ok_or(Error::Conflict { tree })?;
            buffer.walk(&KeyRange::all(), false, &guard, |key, chain| {
                if chain.sequence() > base {
                    keys.push(key.into());
                }
                true
            });
        }
        Ok(keys)
    }

    fn check(&self, tree: TreeId, base: u64, is_newer: impl Fn(&RootBuffer) -> bool) -> Result<()> {
        match self.buffers(tree, base).any(|buffer| buffer.is_none_or(&is_newer)) {
            true => Err(Error::Conflict { tree }),
            false => Ok(()),
        }
    }

    /// The buffers that have all changes of a tree by commits newer than `base`; `None` for changes of any key.
    fn buffers(&self, tree: TreeId, base: u64) -> impl Iterator<Item = Option<&RootBuffer>> {
        let version = self.state.trees.get(&tree);
        let in_state = version.into_iter().flat_map(|version| std::iter::once(&version.active).chain(&version.frozen));
        let kept = self.kept.iter().filter(move |kept| kept.tree == tree && kept.newest > base);
        in_state.map(|buffer| Some(&**buffer)).chain(kept.map(|kept| kept.buffer.as_deref()))
    }
}
