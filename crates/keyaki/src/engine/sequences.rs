//! Values of sequences.
//!
//! A sequence returns each of its values once: values that a transaction has taken are not returned by a rollback. The
//! next value is in memory. The catalog tree has a value that no one has taken yet, some values ahead: it is changed once
//! for [`RESERVED`] values, by a commit of its own, before the first of them is returned. So a crash loses values, but
//! never returns one twice. Closing the database writes the exact next value.
//!
//! The next value follows from the last one by the definition that a statement sees. After ALTER SEQUENCE, the old and
//! the new definition therefore share one position: a rollback of the change leaves nothing to undo, and transactions
//! that still see the old definition get values of their own.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use keyaki_store::{Store, WriteBatch};
use parking_lot::Mutex;

use crate::Result;
use crate::catalog::{DocumentKind, SequenceDef, SequencePosition, document, put};

/// Number of values that are logged at a time.
const RESERVED: u64 = 64;

/// The sequences that have been used since the database was opened, by the id of their definition.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    positions: Mutex<HashMap<u64, Arc<Mutex<Position>>>>,
}

/// The parameters of a sequence that determine its next value. ALTER SEQUENCE changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progression {
    min: i64,
    max: i64,
    increment: i64,
    cycles: bool,
}

impl Progression {
    fn of(def: &SequenceDef) -> Progression {
        Progression { min: def.min, max: def.max, increment: def.increment, cycles: def.cycles }
    }
}

/// The position of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    /// The next value; `None` after the last one. A value that was set may lie outside of the limits.
    next: Option<i64>,
    /// The value before `next`; `None` if `next` was set.
    last: Option<i64>,
    /// Number of values, from `next` on, that may be returned without a change of the catalog.
    reserved: u64,
    /// Determines `next`, from `last`, and `reserved`.
    progression: Progression,
}

impl Position {
    fn new(def: &SequenceDef, stored: SequencePosition) -> Position {
        let SequencePosition { next, last } = stored;
        let next = last.map_or(next, |last| def.after(last, 1));
        Position { next, last, reserved: 0, progression: Progression::of(def) }
    }

    /// The document of this position.
    fn exact(&self) -> SequencePosition {
        SequencePosition { next: self.next, last: self.last }
    }

    /// The next value by a definition; `None` after the last one.
    fn upcoming(&self, def: &SequenceDef) -> Option<i64> {
        self.next.and_then(|next| def.within(next))
    }

    /// Continues as `def` requires if the definition has changed.
    fn follow(&mut self, def: &SequenceDef) {
        if self.progression != Progression::of(def) {
            *self = Position::new(def, self.exact());
        }
    }

    /// Moves `steps` values on from `next`, at least one.
    fn advance(&mut self, def: &SequenceDef, next: i64, steps: u64) {
        let stepped = stepped(def, next, steps);
        (self.next, self.last) = (stepped.next, stepped.last);
    }

    /// Appends the next `count` values to `values`. `log` stores the position behind all logged values.
    ///
    /// # Errors
    /// `SequenceLimit`, with the values before it taken; errors of `log`.
    fn take(
        &mut self,
        def: &SequenceDef,
        count: usize,
        values: &mut Vec<i64>,
        log: impl Fn(SequencePosition) -> Result<()>,
    ) -> Result<()> {
        self.follow(def);
        let end = values.len() + count;
        while values.len() < end {
            let next = self.upcoming(def).ok_or_else(|| def.exhausted())?;
            let wanted = (end - values.len()) as u64;
            if self.reserved == 0 {
                let reserved = wanted.max(RESERVED).min(def.left(next));
                log(stepped(def, next, reserved))?;
                self.reserved = reserved;
            }
            let taken = wanted.min(self.reserved);
            // The values lie between the limits; their differences may not.
            values.extend((0..taken as i64).map(|i| next.wrapping_add(i.wrapping_mul(def.increment))));
            self.advance(def, next, taken);
            self.reserved -= taken;
        }
        Ok(())
    }

    /// Goes on behind `value` if the sequence has not reached it yet.
    ///
    /// # Errors
    /// Errors of `log`.
    fn pass(&mut self, def: &SequenceDef, value: i64, log: impl Fn(SequencePosition) -> Result<()>) -> Result<()> {
        self.follow(def);
        let Some(next) = self.upcoming(def).filter(|next| def.reaches(*next, value)) else { return Ok(()) };
        let steps = def.steps(next, value) + 1;
        if steps <= self.reserved {
            self.advance(def, next, steps);
            self.reserved -= steps;
            return Ok(());
        }
        let passed = stepped(def, next, steps);
        let reserved = passed.next.map_or(0, |next| RESERVED.min(def.left(next)));
        log(passed.next.filter(|_| reserved > 0).map_or(passed, |next| stepped(def, next, reserved)))?;
        *self = Position { reserved, ..Position::new(def, passed) };
        Ok(())
    }
}

/// The position `steps` values behind `next`, at least one.
fn stepped(def: &SequenceDef, next: i64, steps: u64) -> SequencePosition {
    // The steps do not lead beyond a limit; their products may exceed the type.
    let last = next.wrapping_add((steps.wrapping_sub(1) as i64).wrapping_mul(def.increment));
    SequencePosition { next: def.after(next, steps), last: Some(last) }
}

impl Sequences {
    /// An id for a new sequence, or for one that starts again. It is random, because a transaction that creates a sequence,
    /// uses it, and is rolled back leaves a position in the catalog.
    pub fn new_id() -> u64 {
        RandomState::new().build_hasher().finish()
    }

    /// The next `count` values of a sequence.
    ///
    /// # Errors
    /// `SequenceLimit`; errors of the store.
    pub fn next(&self, store: &Store, def: &SequenceDef, count: usize) -> Result<Vec<i64>> {
        let position = self.position(store, def)?;
        let mut values = Vec::with_capacity(count);
        position.lock().take(def, count, &mut values, |next| log(store, def, next))?;
        Ok(values)
    }

    /// Goes on behind a value that a statement has given explicitly.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn pass(&self, store: &Store, def: &SequenceDef, value: i64) -> Result<()> {
        let position = self.position(store, def)?;
        position.lock().pass(def, value, |next| log(store, def, next))
    }

    /// Sets the next value, or the value before it if it `is_taken`.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn set(&self, store: &Store, def: &SequenceDef, value: i64, is_taken: bool) -> Result<()> {
        let position = self.position(store, def)?;
        let mut position = position.lock();
        let last = is_taken.then_some(value);
        let new = Position::new(def, SequencePosition { next: Some(value), last });
        log(store, def, new.exact())?;
        *position = new;
        Ok(())
    }

    /// Stores the exact position before a change of the definition: the values that are reserved follow the old one.
    /// Returns the last value, or the next one if no value has been taken, and `None` if both are unknown.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn settle(&self, store: &Store, def: &SequenceDef) -> Result<Option<i64>> {
        let position = self.position(store, def)?;
        let mut position = position.lock();
        if position.reserved > 0 {
            log(store, def, position.exact())?;
            position.reserved = 0;
        }
        Ok(position.last.or(position.next))
    }

    /// The next value; `None` after the last one.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn peek(&self, store: &Store, def: &SequenceDef) -> Result<Option<i64>> {
        let position = self.position(store, def)?;
        let mut position = position.lock();
        position.follow(def);
        Ok(position.upcoming(def))
    }

    /// The exact position of a sequence, also of one that was dropped. `stored` is the position in the catalog, if it
    /// has one.
    pub fn position_of(&self, def: &SequenceDef, stored: Option<SequencePosition>) -> SequencePosition {
        let known = self.positions.lock().get(&def.id).cloned();
        let position = known.map(|position| position.lock().exact()).or(stored);
        Position::new(def, position.unwrap_or(SequencePosition { next: Some(def.first()), last: None })).exact()
    }

    /// Stores the next value of each sequence in place of its reserved bound, so that values do not skip when the database is
    /// opened again. `ids` are those of the sequences that exist.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn close(&self, store: &Store, ids: &BTreeSet<u64>) -> Result<()> {
        let mut batch = WriteBatch::new();
        for (id, position) in self.positions.lock().drain() {
            let position = position.lock();
            if position.reserved > 0 && ids.contains(&id) {
                put(&mut batch, DocumentKind::SequencePosition, &id.to_string(), &position.exact())?;
            }
        }
        if !batch.is_empty() {
            store.commit(batch)?;
        }
        Ok(())
    }

    fn position(&self, store: &Store, def: &SequenceDef) -> Result<Arc<Mutex<Position>>> {
        let mut positions = self.positions.lock();
        if let Some(position) = positions.get(&def.id) {
            return Ok(position.clone());
        }
        let stored = document(store, DocumentKind::SequencePosition, &def.id.to_string())?;
        let stored = stored.unwrap_or(SequencePosition { next: Some(def.first()), last: None });
        let position = Arc::new(Mutex::new(Position::new(def, stored)));
        Ok(positions.entry(def.id).or_insert(position).clone())
    }
}

/// Stores the position behind all logged values. It is durable before a value is returned: a program may use values
/// outside of the database.
fn log(store: &Store, def: &SequenceDef, position: SequencePosition) -> Result<()> {
    let mut batch = WriteBatch::new();
    put(&mut batch, DocumentKind::SequencePosition, &def.id.to_string(), &position)?;
    store.commit(batch)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn def(min: i64, max: i64, increment: i64, cycles: bool) -> SequenceDef {
        let start = if increment > 0 { min } else { max };
        SequenceDef {
            name: crate::catalog::RelationName::public("s"),
            id: 1,
            origin: None,
            min,
            max,
            increment,
            start,
            restart: None,
            ty: keyaki_store::ColumnType::Int64,
            cycles,
            comment: None,
            access: crate::catalog::Access::default(),
        }
    }

    /// A position at which the next value was set.
    fn at(def: &SequenceDef, next: i64) -> Position {
        Position::new(def, SequencePosition { next: Some(next), last: None })
    }

    /// Takes `count` values one after another, or all at once, with the value that a crash would go on with.
    fn taken(def: &SequenceDef, count: usize, at_once: bool) -> (Vec<i64>, Option<i64>) {
        let mut position = at(def, def.start);
        let (mut values, logged) = (Vec::new(), Cell::new(Some(def.start)));
        let log = |stored: SequencePosition| {
            assert_eq!(Position::new(def, stored).next, stored.next);
            logged.set(stored.next);
            Ok(())
        };
        let parts = if at_once { vec![count] } else { vec![1; count] };
        for part in parts {
            if position.take(def, part, &mut values, log).is_err() {
                break;
            }
        }
        (values, logged.get())
    }

    #[test]
    fn values_follow_each_other() {
        for at_once in [false, true] {
            assert_eq!(taken(&def(1, i64::MAX, 1, false), 3, at_once), (vec![1, 2, 3], Some(65)));
            assert_eq!(taken(&def(1, 1000, 3, false), 3, at_once), (vec![1, 4, 7], Some(193)));
            assert_eq!(taken(&def(-9, -1, -2, false), 3, at_once), (vec![-1, -3, -5], None));
            assert_eq!(taken(&def(1, 3, 1, false), 5, at_once).0, [1, 2, 3]);
            assert_eq!(taken(&def(1, 3, 2, false), 5, at_once).0, [1, 3]);
            assert_eq!(taken(&def(1, 3, 1, true), 7, at_once).0, [1, 2, 3, 1, 2, 3, 1]);
            assert_eq!(taken(&def(1, 4, 2, true), 5, at_once).0, [1, 3, 1, 3, 1]);
            assert_eq!(taken(&def(i64::MAX - 1, i64::MAX, 1, false), 5, at_once).0, [i64::MAX - 1, i64::MAX]);
            assert_eq!(taken(&def(i64::MIN, i64::MAX, i64::MAX, false), 5, at_once).0, [i64::MIN, -1, i64::MAX - 1]);
            assert_eq!(taken(&def(i64::MIN, i64::MAX, -1, false), 2, at_once).0, [i64::MAX, i64::MAX - 1]);
        }
        assert_eq!(taken(&def(1, i64::MAX, 1, false), 100, true).1, Some(101));
        assert_eq!(taken(&def(1, i64::MAX, 1, false), 100, false).1, Some(129));
    }

    #[test]
    fn explicit_values_are_passed() {
        let def = def(1, 1000, 10, false);
        let mut position = at(&def, 1);
        let logged = Cell::new(0);
        let log = |stored: SequencePosition| {
            logged.set(stored.next.unwrap_or(-1));
            Ok(())
        };
        for (value, next) in [(0, 1), (-5, 1), (1, 11), (11, 21), (12, 21), (20, 21), (21, 31), (55, 61)] {
            position.pass(&def, value, log).unwrap();
            assert_eq!(position.next, Some(next), "{value}");
        }
        // 64 values from 11 on.
        assert_eq!(logged.get(), 651);
        position.pass(&def, 660, log).unwrap();
        assert_eq!((position.next, logged.get()), (Some(661), -1));
        position.pass(&def, 5000, log).unwrap();
        assert_eq!(position.next, Some(661), "a value that the sequence cannot reach");
        position.pass(&def, 995, log).unwrap();
        assert_eq!(position.next, None);
        position.pass(&def, 995, log).unwrap();
        let down = SequenceDef { min: i64::MIN, max: -1, increment: -1, start: -1, ..def };
        let mut position = at(&down, -1);
        position.pass(&down, -7, |_| Ok(())).unwrap();
        assert_eq!(position.next, Some(-8));
        position.pass(&down, 7, |_| Ok(())).unwrap();
        assert_eq!(position.next, Some(-8));
    }
    #[test]
    fn a_changed_definition_continues_from_the_last_value() {
        let old = def(1, 5, 1, false);
        let mut position = at(&old, 1);
        let mut take = |def: &SequenceDef| {
            let mut values = Vec::new();
            position.take(def, 1, &mut values, |_| Ok(())).map(|()| values[0]).ok()
        };
        assert_eq!((take(&old), take(&old)), (Some(1), Some(2)));
        let wider = SequenceDef { max: 100, increment: 10, ..old.clone() };
        // A transaction with the old definition.
        assert_eq!((take(&wider), take(&wider), take(&old)), (Some(12), Some(22), None));
        assert_eq!(take(&SequenceDef { increment: -1, ..wider.clone() }), Some(21));
        let last = SequenceDef { max: 22, increment: 1, ..wider };
        assert_eq!((take(&last), take(&last), take(&last)), (Some(22), None, None));
        assert_eq!(take(&SequenceDef { max: 23, ..last }), Some(23));
    }
}
