//! Tests of missing values: schemas with them, and pages, rows and upserts with fewer columns.

use super::*;
use crate::base::{Error, Reader};

/// A schema of a key, and a column of each type with a missing value, every other one of which is nullable.
fn extended() -> (Schema, Vec<Value>) {
    let types = value_types();
    let column = |(i, &ty): (usize, &ColumnType)| Column { name: format!("c{i}"), ty, nullable: i % 2 == 0 };
    let key = Column { name: "key".into(), ty: ColumnType::Int64, nullable: false };
    let columns = std::iter::once(key).chain(types.iter().enumerate().map(column)).collect();
    let values: Vec<Value> =
        types.iter().enumerate().map(|(i, &ty)| value_of(ty, 1234 + i as i64, b"missing value")).collect();
    let mut schema = Schema::new(columns, 1);
    for (i, value) in values.iter().enumerate() {
        schema = schema.with_missing(i + 1, &array_of(types[i], std::slice::from_ref(value))).unwrap();
    }
    (schema, values)
}

fn encoded(schema: &Schema) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_schema(schema, &mut bytes);
    bytes
}

#[test]
fn schemas_round_trip() {
    let (schema, values) = extended();
    for schema in [schema.clone(), schema.clone().sampled(), Schema::key_value()] {
        let bytes = encoded(&schema);
        let mut reader = Reader::new(&bytes);
        assert_eq!(decode_schema(&mut reader).unwrap(), schema);
        assert!(reader.is_empty());
    }
    for (i, value) in values.iter().enumerate() {
        assert_eq!(schema.missing_value(i + 1), value.scalar(), "{:?}", schema.columns()[i + 1]);
    }
    assert_eq!(schema.missing_value(0), Scalar::Null);
}

#[test]
fn damaged_schemas_are_refused_or_sound() {
    let (schema, _) = extended();
    let bytes = encoded(&schema);
    for len in 0..bytes.len() {
        assert!(decode_schema(&mut Reader::new(&bytes[..len])).is_err(), "{len} of {} bytes", bytes.len());
    }
    for at in 0..bytes.len() {
        for flip in [1, 2, 4, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let Ok(schema) = decode_schema(&mut Reader::new(&damaged)) else { continue };
            for (i, column) in schema.columns().iter().enumerate() {
                let mut builder = ColumnBuilder::new(column.ty, 0);
                builder.append_scalar(schema.missing_value(i), 2);
                builder.finish().to_data().validate_full().unwrap();
                assert!(schema.missing(i).is_none() || schema.missing_value(i) != Scalar::Null);
            }
        }
    }
}

/// The encoding of a schema whose last column has a missing value of these bytes.
fn with_bytes(ty: ColumnType, key_columns: usize, value: &[u8]) -> Vec<u8> {
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: false };
    let mut bytes = encoded(&Schema::new(vec![column("k", ColumnType::Int64), column("v", ty)], key_columns));
    *bytes.last_mut().unwrap() = 2;
    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(value);
    bytes
}

#[test]
fn invalid_missing_values_are_refused() {
    let decodes = |bytes: Vec<u8>| decode_schema(&mut Reader::new(&bytes)).is_ok();
    assert!(decodes(with_bytes(ColumnType::Int32, 1, &[1, 2, 3, 4])));
    assert!(!decodes(with_bytes(ColumnType::Int32, 2, &[1, 2, 3, 4])), "a key column");
    assert!(
        !decodes(with_bytes(ColumnType::Int32, 1, &[1, 2, 3])) && !decodes(with_bytes(ColumnType::Int32, 1, &[0; 5]))
    );
    assert!(decodes(with_bytes(ColumnType::Boolean, 1, &[1])) && !decodes(with_bytes(ColumnType::Boolean, 1, &[2])));
    assert!(decodes(with_bytes(ColumnType::Bytes, 1, b"\xff")) && !decodes(with_bytes(ColumnType::Text, 1, b"\xff")));
    let list = ColumnType::List(ListType::of(ColumnType::Text).unwrap());
    assert!(decodes(with_bytes(list, 1, &[])) && !decodes(with_bytes(list, 1, &[0])));
    assert!(decodes(with_bytes(ColumnType::Text, 1, &[b'a'; 1 << 10])));
    assert!(!decodes(with_bytes(ColumnType::Text, 1, &[b'a'; (1 << 10) + 1])), "too long");
    let mut flags = encoded(&Schema::key_value());
    *flags.last_mut().unwrap() = 4;
    assert!(!decodes(flags));
}

#[test]
fn missing_values_must_fit_their_column() {
    let (schema, _) = extended();
    let number = |values: &[Value]| array_of(ColumnType::Int8, values);
    // The column of `TYPES[1]`, 8-bit integers, is not nullable; that of `TYPES[0]` is.
    let result = |column: usize, array: &ArrayRef| schema.clone().with_missing(column, array);
    assert!(matches!(result(1, &number(&[Value::Word(1)])), Err(Error::ColumnType { .. })));
    assert!(matches!(result(2, &number(&[Value::Null])), Err(Error::NullValue { .. })));
    assert!(matches!(result(2, &number(&[Value::Word(1), Value::Word(1)])), Err(Error::ColumnCount { .. })));
    let text = schema.columns().iter().position(|column| column.ty == ColumnType::Text).unwrap();
    let long = array_of(ColumnType::Text, &[Value::Bytes(vec![b'a'; 20_000])]);
    assert!(matches!(result(text, &long), Err(Error::TooLarge { .. })));
    let cleared = result(1, &array_of(ColumnType::Boolean, &[Value::Null])).unwrap();
    assert_eq!(cleared.missing_value(1), Scalar::Null);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn pages_and_rows_with_fewer_columns_have_missing_values(table in table(100)) {
        let (others, values) = extended();
        let mut columns = table.schema.columns().to_vec();
        let written = columns.len();
        columns.extend_from_slice(&others.columns()[1..]);
        let mut schema = Schema::new(columns, table.schema.key_columns());
        for i in 1..others.columns().len() {
            schema = schema.set_missing(written + i - 1, others.missing(i).map(Into::into));
        }
        prop_assert!(schema.extends(&table.schema));
        let schema = Arc::new(schema);
        let rows = table.rows();
        let lacking: Vec<ArrayRef> =
            values.iter().enumerate().map(|(i, v)| array_of(others.columns()[i + 1].ty, &vec![v.clone(); rows])).collect();
        let expected: Vec<ArrayRef> = table.columns.iter().cloned().chain(lacking).collect();
        // A page that was opened for the old schema, and one that is opened for the new one.
        let (bytes, old) = page_of(&table, 1 << 20, 0, None);
        prop_assert_eq!(old.rows(), rows);
        let place = PageRef {
            len: bytes.len() as u32,
            checksum: u32::from_le_bytes(bytes[4..8].try_into().unwrap()),
            ..PLACE
        };
        let new = Page::open(&bytes, place, &schema, &test_path()).unwrap();
        let (codec, old_codec) = (RowCodec::new(&schema), RowCodec::new(&table.schema));
        for page in [&old, &new] {
            assert_same(&schema, &decoded(page, &schema, 0..rows), &expected);
            let selection: Vec<u32> = (0..rows as u32).step_by(2).collect();
            for (i, column) in schema.columns().iter().enumerate().skip(written) {
                let mut builder = ColumnBuilder::new(column.ty, 0);
                page.append_selected(i, &selection, &schema, &mut builder);
                prop_assert!(builder.finish().to_data() == expected[i].slice(0, selection.len()).to_data());
            }
            for row in 0..rows {
                let (mut found, mut value) = (Vec::new(), Vec::new());
                page.value(row, &codec, &mut found);
                codec.encode(&expected, row, &mut value);
                prop_assert_eq!(&found, &value);
                // The buffered row of the old schema.
                let mut buffered = Vec::new();
                old_codec.encode(&table.columns, row, &mut buffered);
                prop_assert_eq!(codec.widened(&old_codec, &buffered), Some(value));
            }
        }
        // Without missing values, a page may lack only nullable columns.
        let bare = Arc::new(Schema::new(schema.columns().to_vec(), schema.key_columns()));
        prop_assert!(Page::open(&bytes, place, &bare, &test_path()).is_err());
        prop_assert!(!bare.extends(&table.schema));
    }
}
