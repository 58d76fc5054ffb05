//! COUNT, MIN and MAX without GROUP BY, over rows that are ranges of some key: counted by leaves and pages, and looked up at
//! the ends of the ranges.
//!
//! `SELECT count(*), min(ts), max(ts) FROM events WHERE ts >= '2026-01-01'` looks at two or three pages of an index on `ts`. Each
//! aggregate takes the tree that suits it; all of them are of one snapshot.

use std::fmt::{self, Display};
use std::sync::Arc;

use datafusion::common::{Column, DFSchemaRef};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, TableScan, UserDefinedLogicalNodeCore};
use keyaki_store::{ColumnType, KeyRange, TreeView};

use super::node::Same;
use crate::table::{Answer, KeyakiTable};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Count,
    Min,
    Max,
}

/// One aggregate, and where it is found.
#[derive(Debug, Clone)]
pub(super) struct SummaryItem {
    pub wanted: Wanted,
    /// Of the tree, for display.
    pub name: String,
    pub view: TreeView,
    pub ranges: Vec<KeyRange>,
    /// Of the tree; of no use for COUNT.
    pub column: usize,
}

#[derive(Debug)]
pub(super) struct SummarySpec {
    pub items: Vec<SummaryItem>,
    pub schema: DFSchemaRef,
}

impl Display for SummarySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.items.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            let column = &item.view.schema().columns()[item.column].name;
            match item.wanted {
                Wanted::Count => write!(f, "{separator}count of {}", item.name)?,
                Wanted::Min => write!(f, "{separator}first {column} of {}", item.name)?,
                Wanted::Max => write!(f, "{separator}last {column} of {}", item.name)?,
            }
            if item.ranges != [KeyRange::all()] {
                let plural = if item.ranges.len() == 1 { "" } else { "s" };
                write!(f, " [{} range{plural}]", item.ranges.len())?;
            }
        }
        Ok(())
    }
}

/// The logical node: a leaf in the place of an aggregation and the scan below it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd)]
pub(super) struct SummaryNode {
    pub spec: Same<SummarySpec>,
}

impl SummaryNode {
    /// None if some of it has to look at rows.
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
        let is_same = |(item, ty): (&SummaryItem, &arrow::datatypes::DataType)| match item.wanted {
            Wanted::Count => *ty == arrow::datatypes::DataType::Int64,
            Wanted::Min | Wanted::Max => *ty == item.view.schema().columns()[item.column].ty.arrow(),
        };
        let found = !items.is_empty() && items.iter().zip(types).all(is_same);
        let spec = Arc::new(SummarySpec { items, schema: aggregate.schema.clone() });
        Ok(found.then_some(SummaryNode { spec: Same(spec) }))
    }
}

/// The scan below what only renames the table and picks columns.
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

fn item(expr: &Expr, table: &KeyakiTable, filters: &[Expr]) -> Result<Option<SummaryItem>> {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = expr else { return Ok(None) };
    if params.filter.is_some() || !params.order_by.is_empty() || params.null_treatment.is_some() {
        return Ok(None);
    }
    match (func.name(), params.args.as_slice()) {
        ("count", [Expr::Literal(value, _)]) if !value.is_null() && !params.distinct => count(table, filters, None),
        ("count", [Expr::Column(column)]) if !params.distinct => count(table, filters, Some(column)),
        ("min", [Expr::Column(column)]) => extreme(table, filters, column, Wanted::Min),
        ("max", [Expr::Column(column)]) => extreme(table, filters, column, Wanted::Max),
        _ => Ok(None),
    }
}

/// The filters, and that a column is not null, if it may be.
fn not_null(table: &KeyakiTable, filters: &[Expr], column: &Column) -> Option<Vec<Expr>> {
    let place = table.table.column(&column.name).ok()?;
    let mut filters = filters.to_vec();
    if table.table.def.columns[place].nullable {
        filters.push(Expr::Column(column.clone()).is_not_null());
    }
    Some(filters)
}

/// Rows, or those where a column is not null.
fn count(table: &KeyakiTable, filters: &[Expr], column: Option<&Column>) -> Result<Option<SummaryItem>> {
    let filters = match column {
        None => filters.to_vec(),
        Some(column) => match not_null(table, filters, column) {
            Some(filters) => filters,
            None => return Ok(None),
        },
    };
    // Trees in memory are walked row by row; others by leaves, of which fewer are better.
    let cost = |answer: &Answer| {
        let pages = answer.view.estimate(&KeyRange::all()).pages;
        (answer.in_memory, answer.ranges.ranges.len(), pages as u64)
    };
    let best = table.answers(&filters)?.into_iter().min_by_key(cost);
    Ok(best.map(|answer| SummaryItem {
        wanted: Wanted::Count,
        name: answer.name,
        view: answer.view,
        ranges: answer.ranges.ranges,
        column: 0,
    }))
}

/// The smallest or greatest value: the first or last one of ranges in which it comes first, or after columns of one value.
fn extreme(table: &KeyakiTable, filters: &[Expr], column: &Column, wanted: Wanted) -> Result<Option<SummaryItem>> {
    let Some(filters) = not_null(table, filters, column) else { return Ok(None) };
    // `not_null` has found it.
    let wanted_column = table.table.column(&column.name).ok();
    let place = |answer: &Answer| -> Option<usize> {
        let place = answer.columns.iter().position(|&c| c == wanted_column)?;
        let schema = answer.view.schema();
        let leads = place <= answer.ranges.fixed;
        // Floats are in an order of their own (-0 before 0, values that are not numbers at the ends).
        let ordered = !matches!(schema.columns()[place].ty, ColumnType::Float32 | ColumnType::Float64);
        (leads && ordered && place < schema.key_columns()).then_some(place)
    };
    let found = table.answers(&filters)?.into_iter().filter_map(|answer| Some((place(&answer)?, answer)));
    let best = found.min_by_key(|(_, answer)| (!answer.in_memory, answer.ranges.ranges.len()));
    Ok(best.map(|(column, answer)| SummaryItem {
        wanted,
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
    // It has none that anybody else may rewrite.
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
