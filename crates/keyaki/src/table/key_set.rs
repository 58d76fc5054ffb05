//! Sets of join keys, as filters of scans.
//!
//! When the build side of a hash join is complete, the scans of its probe side need only the rows with one of its keys.
//! The set of the keys is a bitmap over their range, which is exact, or a Bloom filter whose blocks are single words if
//! the keys are far apart. A test takes about a nanosecond.
//!
//! A set that most rows pass is given up: the join looks up the rows anyway.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{
    DataType, Date32Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema, Time64MicrosecondType, TimeUnit,
    TimestampMicrosecondType,
};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

/// A bitmap has at most this many bytes, or this many for each key.
const BITMAP_BYTES: usize = 256 << 10;
const BITMAP_BYTES_PER_KEY: usize = 16;
/// Maximum bytes of a bitmap in any case.
const BITMAP_BYTES_MAX: usize = 16 << 20;
/// Bits of a Bloom filter for each key.
const BLOOM_BITS_PER_KEY: usize = 16;
/// The set is given up if more than this fraction of the first rows passes.
const PASSED_MAX: f64 = 0.75;
const ROWS_JUDGED: usize = 32_768;

/// A set of integers, or of dates and times as integers. May contain others, too.
#[derive(Debug)]
pub(crate) struct KeySet {
    /// Number of rows whose keys are in the set.
    rows: usize,
    least: ScalarValue,
    greatest: ScalarValue,
    /// The least and the greatest key.
    range: (i64, i64),
    members: Members,
    /// Number of rows tested, and number of rows that passed.
    tested: AtomicUsize,
    passed: AtomicUsize,
}

#[derive(Debug)]
enum Members {
    /// A bit for each number from the least key on.
    Bitmap(Vec<u64>),
    /// A Bloom filter: the bits of a key are in one word.
    Bloom(Vec<u64>),
}

/// Evaluates an expression with the type of the keys, and an accessor for the numbers of an array.
macro_rules! by_key_type {
    ($data_type:expr, $ty:ident => $body:expr, else $other:expr) => {
        match $data_type {
            DataType::Int8 => {
                type $ty = Int8Type;
                $body
            }
            DataType::Int16 => {
                type $ty = Int16Type;
                $body
            }
            DataType::Int32 => {
                type $ty = Int32Type;
                $body
            }
            DataType::Int64 => {
                type $ty = Int64Type;
                $body
            }
            DataType::Date32 => {
                type $ty = Date32Type;
                $body
            }
            DataType::Time64(TimeUnit::Microsecond) => {
                type $ty = Time64MicrosecondType;
                $body
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                type $ty = TimestampMicrosecondType;
                $body
            }
            _ => $other,
        }
    };
}

impl KeySet {
    /// True if there are sets of keys of a type.
    pub fn is_for(data_type: &DataType) -> bool {
        KeySet::new(&[], data_type).is_ok()
    }

    /// The set of the values of arrays of one type, which may contain nulls.
    ///
    /// # Errors
    /// `Internal` if there are no sets of the type.
    pub fn new(arrays: &[ArrayRef], data_type: &DataType) -> Result<KeySet> {
        let other = || DataFusionError::Internal(format!("sets of keys of type {data_type}"));
        by_key_type!(data_type, T => KeySet::of::<T>(arrays, data_type), else Err(other()))
    }

    fn of<T: ArrowPrimitiveType<Native: Into<i64>>>(arrays: &[ArrayRef], data_type: &DataType) -> Result<KeySet> {
        let all = || arrays.iter().flat_map(|array| array.as_primitive::<T>().iter().flatten());
        let bounds = all().fold(None, |bounds: Option<(T::Native, T::Native)>, value| {
            let (least, greatest) = bounds.unwrap_or((value, value));
            let (key, low, high): (i64, i64, i64) = (value.into(), least.into(), greatest.into());
            Some((if key < low { value } else { least }, if key > high { value } else { greatest }))
        });
        let keys = arrays.iter().map(|array| array.len() - array.null_count()).sum();
        let scalar = |value| ScalarValue::new_primitive::<T>(value, data_type);
        let (least, greatest) =
            (scalar(bounds.map(|(least, _)| least))?, scalar(bounds.map(|(_, greatest)| greatest))?);
        let range: (i64, i64) = bounds.map_or((0, -1), |(least, greatest)| (least.into(), greatest.into()));
        let mut members = Members::new(range, keys);
        all().for_each(|value| members.insert(value.into(), range.0));
        let (tested, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(KeySet { rows: keys, least, greatest, range, members, tested, passed })
    }

    /// Maximum bytes of the set of the keys of so many rows.
    pub fn bytes_max(rows: usize) -> usize {
        (rows * BITMAP_BYTES_PER_KEY).clamp(BITMAP_BYTES, BITMAP_BYTES_MAX).max(rows * BLOOM_BITS_PER_KEY / 8 + 8)
    }

    /// Bytes of the set.
    pub fn bytes(&self) -> usize {
        match &self.members {
            Members::Bitmap(words) | Members::Bloom(words) => words.len() * size_of::<u64>(),
        }
    }

    /// The least and the greatest key; `None` if there are none.
    pub fn bounds(&self) -> Option<(&ScalarValue, &ScalarValue)> {
        (self.range.0 <= self.range.1).then_some((&self.least, &self.greatest))
    }

    /// True if so many rows pass that a test takes longer than it saves.
    fn is_given_up(&self) -> bool {
        let tested = self.tested.load(Ordering::Relaxed);
        tested >= ROWS_JUDGED && self.passed.load(Ordering::Relaxed) as f64 > tested as f64 * PASSED_MAX
    }

    fn contains_each(&self, values: &ArrayRef) -> Result<BooleanArray> {
        let other = || DataFusionError::Internal(format!("a set of keys for values of type {}", values.data_type()));
        let found = by_key_type!(values.data_type(), T => self.contains_all::<T>(values), else return Err(other()));
        let found = match values.nulls() {
            Some(nulls) => &found & nulls.inner(),
            None => found,
        };
        if self.tested.load(Ordering::Relaxed) < ROWS_JUDGED {
            self.passed.fetch_add(found.count_set_bits(), Ordering::Relaxed);
            self.tested.fetch_add(found.len(), Ordering::Relaxed);
        }
        Ok(BooleanArray::new(found, None))
    }

    fn contains_all<T: ArrowPrimitiveType<Native: Into<i64>>>(&self, values: &ArrayRef) -> BooleanBuffer {
        let values = values.as_primitive::<T>().values();
        let (least, greatest) = self.range;
        match &self.members {
            Members::Bitmap(words) => BooleanBuffer::collect_bool(values.len(), |row| {
                let place = values[row].into().wrapping_sub(least) as u64;
                // Numbers below the least key are large places.
                words.get((place / 64) as usize).is_some_and(|word| word >> (place % 64) & 1 == 1)
            }),
            Members::Bloom(words) => BooleanBuffer::collect_bool(values.len(), |row| {
                let value = values[row].into();
                let (word, bits) = bloom_bits(value, words.len());
                words[word] & bits == bits && least <= value && value <= greatest
            }),
        }
    }
}

impl Members {
    /// An empty set for so many keys in a range.
    fn new((least, greatest): (i64, i64), keys: usize) -> Members {
        if least > greatest {
            return Members::Bitmap(Vec::new());
        }
        let words = (greatest.wrapping_sub(least) as u64 / 64) as usize + 1;
        let limit = (keys * BITMAP_BYTES_PER_KEY).clamp(BITMAP_BYTES, BITMAP_BYTES_MAX);
        match words <= limit / size_of::<u64>() {
            true => Members::Bitmap(vec![0; words]),
            false => Members::Bloom(vec![0; (keys * BLOOM_BITS_PER_KEY).div_ceil(64).max(1)]),
        }
    }

    fn insert(&mut self, value: i64, least: i64) {
        match self {
            Members::Bitmap(words) => {
                let place = value.wrapping_sub(least) as u64;
                words[(place / 64) as usize] |= 1 << (place % 64);
            }
            Members::Bloom(words) => {
                let (word, bits) = bloom_bits(value, words.len());
                words[word] |= bits;
            }
        }
    }
}

/// The word of a key in a Bloom filter of `words` words, and its bits: up to four.
fn bloom_bits(value: i64, words: usize) -> (usize, u64) {
    // The golden ratio. The halves of the product depend on all bits of the value together.
    let product = (value as u64 ^ 0x517c_c1b7_2722_0a95) as u128 * 0x9e37_79b9_7f4a_7c15;
    let hash = (product >> 64) as u64 ^ product as u64;
    let word = (((hash >> 32) * words as u64) >> 32) as usize;
    let bit = |part: u32| 1_u64 << (hash >> (6 * part) & 63);
    (word, bit(0) | bit(1) | bit(2) | bit(3))
}

/// The condition that a key is in a set.
#[derive(Debug)]
pub(crate) struct KeySetExpr {
    pub key: Arc<dyn PhysicalExpr>,
    pub set: Arc<KeySet>,
}

impl PartialEq for KeySetExpr {
    fn eq(&self, other: &Self) -> bool {
        self.key.as_ref() == other.key.as_ref() && Arc::ptr_eq(&self.set, &other.set)
    }
}

impl Eq for KeySetExpr {}

impl Hash for KeySetExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
        Arc::as_ptr(&self.set).hash(state);
    }
}

impl Display for KeySetExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.set.bounds() {
            Some((least, greatest)) => {
                write!(f, "{} in the keys of {} rows from {least} to {greatest}", self.key, self.set.rows)
            }
            None => write!(f, "false"),
        }
    }
}

impl PhysicalExpr for KeySetExpr {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Boolean)
    }
    fn nullable(&self, _: &Schema) -> Result<bool> {
        Ok(false)
    }
    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if self.set.is_given_up() {
            return Ok(ColumnarValue::Scalar(ScalarValue::Boolean(Some(true))));
        }
        let values = self.key.evaluate(batch)?.into_array(batch.num_rows())?;
        Ok(ColumnarValue::Array(Arc::new(self.set.contains_each(&values)?)))
    }
    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.key]
    }
    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        match <[_; 1]>::try_from(children) {
            Ok([key]) => Ok(Arc::new(KeySetExpr { key, set: self.set.clone() })),
            Err(_) => Err(DataFusionError::Internal("a set of keys is a condition of one value".into())),
        }
    }
    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Date32Array, Int16Array, Int64Array};
    use datafusion::physical_plan::expressions::Column;
    use keyaki_primitives::Random;

    use super::*;

    fn set(arrays: &[Int64Array]) -> KeySet {
        let arrays: Vec<ArrayRef> = arrays.iter().map(|array| Arc::new(array.clone()) as ArrayRef).collect();
        KeySet::new(&arrays, &DataType::Int64).unwrap()
    }

    fn found(set: &KeySet, values: Vec<Option<i64>>) -> Vec<bool> {
        let found = set.contains_each(&(Arc::new(Int64Array::from(values)) as ArrayRef)).unwrap();
        assert_eq!(found.null_count(), 0);
        found.values().iter().collect()
    }

    #[test]
    fn bitmaps_are_exact() {
        let set = set(&[Int64Array::from(vec![Some(7), None, Some(-3)]), Int64Array::from(vec![64, 7])]);
        assert!(matches!(set.members, Members::Bitmap(_)));
        assert_eq!(set.bounds().map(|(a, b)| (a.to_string(), b.to_string())), Some(("-3".into(), "64".into())));
        let values = vec![
            Some(-4),
            Some(-3),
            Some(-2),
            Some(7),
            Some(8),
            Some(64),
            Some(65),
            None,
            Some(i64::MIN),
            Some(i64::MAX),
        ];
        let expected = [false, true, false, true, false, true, false, false, false, false];
        assert_eq!(found(&set, values), expected);
    }

    #[test]
    fn distant_keys_are_in_a_bloom_filter() {
        let mut random = Random::new(3);
        let keys: Vec<i64> = (0..20_000).map(|_| random.next_u64() as i64).collect();
        let set = set(&[Int64Array::from(keys.clone())]);
        assert!(matches!(set.members, Members::Bloom(_)));
        assert_eq!(set.bytes(), 40_000);
        assert!(found(&set, keys.into_iter().map(Some).collect()).into_iter().all(|found| found));
        let others = (0..100_000).map(|_| Some(random.next_u64() as i64)).collect();
        let wrong = found(&set, others).into_iter().filter(|found| *found).count();
        assert!(wrong < 2_000, "{wrong} of 100000");
        // The extremes.
        let ends = super::tests::set(&[Int64Array::from(vec![i64::MIN, i64::MAX])]);
        assert_eq!(found(&ends, vec![Some(i64::MIN), Some(i64::MAX)]), [true, true]);
    }

    #[test]
    fn a_set_without_keys_contains_nothing() {
        for arrays in [vec![], vec![Int64Array::from(vec![None, None])]] {
            let set = set(&arrays);
            assert!(set.bounds().is_none());
            assert_eq!(found(&set, vec![Some(0), None, Some(-1)]), [false; 3]);
        }
    }

    #[test]
    fn sets_of_other_types() {
        let dates = Arc::new(Date32Array::from(vec![10, -5])) as ArrayRef;
        let set = KeySet::new(std::slice::from_ref(&dates), &DataType::Date32).unwrap();
        assert_eq!(set.least, ScalarValue::Date32(Some(-5)));
        assert!(set.contains_each(&dates).unwrap().values().iter().all(|found| found));
        let short = Arc::new(Int16Array::from(vec![i16::MIN, i16::MAX])) as ArrayRef;
        let set = KeySet::new(std::slice::from_ref(&short), &DataType::Int16).unwrap();
        assert!(set.contains_each(&short).unwrap().values().iter().all(|found| found));
        assert!(!KeySet::is_for(&DataType::Utf8View) && KeySet::is_for(&DataType::Date32));
        assert!(KeySet::new(&[], &DataType::Float64).is_err());
    }

    #[test]
    fn sets_that_most_rows_pass_are_given_up() {
        let set = Arc::new(set(&[Int64Array::from_iter_values(0..1000)]));
        let expr = KeySetExpr { key: Arc::new(Column::new("k", 0)), set };
        let batch = |values: std::ops::Range<i64>| {
            let keys = Arc::new(Int64Array::from_iter_values(values.map(|i| i % 1100))) as ArrayRef;
            RecordBatch::try_from_iter([("k", keys)]).unwrap()
        };
        assert!(matches!(expr.evaluate(&batch(0..40_000)).unwrap(), ColumnarValue::Array(_)));
        assert!(matches!(expr.evaluate(&batch(0..10)).unwrap(), ColumnarValue::Scalar(_)));
    }
}
