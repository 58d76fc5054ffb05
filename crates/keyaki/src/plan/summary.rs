//! COUNT, MIN and MAX without GROUP BY, answered from keys if the filters are key ranges of a tree.
//!
//! COUNT adds up the row counts of leaves and pages. MIN and MAX read the first or last entry of the ranges. `SELECT
//! count(*), min(ts), max(ts) FROM events WHERE ts >= '2026-01-01'` reads two or three pages of an index on `ts`.
//!
//! Each aggregate uses the tree with the lowest cost for it. All trees belong to one snapshot. Invariant: the ranges of
//! the tree contain exactly the rows that pass the filters.

use std::fmt::{self, Display};
use std::sync::Arc;

use datafusion::common::{Column, DFSchemaRef};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, TableScan, UserDefinedLogicalNodeCore};
use keyaki_store::{ColumnType, KeyRange};

use super::node::PtrEq;
use crate::table::{Answer, KeyakiTable, PlanContext, PlannedTree};

/// The supported aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SummaryFunction {
    Count,
    Min,
    Max,
}

/// One aggregate and its access path.
#[derive(Debug, Clone)]
pub(super) struct SummaryItem {
    pub function: SummaryFunction,
    /// Name of the tree, for EXPLAIN.
    pub name: String,
    pub view: PlannedTree,
    /// Key ranges in ascending order.
    pub ranges: Vec<KeyRange>,
    /// Column of the tree with the value; 0 for COUNT, which reads no column.
    pub column: usize,
}

/// The aggregates of a query, in the order of its output columns.
#[derive(Debug)]
pub(super) struct SummarySpec {
    /// The context of the database of the trees.
    pub context: PlanContext,
    pub items: Vec<SummaryItem>,
    pub schema: DFSchemaRef,
}

impl Display for SummarySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.items.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            let column = &item.view.schema().columns()[item.column].name;
            match item.function {
                SummaryFunction::Count => write!(f, "{separator}count of {}", item.name)?,
                SummaryFunction::Min => write!(f, "{separator}first {column} of {}", item.name)?,
                SummaryFunction::Max => write!(f, "{separator}last {column} of {}", item.name)?,
            }
            if item.ranges != [KeyRange::all()] {
                let plural = if item.ranges.len() == 1 { "" } else { "s" };
                write!(f, " [{} range{plural}]", item.ranges.len())?;
            }
        }
        Ok(())
    }
}

/// Logical leaf node that replaces an aggregation and the scan below it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd)]
pub(super) struct SummaryNode {
    pub spec: PtrEq<SummarySpec>,
}

impl SummaryNode {
    /// Plans an aggregation. Returns `None` if it has groups or if keys cannot answer one of its aggregates.
    pub fn of(aggregate: &Aggregate) -> Result<Option<SummaryNode>> {
        if !aggregate.group_expr.is_empty() {
            return Ok(None);
        }
        let Some(scan) = plain_scan(&aggregate.input) else { return Ok(None) };
        let provider = source_as_provider(&scan.source)?;
        let Some(table) = provider.downcast_ref::<KeyakiTable>() else { return Ok(None) };
        let mut items = Vec::with_capacity(aggregate.aggr_expr.len());
        for expr in &aggregate.aggr_expr {
            match item(expr, table, &scan.filters)? {
                Some(item) => items.push(item),
                None => return Ok(None),
            }
        }
        let types = aggregate.schema.fields().iter().map(|field| field.data_type());
        let is_same = |(item, ty): (&SummaryItem, &arrow::datatypes::DataType)| match item.function {
            SummaryFunction::Count => *ty == arrow::datatypes::DataType::Int64,
            SummaryFunction::Min | SummaryFunction::Max => *ty == item.view.schema().columns()[item.column].ty.arrow(),
        };
        let found = !items.is_empty() && items.iter().zip(types).all(is_same);
        let spec = Arc::new(SummarySpec { context: table.context.clone(), items, schema: aggregate.schema.clone() });
        Ok(found.then_some(SummaryNode { spec: PtrEq(spec) }))
    }
}

/// The table scan below aliases and projections of plain columns. Returns `None` for other plans and for scans with a
/// limit.
pub(super) fn plain_scan(plan: &LogicalPlan) -> Option<&TableScan> {
    match plan {
        LogicalPlan::TableScan(scan) => Some(scan).filter(|scan| scan.fetch.is_none()),
        LogicalPlan::SubqueryAlias(alias) => plain_scan(&alias.input),
        LogicalPlan::Projection(projection) => {
            let is_column = |expr: &Expr| matches!(expr, Expr::Column(_));
            if projection.expr.iter().all(is_column) { plain_scan(&projection.input) } else { None }
        }
        _ => None,
    }
}

/// Plans one aggregate. Returns `None` if keys cannot answer it.
fn item(expr: &Expr, table: &KeyakiTable, filters: &[Expr]) -> Result<Option<SummaryItem>> {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = expr else { return Ok(None) };
    if params.filter.is_some() || !params.order_by.is_empty() || params.null_treatment.is_some() {
        return Ok(None);
    }
    match (func.name(), params.args.as_slice()) {
        ("count", [Expr::Literal(value, _)]) if !value.is_null() && !params.distinct => count(table, filters, None),
        ("count", [Expr::Column(column)]) if !params.distinct => count(table, filters, Some(column)),
        ("min", [Expr::Column(column)]) => extreme(table, filters, column, SummaryFunction::Min),
        ("max", [Expr::Column(column)]) => extreme(table, filters, column, SummaryFunction::Max),
        _ => Ok(None),
    }
}

/// Adds `column IS NOT NULL` to the filters if the column is nullable. Returns `None` if the table has no such column.
fn not_null(table: &KeyakiTable, filters: &[Expr], column: &Column) -> Option<Vec<Expr>> {
    let place = table.table.column(&column.name).ok()?;
    let mut filters = filters.to_vec();
    if table.table.def.columns[place].nullable {
        filters.push(Expr::Column(column.clone()).is_not_null());
    }
    Some(filters)
}

/// Plans COUNT(*), or COUNT of a column, which skips nulls.
fn count(table: &KeyakiTable, filters: &[Expr], column: Option<&Column>) -> Result<Option<SummaryItem>> {
    let filters = match column {
        None => filters.to_vec(),
        Some(column) => match not_null(table, filters, column) {
            Some(filters) => filters,
            None => return Ok(None),
        },
    };
    // A scan of an in-memory tree counts row by row. On-disk trees count by leaf and page: fewer ranges and pages cost
    // less.
    let cost = |answer: &Answer| {
        let pages = answer.view.estimate(&KeyRange::all()).pages;
        (answer.in_memory, answer.ranges.ranges.len(), pages as u64)
    };
    let best = table.answers(&filters)?.into_iter().min_by_key(cost);
    Ok(best.map(|answer| SummaryItem {
        function: SummaryFunction::Count,
        name: answer.name,
        view: answer.view,
        ranges: answer.ranges.ranges,
        column: 0,
    }))
}

/// Plans MIN or MAX: the first or last entry of a tree in which the column is the first key column that the ranges do
/// not fix to one value, or one of the fixed columns.
fn extreme(
    table: &KeyakiTable,
    filters: &[Expr],
    column: &Column,
    function: SummaryFunction,
) -> Result<Option<SummaryItem>> {
    let Some(filters) = not_null(table, filters, column) else { return Ok(None) };
    // `not_null` has resolved the column.
    let wanted_column = table.table.column(&column.name).ok();
    let place = |answer: &Answer| -> Option<usize> {
        let place = answer.columns.iter().position(|&c| c == wanted_column)?;
        let schema = answer.view.schema();
        let leads = place <= answer.ranges.fixed;
        // The key order of floats differs from SQL's: -0 sorts before 0, and NaN at both ends.
        let ordered = !matches!(schema.columns()[place].ty, ColumnType::Float32 | ColumnType::Float64);
        (leads && ordered && place < schema.key_columns()).then_some(place)
    };
    let found = table.answers(&filters)?.into_iter().filter_map(|answer| Some((place(&answer)?, answer)));
    let best = found.min_by_key(|(_, answer)| (!answer.in_memory, answer.ranges.ranges.len()));
    Ok(best.map(|(column, answer)| SummaryItem {
        function,
        name: answer.name,
        view: answer.view,
        ranges: answer.ranges.ranges,
        column,
    }))
}

impl UserDefinedLogicalNodeCore for SummaryNode {
    fn name(&self) -> &str {
        "Summary"
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
        write!(f, "Summary: {}", self.spec.0)
    }
    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, _inputs: Vec<LogicalPlan>) -> Result<Self> {
        Ok(self.clone())
    }
}
