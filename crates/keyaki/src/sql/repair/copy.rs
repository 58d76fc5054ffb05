//! Copies the rows of all tables, and their definitions without indexes and constraints, to a new database.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{DataType, Int64Type};
use keyaki_device::Device;
use keyaki_store::{
    Column, ColumnType, DamagedKeys, DamagedPart, Salvage, SalvagedRows, SalvagedTree, Schema, Store, TreeId,
    WriteBatch,
};

use super::report::{KeySpan, Repaired, RepairedTable};
use crate::base::interrupt::Decision;
use crate::base::progress::{Counted, Progress};
use crate::catalog::{
    CATALOG_TREE, ColumnDef, HIDDEN_ROWID, RelationName, SalvagedCatalog, SequenceDef, Table, TableDef, ViewDef,
    bootstrap,
};
use crate::sql::check::shown_key;
use crate::sql::sequences;
use crate::{Error, Result};

/// A salvaged database, and the receivers of progress and interrupts.
pub(crate) struct Source<'a> {
    pub device: Arc<dyn Device>,
    pub directory: &'a Path,
    pub options: keyaki_store::Options,
    pub progress: &'a dyn Progress,
    pub decision: &'a Decision,
}

/// The definitions that are not in the new database yet.
pub(crate) struct Copied {
    pub report: Repaired,
    /// The tables with their indexes and constraints.
    pub tables: Vec<TableDef>,
    pub views: Vec<ViewDef>,
    /// Values of rows that the sequences must pass.
    pub passed: Vec<(SequenceDef, i64)>,
}

/// Copies all rows into the directory `target`, which must not exist or be empty. Blocks.
///
/// # Errors
/// Those of [`Salvage::open`], of the new database, and `Cancelled`.
pub(crate) fn copy(source: &Source<'_>, target: &Path) -> Result<Copied> {
    let salvage = Salvage::open(&source.device, source.directory, &source.options)?;
    salvage.check_target(target)?;
    let options = keyaki_store::Options { create: true, ..source.options.clone() };
    let store = Store::open(source.device.clone(), target, options)?;
    let copier = Copier { source, salvage: &salvage, store: &store };
    let mut report = Repaired::default();
    describe_state(&salvage, &mut report);
    let (catalog, is_intact) = copier.catalog(&mut report)?;
    let mut copied = Copied { report, tables: Vec::new(), views: Vec::new(), passed: Vec::new() };
    for def in catalog.tables.values() {
        copier.table(def.clone(), &catalog, is_intact, &mut copied)?;
    }
    for (tree, schema) in salvage.trees() {
        if tree != CATALOG_TREE && schema.is_sampled() && !catalog.has_tree(tree) {
            let def = recovered(tree, schema, &catalog);
            let loss = format!("the definition of a table is lost: its rows are in table \"{}\" (rename it)", def.name);
            copied.report.losses.push(loss);
            copier.table(def, &catalog, is_intact, &mut copied)?;
        }
    }
    if !is_intact {
        let positions = catalog.all_sequences(&copied.tables).filter(|def| !catalog.positions.contains_key(&def.id));
        copied.report.losses.extend(positions.map(|def| {
            format!(
                "the position of sequence \"{}\" may be lost: it continues at its start, or behind the values of its column \
                 (correct it with setval)",
                def.name
            )
        }));
    }
    let mut batch = WriteBatch::new();
    bootstrap(&mut batch)?;
    let bare: Vec<TableDef> = copied.tables.iter().map(bare).collect();
    catalog.put(&mut batch, &bare)?;
    source.decision.check()?;
    store.commit(batch)?;
    copied.views = catalog.views.into_values().collect();
    Ok(copied)
}

/// Reports the state of the checkpoint and the log.
fn describe_state(salvage: &Salvage, report: &mut Repaired) {
    let state = salvage.state();
    report.notices.extend(state.damaged.iter().map(ToString::to_string));
    if !state.damaged.is_empty() {
        report.notices.push(match state.checkpoint {
            Some((generation, sequence)) => format!(
                "read checkpoint {generation}, which has the commits up to {sequence}, and the log up to commit {}",
                state.sequence
            ),
            None => format!("no checkpoint is intact: read the log alone, up to commit {}", state.sequence),
        });
    }
    if !state.damaged.is_empty() && state.empty_records > 0 {
        report.losses.push(format!(
            "rows of bulk loads and large transactions may be lost: only a damaged checkpoint may have had the changes of {} \
             commits up to {}",
            state.empty_records, state.sequence
        ));
    }
    if !state.is_locked {
        let notice = "the source has no lock file: make sure that no process has written to it during the repair";
        report.notices.push(notice.into());
    }
    if let Some(problem) = &state.log_problem {
        report.losses.push(match state.newest_known > state.sequence {
            true => format!(
                "the commits from {} on, at least up to {}, are lost: {problem}",
                state.sequence + 1,
                state.newest_known
            ),
            false => format!("commits after {} may be lost: {problem}", state.sequence),
        });
    }
}

/// The definition without indexes and constraints other than the primary key and NOT NULL.
fn bare(def: &TableDef) -> TableDef {
    TableDef { indexes: Vec::new(), checks: Vec::new(), foreign_keys: Vec::new(), ..def.clone() }
}

/// A definition for a tree without one.
fn recovered(tree: TreeId, schema: &Schema, catalog: &SalvagedCatalog) -> TableDef {
    let base = format!("recovered_{tree}");
    let numbered = (2_u32..).map(|n| format!("{base}_{n}"));
    let mut names = std::iter::once(base.clone()).chain(numbered).map(RelationName::public);
    let name = names.find(|name| !catalog.has_relation(name)).unwrap_or_else(|| RelationName::public(base));
    let all = schema.columns();
    let is_hidden = schema.key_columns() == 1 && all[0].name == HIDDEN_ROWID && all[0].ty == ColumnType::Int64;
    let own = if is_hidden && all.len() > 1 { &all[1..] } else { all };
    let mut columns: Vec<ColumnDef> = Vec::new();
    for column in own {
        let name = free_name(column, &columns);
        columns.push(ColumnDef { nullable: column.nullable, ..ColumnDef::new(name, column.ty) });
    }
    let key = if own.len() < all.len() { Vec::new() } else { (0..schema.key_columns()).collect() };
    TableDef { nullable_values: false, compression: schema.compression(), ..TableDef::new(name, tree, columns, key) }
}

/// The name of a column in its tree, with a number if another column has the name: trees keep dropped and renamed columns.
fn free_name(column: &Column, others: &[ColumnDef]) -> String {
    let base = match column.name.as_str() {
        "" | HIDDEN_ROWID => "column",
        name => name,
    };
    let numbered = (2_u32..).map(|n| format!("{base}_{n}"));
    let mut names = std::iter::once(base.to_string()).chain(numbered);
    names.find(|name| others.iter().all(|other| other.name != *name)).unwrap_or_else(|| base.to_string())
}

struct Copier<'a> {
    source: &'a Source<'a>,
    salvage: &'a Salvage,
    store: &'a Store,
}

impl Copier<'_> {
    /// Verifies the pages of a tree.
    fn survey(&self, tree: TreeId, phase: &str) -> Result<SalvagedTree<'_>> {
        let counted = Counted::new(self.source.progress, phase);
        let surveyed = self.salvage.survey(tree, &|done, total| {
            counted.reach(done, total);
            self.source.decision.check().is_ok()
        })?;
        surveyed.ok_or(Error::Cancelled)
    }

    /// The definitions. Also returns true if the catalog is intact.
    fn catalog(&self, report: &mut Repaired) -> Result<(SalvagedCatalog, bool)> {
        let mut catalog = SalvagedCatalog::default();
        let trees: BTreeMap<TreeId, Arc<Schema>> =
            self.salvage.trees().map(|(tree, schema)| (tree, schema.clone())).collect();
        if !trees.contains_key(&CATALOG_TREE) {
            return Ok((catalog, trees.is_empty()));
        }
        let surveyed = self.survey(CATALOG_TREE, "checking the catalog")?;
        let mut rows = surveyed.rows();
        while let Some(batch) = rows.next_batch()? {
            let columns = batch.columns().iter().map(|column| column.as_binary_view_opt()).collect::<Vec<_>>();
            let [Some(keys), Some(documents)] = columns[..] else {
                return Err(crate::catalog::corrupt("its tree has other columns".into()));
            };
            for row in 0..batch.num_rows() {
                catalog.add(keys.value(row), documents.value(row))?;
            }
        }
        catalog.reconcile(&trees);
        let keys = |keys: &DamagedKeys| format!("\"{}\" to \"{}\"", document_key(&keys.low), document_key(&keys.high));
        let lost = surveyed.lost().iter().map(|lost| format!("definitions are lost, from {}", keys(lost)));
        let outdated = surveyed.outdated().iter();
        let outdated = outdated.map(|outdated| format!("definitions may be outdated, from {}", keys(outdated)));
        report.losses.extend(lost.chain(outdated));
        let is_intact = surveyed.lost().is_empty() && surveyed.outdated().is_empty() && catalog.problems.is_empty();
        report.losses.append(&mut catalog.problems);
        Ok((catalog, is_intact))
    }

    /// Copies the rows of a table. `is_intact`: the catalog has all positions of sequences.
    fn table(&self, mut def: TableDef, catalog: &SalvagedCatalog, is_intact: bool, copied: &mut Copied) -> Result<()> {
        let surveyed = self.survey(def.tree, &format!("checking {}", def.name))?;
        let table = Table::new(bare(&def), None)?;
        let mut observed = Observed::new(&def, catalog, is_intact)?;
        let mut rows = surveyed.rows();
        def.tree = self.store.new_tree_id();
        let count = self.rows(&mut rows, &def, |batch| observed.add(&table, batch))?;
        let shown = |keys: &[DamagedKeys]| -> Vec<KeySpan> {
            let shown = |key: &[u8]| shown_key(&table.schema, key);
            keys.iter().map(|keys| KeySpan { low: shown(&keys.low), high: shown(&keys.high) }).collect()
        };
        let damaged = surveyed.damage().iter().filter(|damage| damage.part != DamagedPart::Sample);
        copied.report.tables.push(RepairedTable {
            schema: def.name.schema.to_string(),
            name: def.name.name.clone(),
            rows: count,
            damaged_pages: damaged.count() as u64,
            lost: shown(surveyed.lost()),
            outdated: shown(surveyed.outdated()),
            lost_changes: rows.lost_upserts(),
        });
        for column in (0..def.columns.len()).filter(|&column| observed.nulls[column]) {
            def.columns[column].nullable = true;
            let name = &def.columns[column].name;
            let loss = format!(
                "NOT NULL of column \"{name}\" of table \"{}\" is left out: rows have NULL (correct them, then ALTER TABLE … \
                 SET NOT NULL)",
                def.name
            );
            copied.report.losses.push(loss);
        }
        copied.passed.extend(observed.extremes.into_iter().filter_map(|(_, sequence, value)| Some((sequence, value?))));
        copied.tables.push(def);
        Ok(())
    }

    /// Writes rows to a new tree, that of `def`. Returns their number.
    fn rows(
        &self,
        rows: &mut SalvagedRows,
        def: &TableDef,
        mut observe: impl FnMut(&RecordBatch) -> Result<()>,
    ) -> Result<u64> {
        let schema = rows.schema().clone();
        let mut writer = self.store.bulk_writer(def.tree, &schema);
        self.source.progress.start(&format!("copying {}", def.name), None);
        while let Some(batch) = rows.next_batch()? {
            self.source.decision.check()?;
            observe(&batch)?;
            writer.push(&batch)?;
            self.source.progress.advance(batch.num_rows() as u64);
        }
        self.source.decision.check()?;
        let count = writer.rows();
        let mut batch = WriteBatch::new();
        batch.create_tree(def.tree, &schema);
        self.store.install(batch, vec![(def.tree, writer.finish()?.claim_new_keys())])?;
        Ok(count)
    }
}

/// NULLs in columns with NOT NULL, and extreme values in columns with a sequence.
struct Observed {
    /// True for the columns with NOT NULL that have NULL.
    nulls: Vec<bool>,
    must_have_values: Vec<bool>,
    /// A column, its sequence, and its value nearest to the end of the sequence.
    extremes: Vec<(usize, SequenceDef, Option<i64>)>,
}

impl Observed {
    /// The columns of a table. The rows of an intact database determine the positions of identity columns only: other
    /// columns may have values that their sequences have not returned.
    fn new(def: &TableDef, catalog: &SalvagedCatalog, is_intact: bool) -> Result<Observed> {
        let mut extremes = Vec::new();
        for (place, column) in def.columns.iter().enumerate() {
            extremes.extend(column.identity.as_ref().map(|identity| (place, identity.sequence.clone(), None)));
            for (name, sequence) in catalog.sequences.iter().filter(|_| !is_intact) {
                // A default that cannot be parsed fails when it is evaluated.
                if sequences::uses(column, name).unwrap_or(false) {
                    extremes.push((place, sequence.clone(), None));
                }
            }
        }
        extremes.retain(|(_, sequence, _)| !sequence.cycles);
        let must_have_values = def.columns.iter().map(|column| !column.nullable).collect();
        Ok(Observed { nulls: vec![false; def.columns.len()], must_have_values, extremes })
    }

    /// Adds rows of the tree of the table.
    fn add(&mut self, table: &Table, batch: &RecordBatch) -> Result<()> {
        for (column, nulls) in self.nulls.iter_mut().enumerate() {
            *nulls |= self.must_have_values[column] && batch.column(table.tree_column[column]).null_count() > 0;
        }
        for (column, sequence, extreme) in &mut self.extremes {
            let values = integers(batch.column(table.tree_column[*column]))?;
            let Some(values) = values.as_ref().and_then(|values| values.as_primitive_opt::<Int64Type>()) else {
                continue;
            };
            let (found, is_up) = if sequence.increment > 0 { (max(values), true) } else { (min(values), false) };
            *extreme = match (*extreme, found) {
                (Some(a), Some(b)) => Some(if is_up { a.max(b) } else { a.min(b) }),
                (a, b) => a.or(b),
            };
        }
        Ok(())
    }
}

/// A column of integers as one of 64 bits; `None` for other types.
fn integers(column: &ArrayRef) -> Result<Option<ArrayRef>> {
    match column.data_type() {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => {
            Ok(Some(cast(column, &DataType::Int64)?))
        }
        _ => Ok(None),
    }
}

/// The text of an encoded key of the catalog, or of the first part of one.
fn document_key(key: &[u8]) -> String {
    let end = key.iter().position(|&byte| byte == 0).unwrap_or(key.len());
    String::from_utf8_lossy(&key[..end]).into_owned()
}
