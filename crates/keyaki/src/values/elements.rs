//! Functions of arrays and elements.
//!
//! Elements have a common type: floats beside decimals, decimals with the digits of all, and BYTEA beside literals.
//! Lists of other layouts become plain lists. `array_remove(a, NULL)` removes the elements that are NULL.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::filter;
use arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature};

use super::byte_strings::is_binary;
use super::functions::{arrays, coerced, of_inner, result};
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
    ScalarUDF::new_from_impl(OfElements { inner, signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OfElements {
    inner: Arc<ScalarUDF>,
    signature: Signature,
}

impl ScalarUDFImpl for OfElements {
    of_inner!(name, aliases, return_type, return_field_from_args, simplify, documentation);

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let count = match self.name() {
            // Behind them is a place or a number.
            "array_position" | "array_remove_n" => 2,
            "array_replace_n" => 3,
            _ => types.len(),
        };
        let (values, others) = types.split_at(count.min(types.len()));
        let common = common(values);
        let values = values.iter().map(|ty| with_innermost(ty, common.as_ref()));
        coerced(&self.inner, &values.chain(others.iter().cloned()).collect::<Vec<_>>())
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

/// The type to which elements are converted; `None` if DataFusion finds it.
fn common(types: &[DataType]) -> Option<DataType> {
    let mut elements: Vec<&DataType> = types.iter().map(innermost).filter(|ty| !ty.is_null()).collect();
    elements.dedup();
    if elements.len() < 2 {
        return None;
    }
    let any = |is: fn(&DataType) -> bool| elements.iter().any(|ty| is(ty));
    if any(DataType::is_decimal) && elements.iter().all(|ty| ty.is_numeric()) {
        let (first, others) = elements.split_first()?;
        return match any(DataType::is_floating) {
            true => Some(DataType::Float64),
            false => others.iter().try_fold((*first).clone(), |common, ty| comparison_coercion(&common, ty)),
        };
    }
    let is_text_or_bytes = |ty: &&DataType| is_binary(ty) || ty.is_string();
    (any(is_binary) && elements.iter().all(is_text_or_bytes)).then_some(DataType::BinaryView)
}

/// A type of plain lists with other elements; for values that are not lists, the type of the elements.
fn with_innermost(ty: &DataType, element: Option<&DataType>) -> DataType {
    match (element_type(ty), element) {
        (Some(inner), _) => list_of(with_innermost(inner, element)),
        (None, Some(element)) if !ty.is_null() => element.clone(),
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
    fn elements_have_a_common_type() {
        let decimal = |precision, scale| DataType::Decimal128(precision, scale);
        for (a, b, expected) in [
            (decimal(2, 1), DataType::Float32, Some(DataType::Float64)),
            (decimal(2, 1), decimal(4, 3), Some(decimal(4, 3))),
            (decimal(10, 1), decimal(4, 3), Some(decimal(12, 3))),
            (decimal(2, 1), DataType::Int64, Some(decimal(21, 1))),
            (DataType::BinaryView, DataType::Utf8, Some(DataType::BinaryView)),
            (DataType::Int32, DataType::Int64, None),
            (decimal(2, 1), DataType::Null, None),
        ] {
            assert_eq!(common(&[list_of(a), b]), expected);
        }
        let large = DataType::LargeList(Arc::new(arrow::datatypes::Field::new_list_field(DataType::Int32, true)));
        assert_eq!(with_innermost(&large, None), list_of(DataType::Int32));
        assert_eq!(with_innermost(&list_of(large), Some(&DataType::Int64)), list_of(list_of(DataType::Int64)));
    }
}
