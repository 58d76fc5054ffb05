//! Checks of batches before a commit, and replay of the log at recovery.
//!
//! Replay checks each log record like a new commit, because an invalid message in a buffer would fail much later, in a
//! read or a flush. A record with a valid checksum that fails the check was written by a defective or hostile program.
//! Replay collects pending messages and inserts them into the buffers in bulk, at the end and whenever the pending
//! messages exceed [`PENDING_BYTES_MAX`].
//!
//! *Invariant.* Buffers contain only messages that passed [`check`], in the order of their sequence numbers.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::{Error, Result, TreeId, TreeKind, UpsertFunctions};
use crate::buffer::BufferBuilder;
use crate::codec::{Codecs, ROW_UPSERT, RowUpsert};
use crate::engine::RowChanges;
use crate::message::{KEY_LIMIT, MessageBytes, Operation, decode};
use crate::tree::{StoreVersion, TreeVersion};

/// Checks that a tree has the kind that a part of a batch requires.
///
/// # Errors
/// [`Error::WrongTreeKind`].
fn check_kind(tree: TreeId, kind: TreeKind) -> Result<()> {
    if tree.kind() == kind { Ok(()) } else { Err(Error::WrongTreeKind { tree, kind: tree.kind() }) }
}

/// Contents of a valid batch besides messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchContents {
    /// It creates, drops or extends trees.
    pub changes_trees: bool,
    /// It adds columns to trees.
    pub extends_trees: bool,
    pub has_row_upserts: bool,
}

/// Checks that a batch can be applied: trees exist when they are written to, do not exist when they are created, and
/// keys and rows are valid encodings for their trees. With `upserts`, also checks that the functions exist; replay passes
/// `None`, so that a database opens without the functions in its log. Does not check sums, because the bounds of a
/// checkpoint may contain sums of later commits: see [`BatchBounds`](crate::tree::BatchBounds).
///
/// # Errors
/// [`Error::InvalidBatch`], [`Error::InvalidKey`], [`Error::InvalidRow`], [`Error::TooLarge`], [`Error::TooMany`],
/// [`Error::TreeExists`], [`Error::TreeNotFound`], [`Error::TreeMismatch`], [`Error::WrongTreeKind`],
/// [`Error::UnknownUpsert`], [`Error::Quarantined`].
pub(crate) fn check(
    state: &StoreVersion,
    payload: &[u8],
    kind: TreeKind,
    upserts: Option<&UpsertFunctions>,
) -> Result<BatchContents> {
    // Trees created by the batch, or dropped by it (`None`).
    let mut changed: HashMap<TreeId, Option<Arc<Codecs>>> = HashMap::new();
    let (mut has_row_upserts, mut extends_trees) = (false, false);
    decode(payload, |operation| {
        let codecs = |tree: TreeId| match changed.get(&tree) {
            Some(changed) => changed.as_ref(),
            None => state.trees.get(&tree).map(|version| &version.codecs),
        };
        let intact_codecs = |tree: TreeId| match (changed.get(&tree), state.trees.get(&tree)) {
            (None, Some(version)) => version.check_intact(tree).map(|()| &version.codecs),
            _ => codecs(tree).ok_or(Error::TreeNotFound(tree)),
        };
        match operation {
            Operation::Message { tree, key, message, .. } => {
                check_kind(tree, kind)?;
                let codecs = intact_codecs(tree)?;
                if key.len() > KEY_LIMIT {
                    let (bytes, limit) = (key.len() as u64, KEY_LIMIT as u64);
                    return Err(Error::TooLarge { what: "key", bytes, limit });
                }
                codecs.key.check_encoded(key)?;
                match message {
                    MessageBytes::Insert(value) => codecs.row.check_encoded(value)?,
                    MessageBytes::Upsert { function: ROW_UPSERT, operand } => {
                        RowUpsert::check(&codecs.row, operand)?;
                        has_row_upserts = true;
                    }
                    MessageBytes::Upsert { function, .. } if upserts.is_some_and(|known| !known.contains(function)) => {
                        return Err(Error::UnknownUpsert(function));
                    }
                    MessageBytes::Upsert { .. } | MessageBytes::Delete => {}
                }
            }
            Operation::CreateTree { tree, schema } => {
                check_kind(tree, kind)?;
                check_new(tree, codecs(tree).is_some())?;
                changed.insert(tree, Some(Arc::new(Codecs::new(schema))));
            }
            Operation::ExtendTree { tree, schema } => {
                check_kind(tree, TreeKind::Disk)?;
                check_kind(tree, kind)?;
                let known = intact_codecs(tree)?;
                if !schema.extends(&known.schema) {
                    return Err(Error::TreeMismatch { tree, reason: "it has other columns than those to be extended" });
                }
                changed.insert(tree, Some(Arc::new(Codecs::new(schema))));
                extends_trees = true;
            }
            Operation::DropTree { tree } => {
                check_kind(tree, kind)?;
                codecs(tree).ok_or(Error::TreeNotFound(tree))?;
                changed.insert(tree, None);
            }
        }
        Ok(())
    })?;
    Ok(BatchContents { changes_trees: !changed.is_empty(), extends_trees, has_row_upserts })
}

/// Checks that a tree may be created: it does not exist, and its id is not the last one of its kind, which
/// [`next_id`](super::next_id) returns when the ids are used up.
///
/// # Errors
/// [`Error::TreeExists`], [`Error::TooMany`].
pub(crate) fn check_new(tree: TreeId, exists: bool) -> Result<()> {
    if tree.is_reserved() {
        return Err(Error::TooMany { what: "trees", limit: u64::from(TreeId::DISK_END.get()) });
    }
    if exists { Err(Error::TreeExists(tree)) } else { Ok(()) }
}

/// Maximum bytes of pending keys and of temporary memory before the messages are inserted into the buffers.
const PENDING_BYTES_MAX: usize = 128 << 20;

/// The state of a store during recovery.
pub(crate) struct Replay {
    pub state: StoreVersion,
    pub next_tree: TreeId,
    /// Sequence number of the last record applied.
    pub inserted: u64,
    /// Messages not yet inserted into the buffers.
    pending: HashMap<TreeId, BufferBuilder>,
    pending_bytes: usize,
    pending_bytes_max: usize,
}

impl Replay {
    /// Starts from a checkpoint whose newest commit is `inserted`.
    pub fn new(state: StoreVersion, next_tree: TreeId, inserted: u64) -> Replay {
        let (pending, pending_bytes_max) = (HashMap::new(), PENDING_BYTES_MAX);
        Replay { state, next_tree, inserted, pending, pending_bytes: 0, pending_bytes_max }
    }

    /// Applies a log record. The sequence numbers of the records must ascend.
    ///
    /// # Errors
    /// Those of [`check`]; the record is not applied then.
    pub fn apply(&mut self, sequence: u64, payload: &[u8]) -> Result<()> {
        assert!(sequence > self.inserted, "record {sequence} follows record {}", self.inserted);
        check(&self.state, payload, TreeKind::Disk, None)?;
        let mut changes = RowChanges::new(sequence);
        decode(payload, |operation| {
            match operation {
                Operation::Message { tree, key, message, prior } => {
                    let version = self.state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
                    version.bounds.lock(&version.codecs).raise(&message);
                    let pending = self.pending.entry(tree).or_default();
                    let before = pending.work_bytes();
                    pending.push(key, sequence, &message, prior);
                    self.pending_bytes += pending.work_bytes() - before;
                    changes.add(&self.state, tree, message.delta(prior));
                }
                Operation::CreateTree { tree, schema } => {
                    let version = TreeVersion::empty(Arc::new(Codecs::new(schema)));
                    let version = TreeVersion { created: sequence, ..version };
                    self.state.trees.insert(tree, Arc::new(version));
                    // Cannot overflow: `check` refuses the last id.
                    self.next_tree = self.next_tree.max(tree.next());
                }
                Operation::ExtendTree { tree, schema } => {
                    // The pending messages have the encoding of the old schema.
                    self.finish_tree(tree)?;
                    let version = self.state.trees.get_mut(&tree).ok_or(Error::TreeNotFound(tree))?;
                    *version = Arc::new(version.extended(schema)?);
                }
                Operation::DropTree { tree } => {
                    changes.finish(&self.state);
                    self.state.trees.remove(&tree);
                    self.take_pending(tree);
                }
            }
            Ok(())
        })?;
        changes.finish(&self.state);
        self.inserted = sequence;
        if self.pending_bytes > self.pending_bytes_max {
            self.finish()?;
        }
        Ok(())
    }

    /// Removes the pending messages of a tree.
    fn take_pending(&mut self, tree: TreeId) -> Option<BufferBuilder> {
        let pending = self.pending.remove(&tree)?;
        let bytes = pending.work_bytes();
        assert!(bytes <= self.pending_bytes, "removed {bytes} of {} pending bytes", self.pending_bytes);
        self.pending_bytes -= bytes;
        Some(pending)
    }

    /// Inserts the pending messages of a tree into its buffer.
    fn finish_tree(&mut self, tree: TreeId) -> Result<()> {
        let Some(pending) = self.take_pending(tree) else { return Ok(()) };
        let version = self.state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
        pending.merge_into(&version.active)
    }

    /// Inserts the pending messages into the buffers.
    ///
    /// # Errors
    /// None for checked records.
    pub fn finish(&mut self) -> Result<()> {
        self.pending_bytes = 0;
        for (tree, pending) in self.pending.drain() {
            let version = self.state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
            pending.merge_into(&version.active)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use keyaki_primitives::Random;

    use super::*;
    use crate::base::Schema;
    use crate::codec;
    use crate::message::WriteBatch;

    const TREES: u32 = 3;

    fn key(number: u64) -> Vec<u8> {
        [&number.to_be_bytes().map(|byte| byte | 1)[..], &[0, 0]].concat()
    }

    /// A record with random messages that also drops and recreates a tree with probability 1/20 per operation.
    fn record(random: &mut Random) -> Vec<u8> {
        let mut batch = WriteBatch::new();
        for _ in 0..random.below(8) {
            let (tree, key) = (random.below(u64::from(TREES)) as u32, key(random.below(60)));
            match random.below(20) {
                0 => {
                    batch.drop_tree(TreeId::new(tree));
                    batch.create_tree(TreeId::new(tree), &Schema::key_value());
                }
                1..=5 => batch.delete_raw(TreeId::new(tree), &key),
                6..=8 => batch.upsert_raw(TreeId::new(tree), &key, 1, &key[..3]),
                _ => batch.insert_raw(TreeId::new(tree), &key, &key[..random.below(4) as usize]),
            }
        }
        batch.bytes
    }

    fn content(state: &StoreVersion) -> String {
        let mut text = String::new();
        for (tree, version) in &state.trees {
            let buffer = &version.active;
            let (messages, bytes) = (buffer.len(), buffer.message_bytes());
            text += &format!("tree {tree} of {messages} messages, {bytes} bytes, {:?} rows\n", version.counts.newest());
            buffer.walk(&crate::KeyRange::all(), false, &keyaki_masstree::pin(), |key, chain| {
                text += &format!("{key:?} {chain:?}\n");
                true
            });
        }
        text
    }

    #[test]
    fn bulk_replay_equals_single_records() {
        assert_eq!(codec::KeyCodec::new(&Schema::key_value()).check_encoded(&key(5)).ok(), Some(()));
        for seed in 0..100_u64 {
            let mut random = Random::new(seed);
            let mut replay = Replay::new(StoreVersion::default(), TreeId::new(16), 0);
            replay.pending_bytes_max = random.below(20_000) as usize;
            let mut one_by_one = std::borrow::Cow::Owned(StoreVersion::default());
            let mut creation = WriteBatch::new();
            (0..TREES).for_each(|tree| creation.create_tree(TreeId::new(tree), &Schema::key_value()));
            let mut payload = creation.bytes;
            for sequence in 1..200 {
                crate::engine::apply(&mut one_by_one, sequence, &payload).unwrap();
                replay.apply(sequence, &payload).unwrap();
                payload = record(&mut random);
            }
            replay.finish().unwrap();
            assert_eq!(replay.inserted, 199);
            assert_eq!(content(&replay.state), content(&one_by_one), "seed {seed}");
        }
    }

    #[test]
    fn memory_trees_and_long_keys_are_refused() {
        let mut state = StoreVersion::default();
        let codecs = Arc::new(Codecs::new(Schema::key_value()));
        for tree in [1, 1 << 31] {
            state.trees.insert(TreeId::new(tree), Arc::new(TreeVersion::empty(codecs.clone())));
        }
        let refused = |bytes: &[u8], kind| check(&state, bytes, kind, None).err();
        let mut batch = WriteBatch::new();
        batch.delete_raw(TreeId::new(1), &key(1));
        batch.delete_raw(TreeId::new(1 << 31), &key(1));
        assert!(
            refused(&batch.bytes, TreeKind::Disk).is_none() && refused(&batch.in_memory, TreeKind::Memory).is_none()
        );
        assert!(matches!(
            refused(&batch.bytes, TreeKind::Memory),
            Some(Error::WrongTreeKind { kind: TreeKind::Disk, .. })
        ));
        assert!(matches!(
            refused(&batch.in_memory, TreeKind::Disk),
            Some(Error::WrongTreeKind { kind: TreeKind::Memory, .. })
        ));
        for tree in [TreeId::DISK_END, TreeId::MEMORY_END] {
            let mut batch = WriteBatch::new();
            batch.create_tree(tree, &Schema::key_value());
            let error = refused(&batch.bytes, TreeKind::Disk).or(refused(&batch.in_memory, TreeKind::Memory));
            assert!(matches!(error, Some(Error::TooMany { .. })), "{tree}");
        }
        let mut batch = WriteBatch::new();
        batch.delete_raw(TreeId::new(1), &[&vec![7; KEY_LIMIT][..], &[0, 0]].concat());
        assert!(matches!(refused(&batch.bytes, TreeKind::Disk), Some(Error::TooLarge { what: "key", .. })));
    }
}
