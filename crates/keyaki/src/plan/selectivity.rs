//! Selectivity: the fraction of a table's rows that pass a condition, 0 to 1.
//!
//! Comparisons of one column with constants become intervals of values; several conditions on one column are
//! intersected first. Column statistics give the selectivity of an interval. Conditions on different columns count as
//! independent. All other conditions get a constant by their form ([`guess`]).

use std::ops::Bound;

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::{BinaryExpr, InList};
use datafusion::logical_expr::{Expr, Like, Operator};

use keyaki_store::ColumnType;

use crate::catalog::Table;
use crate::catalog::TableStatistics;
use crate::catalog::statistics::image;
use crate::table::ranges::{is_exact, value_intervals};

/// Selectivity of the conjunction of `filters` on `table`. `resolve` maps a column name to a column of the table.
pub(super) fn of_conjunction(table: &Table, filters: &[&Expr], resolve: &dyn Fn(&Column) -> Option<usize>) -> f64 {
    let unknown = TableStatistics::default();
    let statistics = table.statistics.as_deref().unwrap_or(&unknown);
    let estimator = Estimator { table, statistics, resolve };
    let mut share = 1.0;
    let mut by_column: Vec<(usize, Vec<&Expr>)> = Vec::new();
    for &filter in filters {
        match estimator.only_column(filter) {
            Some(column) => match by_column.iter_mut().find(|(known, _)| *known == column) {
                Some((_, list)) => list.push(filter),
                None => by_column.push((column, vec![filter])),
            },
            None => share *= estimator.of_condition(filter),
        }
    }
    for (column, list) in by_column {
        share *= match estimator.of_column(column, &list) {
            Some(share) => share,
            None => list.iter().map(|filter| estimator.of_condition(filter)).product(),
        };
    }
    share.clamp(0.0, 1.0)
}

/// Selectivity of a condition between relations that is not an equality, as a fraction of the pairs of rows.
pub(super) fn of_join_condition(condition: &Expr) -> f64 {
    guess(condition)
}

/// Estimates the conditions on one table.
struct Estimator<'a> {
    table: &'a Table,
    statistics: &'a TableStatistics,
    resolve: &'a dyn Fn(&Column) -> Option<usize>,
}

impl Estimator<'_> {
    /// The table column of a condition that uses no other column. The hidden rowid has no statistics and does not
    /// count.
    fn only_column(&self, filter: &Expr) -> Option<usize> {
        let mut columns = filter.column_refs().into_iter().map(self.resolve);
        let first = columns.next()??;
        columns.all(|column| column == Some(first)).then_some(first).filter(|&c| c < self.table.def.columns.len())
    }

    /// Selectivity of one condition.
    fn of_condition(&self, filter: &Expr) -> f64 {
        if let Some(column) = self.only_column(filter)
            && let Some(share) = self.of_column(column, &[filter])
        {
            return share;
        }
        match filter {
            Expr::Alias(alias) => self.of_condition(&alias.expr),
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
                self.of_condition(left) * self.of_condition(right)
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
                let (a, b) = (self.of_condition(left), self.of_condition(right));
                a + b - a * b
            }
            Expr::Not(inner) => 1.0 - self.of_condition(inner),
            _ => guess(filter),
        }
    }

    /// Selectivity of a conjunction on one column. Returns `None` if the conditions are not intervals of values. A
    /// pattern of LIKE counts beside the interval of its prefix, unless the prefix is all of it.
    fn of_column(&self, column: usize, filters: &[&Expr]) -> Option<f64> {
        let ty = self.table.def.columns[column].ty.column;
        let is_column = |name: &Column| (self.resolve)(name) == Some(column);
        // The intervals beside a long text have the same images as the text.
        let is_complement = |filter: &&Expr| !image_is_exact(ty) && complement(filter).is_some();
        let (complements, positive): (Vec<&Expr>, Vec<&Expr>) = filters.iter().copied().partition(is_complement);
        if !complements.is_empty() {
            let values = 1.0 - self.nulls(column);
            let share = if positive.is_empty() { values } else { self.of_column(column, &positive)? };
            let excluded = |filter: &Expr| complement(filter).map_or(0.0, |positive| self.of_condition(&positive));
            // Shares of all rows; nulls do not pass.
            let passing = complements.into_iter().map(|filter| 1.0 - (excluded(filter) / values.max(0.001)).min(1.0));
            return Some((share * passing.product::<f64>()).clamp(0.0, 1.0));
        }
        let mut matching = 1.0;
        for filter in filters.iter().filter(|filter| has_pattern(filter) && !is_exact(ty, filter, &is_column)) {
            match filter {
                Expr::Like(_) => matching *= guess(filter),
                // The caller combines the parts.
                _ => return None,
            }
        }
        let intervals = value_intervals(ty, filters, &is_column)?;
        let shares = intervals.into_iter().map(|(low, high)| self.of_interval(column, low, high));
        Some((shares.sum::<f64>() * matching).clamp(0.0, 1.0))
    }

    /// Selectivity of an interval of values. Nulls sort first: an unbounded interval or one that starts at null
    /// includes them.
    fn of_interval(&self, column: usize, low: Bound<ScalarValue>, high: Bound<ScalarValue>) -> f64 {
        let nulls = self.nulls(column);
        let with_null = match &low {
            Bound::Unbounded => true,
            Bound::Included(value) => value.is_null(),
            Bound::Excluded(_) => false,
        };
        let own = match (&low, &high) {
            (_, Bound::Included(value) | Bound::Excluded(value)) if value.is_null() => 0.0,
            (Bound::Included(a), Bound::Included(b)) if a == b => self.statistics.selectivity_eq(column, image(a)),
            _ => self.of_images(column, to_image(low), to_image(high)),
        };
        if with_null { own + nulls } else { own }
    }

    /// Selectivity of an interval of images. If both ends have the same image, as texts with a long common prefix do, other
    /// values of the image are outside of the interval: the result is between one value and all of the image.
    fn of_images(&self, column: usize, low: Bound<f64>, high: Bound<f64>) -> f64 {
        let inside = self.statistics.selectivity_range(column, low, high);
        match (low, high) {
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) if a == b => {
                let one = self.statistics.selectivity_eq(column, Some(a));
                let all = self.statistics.selectivity_range(column, Bound::Included(a), Bound::Included(a));
                inside.max((one * all.max(one)).sqrt())
            }
            _ => inside,
        }
    }

    fn nulls(&self, column: usize) -> f64 {
        self.statistics.columns.get(column).map_or(0.0, |statistics| statistics.null_fraction)
    }
}

/// Maps a bound to the numeric image that statistics use. A value without an image becomes unbounded.
fn to_image(bound: Bound<ScalarValue>) -> Bound<f64> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(value) => image(&value).map_or(Bound::Unbounded, Bound::Included),
        Bound::Excluded(value) => image(&value).map_or(Bound::Unbounded, Bound::Excluded),
    }
}

/// True if different values have different images.
fn image_is_exact(ty: ColumnType) -> bool {
    !matches!(ty, ColumnType::Text | ColumnType::Bytes)
}

/// The condition whose complement, apart from nulls, a condition is; `None` for other conditions.
fn complement(filter: &Expr) -> Option<Expr> {
    match filter {
        Expr::Alias(alias) => complement(&alias.expr),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::NotEq, right }) => {
            Some(Expr::BinaryExpr(BinaryExpr::new(left.clone(), Operator::Eq, right.clone())))
        }
        Expr::Like(like) if like.negated => Some(Expr::Like(Like { negated: false, ..like.clone() })),
        Expr::InList(list) if list.negated => Some(Expr::InList(InList { negated: false, ..list.clone() })),
        _ => None,
    }
}

/// True for a pattern of LIKE, also in AND and OR.
fn has_pattern(filter: &Expr) -> bool {
    match filter {
        Expr::Like(_) => true,
        Expr::Alias(alias) => has_pattern(&alias.expr),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, right }) => {
            has_pattern(left) || has_pattern(right)
        }
        _ => false,
    }
}

/// Default selectivity of a condition by its form, without statistics.
fn guess(filter: &Expr) -> f64 {
    match filter {
        Expr::Alias(alias) => guess(&alias.expr),
        Expr::Not(inner) => 1.0 - guess(inner),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            Operator::And => guess(left) * guess(right),
            Operator::Or => {
                let (a, b) = (guess(left), guess(right));
                a + b - a * b
            }
            Operator::Eq | Operator::IsNotDistinctFrom => 0.05,
            Operator::NotEq | Operator::IsDistinctFrom => 0.95,
            _ => 1.0 / 3.0,
        },
        Expr::Like(like) => {
            if like.negated {
                0.9
            } else {
                0.1
            }
        }
        Expr::InList(InList { list, negated, .. }) => {
            let share = (0.05 * list.len() as f64).min(0.5);
            if *negated { 1.0 - share } else { share }
        }
        Expr::IsNull(_) => 0.05,
        Expr::IsNotNull(_) => 0.95,
        _ => 1.0 / 3.0,
    }
}
