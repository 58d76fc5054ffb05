//! Translates changed rows to messages for the trees of a table.
//!
//! Uniqueness: for the primary key and each unique index, the new keys must differ from each other and from the keys of
//! all rows that the statement does not replace. New keys are looked up in ascending order, ranges of them or one by one
//! ([`find_existing`]). Appending to a table costs one lookup.
//!
//! Messages: in each tree, entries whose key is not among the new keys are deleted, and new entries are inserted, which
//! replaces entries with the same key.
//!
//! Every message says whether its key had an entry, so that the store knows the number of rows without reading them. An old
//! entry exists: the statement read its row from the snapshot, under the writer lock, and each index has an entry for each
//! row. A new key that is not among the old ones has no entry: in the table's tree because it was checked to be unique, or
//! is a new rowid; in an index because the key contains the primary key, and the entry of a row with this primary key
//! either is among the old ones or does not exist. A partial index has entries for the rows that its predicate selects: the
//! other rows have no keys in it.
//!
//! While CREATE INDEX CONCURRENTLY builds an index, the primary keys of changed rows become entries of a change log
//! ([`crate::catalog::IndexBuild`]).
//!
//! *Invariant.* No key of a tree gets two messages.

use std::ops::Bound;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use keyaki_store::{
    Direction, KeyCodec, KeyRange, Schema, Snapshot, Store, TreeId, TreeView, WriteBatch, block_on, successor,
};

use super::generated;
use super::rows::{Keys, TableRows, Values};
use crate::base::interrupt::Decision;
use crate::catalog::{IndexDef, Predicate, Table, TableTree};
use crate::engine::Changes;
use crate::{ConstraintKind, Error, Result};

/// A lookup of a range should skip at least this many keys: it decodes up to a chunk of rows.
const RANGE_SKIPS_MIN: usize = 64;
/// Bounds of the number of single lookups between two lookups of ranges.
const SINGLE_LOOKUPS_MIN: usize = 64;
const SINGLE_LOOKUPS_MAX: usize = 8192;

/// The change of a table by a statement. `old` is empty in an INSERT, `new` in a DELETE.
#[derive(Debug)]
pub(crate) struct TableChange {
    pub table: Arc<Table>,
    pub old: TableRows,
    pub new: TableRows,
    /// Number of updated rows: they come first in `old` and `new`, in parallel.
    pub pairs: usize,
    /// An old row may occur several times because the statement joins; its first occurrence counts.
    pub old_repeats: bool,
    /// Columns that may differ between `old` and `new`; `None` for all columns.
    pub assigned: Option<Vec<usize>>,
}

/// A tree of the table.
struct ChangedTree<'a> {
    id: TreeId,
    schema: &'a Arc<Schema>,
    encoding: &'a TableTree,
    /// Number of leading key columns that are unique.
    unique: Option<usize>,
    /// `None` for the table's own tree.
    index: Option<&'a IndexDef>,
    predicate: Option<&'a Predicate>,
}

/// The encoded keys of the old and the new rows in a tree.
struct ChangedKeys {
    old: Keys,
    new: Keys,
    /// The rows of a partial index; `None` if all rows have entries.
    selected_old: Option<BooleanArray>,
    selected_new: Option<BooleanArray>,
}

impl ChangedTree<'_> {
    /// The table columns of the tree's key.
    fn key_columns(&self) -> &[Option<usize>] {
        &self.encoding.columns[..self.schema.key_columns()]
    }
}

impl TableChange {
    /// The change that inserts rows.
    pub fn insertion(table: &Arc<Table>, new: TableRows) -> TableChange {
        let old = TableRows::default();
        TableChange { table: table.clone(), old, new, pairs: 0, old_repeats: false, assigned: None }
    }

    /// The change that deletes rows.
    pub fn deletion(table: &Arc<Table>, old: TableRows) -> TableChange {
        let new = TableRows::default();
        TableChange { table: table.clone(), old, new, pairs: 0, old_repeats: false, assigned: None }
    }

    /// The change that assigns columns of rows, whose generated columns follow.
    pub fn update(table: &Arc<Table>, old: TableRows, new: TableRows, assigned: Vec<usize>) -> TableChange {
        assert!(old.len == new.len, "an update of {} rows to {}", old.len, new.len);
        let (table, pairs) = (table.clone(), old.len);
        let assigned = Some(generated::with_dependents(&table, assigned));
        TableChange { table, old, new, pairs, old_repeats: false, assigned }
    }

    /// Checks the change against `snapshot` and adds its messages to `changes.batch`, and the ranges of its new unique keys
    /// to `changes.absent`. Blocks.
    ///
    /// # Errors
    /// `Constraint` with the first duplicate key; `Cancelled`; errors of the store.
    pub fn apply(
        mut self,
        store: &Store,
        snapshot: &Snapshot,
        decision: &Decision,
        changes: &mut Changes,
    ) -> Result<()> {
        self.drop_repeats()?;
        let table = self.table.clone();
        self.old.add_virtual(&table)?;
        self.new.add_virtual(&table)?;
        let main = main_tree(&table);
        let indexes = table.def.indexes.iter().enumerate().map(|(i, index)| index_tree(&table, i, index));
        let mut trees: Vec<ChangedTree<'_>> = [Ok(main)].into_iter().chain(indexes).collect::<Result<_>>()?;
        trees.retain(|tree| self.concerns(tree));
        let mut keys = Vec::with_capacity(trees.len());
        for tree in &trees {
            decision.check()?;
            let of_tree = self.keys(tree)?;
            self.check_unique(tree, &of_tree, store, snapshot, &mut changes.absent)?;
            keys.push(of_tree);
        }
        for (tree, keys) in trees.iter().zip(&keys) {
            decision.check()?;
            self.write(tree, keys, &mut changes.batch)?;
            if tree.id == table.def.tree {
                self.log(tree, keys, &mut changes.batch)?;
            }
        }
        changes.rows += self.old.len.max(self.new.len) as u64;
        changes.grown += self.new.len as i64 - self.old.len as i64;
        Ok(())
    }

    /// Adds the entries of all rows to an index that the statement creates. Blocks.
    ///
    /// # Errors
    /// `Constraint` with the first duplicate key.
    pub fn apply_to_index(
        mut self,
        index: usize,
        store: &Store,
        snapshot: &Snapshot,
        changes: &mut Changes,
    ) -> Result<()> {
        let table = self.table.clone();
        self.new.add_virtual(&table)?;
        let tree = index_tree(&table, index, &table.def.indexes[index])?;
        let keys = self.keys(&tree)?;
        self.check_unique(&tree, &keys, store, snapshot, &mut changes.absent)?;
        self.write(&tree, &keys, &mut changes.batch)
    }

    /// Adds the difference between the entries of the old and the new rows in an index whose uniqueness the caller checks.
    ///
    /// # Errors
    /// Errors of the expressions of the index.
    pub fn apply_to_built_index(mut self, index: usize, batch: &mut WriteBatch) -> Result<()> {
        let table = self.table.clone();
        self.old.add_virtual(&table)?;
        self.new.add_virtual(&table)?;
        let tree = index_tree(&table, index, &table.def.indexes[index])?;
        self.write(&tree, &self.keys(&tree)?, batch)
    }

    /// Drops all but the first occurrence of each old row, with the new rows in their places.
    pub fn drop_repeats(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.old_repeats) || self.old.len == 0 {
            return Ok(());
        }
        self.retain(distinct_rows(&self.table, &self.old)?)
    }

    /// Drops the old rows at other positions than `rows`, with the new rows in their places.
    pub fn retain(&mut self, rows: Vec<u32>) -> Result<()> {
        if rows.len() == self.old.len {
            return Ok(());
        }
        let rows = UInt32Array::from(rows);
        if self.new.len > 0 {
            self.new = self.new.select(&rows)?;
        }
        self.old = self.old.select(&rows)?;
        self.pairs = self.pairs.min(rows.len());
        Ok(())
    }

    /// True if a column of the tree or of its predicate may change. The table's own tree contains all columns.
    fn concerns(&self, tree: &ChangedTree<'_>) -> bool {
        let of_predicate = tree.predicate.iter().flat_map(|predicate| &predicate.condition.columns);
        let mut columns = tree.encoding.columns.iter().flatten().chain(of_predicate);
        self.assigned.as_ref().is_none_or(|assigned| columns.any(|column| assigned.contains(column)))
    }

    /// The keys of the rows in a tree.
    fn keys(&self, tree: &ChangedTree<'_>) -> Result<ChangedKeys> {
        let encode = |rows: &TableRows, selected: &Option<BooleanArray>| -> Result<Keys> {
            if rows.len == 0 {
                return Ok(Keys::default());
            }
            let columns = rows.of_tree(tree.key_columns())?;
            Ok(Keys::encode(&tree.encoding.keys, &columns, rows.len, |row| !is_selected(selected, row)))
        };
        let select = |rows: &TableRows| -> Result<Option<BooleanArray>> {
            let Some(predicate) = tree.predicate.filter(|_| rows.len > 0) else { return Ok(None) };
            rows.selected(predicate).map(Some)
        };
        let (selected_old, selected_new) = (select(&self.old)?, select(&self.new)?);
        let (old, new) = (encode(&self.old, &selected_old)?, encode(&self.new, &selected_new)?);
        Ok(ChangedKeys { old, new, selected_old, selected_new })
    }

    fn check_unique(
        &self,
        tree: &ChangedTree<'_>,
        keys: &ChangedKeys,
        store: &Store,
        snapshot: &Snapshot,
        absent: &mut Option<Vec<(TreeId, KeyRange)>>,
    ) -> Result<()> {
        let Some(unique) = tree.unique else { return Ok(()) };
        if self.new.len == 0 {
            return Ok(());
        }
        let (codec, columns) = (&tree.encoding.keys, &tree.encoding.columns[..unique]);
        let new_columns = self.new.of_tree(columns)?;
        let (unique_old, unique_new);
        // The primary key is the whole key of the table's tree, and has no nulls.
        let (old, new) = if tree.id == self.table.def.tree {
            (&keys.old, &keys.new)
        } else {
            unique_new = unique_keys(codec, &new_columns, self.new.len, keys.selected_new.as_ref());
            unique_old = match self.old.len {
                0 => Keys::default(),
                len => unique_keys(codec, &self.old.of_tree(columns)?, len, keys.selected_old.as_ref()),
            };
            (&unique_old, &unique_new)
        };
        let twice = (1..new.len()).find(|&n| new.nth(n - 1) == new.nth(n)).map(|n| new.nth(n).to_vec());
        let found = match twice {
            Some(key) => Some(key),
            // A tree that this statement creates is not in the snapshot and is empty.
            None => match snapshot.tree(tree.id) {
                Ok(view) => find_existing(new, old, unique, store, &view)?,
                Err(keyaki_store::Error::TreeNotFound(_)) => None,
                Err(error) => return Err(error.into()),
            },
        };
        let Some(key) = found else {
            // The key of the table's own tree is the key of a message, which finds conflicts itself.
            if let Some(absent) = absent.as_mut().filter(|_| tree.id != self.table.def.tree) {
                let mut replaced = old.members();
                let added = new.sorted().map(|i| new.get(i)).filter(|key| !replaced.contains(key));
                absent.extend(added.map(|key| (tree.id, KeyRange::prefix(key.to_vec()))));
            }
            return Ok(());
        };
        let row = new.sorted().find(|&i| new.get(i) == key).map_or(0, |i| new.row(i));
        Err(Error::Constraint {
            kind: if tree.id == self.table.def.tree { ConstraintKind::PrimaryKey } else { ConstraintKind::Unique },
            table: self.table.def.name.to_string(),
            name: tree.index.map_or_else(|| self.table.def.primary_key_name(), |index| index.name.clone()),
            key: Some(describe(tree.schema, &new_columns, row)?),
        })
    }

    fn write(&self, tree: &ChangedTree<'_>, keys: &ChangedKeys, batch: &mut WriteBatch) -> Result<()> {
        let TableTree { rows, columns, .. } = tree.encoding;
        let ChangedKeys { old, new, .. } = keys;
        let only_key = tree.key_columns().len() == columns.len();
        let mut kept = new.members();
        let gone = old.sorted().map(|i| old.get(i)).filter(|key| !kept.contains(key));
        gone.for_each(|key| batch.delete_existing_raw(tree.id, key));
        if self.new.len == 0 {
            return Ok(());
        }
        let columns = self.new.of_tree(columns)?;
        let mut values = Values::new(rows, &columns);
        batch.encoded_for(tree.id, tree.schema);
        let mut replaced = old.members();
        // In key order: neighbouring messages go to the same nodes of the root buffer.
        for i in new.sorted() {
            let (key, value) = (new.get(i), values.of(new.row(i)));
            match replaced.contains(key) {
                // An entry that consists only of its key is unchanged if the key is.
                true if only_key => {}
                true => batch.update_raw(tree.id, key, value),
                false => batch.insert_new_raw(tree.id, key, value),
            }
        }
        Ok(())
    }
}

impl TableChange {
    /// Adds the primary keys of the old and the new rows to the change logs of the table, each key once. `keys` are the
    /// keys of the table's own tree.
    fn log(&self, tree: &ChangedTree<'_>, keys: &ChangedKeys, batch: &mut WriteBatch) -> Result<()> {
        for build in &self.table.def.building {
            let mut replaced = keys.old.members();
            let added = keys.new.sorted().filter(|&i| !replaced.contains(keys.new.get(i)));
            let added = added.map(|i| keys.new.row(i) as u32).collect::<Vec<_>>();
            let added = if added.is_empty() { TableRows::default() } else { self.new.select(&added.into())? };
            for rows in [&self.old, &added].into_iter().filter(|rows| rows.len > 0) {
                let entries = build.entries(rows.of_tree(tree.key_columns())?, rows.len)?;
                batch.insert_new(build.log, &build.schema, &entries)?;
            }
        }
        Ok(())
    }
}

/// The first row of each group of rows with the same key in the table's own tree, ascending.
pub(crate) fn distinct_rows(table: &Table, rows: &TableRows) -> Result<Vec<u32>> {
    Ok(row_keys(table, rows)?.distinct_rows())
}

/// The encoded primary keys, or hidden rowids, of rows.
pub(crate) fn row_keys(table: &Table, rows: &TableRows) -> Result<Keys> {
    present_keys(table, rows, |_| false)
}

/// As [`row_keys`], without the rows that are missing.
///
/// # Errors
/// As [`row_keys`].
pub(crate) fn present_keys(table: &Table, rows: &TableRows, is_missing: impl Fn(usize) -> bool) -> Result<Keys> {
    if rows.len == 0 {
        return Ok(Keys::default());
    }
    let tree = main_tree(table);
    let columns = rows.of_tree(tree.key_columns())?;
    Ok(Keys::encode(&tree.encoding.keys, &columns, rows.len, is_missing))
}

fn main_tree(table: &Table) -> ChangedTree<'_> {
    ChangedTree {
        id: table.def.tree,
        schema: &table.schema,
        encoding: &table.trees[0],
        unique: (!table.def.hidden_rowid).then(|| table.schema.key_columns()),
        index: None,
        predicate: None,
    }
}

fn index_tree<'a>(table: &'a Table, position: usize, index: &'a IndexDef) -> Result<ChangedTree<'a>> {
    Ok(ChangedTree {
        id: index.tree,
        schema: &table.index_schemas[position],
        encoding: &table.trees[position + 1],
        unique: index.unique.then_some(index.keys.len()),
        index: Some(index),
        predicate: table.predicate(position)?,
    })
}

fn is_selected(selected: &Option<BooleanArray>, row: usize) -> bool {
    selected.as_ref().is_none_or(|selected| selected.value(row))
}

/// Encodes the keys of the rows without nulls in the key columns: nulls are never equal. `selected` are the rows of a
/// partial index.
pub(crate) fn unique_keys(
    codec: &KeyCodec,
    columns: &[ArrayRef],
    rows: usize,
    selected: Option<&BooleanArray>,
) -> Keys {
    let nullable: Vec<&ArrayRef> = columns.iter().filter(|column| column.null_count() > 0).collect();
    let is_free = |row| nullable.iter().any(|column| column.is_null(row)) || selected.is_some_and(|s| !s.value(row));
    Keys::encode(codec, columns, rows, is_free)
}

/// The first key of `new` that the tree contains and `old` does not. Each key has `columns` columns of the tree's key.
///
/// A lookup of a range skips the new keys below the key that it finds. If it skips few, the next keys are looked up one
/// by one: the filters of pages exclude most keys, and no other row is decoded.
pub(crate) fn find_existing(
    new: &Keys,
    old: &Keys,
    columns: usize,
    store: &Store,
    view: &TreeView,
) -> Result<Option<Vec<u8>>> {
    let source = store.blocking();
    let Some(last) = new.len().checked_sub(1) else { return Ok(None) };
    let end = successor(new.nth(last)).map_or(Bound::Unbounded, Bound::Excluded);
    let single = |key: &[u8]| match columns == view.schema().key_columns() {
        true => KeyRange { start: Bound::Included(key.to_vec()), end: Bound::Included(key.to_vec()) },
        false => KeyRange::prefix(key.to_vec()),
    };
    // Number of keys to look up one by one, now and after the next range that skips few keys.
    let (mut singles, mut next_singles) = (0_usize, SINGLE_LOOKUPS_MIN);
    let (mut replaced, mut next) = (old.members(), 0);
    while next <= last {
        let key = new.nth(next);
        if replaced.contains(key) {
            next += 1;
            continue;
        }
        let by_range = singles == 0 && next < last;
        let range = match by_range {
            true => KeyRange { start: Bound::Included(key.to_vec()), end: end.clone() },
            false => single(key),
        };
        let mut cursor = view.cursor(&source, range, Direction::Ascending);
        let found = first_key(&mut cursor)?;
        if found.as_ref().is_some_and(|found| found.starts_with(key)) {
            return Ok(Some(key.to_vec()));
        }
        if !by_range {
            (next, singles) = (next + 1, singles.saturating_sub(1));
            continue;
        }
        let Some(found) = found else { return Ok(None) };
        // The tree has no key between `key` and `found`. Keys are prefix-free, so at most one new key is a prefix of
        // `found`.
        let before = next;
        while next <= last && new.nth(next) < found.as_slice() && !found.starts_with(new.nth(next)) {
            next += 1;
        }
        if next - before < RANGE_SKIPS_MIN {
            (singles, next_singles) = (next_singles, (2 * next_singles).min(SINGLE_LOOKUPS_MAX));
        } else {
            next_singles = SINGLE_LOOKUPS_MIN;
        }
    }
    Ok(None)
}

/// The encoded key of the cursor's next row; `None` at the end.
pub(super) fn first_key(
    cursor: &mut keyaki_store::Cursor<'_, &keyaki_store::BlockingPages>,
) -> Result<Option<Vec<u8>>> {
    while let Some(chunk) = block_on(cursor.next())? {
        if let Some(key) = chunk.first_key() {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// Describes the key of a row for error messages: `(a, b)=(1, x)`.
pub(crate) fn describe(schema: &Schema, columns: &[ArrayRef], row: usize) -> Result<String> {
    let names: Vec<&str> = schema.columns().iter().take(columns.len()).map(|c| c.name.as_str()).collect();
    describe_key(&names, columns, row)
}

/// As [`describe`], for columns with these names.
pub(super) fn describe_key(names: &[&str], columns: &[ArrayRef], row: usize) -> Result<String> {
    let options = FormatOptions::new().with_null("NULL");
    let values = columns.iter().map(|column| {
        let formatter = ArrayFormatter::try_new(column, &options)?;
        Ok(formatter.value(row).to_string())
    });
    Ok(format!("({})=({})", names.join(", "), values.collect::<Result<Vec<_>>>()?.join(", ")))
}
