//! Aggregates over frames.
//!
//! DataFusion removes the rows that leave a frame from the accumulator (`retract_batch`). Many functions cannot do this. For
//! others, the result then depends on rows that have left: sums of floats and variances are inexact, and `bit_xor` of NULLs
//! is 0. For these, the accumulator of a [`Framed`] function keeps the rows of the frame, and computes them again after
//! rows have left.
//!
//! DataFusion also derives the order of the results of `count`, `min` and `max` from that of the rows, and is wrong where
//! NULLs enter or rows leave a frame. A [`Framed`] function states no order.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, ReversedUDAF, SetMonotonicity};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use keyaki_store::compact_array;

use super::functions::of_inner;

/// The function in place of an aggregate over frames; `None` if it stays. `types`: those of its arguments.
/// `is_moving`: rows leave the frames.
pub(crate) fn framed(
    function: &Arc<AggregateUDF>,
    types: &[DataType],
    is_distinct: bool,
    is_moving: bool,
) -> Option<Arc<AggregateUDF>> {
    if function.inner().is::<Framed>() {
        return None;
    }
    let is_float = types.iter().any(|ty| !(ty.is_integer() || matches!(ty, DataType::Decimal128(..))));
    let is_exact = match function.name() {
        "count" | "min" | "max" => true,
        "sum" | "avg" => !is_float,
        _ => false,
    };
    let ty = types.first().unwrap_or(&DataType::Null);
    let is_ordered = function.inner().set_monotonicity(ty) != SetMonotonicity::NotMonotonic;
    let is_anew = is_moving && (is_distinct || !is_exact);
    (is_anew || is_ordered).then(|| Arc::new(AggregateUDF::new_from_impl(Framed { inner: function.clone(), is_anew })))
}

/// A function over frames. It has no order; everything else is that of the function.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Framed {
    inner: Arc<AggregateUDF>,
    /// Its accumulator for frames that move computes each frame anew.
    is_anew: bool,
}

impl AggregateUDFImpl for Framed {
    of_inner!(
        name,
        aliases,
        signature,
        coerce_types,
        return_type,
        is_nullable,
        accumulator,
        state_fields,
        groups_accumulator_supported,
        create_groups_accumulator,
        is_descending,
        default_value,
        documentation
    );

    fn return_field(&self, fields: &[FieldRef]) -> Result<FieldRef> {
        self.inner.return_field(fields)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if !self.is_anew {
            return self.inner.create_sliding_accumulator(args);
        }
        let source = Source {
            function: self.inner.clone(),
            return_field: args.return_field.clone(),
            schema: args.schema.clone(),
            ignore_nulls: args.ignore_nulls,
            order_bys: args.order_bys.to_vec(),
            is_reversed: args.is_reversed,
            name: args.name.to_string(),
            is_distinct: args.is_distinct,
            exprs: args.exprs.to_vec(),
            expr_fields: args.expr_fields.to_vec(),
        };
        let fresh = source.accumulator()?;
        Ok(Box::new(FrameRows { source, current: fresh, rows: Vec::new(), first: 0, added: 0, has_lost: false }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        None
    }

    /// Rows in the other order are not the same for functions that depend on it.
    fn reverse_expr(&self) -> ReversedUDAF {
        match self.inner.reverse_udf() {
            ReversedUDAF::Identical => ReversedUDAF::Identical,
            _ => ReversedUDAF::NotSupported,
        }
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.inner.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }
}

/// The arguments from which accumulators are made.
#[derive(Debug)]
struct Source {
    function: Arc<AggregateUDF>,
    return_field: FieldRef,
    schema: Schema,
    ignore_nulls: bool,
    order_bys: Vec<PhysicalSortExpr>,
    is_reversed: bool,
    name: String,
    is_distinct: bool,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    expr_fields: Vec<FieldRef>,
}

impl Source {
    fn accumulator(&self) -> Result<Box<dyn Accumulator>> {
        self.function.accumulator(AccumulatorArgs {
            return_field: self.return_field.clone(),
            schema: &self.schema,
            ignore_nulls: self.ignore_nulls,
            order_bys: &self.order_bys,
            is_reversed: self.is_reversed,
            name: &self.name,
            is_distinct: self.is_distinct,
            exprs: &self.exprs,
            expr_fields: &self.expr_fields,
        })
    }
}

/// An accumulator that keeps the rows of a frame.
#[derive(Debug)]
struct FrameRows {
    source: Source,
    /// It has the rows of the frame that are not among the last `added` batches, unless rows have left.
    current: Box<dyn Accumulator>,
    /// Batches of the arguments: one array for each.
    rows: Vec<Vec<ArrayRef>>,
    /// Rows at the start of `rows` that have left the frame.
    first: usize,
    /// The number of batches at the end of `rows` that are not in `current`.
    added: usize,
    /// Rows have left the frame since `current` was made.
    has_lost: bool,
}

impl FrameRows {
    /// The rows of the frame as one batch; `None` if there are none.
    fn joined(&self) -> Result<Option<Vec<ArrayRef>>> {
        let Some(width) = self.rows.first().map(Vec::len) else { return Ok(None) };
        let column = |i: usize| -> Result<ArrayRef> {
            let parts: Vec<&dyn Array> = self.rows.iter().map(|batch| batch[i].as_ref()).collect();
            let all = if let [_] = &parts[..] { self.rows[0][i].clone() } else { concat(&parts)? };
            Ok(compact_array(&all.slice(self.first, all.len() - self.first)))
        };
        (0..width).map(column).collect::<Result<_>>().map(Some)
    }
}

impl Accumulator for FrameRows {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        if values.first().is_some_and(|values| !values.is_empty()) {
            self.rows.push(values.iter().map(compact_array).collect());
            self.added += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let lost = values.first().map_or(0, |values| values.len());
        if lost == 0 {
            return Ok(());
        }
        self.has_lost = true;
        self.first += lost;
        // Batches all of whose rows have left.
        let mut count = 0;
        for batch in &self.rows {
            if self.first < batch[0].len() {
                break;
            }
            self.first -= batch[0].len();
            count += 1;
        }
        self.rows.drain(..count);
        assert!(self.first == 0 || !self.rows.is_empty(), "only rows of the frame leave it");
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.has_lost {
            self.current = self.source.accumulator()?;
            if let Some(joined) = self.joined()? {
                self.current.update_batch(&joined)?;
                (self.rows, self.first) = (vec![joined], 0);
            }
            self.has_lost = false;
        } else {
            for batch in &self.rows[self.rows.len() - self.added..] {
                self.current.update_batch(batch)?;
            }
        }
        self.added = 0;
        self.current.evaluate()
    }

    fn size(&self) -> usize {
        let rows = self.rows.iter().flatten().map(|array| array.get_array_memory_size());
        size_of::<Self>() + self.current.size() + rows.sum::<usize>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Err(DataFusionError::Internal("aggregates over frames have no state".into()))
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        Err(DataFusionError::Internal("aggregates over frames have no state".into()))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Float64Array;
    use datafusion::functions_aggregate::{count::count_udaf, sum::sum_udaf, variance::var_pop_udaf};
    use datafusion::physical_expr::expressions::col;

    use super::*;

    #[test]
    fn frames_are_computed_anew() {
        let values: ArrayRef = Arc::new(Float64Array::from(vec![1e20, 1.0, 1.0, 3.0]));
        let field = Arc::new(arrow::datatypes::Field::new("v", DataType::Float64, true));
        let schema = Schema::new(vec![field.clone()]);
        let function = framed(&var_pop_udaf(), &[DataType::Float64], false, true).unwrap();
        let mut sliding = function
            .create_sliding_accumulator(AccumulatorArgs {
                return_field: field.clone(),
                schema: &schema,
                ignore_nulls: false,
                order_bys: &[],
                is_reversed: false,
                name: "v",
                is_distinct: false,
                exprs: &[col("v", &schema).unwrap()],
                expr_fields: &[field],
            })
            .unwrap();
        let slice = |first: usize, rows: usize| [values.slice(first, rows)];
        sliding.update_batch(&slice(0, 2)).unwrap();
        sliding.evaluate().unwrap();
        sliding.update_batch(&slice(2, 1)).unwrap();
        sliding.retract_batch(&slice(0, 1)).unwrap();
        assert_eq!(sliding.evaluate().unwrap(), ScalarValue::Float64(Some(0.0)));
        sliding.update_batch(&slice(3, 1)).unwrap();
        sliding.retract_batch(&slice(1, 1)).unwrap();
        assert_eq!(sliding.evaluate().unwrap(), ScalarValue::Float64(Some(1.0)));
        sliding.retract_batch(&slice(2, 2)).unwrap();
        assert_eq!(sliding.evaluate().unwrap(), ScalarValue::Float64(None));
        sliding.update_batch(&slice(1, 3)).unwrap();
        sliding.retract_batch(&slice(1, 1)).unwrap();
        assert_eq!(sliding.evaluate().unwrap(), ScalarValue::Float64(Some(1.0)));
    }

    #[test]
    fn exact_functions_without_an_order_stay() {
        let (ints, floats) = ([DataType::Int64], [DataType::Float64]);
        assert!(framed(&sum_udaf(), &ints, false, true).is_none());
        assert!(framed(&sum_udaf(), &floats, false, false).is_none());
        assert!(framed(&sum_udaf(), &ints, true, true).is_some());
        let sum = framed(&sum_udaf(), &floats, false, true).unwrap();
        assert!(framed(&sum, &floats, false, true).is_none());
    }

    #[test]
    fn functions_over_frames_state_no_order() {
        for is_moving in [false, true] {
            let count = framed(&count_udaf(), &[DataType::Int64], false, is_moving).unwrap();
            assert_eq!(count.inner().set_monotonicity(&DataType::Int64), SetMonotonicity::NotMonotonic);
        }
    }
}
