//! Table statistics for the cost model. ANALYZE and bulk loads collect them.
//!
//! The statistics of a column are its number of distinct values, its null fraction, its most common values, and an
//! equi-depth histogram of the other values. Histogram and common values store the *image* of a value, an
//! order-preserving number ([`image`]), so that one representation serves all types.
//!
//! Different values may share an image (long texts with the same beginning). A common value is listed only if no other
//! value has its image; otherwise the histogram includes it.

mod image;

use std::ops::Bound;

use serde::{Deserialize, Serialize};

pub use image::image;
pub(crate) use image::images;

/// Statistics of a table. The catalog tree stores them beside the table's definition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStatistics {
    /// Rows of the table when the statistics were collected.
    pub rows: u64,
    /// One for each table column.
    pub columns: Vec<ColumnStatistics>,
}

/// Statistics of a column.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnStatistics {
    /// Estimated number of distinct values.
    pub distinct: f64,
    /// Fraction of rows that are null, 0 to 1.
    pub null_fraction: f64,
    /// Bounds of an equi-depth histogram over the images ([`image`]) of the values that are not in `common`, ascending.
    /// Empty if there are no such values or no statistics.
    pub histogram: Vec<f64>,
    /// Images of the most common values with their fractions of all rows, the most common first.
    pub common: Vec<(f64, f64)>,
    /// Average size of a value in bytes.
    pub width: f64,
}

/// Default selectivity of equality with a value, without statistics.
const UNKNOWN_EQUAL: f64 = 0.005;
/// Default selectivity of a range with one bound, without statistics.
const UNKNOWN_HALF: f64 = 1.0 / 3.0;
/// Default selectivity of a range with two bounds, without statistics.
const UNKNOWN_RANGE: f64 = 0.05;

/// If the distinct values of a column exceed this fraction of the rows, their number is assumed to grow with the table.
const GROWING_SHARE: f64 = 0.1;

impl TableStatistics {
    /// Selectivity of a range of images of `column`, 0 to 1. A range without bounds means "not null".
    pub fn selectivity_range(&self, column: usize, low: Bound<f64>, high: Bound<f64>) -> f64 {
        match self.columns.get(column) {
            Some(statistics) => statistics.range(low, high, self.least()),
            None => unknown_range(low, high),
        }
    }

    /// Selectivity of equality of `column` with the value that has this image, 0 to 1. `None` stands for a value without
    /// an image or not known yet.
    pub fn selectivity_eq(&self, column: usize, value: Option<f64>) -> f64 {
        match self.columns.get(column) {
            Some(statistics) => statistics.equal(value).max(self.least()).min(1.0),
            None => UNKNOWN_EQUAL,
        }
    }

    /// Estimated number of distinct values of `column` other than null, at least 1. A tenth of the rows without
    /// statistics.
    pub fn distinct(&self, column: usize) -> f64 {
        self.columns.get(column).map_or(f64::max(1.0, self.rows as f64 / 10.0), |column| column.distinct.max(1.0))
    }

    /// Like [`Self::distinct`], extrapolated to a table that has grown to `rows` rows. As in PostgreSQL, the number of
    /// distinct values grows in proportion if it exceeded a tenth of the rows ([`GROWING_SHARE`]).
    pub fn distinct_of(&self, column: usize, rows: f64) -> f64 {
        let (distinct, known_rows) = (self.distinct(column), self.rows.max(1) as f64);
        if distinct > GROWING_SHARE * known_rows && rows > known_rows { distinct * rows / known_rows } else { distinct }
    }

    /// Lower bound of selectivities: one row of the table. The newest rows may be missing from the statistics.
    fn least(&self) -> f64 {
        1.0 / self.rows.max(1) as f64
    }
}

impl ColumnStatistics {
    /// True if the column has a histogram or common values.
    fn known(&self) -> bool {
        !self.histogram.is_empty() || !self.common.is_empty()
    }

    /// Fraction of rows that are neither null nor a common value.
    fn rest(&self) -> f64 {
        let common: f64 = self.common.iter().map(|(_, fraction)| fraction).sum();
        (1.0 - self.null_fraction - common).max(0.0)
    }

    /// Selectivity of equality with a value.
    fn equal(&self, value: Option<f64>) -> f64 {
        let Some(value) = value else {
            return (1.0 - self.null_fraction) / self.distinct.max(1.0);
        };
        match self.common.iter().find(|(image, _)| *image == value) {
            Some((_, fraction)) => *fraction,
            None => self.rest() / (self.distinct - self.common.len() as f64).max(1.0),
        }
    }

    /// Selectivity of a range, at least `least` unless the range is empty.
    fn range(&self, low: Bound<f64>, high: Bound<f64>, least: f64) -> f64 {
        if is_empty(low, high) {
            return 0.0;
        }
        if matches!((low, high), (Bound::Unbounded, Bound::Unbounded)) {
            return 1.0 - self.null_fraction;
        }
        if !self.known() {
            return unknown_range(low, high);
        }
        let common: f64 = self
            .common
            .iter()
            .filter(|(image, _)| above(*image, low) && below(*image, high))
            .map(|(_, fraction)| fraction)
            .sum();
        let mut share = share_below(&self.histogram, high) - share_under(&self.histogram, low);
        if let (Bound::Included(low), Bound::Included(high)) = (low, high)
            && low == high
        {
            share = share.max(1.0 / (self.distinct - self.common.len() as f64).max(1.0));
        }
        (common + self.rest() * share.clamp(0.0, 1.0)).clamp(least.min(1.0), 1.0)
    }
}

fn unknown_range(low: Bound<f64>, high: Bound<f64>) -> f64 {
    match (low, high) {
        (Bound::Unbounded, Bound::Unbounded) => 1.0,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => UNKNOWN_HALF,
        _ => UNKNOWN_RANGE,
    }
}

fn above(image: f64, low: Bound<f64>) -> bool {
    match low {
        Bound::Included(low) => image >= low,
        Bound::Excluded(low) => image > low,
        Bound::Unbounded => true,
    }
}

fn below(image: f64, high: Bound<f64>) -> bool {
    match high {
        Bound::Included(high) => image <= high,
        Bound::Excluded(high) => image < high,
        Bound::Unbounded => true,
    }
}

fn is_empty(low: Bound<f64>, high: Bound<f64>) -> bool {
    match (low, high) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => low >= high,
    }
}

/// Fraction of a histogram's values that satisfy an upper bound.
fn share_below(bounds: &[f64], high: Bound<f64>) -> f64 {
    match high {
        Bound::Unbounded => 1.0,
        Bound::Included(high) => share(bounds, high, true),
        Bound::Excluded(high) => share(bounds, high, false),
    }
}

/// Fraction of a histogram's values that are below a lower bound.
fn share_under(bounds: &[f64], low: Bound<f64>) -> f64 {
    match low {
        Bound::Unbounded => 0.0,
        Bound::Included(low) => share(bounds, low, false),
        Bound::Excluded(low) => share(bounds, low, true),
    }
}

/// Fraction of a histogram's values `< value`, or `<= value` if `inclusive`, interpolated linearly within a bucket.
/// Equal neighbouring bounds represent a value that fills whole buckets; `inclusive` counts these buckets or skips
/// them.
fn share(bounds: &[f64], value: f64, inclusive: bool) -> f64 {
    let Some(buckets) = bounds.len().checked_sub(1) else { return 0.0 };
    let at = bounds.partition_point(|bound| if inclusive { *bound <= value } else { *bound < value });
    if at == 0 {
        return 0.0;
    }
    if at > buckets || buckets == 0 {
        return 1.0;
    }
    let (low, high) = (bounds[at - 1], bounds[at]);
    let part = if high > low { (value - low) / (high - low) } else { 0.0 };
    (at as f64 - 1.0 + part.clamp(0.0, 1.0)) / buckets as f64
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Included, Unbounded};

    use super::*;

    fn uniform() -> TableStatistics {
        let column = ColumnStatistics {
            distinct: 1000.0,
            null_fraction: 0.2,
            histogram: (0..=100).map(|i| f64::from(i) * 10.0).collect(),
            common: vec![(500.0, 0.3)],
            width: 4.0,
        };
        TableStatistics { rows: 10_000, columns: vec![column] }
    }

    #[test]
    fn ranges_count_common_values_and_buckets() {
        let table = uniform();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} against {b}");
        close(table.selectivity_range(0, Unbounded, Unbounded), 0.8);
        close(table.selectivity_range(0, Included(0.0), Excluded(100.0)), 0.05);
        close(table.selectivity_range(0, Included(500.0), Included(600.0)), 0.3 + 0.05);
        close(table.selectivity_range(0, Excluded(500.0), Included(600.0)), 0.05);
        close(table.selectivity_range(0, Unbounded, Excluded(500.0)), 0.25);
        close(table.selectivity_range(0, Included(2000.0), Unbounded), 1e-4);
        close(table.selectivity_range(0, Included(7.0), Excluded(7.0)), 0.0);
    }

    #[test]
    fn distinct_values_grow_with_the_table_if_they_are_many() {
        let mut table = uniform();
        assert_eq!(table.distinct_of(0, 100_000.0), 1000.0);
        table.columns[0].distinct = 5000.0;
        assert_eq!(table.distinct_of(0, 100_000.0), 50_000.0);
        assert_eq!(table.distinct_of(0, 10_000.0), 5000.0);
        assert_eq!(table.distinct_of(0, 5000.0), 5000.0);
    }

    #[test]
    fn equality_uses_common_values_first() {
        let table = uniform();
        assert_eq!(table.selectivity_eq(0, Some(500.0)), 0.3);
        assert!((table.selectivity_eq(0, Some(3.0)) - 0.5 / 999.0).abs() < 1e-12);
        assert!((table.selectivity_eq(0, None) - 0.8 / 1000.0).abs() < 1e-12);
        assert_eq!(table.selectivity_eq(9, None), UNKNOWN_EQUAL);
    }

    #[test]
    fn a_value_that_fills_buckets_counts_all_of_them() {
        let column = ColumnStatistics { distinct: 3.0, histogram: vec![1.0, 2.0, 2.0, 2.0, 3.0], ..Default::default() };
        let table = TableStatistics { rows: 1000, columns: vec![column] };
        let range = table.selectivity_range(0, Included(2.0), Included(2.0));
        assert!(range >= 0.5, "{range}");
        assert!(table.selectivity_range(0, Excluded(2.0), Unbounded) <= 0.25 + 1e-9);
    }
}
