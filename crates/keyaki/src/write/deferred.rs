//! Foreign keys that are checked at the commit of their transaction (DEFERRABLE).
//!
//! A statement adds the keys for which it would fail. Statements that change definitions make all checks before, as
//! constraints are known by their names. The commit, or SET CONSTRAINTS … IMMEDIATE, checks those again: a
//! violation is a key that does not exist, and that a row refers to. Keys of changes that were undone in the meantime are
//! not violated.

use parking_lot::Mutex;

use super::foreign_keys::{ForeignKey, KeyRows};
use crate::catalog::{Catalog, ConstraintTiming, RelationName};
use crate::{Error, ObjectKind, Result};

/// The deferred checks of a session's open transaction.
#[derive(Debug, Default)]
pub(crate) struct Deferred(Mutex<Transaction>);

#[derive(Debug, Default)]
struct Transaction {
    state: State,
    /// The names of the transaction's savepoints, with the state at each.
    savepoints: Vec<(String, State)>,
}

#[derive(Debug, Clone, Default)]
struct State {
    checks: Vec<DeferredCheck>,
    /// The last SET CONSTRAINTS ALL: true for DEFERRED.
    all: Option<bool>,
    /// Later ones of single constraints.
    named: Vec<(ConstraintName, bool)>,
}

/// The table and the name of a foreign key.
pub(crate) type ConstraintName = (RelationName, String);

/// Keys that must exist if rows refer to them.
#[derive(Debug, Clone)]
pub(crate) struct DeferredCheck {
    pub constraint: ConstraintName,
    pub keys: KeyRows,
    /// The keys were removed; else, rows that refer to them were added.
    pub are_removed: bool,
}

impl DeferredCheck {
    /// The foreign key in the catalog of the transaction.
    ///
    /// # Errors
    /// `NotFound`; `Internal` if a referenced table does not exist.
    pub fn key(&self, catalog: &Catalog) -> Result<ForeignKey> {
        let (table, name) = &self.constraint;
        let key = ForeignKey::of(catalog, catalog.table(table)?)?.into_iter().find(|key| key.def().name == *name);
        key.ok_or_else(|| Error::NotFound { kind: ObjectKind::Constraint, name: name.clone() })
    }
}

impl Deferred {
    /// True if the transaction checks a foreign key at its commit.
    pub fn defers(&self, key: &ForeignKey) -> bool {
        let timing = key.def().timing;
        if timing == ConstraintTiming::NotDeferrable {
            return false;
        }
        let transaction = self.0.lock();
        let state = &transaction.state;
        let is_named = |(of, _): &&(ConstraintName, bool)| is_of(of, key);
        let named = state.named.iter().rfind(is_named).map(|(_, is_deferred)| *is_deferred);
        named.or(state.all).unwrap_or(timing == ConstraintTiming::Deferred)
    }

    /// Adds keys of a foreign key.
    pub fn add(&self, key: &ForeignKey, keys: KeyRows, are_removed: bool) {
        let constraint = (key.referencing.def.name.clone(), key.def().name.clone());
        self.0.lock().state.checks.push(DeferredCheck { constraint, keys, are_removed });
    }

    /// The checks of some constraints, or of all.
    pub fn checks(&self, constraints: Option<&[ConstraintName]>) -> Vec<DeferredCheck> {
        let transaction = self.0.lock();
        let state = &transaction.state;
        let is_chosen = |check: &&DeferredCheck| constraints.is_none_or(|names| names.contains(&check.constraint));
        state.checks.iter().filter(is_chosen).cloned().collect()
    }

    /// Sets when the transaction checks some constraints, or all deferrable ones. Their checks have been made if
    /// `is_deferred` is false.
    pub fn set(&self, constraints: Option<Vec<ConstraintName>>, is_deferred: bool) {
        let mut transaction = self.0.lock();
        let state = &mut transaction.state;
        if !is_deferred {
            let is_chosen =
                |check: &DeferredCheck| constraints.as_ref().is_none_or(|names| names.contains(&check.constraint));
            state.checks.retain(|check| !is_chosen(check));
        }
        match constraints {
            Some(names) => state.named.extend(names.into_iter().map(|name| (name, is_deferred))),
            None => {
                state.named.clear();
                state.all = Some(is_deferred);
            }
        }
    }

    /// True if checks are open.
    pub fn has_checks(&self) -> bool {
        !self.0.lock().state.checks.is_empty()
    }

    /// All checks have been made. Statements add later violations again.
    pub fn verified(&self) {
        self.0.lock().state.checks.clear();
    }

    /// Adds a savepoint.
    pub fn save(&self, name: String) {
        let mut transaction = self.0.lock();
        let state = transaction.state.clone();
        transaction.savepoints.push((name, state));
    }

    /// Removes the newest savepoint with a name, and later ones.
    pub fn release(&self, name: &str) {
        let mut transaction = self.0.lock();
        if let Some(place) = transaction.savepoints.iter().rposition(|(known, _)| known == name) {
            transaction.savepoints.truncate(place);
        }
    }

    /// Returns to the newest savepoint with a name, and removes later ones.
    pub fn roll_back_to(&self, name: &str) {
        let mut transaction = self.0.lock();
        if let Some(place) = transaction.savepoints.iter().rposition(|(known, _)| known == name) {
            transaction.savepoints.truncate(place + 1);
            transaction.state = transaction.savepoints[place].1.clone();
        }
    }

    /// Forgets everything, for the next transaction.
    pub fn clear(&self) {
        *self.0.lock() = Transaction::default();
    }
}

fn is_of((table, name): &ConstraintName, key: &ForeignKey) -> bool {
    *table == key.referencing.def.name && *name == key.def().name
}
