//! What a database tells of its tables and indexes: for the shell and the system views.

use std::time::Duration;

use keyaki_store::{KeyRange, LocatorStats, Snapshot};

use super::show;
use crate::catalog::Table;
use crate::catalog::{IndexDef, IndexMethod};
use crate::engine::Engine;

/// What `.tables` and the system views show.
#[derive(Debug, Clone)]
pub struct TableInfo {
    pub name: String,
    pub is_view: bool,
    pub rows: f64,
    pub bytes: u64,
    /// CREATE statement.
    pub sql: String,
}

#[derive(Debug, Clone)]
pub struct IndexInfo {
    pub name: String,
    pub table: String,
    pub method: IndexMethod,
    pub columns: Vec<String>,
    pub include: Vec<String>,
    pub unique: bool,
    /// Rows, approximately.
    pub entries: u64,
    /// In memory, or in the data file.
    pub bytes: u64,
    /// Levels of nodes; of the first layer, where there are layers.
    pub depth: u64,
    /// Of an index in memory.
    pub layers: Option<u64>,
    /// Of an index in memory, or of what it has in memory.
    pub build_time: Option<Duration>,
    /// What a vast index has in memory.
    pub locator: Option<LocatorStats>,
    /// Why an index in memory is not used; what a vast index has not in memory, and why.
    pub problem: Option<String>,
    /// CREATE statement.
    pub sql: String,
}

impl IndexInfo {
    /// What is in memory of it, beside the page cache.
    pub fn memory_bytes(&self) -> u64 {
        match &self.locator {
            Some(located) => located.bytes + located.bytes_held,
            None if self.method.is_in_memory() => self.bytes,
            None => 0,
        }
    }

    /// What a vast index has in memory, if it is there yet.
    pub fn located(&self) -> Option<&LocatorStats> {
        self.locator.as_ref().filter(|located| located.build_time.is_some())
    }
}

/// Tables and views, by name.
pub(crate) fn tables(engine: &Engine) -> Vec<TableInfo> {
    let (catalog, snapshot) = engine.moment();
    let mut list: Vec<TableInfo> = catalog.tables.values().map(|table| table_info(engine, table, &snapshot)).collect();
    list.extend(catalog.views.values().map(|view| TableInfo {
        name: view.name.clone(),
        is_view: true,
        rows: 0.0,
        bytes: 0,
        sql: show::create_view(view),
    }));
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list
}

fn table_info(engine: &Engine, table: &Table, snapshot: &Snapshot) -> TableInfo {
    let rows = snapshot.tree(table.def.tree).map(|view| view.estimate(&KeyRange::all()).rows);
    TableInfo {
        name: table.def.name.clone(),
        is_view: false,
        // `moment` gives a snapshot that has the tree.
        rows: rows.unwrap_or_default(),
        bytes: engine.store.tree_bytes(table.def.tree),
        sql: show::create_table(&table.def),
    }
}

/// Secondary indexes, by table and name.
pub(crate) fn indexes(engine: &Engine) -> Vec<IndexInfo> {
    let (catalog, snapshot) = engine.moment();
    let infos = catalog.tables.values().flat_map(|table| {
        let mut infos: Vec<IndexInfo> =
            table.def.indexes.iter().map(|index| index_info(engine, table, index, &snapshot)).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    });
    infos.collect()
}

fn index_info(engine: &Engine, table: &Table, index: &IndexDef, snapshot: &Snapshot) -> IndexInfo {
    let names = |columns: &[usize]| columns.iter().map(|&c| table.def.columns[c].name.clone()).collect();
    let in_memory = engine.store.memory_tree_stats(index.tree);
    // `moment` gives a snapshot that has the tree.
    let view = snapshot.tree(index.tree).ok();
    let entries = match &in_memory {
        Some(stats) => stats.entries,
        None => view.as_ref().map_or(0, |view| view.estimate(&KeyRange::all()).rows as u64),
    };
    let locator = engine.store.locator_stats(index.tree);
    let build_time = engine.build_times.lock().get(&index.tree).copied();
    let problem = engine.unusable.get(&index.tree).cloned();
    IndexInfo {
        name: index.name.clone(),
        table: table.def.name.clone(),
        method: index.method,
        columns: names(&index.columns),
        include: names(&index.include),
        unique: index.unique,
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
