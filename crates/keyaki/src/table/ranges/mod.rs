//! From filters to ranges of encoded keys.
//!
//! For each leading key column in turn, the conjuncts that bound it give a set of intervals ([`constraint`]). As long as
//! the set consists of single values (equality, IN), it multiplies the prefixes found so far; the first column whose set
//! has real intervals ends the key. The ranges are a superset of the rows that pass; a filter counts as *answered* only
//! if they are exactly its rows. When in doubt a filter is not used.

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
use interval::{Interval, Set};

/// Ranges above this number are replaced by a coarser key.
const MAX_RANGES: usize = 4096;

/// What filters mean for a key.
#[derive(Debug, Clone)]
pub(crate) struct Ranges {
    /// Disjoint, ascending. No range: no row can pass.
    pub ranges: Vec<KeyRange>,
    /// For each filter: whether the ranges hold exactly the rows that pass it. The others must still be evaluated.
    pub answered: Vec<bool>,
    /// Leading key columns that every range fixes to one value.
    pub points: usize,
    /// Leading key columns that have one value in all ranges together.
    pub fixed: usize,
    /// Leading key columns that the ranges bound at all; 0: all rows.
    pub bounded: usize,
}

impl Ranges {
    pub fn all(filters: usize) -> Self {
        Ranges { ranges: vec![KeyRange::all()], answered: vec![false; filters], points: 0, fixed: 0, bounded: 0 }
    }
}

/// The ranges of keys of a tree with schema `schema` that hold every row for which all `filters` are true. `resolve` tells
/// which column of the tree a column of the filters is, if any.
pub(crate) fn key_ranges(schema: &Schema, filters: &[Expr], resolve: &dyn Fn(&Column) -> Option<usize>) -> Ranges {
    let mut found = Ranges::all(filters.len());
    let mut prefixes: Vec<Vec<ArrayRef>> = vec![Vec::new()];
    let mut last: Option<Set> = None;
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

/// What the filters leave of one key column, and the filters that are answered if just that is scanned.
fn column_set(
    schema: &Schema,
    column: usize,
    filters: &[Expr],
    resolve: &dyn Fn(&Column) -> Option<usize>,
) -> (Set, Vec<usize>) {
    let definition = &schema.columns()[column];
    let domain = Domain::new(definition.ty);
    let is_column = |name: &Column| resolve(name) == Some(column);
    let mut set = Set::all();
    let mut used = Vec::new();
    for (i, filter) in filters.iter().enumerate() {
        let constraint = constraint::of(filter, &domain, &is_column);
        if constraint.exact {
            used.push(i);
        }
        set = set.intersect(&constraint.set);
    }
    if !definition.nullable {
        // Keys of such a column have no place for null: below every value is no bound.
        set = set.intersect(&constraint::not_null(&domain)).unbounded_above(&domain.null());
    }
    (set, used)
}

/// Every prefix with every value; ascending if the prefixes are.
fn multiply(prefixes: &[Vec<ArrayRef>], set: &Set) -> Vec<Vec<ArrayRef>> {
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

fn encode(schema: &Schema, prefixes: &[Vec<ArrayRef>], last: Option<&Set>) -> Vec<KeyRange> {
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

/// The intervals of values of one column, of type `ty`, that all `filters` leave; none if they do not bound it. Null
/// sorts below every value.
pub(crate) fn value_intervals(
    ty: ColumnType,
    filters: &[&Expr],
    is_column: &dyn Fn(&Column) -> bool,
) -> Option<Vec<(Bound<ScalarValue>, Bound<ScalarValue>)>> {
    let domain = Domain::new(ty);
    let sets = filters.iter().map(|filter| constraint::of(filter, &domain, is_column).set);
    let set = sets.fold(Set::all(), |all, set| all.intersect(&set));
    if set.is_all() {
        return None;
    }
    // The arrays have one value each.
    let scalar = |value: &interval::Value| ScalarValue::try_from_array(&value.array, 0).unwrap_or(ScalarValue::Null);
    let bounds = |interval: &Interval| (interval.low.as_ref().map(scalar), interval.high.as_ref().map(scalar));
    Some(set.intervals().iter().map(bounds).collect())
}
