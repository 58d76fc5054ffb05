//! The first rows in an order: the rows that a statement with LIMIT needs, and the trees that have them at one end.
//!
//! `WHERE id > $1 ORDER BY id LIMIT 20` reads 20 rows from the start of the range. The sort stays in the plan and orders
//! these rows, so a tree serves every order of which its key order is a refinement.

use arrow::compute::SortOptions;
use datafusion::common::DFSchemaRef;
use datafusion::logical_expr::{Expr, SortExpr};
use keyaki_store::{Direction, Schema};

use super::keys::{Key, is_key_type};

/// The rows that a statement needs: the first `rows` in an order.
#[derive(Debug, Clone)]
pub(super) struct First<C = Option<usize>> {
    pub rows: usize,
    /// Table columns (`None` is the hidden rowid), or columns of an operator's input.
    pub order: Vec<(C, SortOptions)>,
}

impl First<usize> {
    /// The first rows in the order of a sort; `None` if it sorts by other expressions than columns.
    pub fn of_sort(rows: usize, exprs: &[SortExpr], input: &DFSchemaRef) -> Option<Self> {
        let column = |sort: &SortExpr| {
            let options = SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first };
            Some((place(&sort.expr, input)?, options))
        };
        Some(First { rows, order: exprs.iter().map(column).collect::<Option<_>>()? })
    }

    /// The first rows in the order of the input of a projection to `exprs`; `None` if the order contains other
    /// expressions than columns.
    pub fn below(&self, exprs: &[Expr], input: &DFSchemaRef) -> Option<Self> {
        self.map(|column| place(exprs.get(column)?, input))
    }

    /// Replaces the columns of the order.
    pub fn map<C>(&self, column: impl Fn(usize) -> Option<C>) -> Option<First<C>> {
        let order = self.order.iter().map(|(place, options)| Some((column(*place)?, *options)));
        Some(First { rows: self.rows, order: order.collect::<Option<_>>()? })
    }
}

impl First {
    /// The direction in which a tree has the rows in the order, within ranges of `key`; `None` if it does not have this
    /// order. `columns` are the table columns of the tree's columns.
    pub fn direction(&self, key: &Key, schema: &Schema, columns: &[Option<usize>]) -> Option<Direction> {
        let own = &columns[..schema.key_columns()];
        let mut direction = None;
        let mut place = 0;
        for (column, options) in &self.order {
            if (0..own.len()).any(|place| key.is_fixed(place) && own[place] == *column) {
                continue;
            }
            while key.is_fixed(place) {
                place += 1;
            }
            // Keys are unique: no further column has an effect.
            let Some(next) = own.get(place) else { break };
            let definition = &schema.columns()[place];
            if next != column || !is_key_type(definition.ty) {
                return None;
            }
            // Nulls sort before all values in keys.
            let nulls_in_key_order = options.nulls_first != options.descending;
            if definition.nullable && !key.excludes_null(place) && !nulls_in_key_order {
                return None;
            }
            let wanted = if options.descending { Direction::Descending } else { Direction::Ascending };
            if *direction.get_or_insert(wanted) != wanted {
                return None;
            }
            place += 1;
        }
        Some(direction.unwrap_or_default())
    }
}

/// The position of the column that an expression consists of.
pub(super) fn place(expr: &Expr, input: &DFSchemaRef) -> Option<usize> {
    match expr {
        Expr::Alias(alias) => place(&alias.expr, input),
        Expr::Column(column) => input.maybe_index_of_column(column),
        _ => None,
    }
}
