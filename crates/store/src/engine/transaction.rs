//! Transactions: writes that other readers see together, after the commit, or never.
//!
//! A transaction reads a snapshot, its *base*, below its own uncommitted writes, which are buffers on top of those of the
//! base ([`OwnWrites`]): cursors, counts and estimates need no other code. The commit is one write batch, and therefore
//! atomic. Under the commit lock it first checks that no commit since the base has changed a key that the transaction
//! changes (first committer wins), nor a range that the transaction depends on ([`Transaction::depend_on`]), nor
//! removed all keys of one that must not become empty ([`Transaction::depend_on_existence`]).
//!
//! - Snapshot isolation: one base.
//! - Read committed: a new base for each statement ([`Transaction::refresh`]). Each change is checked against the base of
//!   its statement.
//! - Serializable: snapshot isolation that depends on every range it has read ([`Transaction::track_reads`]). Commits are
//!   then equivalent to running the transactions in the order of their commits.
//!
//! (Berenson et al., "A Critique of ANSI SQL Isolation Levels", 1995; Kung and Robinson, "On Optimistic Methods for
//! Concurrency Control", 1981, backward validation.)
//!
//! *Invariant.* `marks` and `dependencies` ascend by base and by position. The own writes are those of `batch`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyaki_masstree::pin;

use crate::base::{Direction, Error, KeyRange, Registration, Result, TreeId};
use crate::codec::Codecs;
use crate::engine::{Shared, Store, Submitted};
use crate::message::{Operation, Operations, WriteBatch};
use crate::pages::{BlockingPages, block_on};
use crate::tree::{BatchBounds, OwnWrites, ReadSet, Snapshot, StoreVersion, TreeVersion, TreeView};

/// Uncommitted writes on top of a snapshot. Dropping a transaction rolls it back.
#[derive(Debug)]
pub struct Transaction {
    shared: Arc<Shared>,
    /// The snapshot below the own writes.
    base: Snapshot,
    /// The trees of the base and those created by the transaction, without those dropped by it.
    trees: Arc<StoreVersion>,
    /// The base of the first statement, under which the transaction is registered.
    first_base: u64,
    /// Keep the messages of memory trees that conflict checks need.
    registrations: Vec<Arc<Registration>>,
    own: OwnWrites,
    /// The writes in the form in which they are committed.
    batch: WriteBatch,
    /// One for each statement that has written.
    marks: Vec<Mark>,
    /// The bounds of numbers with all writes before the ends.
    bounds: (BatchBounds, [usize; 2]),
    dependencies: Vec<Dependency>,
    /// The ranges read, if the transaction is serializable.
    reads: Option<Arc<ReadSet>>,
}

/// The end of a statement's writes.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Lengths of both parts of the batch, in bytes.
    ends: [usize; 2],
    /// Sequence number of the base of the statement.
    base: u64,
}

/// A range on whose content at `base` the transaction depends.
#[derive(Debug)]
struct Dependency {
    tree: TreeId,
    range: KeyRange,
    base: u64,
    on: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// No key may change.
    All,
    /// The range must still have a key.
    AnyKey,
}

/// A point in a transaction to which it can be rolled back.
#[derive(Debug, Clone, Copy)]
pub struct Savepoint(
    /// Number of statements that have written.
    usize,
);

impl Store {
    /// Begins a transaction on a snapshot of all acknowledged commits.
    pub fn begin(&self) -> Transaction {
        let shared = &self.shared;
        let base = shared.transactions.enter(|| shared.snapshot(|| shared.visible()));
        Transaction {
            shared: shared.clone(),
            first_base: base.sequence,
            registrations: base.registration.iter().cloned().collect(),
            trees: base.state.clone(),
            base,
            own: OwnWrites::default(),
            batch: WriteBatch::new(),
            marks: Vec::new(),
            bounds: (BatchBounds::default(), [0, 0]),
            dependencies: Vec::new(),
            reads: None,
        }
    }
}

impl Transaction {
    /// A snapshot of the base and of all own writes so far. It does not see later writes.
    pub fn snapshot(&self) -> Snapshot {
        let (state, own, reads) = (self.trees.clone(), Some(self.own.clone()), self.reads.clone());
        Snapshot { state, own, reads, ..self.base.clone() }
    }

    /// Makes the transaction serializable: it depends on every range that is read from its snapshots from now on.
    pub fn track_reads(&mut self) {
        self.reads.get_or_insert_default();
    }

    /// Replaces the base by a snapshot of all acknowledged commits, for read committed. Earlier writes are still checked
    /// against the bases of their statements.
    ///
    /// # Panics
    /// If the transaction is serializable.
    pub fn refresh(&mut self) {
        assert!(self.reads.is_none(), "a serializable transaction has one base");
        let shared = &self.shared;
        let base = shared.snapshot(|| shared.visible());
        self.registrations.extend(base.registration.iter().cloned());
        self.trees = base.state.clone();
        self.base = base;
        self.change_trees([0, 0]);
    }

    /// Adds the writes of a statement. Snapshots taken before do not see them.
    ///
    /// # Errors
    /// Those of [`Store::commit`] for a batch that is not applicable. Nothing changes then.
    pub fn write(&mut self, batch: WriteBatch) -> Result<()> {
        batch.check()?;
        if batch.is_empty() {
            return Ok(());
        }
        let contents = self.shared.check_batch(&self.trees, &batch)?;
        if contents.extends_trees {
            return Err(Error::InvalidBatch { position: 0, detail: "a transaction cannot extend a tree".into() });
        }
        if contents.has_row_upserts {
            self.admit_sums(&batch)?;
        }
        let starts = self.ends();
        self.batch.append(batch);
        self.marks.push(Mark { ends: self.ends(), base: self.base.sequence });
        self.change_trees(starts);
        self.apply(starts);
        Ok(())
    }

    /// Makes the commit fail if another commit has changed a key of this range since the base. A transaction needs this for
    /// ranges that must stay empty: unique keys.
    pub fn depend_on(&mut self, tree: TreeId, range: KeyRange) {
        self.depend(tree, range, Content::All);
    }

    /// Makes the commit fail if another commit since the base has removed all keys of this range. A transaction needs this
    /// for rows that its own rows refer to. Other changes of these rows are no conflicts.
    pub fn depend_on_existence(&mut self, tree: TreeId, range: KeyRange) {
        self.depend(tree, range, Content::AnyKey);
    }

    fn depend(&mut self, tree: TreeId, range: KeyRange, on: Content) {
        // No other transaction sees a tree that this one has created.
        if self.base.state.trees.contains_key(&tree) {
            self.dependencies.push(Dependency { tree, range, base: self.base.sequence, on });
        }
    }

    /// The current point, for [`Transaction::roll_back_to`].
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.marks.len())
    }

    /// Undoes all writes since a savepoint of this transaction. Later savepoints become invalid. What the transaction has
    /// read since then remains a dependency, because the program knows it.
    ///
    /// # Panics
    /// If the savepoint is invalid.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) {
        let Savepoint(statements) = savepoint;
        assert!(statements <= self.marks.len(), "savepoint after {statements} statements of {}", self.marks.len());
        if statements == self.marks.len() {
            return;
        }
        self.marks.truncate(statements);
        let ends = self.marks.last().map_or([0, 0], |mark| mark.ends);
        self.batch.truncate(ends);
        // Snapshots taken before keep the buffers that they see.
        self.own = OwnWrites::default();
        self.trees = self.base.state.clone();
        self.bounds = (BatchBounds::default(), [0, 0]);
        self.change_trees([0, 0]);
        let mut starts = [0, 0];
        for mark in std::mem::take(&mut self.marks) {
            self.marks.push(mark);
            self.apply(starts);
            starts = mark.ends;
        }
    }

    /// True if nothing was written.
    pub fn is_read_only(&self) -> bool {
        self.marks.is_empty()
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let dependencies = self.dependencies.capacity() * size_of::<Dependency>();
        self.batch.bytes() + self.own.bytes() + dependencies + self.reads.as_ref().map_or(0, |reads| reads.bytes())
    }

    /// Commits all writes; `None` if there are none. As after [`Store::submit`], the commit takes place even if the result is dropped.
    ///
    /// # Errors
    /// [`crate::Error::Conflict`] if another commit has changed a key that the transaction changes, or a range that it
    /// depends on; errors of [`Store::submit`]. Nothing was changed then.
    pub fn commit(self) -> Result<Option<Submitted>> {
        if self.is_read_only() {
            // The snapshot is that of one moment, and all that it sees is acknowledged.
            return Ok(None);
        }
        let submitted = self.shared.submit(&self.batch, |state| self.check_conflicts(state));
        submitted.map(Some).map_err(|error| match error {
            // The tree existed when it was written.
            Error::TreeNotFound(tree) => Error::Conflict { tree },
            error => error,
        })
    }

    /// Checks on the state under the commit lock that all changes and dependencies are still valid.
    fn check_conflicts(&self, state: &StoreVersion) -> Result<()> {
        let newest = self.shared.inserted.load(Ordering::Relaxed);
        let bases = self.marks.iter().map(|mark| mark.base);
        let read = self.reads.iter().map(|_| self.base.sequence);
        let mut bases = bases.chain(self.dependencies.iter().map(|dependency| dependency.base)).chain(read);
        if bases.all(|base| base == newest) {
            return Ok(());
        }
        let checker = self.shared.transactions.checker(state);
        for Dependency { tree, range, base, on } in &self.dependencies {
            if !state.trees.contains_key(tree) {
                return Err(Error::Conflict { tree: *tree });
            }
            match checker.check_range(*tree, range, *base) {
                Err(_) if *on == Content::AnyKey && self.has_key(state, *tree, range)? => {}
                checked => checked?,
            }
        }
        if let Some(reads) = &self.reads {
            reads.try_for_each(|tree, range| checker.check_range(tree, range, self.base.sequence))?;
        }
        for (part, bytes) in self.batch.parts().into_iter().enumerate() {
            let mut start = 0;
            for mark in &self.marks {
                let mut operations = Operations::new(&bytes[start..mark.ends[part]]);
                while let Some(operation) = operations.next()? {
                    if let Operation::Message { tree, key, .. } = operation {
                        checker.check_key(tree, key, mark.base)?;
                    }
                }
                start = mark.ends[part];
            }
        }
        Ok(())
    }

    /// True if a tree of the state under the commit lock has a key in a range. Reads pages if buffers do not decide.
    fn has_key(&self, state: &StoreVersion, tree: TreeId, range: &KeyRange) -> Result<bool> {
        let Some(version) = state.trees.get(&tree).cloned() else { return Ok(false) };
        let (sequence, files) = (self.shared.inserted.load(Ordering::Relaxed), self.shared.files.clone());
        let source = BlockingPages { files: files.clone() };
        let locator = self.shared.locators.get(tree);
        let view = TreeView { tree, sequence, version, files, locator, registration: None, own: None, reads: None };
        let mut cursor = view.cursor(&source, range.clone(), Direction::Ascending);
        while let Some(chunk) = block_on(cursor.next())? {
            if chunk.rows() > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks that no sum of a checked batch can leave the range of its column after the own writes.
    ///
    /// # Errors
    /// [`Error::UpsertRange`]; [`Error::Conflict`] if another commit has dropped a tree that the transaction has changed.
    fn admit_sums(&mut self, batch: &WriteBatch) -> Result<()> {
        let trees = &self.base.state;
        let (bounds, ends) = &mut self.bounds;
        for (part, start) in self.batch.parts().into_iter().zip(ends) {
            bounds.admit(trees, &part[*start..]).map_err(|error| match error {
                Error::TreeNotFound(tree) => Error::Conflict { tree },
                error => error,
            })?;
            *start = part.len();
        }
        // A refused batch changes nothing.
        let mut raised = bounds.clone();
        batch.parts().into_iter().try_for_each(|part| raised.admit(trees, part))
    }

    fn ends(&self) -> [usize; 2] {
        self.batch.parts().map(<[u8]>::len)
    }

    /// Creates and drops trees as the writes from `starts` on do.
    fn change_trees(&mut self, starts: [usize; 2]) {
        for (bytes, start) in self.batch.parts().into_iter().zip(starts) {
            let mut operations = Operations::new(&bytes[start..]);
            while let Some(operation) = checked(operations.next()) {
                match operation {
                    Operation::CreateTree { tree, schema } => {
                        let codecs = Arc::new(Codecs::new(schema));
                        let version = match tree.is_memory() {
                            true => TreeVersion::in_memory(codecs, Arc::default()),
                            false => TreeVersion::empty(codecs),
                        };
                        Arc::make_mut(&mut self.trees).trees.insert(tree, Arc::new(version));
                    }
                    Operation::DropTree { tree } => drop(Arc::make_mut(&mut self.trees).trees.remove(&tree)),
                    Operation::Message { .. } | Operation::ExtendTree { .. } => {}
                }
            }
        }
    }

    /// Applies the writes of the newest statement, which begin at `starts`, to the own buffers.
    fn apply(&mut self, starts: [usize; 2]) {
        let Some(mark) = self.marks.last() else { return };
        let statement = self.marks.len() as u64;
        self.own.statement = statement;
        for ((bytes, start), end) in self.batch.parts().into_iter().zip(starts).zip(mark.ends) {
            let mut operations = Operations::new(&bytes[start..end]);
            let mut next = checked(operations.next());
            while let Some(operation) = next.take() {
                match operation {
                    Operation::Message { tree, .. } => {
                        let buffer = self.own.tree_mut(tree);
                        let guard = pin();
                        let mut writer = buffer.messages.writer(statement, &guard);
                        next = Some(operation);
                        while let Some(Operation::Message { tree: same, key, message, prior }) = next
                            && same == tree
                        {
                            writer.insert(key, message, prior);
                            buffer.add(statement, message.delta(prior));
                            next = checked(operations.next());
                        }
                    }
                    Operation::DropTree { tree } => {
                        self.own.remove(tree);
                        next = checked(operations.next());
                    }
                    Operation::CreateTree { .. } | Operation::ExtendTree { .. } => next = checked(operations.next()),
                }
            }
        }
    }
}

/// The operation of a batch that was checked when it was written.
fn checked(operation: Result<Option<Operation<'_>>>) -> Option<Operation<'_>> {
    operation.unwrap_or_else(|error| panic!("a checked batch is invalid: {error}"))
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.shared.transactions.leave(self.first_base);
    }
}
