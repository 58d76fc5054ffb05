//! Checks of what the log has to say, before it is applied to the state of the checkpoint.
//!
//! A commit is checked before it goes into the log, so that a record that fails here was damaged together with its
//! checksum, or made by somebody else. Nothing of it may get into the buffers: there it would be met long after, when it
//! is read or flushed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::buffer::Message;
use crate::read::State;
use crate::tree::Codecs;
use crate::write::{Operation, TreeId, decode};
use crate::{Error, Result};

/// Checks that a record can be applied: trees exist when they are written to and not when they are created, keys and rows
/// are those of their trees.
///
/// # Errors
/// [`Error::Invalid`], [`Error::NoTree`].
pub(crate) fn check(state: &State, payload: &[u8]) -> Result<()> {
    // Trees that the record itself creates, or drops (`None`).
    let mut changed: HashMap<TreeId, Option<Arc<Codecs>>> = HashMap::new();
    decode(payload, |operation| {
        let codecs = |tree: TreeId| match changed.get(&tree) {
            Some(changed) => changed.clone(),
            None => state.trees.get(&tree).map(|version| version.codecs.clone()),
        };
        match operation {
            Operation::Message { tree, key, message } => {
                let codecs = codecs(tree).ok_or(Error::NoTree(tree))?;
                codecs.key.check_encoded(key)?;
                match message {
                    Message::Insert(value) => codecs.row.check_encoded(&value)?,
                    Message::Delete | Message::Upsert { .. } => {}
                }
            }
            Operation::CreateTree { tree, schema } => {
                if codecs(tree).is_some() || tree == TreeId::MAX {
                    return Err(Error::Invalid(format!("tree {tree} is created, but exists or cannot exist")));
                }
                changed.insert(tree, Some(Arc::new(Codecs::new(schema))));
            }
            Operation::DropTree { tree } => {
                codecs(tree).ok_or(Error::NoTree(tree))?;
                changed.insert(tree, None);
            }
        }
        Ok(())
    })
}
