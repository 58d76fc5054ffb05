//! The elements of an array among single values.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, NullArray, StringViewArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field};

use super::arrays::{element_type, put_element};
use super::value::{Value, ValueRef, value_at};

/// The elements of a [`ValueRef::Array`].
#[derive(Clone, Copy)]
pub struct Elements<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    Values(&'a [Value]),
    /// Elements of an Arrow array of a type that [`value_at`] reads.
    Arrow {
        elements: &'a dyn Array,
        start: usize,
        len: usize,
    },
}

impl<'a> Elements<'a> {
    /// The elements of the list in a row.
    pub(super) fn of_list(lists: &'a ListArray, row: usize) -> Elements<'a> {
        let (offsets, len) = (lists.value_offsets(), lists.value_length(row));
        Elements(Source::Arrow { elements: lists.values(), start: offsets[row] as usize, len: len as usize })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self.0 {
            Source::Values(values) => values.len(),
            Source::Arrow { len, .. } => len,
        }
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at a position, from 0; `None` behind the last one.
    pub fn get(&self, index: usize) -> Option<ValueRef<'a>> {
        match self.0 {
            Source::Values(values) => values.get(index).map(Value::as_ref),
            Source::Arrow { len, .. } if index >= len => None,
            Source::Arrow { elements, start, .. } => value_at(elements, start + index),
        }
    }

    /// The elements in their order.
    pub fn iter(&self) -> impl Iterator<Item = ValueRef<'a>> + use<'a> {
        let elements = *self;
        (0..elements.len()).filter_map(move |index| elements.get(index))
    }

    /// An array of one list. Elements of different types become texts, unless all are numbers.
    pub(super) fn to_array(self) -> ArrayRef {
        let arrays: Vec<ArrayRef> = self.iter().map(ValueRef::to_array).collect();
        let ty = common(arrays.iter().map(|array| array.data_type()));
        let converted = ty.and_then(|ty| {
            let arrays = arrays.iter().map(|array| cast(array, &ty)).collect::<Result<Vec<_>, _>>().ok()?;
            let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
            concat(&arrays).ok()
        });
        let elements = converted.unwrap_or_else(|| {
            let text = |element: ValueRef<'_>| (!element.is_null()).then(|| element.to_string());
            match self.is_empty() {
                true => Arc::new(NullArray::new(0)),
                false => Arc::new(self.iter().map(text).collect::<StringViewArray>()),
            }
        });
        let field = Arc::new(Field::new_list_field(elements.data_type().clone(), true));
        Arc::new(ListArray::new(field, OffsetBuffer::from_lengths([elements.len()]), elements, None))
    }
}

/// The type of elements of different types; `None` if there is none that represents all of them.
fn common<'t>(mut types: impl Iterator<Item = &'t DataType>) -> Option<DataType> {
    let first = types.next()?.clone();
    types.try_fold(first, |a, b| merged(&a, b))
}

fn merged(a: &DataType, b: &DataType) -> Option<DataType> {
    match (a, b) {
        (a, b) if a == b => Some(a.clone()),
        (DataType::Null, ty) | (ty, DataType::Null) => Some(ty.clone()),
        (DataType::Int64, DataType::Float64) | (DataType::Float64, DataType::Int64) => Some(DataType::Float64),
        (a, b) => {
            let element = merged(element_type(a)?, element_type(b)?)?;
            Some(DataType::List(Arc::new(Field::new_list_field(element, true))))
        }
    }
}

/// True if [`value_at`] reads lists of this type.
pub(super) fn has_elements(ty: &DataType) -> bool {
    matches!(ty, DataType::List(field) if super::value::has_values(field.data_type()))
}

/// The elements of a row of an array of lists; `None` for other types.
pub(super) fn elements_at(array: &dyn Array, row: usize) -> Option<ValueRef<'_>> {
    has_elements(array.data_type()).then(|| ValueRef::Array(Elements::of_list(array.as_list(), row)))
}

impl<'a> From<&'a [Value]> for Elements<'a> {
    fn from(values: &'a [Value]) -> Self {
        Elements(Source::Values(values))
    }
}

impl PartialEq for Elements<'_> {
    fn eq(&self, other: &Elements<'_>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Elements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Display for Elements<'_> {
    /// The text of the array, as PostgreSQL prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::from("{");
        for (i, element) in self.iter().enumerate() {
            if i > 0 {
                text.push(',');
            }
            match element {
                ValueRef::Null => text.push_str("NULL"),
                element => put_element(&element.to_string(), matches!(element, ValueRef::Array(_)), &mut text),
            }
        }
        text.push('}');
        f.write_str(&text)
    }
}
