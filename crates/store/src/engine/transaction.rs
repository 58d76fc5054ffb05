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
//! *Spilled writes.* A large transaction moves its messages from memory to runs in the data file ([`Transaction::spill`]).
//! They lie between its buffers and those of the base. No checkpoint refers to them, so they are free space after a crash.
//! The commit flushes the trees that they change, makes them runs of the roots, and writes a checkpoint, as a bulk load
//! does.
//!
//! *Invariant.* `marks` and `dependencies` ascend by base and by position. The own writes are those of `spills` and of
//! `batch`, which lacks the messages in `spills`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyaki_masstree::pin;

use crate::base::{Direction, Error, KeyRange, Registration, Result, TreeId};
use crate::codec::Codecs;
use crate::engine::conflicts::Checker;
use crate::engine::{Shared, Spilled, Store, Submitted};
use crate::message::{Operation, Operations, WriteBatch, decode};
use crate::pages::{BlockingPages, block_on};
use crate::tree::{
    BatchBounds, Delta, OwnBuffer, OwnWrites, ReadSet, Run, SampledMessages, Snapshot, StoreVersion, TreeVersion,
    TreeView, ValueBounds,
};

/// A transaction that depends on more ranges of a tree when it spills depends on the whole tree from then on.
const DEPENDENCIES_MAX: usize = 1 << 10;

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

/// The messages of consecutive statements to trees on disk, in runs.
#[derive(Debug)]
struct Spill {
    /// The numbers of the statements, from 0.
    statements: Range<usize>,
    /// The end of the last of them; the oldest of their bases.
    mark: Mark,
    /// Trees that the statements drop: earlier messages to them have no effect.
    dropped: BTreeSet<TreeId>,
    trees: BTreeMap<TreeId, SpilledTree>,
    /// The bounds of numbers with all writes up to the last of the statements.
    bounds: BatchBounds,
}

#[derive(Debug)]
struct SpilledTree {
    runs: Runs,
    /// For a sampled tree.
    sample: Option<SampledMessages>,
}

#[derive(Debug, Clone)]
struct Runs {
    /// Newest first.
    runs: Vec<Run>,
    /// Change of the number of rows.
    delta: Delta,
}

impl Runs {
    fn none() -> Runs {
        Runs { runs: Vec::new(), delta: Some(0) }
    }

    /// Adds newer messages.
    fn extend(&mut self, newer: Runs) {
        self.runs.splice(0..0, newer.runs);
        self.delta = self.delta.zip(newer.delta).map(|(older, newer)| older + newer);
    }
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
        let mut own = std::mem::take(&mut self.own);
        self.apply_pending(&mut own, self.marks.len() - 1..self.marks.len());
        self.own = own;
        Ok(())
    }

    /// Moves the messages to trees on disk from memory to the data file. `savepoints` are those to which the transaction may
    /// still be rolled back. Later statements read the messages there. Definitions, and messages to memory trees, stay in
    /// memory. Blocks.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Poisoned`], [`Error::Closed`], device errors, errors of upsert functions. The writes
    /// stay where they were then.
    pub fn spill(&mut self, savepoints: &[Savepoint]) -> Result<()> {
        if self.marks.is_empty() {
            return Ok(());
        }
        self.shared.check_poison()?;
        for (tree, spilled) in self.spills.iter_mut().flat_map(|spill| &mut spill.trees) {
            if let Some(version) = self.trees.trees.get(tree) {
                self.shared.flusher(*tree, version).compact(&mut spilled.runs.runs)?;
            }
        }
        let (first, last) = (self.spilled_statements(), self.statements());
        let live: BTreeSet<usize> = savepoints.iter().map(|Savepoint(statements)| *statements).collect();
        let (mut start, mut spills) = (first, Vec::new());
        for end in live.range(first + 1..last).copied().chain([last]) {
            let bounds = spills.last().map_or(&self.bounds, |(_, bounds)| bounds);
            spills.push(self.write_spill(start..end, bounds)?);
            start = end;
        }
        // No error below.
        for (spill, bounds) in spills {
            self.bounds = bounds;
            self.spills.push(spill);
        }
        self.join_spills(&live);
        self.marks.clear();
        self.batch.remove_messages(self.spills.iter_mut().map(|spill| &mut spill.mark.ends[0]));
        self.bounds.1 = self.ends();
        for (tree, spilled) in self.spilled() {
            // A tree without an own buffer has been dropped.
            if self.own.tree(tree).is_some() {
                self.own.replace(tree, OwnBuffer::above(spilled.runs, spilled.delta));
            }
        }
        self.widen_dependencies();
        Ok(())
    }

    /// Joins the spills between which no live savepoint lies.
    fn join_spills(&mut self, live: &BTreeSet<usize>) {
        let mut joined: Vec<Spill> = Vec::with_capacity(self.spills.len());
        for spill in std::mem::take(&mut self.spills) {
            match joined.last_mut().filter(|before| !live.contains(&before.statements.end)) {
                Some(before) => before.extend(spill),
                None => joined.push(spill),
            }
        }
        self.spills = joined;
    }

    /// Writes the messages of pending statements. `bounds` are those before, as in the transaction; returns those after.
    /// Changes nothing else.
    fn write_spill(
        &self,
        statements: Range<usize>,
        (bounds, admitted): &(BatchBounds, [usize; 2]),
    ) -> Result<(Spill, (BatchBounds, [usize; 2]))> {
        let first = self.spilled_statements();
        let pending = statements.start - first..statements.end - first;
        let own = match pending.len() == self.marks.len() {
            true => self.own.clone(),
            false => {
                let mut own = OwnWrites::default();
                self.apply_pending(&mut own, pending.clone());
                own
            }
        };
        let mut trees = BTreeMap::new();
        for (tree, buffer) in own.trees().filter(|(tree, buffer)| !tree.is_memory() && !buffer.messages.is_empty()) {
            let version = self.trees.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
            let level = version.sample.as_ref().map_or(0, |sample| sample.level);
            let (run, sample) = self.shared.flusher(tree, version).spill(&buffer.messages, level)?;
            let runs = Runs { runs: vec![run], delta: buffer.delta_in_memory() };
            trees.insert(tree, SpilledTree { runs, sample });
        }
        let starts = self.start_of(pending.start);
        let marks = &self.marks[pending];
        let Some(&Mark { ends, .. }) = marks.last() else { unreachable!("a spill has statements") };
        let mut dropped = BTreeSet::new();
        let mut bounds = bounds.clone();
        for ((part, start), (admitted, end)) in
            self.batch.parts().into_iter().zip(starts).zip(admitted.iter().zip(ends))
        {
            decode(&part[start..end], |operation| {
                if let Operation::DropTree { tree } = operation {
                    dropped.insert(tree);
                }
                Ok(())
            })?;
            if *admitted < end {
                bounds.admit(&self.base.state, &part[*admitted..end])?;
            }
        }
        let admitted = [admitted[0].max(ends[0]), admitted[1].max(ends[1])];
        let base = marks.iter().map(|mark| mark.base).fold(self.base.sequence, u64::min);
        let spill = Spill { statements, mark: Mark { ends, base }, dropped, trees, bounds: bounds.clone() };
        Ok((spill, (bounds, admitted)))
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

    /// Replaces many dependencies on a tree by one on all of it, so that their memory is bounded.
    fn widen_dependencies(&mut self) {
        let mut counts: BTreeMap<TreeId, (usize, u64)> = BTreeMap::new();
        for Dependency { tree, base, .. } in &self.dependencies {
            let (count, oldest) = counts.entry(*tree).or_insert((0, *base));
            (*count, *oldest) = (*count + 1, (*oldest).min(*base));
        }
        counts.retain(|_, (count, _)| *count > DEPENDENCIES_MAX);
        if counts.is_empty() {
            return;
        }
        self.dependencies.retain(|dependency| !counts.contains_key(&dependency.tree));
        let wide = |(tree, (_, base))| Dependency { tree, range: KeyRange::all(), base, on: Content::All };
        self.dependencies.extend(counts.into_iter().map(wide));
        self.dependencies.shrink_to_fit();
        self.dependency_bytes = self.dependencies.iter().map(Dependency::bytes).sum();
    }

    fn depend(&mut self, tree: TreeId, range: KeyRange, on: Content) {
        // No other transaction sees a tree that this one has created.
        if self.base.state.trees.contains_key(&tree) {
            let dependency = Dependency { tree, range, base: self.base.sequence, on };
            self.dependency_bytes += dependency.bytes();
            self.dependencies.push(dependency);
        }
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

    /// True if some of the writes are no longer in memory.
    pub fn has_spilled(&self) -> bool {
        !self.spills.is_empty()
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let marks = self.marks.len() * size_of::<Mark>();
        let samples = self.spills.iter().flat_map(|spill| spill.trees.values()).filter_map(|tree| tree.sample.as_ref());
        let samples: usize = samples.map(SampledMessages::bytes).sum();
        self.batch.bytes()
            + self.own.bytes()
            + marks
            + samples
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
            // The snapshot is that of one moment, and all that it sees is acknowledged.
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

    /// Commits all writes by a checkpoint.
    fn commit_spilled(&mut self) -> Result<Submitted> {
        self.spill(&[])?;
        self.join_spills(&BTreeSet::new());
        let [spill] = self.spills.as_slice() else { unreachable!("no savepoint keeps spills apart") };
        let admit = |state: &StoreVersion| {
            self.check_conflicts(state)?;
            let mut admitted = Vec::with_capacity(spill.trees.len());
            for (&tree, SpilledTree { runs, sample }) in &spill.trees {
                let version = self.trees.trees.get(&tree).ok_or(Error::Conflict { tree })?;
                let bounds = match state.trees.get(&tree).filter(|_| !spill.dropped.contains(&tree)) {
                    Some(version) => version.bounds.clone(),
                    // The transaction creates the tree.
                    None => ValueBounds::empty(&version.codecs),
                };
                let bounds = spill.bounds.on_top_of(tree, &bounds)?;
                let Runs { runs, delta } = runs.clone();
                admitted.push((tree, Spilled { runs, delta, bounds, sample: sample.as_ref() }));
            }
            Ok(admitted)
        };
        let shared = &self.shared;
        let sequence = shared.run_structural_change(|| shared.install(&self.batch, Vec::new(), admit))?;
        Ok(Submitted::installed(shared, sequence))
    }

    /// Checks on the state under the commit lock that all changes and dependencies are still valid.
    fn check_conflicts(&self, state: &StoreVersion) -> Result<()> {
        let newest = self.shared.inserted.load(Ordering::Relaxed);
        let spills = self.spills.iter().map(|spill| &spill.mark);
        let bases = spills.clone().chain(&self.marks).map(|mark| mark.base);
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
            reads.try_for_each(|tree, range| checker.check_range(tree, range, self.base.sequence))?;
        }
        for (part, bytes) in self.batch.parts().into_iter().enumerate() {
            let mut start = 0;
            for mark in spills.clone().chain(&self.marks) {
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

    /// Checks the keys in the spills.
    fn check_spilled(&self, state: &StoreVersion, checker: &Checker<'_>) -> Result<()> {
        let dropped = |tree: &TreeId| self.spills.iter().any(|spill| spill.dropped.contains(tree));
        let Some(base) = self.spills.iter().map(|spill| spill.mark.base).min() else { return Ok(()) };
        // No other transaction sees trees that this one has created.
        let is_shared = |tree: &TreeId| self.base.state.trees.contains_key(tree) && !dropped(tree);
        for (tree, spilled) in self.spilled().into_iter().filter(|(tree, _)| is_shared(tree)) {
            let version = state.trees.get(&tree).ok_or(Error::Conflict { tree })?;
            let flusher = self.shared.flusher(tree, version);
            for key in checker.newer_keys(tree, base)? {
                for run in &spilled.runs {
                    if flusher.has_message(run, &key)? {
                        return Err(Error::Conflict { tree });
                    }
                }
            }
        }
        Ok(())
    }

    /// The messages of all spills, without those to trees that were dropped later.
    fn spilled(&self) -> BTreeMap<TreeId, Runs> {
        let mut all: BTreeMap<TreeId, Runs> = BTreeMap::new();
        for spill in &self.spills {
            all.retain(|tree, _| !spill.dropped.contains(tree));
            for (tree, newer) in &spill.trees {
                all.entry(*tree).or_insert_with(Runs::none).extend(newer.runs.clone());
            }
        }
        all
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

    /// The lengths of both parts of the batch.
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

impl Spill {
    /// Adds the messages of the statements that follow.
    fn extend(&mut self, newer: Spill) {
        let Spill { statements, mark, dropped, trees, bounds } = newer;
        assert_eq!(self.statements.end, statements.start, "the statements of spills are consecutive");
        self.statements.end = statements.end;
        self.mark = Mark { ends: mark.ends, base: mark.base.min(self.mark.base) };
        self.trees.retain(|tree, _| !dropped.contains(tree));
        self.dropped.extend(dropped);
        for (tree, newer) in trees {
            match self.trees.entry(tree) {
                Entry::Vacant(new) => drop(new.insert(newer)),
                Entry::Occupied(older) => older.into_mut().extend(newer),
            }
        }
        self.bounds = bounds;
    }
}

impl SpilledTree {
    /// Adds newer messages.
    fn extend(&mut self, newer: SpilledTree) {
        self.runs.extend(newer.runs);
        match (&mut self.sample, newer.sample) {
            (Some(older), Some(newer)) => older.extend(newer),
            (older, newer) => {
                assert!(older.is_none() && newer.is_none(), "all messages of a tree are sampled, or none")
            }
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

/// Applies the operations of a statement, which are those between two lengths of both parts of the batch.
fn apply(own: &mut OwnWrites, batch: &WriteBatch, statement: u64, starts: [usize; 2], ends: [usize; 2]) {
    own.statement = statement;
    for ((bytes, start), end) in batch.parts().into_iter().zip(starts).zip(ends) {
        let mut operations = Operations::new(&bytes[start..end]);
        let mut next = checked(operations.next());
        while let Some(operation) = next.take() {
            match operation {
                Operation::Message { tree, .. } => {
                    let buffer = own.tree_mut(tree);
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
                    own.remove(tree);
                    next = checked(operations.next());
                }
                Operation::CreateTree { .. } | Operation::ExtendTree { .. } => next = checked(operations.next()),
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
