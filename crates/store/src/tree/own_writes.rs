//! The uncommitted writes of a transaction, as buffers above those of the commits.
//!
//! The sequence number of a message is the number of its statement, counted from 1. A snapshot of the transaction sees
//! the messages up to a statement, so that a statement that reads while it writes does not see its own changes. Messages
//! that have been spilled to runs have no numbers: snapshots from before keep the buffers that had them.
//!
//! A small transaction seldom reads the trees that it has changed again. The first operations stay a list, which becomes a
//! map when something reads it.

use std::collections::BTreeMap;
use std::sync::Arc;

use keyaki_masstree::pin;
use keyaki_primitives::sync::Mutex;

use crate::base::{Result, TreeId};
use crate::buffer::RootBuffer;
use crate::message::{Operation, Operations};
use crate::tree::{Delta, Run};

/// More bytes of operations than this become messages in a map at once.
const UNREAD_BYTES_MAX: usize = 4 << 10;

/// The uncommitted writes to one tree.
#[derive(Debug)]
pub(crate) struct OwnBuffer {
    /// The messages in memory, without those of `unread`.
    messages: Arc<RootBuffer>,
    /// The operations that nothing has read, with the numbers of their statements; `None` once something has read them.
    unread: Mutex<Option<Unread>>,
    /// Older messages, which have been spilled; newest first.
    pub runs: Vec<Run>,
    /// The change of the number of rows by the messages in runs.
    spilled: Delta,
    /// The change by the messages in memory of the statements up to a number, ascending.
    deltas: Mutex<Vec<(u64, Delta)>>,
}

#[derive(Debug, Default)]
struct Unread {
    operations: Vec<u8>,
    /// The number of each statement, and the end of its operations; ascending.
    statements: Vec<(u64, usize)>,
}

impl Default for OwnBuffer {
    fn default() -> Self {
        OwnBuffer::above(Vec::new(), Some(0))
    }
}

impl OwnBuffer {
    /// An empty buffer above runs, whose messages change the number of rows by `spilled`.
    pub fn above(runs: Vec<Run>, spilled: Delta) -> OwnBuffer {
        let unread = Mutex::new(Some(Unread::default()));
        OwnBuffer { messages: Arc::default(), unread, runs, spilled, deltas: Mutex::default() }
    }

    /// The messages in memory.
    pub fn messages(&self) -> &Arc<RootBuffer> {
        self.read(&mut self.unread.lock());
        &self.messages
    }

    /// Moves the operations that nothing has read to the messages.
    fn read(&self, unread: &mut Option<Unread>) {
        let Some(Unread { operations, statements }) = unread.take() else { return };
        let mut start = 0;
        for (statement, end) in statements {
            self.insert(statement, &operations[start..end]);
            start = end;
        }
    }

    fn insert(&self, statement: u64, operations: &[u8]) {
        let guard = pin();
        let mut writer = self.messages.writer(statement, &guard);
        for_each(operations, |operation| match operation {
            Operation::Message { key, message, prior, .. } => writer.insert(key, message, prior),
            _ => unreachable!("the writes to a tree are messages"),
        });
    }

    /// Adds writes of `statement`, the newest statement: messages to this tree.
    ///
    /// # Panics
    /// If the operations are not those of a batch that was checked.
    pub fn write(&self, statement: u64, operations: &[u8]) {
        let mut unread = self.unread.lock();
        match unread.as_mut() {
            Some(unread) if unread.operations.len() + operations.len() <= UNREAD_BYTES_MAX => {
                unread.operations.extend_from_slice(operations);
                unread.statements.push((statement, unread.operations.len()));
            }
            _ => {
                self.read(&mut unread);
                drop(unread);
                self.insert(statement, operations);
            }
        }
        for_each(operations, |operation| {
            if let Operation::Message { message, prior, .. } = operation {
                self.add(statement, message.delta(prior));
            }
        });
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let unread = self.unread.lock().as_ref().map_or(0, |unread| unread.operations.capacity());
        unread + self.messages.bytes()
    }

    /// Adds the change by messages of `statement`, the newest statement.
    fn add(&self, statement: u64, delta: Delta) {
        let mut deltas = self.deltas.lock();
        let (newest, before) = deltas.last().copied().unwrap_or((0, Some(0)));
        assert!(newest <= statement, "statement {statement} follows statement {newest}");
        let sum = before.zip(delta).map(|(before, delta)| before + delta);
        match deltas.last_mut() {
            Some(last) if newest == statement => last.1 = sum,
            _ => deltas.push((statement, sum)),
        }
    }

    /// The change of the number of rows by the statements up to `statement`.
    pub fn delta(&self, statement: u64) -> Delta {
        let deltas = self.deltas.lock();
        let count = deltas.partition_point(|(number, _)| *number <= statement);
        let in_memory = count.checked_sub(1).map_or(Some(0), |last| deltas[last].1);
        self.spilled.zip(in_memory).map(|(spilled, in_memory)| spilled + in_memory)
    }

    /// The change of the number of rows by all messages in memory.
    pub fn delta_in_memory(&self) -> Delta {
        self.deltas.lock().last().map_or(Some(0), |(_, delta)| *delta)
    }
}

/// Calls `visit` for each operation of a batch that was checked.
fn for_each(operations: &[u8], mut visit: impl FnMut(Operation<'_>)) {
    let mut operations = Operations::new(operations);
    while let Some(operation) = checked(operations.next()) {
        visit(operation);
    }
}

/// The operation of a batch that was checked when it was written.
///
/// # Panics
/// If it was not.
pub(crate) fn checked(operation: Result<Option<Operation<'_>>>) -> Option<Operation<'_>> {
    operation.unwrap_or_else(|error| panic!("a checked batch is invalid: {error}"))
}

/// The uncommitted writes of a transaction up to a statement. `Clone` is cheap.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnWrites {
    trees: Arc<BTreeMap<TreeId, Arc<OwnBuffer>>>,
    /// The newest visible statement.
    pub statement: u64,
}

impl OwnWrites {
    /// The writes to a tree, and the newest visible statement; `None` if there are no writes.
    pub fn tree(&self, tree: TreeId) -> Option<(Arc<OwnBuffer>, u64)> {
        self.trees.get(&tree).map(|buffer| (buffer.clone(), self.statement))
    }

    /// The buffer of a tree. A new one is not visible to earlier clones, which need not see it.
    pub fn tree_mut(&mut self, tree: TreeId) -> Arc<OwnBuffer> {
        if let Some(buffer) = self.trees.get(&tree) {
            return buffer.clone();
        }
        Arc::make_mut(&mut self.trees).entry(tree).or_default().clone()
    }

    /// The writes to trees, by tree.
    pub fn trees(&self) -> impl Iterator<Item = (TreeId, &Arc<OwnBuffer>)> {
        self.trees.iter().map(|(&tree, buffer)| (tree, buffer))
    }

    /// Replaces the writes to a tree. Earlier clones keep the old ones.
    pub fn replace(&mut self, tree: TreeId, buffer: OwnBuffer) {
        Arc::make_mut(&mut self.trees).insert(tree, Arc::new(buffer));
    }

    /// Forgets the writes to a tree, which was dropped.
    pub fn remove(&mut self, tree: TreeId) {
        if self.trees.contains_key(&tree) {
            Arc::make_mut(&mut self.trees).remove(&tree);
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.trees.values().map(|buffer| buffer.bytes()).sum()
    }
}
