//! Collects the statistics of a stream of rows: exact counts, a HyperLogLog sketch per column, and a sample of rows for
//! histograms.
//!
//! [`Collector::whole`] receives every row of a table. [`Collector::clusters`] receives stretches of consecutive rows
//! of a large table and estimates the number of distinct values. Neighbouring rows are correlated because of the key
//! order (the lines of an order are adjacent), so rows of a stretch are not independent samples, but stretches are. The
//! unit of the estimate is therefore the incidence "value occurs in stretch". The estimator of Haas and Stokes (Duj1,
//! as in PostgreSQL) extrapolates values that occur in one stretch only to the stretches that were not read, and counts
//! the other values once.
//!
//! The store keeps a uniform sample of a large table and counts distinct values ([`keyaki_store::Sample`]).
//! [`of_sample`] makes statistics of it without reading the table.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::hash_utils::{HLL_RANDOM_STATE, create_hashes};
use keyaki_primitives::HyperLogLog;
use keyaki_store::Sample;

use super::sample::RowSample;
use crate::catalog::statistics::{ColumnStatistics, TableStatistics, images};
use crate::{Error, Result};

const BUCKETS: usize = 100;
const COMMON_MAX: usize = 100;
/// Minimum number of occurrences of a common value in the sample.
const COMMON_COUNT_MIN: usize = 8;
/// A common value occurs more than this many times as often as the average value.
const COMMON_FACTOR: f64 = 1.25;
/// The store's numbers of distinct values are used up to this many counted rows and changes for each row.
const COUNTED_MAX: f64 = 1.5;
/// They are not used beyond this number of changes without values for each row.
const MISSED_MAX: f64 = 0.05;

#[derive(Debug)]
pub(crate) struct Collector {
    rows: u64,
    columns: Vec<ColumnCounts>,
    sample: RowSample,
    hashes: Vec<u64>,
    /// Number of stretches received; `None` if all rows are received.
    clusters: Option<u32>,
}

#[derive(Debug)]
struct ColumnCounts {
    nulls: u64,
    bytes: u64,
    distinct: Distinct,
}

#[derive(Debug)]
enum Distinct {
    Whole(HyperLogLog),
    Clusters {
        /// Hashes of the current stretch.
        current: Vec<u64>,
        /// Distinct hashes of each finished stretch.
        finished: Vec<u64>,
    },
}

impl Collector {
    /// A collector that receives all rows of a table.
    pub fn whole(schema: SchemaRef) -> Self {
        Self::new(schema, None)
    }

    /// A collector that receives stretches of consecutive rows. The caller ends each stretch with
    /// [`Collector::end_cluster`].
    pub fn clusters(schema: SchemaRef) -> Self {
        Self::new(schema, Some(0))
    }

    fn new(schema: SchemaRef, clusters: Option<u32>) -> Self {
        let distinct = || match clusters {
            None => Distinct::Whole(HyperLogLog::default()),
            Some(_) => Distinct::Clusters { current: Vec::new(), finished: Vec::new() },
        };
        let columns = schema.fields().iter().map(|_| ColumnCounts { nulls: 0, bytes: 0, distinct: distinct() });
        Collector { rows: 0, columns: columns.collect(), sample: RowSample::new(schema), hashes: Vec::new(), clusters }
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        for (counts, column) in self.columns.iter_mut().zip(batch.columns()) {
            counts.nulls += column.null_count() as u64;
            counts.bytes += value_bytes(column);
            let hashes = hash(column, &mut self.hashes)?;
            match &mut counts.distinct {
                Distinct::Whole(sketch) => present(column, hashes).for_each(|hash| sketch.add(hash)),
                Distinct::Clusters { current, .. } => current.extend(present(column, hashes)),
            }
        }
        self.sample.push(batch)
    }

    pub fn end_cluster(&mut self) {
        self.clusters = self.clusters.map(|clusters| clusters + 1);
        for counts in &mut self.columns {
            if let Distinct::Clusters { current, finished } = &mut counts.distinct {
                current.sort_unstable();
                current.dedup();
                finished.append(current);
            }
        }
    }

    /// Computes the statistics. `total_rows` is the estimated number of rows in the table, and `known` the number of
    /// distinct values of each column, if it is known, for [`Collector::clusters`].
    pub fn finish(self, total_rows: u64, known: Option<&[f64]>) -> Result<TableStatistics> {
        let seen = self.rows;
        let rows = if self.clusters.is_some() { total_rows.max(seen) } else { seen };
        let sample = self.sample.finish()?;
        let complete = sample.num_rows() as u64 == rows;
        let mut hashes = Vec::new();
        let columns = self.columns.into_iter().zip(sample.columns()).enumerate().map(|(i, (counts, values))| {
            let groups = Groups::of(values, &mut hashes)?;
            let present = (seen - counts.nulls) as f64;
            let null_fraction = if seen == 0 { 0.0 } else { counts.nulls as f64 / seen as f64 };
            let distinct = match counts.distinct {
                _ if complete => groups.by_hash.len() as f64,
                Distinct::Whole(sketch) => sketch.count().round().clamp(1.0f64.min(present), present),
                Distinct::Clusters { finished, .. } => {
                    let total = rows as f64 * (1.0 - null_fraction);
                    let distinct = match known {
                        Some(known) => known[i],
                        None => distinct_of_clusters(finished, rows as f64 / seen.max(1) as f64),
                    };
                    distinct.clamp(1.0f64.min(total), total)
                }
            };
            let width = if seen == 0 { 0.0 } else { counts.bytes as f64 / seen as f64 };
            let (common, histogram) = groups.describe(distinct, values.len());
            Ok(ColumnStatistics { distinct, null_fraction, histogram, common, width })
        });
        Ok(TableStatistics { rows, columns: columns.collect::<Result<_>>()? })
    }
}

/// Estimates the number of distinct values of a table of which 1/`factor` was read in stretches. `incidences` has one
/// hash for each stretch in which a value occurs.
fn distinct_of_clusters(mut incidences: Vec<u64>, factor: f64) -> f64 {
    incidences.sort_unstable();
    let n = incidences.len() as f64;
    let (mut distinct, mut single) = (0.0, 0.0);
    for group in incidences.chunk_by(|a, b| a == b) {
        distinct += 1.0;
        single += f64::from(u8::from(group.len() == 1));
    }
    extrapolated(n, distinct, single, factor)
}

/// The estimator Duj1 of Haas and Stokes: the number of distinct values in a set of which 1/`factor` was read, if `n` values
/// were read, `distinct` different ones, of which `single` occurred once.
fn extrapolated(n: f64, distinct: f64, single: f64, factor: f64) -> f64 {
    if n == 0.0 { 0.0 } else { n * distinct / (n - single + single / factor) }
}

/// The statistics of a table from the sample of its tree. `places` are the tree's columns in the order of the table's.
pub(crate) fn of_sample(sample: &Sample, places: &[usize]) -> Result<TableStatistics> {
    let seen = sample.rows.num_rows();
    let rows = sample.of_rows.max(seen as u64);
    let known = known_distinct(sample);
    let mut hashes = Vec::new();
    let columns = places.iter().map(|&place| {
        let values = sample.rows.column(place);
        let groups = Groups::of(values, &mut hashes)?;
        let (nulls, found) = (values.null_count() as f64, groups.by_hash.len() as f64);
        let null_fraction = nulls / seen.max(1) as f64;
        let total = rows as f64 * (1.0 - null_fraction);
        let distinct = match known {
            _ if seen as u64 == rows => found,
            // The sample probably has all of few values; the counted number has an error of 1.6 %.
            Some(known) if (known[place] - found).abs() <= 0.04 * found => found,
            Some(known) => known[place],
            None => {
                let factor = rows as f64 / seen.max(1) as f64;
                extrapolated(seen as f64 - nulls, found, groups.single(), factor)
            }
        };
        let distinct = distinct.clamp(found.min(total), total);
        let width = value_bytes(values) as f64 / seen.max(1) as f64;
        let (common, histogram) = groups.describe(distinct, seen);
        Ok(ColumnStatistics { distinct, null_fraction, histogram, common, width })
    });
    Ok(TableStatistics { rows, columns: columns.collect::<Result<_>>()? })
}

/// The numbers of distinct values that the store has counted, unless many of them may have been deleted or replaced, or
/// have not been counted.
pub(crate) fn known_distinct(sample: &Sample) -> Option<&[f64]> {
    let rows = sample.of_rows as f64;
    let is_sound = sample.counted as f64 <= COUNTED_MAX * rows && sample.missed as f64 <= MISSED_MAX * rows;
    is_sound.then_some(&sample.distinct)
}

/// The values of a column of the sample, grouped by value.
struct Groups {
    /// Count and image for each hash. Values with equal hashes are treated as equal.
    by_hash: HashMap<u64, (usize, Option<f64>)>,
}

impl Groups {
    fn of(values: &ArrayRef, buffer: &mut Vec<u64>) -> Result<Self> {
        let images = images(values);
        let hashes = hash(values, buffer)?;
        let mut by_hash = HashMap::new();
        for row in (0..values.len()).filter(|row| !values.is_null(*row)) {
            by_hash.entry(hashes[row]).or_insert((0, images[row])).0 += 1;
        }
        Ok(Groups { by_hash })
    }

    /// Number of values that occur once.
    fn single(&self) -> f64 {
        self.by_hash.values().filter(|(count, _)| *count == 1).count() as f64
    }

    /// The common values with their fractions, and the bounds of the histogram of the other values.
    fn describe(self, distinct: f64, sample_rows: usize) -> (Vec<(f64, f64)>, Vec<f64>) {
        let mut values: Vec<(f64, usize)> =
            self.by_hash.into_values().filter_map(|(count, image)| Some((image?, count))).collect();
        values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        let total: usize = values.iter().map(|(_, count)| count).sum();
        // A column with few distinct values, all of them in the sample, lists every value.
        let all = values.len() <= COMMON_MAX && values.len() as f64 + 0.5 >= distinct;
        let average = total as f64 / distinct.max(1.0);
        let alone = |i: usize| {
            let image = values[i].0;
            (i == 0 || values[i - 1].0 != image) && values.get(i + 1).is_none_or(|next| next.0 != image)
        };
        let often = |count: usize| all || (count >= COMMON_COUNT_MIN && count as f64 > COMMON_FACTOR * average);
        let mut common: Vec<usize> = (0..values.len()).filter(|&i| alone(i) && often(values[i].1)).collect();
        common.sort_by_key(|&i| std::cmp::Reverse(values[i].1));
        common.truncate(COMMON_MAX);
        let listed: Vec<(f64, f64)> =
            common.iter().map(|&i| (values[i].0, values[i].1 as f64 / sample_rows as f64)).collect();
        for i in common {
            values[i].1 = 0;
        }
        (listed, equi_depth(&values))
    }
}

/// Bounds of buckets of about equal counts. `values` are images in ascending order with their counts.
fn equi_depth(values: &[(f64, usize)]) -> Vec<f64> {
    let total: usize = values.iter().map(|(_, count)| count).sum();
    let buckets = BUCKETS.min(total.saturating_sub(1));
    if total == 0 {
        return Vec::new();
    }
    let mut bounds = Vec::with_capacity(buckets + 1);
    let mut passed = 0;
    for &(image, count) in values {
        passed += count;
        // Bound i is the value at rank i * (total - 1) / buckets.
        while bounds.len() <= buckets && bounds.len() * (total - 1) / buckets.max(1) < passed {
            bounds.push(image);
        }
    }
    bounds
}

fn hash<'a>(column: &ArrayRef, buffer: &'a mut Vec<u64>) -> Result<&'a [u64]> {
    buffer.clear();
    buffer.resize(column.len(), 0);
    create_hashes([column], &HLL_RANDOM_STATE, buffer).map_err(Error::from)?;
    Ok(buffer)
}

/// The hashes of all values that are not null.
fn present<'a>(column: &'a ArrayRef, hashes: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
    let nulls = column.nulls();
    hashes.iter().enumerate().filter(move |(row, _)| nulls.is_none_or(|n| n.is_valid(*row))).map(|(_, hash)| *hash)
}

/// Bytes of the values without Arrow's offsets and views.
fn value_bytes(column: &ArrayRef) -> u64 {
    // The low 32 bits of a view are the length of its value.
    let view_bytes = |views: &[u128]| views.iter().map(|view| u64::from(*view as u32)).sum();
    match column.data_type() {
        DataType::Utf8View => view_bytes(column.as_string_view().views()),
        DataType::BinaryView => view_bytes(column.as_binary_view().views()),
        DataType::Boolean => column.len() as u64,
        DataType::FixedSizeBinary(len) => *len as u64 * column.len() as u64,
        DataType::List(_) => {
            let (lists, offsets) = (column.as_list::<i32>(), column.as_list::<i32>().value_offsets());
            let (first, last) = (offsets[0] as usize, offsets[lists.len()] as usize);
            value_bytes(&lists.values().slice(first, last - first))
        }
        ty => (ty.primitive_width().unwrap_or(0) * column.len()) as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringViewArray};

    use super::*;
    use keyaki_primitives::Random;

    fn batch(numbers: Vec<Option<i64>>, texts: Vec<Option<String>>) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from(numbers));
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter(texts));
        RecordBatch::try_from_iter_with_nullable([("number", numbers, true), ("text", texts, true)]).expect("a batch")
    }

    fn collect(rows: usize, mut row: impl FnMut(usize) -> (Option<i64>, Option<String>)) -> TableStatistics {
        let mut collector = Collector::whole(batch(vec![], vec![]).schema());
        let mut at = 0;
        while at < rows {
            let len = 4096.min(rows - at);
            let (numbers, texts) = (at..at + len).map(&mut row).unzip();
            collector.push(&batch(numbers, texts)).expect("push");
            at += len;
        }
        collector.finish(0, None).expect("finish")
    }

    #[test]
    fn an_empty_table_has_usable_statistics() {
        let statistics = collect(0, |_| unreachable!());
        assert_eq!(statistics.rows, 0);
        assert_eq!(statistics.distinct(0), 1.0);
        assert!((0.0..=1.0).contains(&statistics.selectivity_eq(0, Some(1.0))));
    }

    #[test]
    fn a_uniform_column_has_even_ranges() {
        let mut random = Random::new(1);
        let statistics = collect(200_000, |_| (Some((random.next_u64() % 10_000) as i64), None));
        let column = &statistics.columns[0];
        assert!((column.distinct - 10_000.0).abs() < 500.0, "{}", column.distinct);
        for (low, high) in [(0.0, 100.0), (5000.0, 6000.0), (9990.0, 10_000.0), (0.0, 10_000.0)] {
            let share = statistics.selectivity_range(0, Included(low), Excluded(high));
            assert!((share - (high - low) / 10_000.0).abs() < 0.01, "{low}..{high}: {share}");
        }
        assert_eq!(statistics.columns[1].null_fraction, 1.0);
        assert_eq!(statistics.selectivity_range(1, Unbounded, Unbounded), 0.0);
    }

    #[test]
    fn a_skewed_column_lists_its_common_values() {
        let mut random = Random::new(2);
        // Half of the rows have the value 7, a tenth are null, the others are distinct.
        let statistics = collect(100_000, |row| {
            let number = match random.next_u64() % 10 {
                0..5 => Some(7),
                5 => None,
                _ => Some(1_000_000 + row as i64),
            };
            (number, Some(["MAIL", "SHIP", "AIR"][row % 3].to_string()))
        });
        assert!((statistics.selectivity_eq(0, Some(7.0)) - 0.5).abs() < 0.02);
        assert!(statistics.selectivity_eq(0, Some(1_000_001.0)) < 0.0001);
        assert!((statistics.columns[0].null_fraction - 0.1).abs() < 0.01);
        assert!((statistics.columns[0].distinct - 40_000.0).abs() < 3000.0);
        let mail = crate::catalog::statistics::image(&datafusion::common::ScalarValue::from("MAIL"));
        assert!((statistics.selectivity_eq(1, mail) - 1.0 / 3.0).abs() < 0.01);
        assert_eq!(statistics.distinct(1), 3.0);
        assert!((statistics.columns[1].width - 11.0 / 3.0).abs() < 0.01);
    }

    #[test]
    fn texts_with_equal_images_are_not_common_values() {
        let statistics = collect(50_000, |row| (None, Some(format!("STANDARD TYPE {}", row % 150))));
        let image = crate::catalog::statistics::image(&datafusion::common::ScalarValue::from("STANDARD TYPE 9"));
        assert!((statistics.selectivity_eq(1, image) - 1.0 / 150.0).abs() < 0.001);
    }

    /// Four rows per order, random parts and three ship modes; 1 % of the rows are read in 100 stretches.
    #[test]
    fn stretches_estimate_distinct_values_of_clustered_and_of_random_columns() {
        let total = 4_000_000usize;
        let schema = batch(vec![], vec![]).schema();
        let (mut clustered, mut random_column) = (Collector::clusters(schema.clone()), Collector::clusters(schema));
        let mut random = Random::new(3);
        for stretch in 0..100 {
            let start = stretch * (total / 100) + (random.next_u64() % 1000) as usize;
            let rows = start..start + 400;
            let modes: Vec<_> = rows.clone().map(|row| Some(["MAIL", "AIR", "SHIP"][row % 3].to_string())).collect();
            let orders = rows.clone().map(|row| Some((row / 4) as i64)).collect();
            clustered.push(&batch(orders, modes.clone())).expect("push");
            clustered.end_cluster();
            let parts = rows.map(|_| Some((random.next_u64() % 50_000) as i64)).collect();
            random_column.push(&batch(parts, modes)).expect("push");
            random_column.end_cluster();
        }
        let statistics = clustered.finish(total as u64, None).expect("finish");
        assert_eq!(statistics.rows, total as u64);
        let distinct = statistics.distinct(0);
        assert!((distinct - 1_000_000.0).abs() < 100_000.0, "{distinct}");
        assert_eq!(statistics.distinct(1), 3.0);
        let distinct = random_column.finish(total as u64, None).expect("finish").distinct(0);
        assert!((30_000.0..150_000.0).contains(&distinct), "{distinct}");
    }
}
