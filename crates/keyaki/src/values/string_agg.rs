//! The aggregate function `string_agg`, of texts and of BYTEA.
//!
//! DataFusion has texts with a constant delimiter. [`ByRow`] collects pairs of a value and the delimiter of its row,
//! and concatenates them at the end. It aggregates BYTEA, and texts under the name [`BY_ROW`].
//!
//! DataFusion requires the order of `string_agg(… ORDER BY …)` of the input, and refuses an aggregation with two
//! orders. Its accumulator sorts its rows in any case. For [`StringAgg`], sorted input is only an optimization.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewBuilder, BooleanArray, RecordBatch, RecordBatchOptions, StructArray,
};
use arrow::compute::{and, cast, filter, is_not_null};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_aggregate::array_agg::array_agg_udaf;
use datafusion::functions_aggregate::string_agg::string_agg_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, Signature, Volatility,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;

use super::byte_strings::is_binary;
use super::functions::{of_inner, undefined};
use crate::Error;
use crate::base::arrays::list_of;

/// The name of the function of texts whose delimiters are not constant.
pub(crate) const BY_ROW: &str = "string_agg_by_row";

/// The function.
pub(crate) fn string_agg() -> AggregateUDF {
    function(false)
}

/// The function [`BY_ROW`].
pub(crate) fn string_agg_by_row() -> AggregateUDF {
    function(true)
}

fn function(is_by_row: bool) -> AggregateUDF {
    let signature = Signature::user_defined(Volatility::Immutable);
    AggregateUDF::new_from_impl(StringAgg { inner: string_agg_udaf(), is_by_row, signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct StringAgg {
    /// DataFusion's function.
    inner: Arc<AggregateUDF>,
    is_by_row: bool,
    signature: Signature,
}

impl StringAgg {
    /// True if values of a type are collected with their delimiters.
    fn has_pairs(&self, ty: &DataType) -> bool {
        self.is_by_row || is_binary(ty)
    }
}

/// The type of concatenated values.
fn returned(ty: &DataType) -> DataType {
    if is_binary(ty) { DataType::BinaryView } else { DataType::Utf8View }
}

/// A value and the delimiter before it.
fn pair(ty: &DataType) -> Fields {
    Fields::from(vec![Field::new("value", ty.clone(), true), Field::new("delimiter", ty.clone(), true)])
}

fn pair_field(ty: &DataType) -> FieldRef {
    Arc::new(Field::new("pair", DataType::Struct(pair(ty)), true))
}

impl AggregateUDFImpl for StringAgg {
    of_inner!(documentation);

    fn name(&self) -> &str {
        if self.is_by_row { BY_ROW } else { self.inner.name() }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [value, delimiter] = types else { return Err(undefined("string_agg", types)) };
        if is_binary(value) || value.is_null() && is_binary(delimiter) {
            // A literal beside bytes is a text.
            return match is_binary(delimiter) || delimiter.is_string() || delimiter.is_null() {
                true => Ok(vec![DataType::BinaryView; 2]),
                false => Err(undefined("string_agg", types)),
            };
        }
        let field = |ty: &DataType| -> FieldRef { Arc::new(Field::new("", ty.clone(), true)) };
        let fields: Vec<FieldRef> = types.iter().map(field).collect();
        let fields = fields_with_udf(&fields, self.inner.as_ref()).map_err(|_| undefined("string_agg", types))?;
        Ok(match self.is_by_row {
            // ORDER BY of DISTINCT values has the type of the argument.
            true if value.is_string() => vec![value.clone(); 2],
            true => vec![DataType::Utf8View; 2],
            false => fields.iter().map(|field| field.data_type().clone()).collect(),
        })
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match self.has_pairs(&types[0]) {
            true => Ok(returned(&types[0])),
            false => self.inner.return_type(types),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let ty = args.expr_fields[0].data_type();
        if !self.has_pairs(ty) {
            let exprs = with_literal(args.exprs)?;
            return self.inner.accumulator(AccumulatorArgs { exprs: &exprs, ..args });
        }
        let fields = pair(ty);
        let inner = of_pairs(args, |args| array_agg_udaf().accumulator(args))?;
        Ok(Box::new(ByRow { inner, fields }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let ty = args.input_fields[0].data_type();
        if !self.has_pairs(ty) {
            return self.inner.state_fields(args);
        }
        array_agg_udaf().state_fields(StateFieldsArgs { input_fields: &[pair_field(ty)], ..args })
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        match self.has_pairs(args.expr_fields[0].data_type()) {
            true => array_agg_udaf().groups_accumulator_supported(args),
            false => self.inner.groups_accumulator_supported(args),
        }
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let ty = args.expr_fields[0].data_type();
        if !self.has_pairs(ty) {
            let exprs = with_literal(args.exprs)?;
            return self.inner.create_groups_accumulator(AccumulatorArgs { exprs: &exprs, ..args });
        }
        let fields = pair(ty);
        let inner = of_pairs(args, |args| array_agg_udaf().create_groups_accumulator(args))?;
        Ok(Box::new(GroupsByRow { inner, fields }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::SoftRequirement
    }

    fn with_beneficial_ordering(self: Arc<Self>, _: bool) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        Ok(Some(self))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Reversed(Arc::new(function(self.is_by_row)))
    }
}

/// An accumulator of `array_agg` for pairs.
fn of_pairs<T>(args: AccumulatorArgs, make: impl FnOnce(AccumulatorArgs) -> Result<T>) -> Result<T> {
    let pair = pair_field(args.expr_fields[0].data_type());
    make(AccumulatorArgs {
        return_field: Arc::new(Field::new("pairs", list_of(pair.data_type().clone()), true)),
        // An order of DISTINCT values is that of the pairs, which begin with the value.
        exprs: &args.exprs[..1],
        expr_fields: &[pair],
        ..args
    })
}

/// The arguments with a literal for the delimiter, which may be an expression without columns.
fn with_literal(args: &[Arc<dyn PhysicalExpr>]) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
    let mut args = args.to_vec();
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)?;
    let delimiter = args[1].evaluate(&row)?.into_array(1)?;
    args[1] = Arc::new(Literal::new(ScalarValue::try_from_array(&delimiter, 0)?));
    Ok(args)
}

#[derive(Debug)]
struct ByRow {
    /// Collects the pairs of values that are not NULL.
    inner: Box<dyn Accumulator>,
    fields: Fields,
}

impl Accumulator for ByRow {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let mut values = values.to_vec();
        if values[0].null_count() > 0 {
            let is_value = is_not_null(&values[0])?;
            for array in &mut values {
                *array = filter(array, &is_value)?;
            }
        }
        let pairs = StructArray::try_new(self.fields.clone(), values.drain(..2).collect(), None)?;
        values.insert(0, Arc::new(pairs));
        self.inner.update_batch(&values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let ty = returned(self.fields[0].data_type());
        let ScalarValue::List(pairs) = self.inner.evaluate()? else { return ScalarValue::try_from(&ty) };
        if pairs.is_null(0) || pairs.value_length(0) == 0 {
            return ScalarValue::try_from(&ty);
        }
        let bytes = concatenated(pairs.value(0).as_struct())?;
        match ty {
            DataType::BinaryView => Ok(ScalarValue::BinaryView(Some(bytes))),
            _ => {
                let text =
                    String::from_utf8(bytes).map_err(|_| Error::Internal("string_agg of invalid texts".into()))?;
                Ok(ScalarValue::Utf8View(Some(text)))
            }
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }
}

/// [`ByRow`] for many groups.
struct GroupsByRow {
    /// Collects the pairs of values that are not NULL.
    inner: Box<dyn GroupsAccumulator>,
    fields: Fields,
}

impl GroupsByRow {
    /// The pairs of rows, and a filter for those with a value.
    fn pairs(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<(ArrayRef, BooleanArray)> {
        let is_value = is_not_null(&values[0])?;
        let filter = filter.map_or(Ok(is_value.clone()), |filter| and(filter, &is_value))?;
        let pairs = StructArray::try_new(self.fields.clone(), values[..2].to_vec(), None)?;
        Ok((Arc::new(pairs), filter))
    }
}

impl GroupsAccumulator for GroupsByRow {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        let (pairs, filter) = self.pairs(values, filter)?;
        self.inner.update_batch(&[pairs], groups, Some(&filter), total)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let ty = returned(self.fields[0].data_type());
        let lists = self.inner.evaluate(emit_to)?;
        let lists = lists.as_list::<i32>();
        let mut builder = BinaryViewBuilder::with_capacity(lists.len());
        for pairs in lists.iter() {
            match pairs.filter(|pairs| !pairs.is_empty()) {
                Some(pairs) => builder.append_value(concatenated(pairs.as_struct())?),
                None => builder.append_null(),
            }
        }
        let bytes: ArrayRef = Arc::new(builder.finish());
        Ok(if ty == DataType::BinaryView { bytes } else { cast(&bytes, &ty)? })
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.inner.state(emit_to)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.inner.merge_batch(states, groups, total)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let (pairs, filter) = self.pairs(values, filter)?;
        self.inner.convert_to_state(&[pairs], Some(&filter))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }
}

/// The values of pairs, with the delimiters of all but the first before them. NULL stands for no delimiter.
fn concatenated(pairs: &StructArray) -> Result<Vec<u8>> {
    let bytes_of = |column: &ArrayRef| cast(&cast(column, &returned(column.data_type()))?, &DataType::BinaryView);
    let (values, delimiters) = (bytes_of(pairs.column(0))?, bytes_of(pairs.column(1))?);
    let mut bytes = Vec::new();
    for (i, (value, delimiter)) in values.as_binary_view().iter().zip(delimiters.as_binary_view()).enumerate() {
        if i > 0 {
            bytes.extend_from_slice(delimiter.unwrap_or_default());
        }
        bytes.extend_from_slice(value.unwrap_or_default());
    }
    Ok(bytes)
}
