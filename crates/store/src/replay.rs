//! Checks of a commit, before it goes into the log, and of what the log has to say, before it is applied.
//!
//! Nothing unsound may get into the buffers: there it would be met long after, when it is read or flushed. A record of the
//! log that fails here was damaged together with its checksum, or made by somebody else.

use std::collections::HashMap;
use std::sync::Arc;

use crate::memory::{TREES_END, is_memory};
use crate::read::State;
use crate::tree::Codecs;
use crate::upsert::UpsertFunctions;
use crate::write::{MessageBytes, Operation, TreeId, decode};
use crate::{Error, Result};

/// What a part of a commit is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Trees on disk: it is in the log.
    Disk,
    /// Memory trees.
    Memory,
}

impl Place {
    fn check(self, tree: TreeId) -> Result<()> {
        match (is_memory(tree), self) {
            (false, Place::Disk) | (true, Place::Memory) => Ok(()),
            (true, Place::Disk) => {
                Err(Error::Invalid(format!("tree {tree} is held in memory only, and not in the log")))
            }
            (false, Place::Memory) => Err(Error::Invalid(format!("tree {tree} is not held in memory only"))),
        }
    }
}

/// Checks that a commit can be applied: trees exist when they are written to and not when they are created, keys and rows
/// are those of their trees; and, given the `upserts`, that functions are known (what is in the log already must be
/// readable all the same, as far as it goes). Tells whether trees are created or dropped.
///
/// # Errors
/// [`Error::Invalid`], [`Error::NoTree`], [`Error::UnknownUpsert`].
pub(crate) fn check(state: &State, payload: &[u8], place: Place, upserts: Option<&UpsertFunctions>) -> Result<bool> {
    // Trees that the commit itself creates, or drops (`None`).
    let mut changed: HashMap<TreeId, Option<Arc<Codecs>>> = HashMap::new();
    decode(payload, |operation| {
        let codecs = |tree: TreeId| match changed.get(&tree) {
            Some(changed) => changed.as_ref(),
            None => state.trees.get(&tree).map(|version| &version.codecs),
        };
        match operation {
            Operation::Message { tree, key, message } => {
                place.check(tree)?;
                let codecs = codecs(tree).ok_or(Error::NoTree(tree))?;
                codecs.key.check_encoded(key)?;
                match message {
                    MessageBytes::Insert(value) => codecs.row.check_encoded(value)?,
                    MessageBytes::Upsert { function, .. } if upserts.is_some_and(|known| !known.contains(function)) => {
                        return Err(Error::UnknownUpsert(function));
                    }
                    MessageBytes::Upsert { .. } | MessageBytes::Delete => {}
                }
            }
            Operation::CreateTree { tree, schema } => {
                place.check(tree)?;
                if codecs(tree).is_some() || matches!(tree, TREES_END | TreeId::MAX) {
                    return Err(Error::Invalid(format!("tree {tree} exists already, or cannot exist")));
                }
                changed.insert(tree, Some(Arc::new(Codecs::new(schema))));
            }
            Operation::DropTree { tree } => {
                place.check(tree)?;
                codecs(tree).ok_or(Error::NoTree(tree))?;
                changed.insert(tree, None);
            }
        }
        Ok(())
    })?;
    Ok(!changed.is_empty())
}
