//! Functions of arrays and elements: a decimal beside an array of floats is a float, and `array_remove(a, NULL)`
//! removes the elements that are NULL.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::filter;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

use super::functions::{arrays, coerced, result};
use crate::base::arrays::{element_type, innermost, list_of, lists};

/// The functions that [`function`] wraps.
pub(crate) const NAMES: [&str; 11] = [
    "array_append",
    "array_has",
    "array_position",
    "array_positions",
    "array_prepend",
    "array_remove",
    REMOVE_ALL,
    "array_remove_n",
    "array_replace",
    "array_replace_all",
    "array_replace_n",
];
/// Removes all elements that are equal to one, or NULL.
const REMOVE_ALL: &str = "array_remove_all";

/// The function in place of one of DataFusion's.
pub(crate) fn function(inner: Arc<ScalarUDF>) -> ScalarUDF {
    let signature = Signature::user_defined(inner.signature().volatility);
    ScalarUDF::new_from_impl(OfElements { aliases: inner.aliases().to_vec(), inner, signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OfElements {
    inner: Arc<ScalarUDF>,
    aliases: Vec<String>,
    signature: Signature,
}

impl ScalarUDFImpl for OfElements {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let innermost_types = || types.iter().map(innermost);
        let has_floats = innermost_types().any(DataType::is_floating) && innermost_types().any(DataType::is_decimal);
        let types: Vec<DataType> = match has_floats {
            true => types.iter().map(of_floats).collect(),
            false => types.to_vec(),
        };
        coerced(&self.inner, &types)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.inner.simplify(args, info)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if self.name() != REMOVE_ALL || args.args.len() != 2 {
            return self.inner.invoke_with_args(args);
        }
        let (arrays, is_single) = arrays(&args)?;
        let (all, elements) = (&arrays[0], &arrays[1]);
        let nulls = elements.logical_null_count();
        match lists(all)? {
            Some(lists) if nulls > 0 => {
                let is_null = |row: usize| elements.is_null(row) || elements.data_type().is_null();
                let without = ColumnarValue::Array(Arc::new(without_nulls(&lists, is_null)?));
                if nulls == elements.len() {
                    return result(without.to_array(lists.len())?, is_single);
                }
                // The other function leaves rows whose element is NULL out.
                let others = self.inner.invoke_with_args(args)?.to_array(lists.len())?;
                let picked: BooleanArray = (0..lists.len()).map(|row| Some(is_null(row))).collect();
                let without = arrow::compute::cast(&without.to_array(lists.len())?, others.data_type())?;
                result(arrow::compute::kernels::zip::zip(&picked, &without, &others)?, is_single)
            }
            _ => self.inner.invoke_with_args(args),
        }
    }
}

/// Floats, in arrays of the dimensions of a type of decimals; the type itself for others.
fn of_floats(ty: &DataType) -> DataType {
    match element_type(ty) {
        Some(element) if innermost(ty).is_decimal() => list_of(of_floats(element)),
        None if ty.is_decimal() => DataType::Float64,
        _ => ty.clone(),
    }
}

/// The lists of rows without their elements that are NULL. The lists of other rows stay.
fn without_nulls(lists: &ListArray, is_chosen: impl Fn(usize) -> bool) -> Result<ListArray> {
    let values = lists.values();
    let offsets = lists.value_offsets();
    let mut kept = vec![false; values.len()];
    let mut lengths = Vec::with_capacity(lists.len());
    for row in 0..lists.len() {
        let mut length = 0;
        if lists.is_valid(row) {
            let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
            for (i, kept) in kept[start..end].iter_mut().enumerate() {
                *kept = !is_chosen(row) || values.is_valid(start + i);
                length += usize::from(*kept);
            }
        }
        lengths.push(length);
    }
    let values: ArrayRef = filter(values, &BooleanArray::from(kept))?;
    let DataType::List(field) = lists.data_type() else { return Ok(lists.clone()) };
    Ok(ListArray::try_new(field.clone(), OffsetBuffer::from_lengths(lengths), values, lists.nulls().cloned())?)
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn nulls_are_removed_from_the_chosen_rows() {
        let given = vec![Some(vec![Some(1), None, Some(2)]), None, Some(vec![None]), Some(vec![])];
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(given);
        let expected = vec![Some(vec![Some(1), Some(2)]), None, Some(vec![None]), Some(vec![])];
        let without = without_nulls(&lists, |row| row != 2).unwrap();
        assert_eq!(without, ListArray::from_iter_primitive::<Int32Type, _, _>(expected));
    }

    #[test]
    fn decimals_beside_floats_are_floats() {
        let decimal = DataType::Decimal128(2, 1);
        assert_eq!(of_floats(&decimal), DataType::Float64);
        assert_eq!(of_floats(&list_of(decimal)), list_of(DataType::Float64));
        assert_eq!(of_floats(&DataType::Int64), DataType::Int64);
    }
}
