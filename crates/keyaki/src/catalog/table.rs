//! Tables with data derived from their definition: the schemas of the trees, and the mapping from SQL columns to tree
//! columns.
//!
//! Three numberings of columns occur: positions in [`TableDef::columns`] (*table columns*), positions in the table's
//! tree, and positions in the tree of an index. [`Table::table_columns`] and [`Table::index_columns`] map the latter
//! two to the first; `None` stands for the hidden rowid.
//!
//! The expressions of indexes are *virtual columns*: their numbers follow those of the table columns and one place for the
//! hidden rowid. Only trees of indexes have them. *Dropped columns* have the numbers behind those. Only the table's tree has
//! them.
//!
//! Invariant: [`Table::new`] checks the definition, so that column positions in a [`Table`] are always valid.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, ListArray, make_array, new_null_array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, SchemaRef};
use keyaki_store::{Column, ColumnType, KeyCodec, RowCodec, Schema, TreeId};

use super::definitions::{DroppedColumn, IndexKey, IndexMethod, TableDef};
use super::expressions::{Compiled, Predicate, VirtualValue};
use crate::base::type_name;
use crate::catalog::TableStatistics;
use crate::{Error, Result};

/// Name of the hidden key column of tables without PRIMARY KEY. The name is reserved.
pub(crate) const HIDDEN_ROWID: &str = "__rowid";

/// A table: its definition, derived schemas and statistics.
#[derive(Debug)]
pub(crate) struct Table {
    pub def: TableDef,
    /// Schema of the table's tree.
    pub schema: Arc<Schema>,
    /// Schemas of the trees of `def.indexes`, in the same order.
    pub index_schemas: Vec<Arc<Schema>>,
    /// The table's tree, followed by those of the indexes.
    pub trees: Vec<TableTree>,
    /// Arrow schema of `def.columns`, without the hidden rowid.
    pub arrow: SchemaRef,
    /// For each table column, its position in the table's tree.
    pub tree_column: Vec<usize>,
    /// The virtual columns: index and position in its keys.
    virtual_columns: Vec<(usize, usize)>,
    compiled: OnceLock<Compiled>,
    /// `None` before the first ANALYZE or load.
    pub statistics: Option<Arc<TableStatistics>>,
    /// Rows changed since `statistics` were collected, or since the database was opened.
    changed_rows: AtomicU64,
    /// Rows inserted and not deleted since then.
    grown_rows: AtomicI64,
    since: Instant,
}

/// The encoding of a table's rows in one of its trees.
#[derive(Debug)]
pub(crate) struct TableTree {
    pub keys: KeyCodec,
    pub rows: RowCodec,
    /// For each column of the tree, its table column; `None` for the hidden rowid.
    pub columns: Vec<Option<usize>>,
}

impl TableTree {
    fn new(schema: &Schema, columns: Vec<Option<usize>>) -> TableTree {
        TableTree { keys: KeyCodec::new(schema), rows: RowCodec::new(schema), columns }
    }
}

/// Tables with fewer changed rows keep their statistics.
const CHANGED_ROWS_MIN: u64 = 1000;
/// The statistics are collected again after changes of this share of the rows: one tenth.
const CHANGED_SHARE: u64 = 10;
/// Minimum time between two collections, except for tables that have doubled.
const INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time if the number of rows is about the same: prepared statements are planned anew after each collection.
const UPDATES_INTERVAL: Duration = Duration::from_secs(10);

impl Table {
    /// Derives the schemas and column mappings.
    ///
    /// # Errors
    /// `Corrupt` if the definition is inconsistent, which means that the catalog is damaged. `Unsupported` for a key of
    /// a type that keys cannot have.
    pub fn new(def: TableDef, statistics: Option<Arc<TableStatistics>>) -> Result<Table> {
        check(&def)?;
        check_keys(&def)?;
        let fields: Vec<Field> =
            def.columns.iter().map(|c| Field::new(&c.name, c.ty.column.arrow(), c.nullable)).collect();
        let mut table = Table {
            schema: Arc::new(table_schema(&def)),
            index_schemas: Vec::new(),
            trees: Vec::new(),
            arrow: Arc::new(arrow::datatypes::Schema::new(fields)),
            tree_column: tree_columns(&def),
            virtual_columns: virtual_columns(&def),
            compiled: Compiled::trivial(&def).map(OnceLock::from).unwrap_or_default(),
            statistics,
            changed_rows: AtomicU64::new(0),
            grown_rows: AtomicI64::new(0),
            since: Instant::now(),
            def,
        };
        table.index_schemas = (0..table.def.indexes.len()).map(|index| Arc::new(table.index_schema(index))).collect();
        let index_tree = |(i, schema): (usize, &Arc<Schema>)| TableTree::new(schema, table.index_columns(i));
        let own = TableTree::new(&table.schema, table.table_columns());
        table.trees = [own].into_iter().chain(table.index_schemas.iter().enumerate().map(index_tree)).collect();
        Ok(table)
    }

    /// True if a column is generated.
    pub fn has_generated(&self) -> bool {
        self.def.columns.iter().any(|column| column.generated.is_some())
    }

    /// The columns whose values a statement or file may give.
    pub fn given_columns(&self) -> Vec<usize> {
        let columns = self.def.columns.iter().enumerate();
        columns.filter(|(_, column)| column.generated.is_none()).map(|(position, _)| position).collect()
    }

    /// The expressions of the definition; `None` if they have not been compiled yet.
    pub fn compiled(&self) -> Option<&Compiled> {
        self.compiled.get()
    }

    /// Keeps the compiled expressions, unless another thread was first.
    pub fn set_compiled(&self, compiled: Compiled) -> &Compiled {
        assert!(compiled.checks.len() == self.def.checks.len(), "each check is compiled");
        assert!(compiled.constants.len() == self.def.columns.len(), "each column has a place");
        assert!(compiled.predicates.len() == self.def.indexes.len(), "each index has a place");
        assert!(compiled.virtual_values.len() == self.virtual_columns.len(), "each virtual column is compiled");
        self.compiled.get_or_init(|| compiled)
    }

    /// True if an index is partial or has expressions.
    pub fn has_computed_index(&self) -> bool {
        !self.virtual_columns.is_empty() || self.def.indexes.iter().any(|index| index.predicate.is_some())
    }

    /// The numbers of the virtual columns.
    pub fn virtual_columns(&self) -> std::ops::Range<usize> {
        let first = self.def.columns.len() + 1;
        first..first + self.virtual_columns.len()
    }

    /// The expression of a virtual column.
    ///
    /// # Errors
    /// `Internal` if the expressions have not been compiled.
    ///
    /// # Panics
    /// If the column is not virtual.
    pub fn virtual_value(&self, column: usize) -> Result<&VirtualValue> {
        let place = column - self.virtual_columns().start;
        let compiled = self.compiled().ok_or_else(|| self.not_compiled())?;
        Ok(&compiled.virtual_values[place])
    }

    /// The index that has a virtual column.
    ///
    /// # Panics
    /// If the column is not virtual.
    pub fn index_of_virtual(&self, column: usize) -> usize {
        self.virtual_columns[column - self.virtual_columns().start].0
    }

    fn not_compiled(&self) -> Error {
        Error::Internal(format!("the expressions of table \"{}\" are not compiled", self.def.name))
    }

    /// The predicate of an index; `None` for an index of all rows.
    ///
    /// # Errors
    /// `Internal` if the expressions have not been compiled.
    pub fn predicate(&self, index: usize) -> Result<Option<&Predicate>> {
        if self.def.indexes[index].predicate.is_none() {
            return Ok(None);
        }
        let compiled = self.compiled().map(|compiled| compiled.predicates[index].as_ref());
        compiled.ok_or_else(|| self.not_compiled())
    }

    /// True if the tree belongs to the table or one of its indexes.
    pub fn has_tree(&self, tree: TreeId) -> bool {
        self.def.tree == tree || self.def.indexes.iter().any(|index| index.tree == tree)
    }

    /// Counts changed rows; `grown` of them are additional rows. Returns true if the statistics should be collected
    /// again, which replaces this table by one with new counts.
    pub fn add_changed_rows(&self, rows: u64, grown: i64) -> bool {
        let changed = self.changed_rows.fetch_add(rows, Ordering::Relaxed) + rows;
        if changed < CHANGED_ROWS_MIN {
            self.grown_rows.fetch_add(grown, Ordering::Relaxed);
            return false;
        }
        let grown = self.grown_rows.fetch_add(grown, Ordering::Relaxed) + grown;
        let known = self.statistics.as_ref().map_or(0, |statistics| statistics.rows);
        let has_doubled = u64::try_from(grown).is_ok_and(|grown| grown >= CHANGED_ROWS_MIN.max(known));
        let many = CHANGED_ROWS_MIN.max(known / CHANGED_SHARE);
        let interval = if grown.unsigned_abs() >= many { INTERVAL } else { UPDATES_INTERVAL };
        let is_due = changed >= many && self.since.elapsed() >= interval;
        // Only one of several writers collects.
        (has_doubled || is_due) && self.changed_rows.swap(0, Ordering::Relaxed) > 0
    }

    /// For each column of the tree of an index, its table column; `None` for the hidden rowid.
    pub fn index_columns(&self, index: usize) -> Vec<Option<usize>> {
        let def = &self.def.indexes[index];
        let first = self.def.columns.len() + 1;
        let key = |(position, key): (usize, &IndexKey)| match key {
            IndexKey::Column(column) => Some(*column),
            IndexKey::Expression(_) => {
                self.virtual_columns.iter().position(|place| *place == (index, position)).map(|place| first + place)
            }
        };
        let mut columns: Vec<Option<usize>> = def.keys.iter().enumerate().map(key).collect();
        let own = if self.def.hidden_rowid { vec![None] } else { self.key_columns() };
        for column in own.into_iter().chain(def.include.iter().copied().map(Some)) {
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        columns
    }

    /// For each column of the table's tree, its table column; `None` for the hidden rowid.
    pub fn table_columns(&self) -> Vec<Option<usize>> {
        let mut columns = vec![None; self.schema.columns().len()];
        for (column, &tree) in self.tree_column.iter().enumerate() {
            columns[tree] = Some(column);
        }
        for (number, dropped) in self.dropped_columns().zip(&self.def.dropped) {
            columns[dropped.place] = Some(number);
        }
        columns
    }

    /// The numbers of the dropped columns.
    pub fn dropped_columns(&self) -> std::ops::Range<usize> {
        let first = self.virtual_columns().end;
        first..first + self.def.dropped.len()
    }

    /// The values of a dropped column in new rows.
    ///
    /// # Panics
    /// If the column is not one of [`dropped_columns`](Self::dropped_columns).
    pub fn dropped_values(&self, column: usize, rows: usize) -> ArrayRef {
        let dropped = &self.def.dropped[column - self.dropped_columns().start];
        let ty = dropped.ty.column.arrow();
        match dropped.nullable {
            true => new_null_array(&ty, rows),
            false => zeros(&ty, rows),
        }
    }

    /// Name of the table's tree (`None`) or of the tree of an index, for EXPLAIN.
    pub fn tree_name(&self, index: Option<usize>) -> String {
        let Some(index) = index.map(|i| &self.def.indexes[i]) else { return self.def.name.to_string() };
        let using = if index.method == IndexMethod::Vast { " using vast" } else { "" };
        format!("{}.{}{using}", self.def.name, index.name)
    }

    fn key_columns(&self) -> Vec<Option<usize>> {
        self.def.primary_key.iter().copied().map(Some).collect()
    }

    /// Schema of the tree of an index.
    fn index_schema(&self, index: usize) -> Schema {
        let (def, columns) = (&self.def.indexes[index], self.index_columns(index));
        let is_only_included = |column: &Option<usize>| {
            column.is_some_and(|column| {
                column < self.def.columns.len()
                    && !def.key_columns().any(|key| key == column)
                    && !self.def.primary_key.contains(&column)
            })
        };
        let key = columns.iter().filter(|column| !is_only_included(column)).count();
        let columns = columns.into_iter().enumerate().map(|(place, column)| match (def.keys.get(place), column) {
            (Some(IndexKey::Expression(expression)), _) => {
                // A value may be null although no column of the row is.
                Column { name: expression.sql.clone(), ty: expression.ty.column, nullable: true }
            }
            (_, Some(column)) => tree_column(&self.def, column),
            (_, None) => rowid_column(),
        });
        Schema::new(columns.collect(), key).compressed(def.compression)
    }

    /// Arrow schema with the hidden rowid as last column, if the table has one. UPDATE and DELETE read it.
    pub fn arrow_with_rowid(&self) -> SchemaRef {
        if !self.def.hidden_rowid {
            return self.arrow.clone();
        }
        let mut fields: Vec<Arc<Field>> = self.arrow.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(HIDDEN_ROWID, ColumnType::Int64.arrow(), false)));
        Arc::new(arrow::datatypes::Schema::new(fields))
    }

    /// Position of a column by name.
    ///
    /// # Errors
    /// If the table has no such column. The hidden rowid does not count.
    pub fn column(&self, name: &str) -> Result<usize> {
        self.def
            .columns
            .iter()
            .position(|c| c.name == name)
            .ok_or_else(|| Error::undefined_column(name, &self.def.name))
    }
}

/// Keys are compared bytewise, but intervals of different parts can be equal. The store has no keys of arrays.
///
/// # Errors
/// `Unsupported` for a key of type INTERVAL or an array.
fn check_keys(def: &TableDef) -> Result<()> {
    let column = |column: &usize| (&def.columns[*column].name, def.columns[*column].ty.column);
    let key = |key| match key {
        &IndexKey::Column(position) => column(&position),
        IndexKey::Expression(expression) => (&expression.sql, expression.ty.column),
    };
    let of_indexes = def.indexes.iter().flat_map(|index| index.keys.iter().map(key));
    let mut keys = def.primary_key.iter().map(column).chain(of_indexes);
    match keys.find(|(_, ty)| *ty == ColumnType::Interval || ty.is_list()) {
        None => Ok(()),
        Some((name, ty)) if ty.is_list() => Err(Error::Unsupported(format!(
            "key \"{name}\" of type {} (arrays cannot be keys)",
            type_name(&ty.arrow())
        ))),
        Some((name, _)) => Err(Error::Unsupported(format!(
            "key \"{name}\" of type interval (index an expression, such as extract(epoch FROM {name}))"
        ))),
    }
}

/// Definition of a table column in an index, or in the key of the table's tree.
fn tree_column(def: &TableDef, column: usize) -> Column {
    let c = &def.columns[column];
    Column { name: c.name.clone(), ty: c.ty.column, nullable: c.nullable || c.stores_nulls }
}

/// Definition of a table column in the table's tree, outside the key.
fn value_column(def: &TableDef, column: usize) -> Column {
    Column { nullable: def.stores_nulls(column), ..tree_column(def, column) }
}

/// Definition of a dropped column in the table's tree.
fn dropped_column(dropped: &DroppedColumn) -> Column {
    Column { name: format!("__dropped_{}", dropped.place), ty: dropped.ty.column, nullable: dropped.nullable }
}

fn rowid_column() -> Column {
    Column { name: HIDDEN_ROWID.into(), ty: ColumnType::Int64, nullable: false }
}

/// Schema of the table's tree, of which the store keeps a sample: the primary key in key order, then the other columns in
/// table order.
fn table_schema(def: &TableDef) -> Schema {
    let mut columns: Vec<Column> = if def.hidden_rowid {
        vec![rowid_column()]
    } else {
        def.primary_key.iter().map(|&c| tree_column(def, c)).collect()
    };
    let key = columns.len();
    let mut dropped = def.dropped.iter().peekable();
    let mut others = (0..def.columns.len()).filter(|c| !def.primary_key.contains(c));
    loop {
        let next = match dropped.next_if(|dropped| dropped.place == columns.len()) {
            Some(dropped) => Some(dropped_column(dropped)),
            None => others.next().map(|c| value_column(def, c)),
        };
        match next {
            Some(column) => columns.push(column),
            None => return Schema::new(columns, key).compressed(def.compression).sampled(),
        }
    }
}

/// For each table column, its position in [`table_schema`].
fn tree_columns(def: &TableDef) -> Vec<usize> {
    let mut places = (key_len(def)..).filter(|place| def.dropped.iter().all(|dropped| dropped.place != *place));
    let keys: HashMap<usize, usize> =
        def.primary_key.iter().enumerate().map(|(place, &column)| (column, place)).collect();
    (0..def.columns.len())
        // The range has no end, so that there is always a next place.
        .map(|column| keys.get(&column).copied().or_else(|| places.next()).unwrap_or(usize::MAX))
        .collect()
}

/// The number of key columns of the table's tree.
fn key_len(def: &TableDef) -> usize {
    if def.hidden_rowid { 1 } else { def.primary_key.len() }
}

/// Zeros, and empty texts and lists.
fn zeros(ty: &DataType, rows: usize) -> ArrayRef {
    if let DataType::List(field) = ty {
        let elements = new_null_array(field.data_type(), 0);
        return Arc::new(ListArray::new(field.clone(), OffsetBuffer::new_zeroed(rows), elements, None));
    }
    // Values of these types are below nulls, too.
    let nulls = new_null_array(ty, rows).into_data();
    make_array(nulls.into_builder().nulls(None).build().unwrap_or_else(|error| panic!("zeros of {ty}: {error}")))
}

/// The expressions of all indexes: index and position in its keys.
fn virtual_columns(def: &TableDef) -> Vec<(usize, usize)> {
    let keys =
        def.indexes.iter().enumerate().flat_map(|(i, index)| index.keys.iter().enumerate().map(move |key| (i, key)));
    let expressions = keys.filter(|(_, (_, key))| matches!(key, IndexKey::Expression(_)));
    expressions.map(|(index, (position, _))| (index, position)).collect()
}

/// Checks the column positions of a definition, so that deriving schemas from it cannot fail.
fn check(def: &TableDef) -> Result<()> {
    let columns = def.columns.len();
    let known = |list: &[usize]| list.iter().all(|&c| c < columns);
    let distinct = |list: &[usize]| list.iter().enumerate().all(|(i, c)| !list[..i].contains(c));
    let indexes_ok = def.indexes.iter().all(|i| {
        let columns: Vec<usize> = i.key_columns().collect();
        known(&columns) && known(&i.include) && !i.keys.is_empty() && distinct(&columns) && distinct(&i.include)
    });
    let key_ok =
        known(&def.primary_key) && distinct(&def.primary_key) && def.hidden_rowid == def.primary_key.is_empty();
    let references_ok = def
        .foreign_keys
        .iter()
        .all(|key| known(&key.columns) && !key.columns.is_empty() && key.columns.len() == key.referenced.len());
    let places: Vec<usize> = def.dropped.iter().map(|dropped| dropped.place).collect();
    let all = key_len(def) + columns - def.primary_key.len().min(columns) + places.len();
    let dropped_ok =
        places.is_sorted_by(|a, b| a < b) && places.iter().all(|place| (key_len(def)..all).contains(place));
    if columns == 0 || !key_ok || !indexes_ok || !references_ok || !dropped_ok {
        return Err(super::corrupt(format!("the definition of table \"{}\" is inconsistent", def.name)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{ColumnDef, IndexDef, RelationName};

    fn def(primary_key: Vec<usize>, indexes: Vec<IndexDef>) -> TableDef {
        let column = |name: &str| ColumnDef { nullable: name != "a", ..ColumnDef::new(name, ColumnType::Int64) };
        let columns = ["a", "b", "c", "d"].map(column).to_vec();
        TableDef {
            indexes,
            ..TableDef::new(RelationName::public("t"), keyaki_store::TreeId::new(16), columns, primary_key)
        }
    }

    fn index(columns: Vec<usize>, include: Vec<usize>) -> IndexDef {
        let tree = keyaki_store::TreeId::new(17);
        IndexDef { include, unique: false, ..IndexDef::unique("i", tree, columns) }
    }

    fn names(schema: &Schema) -> (Vec<&str>, usize) {
        (schema.columns().iter().map(|c| c.name.as_str()).collect(), schema.key_columns())
    }

    #[test]
    fn key_columns_come_first() {
        let table = Table::new(def(vec![2, 0], vec![index(vec![1, 2], vec![3, 0, 2])]), None).unwrap();
        assert_eq!(names(&table.schema), (vec!["c", "a", "b", "d"], 2));
        assert_eq!(table.tree_column, [1, 2, 0, 3]);
        assert_eq!(table.table_columns(), [Some(2), Some(0), Some(1), Some(3)]);
        assert_eq!(names(&table.index_schemas[0]), (vec!["b", "c", "a", "d"], 3));
        assert_eq!(table.index_columns(0), [Some(1), Some(2), Some(0), Some(3)]);
        assert!(!table.index_schemas[0].columns()[2].nullable);
        assert_eq!(table.arrow_with_rowid(), table.arrow);
    }

    #[test]
    fn tables_without_a_primary_key_have_the_rowid_as_key() {
        let table = Table::new(def(vec![], vec![index(vec![1], vec![0])]), None).unwrap();
        assert_eq!(names(&table.schema), (vec![HIDDEN_ROWID, "a", "b", "c", "d"], 1));
        assert_eq!(table.table_columns(), [None, Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(names(&table.index_schemas[0]), (vec!["b", HIDDEN_ROWID, "a"], 2));
        assert_eq!(table.index_columns(0), [Some(1), None, Some(0)]);
        assert_eq!(table.arrow.fields().len(), 4);
        assert_eq!(table.arrow_with_rowid().field(4).name(), HIDDEN_ROWID);
    }

    #[test]
    fn inconsistent_definitions_are_errors() {
        for wrong in [
            def(vec![4], vec![]),
            def(vec![0, 0], vec![]),
            def(vec![0], vec![index(vec![], vec![])]),
            def(vec![0], vec![index(vec![9], vec![])]),
            def(vec![0], vec![index(vec![1], vec![2, 2])]),
            TableDef { hidden_rowid: true, ..def(vec![0], vec![]) },
            TableDef { columns: vec![], ..def(vec![], vec![]) },
        ] {
            assert!(Table::new(wrong, None).is_err());
        }
    }
}
