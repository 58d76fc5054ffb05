//! The model of the database: the committed state, the open transactions of the sessions, and their conflicts.
//!
//! A transaction has the state of its snapshot with its own changes. Each commit leaves a record of the rows, tables
//! and definitions that it has changed. At the end of a transaction the records since its snapshot decide whether the
//! commit must fail, may fail, or must succeed:
//!
//! - It *must* fail if both have changed the same row, if a table with changed rows has another definition, if both have
//!   changed definitions, if a unique index would have duplicates, or if a serializable transaction that writes has
//!   read rows that have changed since.
//! - It *may* fail if statements of both have written to the same table, even if they have found no row to write, or if
//!   a serializable transaction has read a table that the other transaction has written. ANALYZE conflicts with changed
//!   definitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::state::{Effect, Expected, Row, State, Table};
use super::steps::{Isolation, Predicate, SESSIONS, Statement};

/// The state of the model.
#[derive(Debug, Default)]
pub struct Model {
    pub committed: State,
    /// The state before the newest commit.
    pub previous: State,
    /// Number of commits.
    version: u64,
    commits: Vec<Commit>,
    sessions: [Option<Transaction>; SESSIONS],
    /// Numbers of tables and definitions.
    pub ids: u64,
    /// The last value of the sequence.
    pub last_value: i64,
    /// The version at the last ANALYZE.
    analyzed: u64,
    /// Values of the sequence that may be missing before the next one.
    pub values_missing: i64,
    /// A conflict without a reason is an error. False for small buffers: the store then drops the record of changed keys,
    /// and transactions conflict with every flushed change of their tables.
    pub has_exact_conflicts: bool,
}

/// The changes of a commit.
#[derive(Debug, Clone, Default)]
struct Commit {
    version: u64,
    /// Rows with other values than before: table id and key.
    rows: BTreeSet<(u64, i64)>,
    /// Tables that statements have written to.
    written: BTreeSet<usize>,
    /// Tables whose definitions have changed.
    defined: BTreeSet<usize>,
}

/// An open transaction.
#[derive(Debug, Clone)]
pub struct Transaction {
    pub isolation: Isolation,
    /// The version and the state of the snapshot; `None` before the first statement.
    base: Option<(u64, State)>,
    work: Work,
    savepoints: Vec<(u8, Work)>,
    reads: Vec<(usize, Predicate)>,
    pub failed: bool,
}

/// The changes of a transaction, to which a rollback to a savepoint returns.
#[derive(Debug, Clone, Default)]
struct Work {
    /// The snapshot with the changes.
    state: State,
    writes: BTreeMap<(u64, i64), Write>,
    /// Tables with written rows, and their definition.
    written: BTreeMap<usize, Definition>,
    /// Tables that statements have written to, even if they have found no row, likewise.
    targets: BTreeMap<usize, Definition>,
    defined: BTreeSet<usize>,
}

/// The definition of a table: its number, and true if the table has the constraint.
type Definition = (u64, bool);

fn definition_of(table: &Table) -> Definition {
    (table.definition, table.checked)
}

/// A row that a transaction has written.
#[derive(Debug, Clone)]
struct Write {
    /// Version of the snapshot of the first statement that has written it.
    version: u64,
    table: usize,
    before: Option<Row>,
    after: Option<Row>,
}

/// The start of a statement in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Success,
    /// It must fail with 40001.
    Conflict,
    /// It may fail with 40001.
    MayConflict,
}

/// The permitted results of COMMIT.
#[derive(Debug, Clone)]
pub enum Ending {
    /// The transaction had failed: it is rolled back.
    RolledBack,
    /// The commit changes nothing.
    Unchanged,
    /// It must fail with 40001, for this reason.
    Conflict(String),
    /// It makes this state, or fails with 40001 if `may_fail` is set.
    Commit { state: State, may_fail: bool },
}

impl Model {
    pub fn transaction(&self, session: usize) -> Option<&Transaction> {
        self.sessions[session].as_ref()
    }

    /// All sessions end, as when the database is closed; the committed state is `committed`.
    pub fn restart(&mut self, committed: State) {
        (self.previous, self.committed) = (committed.clone(), committed);
        self.sessions = Default::default();
        self.commits.clear();
    }

    pub fn begin(&mut self, session: usize, isolation: Isolation) {
        let work = Work::default();
        let open =
            Transaction { isolation, base: None, work, savepoints: Vec::new(), reads: Vec::new(), failed: false };
        self.sessions[session] = Some(open);
    }

    /// ANALYZE has written the statistics of all tables.
    pub fn analyze(&mut self) {
        self.version += 1;
        self.analyzed = self.version;
    }

    pub fn roll_back(&mut self, session: usize) {
        self.sessions[session] = None;
    }

    pub fn fail(&mut self, session: usize) {
        if let Some(open) = &mut self.sessions[session] {
            open.failed = true;
        }
    }

    /// Takes the snapshot of a statement in the transaction of a session. It is a conflict if the definition of a table
    /// with changed rows has changed.
    pub fn start(&mut self, session: usize) -> Start {
        let (version, committed) = (self.version, &self.committed);
        let Some(open) = &mut self.sessions[session] else { return Start::Success };
        if open.base.is_some() && open.isolation != Isolation::ReadCommitted {
            return Start::Success;
        }
        let is_same = |(table, definition): (&usize, &Definition)| {
            committed.tables.get(table).is_some_and(|table| definition_of(table) == *definition)
        };
        if !open.work.written.iter().all(is_same) {
            return Start::Conflict;
        }
        let start = if open.work.targets.iter().all(is_same) { Start::Success } else { Start::MayConflict };
        open.base = Some((version, committed.clone()));
        open.work.state = committed.clone();
        for (&(_, k), write) in &open.work.writes {
            open.work.state.put(write.table, k, write.after.clone());
        }
        start
    }

    /// The permitted results of a statement of a session. The transaction has started, if there is one.
    pub fn expect(&mut self, session: usize, statement: &Statement) -> Expected {
        let state = self.sessions[session].as_ref().map_or(&self.committed, |open| &open.work.state);
        state.run(statement, &mut self.ids)
    }

    /// True if a table that any session sees has an in-memory index.
    pub fn has_memory_indexes(&self) -> bool {
        let mut states = self.sessions.iter().flatten().map(|open| &open.work.state).chain([&self.committed]);
        states.any(|state| {
            state.tables.values().any(|table| table.indexes.values().any(|index| index.method == "masstree"))
        })
    }

    /// Applies the effect of a statement: to the transaction, or as a commit.
    pub fn apply(&mut self, session: usize, effect: Effect) {
        let Some(open) = &mut self.sessions[session] else {
            let work = Work::default().with(&self.committed, self.version, effect);
            self.commit(&work);
            self.previous = std::mem::replace(&mut self.committed, work.state);
            return;
        };
        let version = open.base.as_ref().map_or(0, |(version, _)| *version);
        open.reads.extend(effect.reads.iter().cloned());
        open.work = std::mem::take(&mut open.work).with_own(version, effect);
    }

    /// Records a commit.
    fn commit(&mut self, work: &Work) {
        self.version += 1;
        let rows = work.writes.iter().filter(|(_, write)| write.before != write.after).map(|(key, _)| *key);
        let written = work.targets.keys().copied().collect();
        let commit = Commit { version: self.version, rows: rows.collect(), written, defined: work.defined.clone() };
        if !(commit.written.is_empty() && commit.defined.is_empty()) {
            self.commits.push(commit);
        }
        // Commits before all snapshots conflict with nothing.
        let oldest = self.sessions.iter().flatten().flat_map(|open| {
            let writes = open.work.writes.values().map(|write| write.version);
            open.base.iter().map(|(version, _)| *version).chain(writes)
        });
        let oldest = oldest.min().unwrap_or(self.version);
        self.commits.retain(|commit| commit.version > oldest);
    }

    pub fn save(&mut self, session: usize, name: u8) {
        if let Some(open) = &mut self.sessions[session] {
            open.savepoints.push((name, open.work.clone()));
        }
    }

    pub fn has_savepoint(&self, session: usize, name: u8) -> bool {
        self.sessions[session].as_ref().is_some_and(|open| open.savepoints.iter().any(|(other, _)| *other == name))
    }

    /// Returns to the newest savepoint of this name, which exists. The transaction continues.
    pub fn roll_back_to(&mut self, session: usize, name: u8) {
        let Some(open) = &mut self.sessions[session] else { return };
        while let Some((other, work)) = open.savepoints.pop() {
            if other == name {
                open.work = work.clone();
                open.savepoints.push((other, work));
                open.failed = false;
                return;
            }
        }
    }

    /// Removes the newest savepoint of this name, and later ones.
    pub fn release(&mut self, session: usize, name: u8) {
        let Some(open) = &mut self.sessions[session] else { return };
        while let Some((other, _)) = open.savepoints.pop() {
            if other == name {
                return;
            }
        }
    }

    /// The permitted results of COMMIT in a session with an open transaction.
    pub fn ending(&self, session: usize) -> Ending {
        let Some(open) = &self.sessions[session] else { return Ending::Unchanged };
        let work = &open.work;
        if open.failed {
            return Ending::RolledBack;
        }
        let Some((base, snapshot)) = &open.base else { return Ending::Unchanged };
        if work.writes.is_empty() && work.defined.is_empty() {
            return Ending::Unchanged;
        }
        if let Some(reason) = self.must_conflict(open, *base, snapshot) {
            return Ending::Conflict(reason);
        }
        let state = self.merged(work);
        let mut tables = work.written.keys().chain(&work.defined);
        if !tables.all(|table| state.tables.get(table).is_none_or(|table| table.is_unique())) {
            return Ending::Conflict("a unique index would have duplicates".into());
        }
        Ending::Commit { state, may_fail: !self.has_exact_conflicts || self.may_conflict(open) }
    }

    /// Ends the transaction of a session, which has committed.
    pub fn committed(&mut self, session: usize, state: State) {
        let Some(open) = self.sessions[session].take() else { return };
        self.commit(&open.work);
        self.previous = std::mem::replace(&mut self.committed, state);
    }

    fn must_conflict(&self, open: &Transaction, base: u64, snapshot: &State) -> Option<String> {
        let work = &open.work;
        for (&(id, k), write) in work.writes.iter().filter(|(_, write)| write.before != write.after) {
            let mut later = self.commits.iter().filter(|commit| commit.version > write.version);
            if later.any(|commit| commit.rows.contains(&(id, k))) {
                return Some(format!("another transaction has changed the row {k} of t{}", write.table));
            }
            let now = self.committed.tables.get(&write.table).map(|table| definition_of(table));
            if !work.defined.contains(&write.table) && now != work.written.get(&write.table).copied() {
                return Some(format!("another transaction has changed the definition of t{}", write.table));
            }
        }
        if !work.defined.is_empty()
            && self.commits.iter().any(|commit| commit.version > base && !commit.defined.is_empty())
        {
            return Some("another transaction has changed definitions".into());
        }
        if open.isolation != Isolation::Serializable {
            return None;
        }
        let selected = |state: &State, number: &usize, predicate: &Predicate| -> Option<Vec<(i64, Row)>> {
            let rows = state.tables.get(number)?.rows.iter();
            Some(rows.filter(|(k, row)| predicate.accepts(**k, row)).map(|(k, row)| (*k, row.clone())).collect())
        };
        let changed = open.reads.iter().find(|(number, predicate)| {
            // A table that the transaction has created is in neither state.
            selected(snapshot, number, predicate) != selected(&self.committed, number, predicate)
        });
        changed.map(|(number, predicate)| format!("the rows of t{number} with {} have changed", predicate.sql("")))
    }

    fn may_conflict(&self, open: &Transaction) -> bool {
        let base = open.base.as_ref().map_or(0, |(version, _)| *version);
        if !open.work.defined.is_empty() && self.analyzed > base {
            return true;
        }
        let oldest = open.work.writes.values().map(|write| write.version).min().unwrap_or(base).min(base);
        let reads = open.reads.iter().filter(|_| open.isolation == Isolation::Serializable).map(|(table, _)| table);
        let tables: BTreeSet<usize> =
            open.work.targets.keys().chain(&open.work.defined).chain(reads).copied().collect();
        let later = self.commits.iter().filter(|commit| commit.version > oldest);
        later.into_iter().any(|commit| commit.written.union(&commit.defined).any(|table| tables.contains(table)))
    }

    /// The committed state with the changes of a transaction.
    fn merged(&self, work: &Work) -> State {
        let mut state = self.committed.clone();
        for number in &work.defined {
            let Some(own) = work.state.tables.get(number) else {
                state.tables.remove(number);
                continue;
            };
            let mut own = own.clone();
            // Rows that other transactions have changed remain, with the columns of the new definition.
            if let Some(current) = state.tables.get(number).filter(|current| current.id == own.id) {
                let (old, own) = (current.d, Arc::make_mut(&mut own));
                own.rows = current.rows.clone();
                if own.d != old {
                    own.rows.values_mut().for_each(|row| row.d = own.d);
                }
            }
            state.tables.insert(*number, own);
        }
        for (&(id, k), write) in work.writes.iter().filter(|(_, write)| write.before != write.after) {
            if state.tables.get(&write.table).is_some_and(|table| table.id == id) {
                state.put(write.table, k, write.after.clone());
            }
        }
        state
    }
}

impl Work {
    /// The first statement on a snapshot.
    fn with(self, snapshot: &State, version: u64, effect: Effect) -> Work {
        Work { state: snapshot.clone(), ..self }.with_own(version, effect)
    }

    /// One more statement, on the snapshot of this version.
    fn with_own(mut self, version: u64, effect: Effect) -> Work {
        let row = |state: &State, table: usize, k: i64| state.tables.get(&table)?.rows.get(&k).cloned();
        for (table, k) in effect.written {
            let Some(old) = self.state.tables.get(&table) else { continue };
            self.written.entry(table).or_insert(definition_of(old));
            let before = row(&self.state, table, k);
            let write = self.writes.entry((old.id, k)).or_insert(Write { version, table, before, after: None });
            write.after = row(&effect.state, table, k);
        }
        if let Some((target, table)) = effect.target.and_then(|target| Some((target, self.state.tables.get(&target)?)))
        {
            self.targets.entry(target).or_insert(definition_of(table));
        }
        if let Some(defined) = effect.defined {
            self.defined.insert(defined);
            // Later writes belong to the new definition. Rows of a changed table get their new form.
            if let Some(table) = effect.state.tables.get(&defined) {
                self.written.entry(defined).and_modify(|definition| *definition = definition_of(table));
                for (&(id, k), write) in &mut self.writes {
                    if id == table.id {
                        write.after = table.rows.get(&k).cloned();
                    }
                }
            }
        }
        self.state = effect.state;
        self
    }
}

impl State {
    /// Inserts, replaces or removes a row of a table, if the table exists.
    fn put(&mut self, table: usize, k: i64, row: Option<Row>) {
        let Some(table) = self.tables.get_mut(&table) else { return };
        let rows = &mut Arc::make_mut(table).rows;
        match row {
            Some(row) => drop(rows.insert(k, row)),
            None => drop(rows.remove(&k)),
        }
    }
}
