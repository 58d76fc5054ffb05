//! Spilled writes: the messages of a large transaction as runs in the data file.
//!
//! ```text
//! statements   0 ──── spill ──── savepoint ──── spill ──── pending ────>
//! in memory    definitions, messages to memory trees       all
//! on disk      runs              runs
//! ```
//!
//! The runs lie between the buffers of the transaction and those of its base. No checkpoint refers to them, so they are free
//! space after a crash. The commit flushes the trees that they change, makes them runs of the roots, and writes a
//! checkpoint, as a bulk load does.
//!
//! *Invariant.* The statements of spills are consecutive. Two spills are separate only while a savepoint lies between them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Content, Dependency, Mark, Savepoint, Transaction, change_trees};
use crate::base::{Error, KeyRange, Result, TreeId};
use crate::engine::conflicts::Checker;
use crate::engine::{Spilled, Submitted};
use crate::message::{Operation, decode};
use crate::tree::{BatchBounds, Delta, OwnBuffer, OwnWrites, Run, SampledMessages, StoreVersion, ValueBounds};

/// A transaction that depends on more ranges of a tree when it spills depends on the whole tree from then on.
const DEPENDENCIES_MAX: usize = 1 << 10;

/// The messages of consecutive statements to trees on disk, in runs.
#[derive(Debug)]
pub(super) struct Spill {
    /// The numbers of the statements, from 0.
    pub statements: Range<usize>,
    /// The end of the last of them; the oldest of their bases.
    pub mark: Mark,
    /// The ends of their messages to memory trees, each with the base.
    pub in_memory: Vec<(usize, u64)>,
    /// Trees that the statements drop: earlier messages to them have no effect.
    dropped: BTreeSet<TreeId>,
    trees: BTreeMap<TreeId, SpilledTree>,
    /// The bounds of numbers with all writes up to the last of the statements.
    pub bounds: BatchBounds,
}

#[derive(Debug)]
struct SpilledTree {
    runs: Runs,
    /// For a sampled tree.
    sample: Option<SampledMessages>,
}

#[derive(Debug, Clone)]
pub(super) struct Runs {
    /// Newest first.
    pub runs: Vec<Run>,
    /// Change of the number of rows.
    pub delta: Delta,
    /// The oldest base of the statements with these messages.
    base: u64,
}

impl Runs {
    /// Adds newer messages.
    fn extend(&mut self, newer: Runs) {
        self.runs.splice(0..0, newer.runs);
        self.delta = self.delta.zip(newer.delta).map(|(older, newer)| older + newer);
        self.base = self.base.min(newer.base);
    }
}

impl Spill {
    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.trees.values().filter_map(|tree| tree.sample.as_ref()).map(SampledMessages::bytes).sum()
    }

    /// Adds the messages of the statements that follow.
    fn extend(&mut self, newer: Spill) {
        let Spill { statements, mark, in_memory, dropped, trees, bounds } = newer;
        assert_eq!(self.statements.end, statements.start, "the statements of spills are consecutive");
        self.statements.end = statements.end;
        self.mark = Mark { ends: mark.ends, base: mark.base.min(self.mark.base) };
        in_memory.into_iter().for_each(|(end, base)| add_end(&mut self.in_memory, end, base));
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

/// Adds the end of messages with a base; neighbours with one base are joined.
fn add_end(ends: &mut Vec<(usize, u64)>, end: usize, base: u64) {
    match ends.last_mut().filter(|last| last.1 == base) {
        Some(last) => last.0 = end,
        None => ends.push((end, base)),
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

impl Transaction {
    /// True if some of the writes are no longer in memory.
    pub fn has_spilled(&self) -> bool {
        !self.spills.is_empty()
    }

    /// Bytes in memory that [`Transaction::spill`] would free.
    pub fn spillable_bytes(&self) -> usize {
        let buffers = self.own.trees().filter(|(tree, _)| !tree.is_memory());
        self.batch.parts()[0].len() + buffers.map(|(_, buffer)| buffer.bytes()).sum::<usize>()
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
                self.shared.flusher(*tree, version).for_transaction().compact(&mut spilled.runs.runs)?;
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
        let mut starts = self.start_of(pending.start);
        let marks = &self.marks[pending.clone()];
        let Some(&Mark { ends, .. }) = marks.last() else { unreachable!("a spill has statements") };
        // The buffers, and the trees that exist after the statements: later ones may drop some.
        let (own, existing) = match pending.len() == self.marks.len() {
            true => (self.own.clone(), self.trees.clone()),
            false => {
                let (mut own, mut existing) = (OwnWrites::default(), self.base.state.clone());
                self.apply_pending(&mut own, pending);
                change_trees(&mut existing, &self.batch, [0, 0], ends);
                (own, existing)
            }
        };
        let (mut dropped, mut bases, mut in_memory) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        for mark in marks {
            for ((part, start), end) in self.batch.parts().into_iter().zip(starts).zip(mark.ends) {
                decode(&part[start..end], |operation| {
                    match operation {
                        Operation::DropTree { tree } => drop(dropped.insert(tree)),
                        Operation::Message { tree, .. } => {
                            let oldest = bases.entry(tree).or_insert(mark.base);
                            *oldest = mark.base.min(*oldest);
                        }
                        Operation::CreateTree { .. } | Operation::ExtendTree { .. } => {}
                    }
                    Ok(())
                })?;
            }
            starts = mark.ends;
            add_end(&mut in_memory, mark.ends[1], mark.base);
        }
        let mut bounds = bounds.clone();
        for ((part, admitted), end) in self.batch.parts().into_iter().zip(admitted).zip(ends) {
            if *admitted < end {
                bounds.admit(&self.base.state, &part[*admitted..end])?;
            }
        }
        let mut trees = BTreeMap::new();
        for (tree, buffer) in own.trees().filter(|(tree, buffer)| !tree.is_memory() && !buffer.messages().is_empty()) {
            let version = existing.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
            let level = version.sample.as_ref().map_or(0, |sample| sample.level);
            let flusher = self.shared.flusher(tree, version).for_transaction();
            let (run, sample) = flusher.spill(buffer.messages(), level)?;
            let base = bases.get(&tree).copied().unwrap_or(self.first_base);
            let runs = Runs { runs: vec![run], delta: buffer.delta_in_memory(), base };
            trees.insert(tree, SpilledTree { runs, sample });
        }
        let admitted = [admitted[0].max(ends[0]), admitted[1].max(ends[1])];
        let base = marks.iter().map(|mark| mark.base).fold(self.base.sequence, u64::min);
        let mark = Mark { ends, base };
        let spill = Spill { statements, mark, in_memory, dropped, trees, bounds: bounds.clone() };
        Ok((spill, (bounds, admitted)))
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
        self.widened = self.dependencies.len();
        self.dependencies.shrink_to_fit();
        self.dependency_bytes = self.dependencies.iter().map(Dependency::bytes).sum();
    }

    /// Commits all writes by a checkpoint.
    pub(super) fn commit_spilled(&mut self) -> Result<Submitted> {
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
                let Runs { runs, delta, .. } = runs.clone();
                admitted.push((tree, Spilled { runs, delta, bounds, sample: sample.as_ref() }));
            }
            Ok(admitted)
        };
        let shared = &self.shared;
        let sequence = shared.run_structural_change(|| shared.install(&self.batch, Vec::new(), admit))?;
        Ok(Submitted::through(shared, sequence))
    }

    /// Checks that no commit which the transaction does not see has changed a key in the spills.
    ///
    /// # Errors
    /// [`Error::Conflict`]; errors of reading runs.
    pub(super) fn check_spilled(&self, state: &StoreVersion, checker: &Checker<'_>) -> Result<()> {
        let dropped = |tree: &TreeId| self.spills.iter().any(|spill| spill.dropped.contains(tree));
        // No other transaction sees trees that this one has created.
        let is_shared = |tree: &TreeId| self.base.state.trees.contains_key(tree) && !dropped(tree);
        for (tree, spilled) in self.spilled().into_iter().filter(|(tree, _)| is_shared(tree)) {
            let version = state.trees.get(&tree).ok_or(Error::Conflict { tree })?;
            let flusher = self.shared.flusher(tree, version);
            for key in checker.newer_keys(tree, spilled.base)? {
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
    pub(super) fn spilled(&self) -> BTreeMap<TreeId, Runs> {
        let mut all: BTreeMap<TreeId, Runs> = BTreeMap::new();
        for spill in &self.spills {
            all.retain(|tree, _| !spill.dropped.contains(tree));
            for (tree, newer) in &spill.trees {
                match all.entry(*tree) {
                    Entry::Vacant(new) => drop(new.insert(newer.runs.clone())),
                    Entry::Occupied(older) => older.into_mut().extend(newer.runs.clone()),
                }
            }
        }
        all
    }
}
