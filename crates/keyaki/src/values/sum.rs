//! The aggregate function `sum`, with an error instead of a wrapped result.
//!
//! Sums of integers and decimals are accumulated in 128 bits. A sum of integers is checked once, when it is final: it
//! fails only if the result itself does not fit, in whatever order and in however many parts the rows are added. Sums of
//! decimals must fit into 128 bits at any time, and into 38 digits in the end. DataFusion's own function computes all
//! other types, and determines the types of arguments and results.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Int64Array, PrimitiveArray, UInt64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    ArrowPrimitiveType, DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Field, FieldRef, Int64Type, UInt64Type,
};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF};

use super::arithmetic::overflow;
use super::functions::of_inner;
use super::group_sums::GroupSums;
use crate::Error;

/// The function.
pub(crate) fn sum() -> AggregateUDF {
    AggregateUDF::new_from_impl(Sum { inner: sum_udaf() })
}

/// The function, shared.
pub(crate) fn shared() -> Arc<AggregateUDF> {
    static SUM: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| Arc::new(sum()));
    SUM.clone()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Sum {
    /// DataFusion's function.
    inner: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for Sum {
    of_inner!(signature, return_type, documentation);

    fn name(&self) -> &str {
        "sum"
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match Total::of(args.return_type()) {
            None => self.inner.accumulator(args),
            Some(total) if args.is_distinct => Ok(Box::new(DistinctSum::new(total))),
            Some(total) => Ok(Box::new(PlainSum::new(total))),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match Total::of(args.return_type()) {
            None => self.inner.create_sliding_accumulator(args),
            Some(_) => self.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let Some(total) = Total::of(args.return_type()) else { return self.inner.state_fields(args) };
        Ok(total.state_fields(&args))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        match Total::of(args.return_type()) {
            None => self.inner.groups_accumulator_supported(args),
            Some(_) => !args.is_distinct,
        }
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match Total::of(args.return_type()) {
            None => self.inner.create_groups_accumulator(args),
            Some(total) => Ok(Box::new(GroupSums::new(total))),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// The type of a sum.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Total {
    Int64,
    UInt64,
    Decimal { precision: u8, scale: i8 },
}

impl Total {
    fn of(ty: &DataType) -> Option<Total> {
        match ty {
            DataType::Int64 => Some(Total::Int64),
            DataType::UInt64 => Some(Total::UInt64),
            DataType::Decimal128(precision, scale) => Some(Total::Decimal { precision: *precision, scale: *scale }),
            _ => None,
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Total::Int64 => DataType::Int64,
            Total::UInt64 => DataType::UInt64,
            Total::Decimal { precision, scale } => DataType::Decimal128(*precision, *scale),
        }
    }

    /// The type of partial sums.
    pub fn state_type(&self) -> DataType {
        match self {
            Total::Int64 | Total::UInt64 => DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0),
            Total::Decimal { scale, .. } => DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale),
        }
    }

    /// The fields of partial results: the distinct values, or the sum and the number of values.
    pub fn state_fields(&self, args: &StateFieldsArgs<'_>) -> Vec<FieldRef> {
        if args.is_distinct {
            let name = format_state_name(args.name, "distinct");
            return vec![Field::new_list(name, Field::new_list_field(self.state_type(), true), false).into()];
        }
        let sum = Field::new(format_state_name(args.name, "sum"), self.state_type(), true);
        let count = Field::new(format_state_name(args.name, "count"), DataType::UInt64, true);
        vec![sum.into(), count.into()]
    }

    pub fn overflow(&self) -> DataFusionError {
        overflow(&self.data_type()).into()
    }

    /// Adds two partial sums.
    ///
    /// # Errors
    /// `OutOfRange` beyond 128 bits.
    fn add(&self, a: i128, b: i128) -> Result<i128> {
        a.checked_add(b).ok_or_else(|| self.overflow())
    }

    /// The sum of all values of an array that are not null.
    ///
    /// # Errors
    /// `OutOfRange` beyond 128 bits.
    fn sum(&self, values: &ArrayRef) -> Result<i128> {
        match values.data_type() {
            DataType::Int64 => Ok(sum_of(values.as_primitive::<Int64Type>(), sum_of_words)),
            DataType::UInt64 => {
                Ok(sum_of(values.as_primitive::<UInt64Type>(), |part| part.iter().map(|v| i128::from(*v)).sum()))
            }
            DataType::Decimal128(..) => {
                let mut overflown = false;
                let sum = sum_of(values.as_primitive::<Decimal128Type>(), |part| {
                    part.iter().fold(0_i128, |sum, value| {
                        let (sum, flag) = sum.overflowing_add(*value);
                        overflown |= flag;
                        sum
                    })
                });
                if overflown { Err(self.overflow()) } else { Ok(sum) }
            }
            other => Err(unexpected(other)),
        }
    }

    /// The values of an array in 128 bits.
    pub fn widened(values: &ArrayRef) -> Result<PrimitiveArray<Decimal128Type>> {
        match values.data_type() {
            DataType::Int64 => Ok(values.as_primitive::<Int64Type>().unary(i128::from)),
            DataType::UInt64 => Ok(values.as_primitive::<UInt64Type>().unary(i128::from)),
            DataType::Decimal128(..) => Ok(values.as_primitive::<Decimal128Type>().clone()),
            other => Err(unexpected(other)),
        }
    }

    /// # Errors
    /// `OutOfRange` if the sum does not fit into the type.
    pub fn check(&self, sum: i128) -> Result<i128> {
        let fits = match self {
            Total::Int64 => i64::try_from(sum).is_ok(),
            Total::UInt64 => u64::try_from(sum).is_ok(),
            Total::Decimal { precision, .. } => sum.unsigned_abs() < 10_u128.pow((*precision).into()),
        };
        if fits { Ok(sum) } else { Err(self.overflow()) }
    }

    /// Final sums. Null sums are 0.
    ///
    /// # Errors
    /// `OutOfRange` if a sum does not fit into the type.
    pub fn finish(&self, sums: Vec<i128>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        for sum in &sums {
            self.check(*sum)?;
        }
        Ok(match self {
            Total::Int64 => Arc::new(Int64Array::new(sums.iter().map(|sum| *sum as i64).collect(), nulls)),
            Total::UInt64 => Arc::new(UInt64Array::new(sums.iter().map(|sum| *sum as u64).collect(), nulls)),
            Total::Decimal { .. } => {
                Arc::new(Decimal128Array::new(sums.into(), nulls).with_data_type(self.data_type()))
            }
        })
    }

    fn scalar(&self, sum: Option<i128>) -> Result<ScalarValue> {
        let sum = sum.map(|sum| self.check(sum)).transpose()?;
        Ok(match self {
            Total::Int64 => ScalarValue::Int64(sum.map(|sum| sum as i64)),
            Total::UInt64 => ScalarValue::UInt64(sum.map(|sum| sum as u64)),
            Total::Decimal { precision, scale } => ScalarValue::Decimal128(sum, *precision, *scale),
        })
    }

    fn state(&self, sum: Option<i128>) -> ScalarValue {
        let scale = match self {
            Total::Int64 | Total::UInt64 => 0,
            Total::Decimal { scale, .. } => *scale,
        };
        ScalarValue::Decimal128(sum, DECIMAL128_MAX_PRECISION, scale)
    }
}

pub(super) fn unexpected(ty: &DataType) -> DataFusionError {
    Error::Internal(format!("sum of {ty}")).into()
}

/// Adds `sum` of each part of the values without nulls.
fn sum_of<T: ArrowPrimitiveType>(values: &PrimitiveArray<T>, mut sum: impl FnMut(&[T::Native]) -> i128) -> i128 {
    match values.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => sum(values.values()),
        Some(nulls) => nulls.valid_slices().fold(0_i128, |total, (start, end)| {
            total.wrapping_add(sum(&values.values()[start..end])) //
        }),
    }
}

/// The sum in 128 bits, from two sums in 64 bits that cannot overflow: this loop is vectorised.
fn sum_of_words(values: &[i64]) -> i128 {
    // The upper halves sum up to less than 2^63.
    const PART: usize = 1 << 30;
    let of_part = |part: &[i64]| {
        let (mut low, mut high) = (0_u64, 0_i64);
        for value in part {
            low += u64::from(*value as u32);
            high += value >> 32;
        }
        (i128::from(high) << 32) + i128::from(low)
    };
    values.chunks(PART).map(of_part).sum()
}

/// A sum that knows the number of its values.
pub(super) trait CountedSum: Accumulator {
    /// The sum of the values, and their number.
    ///
    /// # Errors
    /// `OutOfRange` beyond 128 bits.
    fn sum_and_count(&self) -> Result<(i128, u64)>;
}

impl CountedSum for PlainSum {
    fn sum_and_count(&self) -> Result<(i128, u64)> {
        Ok((self.sum, self.count))
    }
}

impl CountedSum for DistinctSum {
    fn sum_and_count(&self) -> Result<(i128, u64)> {
        let sum = self.values.keys().try_fold(0, |sum, value| self.total.add(sum, *value))?;
        Ok((sum, self.values.len() as u64))
    }
}

/// One sum; rows may be removed again.
#[derive(Debug)]
pub(super) struct PlainSum {
    total: Total,
    sum: i128,
    /// Number of values.
    count: u64,
}

impl PlainSum {
    pub fn new(total: Total) -> Self {
        PlainSum { total, sum: 0, count: 0 }
    }
}

impl Accumulator for PlainSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum = self.total.add(self.sum, self.total.sum(&values[0])?)?;
        self.count += (values[0].len() - values[0].null_count()) as u64;
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.sum = self.total.add(self.sum, self.total.sum(&states[0])?)?;
        self.count += states[1].as_primitive::<UInt64Type>().iter().flatten().sum::<u64>();
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let sum = self.total.sum(&values[0])?;
        self.sum = self.sum.checked_sub(sum).ok_or_else(|| self.total.overflow())?;
        self.count -= (values[0].len() - values[0].null_count()) as u64;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.total.scalar((self.count > 0).then_some(self.sum))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.total.state(Some(self.sum)), ScalarValue::UInt64(Some(self.count))])
    }

    fn size(&self) -> usize {
        size_of::<Self>()
    }
}

/// The sum of distinct values; rows may be removed again.
#[derive(Debug)]
pub(super) struct DistinctSum {
    total: Total,
    /// The number of rows with each value.
    values: HashMap<i128, u64>,
}

impl DistinctSum {
    pub fn new(total: Total) -> Self {
        DistinctSum { total, values: HashMap::new() }
    }

    fn insert(&mut self, values: &ArrayRef) -> Result<()> {
        for value in Total::widened(values)?.iter().flatten() {
            *self.values.entry(value).or_default() += 1;
        }
        Ok(())
    }
}

impl Accumulator for DistinctSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.insert(&values[0])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        states[0].as_list::<i32>().iter().flatten().try_for_each(|values| self.insert(&values))
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in Total::widened(&values[0])?.iter().flatten() {
            if let Some(count) = self.values.get_mut(&value) {
                *count -= 1;
                if *count == 0 {
                    self.values.remove(&value);
                }
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let (sum, count) = self.sum_and_count()?;
        self.total.scalar((count > 0).then_some(sum))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values: Vec<ScalarValue> = self.values.keys().map(|value| self.total.state(Some(*value))).collect();
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(&values, &self.total.state_type()))])
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.values.capacity() * size_of::<(i128, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::BooleanArray;
    use datafusion::logical_expr::EmitTo;
    use proptest::prelude::*;

    use super::*;

    fn plain(total: &Total) -> PlainSum {
        PlainSum::new(total.clone())
    }

    fn groups(total: &Total) -> GroupSums {
        GroupSums::new(total.clone())
    }

    fn words() -> impl Strategy<Value = Option<i64>> {
        prop::option::weighted(0.8, prop_oneof![Just(i64::MIN), Just(i64::MAX), any::<i64>(), -9_i64..9])
    }

    fn expected(values: impl Iterator<Item = i64>) -> Option<std::result::Result<i64, ()>> {
        let values: Vec<i64> = values.collect();
        let sum: i128 = values.iter().map(|value| i128::from(*value)).sum();
        (!values.is_empty()).then(|| i64::try_from(sum).map_err(|_| ()))
    }

    fn check(result: Result<ScalarValue>, expected: Option<std::result::Result<i64, ()>>) {
        match (expected, result) {
            (None, Ok(ScalarValue::Int64(None))) => {}
            (Some(Ok(sum)), Ok(ScalarValue::Int64(Some(actual)))) => assert_eq!(sum, actual),
            (Some(Err(())), Err(error)) => assert_eq!(Error::from(error).to_string(), "bigint out of range"),
            (expected, result) => panic!("{result:?} instead of {expected:?}"),
        }
    }

    proptest! {
        #[test]
        fn sums_equal_those_in_wide_arithmetic(
            parts in prop::collection::vec(prop::collection::vec(words(), 0..12), 1..4),
        ) {
            let total = Total::Int64;
            let all = || parts.iter().flatten().flatten().copied();
            let array = |part: &[Option<i64>]| Arc::new(Int64Array::from(part.to_vec())) as ArrayRef;
            // At once, by partial sums, and after other rows were added and removed.
            let (mut whole, mut merged, mut sliding) = (plain(&total), plain(&total), plain(&total));
            let mut distinct = DistinctSum::new(total.clone());
            for part in &parts {
                let values = [array(part)];
                whole.update_batch(&values).unwrap();
                let mut partial = plain(&total);
                partial.update_batch(&values).unwrap();
                let states: Vec<ArrayRef> =
                    partial.state().unwrap().iter().map(|state| state.to_array().unwrap()).collect();
                merged.merge_batch(&states).unwrap();
                let other = [array(&[Some(i64::MAX), None, Some(i64::MAX)])];
                sliding.update_batch(&other).unwrap();
                sliding.update_batch(&values).unwrap();
                sliding.retract_batch(&other).unwrap();
                let mut partial = DistinctSum::new(total.clone());
                partial.update_batch(&values).unwrap();
                partial.update_batch(&other).unwrap();
                partial.retract_batch(&other).unwrap();
                distinct.merge_batch(&[partial.state().unwrap()[0].to_array().unwrap()]).unwrap();
            }
            check(whole.evaluate(), expected(all()));
            check(merged.evaluate(), expected(all()));
            check(sliding.evaluate(), expected(all()));
            let values: std::collections::BTreeSet<i64> = all().collect();
            check(distinct.evaluate(), expected(values.into_iter()));
        }

        #[test]
        fn sums_of_groups_equal_those_in_wide_arithmetic(
            rows in prop::collection::vec((words(), 0_usize..4, prop::option::of(any::<bool>())), 1..40),
            at in 0_usize..40,
        ) {
            let total = Total::Int64;
            let at = at.min(rows.len());
            let mut merged = groups(&total);
            for part in [&rows[..at], &rows[at..]] {
                let values: ArrayRef = Arc::new(part.iter().map(|row| row.0).collect::<Int64Array>());
                let indexes: Vec<usize> = part.iter().map(|row| row.1).collect();
                let filter: BooleanArray = part.iter().map(|row| row.2).collect();
                let states = match at % 2 {
                    0 => {
                        let mut partial = groups(&total);
                        partial.update_batch(&[values], &indexes, Some(&filter), 4).unwrap();
                        (partial.state(EmitTo::All).unwrap(), vec![0, 1, 2, 3])
                    }
                    _ => (groups(&total).convert_to_state(&[values], Some(&filter)).unwrap(), indexes),
                };
                merged.merge_batch(&states.0, &states.1, 4).unwrap();
            }
            let sums: Vec<_> = (0..4)
                .map(|group| {
                    let counted = rows.iter().filter(|row| row.1 == group && row.2 == Some(true));
                    expected(counted.filter_map(|row| row.0))
                })
                .collect();
            match merged.evaluate(EmitTo::All) {
                Err(_) => prop_assert!(sums.contains(&Some(Err(())))),
                Ok(actual) => {
                    let expected: Int64Array = sums.iter().map(|sum| sum.map(|sum| sum.unwrap())).collect();
                    prop_assert_eq!(actual.as_primitive::<Int64Type>(), &expected);
                }
            }
        }
    }

    #[test]
    fn decimals_end_at_their_precision() {
        let largest = 10_i128.pow(38) - 1;
        let column = |values: Vec<i128>| {
            Arc::new(Decimal128Array::from(values).with_precision_and_scale(38, 2).unwrap()) as ArrayRef
        };
        let total = Total::Decimal { precision: 38, scale: 2 };
        let sum = |values: Vec<i128>| {
            let mut one = plain(&total);
            one.update_batch(&[column(values.clone())])?;
            let mut many = groups(&total);
            many.update_batch(&[column(values.clone())], &vec![0; values.len()], None, 1)?;
            let (one, many) = (one.evaluate()?, many.evaluate(EmitTo::All)?);
            assert_eq!(one, ScalarValue::try_from_array(&many, 0)?);
            Ok::<_, DataFusionError>(one)
        };
        assert_eq!(sum(vec![largest, -1]).unwrap(), ScalarValue::Decimal128(Some(largest - 1), 38, 2));
        for values in [vec![largest, 1], vec![largest, largest], vec![largest; 9], vec![-largest; 3]] {
            assert_eq!(Error::from(sum(values).unwrap_err()).to_string(), "numeric value out of range");
        }
    }
}
