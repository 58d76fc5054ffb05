//! GROUP BY along a key: rows with the same key follow each other, so that no hash table is needed.
//!
//! ```text
//! SELECT order, sum(price) FROM items GROUP BY order        -- PRIMARY KEY (order, line)
//!
//! Aggregate                        KeyGroupsExec: one group after another, complete in one step
//! └ TableScan: items        =>     └ ScanExec: items, in key order, each order in one partition
//! ```
//!
//! [`along_key`] chooses a tree for the scan in the logical plan: the table's own or an index that has all columns. It may
//! be larger than the tree that is otherwise read: the scan may take longer by the estimated time of the hash tables.
//! [`AggregateAlongKeys`] then replaces DataFusion's two steps of aggregation, before the rules that add exchanges: the
//! result has the partitions of the scan, and its order.
//!
//! Invariant: all rows of a group are in one partition, and follow each other there.

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::common::tree_node::Transformed;
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::error::Result;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, TableScan};

use super::facts::rows_and_groups;
use super::first_rows::unalias;
use crate::base::tree::Tree;
use crate::table::KeyakiTable;

mod exec;
mod rule;
mod stream;

pub(super) use rule::AggregateAlongKeys;

/// Processor time of a row in a hash table that fits into the caches, in seconds.
const CACHED_ROW_SECONDS: f64 = 1.0e-8;
/// Additional time of a row in a larger hash table.
const UNCACHED_ROW_SECONDS: f64 = 5.0e-8;
/// A group that two steps of aggregation exchange.
const GROUP_SECONDS: f64 = 1.5e-7;
/// Number of groups whose hash table fits into the caches.
const CACHED_GROUPS: f64 = 65_536.0;
/// Fewer groups cannot be distributed evenly over the partitions.
const GROUPS_MIN: f64 = 1024.0;

/// An aggregation of a table with the scan along the key of its groups. `None` if there is none, or if it is slower.
pub(super) fn along_key(aggregate: &Aggregate) -> Result<Option<Aggregate>> {
    let column = |expr: &Expr| if let Expr::Column(column) = expr { Some(column.clone()) } else { None };
    let Some(groups) = aggregate.group_expr.iter().map(column).collect::<Option<Vec<Column>>>() else {
        return Ok(None);
    };
    if groups.is_empty() {
        return Ok(None);
    }
    let Some((scan, groups)) = scan_below(&aggregate.input, groups) else { return Ok(None) };
    let provider = source_as_provider(&scan.source)?;
    let Some(table) = provider.downcast_ref::<KeyakiTable>() else { return Ok(None) };
    let Some(groups) = groups.iter().map(|column| table.resolve(column)).collect::<Option<Vec<usize>>>() else {
        return Ok(None);
    };
    let needed = scan.projection.clone().unwrap_or_else(|| (0..scan.source.schema().fields().len()).collect());
    let Some((along, more_seconds)) = table.along(&groups, &needed, &scan.filters)? else { return Ok(None) };
    let (rows, count) = rows_and_groups(&aggregate.input, &aggregate.group_expr);
    if count < GROUPS_MIN || more_seconds > hash_seconds(rows, count) / table.context.machine().workers() {
        return Ok(None);
    }
    let source = provider_as_source(Arc::new(along));
    let input = aggregate.input.as_ref().clone().transform_down_dyn(&mut |node| match node {
        LogicalPlan::TableScan(scan) => {
            let scan = TableScan { source: source.clone(), ..scan };
            Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
        }
        node => Ok(Transformed::no(node)),
    });
    let Aggregate { group_expr, aggr_expr, schema, .. } = aggregate.clone();
    Aggregate::try_new_with_schema(Arc::new(input?.data), group_expr, aggr_expr, schema).map(Some)
}

/// Processor seconds of an aggregation of `rows` rows to `groups` groups in hash tables.
pub(super) fn hash_seconds(rows: f64, groups: f64) -> f64 {
    let uncached = if groups > CACHED_GROUPS { UNCACHED_ROW_SECONDS } else { 0.0 };
    rows * (CACHED_ROW_SECONDS + uncached) + groups * GROUP_SECONDS
}

/// The scan below projections, filters and aliases, with the names that `columns` have there. `None` for other plans, for
/// scans with a limit, and if one of the columns is computed.
fn scan_below(plan: &LogicalPlan, columns: Vec<Column>) -> Option<(&TableScan, Vec<Column>)> {
    match plan {
        LogicalPlan::TableScan(scan) => Some((scan, columns)).filter(|(scan, _)| scan.fetch.is_none()),
        LogicalPlan::Filter(filter) => scan_below(&filter.input, columns),
        LogicalPlan::SubqueryAlias(alias) => {
            let below = |column: &Column| {
                let place = alias.schema.maybe_index_of_column(column)?;
                Some(Column::from(alias.input.schema().qualified_field(place)))
            };
            scan_below(&alias.input, columns.iter().map(below).collect::<Option<_>>()?)
        }
        LogicalPlan::Projection(projection) => {
            let below = |column: &Column| {
                let place = projection.schema.maybe_index_of_column(column)?;
                if let Expr::Column(column) = unalias(&projection.expr[place]) { Some(column.clone()) } else { None }
            };
            scan_below(&projection.input, columns.iter().map(below).collect::<Option<_>>()?)
        }
        _ => None,
    }
}
