//! Conditions on key columns, and the key ranges that they give.
//!
//! A [`Key`] takes from the conditions of a statement those on the leading key columns of one tree: the values that each
//! of the first columns may have, then bounds of the next column. The values of the parameters turn it into ranges of
//! encoded keys.
//!
//! *Invariants.* The ranges contain exactly the keys that satisfy the conditions used. A comparison with null is never
//! true: bounds exclude null, which sorts below all values. No key contains a float, because operators and key encodings
//! order floats differently.

use std::ops::Bound;

use arrow::array::{Array, ArrayRef};
use datafusion::logical_expr::Operator;
use keyaki_store::{ColumnType, KeyCodec, KeyRange, Schema, successor};

/// Maximum number of ranges, and of values of a column.
pub(super) const RANGES_MAX: usize = 512;
/// Marks a value in the encoding of a nullable column; null is below it.
const VALUE_MARK: u8 = 1;

/// A value that a key column is compared with.
#[derive(Debug, Clone)]
pub(super) enum KeySource {
    /// The parameter with this index.
    Parameter(usize),
    /// An array of one value of the column's type.
    Constant(ArrayRef),
    /// The column at this position of the rows found so far, of exactly the key column's type.
    Column(usize),
}

/// The values of parameters, and of one row of those found so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values<'a> {
    /// An array of one value for each parameter.
    pub parameters: &'a [ArrayRef],
    pub columns: &'a [ArrayRef],
    pub row: usize,
}

impl<'a> Values<'a> {
    /// The values of parameters, without a row.
    pub fn of(parameters: &'a [ArrayRef]) -> Values<'a> {
        Values { parameters, columns: &[], row: 0 }
    }

    /// An array of one value.
    fn get(&self, source: &KeySource) -> ArrayRef {
        match source {
            KeySource::Parameter(parameter) => self.parameters[*parameter].clone(),
            KeySource::Constant(array) => array.clone(),
            KeySource::Column(column) => self.columns[*column].slice(self.row, 1),
        }
    }
}

/// A condition on one column. `column` is a table column; `None` is the hidden rowid.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    pub column: Option<usize>,
    pub test: Test,
}

/// The condition's test of the column.
#[derive(Debug, Clone)]
pub(super) enum Test {
    /// The column equals one of the values.
    In(Vec<KeySource>),
    /// All comparisons `column < value` (`<=`, `>`, `>=`) are true.
    Bounds(Vec<(Operator, KeySource)>),
}

/// The conditions on the leading key columns of a tree.
#[derive(Debug)]
pub(super) struct Key {
    /// The values that each leading key column may have.
    pub points: Vec<Vec<KeySource>>,
    /// Bounds of the key column behind them.
    pub bounds: Vec<(Operator, KeySource)>,
    /// The bounded column is nullable.
    nullable: bool,
    /// `points` has all columns of the tree's key.
    whole: bool,
    /// Each column of `points` has one value.
    single: bool,
    /// Positions of the used conditions, in ascending order.
    used: Vec<usize>,
}

impl Key {
    /// The conditions on the leading key columns of a tree. `columns` are the table columns of the tree's columns.
    pub fn new(schema: &Schema, columns: &[Option<usize>], conditions: &[Condition]) -> Key {
        let (points, bounds, used) = (Vec::new(), Vec::new(), Vec::new());
        let mut key = Key { points, bounds, nullable: false, whole: false, single: false, used };
        let mut ranges = 1;
        for (column, tree_column) in columns.iter().zip(&schema.columns()[..schema.key_columns()]) {
            let on_column = || conditions.iter().enumerate().filter(|(_, c)| c.column == *column);
            let values = on_column().filter_map(|(i, condition)| match &condition.test {
                Test::In(values) => Some((i, values)),
                Test::Bounds(_) => None,
            });
            let fewest = values.min_by_key(|(_, values)| values.len());
            if let Some((i, values)) = fewest.filter(|(_, values)| ranges * values.len() <= RANGES_MAX) {
                ranges *= values.len();
                key.points.push(values.clone());
                key.used.push(i);
                continue;
            }
            for (i, condition) in on_column() {
                if let Test::Bounds(bounds) = &condition.test {
                    key.bounds.extend(bounds.iter().cloned());
                    key.used.push(i);
                }
            }
            key.nullable = tree_column.nullable;
            break;
        }
        key.whole = key.points.len() == schema.key_columns();
        key.single = ranges == 1;
        key.used.sort_unstable();
        key
    }

    /// True if the key has no condition.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// True if every row in the ranges satisfies the condition at this position.
    pub fn answers(&self, condition: usize) -> bool {
        self.used.binary_search(&condition).is_ok()
    }

    /// True if each range is one key of the tree.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// True if there is at most one range, and it is one key of the tree.
    pub fn is_one_row(&self) -> bool {
        self.whole && self.single
    }

    /// True if the key column at `place` has one value in all ranges.
    pub fn is_fixed(&self, place: usize) -> bool {
        self.points.get(place).is_some_and(|values| values.len() == 1)
    }

    /// True if the key column at `place` is never null in the ranges.
    pub fn excludes_null(&self, place: usize) -> bool {
        place < self.points.len() || place == self.points.len() && !self.bounds.is_empty()
    }

    /// The ranges of keys, disjoint and in ascending order.
    pub fn ranges(&self, codec: &KeyCodec, given: Values<'_>) -> Vec<KeyRange> {
        let mut prefixes: Vec<Vec<ArrayRef>> = vec![Vec::with_capacity(self.points.len() + 1)];
        for values in &self.points {
            let mut values = values.iter().map(|source| given.get(source)).filter(|array| array.is_valid(0));
            if let [prefix] = prefixes.as_mut_slice()
                && self.single
            {
                match values.next() {
                    Some(value) => prefix.push(value),
                    None => return Vec::new(),
                }
                continue;
            }
            let values: Vec<ArrayRef> = values.collect();
            let extend = |prefix: &Vec<ArrayRef>| {
                let extended = |value: &ArrayRef| prefix.iter().chain([value]).cloned().collect::<Vec<_>>();
                values.iter().map(extended).collect::<Vec<_>>()
            };
            prefixes = prefixes.iter().flat_map(extend).collect();
        }
        let range = |prefix| self.range(codec, prefix, given);
        let mut ranges: Vec<KeyRange> = prefixes.into_iter().filter_map(range).collect();
        if !self.single {
            sort(&mut ranges);
        }
        ranges
    }

    /// The ranges of keys for any of several values, disjoint and in ascending order.
    pub fn all_ranges<'a>(&self, codec: &KeyCodec, given: impl Iterator<Item = Values<'a>>) -> Vec<KeyRange> {
        let mut ranges: Vec<KeyRange> = given.flat_map(|values| self.ranges(codec, values)).collect();
        sort(&mut ranges);
        ranges
    }

    /// The range of keys with a prefix, within the bounds of the next column; `None` if it is empty.
    fn range(&self, codec: &KeyCodec, mut columns: Vec<ArrayRef>, given: Values<'_>) -> Option<KeyRange> {
        let encode = |columns: &[ArrayRef]| {
            let mut key = Vec::with_capacity(32);
            if !columns.is_empty() {
                codec.encode(columns, 0, &mut key);
            }
            key
        };
        let prefix = encode(&columns);
        if self.whole {
            return Some(KeyRange::point(prefix));
        }
        if self.bounds.is_empty() {
            return Some(if prefix.is_empty() { KeyRange::all() } else { KeyRange::prefix(prefix) });
        }
        let mut high = successor(&prefix);
        let mut low = prefix;
        if self.nullable {
            low.push(VALUE_MARK);
        }
        for (operator, source) in &self.bounds {
            let value = given.get(source);
            if value.is_null(0) {
                return None;
            }
            columns.push(value);
            let at = encode(&columns);
            columns.pop();
            match operator {
                Operator::Gt => low = low.max(successor(&at)?),
                Operator::GtEq => low = low.max(at),
                Operator::Lt => high = least(high, Some(at)),
                _ => high = least(high, successor(&at)),
            }
        }
        if high.as_ref().is_some_and(|high| low >= *high) {
            return None;
        }
        let end = high.map_or(Bound::Unbounded, Bound::Excluded);
        Some(KeyRange { start: Bound::Included(low), end })
    }
}

/// True if conditions on columns of this type give ranges of keys.
pub(super) fn is_key_type(ty: ColumnType) -> bool {
    !matches!(ty, ColumnType::Float32 | ColumnType::Float64)
}

/// The lesser of two upper bounds; `None` is no bound.
fn least(a: Option<Vec<u8>>, b: Option<Vec<u8>>) -> Option<Vec<u8>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Sorts the ranges of one key for different values. Equal values give the same range, others give disjoint ranges.
fn sort(ranges: &mut Vec<KeyRange>) {
    ranges.sort_unstable_by(|a, b| start(a).cmp(start(b)));
    ranges.dedup();
}

fn start(range: &KeyRange) -> &[u8] {
    match &range.start {
        Bound::Included(start) | Bound::Excluded(start) => start,
        Bound::Unbounded => &[],
    }
}
