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
//! A large transaction moves its messages from memory to the data file ([`spills`]).
//!
//! *Invariant.* `marks` ascend by base and by position. The own writes are those of `spills` and of `batch`, which lacks the
//! messages in `spills`.

mod spills;

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::{Direction, Error, KeyRange, Registration, Result, TreeId};
use crate::codec::Codecs;
use crate::engine::{Shared, Store, Submitted};
use crate::message::{Operation, Operations, WriteBatch};
use crate::pages::{BlockingPages, block_on};
use crate::tree::{BatchBounds, OwnBuffer, OwnWrites, ReadSet, Snapshot, StoreVersion, TreeVersion, TreeView, checked};
use spills::Spill;

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
    /// The first statements, whose messages are no longer in memory, oldest first.
    spills: Vec<Spill>,
    /// One for each later statement that has written.
    marks: Vec<Mark>,
    /// The bounds of numbers with all writes before the ends.
    bounds: (BatchBounds, [usize; 2]),
    dependencies: Vec<Dependency>,
    /// The dependencies before this one cannot be forgotten: they may stand for earlier ones.
    widened: usize,
    dependency_bytes: usize,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
            spills: Vec::new(),
            marks: Vec::new(),
            bounds: (BatchBounds::default(), [0, 0]),
            dependencies: Vec::new(),
            widened: 0,
            dependency_bytes: 0,
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
    /// against the bases of their statements. A base that is newer stays: see [`Transaction::refresh_to_newest`].
    ///
    /// # Panics
    /// If the transaction is serializable.
    pub fn refresh(&mut self) {
        let oldest = self.base.sequence;
        self.rebase(|shared| shared.visible().max(oldest));
    }

    /// As [`Transaction::refresh`], with commits that are not acknowledged yet. A crash may undo them, and then also the
    /// commit of this transaction. What is read must not leave the program before [`Transaction::is_base_visible`].
    ///
    /// # Panics
    /// If the transaction is serializable.
    pub fn refresh_to_newest(&mut self) {
        self.rebase(|shared| shared.inserted.load(Ordering::Acquire));
    }

    /// True if all commits that the transaction sees are acknowledged.
    pub fn is_base_visible(&self) -> bool {
        self.base.sequence <= self.shared.visible()
    }

    /// True if a commit since the base has changed, in a tree, the key of a message of `batch`, or a key of one of `ranges`.
    ///
    /// # Errors
    /// [`Error::InvalidBatch`] if the batch is invalid.
    pub fn is_outdated(&self, tree: TreeId, batch: &WriteBatch, ranges: &[(TreeId, KeyRange)]) -> Result<bool> {
        let base = self.base.sequence;
        if base == self.shared.inserted.load(Ordering::Acquire) {
            return Ok(false);
        }
        // A flush after this keeps the buffers of the state; those of an earlier one are in the checker.
        let state = self.shared.state.read().clone();
        let checker = self.shared.transactions.checker(&state);
        let changed = |(tree, range): &(TreeId, KeyRange)| match range.as_point() {
            // No other transaction sees a tree that this one has created.
            _ if !self.base.state.trees.contains_key(tree) => false,
            Some(key) => checker.check_key(*tree, key, base).is_err(),
            None => checker.check_range(*tree, range, base).is_err(),
        };
        let mut is_outdated = ranges.iter().any(changed);
        if !is_outdated {
            batch.keys(tree, |key| {
                is_outdated = checker.check_key(tree, key, base).is_err();
                !is_outdated
            })?;
        }
        Ok(is_outdated)
    }

    fn rebase(&mut self, sequence: impl Fn(&Shared) -> u64) {
        assert!(self.reads.is_none(), "a serializable transaction has one base");
        let shared = &self.shared;
        let base = shared.snapshot(|| sequence(shared));
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
        let mut own = std::mem::take(&mut self.own);
        self.apply_pending(&mut own, self.marks.len() - 1..self.marks.len());
        self.own = own;
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
            let dependency = Dependency { tree, range, base: self.base.sequence, on };
            self.dependency_bytes += dependency.bytes();
            self.dependencies.push(dependency);
        }
    }

    /// Number of ranges that the transaction depends on, for [`Transaction::forget_dependencies`].
    pub fn dependencies(&self) -> usize {
        self.dependencies.len()
    }

    /// Forgets the ranges behind the first `kept` ones, for a statement that runs again and has returned nothing, or for changes
    /// that are undone. Dependencies that stand for several ranges stay.
    pub fn forget_dependencies(&mut self, kept: usize) {
        let kept = kept.max(self.widened);
        if kept >= self.dependencies.len() {
            return;
        }
        let forgotten = self.dependencies.drain(kept..).map(|dependency| dependency.bytes()).sum::<usize>();
        self.dependency_bytes -= forgotten;
    }

    /// The current point, for [`Transaction::roll_back_to`].
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.statements())
    }

    /// Undoes all writes since a savepoint of this transaction. Later savepoints become invalid. What the transaction has
    /// read since then remains a dependency, because the program knows it.
    ///
    /// # Panics
    /// If the savepoint is invalid.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) {
        let Savepoint(statements) = savepoint;
        let all = self.statements();
        assert!(statements <= all, "savepoint after {statements} statements of {all}");
        if statements == all {
            return;
        }
        let first = self.spilled_statements();
        self.marks.truncate(statements.saturating_sub(first));
        while let Some(undone) = self.spills.pop_if(|spill| spill.statements.end > statements) {
            assert!(undone.statements.start >= statements, "the savepoint was not alive when the transaction spilled");
            self.marks.clear();
        }
        self.batch.truncate(self.start_of(self.marks.len()));
        self.bounds = match self.spills.last() {
            Some(spill) => (spill.bounds.clone(), spill.mark.ends),
            None => (BatchBounds::default(), [0, 0]),
        };
        // Snapshots taken before keep the buffers that they see.
        self.trees = self.base.state.clone();
        self.change_trees([0, 0]);
        let (mut own, mut starts) = (OwnWrites::default(), [0, 0]);
        for Spill { statements, mark, .. } in &self.spills {
            apply(&mut own, &self.batch, statements.end as u64, starts, mark.ends);
            starts = mark.ends;
        }
        for (tree, spilled) in self.spilled() {
            own.replace(tree, OwnBuffer::above(spilled.runs, spilled.delta));
        }
        self.apply_pending(&mut own, 0..self.marks.len());
        self.own = own;
    }

    /// True if nothing was written.
    pub fn is_read_only(&self) -> bool {
        self.statements() == 0
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let marks = self.marks.len() * size_of::<Mark>();
        let spills: usize = self.spills.iter().map(Spill::bytes).sum();
        self.batch.bytes()
            + self.own.bytes()
            + marks
            + spills
            + self.dependency_bytes
            + self.reads.as_ref().map_or(0, |reads| reads.bytes())
    }

    /// Commits all writes; `None` if there are none. As after [`Store::submit`], the commit takes place even if the result is dropped.
    ///
    /// # Errors
    /// [`crate::Error::Conflict`] if another commit has changed a key that the transaction changes, or a range that it
    /// depends on; errors of [`Store::submit`]. Nothing was changed then.
    pub fn commit(mut self) -> Result<Option<Submitted>> {
        if self.is_read_only() {
            // The snapshot is that of one moment. The program waits for commits that are not acknowledged before it returns rows.
            return Ok(None);
        }
        let submitted = match self.has_spilled() {
            false => self.shared.submit(&self.batch, |state| self.check_conflicts(state)),
            true => self.commit_spilled(),
        };
        submitted.map(Some).map_err(|error| match error {
            // The tree existed when it was written.
            Error::TreeNotFound(tree) => Error::Conflict { tree },
            error => error,
        })
    }

    /// Checks on the state under the commit lock that all changes and dependencies are still valid.
    fn check_conflicts(&self, state: &StoreVersion) -> Result<()> {
        let newest = self.shared.inserted.load(Ordering::Relaxed);
        let bases = self.spills.iter().map(|spill| &spill.mark).chain(&self.marks).map(|mark| mark.base);
        let read = self.reads.iter().map(|_| self.base.sequence);
        let mut bases = bases.chain(self.dependencies.iter().map(|dependency| dependency.base)).chain(read);
        if bases.all(|base| base == newest) {
            return Ok(());
        }
        let checker = self.shared.transactions.checker(state);
        self.check_spilled(state, &checker)?;
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
            reads.try_for_each(|tree, range| {
                // A commit has dropped the tree, as TRUNCATE does. Trees that the transaction itself creates are in neither state.
                if !state.trees.contains_key(&tree) && self.base.state.trees.contains_key(&tree) {
                    return Err(Error::Conflict { tree });
                }
                checker.check_range(tree, range, self.base.sequence)
            })?;
        }
        // The messages of spilled statements to trees on disk are in runs.
        let on_disk: Vec<_> =
            self.spills.last().map(|spill| (spill.mark.ends[0], spill.mark.base)).into_iter().collect();
        let in_memory: Vec<_> = self.spills.iter().flat_map(|spill| spill.in_memory.iter().copied()).collect();
        for (part, (bytes, spilled)) in self.batch.parts().into_iter().zip([on_disk, in_memory]).enumerate() {
            let mut start = 0;
            for (end, base) in spilled.into_iter().chain(self.marks.iter().map(|mark| (mark.ends[part], mark.base))) {
                let mut operations = Operations::new(&bytes[start..end]);
                while let Some(operation) = operations.next()? {
                    if let Operation::Message { tree, key, .. } = operation {
                        checker.check_key(tree, key, base)?;
                    }
                }
                start = end;
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
        let view = TreeView {
            tree,
            sequence,
            version,
            files,
            locator,
            registration: None,
            own: None,
            reads: None,
            ignores_cache: false,
        };
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

    /// The lengths of both parts of the batch.
    fn ends(&self) -> [usize; 2] {
        self.batch.parts().map(<[u8]>::len)
    }

    /// Creates and drops trees as the writes from `starts` on do.
    fn change_trees(&mut self, starts: [usize; 2]) {
        let ends = self.ends();
        change_trees(&mut self.trees, &self.batch, starts, ends);
    }

    /// Number of statements that have written.
    fn statements(&self) -> usize {
        self.spilled_statements() + self.marks.len()
    }

    fn spilled_statements(&self) -> usize {
        self.spills.last().map_or(0, |spill| spill.statements.end)
    }

    /// The lengths of both parts of the batch before a pending statement.
    fn start_of(&self, pending: usize) -> [usize; 2] {
        let before = pending.checked_sub(1).map(|before| &self.marks[before]);
        before.or(self.spills.last().map(|spill| &spill.mark)).map_or([0, 0], |mark| mark.ends)
    }

    /// Applies the writes of pending statements to buffers, which have those before.
    fn apply_pending(&self, own: &mut OwnWrites, pending: Range<usize>) {
        let first = self.spilled_statements();
        for number in pending {
            let (starts, ends) = (self.start_of(number), self.marks[number].ends);
            apply(own, &self.batch, (first + number + 1) as u64, starts, ends);
        }
    }
}

impl Dependency {
    /// Bytes in memory.
    fn bytes(&self) -> usize {
        let of = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.capacity(),
            Bound::Unbounded => 0,
        };
        size_of::<Dependency>() + of(&self.range.start) + of(&self.range.end)
    }
}

/// Creates and drops trees as the operations between two lengths of both parts of the batch do.
fn change_trees(trees: &mut Arc<StoreVersion>, batch: &WriteBatch, starts: [usize; 2], ends: [usize; 2]) {
    for ((bytes, start), end) in batch.parts().into_iter().zip(starts).zip(ends) {
        let mut operations = Operations::new(&bytes[start..end]);
        while let Some(operation) = checked(operations.next()) {
            match operation {
                Operation::CreateTree { tree, schema } => {
                    let codecs = Arc::new(Codecs::new(schema));
                    let version = match tree.is_memory() {
                        true => TreeVersion::in_memory(codecs, Arc::default()),
                        false => TreeVersion::empty(codecs),
                    };
                    Arc::make_mut(trees).trees.insert(tree, Arc::new(version));
                }
                Operation::DropTree { tree } => drop(Arc::make_mut(trees).trees.remove(&tree)),
                Operation::Message { .. } | Operation::ExtendTree { .. } => {}
            }
        }
    }
}

/// Applies the operations of a statement, which are those between two lengths of both parts of the batch.
fn apply(own: &mut OwnWrites, batch: &WriteBatch, statement: u64, starts: [usize; 2], ends: [usize; 2]) {
    own.statement = statement;
    for ((bytes, start), end) in batch.parts().into_iter().zip(starts).zip(ends) {
        let mut operations = Operations::new(&bytes[start..end]);
        let mut next = checked(operations.next());
        let mut first = start;
        while let Some(operation) = next.take() {
            match operation {
                Operation::Message { tree, .. } => {
                    // All consecutive messages to the tree.
                    let mut last = end - operations.remaining();
                    next = checked(operations.next());
                    while let Some(Operation::Message { tree: same, .. }) = next
                        && same == tree
                    {
                        last = end - operations.remaining();
                        next = checked(operations.next());
                    }
                    own.tree_mut(tree).write(statement, &bytes[first..last]);
                    first = last;
                }
                Operation::DropTree { tree } => {
                    own.remove(tree);
                    first = end - operations.remaining();
                    next = checked(operations.next());
                }
                Operation::CreateTree { .. } | Operation::ExtendTree { .. } => {
                    first = end - operations.remaining();
                    next = checked(operations.next());
                }
            }
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.shared.transactions.leave(self.first_base, self.shared.visible());
    }
}
