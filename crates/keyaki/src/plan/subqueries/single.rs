//! `single_value(x)`: the only value of a group. It fails for a second one.

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

/// The aggregate function.
pub(super) fn single_value() -> AggregateUDF {
    AggregateUDF::new_from_impl(SingleValue { signature: Signature::any(1, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct SingleValue {
    signature: Signature,
}

impl AggregateUDFImpl for SingleValue {
    fn name(&self) -> &str {
        "single_value"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        types.first().cloned().ok_or_else(|| DataFusionError::Internal("single_value needs an argument".into()))
    }

    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let value = ScalarValue::try_from(arguments.return_field.data_type())?;
        Ok(Box::new(Single { value, found: false }))
    }

    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        Ok(vec![
            Field::new("value", arguments.return_field.data_type().clone(), true).into(),
            Field::new("found", DataType::Boolean, false).into(),
        ])
    }
}

/// The value of a group so far; NULL before the first.
#[derive(Debug)]
struct Single {
    value: ScalarValue,
    found: bool,
}

impl Single {
    fn set(&mut self, value: ScalarValue) -> Result<()> {
        if self.found {
            return Err(DataFusionError::Execution("Scalar subquery returned more than one row".into()));
        }
        (self.value, self.found) = (value, true);
        Ok(())
    }
}

impl Accumulator for Single {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(array) = values.first() else { return Ok(()) };
        (0..array.len().min(2)).try_for_each(|row| self.set(ScalarValue::try_from_array(array, row)?))
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.value.clone())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.value.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.value.clone(), ScalarValue::Boolean(Some(self.found))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [values, found] = states else {
            return Err(DataFusionError::Internal("single_value has two states".into()));
        };
        for row in 0..values.len() {
            if ScalarValue::try_from_array(found, row)? == ScalarValue::Boolean(Some(true)) {
                self.set(ScalarValue::try_from_array(values, row)?)?;
            }
        }
        Ok(())
    }
}
