//! Descriptions of tables and indexes, for the shell and the system views.

use std::sync::Arc;
use std::time::Duration;

use keyaki_store::{KeyRange, LocatorStats, Snapshot};

use super::{sequences, show};
use crate::catalog::{Catalog, IndexDef, IndexKey, IndexMethod, SequenceDef, Table};
use crate::engine::Engine;

/// Description of a table or view.
#[derive(Debug, Clone)]
pub struct TableInfo {
    /// Name of its schema.
    pub schema: String,
    /// Name without the schema.
    pub name: String,
    /// True for a view, false for a table.
    pub is_view: bool,
    /// Estimated number of rows; 0 for a view.
    pub rows: f64,
    /// Bytes in the data file; 0 for a view.
    pub bytes: u64,
    /// CREATE statement, without UNIQUE and FOREIGN KEY constraints and comments.
    pub sql: String,
    /// ALTER TABLE statements for the FOREIGN KEY constraints. They follow the CREATE statements of all tables.
    pub foreign_keys: Vec<String>,
    /// COMMENT statements for the object, its columns and its indexes.
    pub comments: Vec<String>,
}

/// Description of a sequence of CREATE SEQUENCE. Those of identity columns belong to their tables.
#[derive(Debug, Clone)]
pub struct SequenceInfo {
    /// Name of its schema.
    pub schema: String,
    /// Name without the schema.
    pub name: String,
    /// CREATE statement. The sequence that it creates begins at its start.
    pub sql: String,
    /// COMMENT statement.
    pub comment: Option<String>,
}

/// Description of a secondary index.
#[derive(Debug, Clone)]
pub struct IndexInfo {
    /// Name of its schema, and that of its table.
    pub schema: String,
    /// Name without the schema.
    pub name: String,
    /// Name of the indexed table.
    pub table: String,
    /// Structure of the index.
    pub method: IndexMethod,
    /// Names of the key columns, in key order.
    pub columns: Vec<String>,
    /// Names of the columns of INCLUDE.
    pub include: Vec<String>,
    /// True if no two entries may have equal key columns without nulls.
    pub unique: bool,
    /// SQL text of the condition of a partial index, which has entries for the rows that satisfy it.
    pub predicate: Option<String>,
    /// Number of entries; an estimate unless the index is in memory.
    pub entries: u64,
    /// Bytes in memory for an in-memory index, in the data file for others.
    pub bytes: u64,
    /// Levels of nodes; for an in-memory index, levels of the first layer of its Masstree.
    pub depth: u64,
    /// Layers of the Masstree; `None` unless the index is in memory.
    pub layers: Option<u64>,
    /// Duration of the last build of an in-memory index or of a locator; `None` for others.
    pub build_time: Option<Duration>,
    /// Statistics of the locator of a vast index.
    pub locator: Option<LocatorStats>,
    /// The reason why an in-memory index is unusable, or why the locator of a vast index is missing or incomplete.
    pub problem: Option<String>,
    /// CREATE INDEX, or ALTER TABLE for the index of a UNIQUE constraint.
    pub sql: String,
}

impl IndexInfo {
    /// Bytes in memory besides the page cache.
    pub fn memory_bytes(&self) -> u64 {
        match &self.locator {
            Some(located) => located.bytes + located.bytes_held,
            None if self.method.is_in_memory() => self.bytes,
            None => 0,
        }
    }

    /// Statistics of the locator, once it has been built.
    pub fn located(&self) -> Option<&LocatorStats> {
        self.locator.as_ref().filter(|located| located.build_time.is_some())
    }
}

/// Descriptions of all tables and views, sorted by schema and name.
pub(crate) fn tables(engine: &Engine) -> Vec<TableInfo> {
    let (catalog, snapshot) = engine.moment();
    let mut list: Vec<TableInfo> = catalog.tables.values().map(|table| table_info(engine, table, &snapshot)).collect();
    list.extend(catalog.views.values().map(|view| TableInfo {
        schema: view.name.schema.to_string(),
        name: view.name.name.clone(),
        is_view: true,
        rows: 0.0,
        bytes: 0,
        sql: show::create_view(view),
        foreign_keys: Vec::new(),
        comments: show::view_comment(view).into_iter().collect(),
    }));
    list.sort_by(|a, b| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
    list
}

/// Descriptions of all sequences of CREATE SEQUENCE, sorted by name.
pub(crate) fn sequences(engine: &Engine) -> Vec<SequenceInfo> {
    let (catalog, _) = engine.moment();
    let info = |def: &Arc<SequenceDef>| SequenceInfo {
        schema: def.name.schema.to_string(),
        name: def.name.name.clone(),
        sql: sequences::create_sql(def),
        comment: show::sequence_comment(def),
    };
    catalog.sequences.values().map(info).collect()
}

fn table_info(engine: &Engine, table: &Table, snapshot: &Snapshot) -> TableInfo {
    let rows = snapshot.tree(table.def.tree).map(|view| view.estimate(&KeyRange::all()).rows);
    TableInfo {
        schema: table.def.name.schema.to_string(),
        name: table.def.name.name.clone(),
        is_view: false,
        // The snapshot of `moment` contains all trees of its catalog.
        rows: rows.unwrap_or_default(),
        bytes: engine.store.tree_bytes(table.def.tree),
        sql: show::create_table(&table.def),
        foreign_keys: show::foreign_keys(&table.def),
        comments: show::table_comments(&table.def),
    }
}

/// Descriptions of all secondary indexes of a catalog, sorted by table and name. `snapshot` contains their trees.
pub(crate) fn indexes(engine: &Engine, catalog: &Catalog, snapshot: &Snapshot) -> Vec<IndexInfo> {
    let infos = catalog.tables.values().flat_map(|table| {
        let mut infos: Vec<IndexInfo> =
            table.def.indexes.iter().map(|index| index_info(engine, table, index, snapshot)).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    });
    infos.collect()
}

fn index_info(engine: &Engine, table: &Table, index: &IndexDef, snapshot: &Snapshot) -> IndexInfo {
    let names = |columns: &[usize]| columns.iter().map(|&c| table.def.columns[c].name.clone()).collect();
    let key = |key: &IndexKey| match key {
        IndexKey::Column(column) => table.def.columns[*column].name.clone(),
        IndexKey::Expression(expression) => format!("({})", expression.sql),
    };
    let in_memory = engine.store.memory_tree_stats(index.tree);
    // The snapshot of `moment` contains all trees of its catalog.
    let view = snapshot.tree(index.tree).ok();
    let entries = match &in_memory {
        Some(stats) => stats.entries,
        None => view.as_ref().map_or(0, |view| view.estimate(&KeyRange::all()).rows as u64),
    };
    let locator = engine.store.locator_stats(index.tree);
    let build_time = engine.build_times.lock().get(&index.tree).copied();
    let problem = engine.unusable().get(&index.tree).cloned();
    IndexInfo {
        schema: table.def.name.schema.to_string(),
        name: index.name.clone(),
        table: table.def.name.name.clone(),
        method: index.method,
        columns: index.keys.iter().map(key).collect(),
        include: names(&index.include),
        unique: index.unique,
        predicate: index.predicate.clone(),
        entries,
        bytes: in_memory.as_ref().map_or_else(|| engine.store.tree_bytes(index.tree), |stats| stats.bytes),
        depth: in_memory.as_ref().map_or_else(|| view.map_or(0, |view| view.depth()), |stats| stats.depth.into()),
        layers: in_memory.map(|stats| stats.layers),
        build_time: build_time.or_else(|| locator.as_ref()?.build_time),
        problem: problem.or_else(|| locator.as_ref()?.problem.clone()),
        locator,
        sql: show::create_index(&table.def, index),
    }
}
