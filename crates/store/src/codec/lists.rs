//! The encoding of lists as byte strings, in rows of messages and in pages.
//!
//! ```text
//! head       varint: 2 × number of elements, plus 1 if an element is null
//! nulls      if an element is null: one bit per element, set if null (bit i % 8 of byte i / 8; unused bits are clear)
//! elements   of fixed length: little endian in their own width, as in rows, zero if null
//!            otherwise: a varint for the length of each element, 0 if null; then text, bytes or lists, concatenated
//! ```
//!
//! The empty list has no bytes. Each element takes at least one byte, which bounds the memory that hostile bytes can
//! claim.
//!
//! *Invariant.* [`decode`] gets lists that [`encode`] has made or [`is_sound`] has accepted. Others lose elements.

use std::sync::Arc;

use arrow_array::{Array, BinaryViewArray, ListArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::Field;

use super::ColumnBuilder;
use super::scalar::{Scalar, Values, fixed_len};
use super::varint::{Reader, put_varint};
use super::views::ViewBuilder;
use crate::base::{ColumnType, ListType};

/// The encodings of the lists of an array, with no bytes for nulls.
///
/// # Panics
/// If the array does not have the Arrow type of lists of type `ty`.
pub(crate) fn encode(array: &ListArray, ty: ListType) -> BinaryViewArray {
    let offsets = array.value_offsets();
    let (first, last) = (offsets[0] as usize, offsets[array.len()] as usize);
    let element = ty.element();
    let elements = array.values().slice(first, last - first);
    let values = Values::new(&elements, element);
    let (mut views, mut list) = (ViewBuilder::with_capacity(array.len()), Vec::new());
    for row in 0..array.len() {
        list.clear();
        if array.is_valid(row) {
            let elements = offsets[row] as usize - first..offsets[row + 1] as usize - first;
            put(elements.len(), element, |i| values.get(elements.start + i), &mut list);
        }
        views.push(&list, &[]);
    }
    let (views, buffers) = views.finish();
    // SAFETY: every view lies within its buffer (`ViewBuilder` made them).
    unsafe { BinaryViewArray::new_unchecked(views, buffers, array.nulls().cloned()) }
}

/// Appends the encoding of a list of `len` elements.
pub(super) fn put<'a>(len: usize, element: ColumnType, scalar: impl Fn(usize) -> Scalar<'a>, out: &mut Vec<u8>) {
    if len == 0 {
        return;
    }
    let has_nulls = (0..len).any(|i| scalar(i) == Scalar::Null);
    put_varint((len as u64) << 1 | u64::from(has_nulls), out);
    if has_nulls {
        let start = out.len();
        out.resize(start + len.div_ceil(8), 0);
        for i in (0..len).filter(|&i| scalar(i) == Scalar::Null) {
            out[start + i / 8] |= 1 << (i % 8);
        }
    }
    if let Some(width) = fixed_len(element) {
        for i in 0..len {
            let number = match scalar(i) {
                Scalar::Word(word) => i128::from(word),
                Scalar::Wide(wide) => wide,
                Scalar::Null | Scalar::Bytes(..) => 0,
            };
            out.extend_from_slice(&number.to_le_bytes()[..width]);
        }
        return;
    }
    let bytes = |i| match scalar(i) {
        Scalar::Bytes(head, tail) => (head, tail),
        _ => (&[][..], &[][..]),
    };
    for (head, tail) in (0..len).map(bytes) {
        put_varint((head.len() + tail.len()) as u64, out);
    }
    for (head, tail) in (0..len).map(bytes) {
        out.extend_from_slice(head);
        out.extend_from_slice(tail);
    }
}

/// Calls `take` with each element of an encoded list; `None` if the bytes are no encoding of a list. With `deep`, elements
/// are checked, too.
fn for_elements<'a>(list: &'a [u8], element: ColumnType, deep: bool, mut take: impl FnMut(Scalar<'a>)) -> Option<()> {
    if list.is_empty() {
        return Some(());
    }
    let mut reader = Reader::new(list);
    let head = reader.varint()?;
    let (len, has_nulls) = (usize::try_from(head >> 1).ok()?, head & 1 == 1);
    // An element takes at least a byte.
    if len == 0 || len > list.len() {
        return None;
    }
    let nulls = if has_nulls { reader.skip(len.div_ceil(8))? } else { 0 };
    let is_null = |i: usize| has_nulls && list[nulls + i / 8] >> (i % 8) & 1 == 1;
    if let Some(width) = fixed_len(element) {
        let values = &list[reader.skip(len.checked_mul(width)?)?..];
        if values.len() != len * width {
            return None;
        }
        for (i, value) in values.chunks_exact(width).enumerate() {
            if is_null(i) {
                take(Scalar::Null);
                continue;
            }
            let mut bytes = [0; 16];
            bytes[..width].copy_from_slice(value);
            let number = i128::from_le_bytes(bytes);
            if element == ColumnType::Boolean && number > 1 {
                return None;
            }
            let unused = 128 - 8 * width as u32;
            let number = number << unused >> unused;
            take(if element.is_wide() { Scalar::Wide(number) } else { Scalar::Word(number as i64) });
        }
        return Some(());
    }
    let mut lengths = reader;
    for _ in 0..len {
        reader.varint()?;
    }
    let mut rest = &list[reader.at..];
    for i in 0..len {
        let (value, after) = rest.split_at_checked(lengths.len()?)?;
        rest = after;
        if is_null(i) {
            take(Scalar::Null);
            continue;
        }
        if (deep || element == ColumnType::Text) && !is_sound(value, element) {
            return None;
        }
        take(Scalar::Bytes(value, &[]));
    }
    rest.is_empty().then_some(())
}

/// Returns true if the bytes are a value of type `ty`, which is text, bytes or a list.
pub(crate) fn is_sound(bytes: &[u8], ty: ColumnType) -> bool {
    match ty {
        ColumnType::Text => std::str::from_utf8(bytes).is_ok(),
        ColumnType::List(list) => for_elements(bytes, list.element(), true, |_| ()).is_some(),
        _ => true,
    }
}

/// The lists with these encodings.
///
/// # Panics
/// If they have 2^31 elements in all, and thus at least 2 GiB, which [`ColumnBuilder::check_lists`] refuses.
pub(crate) fn decode(lists: &BinaryViewArray, ty: ListType) -> ListArray {
    let element = ty.element();
    let mut values = ColumnBuilder::new(element, lists.len());
    let mut offsets = Vec::with_capacity(lists.len() + 1);
    offsets.push(0);
    for row in 0..lists.len() {
        if lists.is_valid(row) {
            // The value is sound. Otherwise the list ends with the last element before the damage.
            let _ = for_elements(lists.value(row), element, false, |value| {
                // SAFETY: `for_elements` checks that text is valid UTF-8.
                unsafe { values.push(value) };
            });
        }
        assert!(values.len() <= i32::MAX as usize, "{} elements in one array of lists", values.len());
        offsets.push(values.len() as i32);
    }
    let field = Arc::new(Field::new_list_field(element.arrow(), true));
    // The offsets ascend and end with the number of elements.
    let offsets = OffsetBuffer::new(offsets.into());
    let nulls: Option<NullBuffer> = lists.nulls().cloned();
    ListArray::new(field, offsets, values.finish(), nulls)
}
