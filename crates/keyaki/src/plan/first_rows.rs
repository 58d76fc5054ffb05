//! ORDER BY … LIMIT along a non-covering index: scan the first entries of the index, then look up their rows
//! concurrently.
//!
//! `SELECT * FROM events ORDER BY ts DESC LIMIT 20` reads one page at the end of the index on `ts` and the pages of 20
//! rows. The operator replaces the input of the sort. The sort remains above it and orders these rows, at most
//! [`ROWS_MAX`].
//!
//! Invariant: every filter of the scan is implied by ranges of the index key. A residual filter after the limit would
//! return too few rows.

use std::fmt::{self, Display};
use std::sync::Arc;

use datafusion::common::{Column, DFSchemaRef};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, Projection, Sort, SortExpr, UserDefinedLogicalNodeCore};
use keyaki_store::{Direction, KeyRange, TreeView};

use super::node::PtrEq;
use super::summary::plain_scan;
use crate::table::cost::Lookups;
use crate::table::{Answer, KeyakiTable, PlanContext, PlannedTree};

/// Largest limit; beyond it, DataFusion sorts a scan.
const ROWS_MAX: usize = 100_000;

/// A scan of the first entries of an index, followed by lookups into the table.
#[derive(Debug)]
pub(super) struct FirstRowsSpec {
    /// The context of the database of the index.
    pub context: PlanContext,
    /// Name of the index, for EXPLAIN.
    pub name: String,
    pub index: PlannedTree,
    /// Key ranges of the index in the order in which the scan reads them.
    pub ranges: Vec<KeyRange>,
    /// Direction of the scan within each range.
    pub direction: Direction,
    /// Maximum number of index entries to read.
    pub rows: usize,
    /// Columns of the index that form the table's key.
    pub key: Vec<usize>,
    pub table: TreeView,
    /// Columns of the table's tree to return.
    pub columns: Vec<usize>,
    pub schema: DFSchemaRef,
}

impl Display for FirstRowsSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = if self.direction == Direction::Ascending { "first" } else { "last" };
        write!(f, "{which} {} of {}", self.rows, self.name)?;
        if self.ranges != [KeyRange::all()] {
            let plural = if self.ranges.len() == 1 { "" } else { "s" };
            write!(f, " [{} range{plural}]", self.ranges.len())?;
        }
        Ok(())
    }
}

/// Logical leaf node that replaces a scan below a sort with a limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd)]
pub(super) struct FirstRowsNode {
    pub spec: PtrEq<FirstRowsSpec>,
}

/// Returns a replacement for the input of a sort: the first rows along an index. Returns `None` if the limit exceeds
/// [`ROWS_MAX`], no index has the order, a covering index exists, or a scan has a lower estimated cost.
pub(super) fn input(sort: &Sort) -> Result<Option<LogicalPlan>> {
    let Some(rows) = sort.fetch.filter(|&rows| rows <= ROWS_MAX) else { return Ok(None) };
    let LogicalPlan::Projection(projection) = &*sort.input else {
        let Some(exprs) = columns(&sort.expr, |column| Some(column.clone())) else { return Ok(None) };
        return first_rows(&sort.input, rows, &exprs);
    };
    let below = |column: &Column| {
        let place = projection.schema.maybe_index_of_column(column)?;
        match unalias(&projection.expr[place]) {
            Expr::Column(column) => Some(column.clone()),
            _ => None,
        }
    };
    let Some(exprs) = columns(&sort.expr, below) else { return Ok(None) };
    let found = first_rows(&projection.input, rows, &exprs)?;
    let project = |input| {
        let schema = projection.schema.clone();
        Projection::try_new_with_schema(projection.expr.clone(), Arc::new(input), schema).map(LogicalPlan::Projection)
    };
    found.map(project).transpose()
}

pub(super) fn unalias(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unalias(&alias.expr),
        expr => expr,
    }
}

/// Maps sort columns to columns of the projection's input. Returns `None` if a sort expression is not a column or has
/// no such column.
fn columns(exprs: &[SortExpr], below: impl Fn(&Column) -> Option<Column>) -> Option<Vec<SortExpr>> {
    let column = |sort: &SortExpr| match &sort.expr {
        Expr::Column(column) => Some(SortExpr { expr: Expr::Column(below(column)?), ..sort.clone() }),
        _ => None,
    };
    exprs.iter().map(column).collect()
}

/// Plans the first rows of a scan along an index, followed by lookups of the rows.
fn first_rows(plan: &LogicalPlan, rows: usize, exprs: &[SortExpr]) -> Result<Option<LogicalPlan>> {
    let Some(scan) = plain_scan(plan) else { return Ok(None) };
    let provider = source_as_provider(&scan.source)?;
    let Some(table) = provider.downcast_ref::<KeyakiTable>() else { return Ok(None) };
    let schema = plan.schema();
    let output = schema.columns().iter().map(|column| table.resolve(column)).collect::<Option<Vec<usize>>>();
    let (Some(output), Some(order)) = (output, order(exprs, table)) else { return Ok(None) };
    let Some(chosen) = Chosen::of(table, &scan.filters, &output, &order)? else { return Ok(None) };
    let view = table.snapshot.tree(table.table.def.tree).map_err(crate::Error::from)?;
    let seconds = lookup_seconds(table, &view, rows as f64, output.len() as f64);
    if seconds >= table.scan_seconds(&output, &scan.filters)? {
        return Ok(None);
    }
    let tables = table.table.table_columns();
    let columns = output.iter().map(|&column| {
        let column = table.table_column(column);
        // The table's tree contains every column.
        tables.iter().position(|&c| c == column).unwrap_or(usize::MAX)
    });
    let spec = FirstRowsSpec {
        context: table.context.clone(),
        name: chosen.answer.name,
        index: chosen.answer.view,
        ranges: chosen.ranges,
        direction: chosen.direction,
        rows,
        key: chosen.key,
        table: view,
        columns: columns.collect(),
        schema: schema.clone(),
    };
    let node = Arc::new(FirstRowsNode { spec: PtrEq(Arc::new(spec)) });
    Ok(Some(LogicalPlan::Extension(Extension { node })))
}

/// An index whose key order matches the sort.
struct Chosen {
    answer: Answer,
    /// Key ranges in scan order.
    ranges: Vec<KeyRange>,
    direction: Direction,
    /// Columns of the index that form the table's key.
    key: Vec<usize>,
}

impl Chosen {
    /// Chooses the first index in the sort order whose ranges imply all filters. Returns `None` if there is none, or if
    /// an index covers the output: a scan of that index needs no lookups.
    fn of(table: &KeyakiTable, filters: &[Expr], output: &[usize], order: &[Order]) -> Result<Option<Chosen>> {
        let places = |answer: &Answer, wanted: &[Option<usize>]| -> Option<Vec<usize>> {
            wanted.iter().map(|wanted| answer.columns.iter().position(|column| column == wanted)).collect()
        };
        let wanted: Vec<Option<usize>> = output.iter().map(|&column| table.table_column(column)).collect();
        let key = &table.table.table_columns()[..table.table.schema.key_columns()];
        let mut answers = table.answers(filters)?;
        answers.retain(|answer| answer.view.tree() != table.table.def.tree);
        if answers.iter().any(|answer| places(answer, &wanted).is_some()) {
            return Ok(None);
        }
        let found = |answer: Answer| {
            let (direction, key) = (direction(&answer, order)?, places(&answer, key)?);
            Some((answer, direction, key))
        };
        let Some((answer, direction, key)) = answers.into_iter().find_map(found) else { return Ok(None) };
        let Some(ranges) = ranges(table, filters, &answer, &order[0])? else { return Ok(None) };
        Ok(Some(Chosen { answer, ranges, direction, key }))
    }
}

/// Orders the ranges of an index for the scan. Nulls sort before all values in keys; if the first sort column places
/// them elsewhere, its nulls and its values become separate groups of ranges.
fn ranges(table: &KeyakiTable, filters: &[Expr], answer: &Answer, first: &Order) -> Result<Option<Vec<KeyRange>>> {
    let in_direction = |mut ranges: Vec<KeyRange>| {
        if first.direction == Direction::Descending {
            ranges.reverse();
        }
        ranges
    };
    if first.nulls_in_key_order {
        return Ok(Some(in_direction(answer.ranges.ranges.clone())));
    }
    let part = |filter: Expr| -> Result<Option<Vec<KeyRange>>> {
        let filters: Vec<Expr> = filters.iter().cloned().chain([filter]).collect();
        let mut answers = table.answers(&filters)?.into_iter();
        let same = answers.find(|part| part.view.tree() == answer.view.tree());
        Ok(same.map(|part| in_direction(part.ranges.ranges)))
    };
    let (nulls, values) = (part(first.expr.clone().is_null())?, part(first.expr.clone().is_not_null())?);
    let (Some(nulls), Some(values)) = (nulls, values) else { return Ok(None) };
    let (first, last) = if first.direction == Direction::Ascending { (values, nulls) } else { (nulls, values) };
    Ok(Some([first, last].concat()))
}

/// A sort column.
struct Order {
    expr: Expr,
    /// Column of the table.
    column: usize,
    direction: Direction,
    /// The column is never null, or the sort places nulls where the key order has them.
    nulls_in_key_order: bool,
}

/// Resolves sort expressions. Returns `None` if one is not a column of the table, or if a column after the first places
/// nulls other than the key order does.
fn order(exprs: &[SortExpr], table: &KeyakiTable) -> Option<Vec<Order>> {
    let order = |sort: &SortExpr| {
        let Expr::Column(column) = &sort.expr else { return None };
        let column = table.resolve(&Column::from_name(&column.name))?;
        let nullable = table.table.def.columns.get(column).is_some_and(|column| column.nullable);
        // Nulls sort before all values in keys.
        let nulls_in_key_order = !nullable || sort.nulls_first == sort.asc;
        let direction = if sort.asc { Direction::Ascending } else { Direction::Descending };
        Some(Order { expr: sort.expr.clone(), column, direction, nulls_in_key_order })
    };
    let orders = exprs.iter().map(order).collect::<Option<Vec<Order>>>()?;
    orders.iter().skip(1).all(|order| order.nulls_in_key_order).then_some(orders)
}

/// Direction of an index scan that yields `order`. The sort may skip leading key columns that the ranges fix to one
/// value. Returns `None` if the key has another order.
fn direction(answer: &Answer, order: &[Order]) -> Option<Direction> {
    let direction = order.first()?.direction;
    let key = &answer.columns[..answer.view.schema().key_columns()];
    let fixed = answer.ranges.fixed;
    let mut place = 0;
    for wanted in order {
        while place < fixed && key.get(place) != Some(&Some(wanted.column)) {
            place += 1;
        }
        let matches = key.get(place) == Some(&Some(wanted.column)) && wanted.direction == direction;
        if !matches {
            return None;
        }
        place += 1;
    }
    Some(direction)
}

/// Estimated elapsed seconds of `rows` lookups into the table, each decoding `columns` columns.
fn lookup_seconds(table: &KeyakiTable, view: &TreeView, rows: f64, columns: f64) -> f64 {
    let total = view.estimate(&KeyRange::all());
    let machine = table.context.machine();
    machine.seconds(machine.lookups(&Lookups {
        count: rows,
        distinct: rows,
        matches: 1.0,
        tree_rows: total.rows,
        tree_pages: total.pages,
        page_bytes: if total.pages > 0.0 { total.bytes / total.pages } else { 8192.0 },
        cached: view.cached_share().whole,
        clustered: false,
        columns,
    }))
}

impl UserDefinedLogicalNodeCore for FirstRowsNode {
    fn name(&self) -> &str {
        "FirstRows"
    }
    fn inputs(&self) -> Vec<&LogicalPlan> {
        Vec::new()
    }
    fn schema(&self) -> &DFSchemaRef {
        &self.spec.schema
    }
    // No expressions, so that optimizer rules cannot rewrite the node.
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }
    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FirstRows: {}", self.spec.0)
    }
    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, _inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(self.clone())
    }
}
