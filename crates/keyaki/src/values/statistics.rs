//! Statistical aggregate functions with PostgreSQL's results where DataFusion has others: `var_pop` and `stddev_pop`
//! of a single NaN or infinity are NaN, and `regr_r2` of a constant `y` is 1.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::Float64Type;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_aggregate::regr::regr_r2_udaf;
use datafusion::functions_aggregate::stddev::stddev_pop_udaf;
use datafusion::functions_aggregate::variance::var_pop_udaf;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl};

use super::functions::of_inner;

/// The functions.
pub(crate) fn functions() -> [AggregateUDF; 3] {
    [(var_pop_udaf(), Kind::Variance), (stddev_pop_udaf(), Kind::Variance), (regr_r2_udaf(), Kind::Determination)]
        .map(|(inner, kind)| AggregateUDF::new_from_impl(Corrected { inner, kind }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Variance,
    Determination,
}

/// A function of DataFusion, whose result is corrected.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Corrected {
    inner: Arc<AggregateUDF>,
    kind: Kind,
}

impl AggregateUDFImpl for Corrected {
    // Accumulators of groups need no correction: they divide by the number of rows.
    of_inner!(
        name,
        aliases,
        signature,
        return_type,
        state_fields,
        groups_accumulator_supported,
        create_groups_accumulator,
        default_value,
        is_nullable,
        documentation
    );

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let inner = self.inner.accumulator(args)?;
        Ok(Box::new(CorrectedAccumulator { inner, kind: self.kind, is_special: false }))
    }
}

#[derive(Debug)]
struct CorrectedAccumulator {
    inner: Box<dyn Accumulator>,
    kind: Kind,
    /// A value was NaN or infinite.
    is_special: bool,
}

impl CorrectedAccumulator {
    fn note(&mut self, values: &ArrayRef) {
        if self.kind == Kind::Variance
            && let Some(values) = values.as_primitive_opt::<Float64Type>()
        {
            self.is_special |= values.iter().flatten().any(|value| !value.is_finite());
        }
    }
}

impl Accumulator for CorrectedAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.note(&values[0]);
        self.inner.update_batch(values)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let value = self.inner.evaluate()?;
        match self.kind {
            Kind::Variance if self.is_special && !value.is_null() => Ok(ScalarValue::Float64(Some(f64::NAN))),
            Kind::Determination if value.is_null() => {
                // The number of rows, two means, the sums of squares of x and y, and that of their products.
                let state = self.inner.state()?;
                match (state.first(), state.get(3), state.get(4)) {
                    (
                        Some(ScalarValue::UInt64(Some(1..))),
                        Some(ScalarValue::Float64(Some(x))),
                        Some(ScalarValue::Float64(Some(y))),
                    ) if *x != 0.0 && *y == 0.0 => Ok(ScalarValue::Float64(Some(1.0))),
                    _ => Ok(value),
                }
            }
            _ => Ok(value),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        match states {
            // The sum of squares of a NaN is NaN, also for a single row.
            [_, _, squares] if squares.null_count() == 0 => self.note(squares),
            // Different values.
            [lists] => {
                if let Some(lists) = lists.as_list_opt::<i32>() {
                    self.note(&lists.values().clone());
                }
            }
            _ => {}
        }
        self.inner.merge_batch(states)
    }
}
