//! The aggregate function `mode`: the most frequent value, and the least one of several, or the greatest one.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

/// The name of the function that returns the greatest of several values.
pub(crate) const GREATEST_MODE: &str = "mode_desc";

/// The functions.
pub(crate) fn most_frequent() -> [AggregateUDF; 2] {
    [false, true].map(|is_greatest| {
        AggregateUDF::new_from_impl(Mode { is_greatest, signature: Signature::any(1, Volatility::Immutable) })
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Mode {
    is_greatest: bool,
    signature: Signature,
}

impl AggregateUDFImpl for Mode {
    fn name(&self) -> &str {
        if self.is_greatest { GREATEST_MODE } else { "mode" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        types.first().cloned().ok_or_else(|| DataFusionError::Internal("mode needs an argument".into()))
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let ty = args.return_field.data_type().clone();
        Ok(Box::new(Counts { ty, is_greatest: self.is_greatest, counts: HashMap::new(), value_bytes: 0 }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let list = |name: &str, ty: DataType| {
            let item = Arc::new(Field::new_list_field(ty, true));
            Arc::new(Field::new(name, DataType::List(item), true))
        };
        Ok(vec![list("values", args.return_field.data_type().clone()), list("counts", DataType::Int64)])
    }
}

/// The number of rows of each value.
#[derive(Debug)]
struct Counts {
    ty: DataType,
    is_greatest: bool,
    counts: HashMap<ScalarValue, i64>,
    value_bytes: usize,
}

impl Counts {
    fn add(&mut self, value: ScalarValue, count: i64) {
        match self.counts.get_mut(&value) {
            Some(known) => *known += count,
            None => {
                self.value_bytes += value.size() + size_of_val(&count);
                self.counts.insert(value, count);
            }
        }
    }
}

impl Accumulator for Counts {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return Ok(()) };
        for row in (0..values.len()).filter(|row| values.is_valid(*row)) {
            self.add(ScalarValue::try_from_array(values, row)?.compacted(), 1);
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let best = self.counts.iter().max_by(|(a, a_count), (b, b_count)| {
            let order = a.partial_cmp(b).unwrap_or(Ordering::Equal);
            a_count.cmp(b_count).then(if self.is_greatest { order } else { order.reverse() })
        });
        best.map_or_else(|| ScalarValue::try_from(&self.ty), |(value, _)| Ok(value.clone()))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.value_bytes
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let (values, counts): (Vec<ScalarValue>, Vec<ScalarValue>) =
            self.counts.drain().map(|(value, count)| (value, ScalarValue::from(count))).unzip();
        let list =
            |values: &[ScalarValue], ty: &DataType| ScalarValue::List(ScalarValue::new_list_nullable(values, ty));
        Ok(vec![list(&values, &self.ty), list(&counts, &DataType::Int64)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [values, counts] = states else {
            return Err(DataFusionError::Internal("mode has two states".into()));
        };
        for (values, counts) in values.as_list::<i32>().iter().zip(counts.as_list::<i32>().iter()) {
            let (Some(values), Some(counts)) = (values, counts) else { continue };
            for (row, count) in counts.as_primitive::<Int64Type>().values().iter().enumerate() {
                self.add(ScalarValue::try_from_array(&values, row)?.compacted(), *count);
            }
        }
        Ok(())
    }
}
