//! DataFusion's table provider: the choice of an access path and the plan of a scan.
//!
//! Candidates are the table's tree and the covering indexes; a partial index is one if the filters imply its predicate. Each
//! candidate gets the key ranges that the filters imply in its key; the cost model chooses among them. The ranges are split
//! into partitions of about equal size. Filters that neither the ranges nor a predicate answer exactly become the residual
//! filter of the scan.
//!
//! Invariant: pushed filters are exact. DataFusion does not evaluate them again.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Column, Constraint, Constraints, DFSchema};
use datafusion::error::Result;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use keyaki_store::{ColumnType, Direction, RangeEstimate, Snapshot, TreeId};

use super::estimate;
use super::filter::{is_row_filter, remap};
use super::partial::implied_filters;
use super::partitions::{Parts, add, partition};
use super::planned::PlannedTree;
use super::scan::{ScanExec, ScanOperator, ScanPlan};
use super::virtual_columns::{number as virtual_number, over_index};
use crate::catalog::{HIDDEN_ROWID, IndexDef, Table};
use crate::table::PlanContext;
use crate::table::cost::Readable;
use crate::table::ranges::{Ranges, key_ranges};

/// Minimum size of a scan partition in bytes.
const PARTITION_BYTES: f64 = 1e6;

/// A table as of one snapshot.
#[derive(Debug)]
pub(crate) struct KeyakiTable {
    pub table: Arc<Table>,
    /// Shared by all tables of a statement.
    pub snapshot: Snapshot,
    pub context: PlanContext,
    /// The schema includes the hidden rowid as last column.
    with_rowid: bool,
    schema: SchemaRef,
    constraints: Constraints,
    /// The only access path.
    along: Option<Along>,
}

/// An access path whose partitions keep rows together that have the same values in leading key columns.
#[derive(Debug, Clone, Copy)]
struct Along {
    /// `None`: the table's tree.
    index: Option<usize>,
    /// Number of key columns.
    columns: usize,
}

/// An access path for a scan: a tree that contains all needed columns.
struct Candidate {
    name: String,
    view: PlannedTree,
    /// Table column of each column of the tree; `None` for the hidden rowid.
    columns: Vec<Option<usize>>,
    ranges: Ranges,
    /// Size of the ranges, before residual filters.
    estimate: RangeEstimate,
}

/// A tree with key ranges that contain exactly the rows that pass the filters.
pub(crate) struct Answer {
    pub name: String,
    pub view: PlannedTree,
    /// Table column of each column of the tree; `None` for the hidden rowid.
    pub columns: Vec<Option<usize>>,
    pub ranges: Ranges,
    /// The tree is an in-memory index.
    pub in_memory: bool,
}

impl Candidate {
    fn readable(&self, in_memory: bool) -> Readable {
        let cached = if in_memory { 1.0 } else { self.view.cached_share().any };
        Readable { bytes: self.estimate.bytes, cached, rows: self.estimate.rows, in_memory }
    }

    /// The smallest number of leading key columns that are the table columns `groups` and columns with a single value.
    /// `None` if there is no such number, if a group is a float, whose order differs from SQL's, or if there are several
    /// ranges, which may divide the rows of a group.
    fn leading(&self, groups: &[Option<usize>]) -> Option<usize> {
        let schema = self.view.schema();
        let is_float = |key: usize| matches!(schema.columns()[key].ty, ColumnType::Float32 | ColumnType::Float64);
        if self.ranges.ranges.len() != 1 {
            return None;
        }
        let mut missing: Vec<_> = groups.to_vec();
        for key in 0..schema.key_columns() {
            let before = missing.len();
            missing.retain(|group| *group != self.columns[key]);
            let is_group = missing.len() < before;
            if is_group && is_float(key) || !is_group && key >= self.ranges.fixed {
                return None;
            }
            if missing.is_empty() {
                return Some(key + 1);
            }
        }
        None
    }
}

impl KeyakiTable {
    pub fn new(table: Arc<Table>, snapshot: Snapshot, context: PlanContext) -> Self {
        let constraints = constraints(&table);
        KeyakiTable {
            schema: table.arrow.clone(),
            table,
            snapshot,
            context,
            with_rowid: false,
            constraints,
            along: None,
        }
    }

    /// The table with the fastest scan in whose key the provider's columns `groups` come first, in any order and besides
    /// columns with a single value: rows with the same values follow each other, in one partition. Also the seconds
    /// by which this scan is slower than the best one. `None` if no tree has such a key.
    pub fn along(&self, groups: &[usize], needed: &[usize], filters: &[Expr]) -> Result<Option<(KeyakiTable, f64)>> {
        let groups: Vec<_> = groups.iter().map(|&column| self.table_column(column)).collect();
        let output: Vec<_> = needed.iter().map(|&column| self.table_column(column)).collect();
        let machine = self.context.machine();
        let values = (output.len() + self.used(filters, &vec![false; filters.len()]).len()) as f64;
        let seconds = |candidate: &Candidate| {
            let readable = candidate.readable(candidate.view.tree().is_memory());
            machine.seconds(machine.scan_of(readable, values))
        };
        let mut found: Option<(Along, f64)> = None;
        for index in std::iter::once(None).chain((0..self.table.def.indexes.len()).map(Some)) {
            let Some(candidate) = self.covering(index, &output, filters)? else { continue };
            let Some(columns) = candidate.leading(&groups) else { continue };
            let seconds = seconds(&candidate);
            if found.is_none_or(|(_, least)| seconds < least) {
                found = Some((Along { index, columns }, seconds));
            }
        }
        let Some((along, least)) = found else { return Ok(None) };
        let more = least - seconds(&self.choose(&output, filters)?);
        let table = KeyakiTable {
            table: self.table.clone(),
            snapshot: self.snapshot.clone(),
            context: self.context.clone(),
            with_rowid: self.with_rowid,
            schema: self.schema.clone(),
            constraints: self.constraints.clone(),
            along: Some(along),
        };
        Ok(Some((table, more)))
    }

    /// Adds the hidden rowid as last column of the schema, if the table has one.
    pub fn with_rowid(mut self) -> Self {
        self.with_rowid = self.table.def.hidden_rowid;
        self.schema = self.table.arrow_with_rowid();
        self
    }

    /// The tree with an id, of this table or one of its indexes.
    pub fn tree(&self, tree: TreeId) -> Result<PlannedTree> {
        match self.context.assumed.get(&tree) {
            Some(assumed) => Ok(PlannedTree::Assumed(assumed.clone())),
            None => {
                let view = self.snapshot.tree(tree).map_err(crate::Error::from)?;
                Ok(match &self.context.distribution {
                    Some(shared) => {
                        let page_cache_bytes = shared.page_cache_bytes;
                        PlannedTree::Shared { view: view.ignoring_cache(), page_cache_bytes }
                    }
                    None => PlannedTree::Stored(view),
                })
            }
        }
    }

    /// The partitions of a scan, of which a machine has `partitions` at most.
    fn parts(&self, partitions: usize) -> Parts {
        match &self.context.distribution {
            // A plan with one partition is that of one machine.
            Some(shared) if partitions > 1 => Parts::of_bytes(partitions * shared.workers, shared.split.scan_bytes),
            _ => Parts::of_bytes(partitions, PARTITION_BYTES),
        }
    }

    /// Returns the trees in which key ranges answer all filters exactly, the table first.
    pub fn answers(&self, filters: &[Expr]) -> Result<Vec<Answer>> {
        let def = &self.table.def;
        let mut answers = Vec::new();
        for index in std::iter::once(None).chain((0..def.indexes.len()).map(Some)) {
            let Some(implied) = self.implied(index, filters) else { continue };
            let (tree, columns) = match index {
                None => (def.tree, self.table.table_columns()),
                Some(i) => (def.indexes[i].tree, self.table.index_columns(i)),
            };
            let view = self.tree(tree)?;
            let mut ranges = self.ranges(index, view.schema(), &columns, filters);
            ranges.add_answered(&implied);
            if ranges.answered.iter().all(|&answered| answered) {
                let in_memory = index.is_some_and(|i| def.indexes[i].method.is_in_memory());
                answers.push(Answer { name: self.table.tree_name(index), view, columns, ranges, in_memory });
            }
        }
        Ok(answers)
    }

    /// Estimated elapsed seconds of the best scan that reads the provider's columns `needed` and the columns of the
    /// filters.
    pub fn scan_seconds(&self, needed: &[usize], filters: &[Expr]) -> Result<f64> {
        let output: Vec<_> = needed.iter().map(|&column| self.table_column(column)).collect();
        let chosen = self.choose(&output, filters)?;
        let machine = self.context.machine();
        let readable = chosen.readable(chosen.view.tree().is_memory());
        let columns = output.len() + self.used(filters, &vec![false; filters.len()]).len();
        Ok(machine.seconds(machine.scan_of(readable, columns as f64)))
    }

    /// Estimated rows that the best scan of the provider's columns `projection` reads, before filters over rows; `None`
    /// stands for all columns.
    pub fn scanned_rows(&self, projection: Option<&Vec<usize>>, filters: &[Expr]) -> Result<f64> {
        Ok(self.choose(&self.output(projection), filters)?.estimate.rows)
    }

    /// The table columns of a projection.
    fn output(&self, projection: Option<&Vec<usize>>) -> Vec<Option<usize>> {
        match projection {
            Some(columns) => columns.iter().map(|&column| self.table_column(column)).collect(),
            None => (0..self.schema.fields().len()).map(|column| self.table_column(column)).collect(),
        }
    }

    /// Column index of a name in a filter. The index after the last column is the hidden rowid.
    pub fn resolve(&self, column: &Column) -> Option<usize> {
        let found = self.table.def.columns.iter().position(|c| c.name == column.name);
        found.or_else(|| (self.with_rowid && column.name == HIDDEN_ROWID).then_some(self.table.def.columns.len()))
    }

    /// Maps a column of the provider to a table column as in [`Table::index_columns`]: `None` for the hidden rowid.
    pub fn table_column(&self, column: usize) -> Option<usize> {
        (column < self.table.def.columns.len()).then_some(column)
    }

    /// For each filter, true if every row of a tree passes it; `None` if the tree may lack rows that pass all of them, or is
    /// unusable. The tree is that of an index or the table's.
    pub fn implied(&self, index: Option<usize>, filters: &[Expr]) -> Option<Vec<bool>> {
        self.implied_over(index, filters, &|column| self.table_column(self.resolve(column)?))
    }

    /// As [`KeyakiTable::implied`]; `resolve` maps a column of the filters to a table column.
    pub fn implied_over(
        &self,
        index: Option<usize>,
        filters: &[Expr],
        resolve: &dyn Fn(&Column) -> Option<usize>,
    ) -> Option<Vec<bool>> {
        let Some(index) = index else { return Some(vec![false; filters.len()]) };
        let IndexDef { tree, method, .. } = &self.table.def.indexes[index];
        if self.context.unusable.contains_key(tree) || (self.context.omits_memory_indexes && method.is_in_memory()) {
            return None;
        }
        implied_filters(&self.table, index, filters, resolve)
    }

    /// Table columns of the filters for which `implied` is false.
    fn used(&self, filters: &[Expr], implied: &[bool]) -> Vec<Option<usize>> {
        let others = filters.iter().zip(implied).filter(|(_, implied)| !**implied).map(|(filter, _)| filter);
        let columns = others.flat_map(|filter| filter.column_refs()).filter_map(|column| self.resolve(column));
        columns.map(|column| self.table_column(column)).collect()
    }

    /// The key ranges that the filters imply in a tree with the given table columns.
    fn ranges(
        &self,
        index: Option<usize>,
        schema: &keyaki_store::Schema,
        columns: &[Option<usize>],
        filters: &[Expr],
    ) -> Ranges {
        let of_table = |column: &Column| self.table_column(self.resolve(column)?);
        let filters = over_index(&self.table, index, filters, &of_table);
        let place = |column: &Column| {
            let column = match virtual_number(column) {
                Some(column) => Some(column),
                None => self.table_column(self.resolve(column)?),
            };
            columns.iter().position(|c| *c == column)
        };
        key_ranges(schema, &filters, &place)
    }

    fn candidate(
        &self,
        index: Option<usize>,
        tree: TreeId,
        columns: Vec<Option<usize>>,
        filters: &[Expr],
        implied: &[bool],
    ) -> Result<Candidate> {
        let view = self.tree(tree)?;
        let mut ranges = self.ranges(index, view.schema(), &columns, filters);
        ranges.add_answered(implied);
        let estimate = ranges.ranges.iter().map(|range| view.estimate(range)).fold(RangeEstimate::default(), add);
        Ok(Candidate { name: self.table.tree_name(index), view, columns, ranges, estimate })
    }

    /// The tree of an index, or of the table, if it contains all rows that pass the filters, and all columns of `output` and
    /// of the residual filters.
    fn covering(&self, index: Option<usize>, output: &[Option<usize>], filters: &[Expr]) -> Result<Option<Candidate>> {
        let Some(implied) = self.implied(index, filters) else { return Ok(None) };
        let (tree, columns) = match index {
            None => (self.table.def.tree, self.table.table_columns()),
            Some(i) => (self.table.def.indexes[i].tree, self.table.index_columns(i)),
        };
        if index.is_some() && !output.iter().chain(&self.used(filters, &implied)).all(|column| columns.contains(column))
        {
            return Ok(None);
        }
        self.candidate(index, tree, columns, filters, &implied).map(Some)
    }

    /// Chooses the cheapest tree that contains all columns of `output` and of the residual filters.
    fn choose(&self, output: &[Option<usize>], filters: &[Expr]) -> Result<Candidate> {
        if let Some(along) = self.along
            && let Some(candidate) = self.covering(along.index, output, filters)?
        {
            return Ok(candidate);
        }
        let indexes = (0..self.table.def.indexes.len()).map(Some);
        let mut candidates = Vec::new();
        for index in std::iter::once(None).chain(indexes) {
            candidates.extend(self.covering(index, output, filters)?);
        }
        let readable: Vec<_> = candidates.iter().map(|c| c.readable(c.view.tree().is_memory())).collect();
        let columns = output.len() + self.used(filters, &vec![false; filters.len()]).len();
        let best = self.context.machine().best_scan(&readable, columns as f64);
        // The table itself is always a candidate.
        Ok(candidates.swap_remove(best.unwrap_or(0)))
    }
}

/// Constraints that DataFusion may use to simplify plans: the primary key, and unique indexes over non-nullable
/// columns.
fn constraints(table: &Table) -> Constraints {
    let def = &table.def;
    let mut list = Vec::new();
    if !def.hidden_rowid {
        list.push(Constraint::PrimaryKey(def.primary_key.clone()));
    }
    let not_null = |columns: &[usize]| columns.iter().all(|&c| !def.columns[c].nullable);
    let unique = def.indexes.iter().filter(|index| index.is_key()).filter_map(|index| index.plain_columns());
    list.extend(unique.filter(|columns| not_null(columns)).map(Constraint::Unique));
    Constraints::new_unverified(list)
}

#[async_trait]
impl TableProvider for KeyakiTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn constraints(&self) -> Option<&Constraints> {
        Some(&self.constraints)
    }
    fn table_type(&self) -> TableType {
        TableType::Base
    }
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| match is_row_filter(filter) {
            true => TableProviderFilterPushDown::Exact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let output: Vec<usize> = match projection {
            Some(columns) => columns.clone(),
            None => (0..self.schema.fields().len()).collect(),
        };
        let of_table: Vec<Option<usize>> = output.iter().map(|&column| self.table_column(column)).collect();
        let chosen = self.choose(&of_table, filters)?;
        let grouped = self.along.map(|along| along.columns);
        let in_tree = |column: usize| {
            let column = self.table_column(column);
            // `choose` returns a tree with all needed columns.
            chosen.columns.iter().position(|c| *c == column).unwrap_or(usize::MAX)
        };
        let remaining = filters.iter().zip(&chosen.ranges.answered).filter(|(_, answered)| !**answered);
        let remaining: Vec<Expr> = remaining.map(|(filter, _)| filter.clone()).collect();
        let filter = physical(state, &self.schema, &remaining)?.map(|expr| remap(expr, &in_tree)).transpose()?;
        let schema = Arc::new(Schema::new(output.iter().map(|&c| self.schema.fields()[c].clone()).collect::<Vec<_>>()));
        let plan = ScanPlan {
            name: chosen.name,
            partitions: partition(
                &chosen.view,
                chosen.ranges.ranges,
                chosen.estimate,
                self.parts(state.config().target_partitions()),
                grouped,
            ),
            grouped,
            estimate: chosen.estimate,
            fixed: chosen.ranges.fixed,
            columns: output.iter().map(|&c| in_tree(c)).collect(),
            filter,
            limit,
            direction: Direction::Ascending,
            statistics: Arc::new(estimate::of_scan(&self.table, &output, &chosen.estimate, &remaining, limit)),
            view: chosen.view,
        };
        Ok(Arc::new(ScanExec::new(ScanOperator::new(plan, schema, self.context.clone()))))
    }
}

/// The conjunction of the filters as a physical expression over the provider's columns.
fn physical(state: &dyn Session, schema: &SchemaRef, filters: &[Expr]) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let Some(filter) = conjunction(filters.iter().cloned()) else { return Ok(None) };
    // Filters qualify columns with the table's name or alias, or not at all. With one table, no qualifier is needed.
    let filter = datafusion::logical_expr::expr_rewriter::unnormalize_col(filter);
    let schema = DFSchema::try_from(schema.as_ref().clone())?;
    state.create_physical_expr(filter, &schema).map(Some)
}
