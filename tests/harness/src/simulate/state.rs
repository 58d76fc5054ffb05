//! The model's tables, and the effect of one statement on them.
//!
//! The code favours simplicity: rows are in a `BTreeMap`, queries scan all rows, and each statement returns a new state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::steps::{
    Assignment, CHECK_BOUND, Column, Index, NewRow, OnConflict, Order, PARTIAL_BOUND, Predicate, Query, SCATTER,
    Statement, Upsert,
};

/// A value of a result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    Null,
    Integer(i64),
    Text(Arc<str>),
}

/// A row without its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub a: Option<i64>,
    pub b: Option<i64>,
    pub c: Option<Arc<str>>,
    pub d: Option<i64>,
}

pub type Rows = BTreeMap<i64, Row>;

/// A table. Its definition is that of the statement CREATE TABLE with the changes since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Number of the creation or truncation of the table, so that rows of a dropped table do not match rows of a new one.
    pub id: u64,
    /// Number of the last change of the definition other than of the constraint.
    pub definition: u64,
    pub checked: bool,
    /// The default of column `d`, if the column exists.
    pub d: Option<i64>,
    pub indexes: BTreeMap<usize, Index>,
    pub rows: Rows,
}

/// All tables at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    pub tables: BTreeMap<usize, Arc<Table>>,
}

/// The result of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// Number of changed rows.
    Count(u64),
    Rows {
        rows: Vec<Vec<Value>>,
        ordered: bool,
    },
    /// A value of the sequence, which the caller checks.
    Next,
}

/// What a statement does if it succeeds.
#[derive(Debug, Clone)]
pub struct Effect {
    pub state: State,
    /// Rows that are written, even if with their old values: table and key.
    pub written: BTreeSet<(usize, i64)>,
    /// The table that the statement writes to, even if it writes no row.
    pub target: Option<usize>,
    /// The table whose definition changes.
    pub defined: Option<usize>,
    /// Rows that the statement reads, for serializable transactions.
    pub reads: Vec<(usize, Predicate)>,
    pub answer: Answer,
}

/// The permitted results of a statement: the effect, or an error with one of these SQLSTATEs.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    pub effect: Option<Effect>,
    pub errors: BTreeSet<&'static str>,
}

pub const UNDEFINED_TABLE: &str = "42P01";
pub const DUPLICATE_TABLE: &str = "42P07";
pub const UNDEFINED_OBJECT: &str = "42704";
pub const DUPLICATE_OBJECT: &str = "42710";
pub const UNDEFINED_COLUMN: &str = "42703";
pub const DUPLICATE_COLUMN: &str = "42701";
pub const UNIQUE_VIOLATION: &str = "23505";
pub const CHECK_VIOLATION: &str = "23514";
pub const AFFECTED_TWICE: &str = "21000";

impl Expected {
    pub fn error(code: &'static str) -> Self {
        Expected { effect: None, errors: [code].into() }
    }

    fn success(effect: Effect) -> Self {
        Expected { effect: Some(effect), errors: BTreeSet::new() }
    }
}

impl Predicate {
    pub fn accepts(&self, k: i64, row: &Row) -> bool {
        let within = |value: Option<i64>, low: &i64, high: &i64| value.is_some_and(|v| *low <= v && v <= *high);
        match self {
            Predicate::All => true,
            Predicate::Key(key) => k == *key,
            Predicate::Keys(low, high) => *low <= k && k <= *high,
            Predicate::A(a) => row.a == Some(*a),
            Predicate::ARange(low, high) => within(row.a, low, high),
            Predicate::B(b) => row.b == Some(*b),
            Predicate::BRange(low, high) => within(row.b, low, high),
            Predicate::BIsNull => row.b.is_none(),
            Predicate::CPrefix(digit) => row.c.as_ref().is_some_and(|c| c.starts_with(&digit.to_string())),
        }
    }
}

fn integer(value: Option<i64>) -> Value {
    value.map_or(Value::Null, Value::Integer)
}

fn text(value: &Option<Arc<str>>) -> Value {
    value.clone().map_or(Value::Null, Value::Text)
}

impl Row {
    fn new(new: &NewRow, d: Option<i64>) -> Row {
        Row { a: new.a, b: new.b, c: new.c.as_deref().map(Arc::from), d }
    }

    /// The row as `SELECT k, a, b, c` returns it.
    pub fn values(&self, k: i64) -> Vec<Value> {
        vec![Value::Integer(k), integer(self.a), integer(self.b), text(&self.c)]
    }
}

impl Index {
    /// The values of the row in a unique index; `None` if the row conflicts with none.
    fn unique_key(&self, row: &Row) -> Option<Vec<Value>> {
        if !self.unique || (self.partial && row.a.is_none_or(|a| a < PARTIAL_BOUND)) {
            return None;
        }
        let value = |column: &Column| match column {
            Column::A => integer(row.a),
            Column::B => integer(row.b),
            Column::C => text(&row.c),
        };
        let values: Vec<Value> = self.columns.iter().map(value).collect();
        (!values.contains(&Value::Null)).then_some(values)
    }
}

/// The entries of the unique indexes of a table: index and values, with the key of their row.
struct Unique(BTreeMap<(usize, Vec<Value>), i64>);

impl Unique {
    fn keys(table: &Table, row: &Row) -> Vec<(usize, Vec<Value>)> {
        table.indexes.iter().filter_map(|(&slot, index)| Some((slot, index.unique_key(row)?))).collect()
    }

    /// The entries of the rows; the second value is false if two rows have the same values.
    fn new(table: &Table, rows: &Rows) -> (Unique, bool) {
        let (mut unique, mut valid) = (Unique(BTreeMap::new()), true);
        for (&k, row) in rows {
            for key in Unique::keys(table, row) {
                valid &= unique.0.insert(key, k).is_none();
            }
        }
        (unique, valid)
    }

    /// Keys of other rows that have a value of `row`.
    fn conflicts(&self, table: &Table, k: i64, row: &Row) -> BTreeSet<i64> {
        let found = Unique::keys(table, row).into_iter().filter_map(|key| self.0.get(&key).copied());
        found.filter(|&other| other != k).collect()
    }

    fn insert(&mut self, table: &Table, k: i64, row: &Row) {
        self.0.extend(Unique::keys(table, row).into_iter().map(|key| (key, k)));
    }

    fn remove(&mut self, table: &Table, k: i64, row: &Row) {
        for key in Unique::keys(table, row) {
            if self.0.get(&key) == Some(&k) {
                self.0.remove(&key);
            }
        }
    }
}

impl Table {
    /// True if no two rows have the same values in a unique index.
    pub fn is_unique(&self) -> bool {
        !self.indexes.values().any(|index| index.unique) || Unique::new(self, &self.rows).1
    }

    fn violates_check(&self, row: &Row) -> bool {
        self.checked && row.a.is_some_and(|a| a >= CHECK_BOUND)
    }

    fn selected<'a>(&'a self, predicate: &'a Predicate) -> impl Iterator<Item = (i64, &'a Row)> {
        self.rows.iter().map(|(&k, row)| (k, row)).filter(|(k, row)| predicate.accepts(*k, row))
    }
}

impl State {
    /// The permitted results of a statement. `ids` numbers tables and definitions.
    pub fn run(&self, statement: &Statement, ids: &mut u64) -> Expected {
        match statement {
            Statement::Insert { table, rows, on_conflict } => self.insert(*table, rows, on_conflict, Vec::new()),
            Statement::Fill { table, first, count, repeat, skips } => {
                let rows: Vec<NewRow> = (*first..first + count).map(|i| filled(i, *repeat)).collect();
                let on_conflict = if *skips { OnConflict::Nothing } else { OnConflict::Error };
                self.insert(*table, &rows, &on_conflict, Vec::new())
            }
            Statement::Copy { from, to, predicate, shift } => self.copy(*from, *to, predicate, *shift),
            Statement::Update { table, predicate, assignment } => self.update(*table, predicate, assignment),
            Statement::Move { table, from, to } => self.move_row(*table, *from, *to),
            Statement::Delete { table, predicate } => self.delete(*table, predicate),
            Statement::Select(query) => self.select(query),
            Statement::NextValue => Expected::success(self.unchanged(Vec::new(), Answer::Next)),
            definition => self.define(definition, ids),
        }
    }

    fn unchanged(&self, reads: Vec<(usize, Predicate)>, answer: Answer) -> Effect {
        Effect { state: self.clone(), written: BTreeSet::new(), target: None, defined: None, reads, answer }
    }

    /// The effect of new rows of a table.
    fn changed(
        &self,
        number: usize,
        rows: Rows,
        written: impl IntoIterator<Item = i64>,
        reads: Vec<(usize, Predicate)>,
        count: u64,
    ) -> Effect {
        let mut state = self.clone();
        if let Some(table) = state.tables.get_mut(&number) {
            Arc::make_mut(table).rows = rows;
        }
        let written = written.into_iter().map(|k| (number, k)).collect();
        Effect { state, written, target: Some(number), defined: None, reads, answer: Answer::Count(count) }
    }

    fn insert(
        &self,
        number: usize,
        new: &[NewRow],
        on_conflict: &OnConflict,
        reads: Vec<(usize, Predicate)>,
    ) -> Expected {
        let Some(table) = self.tables.get(&number) else { return Expected::error(UNDEFINED_TABLE) };
        let mut rows = table.rows.clone();
        let (mut unique, _) = Unique::new(table, &rows);
        // Errors of the statement, and those that depend on the order in which an implementation checks.
        let (mut errors, mut doubtful) = (BTreeSet::new(), BTreeSet::new());
        let (mut written, mut count) = (BTreeSet::new(), 0);
        for new in new {
            let (k, mut row) = (new.k, Row::new(new, table.d));
            let others = unique.conflicts(table, k, &row);
            let exists = rows.contains_key(&k);
            let skips = match on_conflict {
                OnConflict::Nothing => exists || !others.is_empty(),
                OnConflict::KeyNothing => exists,
                _ => false,
            };
            if table.violates_check(&row) {
                let is_doubtful = skips || (exists && matches!(on_conflict, OnConflict::Update(_)));
                if is_doubtful { &mut doubtful } else { &mut errors }.insert(CHECK_VIOLATION);
            }
            if skips {
                continue;
            }
            match on_conflict {
                OnConflict::Replace => {
                    for other in others.into_iter().chain(exists.then_some(k)) {
                        if let Some(old) = rows.remove(&other) {
                            unique.remove(table, other, &old);
                            written.insert(other);
                        }
                    }
                }
                OnConflict::Update(upsert) => {
                    if written.contains(&k) {
                        errors.insert(AFFECTED_TWICE);
                    }
                    if let Some(old) = rows.get(&k) {
                        unique.remove(table, k, old);
                        row = updated_by(old, &row, *upsert);
                        if table.violates_check(&row) {
                            errors.insert(CHECK_VIOLATION);
                        }
                    }
                    if !unique.conflicts(table, k, &row).is_empty() {
                        // A later row may remove the conflict.
                        doubtful.insert(UNIQUE_VIOLATION);
                    }
                }
                OnConflict::Error | OnConflict::Nothing | OnConflict::KeyNothing => {
                    if exists || !others.is_empty() {
                        errors.insert(UNIQUE_VIOLATION);
                    }
                }
            }
            unique.insert(table, k, &row);
            rows.insert(k, row);
            written.insert(k);
            count += 1;
        }
        add_violation(table, &rows, &mut errors, &mut doubtful);
        self.unless(errors, doubtful, || self.changed(number, rows, written, reads, count))
    }

    /// The effect, unless there are errors.
    fn unless(
        &self,
        errors: BTreeSet<&'static str>,
        doubtful: BTreeSet<&'static str>,
        effect: impl FnOnce() -> Effect,
    ) -> Expected {
        let effect = errors.is_empty().then(effect);
        Expected { effect, errors: &errors | &doubtful }
    }

    fn copy(&self, from: usize, to: usize, predicate: &Predicate, shift: i64) -> Expected {
        let (Some(source), true) = (self.tables.get(&from), self.tables.contains_key(&to)) else {
            return Expected::error(UNDEFINED_TABLE);
        };
        let new = |(k, row): (i64, &Row)| {
            let c = row.c.as_deref().map(String::from);
            NewRow { k: k + shift, a: row.a, b: row.b, c }
        };
        let rows: Vec<NewRow> = source.selected(predicate).map(new).collect();
        self.insert(to, &rows, &OnConflict::Nothing, vec![(from, predicate.clone())])
    }

    fn update(&self, number: usize, predicate: &Predicate, assignment: &Assignment) -> Expected {
        let Some(table) = self.tables.get(&number) else { return Expected::error(UNDEFINED_TABLE) };
        let (mut rows, mut written, mut errors) = (table.rows.clone(), BTreeSet::new(), BTreeSet::new());
        for (k, row) in table.selected(predicate) {
            let mut row = row.clone();
            match assignment {
                Assignment::A(a) => row.a = *a,
                Assignment::AddA(a) => row.a = row.a.map(|old| old + a),
                Assignment::B(b) => row.b = *b,
                Assignment::AddB(b) => row.b = row.b.map(|old| old + b),
                Assignment::C(c) => row.c = Some(c.as_str().into()),
            }
            if table.violates_check(&row) {
                errors.insert(CHECK_VIOLATION);
            }
            rows.insert(k, row);
            written.insert(k);
        }
        // A violation that a later row of the same statement removes is none.
        let mut doubtful = BTreeSet::new();
        add_violation(table, &rows, &mut errors, &mut doubtful);
        let count = written.len() as u64;
        let reads = vec![(number, predicate.clone())];
        self.unless(errors, doubtful, || self.changed(number, rows, written, reads, count))
    }

    fn move_row(&self, number: usize, from: i64, to: i64) -> Expected {
        let Some(table) = self.tables.get(&number) else { return Expected::error(UNDEFINED_TABLE) };
        let mut rows = table.rows.clone();
        let Some(row) = rows.remove(&from) else {
            let reads = vec![(number, Predicate::Key(from))];
            return Expected::success(self.changed(number, table.rows.clone(), [], reads, 0));
        };
        let errors = if rows.insert(to, row).is_some() { [UNIQUE_VIOLATION].into() } else { BTreeSet::new() };
        let reads = vec![(number, Predicate::Key(from))];
        self.unless(errors, BTreeSet::new(), || self.changed(number, rows, [from, to], reads, 1))
    }

    fn delete(&self, number: usize, predicate: &Predicate) -> Expected {
        let Some(table) = self.tables.get(&number) else { return Expected::error(UNDEFINED_TABLE) };
        let keys: Vec<i64> = table.selected(predicate).map(|(k, _)| k).collect();
        let mut rows = table.rows.clone();
        rows.retain(|k, row| !predicate.accepts(*k, row));
        let count = keys.len() as u64;
        Expected::success(self.changed(number, rows, keys, vec![(number, predicate.clone())], count))
    }

    fn select(&self, query: &Query) -> Expected {
        match query {
            Query::Rows { table, predicate, order, limit } => self.of_table(*table, predicate, |table| {
                let mut rows: Vec<(i64, &Row)> = table.selected(predicate).collect();
                match order {
                    Order::Any | Order::Key => {}
                    Order::KeyDescending => rows.reverse(),
                    // NULL is the last one.
                    Order::AKey => rows.sort_by_key(|(k, row)| (row.a.is_none(), row.a, *k)),
                }
                rows.truncate(limit.unwrap_or(usize::MAX));
                (rows.iter().map(|(k, row)| row.values(*k)).collect(), *order != Order::Any)
            }),
            Query::Aggregate { table, predicate } => self.of_table(*table, predicate, |table| {
                let rows: Vec<(i64, &Row)> = table.selected(predicate).collect();
                let bs = || rows.iter().filter_map(|(_, row)| row.b);
                let r#as = || rows.iter().filter_map(|(_, row)| row.a);
                let count = |count: usize| Value::Integer(count as i64);
                let row = vec![
                    count(rows.len()),
                    count(bs().count()),
                    integer(r#as().reduce(|sum, a| sum + a)),
                    integer(bs().min()),
                    integer(r#as().max()),
                    integer(rows.last().map(|(k, _)| *k)),
                ];
                (vec![row], true)
            }),
            Query::Groups { table, predicate } => self.of_table(*table, predicate, |table| {
                let mut groups: BTreeMap<Option<i64>, (i64, Option<i64>)> = BTreeMap::new();
                for (_, row) in table.selected(predicate) {
                    let (count, sum) = groups.entry(row.a).or_default();
                    *count += 1;
                    *sum = row.b.map(|b| sum.unwrap_or(0) + b).or(*sum);
                }
                let row = |(a, (count, sum))| vec![integer(a), Value::Integer(count), integer(sum)];
                (groups.into_iter().map(row).collect(), false)
            }),
            Query::Join { left, right, predicate } => {
                let Some(right_table) = self.tables.get(right) else { return Expected::error(UNDEFINED_TABLE) };
                let mut expected = self.of_table(*left, predicate, |left| {
                    let mut rows = Vec::new();
                    for (k, row) in left.selected(predicate).filter(|(_, row)| row.b.is_some()) {
                        let partners = right_table.rows.iter().filter(|(_, other)| other.a == row.b);
                        let joined = |(&other, y): (&i64, &Row)| vec![k.into(), other.into(), text(&y.c)];
                        rows.extend(partners.map(joined));
                    }
                    (rows, false)
                });
                if let Some(effect) = &mut expected.effect {
                    // The partners of the selected rows. The empty range names a table of which a plan may read more.
                    effect.reads.push((*right, Predicate::Keys(1, 0)));
                    let left = self.tables.get(left).map(|table| table.selected(predicate));
                    let values: BTreeSet<i64> = left.into_iter().flatten().filter_map(|(_, row)| row.b).collect();
                    effect.reads.extend(values.into_iter().map(|b| (*right, Predicate::A(b))));
                }
                expected
            }
        }
    }

    /// The result of a query of one table: its rows, and whether they are ordered.
    fn of_table(
        &self,
        number: usize,
        predicate: &Predicate,
        query: impl FnOnce(&Table) -> (Vec<Vec<Value>>, bool),
    ) -> Expected {
        let Some(table) = self.tables.get(&number) else { return Expected::error(UNDEFINED_TABLE) };
        let (rows, ordered) = query(table);
        Expected::success(self.unchanged(vec![(number, predicate.clone())], Answer::Rows { rows, ordered }))
    }

    fn define(&self, statement: &Statement, ids: &mut u64) -> Expected {
        let mut state = self.clone();
        *ids += 1;
        let defined = match statement {
            Statement::CreateTable { table, checked, compression: _ } => {
                if self.tables.contains_key(table) {
                    return Expected::error(DUPLICATE_TABLE);
                }
                let (indexes, rows) = (BTreeMap::new(), Rows::new());
                let new = Table { id: *ids, definition: *ids, checked: *checked, d: None, indexes, rows };
                state.tables.insert(*table, Arc::new(new));
                *table
            }
            Statement::DropTable { table } => {
                if state.tables.remove(table).is_none() {
                    return Expected::error(UNDEFINED_TABLE);
                }
                *table
            }
            Statement::DropIndex { table, slot } => {
                let exists = self.tables.get(table).is_some_and(|table| table.indexes.contains_key(slot));
                if !exists {
                    return Expected::error(UNDEFINED_OBJECT);
                }
                state.redefine(*table, *ids, |table| drop(table.indexes.remove(slot)));
                *table
            }
            Statement::Truncate { table } => {
                let id = *ids;
                let empty = |table: &mut Table| (table.id, table.rows) = (id, Rows::new());
                if !state.redefine(*table, id, empty) {
                    return Expected::error(UNDEFINED_TABLE);
                }
                *table
            }
            Statement::CreateIndex { table, slot, index } => {
                let Some(old) = self.tables.get(table) else { return Expected::error(UNDEFINED_TABLE) };
                if old.indexes.contains_key(slot) {
                    return Expected::error(DUPLICATE_TABLE);
                }
                state.redefine(*table, *ids, |table| drop(table.indexes.insert(*slot, index.clone())));
                if !state.tables[table].is_unique() {
                    return Expected::error(UNIQUE_VIOLATION);
                }
                *table
            }
            Statement::AddColumn { table, .. }
            | Statement::DropColumn { table }
            | Statement::AddCheck { table }
            | Statement::DropCheck { table } => {
                let Some(old) = self.tables.get(table) else { return Expected::error(UNDEFINED_TABLE) };
                if let Some(error) = alter_error(statement, old) {
                    return Expected::error(error);
                }
                // A constraint that is added and removed again leaves the definition as it was.
                let is_constraint = matches!(statement, Statement::AddCheck { .. } | Statement::DropCheck { .. });
                let definition = if is_constraint { old.definition } else { *ids };
                state.redefine(*table, definition, |table| alter(statement, table));
                *table
            }
            other => unreachable!("{other:?} changes no definition"),
        };
        let (written, reads) = (BTreeSet::new(), Vec::new());
        let defined = Some(defined);
        Expected::success(Effect { state, written, target: defined, defined, reads, answer: Answer::Done })
    }

    /// Changes the definition of a table. Returns false if it does not exist.
    fn redefine(&mut self, number: usize, id: u64, change: impl FnOnce(&mut Table)) -> bool {
        let Some(table) = self.tables.get_mut(&number) else { return false };
        let table = Arc::make_mut(table);
        change(table);
        table.definition = id;
        true
    }
}

/// The error of a change of a table that cannot be made.
/// Adds the error for two rows with equal values after a statement. If such rows existed before, because another transaction
/// has committed some of them, the transaction fails at its commit at the latest, and the statement may succeed.
fn add_violation(
    table: &Table,
    rows: &Rows,
    errors: &mut BTreeSet<&'static str>,
    doubtful: &mut BTreeSet<&'static str>,
) {
    if !Unique::new(table, rows).1 {
        let was_valid = Unique::new(table, &table.rows).1;
        if was_valid {
            errors.insert(UNIQUE_VIOLATION)
        } else {
            doubtful.insert(UNIQUE_VIOLATION)
        };
    }
}

fn alter_error(statement: &Statement, table: &Table) -> Option<&'static str> {
    match statement {
        Statement::AddColumn { .. } => table.d.map(|_| DUPLICATE_COLUMN),
        Statement::DropColumn { .. } => table.d.is_none().then_some(UNDEFINED_COLUMN),
        Statement::AddCheck { .. } if table.checked => Some(DUPLICATE_OBJECT),
        Statement::AddCheck { .. } => {
            let violates = |row: &Row| row.a.is_some_and(|a| a >= CHECK_BOUND);
            table.rows.values().any(violates).then_some(CHECK_VIOLATION)
        }
        _ => (!table.checked).then_some(UNDEFINED_OBJECT),
    }
}

fn alter(statement: &Statement, table: &mut Table) {
    match statement {
        Statement::AddColumn { default, .. } => {
            table.d = Some(*default);
            table.rows.values_mut().for_each(|row| row.d = Some(*default));
        }
        Statement::DropColumn { .. } => {
            table.d = None;
            table.rows.values_mut().for_each(|row| row.d = None);
        }
        Statement::AddCheck { .. } => table.checked = true,
        _ => table.checked = false,
    }
}

/// A row of [`Statement::Fill`].
fn filled(i: i64, repeat: usize) -> NewRow {
    let (factor, modulus) = SCATTER;
    NewRow { k: i, a: Some(i % 60), b: Some(i * factor % modulus), c: Some(i.to_string().repeat(repeat)) }
}

/// The row after DO UPDATE.
fn updated_by(old: &Row, new: &Row, upsert: Upsert) -> Row {
    let mut row = old.clone();
    match upsert {
        Upsert::SetA => row.a = new.a,
        Upsert::AddA => row.a = old.a.zip(new.a).map(|(old, new)| old + new),
        Upsert::SetBc => (row.b, row.c) = (new.b, new.c.clone()),
    }
    row
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Integer(value)
    }
}
