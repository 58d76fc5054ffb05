//! Applies the operations of a commit to a state.

use std::borrow::Cow;
use std::sync::Arc;

use keyaki_masstree::pin;

use crate::base::{Error, Result, TreeId};
use crate::codec::{Codecs, ROW_UPSERT};
use crate::message::{MessageBytes, Operation, Operations};
use crate::tree::{Delta, StoreVersion, TreeVersion};

/// Messages inserted into a buffer under one guard.
const MESSAGES_PER_GUARD: usize = 256;

/// Applies a commit: inserts its messages into the active buffers, counts their rows, and creates and drops trees. `state`
/// is copied only if the set of trees changes.
///
/// # Errors
/// Those of [`decode`] and [`Error::TreeNotFound`]; none for a checked batch.
pub(crate) fn apply(state: &mut Cow<'_, StoreVersion>, sequence: u64, payload: &[u8]) -> Result<()> {
    let mut changes = RowChanges::new(sequence);
    let mut operations = Operations::new(payload);
    let mut next = operations.next()?;
    while let Some(operation) = next.take() {
        match operation {
            Operation::Message { tree, key, message, prior } => {
                let version = state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
                let guard = pin();
                let mut buffer = version.active.writer(sequence, &guard);
                let mut bounds = version.bounds.lock(&version.codecs);
                let mut add = |key: &[u8], message: MessageBytes<'_>, prior| {
                    bounds.raise(&message);
                    let delta = match message {
                        MessageBytes::Upsert { function: ROW_UPSERT, operand } => {
                            buffer.upsert(key, operand, &version.codecs.row)
                        }
                        message => {
                            buffer.insert(key, message, prior);
                            message.delta(prior)
                        }
                    };
                    changes.add(state, tree, delta);
                };
                add(key, message, prior);
                for _ in 1..MESSAGES_PER_GUARD {
                    next = operations.next()?;
                    let Some(Operation::Message { tree: other, key, message, prior }) = next else { break };
                    if other != tree {
                        break;
                    }
                    add(key, message, prior);
                    next = None;
                }
            }
            Operation::CreateTree { tree, schema } => {
                let version = TreeVersion::empty(Arc::new(Codecs::new(schema)));
                let version = TreeVersion { created: sequence, ..version };
                state.to_mut().trees.insert(tree, Arc::new(version));
            }
            Operation::ExtendTree { tree, schema } => {
                let version = state.to_mut().trees.get_mut(&tree).ok_or(Error::TreeNotFound(tree))?;
                *version = Arc::new(version.extended(schema)?);
            }
            Operation::DropTree { tree } => {
                changes.finish(state);
                state.to_mut().trees.remove(&tree);
            }
        }
        if next.is_none() {
            next = operations.next()?;
        }
    }
    changes.finish(state);
    Ok(())
}

/// Adds the changes of the number of rows by a commit to the counts of its trees, once for consecutive messages of a tree.
pub(crate) struct RowChanges {
    sequence: u64,
    /// The tree of the last messages, and their change.
    last: Option<(TreeId, Delta)>,
}

impl RowChanges {
    pub fn new(sequence: u64) -> RowChanges {
        RowChanges { sequence, last: None }
    }

    /// Adds the change by one message.
    #[inline]
    pub fn add(&mut self, state: &StoreVersion, tree: TreeId, delta: Delta) {
        match &mut self.last {
            Some((last, sum)) if *last == tree => *sum = sum.zip(delta).map(|(sum, delta)| sum + delta),
            _ => {
                self.finish(state);
                self.last = Some((tree, delta));
            }
        }
    }

    /// Must follow the last message, and precede the removal of a tree.
    pub fn finish(&mut self, state: &StoreVersion) {
        if let Some((tree, delta)) = self.last.take()
            && let Some(version) = state.trees.get(&tree)
        {
            version.counts.add(self.sequence, delta);
        }
    }
}
