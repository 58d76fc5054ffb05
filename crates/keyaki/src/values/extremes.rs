//! The aggregate functions `min` and `max`, with NaN as the greatest value.
//!
//! DataFusion's functions take NaN for no value where they have groups. [`GroupExtremes`] replaces that accumulator for
//! floats. Everything else is DataFusion's.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, StatisticsArgs,
};

use super::functions::of_inner;

/// Both functions.
pub(crate) fn extremes() -> [AggregateUDF; 2] {
    [min_udaf(), max_udaf()].map(|inner| AggregateUDF::new_from_impl(Extreme { inner }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Extreme {
    /// DataFusion's function.
    inner: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for Extreme {
    of_inner!(
        name,
        signature,
        return_type,
        coerce_types,
        accumulator,
        create_sliding_accumulator,
        groups_accumulator_supported,
        is_descending,
        set_monotonicity,
        documentation
    );

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let is_max = self.is_descending() == Some(true);
        match args.return_type() {
            DataType::Float16 => Ok(Box::new(GroupExtremes::<Float16Type>::new(is_max))),
            DataType::Float32 => Ok(Box::new(GroupExtremes::<Float32Type>::new(is_max))),
            DataType::Float64 => Ok(Box::new(GroupExtremes::<Float64Type>::new(is_max))),
            _ => self.inner.create_groups_accumulator(args),
        }
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.inner.value_from_stats(args)
    }
}

/// The least or greatest value of each group.
#[derive(Debug)]
struct GroupExtremes<T: ArrowPrimitiveType> {
    is_max: bool,
    /// The value of each group; `None` for groups without values.
    values: Vec<Option<T::Native>>,
}

impl<T: ArrowPrimitiveType> GroupExtremes<T>
where
    T::Native: PartialOrd,
{
    fn new(is_max: bool) -> Self {
        GroupExtremes { is_max, values: Vec::new() }
    }

    /// `value` is greater than `other`. NaN is greater than all other values.
    fn is_greater(value: T::Native, other: T::Native) -> bool {
        let is_nan = |value: T::Native| value.partial_cmp(&value).is_none();
        value > other || (is_nan(value) && !is_nan(other))
    }

    fn add(&mut self, group: usize, value: T::Native) {
        let is_better = match (self.values[group], self.is_max) {
            (None, _) => true,
            (Some(known), true) => Self::is_greater(value, known),
            (Some(known), false) => Self::is_greater(known, value),
        };
        if is_better {
            self.values[group] = Some(value);
        }
    }
}

impl<T: ArrowPrimitiveType + Send> GroupsAccumulator for GroupExtremes<T>
where
    T::Native: PartialOrd,
{
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        group_count: usize,
    ) -> Result<()> {
        self.values.resize(group_count, None);
        let values = values[0].as_primitive::<T>();
        if filter.is_none() && values.null_count() == 0 {
            groups.iter().zip(values.values()).for_each(|(&group, &value)| self.add(group, value));
            return Ok(());
        }
        let passes = |row: usize| filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
        for (row, &group) in groups.iter().enumerate() {
            if values.is_valid(row) && passes(row) {
                self.add(group, values.value(row));
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], group_count: usize) -> Result<()> {
        self.update_batch(states, groups, None, group_count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let values = emit_to.take_needed(&mut self.values);
        Ok(Arc::new(values.into_iter().collect::<PrimitiveArray<T>>()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let Some(filter) = filter else { return Ok(values[..1].to_vec()) };
        let values = values[0].as_primitive::<T>();
        let kept = BooleanBuffer::collect_bool(filter.len(), |row| filter.is_valid(row) && filter.value(row));
        let nulls = NullBuffer::union(Some(&NullBuffer::new(kept)), values.nulls());
        Ok(vec![Arc::new(PrimitiveArray::<T>::new(values.values().clone(), nulls))])
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.values.capacity() * size_of::<Option<T::Native>>()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Float64Array;

    use super::*;

    fn of(values: Vec<Option<f64>>) -> ArrayRef {
        Arc::new(Float64Array::from(values))
    }

    fn shown(array: &ArrayRef) -> Vec<String> {
        array.as_primitive::<Float64Type>().iter().map(|value| format!("{value:?}")).collect()
    }

    #[test]
    fn nan_is_the_greatest_value() {
        let values = of(vec![Some(1.0), Some(f64::NAN), None, Some(f64::NAN), Some(-f64::INFINITY), Some(3.0)]);
        let groups = [0, 0, 1, 2, 3, 3];
        for (is_max, expected) in [
            (true, ["Some(NaN)", "None", "Some(NaN)", "Some(3.0)", "None"]),
            (false, ["Some(1.0)", "None", "Some(NaN)", "Some(-inf)", "None"]),
        ] {
            let mut all = GroupExtremes::<Float64Type>::new(is_max);
            all.update_batch(std::slice::from_ref(&values), &groups, None, 5).unwrap();
            assert_eq!(shown(&all.evaluate(EmitTo::All).unwrap()), expected);

            let mut merged = GroupExtremes::<Float64Type>::new(is_max);
            let states = merged.convert_to_state(std::slice::from_ref(&values), None).unwrap();
            merged.merge_batch(&states, &groups, 5).unwrap();
            assert_eq!(shown(&merged.state(EmitTo::First(4)).unwrap()[0]), expected[..4]);
            assert_eq!(shown(&merged.evaluate(EmitTo::All).unwrap()), expected[4..]);
        }
    }

    #[test]
    fn filters_select_rows() {
        let values = of(vec![Some(1.0), Some(2.0), Some(3.0), None]);
        let filter = BooleanArray::from(vec![Some(true), Some(true), None, Some(true)]);
        let mut max = GroupExtremes::<Float64Type>::new(true);
        max.update_batch(std::slice::from_ref(&values), &[0; 4], Some(&filter), 1).unwrap();
        let states = max.convert_to_state(&[values], Some(&filter)).unwrap();
        assert_eq!(shown(&states[0]), ["Some(1.0)", "Some(2.0)", "None", "None"]);
        assert_eq!(shown(&max.evaluate(EmitTo::All).unwrap()), ["Some(2.0)"]);
    }
}
