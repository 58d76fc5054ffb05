//! Filters over the virtual columns of an index.
//!
//! A filter of a query has the expression of an index. With the index's virtual column in its place, the filter bounds the keys
//! of the index as a filter over a column does.

use std::borrow::Cow;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, TableReference};
use datafusion::logical_expr::Expr;

use super::partial::over_table;
use crate::base::tree::Tree;
use crate::catalog::{Table, VirtualValue};

/// Qualifier of virtual columns in filters. No relation has this name.
const QUALIFIER: &str = "\0virtual";

/// The filters with virtual columns in place of the expressions of an index; [`number`] returns their numbers. `resolve` maps
/// a column of the filters to a table column.
pub(crate) fn over_index<'a>(
    table: &Table,
    index: Option<usize>,
    filters: &'a [Expr],
    resolve: &dyn Fn(&Column) -> Option<usize>,
) -> Cow<'a, [Expr]> {
    let columns = table.virtual_columns().filter(|&column| Some(table.index_of_virtual(column)) == index);
    // Expressions that could not be compiled bound no keys.
    let values: Vec<(usize, &VirtualValue)> =
        columns.filter_map(|column| Some((column, table.virtual_value(column).ok()?))).collect();
    if values.is_empty() {
        return Cow::Borrowed(filters);
    }
    let replaced = |filter: &Expr| {
        let replaced = filter.clone().transform_down_dyn(&mut |expr| {
            if matches!(expr, Expr::Column(_) | Expr::Literal(..)) {
                return Ok(Transformed::no(expr));
            }
            let own = over_table(&expr, table, resolve);
            Ok(match values.iter().find(|(_, value)| value.expr == own) {
                Some((column, _)) => {
                    let name = Column::new(Some(TableReference::bare(QUALIFIER)), column.to_string());
                    Transformed::new(Expr::Column(name), true, TreeNodeRecursion::Jump)
                }
                None => Transformed::no(expr),
            })
        });
        // The closure never fails.
        replaced.map_or_else(|_| filter.clone(), |replaced| replaced.data)
    };
    Cow::Owned(filters.iter().map(replaced).collect())
}

/// The number of a virtual column of [`over_index`]; `None` for other columns.
pub(crate) fn number(column: &Column) -> Option<usize> {
    let is_virtual = column.relation.as_ref().is_some_and(|relation| relation.table() == QUALIFIER);
    if is_virtual { column.name.parse().ok() } else { None }
}
