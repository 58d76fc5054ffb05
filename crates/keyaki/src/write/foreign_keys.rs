//! FOREIGN KEY constraints: lookups of keys at both ends.
//!
//! ```text
//!  referencing table                     referenced table
//!  row (a, b) ──── key (a, b) ────────► tree with the unique key: exists?      new rows
//!  tree that starts with (a, b) ◄────── key of a deleted or changed row        removed keys
//! ```
//!
//! New rows are checked where they are written, like other constraints. The removal of keys may have actions, which are
//! statements of their own ([`crate::sql`]); this module says which keys a change removes and which of them rows refer to.
//!
//! In a transaction, a row depends on the existence of the rows that it refers to, and a removed key depends on the absence
//! of rows that refer to it: of two concurrent transactions that contradict each other, the second one to commit fails.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::DataType;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt};
use keyaki_store::{Direction, KeyRange, Snapshot, TreeId, TreeView};

use super::apply::{TableChange, describe_key, first_key};
use super::origin::Origin;
use super::rows::{Keys, TableRows};
use super::{WriteStatement, bulk};
use crate::base::row_locks::LockMode;
use crate::catalog::{Catalog, ForeignKeyDef, Table, TableTree};
use crate::engine::Engine;
use crate::{Error, Result};

/// Changes with at most this many rows are checked on the calling thread.
const ROWS_INLINE_MAX: usize = 1000;

/// A foreign key, with the tables at both ends. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct ForeignKey {
    pub referencing: Arc<Table>,
    pub referenced: Arc<Table>,
    /// Position in the definition of the referencing table.
    position: usize,
}

/// Keys of a foreign key: for each of its columns an array with the type of the referenced column. Rows with nulls refer
/// to nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyRows {
    pub columns: Vec<ArrayRef>,
    pub rows: usize,
}

/// The keys of referenced rows that a change removes.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Keys of deleted rows. No new row has them.
    pub deleted: KeyRows,
    /// Old and new keys of updated rows, in parallel.
    pub updated: KeyRows,
    pub updated_to: KeyRows,
    /// Those of `updated` that no new row has.
    pub updated_away: KeyRows,
}

/// A tree whose key starts with the columns of a foreign key at one of its ends.
struct KeyTree<'t> {
    id: TreeId,
    encoding: &'t TableTree,
    /// For each leading column of the tree, its place in [`ForeignKeyDef::columns`].
    order: Vec<usize>,
    /// They are the whole key.
    is_whole: bool,
}

impl KeyRows {
    /// Keys with these columns.
    pub fn of(columns: Vec<ArrayRef>) -> KeyRows {
        let rows = columns.first().map_or(0, |column| column.len());
        KeyRows { columns, rows }
    }

    /// The keys at the given positions.
    pub fn select(&self, rows: &UInt32Array) -> Result<KeyRows> {
        let columns = self.columns.iter().map(|column| Ok(take(column, rows, None)?));
        Ok(KeyRows { columns: columns.collect::<Result<_>>()?, rows: rows.len() })
    }

    fn has_null(&self, row: usize) -> bool {
        self.columns.iter().any(|column| column.is_null(row))
    }
}

impl KeyTree<'_> {
    /// Encodes the keys without nulls.
    fn keys(&self, rows: &KeyRows) -> Keys {
        let columns: Vec<ArrayRef> = self.order.iter().map(|&place| rows.columns[place].clone()).collect();
        Keys::encode(&self.encoding.keys, &columns, rows.rows, |row| rows.has_null(row))
    }

    /// The entries with a key.
    fn range(&self, key: &[u8]) -> KeyRange {
        let (start, end) = (std::ops::Bound::Included(key.to_vec()), std::ops::Bound::Included(key.to_vec()));
        if self.is_whole { KeyRange { start, end } } else { KeyRange::prefix(key.to_vec()) }
    }

    /// The tree in a snapshot; `None` if it does not exist yet, and is empty.
    fn view(&self, snapshot: &Snapshot) -> Result<Option<TreeView>> {
        match snapshot.tree(self.id) {
            Ok(view) => Ok(Some(view)),
            Err(keyaki_store::Error::TreeNotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl ForeignKey {
    /// The foreign keys of a table.
    ///
    /// # Errors
    /// `Internal` if a referenced table does not exist.
    pub fn of(catalog: &Catalog, table: &Arc<Table>) -> Result<Vec<ForeignKey>> {
        let keys = table.def.foreign_keys.iter().enumerate().map(|(position, key)| {
            let referenced = match key.references == table.def.name {
                true => table.clone(),
                false => catalog.tables.get(&key.references).cloned().ok_or_else(|| {
                    Error::Internal(format!("foreign key \"{}\" refers to a table that does not exist", key.name))
                })?,
            };
            Ok(ForeignKey { referencing: table.clone(), referenced, position })
        });
        keys.collect()
    }

    /// The foreign keys that refer to a table.
    ///
    /// # Errors
    /// As [`ForeignKey::of`].
    pub fn referring_to(catalog: &Catalog, table: &Table) -> Result<Vec<ForeignKey>> {
        let mut found = Vec::new();
        for other in catalog.tables.values().filter(|table| !table.def.foreign_keys.is_empty()) {
            found.extend(ForeignKey::of(catalog, other)?);
        }
        found.retain(|key| key.referenced.def.name == table.def.name);
        Ok(found)
    }

    pub fn def(&self) -> &ForeignKeyDef {
        &self.referencing.def.foreign_keys[self.position]
    }

    /// The table refers to itself.
    pub fn is_recursive(&self) -> bool {
        self.def().references == self.referencing.def.name
    }

    /// Positions of the referenced columns in the referenced table.
    fn referenced_columns(&self) -> Result<Vec<usize>> {
        self.def().referenced.iter().map(|name| self.referenced.column(name)).collect()
    }

    /// True if an update of these columns can remove keys.
    pub fn is_referenced_in(&self, assigned: Option<&[usize]>) -> Result<bool> {
        let columns = self.referenced_columns()?;
        Ok(assigned.is_none_or(|assigned| columns.iter().any(|column| assigned.contains(column))))
    }

    /// True if an update of these columns can add references.
    fn is_assigned_in(&self, assigned: Option<&[usize]>) -> bool {
        assigned.is_none_or(|assigned| self.def().columns.iter().any(|column| assigned.contains(column)))
    }

    fn referenced_tree(&self) -> Result<KeyTree<'_>> {
        let columns = self.referenced_columns()?;
        let found = key_trees(&self.referenced, &columns).find(|(_, is_unique)| *is_unique);
        found.map(|(tree, _)| tree).ok_or_else(|| {
            Error::Internal(format!("the columns that foreign key \"{}\" refers to are no key", self.def().name))
        })
    }

    /// A tree of the referencing table whose key starts with the referencing columns; `None` if there is none.
    fn referencing_tree(&self) -> Option<KeyTree<'_>> {
        key_trees(&self.referencing, &self.def().columns).next().map(|(tree, _)| tree)
    }

    /// True if rows that refer to a key are found without reading the whole table.
    pub fn has_index(&self) -> bool {
        self.referencing_tree().is_some()
    }

    /// The keys that rows of the referencing table refer to, in the types of the referenced columns. Without the last
    /// part, it is null where a key does not fit into them.
    fn references(&self, rows: &TableRows) -> Result<(KeyRows, Option<usize>)> {
        let given = columns_of(rows, &self.def().columns)?;
        let types = self.referenced_columns()?.into_iter().map(|column| type_of(&self.referenced, column));
        let columns = given.iter().zip(types).map(|(column, ty)| converted(column, &ty));
        let keys = KeyRows::of(columns.collect::<Result<_>>()?);
        let is_lost = |row: &usize| keys.has_null(*row) && given.iter().all(|column| column.is_valid(*row));
        let lost = (0..keys.rows).find(is_lost);
        Ok((keys, lost))
    }

    /// The keys of rows of the referenced table.
    fn keys_of(&self, rows: &TableRows) -> Result<KeyRows> {
        Ok(KeyRows::of(columns_of(rows, &self.referenced_columns()?)?))
    }

    /// The keys that a change of the referenced table removes.
    pub fn removed(&self, change: &TableChange) -> Result<Removed> {
        if change.old.len == 0 {
            return Ok(Removed::default());
        }
        assert!(!change.old_repeats, "each old row occurs once");
        let tree = self.referenced_tree()?;
        let old = self.keys_of(&change.old)?;
        let new = if change.new.len > 0 { self.keys_of(&change.new)? } else { KeyRows::default() };
        let added = if new.rows > 0 { tree.keys(&new) } else { Keys::default() };
        let new_of_row = new_keys_of_pairs(&added, change.pairs);
        let (mut deleted, mut updated, mut away) = (Vec::new(), Vec::new(), Vec::new());
        let keys = tree.keys(&old);
        let mut remaining = added.members();
        for i in keys.sorted() {
            let (key, row) = (keys.get(i), keys.row(i));
            let is_gone = !remaining.contains(key);
            if row >= change.pairs {
                deleted.extend(is_gone.then_some(row as u32));
            } else if new_of_row[row].is_none_or(|new| added.get(new) != key) {
                updated.push(row as u32);
                away.extend(is_gone.then_some(row as u32));
            }
        }
        let updated = UInt32Array::from(updated);
        Ok(Removed {
            deleted: old.select(&deleted.into())?,
            updated_to: if updated.is_empty() { KeyRows::default() } else { new.select(&updated)? },
            updated: old.select(&updated)?,
            updated_away: old.select(&away.into())?,
        })
    }

    /// The keys that the referenced table does not have, each once. In a transaction, the others must continue to exist.
    /// Blocks.
    ///
    /// # Errors
    /// `Conflict` if the statement has to wait for a transaction that removes one; `Cancelled`, errors of the store.
    pub fn missing(&self, statement: &WriteStatement, snapshot: &Snapshot, keys: &KeyRows) -> Result<KeyRows> {
        keys.select(&self.missing_rows(statement, snapshot, keys)?.into())
    }

    /// As [`ForeignKey::missing`], the positions of the keys.
    fn missing_rows(&self, statement: &WriteStatement, snapshot: &Snapshot, keys: &KeyRows) -> Result<Vec<u32>> {
        let (engine, tree) = (&statement.engine, self.referenced_tree()?);
        let (encoded, view) = (tree.keys(keys), tree.view(snapshot)?);
        let mut missing = Vec::new();
        for i in distinct(&encoded) {
            let range = tree.range(encoded.get(i));
            let exists = match &view {
                Some(view) => has_entry(engine, view, &range, true)?,
                None => false,
            };
            match exists {
                true => {
                    engine.lock_key(&statement.writer, tree.id, encoded.get(i), LockMode::KeyShare)?;
                    engine.depend_on_existence(&statement.writer, tree.id, range);
                }
                false => missing.push(encoded.row(i) as u32),
            }
            statement.writer.decision.check()?;
        }
        Ok(missing)
    }

    /// Locks keys that a change removes from the referenced table, for rows that refer to them. Its own rows are locked with
    /// the change.
    ///
    /// # Errors
    /// `Conflict` if the statement has to wait for a transaction with such a row; `Internal`.
    pub fn lock_removed(&self, statement: &WriteStatement, keys: &KeyRows) -> Result<()> {
        let tree = self.referenced_tree()?;
        if tree.id == self.referenced.def.tree {
            return Ok(());
        }
        let encoded = tree.keys(keys);
        for i in distinct(&encoded) {
            statement.engine.lock_key(&statement.writer, tree.id, encoded.get(i), LockMode::Update)?;
        }
        Ok(())
    }

    /// The first of the keys that rows refer to, found by an index. In a transaction, rows that refer to the other keys
    /// must not be added. Blocks.
    ///
    /// # Errors
    /// `Internal` without an index; `Cancelled`, errors of the store.
    pub fn first_referenced(
        &self,
        statement: &WriteStatement,
        snapshot: &Snapshot,
        keys: &KeyRows,
    ) -> Result<Option<usize>> {
        let tree = self.referencing_tree();
        let tree = tree.ok_or_else(|| Error::Internal("a foreign key without an index".into()))?;
        let encoded = self.references_to(&tree, keys)?;
        let Some(view) = tree.view(snapshot)? else { return Ok(None) };
        for i in distinct(&encoded) {
            let range = tree.range(encoded.get(i));
            if has_entry(&statement.engine, &view, &range, false)? {
                return Ok(Some(encoded.row(i)));
            }
            statement.engine.depend_on(&statement.writer, tree.id, range);
            statement.writer.decision.check()?;
        }
        Ok(None)
    }

    /// In a transaction, no other one may change rows that refer to the keys, or add any; without an index, it may not
    /// change the referencing table at all.
    ///
    /// # Errors
    /// Errors of conversions.
    pub fn depend_on_references(&self, statement: &WriteStatement, keys: &KeyRows) -> Result<()> {
        let Some(tree) = self.referencing_tree() else {
            statement.engine.depend_on_table(&statement.writer, &self.referencing);
            return Ok(());
        };
        let encoded = self.references_to(&tree, keys)?;
        for i in distinct(&encoded) {
            statement.engine.depend_on(&statement.writer, tree.id, tree.range(encoded.get(i)));
        }
        Ok(())
    }

    /// The keys as those of rows that refer to them. No row refers to a key that does not fit into its columns.
    fn references_to(&self, tree: &KeyTree<'_>, keys: &KeyRows) -> Result<Keys> {
        let types = self.def().columns.iter().map(|&column| type_of(&self.referencing, column));
        let columns = keys.columns.iter().zip(types).map(|(column, ty)| converted(column, &ty));
        Ok(tree.keys(&KeyRows::of(columns.collect::<Result<_>>()?)))
    }

    /// The error for a row that refers to key `row`, which does not exist.
    pub fn missing_error(&self, keys: &KeyRows, row: usize) -> Error {
        let (def, table) = (self.def(), &self.referencing);
        let names: Vec<&str> = def.columns.iter().map(|&column| table.def.columns[column].name.as_str()).collect();
        describe_key(&names, &keys.columns, row).map_or_else(
            |error| error,
            |key| Error::MissingReference {
                table: table.def.name.to_string(),
                name: def.name.clone(),
                references: def.references.to_string(),
                key,
            },
        )
    }

    /// The error for the removal of key `row`, which rows refer to.
    pub fn referenced_error(&self, keys: &KeyRows, row: usize) -> Error {
        let def = self.def();
        let names: Vec<&str> = def.referenced.iter().map(String::as_str).collect();
        describe_key(&names, &keys.columns, row).map_or_else(
            |error| error,
            |key| Error::StillReferenced {
                table: self.referencing.def.name.to_string(),
                name: def.name.clone(),
                references: def.references.to_string(),
                key,
            },
        )
    }

    /// The keys that the new rows of a change refer to; `None` if the change cannot add references.
    ///
    /// # Errors
    /// `MissingReference` for a key that does not fit into the referenced columns.
    pub fn added(&self, change: &TableChange) -> Result<Option<KeyRows>> {
        if change.new.len == 0 || !self.is_assigned_in(change.assigned.as_deref()) {
            return Ok(None);
        }
        let (keys, lost) = self.references(&change.new)?;
        match lost {
            Some(row) => Err(self.missing_error(&KeyRows::of(columns_of(&change.new, &self.def().columns)?), row)),
            None => Ok(Some(keys)),
        }
    }

    /// Checks that the keys that new rows refer to exist: in the snapshot, or among the new rows. An error comes with the
    /// number of the row. Blocks.
    fn verify(
        &self,
        statement: &WriteStatement,
        snapshot: &Snapshot,
        rows: &TableRows,
    ) -> std::result::Result<(), (Error, usize)> {
        let first = |error: Error| (error, 0);
        let (keys, lost) = self.references(rows).map_err(first)?;
        let violation = |row: usize| {
            let given = columns_of(rows, &self.def().columns).map_err(first)?;
            Err((self.missing_error(&KeyRows::of(given), row), row))
        };
        if let Some(row) = lost {
            return violation(row);
        }
        let keys = match self.is_recursive() {
            true => self.without_own(rows, keys).map_err(first)?,
            false => keys,
        };
        let missing = self.missing_rows(statement, snapshot, &keys).map_err(first)?;
        let Some(row) = missing.iter().copied().min() else { return Ok(()) };
        match statement.deferred.as_ref().filter(|deferred| deferred.defers(self)) {
            Some(deferred) => {
                deferred.add(self, keys.select(&missing.into()).map_err(first)?, false);
                Ok(())
            }
            None => violation(row as usize),
        }
    }

    /// The keys without those of the rows themselves, which become null.
    fn without_own(&self, rows: &TableRows, keys: KeyRows) -> Result<KeyRows> {
        let tree = self.referenced_tree()?;
        let own = tree.keys(&self.keys_of(rows)?);
        let encoded = tree.keys(&keys);
        let mut is_other = vec![false; keys.rows];
        let mut own = own.members();
        encoded.sorted().for_each(|i| is_other[encoded.row(i)] = !own.contains(encoded.get(i)));
        let is_own = BooleanArray::from_iter(is_other.into_iter().map(|is_other| Some(!is_other)));
        let columns = keys.columns.iter().map(|column| Ok(arrow::compute::nullif(column, &is_own)?));
        Ok(KeyRows { columns: columns.collect::<Result<_>>()?, rows: keys.rows })
    }
}

/// Checks the references of the new rows of a change.
///
/// # Errors
/// `MissingReference`, `Cancelled`, errors of the store.
pub(super) async fn verify_change(
    statement: &WriteStatement,
    snapshot: &Snapshot,
    change: &mut TableChange,
) -> Result<()> {
    if change.new.len == 0 {
        return Ok(());
    }
    // A repeated row has no effect.
    change.drop_repeats()?;
    let (catalog, _) = statement.latest();
    let mut keys = ForeignKey::of(&catalog, &change.table)?;
    keys.retain(|key| key.is_assigned_in(change.assigned.as_deref()));
    verify_rows(statement, snapshot, keys, &change.new).await.map_err(|(error, _)| error)
}

/// Checks the references of new rows. An error comes with the number of the row.
async fn verify_rows(
    statement: &WriteStatement,
    snapshot: &Snapshot,
    keys: Vec<ForeignKey>,
    rows: &TableRows,
) -> std::result::Result<(), (Error, usize)> {
    if rows.len <= ROWS_INLINE_MAX {
        return keys.iter().try_for_each(|key| key.verify(statement, snapshot, rows));
    }
    let (snapshot, rows, of) = (snapshot.clone(), rows.clone(), statement.clone());
    let work = move |_: &Engine| Ok(keys.iter().try_for_each(|key| key.verify(&of, &snapshot, &rows)));
    statement.blocking(work).await.map_err(|error| (error, 0))?
}

/// Passes on rows with all columns, until one refers to a row that does not exist. Recursive foreign keys are not checked:
/// later rows may have the keys.
pub(super) fn verified(
    rows: SendableRecordBatchStream,
    statement: &WriteStatement,
    table: &Arc<Table>,
    origin: &Arc<dyn Origin>,
) -> Result<SendableRecordBatchStream> {
    if table.def.foreign_keys.is_empty() {
        return Ok(rows);
    }
    let (catalog, snapshot) = statement.latest();
    let mut keys = ForeignKey::of(&catalog, table)?;
    keys.retain(|key| !key.is_recursive());
    let (statement, origin, schema) = (statement.clone(), origin.clone(), rows.schema());
    let mut before = 0;
    let rows = rows.map_err(Error::from).and_then(move |batch| {
        let (statement, origin, snapshot, keys) = (statement.clone(), origin.clone(), snapshot.clone(), keys.clone());
        let first = before;
        before += batch.num_rows() as u64;
        async move {
            let rows = all_columns(&batch);
            let verified = verify_rows(&statement, &snapshot, keys, &rows).await;
            verified.map_err(|(error, row)| bulk::at(error, &*origin, first + row as u64))?;
            Ok(batch)
        }
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows.map(|batch| Ok(batch?)))))
}

/// Checks the references of loaded rows to each other.
pub(super) async fn verify_recursive(
    statement: &WriteStatement,
    snapshot: &Snapshot,
    rows: &TableRows,
    table: &Arc<Table>,
    origin: &dyn Origin,
) -> Result<()> {
    let (catalog, _) = statement.latest();
    let mut keys = ForeignKey::of(&catalog, table)?;
    keys.retain(ForeignKey::is_recursive);
    let verified = verify_rows(statement, snapshot, keys, rows).await;
    verified.map_err(|(error, row)| bulk::at(error, origin, row as u64))
}

/// True if a foreign key of the table refers to the table itself.
pub(crate) fn is_recursive(table: &Table) -> bool {
    table.def.foreign_keys.iter().any(|key| key.references == table.def.name)
}

fn all_columns(batch: &RecordBatch) -> TableRows {
    let columns = batch.columns().iter().cloned().map(Some).collect();
    TableRows { len: batch.num_rows(), columns, rowid: None }
}

/// The trees of all rows of a table whose keys start with the given columns, in any order, and whether these are unique.
fn key_trees<'t>(table: &'t Table, columns: &[usize]) -> impl Iterator<Item = (KeyTree<'t>, bool)> {
    let def = &table.def;
    let own = (!def.hidden_rowid).then(|| (def.tree, 0, def.primary_key.clone(), true));
    let indexes = def.indexes.iter().enumerate().filter(|(_, index)| index.predicate.is_none());
    let indexes = indexes.filter_map(|(i, index)| Some((index.tree, i + 1, index.plain_columns()?, index.unique)));
    let count = columns.len();
    own.into_iter().chain(indexes).filter_map(move |(id, tree, key, is_unique)| {
        let leading = key.get(..count)?;
        let order = leading.iter().map(|column| columns.iter().position(|other| other == column));
        let order = order.collect::<Option<Vec<_>>>()?;
        let schema = if tree == 0 { &table.schema } else { &table.index_schemas[tree - 1] };
        let is_whole = schema.key_columns() == count;
        Some((KeyTree { id, encoding: &table.trees[tree], order, is_whole }, is_unique && key.len() == count))
    })
}

/// True if a foreign key can refer to these columns: those of the primary key or of a unique index, in any order.
pub(crate) fn are_key(table: &Table, columns: &[usize]) -> bool {
    key_trees(table, columns).any(|(_, is_unique)| is_unique)
}

/// For each old row with a new one, the position of its new key.
fn new_keys_of_pairs(new: &Keys, pairs: usize) -> Vec<Option<usize>> {
    let mut positions = vec![None; pairs];
    for i in 0..new.len() {
        if let Some(position) = positions.get_mut(new.row(i)) {
            *position = Some(i);
        }
    }
    positions
}

/// The positions of the keys in ascending order, without repetitions.
fn distinct(keys: &Keys) -> impl Iterator<Item = usize> + '_ {
    let mut last = None;
    keys.sorted().filter(move |&i| last.replace(keys.get(i)) != Some(keys.get(i)))
}

/// True if a range has an entry. If that is the `expected` answer, a serializable transaction depends on it by a dependency
/// that the caller adds: other changes of the entry are no conflicts.
fn has_entry(engine: &Engine, view: &TreeView, range: &KeyRange, expected: bool) -> Result<bool> {
    let source = engine.store.blocking();
    let has_entry = |view: &TreeView| {
        let mut cursor = view.cursor(&source, range.clone(), Direction::Ascending);
        Ok(first_key(&mut cursor)?.is_some())
    };
    match has_entry(&view.clone().unrecorded())? {
        answer if answer == expected => Ok(answer),
        _ => has_entry(view),
    }
}

fn columns_of(rows: &TableRows, columns: &[usize]) -> Result<Vec<ArrayRef>> {
    rows.of_tree(&columns.iter().copied().map(Some).collect::<Vec<_>>())
}

fn type_of(table: &Table, column: usize) -> DataType {
    table.def.columns[column].ty.column.arrow()
}

/// Values as another type; null where they do not fit.
fn converted(column: &ArrayRef, ty: &DataType) -> Result<ArrayRef> {
    if column.data_type() == ty { Ok(column.clone()) } else { Ok(cast(column, ty)?) }
}
