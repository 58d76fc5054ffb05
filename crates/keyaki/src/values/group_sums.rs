//! Sums and counts of groups of rows.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, PrimitiveArray, UInt64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Decimal128Type, Int64Type, UInt64Type};
use datafusion::error::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::sum::{Total, unexpected};

/// Sums of one group that successive rows add to, if there are at most [`LANE_GROUPS`] groups.
const LANES: usize = 4;
/// Groups whose lanes fit well into the first-level cache.
const LANE_GROUPS: usize = 64;

/// The sums of all groups.
#[derive(Debug)]
pub(super) struct GroupSums {
    total: Total,
    sums: Vec<i128>,
    /// True for groups with a value.
    seen: Vec<bool>,
}

impl GroupSums {
    pub fn new(total: Total) -> Self {
        GroupSums { total, sums: Vec::new(), seen: Vec::new() }
    }

    /// Adds values to the sums of their groups.
    fn add<T: ArrowPrimitiveType>(
        &mut self,
        values: &PrimitiveArray<T>,
        groups: &[usize],
        filter: Option<&BooleanArray>,
    ) -> Result<()>
    where
        T::Native: Into<i128>,
    {
        let has_all = values.null_count() == 0 && filter.is_none();
        if has_all && self.sums.len() <= LANE_GROUPS && self.add_in_lanes(values.values(), groups) {
            return Ok(());
        }
        let mut overflown = false;
        let (sums, seen) = (&mut self.sums[..], &mut self.seen[..]);
        let mut add = |group: usize, value: T::Native| {
            let (sum, flag) = sums[group].overflowing_add(value.into());
            sums[group] = sum;
            seen[group] = true;
            overflown |= flag;
        };
        let rows = groups.iter().zip(values.values());
        if has_all {
            rows.for_each(|(group, value)| add(*group, *value));
        } else {
            let is_counted =
                |row: usize| values.is_valid(row) && filter.is_none_or(|f| f.is_valid(row) && f.value(row));
            rows.enumerate().filter(|(row, _)| is_counted(*row)).for_each(|(_, (group, value))| add(*group, *value));
        }
        if overflown { Err(self.total.overflow()) } else { Ok(()) }
    }

    /// Adds values to the sums of few groups. An addition to a sum waits for the one before it, so that neighbouring rows of
    /// one group take turns: successive rows add to sums of their own, which are added in the end. Changes nothing and returns
    /// false if one of these sums overflows.
    fn add_in_lanes<V: Copy + Into<i128>>(&mut self, values: &[V], groups: &[usize]) -> bool {
        let mut lanes = [[0_i128; LANE_GROUPS]; LANES];
        let mut overflown = false;
        let (rows, rest) = groups.as_chunks::<LANES>();
        let (row_values, rest_values) = values.as_chunks::<LANES>();
        let mut add = |lane: &mut [i128; LANE_GROUPS], group: usize, value: V| {
            let (sum, flag) = lane[group].overflowing_add(value.into());
            lane[group] = sum;
            overflown |= flag;
        };
        for (groups, values) in rows.iter().zip(row_values) {
            for ((lane, group), value) in lanes.iter_mut().zip(groups).zip(values) {
                add(lane, *group, *value);
            }
        }
        for (group, value) in rest.iter().zip(rest_values) {
            add(&mut lanes[0], *group, *value);
        }
        let sums = self.sums.iter().enumerate().map(|(group, sum)| {
            lanes.iter().fold(*sum, |sum, lane| {
                let (sum, flag) = sum.overflowing_add(lane[group]);
                overflown |= flag;
                sum
            })
        });
        let sums: Vec<i128> = sums.collect();
        if !overflown {
            self.sums.copy_from_slice(&sums);
            groups.iter().for_each(|group| self.seen[*group] = true);
        }
        !overflown
    }

    /// Removes the first sums, or all.
    pub fn take(&mut self, emit_to: EmitTo) -> (Vec<i128>, Option<NullBuffer>) {
        let sums = emit_to.take_needed(&mut self.sums);
        let seen = emit_to.take_needed(&mut self.seen);
        (sums, if seen.iter().all(|seen| *seen) { None } else { Some(NullBuffer::from(seen)) })
    }
}

impl GroupsAccumulator for GroupSums {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        group_count: usize,
    ) -> Result<()> {
        self.sums.resize(group_count, 0);
        self.seen.resize(group_count, false);
        match values[0].data_type() {
            DataType::Int64 => self.add(values[0].as_primitive::<Int64Type>(), groups, filter),
            DataType::UInt64 => self.add(values[0].as_primitive::<UInt64Type>(), groups, filter),
            DataType::Decimal128(..) => self.add(values[0].as_primitive::<Decimal128Type>(), groups, filter),
            other => Err(unexpected(other)),
        }
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], group_count: usize) -> Result<()> {
        self.update_batch(&states[..1], groups, None, group_count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (sums, nulls) = self.take(emit_to);
        self.total.finish(sums, nulls)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (sums, nulls) = self.take(emit_to);
        let sums = Decimal128Array::new(sums.into(), nulls).with_data_type(self.total.state_type());
        Ok(with_counts(sums))
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let sums = Total::widened(&values[0])?;
        let nulls = match opt_filter {
            None => sums.nulls().cloned(),
            Some(mask) => {
                let kept: NullBuffer = (0..mask.len()).map(|row| mask.is_valid(row) && mask.value(row)).collect();
                NullBuffer::union(Some(&kept), sums.nulls())
            }
        };
        let sums = Decimal128Array::new(sums.values().clone(), nulls).with_data_type(self.total.state_type());
        Ok(with_counts(sums))
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.sums.capacity() * size_of::<i128>() + self.seen.capacity()
    }
}

/// Partial sums, with a count of 1 for each that is not null.
fn with_counts(sums: Decimal128Array) -> Vec<ArrayRef> {
    let counts: UInt64Array = (0..sums.len()).map(|row| u64::from(sums.is_valid(row))).collect();
    vec![Arc::new(sums), Arc::new(counts)]
}

/// Adds the number of rows of each group to its count. Successive rows of few groups add to counts of their own, as in
/// [`GroupSums`].
pub(super) fn count(groups: &[usize], counts: &mut [u64]) {
    if counts.len() > LANE_GROUPS {
        groups.iter().for_each(|group| counts[*group] += 1);
        return;
    }
    let mut lanes = [[0_u64; LANE_GROUPS]; LANES];
    let (rows, rest) = groups.as_chunks::<LANES>();
    for groups in rows {
        lanes.iter_mut().zip(groups).for_each(|(lane, group)| lane[*group] += 1);
    }
    rest.iter().for_each(|group| lanes[0][*group] += 1);
    for (group, count) in counts.iter_mut().enumerate() {
        *count += lanes.iter().map(|lane| lane[group]).sum::<u64>();
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use proptest::prelude::*;

    use super::*;
    use crate::Error;

    fn groups(total: &Total) -> GroupSums {
        GroupSums::new(total.clone())
    }

    #[test]
    fn lanes_overflow_only_where_a_sum_does() {
        let total = Total::Decimal { precision: 38, scale: 0 };
        let decimals = |values: &[i128]| Arc::new(Decimal128Array::from(values.to_vec())) as ArrayRef;
        // Row by row, the sums stay in 128 bits; those of every fourth row do not.
        let max = i128::MAX / 2 + 1;
        let values = [max, -max, 1, 0, max, -max, 2, 0, 5];
        let mut sums = groups(&total);
        sums.update_batch(&[decimals(&values)], &[0; 9], None, 1).unwrap();
        let sum = sums.evaluate(EmitTo::All).unwrap();
        assert_eq!(sum.as_primitive::<Decimal128Type>().value(0), 8);
        let mut sums = groups(&total);
        let error = sums.update_batch(&[decimals(&[max; 8])], &[0; 8], None, 1).unwrap_err();
        assert_eq!(Error::from(error).to_string(), "numeric value out of range");
    }

    proptest! {
        #[test]
        fn sums_of_few_groups_equal_those_of_many(
            rows in prop::collection::vec((any::<i64>(), 0_usize..3), 0..40),
        ) {
            let total = Total::Decimal { precision: 38, scale: 0 };
            let values: ArrayRef = Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>());
            let indexes: Vec<usize> = rows.iter().map(|row| row.1).collect();
            let (mut few, mut many) = (groups(&total), groups(&total));
            few.update_batch(std::slice::from_ref(&values), &indexes, None, 3).unwrap();
            many.update_batch(&[values], &indexes, None, LANE_GROUPS + 1).unwrap();
            let first = |(sums, nulls): (Vec<i128>, Option<NullBuffer>)| -> Vec<Option<i128>> {
                (0..3).map(|i| nulls.as_ref().is_none_or(|n| n.is_valid(i)).then_some(sums[i])).collect()
            };
            assert_eq!(first(few.take(EmitTo::All)), first(many.take(EmitTo::All)));
        }

        #[test]
        fn counts_of_few_groups_equal_those_of_many(groups in prop::collection::vec(0_usize..5, 0..40)) {
            let (mut few, mut many) = (vec![7; 5], vec![7; LANE_GROUPS + 1]);
            count(&groups, &mut few);
            count(&groups, &mut many);
            assert_eq!(few[..], many[..5]);
        }
    }

    #[test]
    fn groups_are_emitted_in_parts() {
        let mut sums = groups(&Total::Int64);
        let values: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        sums.update_batch(&[values], &[0, 2, 2], None, 3).unwrap();
        let first = sums.evaluate(EmitTo::First(2)).unwrap();
        assert_eq!(first.as_primitive::<Int64Type>(), &Int64Array::from(vec![Some(1), None]));
        let rest = sums.evaluate(EmitTo::All).unwrap();
        assert_eq!(rest.as_primitive::<Int64Type>(), &Int64Array::from(vec![5]));
    }
}
