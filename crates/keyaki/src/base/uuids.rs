//! UUIDs: 16 bytes, `FixedSizeBinary(16)` in Arrow. No other values of Keyaki have this type.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, FixedSizeBinaryBuilder, RecordBatch, StringViewArray,
};
use arrow::datatypes::{DataType, Field, Schema};
use uuid::Uuid;

use super::{arrays, intervals};

/// Bytes of a UUID.
pub(crate) const UUID_LEN: i32 = 16;
/// Hexadecimal digits of a UUID.
const DIGITS: usize = 32;
/// The type of arrays of UUIDs.
pub(crate) const UUID: DataType = DataType::FixedSizeBinary(UUID_LEN);

/// True for the type of UUIDs.
pub(crate) fn is_uuid(ty: &DataType) -> bool {
    *ty == UUID
}

/// Parses a text in one of PostgreSQL's formats: 32 hexadecimal digits, in braces or not, with hyphens behind any groups of
/// four digits.
pub(crate) fn parse(text: &str) -> Option<Uuid> {
    let text = text.trim_ascii();
    if let Ok(uuid) = Uuid::try_parse(text) {
        let is_urn = text.starts_with(|c: char| c.eq_ignore_ascii_case(&'u'));
        return (!is_urn).then_some(uuid);
    }
    let digits = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    let (mut value, mut count) = (0_u128, 0);
    let mut after_hyphen = true;
    for byte in digits.bytes() {
        if byte == b'-' {
            if after_hyphen || count % 4 != 0 {
                return None;
            }
            after_hyphen = true;
            continue;
        }
        value = value << 4 | u128::from(char::from(byte).to_digit(16)?);
        count += 1;
        after_hyphen = false;
        if count > DIGITS {
            return None;
        }
    }
    (count == DIGITS && !after_hyphen).then(|| Uuid::from_u128(value))
}

/// The UUID at a row of an array, which is valid.
pub(crate) fn uuid_at(array: &FixedSizeBinaryArray, row: usize) -> Uuid {
    Uuid::from_slice(array.value(row)).unwrap_or_default()
}

/// An array of UUIDs.
pub(crate) fn array(uuids: impl ExactSizeIterator<Item = Option<Uuid>>) -> FixedSizeBinaryArray {
    let mut builder = FixedSizeBinaryBuilder::with_capacity(uuids.len(), UUID_LEN);
    for uuid in uuids {
        match uuid {
            // The lengths agree.
            Some(uuid) => drop(builder.append_value(uuid.as_bytes())),
            None => builder.append_null(),
        }
    }
    builder.finish()
}

/// UUIDs as texts.
pub(crate) fn texts(array: &FixedSizeBinaryArray) -> StringViewArray {
    let mut buffer = Uuid::encode_buffer();
    let mut builder = arrow::array::StringViewBuilder::with_capacity(array.len());
    for row in 0..array.len() {
        match array.is_valid(row) {
            true => builder.append_value(uuid_at(array, row).hyphenated().encode_lower(&mut buffer)),
            false => builder.append_null(),
        }
    }
    builder.finish()
}

/// The rows with texts in place of values that Arrow does not print as SQL: UUIDs, intervals and arrays. For programs that
/// print results with Arrow.
pub fn printable(batch: &RecordBatch) -> RecordBatch {
    with_columns(batch, &printable_column)
}

/// As [`printable`], for Arrow's writer of JSON: arrays stay arrays, with texts in place of UUIDs and intervals.
pub fn printable_as_json(batch: &RecordBatch) -> RecordBatch {
    with_columns(batch, &printable_elements)
}

fn with_columns(batch: &RecordBatch, printable: &dyn Fn(&ArrayRef) -> ArrayRef) -> RecordBatch {
    if !batch.columns().iter().any(|column| is_unprintable(column.data_type())) {
        return batch.clone();
    }
    let schema = batch.schema();
    let columns: Vec<ArrayRef> = batch.columns().iter().map(printable).collect();
    let fields = schema.fields().iter().zip(&columns).map(|(field, column)| match is_unprintable(field.data_type()) {
        true => Arc::new(Field::new(field.name(), column.data_type().clone(), field.is_nullable())),
        false => field.clone(),
    });
    let schema = Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()));
    // The columns have the types of the fields, and one of them determines the number of rows.
    RecordBatch::try_new(schema, columns).unwrap_or_else(|_| batch.clone())
}

/// True for UUIDs, intervals and arrays.
fn is_unprintable(ty: &DataType) -> bool {
    is_uuid(ty) || intervals::is_interval(ty) || arrays::is_list(ty)
}

/// A column whose elements Arrow prints as SQL.
fn printable_elements(column: &ArrayRef) -> ArrayRef {
    match arrays::lists(column) {
        Ok(Some(lists)) => Arc::new(arrays::with_elements(&lists, printable_elements(lists.values()))),
        _ => printable_column(column),
    }
}

/// A column whose values Arrow prints as SQL.
fn printable_column(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        ty if arrays::is_list(ty) => match arrays::printed(column, &printable_column) {
            Some(texts) => Arc::new(texts),
            None => column.clone(),
        },
        ty if is_uuid(ty) => Arc::new(texts(column.as_fixed_size_binary())),
        _ => match intervals::intervals(column) {
            Some(intervals) => Arc::new(intervals::texts(&intervals)),
            None => column.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_postgresql_are_parsed() {
        let uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        for text in [
            uuid,
            "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
            " {a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11} ",
            "a0eebc999c0b4ef8bb6d6bb9bd380a11",
            "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11",
            "{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}",
        ] {
            assert_eq!(parse(text).map(|uuid| uuid.to_string()).as_deref(), Some(uuid), "{text}");
        }
        for text in [
            "",
            "a0eebc99",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a111",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g",
            "a0eebc9-99c0b-4ef8-bb6d-6bb9bd380a11",
            "a0eebc99--9c0b-4ef8-bb6d-6bb9bd380a11",
            "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11-",
            "urn:uuid:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn uuids_are_printed_as_texts() {
        let uuids = array([Some(Uuid::from_u128(1)), None].into_iter());
        let batch = RecordBatch::try_from_iter([("id", Arc::new(uuids) as ArrayRef)]).unwrap();
        let printed = printable(&batch);
        let texts = printed.column(0).as_string_view();
        assert_eq!(texts.value(0), "00000000-0000-0000-0000-000000000001");
        assert!(texts.is_null(1));
    }
}
