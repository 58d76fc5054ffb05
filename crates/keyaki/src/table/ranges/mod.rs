//! Translation of filters into ranges of encoded keys.
//!
//! For each leading key column in turn, the conjuncts that bound it give a set of intervals ([`constraint`]). While the
//! set consists of points (equality, IN), every key prefix found so far is extended by every point. The first column
//! whose set has proper intervals ends the key. If the number of ranges would exceed [`MAX_RANGES`], one interval
//! around the set replaces it.
//!
//! Invariants: the ranges contain every row that passes all filters. A filter counts as *answered* only if every row in
//! the ranges passes it. Filters of unsupported form are ignored here and stay residual filters.

use std::ops::Bound;

use arrow::array::ArrayRef;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::Expr;
use keyaki_store::{ColumnType, KeyCodec, KeyRange, Schema, successor};

mod constant;
mod constraint;
mod interval;

#[cfg(test)]
mod tests;

use constant::Domain;
use interval::{Interval, ValueSet};

/// Maximum number of ranges; beyond it, one interval per key prefix replaces the set of the last column.
const MAX_RANGES: usize = 4096;

/// The key ranges that filters imply in one tree.
#[derive(Debug, Clone)]
pub(crate) struct Ranges {
    /// Disjoint ranges in ascending order. Empty if no row can pass.
    pub ranges: Vec<KeyRange>,
    /// For each filter: true if every row in the ranges passes it. The other filters must be evaluated.
    pub answered: Vec<bool>,
    /// Number of leading key columns that each range fixes to one value.
    pub points: usize,
    /// Number of leading key columns with the same single value in all ranges.
    pub fixed: usize,
    /// Number of leading key columns that the ranges bound. 0 if the ranges contain all rows.
    pub bounded: usize,
}

impl Ranges {
    /// Adds filters that are true for every row of the tree.
    pub fn add_answered(&mut self, filters: &[bool]) {
        assert!(filters.len() == self.answered.len(), "one entry for each filter");
        self.answered.iter_mut().zip(filters).for_each(|(answered, also)| *answered |= also);
    }

    /// One range of all keys that answers none of `filters` filters.
    pub fn all(filters: usize) -> Self {
        Ranges { ranges: vec![KeyRange::all()], answered: vec![false; filters], points: 0, fixed: 0, bounded: 0 }
    }
}

/// Returns ranges of keys that contain every row for which all `filters` are true, in a tree with schema `schema`.
/// `resolve` maps a column of the filters to a column of the tree.
pub(crate) fn key_ranges(schema: &Schema, filters: &[Expr], resolve: &dyn Fn(&Column) -> Option<usize>) -> Ranges {
    let mut found = Ranges::all(filters.len());
    let mut prefixes: Vec<Vec<ArrayRef>> = vec![Vec::new()];
    let mut last: Option<ValueSet> = None;
    for column in 0..schema.key_columns() {
        let (set, used) = column_set(schema, column, filters, resolve);
        if set.is_all() {
            break;
        }
        let exact = if set.is_points() && prefixes.len() * set.intervals().len() <= MAX_RANGES {
            prefixes = multiply(&prefixes, &set);
            found.points += 1;
            found.fixed += usize::from(prefixes.len() <= 1);
            true
        } else if prefixes.len() * set.intervals().len() <= MAX_RANGES {
            last = Some(set);
            true
        } else {
            last = Some(set.hull());
            false
        };
        found.bounded += 1;
        for filter in used {
            found.answered[filter] = exact;
        }
        if last.is_some() || prefixes.is_empty() {
            break;
        }
    }
    if found.bounded > 0 {
        found.ranges = encode(schema, &prefixes, last.as_ref());
    }
    found
}

/// Returns the set of values of one key column that can pass the filters, and the filters that are equivalent to
/// membership in a set of this column alone.
fn column_set(
    schema: &Schema,
    column: usize,
    filters: &[Expr],
    resolve: &dyn Fn(&Column) -> Option<usize>,
) -> (ValueSet, Vec<usize>) {
    let definition = &schema.columns()[column];
    let domain = Domain::new(definition.ty);
    let is_column = |name: &Column| resolve(name) == Some(column);
    let mut set = ValueSet::all();
    let mut used = Vec::new();
    for (i, filter) in filters.iter().enumerate() {
        let constraint = constraint::of(filter, &domain, &is_column);
        if constraint.exact {
            used.push(i);
        }
        set = set.intersect(&constraint.set);
    }
    if !definition.nullable {
        // The key encoding of a non-nullable column has no null. A lower bound above null is no bound.
        set = set.intersect(&constraint::not_null(&domain)).unbounded_above(&domain.null());
    }
    (set, used)
}

/// Extends every prefix by every point of the set. Ascending if the prefixes are.
fn multiply(prefixes: &[Vec<ArrayRef>], set: &ValueSet) -> Vec<Vec<ArrayRef>> {
    let mut product = Vec::with_capacity(prefixes.len() * set.intervals().len());
    for prefix in prefixes {
        for value in set.intervals().iter().filter_map(Interval::point) {
            let mut next = prefix.clone();
            next.push(value.array.clone());
            product.push(next);
        }
    }
    product
}

/// Encodes each prefix with each interval of the last bounded column. Without `last`, ranges are all keys with a
/// prefix.
fn encode(schema: &Schema, prefixes: &[Vec<ArrayRef>], last: Option<&ValueSet>) -> Vec<KeyRange> {
    let codec = KeyCodec::new(schema);
    let bytes = |columns: &[ArrayRef]| {
        let mut key = Vec::new();
        if !columns.is_empty() {
            codec.encode(columns, 0, &mut key);
        }
        key
    };
    let mut ranges = Vec::new();
    for prefix in prefixes {
        let all = KeyRange::prefix(bytes(prefix));
        let Some(set) = last else {
            ranges.push(all);
            continue;
        };
        for interval in set.intervals() {
            let extended = |array: &ArrayRef| {
                let mut columns = prefix.clone();
                columns.push(array.clone());
                bytes(&columns)
            };
            let start = match &interval.low {
                Bound::Unbounded => all.start.clone(),
                Bound::Included(value) => Bound::Included(extended(&value.array)),
                Bound::Excluded(value) => match successor(&extended(&value.array)) {
                    Some(start) => Bound::Included(start),
                    // No key is above the value.
                    None => continue,
                },
            };
            let end = match &interval.high {
                Bound::Unbounded => all.end.clone(),
                Bound::Included(value) => match successor(&extended(&value.array)) {
                    Some(end) => Bound::Excluded(end),
                    None => Bound::Unbounded,
                },
                Bound::Excluded(value) => Bound::Excluded(extended(&value.array)),
            };
            ranges.push(KeyRange { start, end });
        }
    }
    ranges
}

/// True if `condition` is true for every row for which all conditions of `given` are, as far as the values of one column
/// of type `ty` tell.
pub(crate) fn covers(
    ty: ColumnType,
    nullable: bool,
    given: &[Expr],
    condition: &Expr,
    is_column: &dyn Fn(&Column) -> bool,
) -> bool {
    if ty.is_list() {
        return false;
    }
    let domain = Domain::new(ty);
    let wanted = constraint::of(condition, &domain, is_column);
    if !wanted.exact {
        return false;
    }
    let all = if nullable { ValueSet::all() } else { constraint::not_null(&domain) };
    let sets = given.iter().map(|filter| constraint::of(filter, &domain, is_column).set);
    let possible = sets.fold(all, |all, set| all.intersect(&set));
    possible.intersect(&wanted.set) == possible
}

/// True if exactly the values of some intervals pass a filter on a column of type `ty`.
pub(crate) fn is_exact(ty: ColumnType, filter: &Expr, is_column: &dyn Fn(&Column) -> bool) -> bool {
    !ty.is_list() && constraint::of(filter, &Domain::new(ty), is_column).exact
}

/// Returns the intervals of values of a column of type `ty` that can pass all `filters`, in ascending order, or `None`
/// if the filters do not bound the column. Null sorts below every value.
pub(crate) fn value_intervals(
    ty: ColumnType,
    filters: &[&Expr],
    is_column: &dyn Fn(&Column) -> bool,
) -> Option<Vec<(Bound<ScalarValue>, Bound<ScalarValue>)>> {
    // Arrays have no encoding as keys.
    if ty.is_list() {
        return None;
    }
    let domain = Domain::new(ty);
    let sets = filters.iter().map(|filter| constraint::of(filter, &domain, is_column).set);
    let set = sets.fold(ValueSet::all(), |all, set| all.intersect(&set));
    if set.is_all() {
        return None;
    }
    // Each array has exactly one element.
    let scalar = |value: &interval::Value| ScalarValue::try_from_array(&value.array, 0).unwrap_or(ScalarValue::Null);
    let bounds = |interval: &Interval| (interval.low.as_ref().map(scalar), interval.high.as_ref().map(scalar));
    Some(set.intervals().iter().map(bounds).collect())
}
