//! The aggregate function `avg`, which rounds averages of decimals half away from zero.
//!
//! An average of decimals has four digits more than its argument. Its sum is that of [`sum`](super::sum): it must fit into
//! 128 bits. DataFusion's own function computes all other types but intervals, and determines the types of arguments and results.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, UInt64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, Signature, TypeSignature,
};

use crate::base::intervals::INTERVAL;

use super::functions::of_inner;
use super::group_sums::{GroupSums, count};
use super::sum::{CountedSum, DistinctSum, PlainSum, Total};

/// The function.
pub(crate) fn average() -> AggregateUDF {
    let inner = avg_udaf();
    let Signature { type_signature, volatility, .. } = inner.signature().clone();
    let signature = Signature::one_of(vec![type_signature, TypeSignature::Exact(vec![INTERVAL])], volatility);
    AggregateUDF::new_from_impl(Average { inner, signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Average {
    /// DataFusion's function.
    inner: Arc<AggregateUDF>,
    /// That of DataFusion's function, and intervals, for which the analyzer replaces the function.
    signature: Signature,
}

impl AggregateUDFImpl for Average {
    of_inner!(aliases, documentation);

    fn name(&self) -> &str {
        "avg"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [INTERVAL] => Ok(INTERVAL),
            types => self.inner.return_type(types),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let Some(quotient) = Quotient::of(&args.expr_fields[0], args.return_type()) else {
            return self.inner.accumulator(args);
        };
        let total = quotient.total.clone();
        Ok(match args.is_distinct {
            true => Box::new(OneAverage { sum: DistinctSum::new(total), quotient }),
            false => Box::new(OneAverage { sum: PlainSum::new(total), quotient }),
        })
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match Quotient::of(&args.expr_fields[0], args.return_type()) {
            None => self.inner.create_sliding_accumulator(args),
            Some(_) => self.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let Some(Quotient { total, .. }) = Quotient::of(&args.input_fields[0], args.return_type()) else {
            return self.inner.state_fields(args);
        };
        Ok(total.state_fields(&args))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        match Quotient::of(&args.expr_fields[0], args.return_type()) {
            None => self.inner.groups_accumulator_supported(args),
            Some(_) => !args.is_distinct,
        }
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match Quotient::of(&args.expr_fields[0], args.return_type()) {
            None => self.inner.create_groups_accumulator(args),
            Some(quotient) => {
                let sums = GroupSums::new(quotient.total.clone());
                Ok(Box::new(GroupAverages { sums, counts: Vec::new(), quotient }))
            }
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// Division of sums of decimals by numbers of rows.
#[derive(Debug)]
struct Quotient {
    /// The sum, with the scale of the argument.
    total: Total,
    /// The result.
    result: Total,
    precision: u8,
    scale: i8,
    /// 10 to the power of the additional digits.
    factor: i128,
}

impl Quotient {
    /// `None` if the argument is not a decimal of 128 bits.
    fn of(argument: &Field, result: &DataType) -> Option<Quotient> {
        let (DataType::Decimal128(_, from), DataType::Decimal128(precision, scale)) = (argument.data_type(), result)
        else {
            return None;
        };
        let (precision, scale) = (*precision, *scale);
        let factor = 10_i128.pow(u32::try_from(scale - from).ok()?);
        let total = Total::Decimal { precision: 38, scale: *from };
        Some(Quotient { total, result: Total::Decimal { precision, scale }, precision, scale, factor })
    }

    /// The average, rounded half away from zero. `count` is not 0.
    ///
    /// # Errors
    /// `OutOfRange` if it does not fit into the type.
    fn divide(&self, sum: i128, count: u64) -> Result<i128> {
        let count = i128::from(count);
        let (whole, rest) = (sum / count, sum % count);
        // Less than 2^64 times 10^4.
        let rest = rest * self.factor;
        let rounded = (2 * rest.abs() + count) / (2 * count) * rest.signum();
        let average = whole.checked_mul(self.factor).and_then(|whole| whole.checked_add(rounded));
        self.result.check(average.ok_or_else(|| self.result.overflow())?)
    }

    fn scalar(&self, sum: i128, count: u64) -> Result<ScalarValue> {
        let average = (count > 0).then(|| self.divide(sum, count)).transpose()?;
        Ok(ScalarValue::Decimal128(average, self.precision, self.scale))
    }
}

/// One average, also of distinct values; rows may be removed again.
#[derive(Debug)]
struct OneAverage<S> {
    sum: S,
    quotient: Quotient,
}

impl<S: CountedSum> Accumulator for OneAverage<S> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum.update_batch(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.sum.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.sum.supports_retract_batch()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let (sum, count) = self.sum.sum_and_count()?;
        self.quotient.scalar(sum, count)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.sum.state()
    }

    fn size(&self) -> usize {
        size_of::<Quotient>() + self.sum.size()
    }
}

/// The averages of all groups.
#[derive(Debug)]
struct GroupAverages {
    sums: GroupSums,
    /// The number of values of each group.
    counts: Vec<u64>,
    quotient: Quotient,
}

impl GroupAverages {
    /// Removes the first sums and counts, or all. The sums of groups without values are null.
    fn take(&mut self, emit_to: EmitTo) -> (Decimal128Array, UInt64Array) {
        let (sums, nulls) = self.sums.take(emit_to);
        let sums = Decimal128Array::new(sums.into(), nulls).with_data_type(self.quotient.total.state_type());
        (sums, emit_to.take_needed(&mut self.counts).into())
    }
}

impl GroupsAccumulator for GroupAverages {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        group_count: usize,
    ) -> Result<()> {
        self.sums.update_batch(values, groups, filter, group_count)?;
        self.counts.resize(group_count, 0);
        let values = &values[0];
        if values.null_count() == 0 && filter.is_none() {
            count(groups, &mut self.counts);
        } else {
            let is_counted =
                |row: usize| values.is_valid(row) && filter.is_none_or(|f| f.is_valid(row) && f.value(row));
            groups.iter().enumerate().for_each(|(row, group)| self.counts[*group] += u64::from(is_counted(row)));
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], group_count: usize) -> Result<()> {
        self.sums.merge_batch(states, groups, group_count)?;
        self.counts.resize(group_count, 0);
        let counts = states[1].as_primitive::<UInt64Type>();
        groups.iter().zip(counts).for_each(|(group, count)| self.counts[*group] += count.unwrap_or(0));
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (sums, counts) = self.take(emit_to);
        let averages = sums.iter().zip(counts.values()).map(|(sum, count)| match sum {
            Some(sum) if *count > 0 => self.quotient.divide(sum, *count).map(Some),
            _ => Ok(None),
        });
        let averages: Decimal128Array = averages.collect::<Result<_>>()?;
        let Quotient { precision, scale, .. } = self.quotient;
        Ok(Arc::new(averages.with_precision_and_scale(precision, scale)?))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (sums, counts) = self.take(emit_to);
        Ok(vec![Arc::new(sums), Arc::new(counts)])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.sums.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.sums.size() + self.counts.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decimals(values: &[Option<i128>]) -> ArrayRef {
        let array = Decimal128Array::from(values.to_vec()).with_precision_and_scale(38, 2);
        Arc::new(array.expect("decimals"))
    }

    fn quotient(precision: u8, scale: i8) -> Quotient {
        let argument = Field::new("a", DataType::Decimal128(38, 2), true);
        Quotient::of(&argument, &DataType::Decimal128(precision, scale)).expect("a decimal")
    }

    /// The average with four more digits.
    fn expected(values: impl Iterator<Item = i128> + Clone) -> Option<i128> {
        let (sum, count) = (values.clone().sum::<i128>() * 10_000, values.count() as i128);
        (count > 0).then(|| (2 * sum.abs() + count) / (2 * count) * sum.signum())
    }

    proptest! {
        #[test]
        fn averages_are_rounded_quotients(
            rows in prop::collection::vec(
                (prop::option::weighted(0.8, -99_999_i128..99_999), 0_usize..3, prop::option::of(any::<bool>())), 1..40,
            ),
            at in 0_usize..40,
        ) {
            let at = at.min(rows.len());
            let mut merged = groups();
            let mut plain = OneAverage { sum: PlainSum::new(quotient(38, 6).total), quotient: quotient(38, 6) };
            let mut distinct = OneAverage { sum: DistinctSum::new(quotient(38, 6).total), quotient: quotient(38, 6) };
            for part in [&rows[..at], &rows[at..]] {
                let values = decimals(&part.iter().map(|row| row.0).collect::<Vec<_>>());
                let indexes: Vec<usize> = part.iter().map(|row| row.1).collect();
                let filter: BooleanArray = part.iter().map(|row| row.2).collect();
                plain.update_batch(std::slice::from_ref(&values)).unwrap();
                distinct.update_batch(std::slice::from_ref(&values)).unwrap();
                let (states, indexes) = match at % 2 {
                    0 => {
                        let mut partial = groups();
                        partial.update_batch(&[values], &indexes, Some(&filter), 3).unwrap();
                        (partial.state(EmitTo::All).unwrap(), vec![0, 1, 2])
                    }
                    _ => (groups().convert_to_state(&[values], Some(&filter)).unwrap(), indexes),
                };
                merged.merge_batch(&states, &indexes, 3).unwrap();
            }
            let all = || rows.iter().filter_map(|row| row.0);
            prop_assert_eq!(plain.evaluate().unwrap(), ScalarValue::Decimal128(expected(all()), 38, 6));
            let unique: std::collections::BTreeSet<i128> = all().collect();
            prop_assert_eq!(distinct.evaluate().unwrap(), ScalarValue::Decimal128(expected(unique.iter().copied()), 38, 6));
            let found = merged.evaluate(EmitTo::All).unwrap();
            for group in 0..3 {
                let counted = rows.iter().filter(|row| row.1 == group && row.2 == Some(true)).filter_map(|row| row.0);
                let found = ScalarValue::try_from_array(&found, group).unwrap();
                prop_assert_eq!(found, ScalarValue::Decimal128(expected(counted), 38, 6));
            }
        }
    }

    fn groups() -> GroupAverages {
        let quotient = quotient(38, 6);
        GroupAverages { sums: GroupSums::new(quotient.total.clone()), counts: Vec::new(), quotient }
    }

    #[test]
    fn halves_are_rounded_away_from_zero_and_large_averages_are_errors() {
        let divide = |sum, count| quotient(38, 6).divide(sum, count).ok();
        assert_eq!(divide(1, 3), Some(3333));
        assert_eq!(divide(2, 3), Some(6667));
        assert_eq!(divide(-2, 3), Some(-6667));
        assert_eq!((divide(1, 20_000), divide(-1, 20_000)), (Some(1), Some(-1)));
        assert_eq!(divide(1, 20_001), Some(0));
        let largest = 10_i128.pow(38) - 1;
        assert_eq!(divide(largest, 1), None);
        assert_eq!(divide(largest, 10_000), Some(largest));
    }
}
