//! Statistics of a scan for DataFusion's optimizer.
//!
//! Row counts come from the tree's estimate of the ranges, column figures from table statistics. All values are
//! [`Precision::Inexact`], so that DataFusion never answers a query from them.

use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::logical_expr::Expr;
use keyaki_store::RangeEstimate;

use crate::catalog::Table;

/// Selectivity of residual filters, DataFusion's default.
const FILTER_SELECTIVITY: f64 = 0.2;

/// Statistics of a scan that reads ranges of size `estimate`, filters them by `filters` and returns the table columns
/// `output`.
pub(super) fn of_scan(
    table: &Table,
    output: &[usize],
    estimate: &RangeEstimate,
    filters: &[Expr],
    limit: Option<usize>,
) -> Statistics {
    let mut rows = estimate.rows;
    if !filters.is_empty() {
        rows *= FILTER_SELECTIVITY;
    }
    if let Some(limit) = limit {
        rows = rows.min(limit as f64);
    }
    let columns: Vec<ColumnStatistics> = output.iter().map(|&column| of_column(table, column, rows)).collect();
    let bytes = columns.iter().map(|c| c.byte_size.get_value().copied().unwrap_or(0)).sum();
    Statistics { num_rows: inexact(rows), total_byte_size: Precision::Inexact(bytes), column_statistics: columns }
}

/// Statistics of one output column; 8 bytes per value if the table has no statistics.
fn of_column(table: &Table, column: usize, rows: f64) -> ColumnStatistics {
    let known = table.statistics.as_ref().and_then(|s| s.columns.get(column));
    let width = known.map_or(8.0, |c| c.width);
    let mut statistics = ColumnStatistics { byte_size: inexact(rows * width), ..ColumnStatistics::new_unknown() };
    if let Some(known) = known {
        statistics.distinct_count = inexact(known.distinct.min(rows));
        statistics.null_count = inexact(known.null_fraction * rows);
    }
    statistics
}

/// Statistics of one of `partitions` equal partitions.
pub(super) fn share(all: &Statistics, partitions: usize) -> Statistics {
    let part = |value: &Precision<usize>| match value.get_value() {
        Some(value) => Precision::Inexact(value / partitions.max(1)),
        None => Precision::Absent,
    };
    let mut share = all.clone();
    share.num_rows = part(&all.num_rows);
    share.total_byte_size = part(&all.total_byte_size);
    for column in &mut share.column_statistics {
        column.byte_size = part(&column.byte_size);
        column.null_count = part(&column.null_count);
    }
    share
}

fn inexact(value: f64) -> Precision<usize> {
    Precision::Inexact(value.max(0.0).min(usize::MAX as f64) as usize)
}
