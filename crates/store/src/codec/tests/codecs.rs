//! Tests of the encodings of keys and of message rows.

use std::cmp::Ordering;

use super::*;
use crate::base::Error;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn keys_sort_as_their_values_and_round_trip(table in table(60)) {
        let codec = KeyCodec::new(&table.schema);
        codec.check(&table.columns).unwrap();
        let (bytes, offsets) = codec.encode_batch(&table.columns, 0..table.rows());
        let mut builders: Vec<_> = table.schema.columns().iter().map(|c| ColumnBuilder::new(c.ty, 0)).collect();
        let key_columns = table.schema.key_columns();
        for row in 0..table.rows() {
            let key = table.key(row);
            prop_assert_eq!(&key[..], &bytes[offsets[row]..offsets[row + 1]]);
            for (column, builder) in builders.iter_mut().enumerate().take(key_columns) {
                codec.append_to(&key, column, builder).unwrap();
                let mut prefix = Vec::new();
                codec.encode(&table.columns[..=column], row, &mut prefix);
                prop_assert!(key.starts_with(&prefix));
            }
            if row > 0 {
                let compare = |column: usize| compare(table.schema.columns()[column].ty, table.scalar(column, row - 1), table.scalar(column, row));
                let typed = (0..key_columns).map(compare).find(|o| o.is_ne()).unwrap_or(Ordering::Equal);
                prop_assert_eq!(table.key(row - 1).cmp(&key), typed);
            }
        }
        let decoded: Vec<ArrayRef> = builders.iter_mut().map(|b| b.finish()).collect();
        for (column, array) in decoded.iter().enumerate().take(key_columns) {
            for row in 0..table.rows() {
                let ty = table.schema.columns()[column].ty;
                prop_assert_eq!(scalar_at(array, ty, row), table.scalar(column, row));
            }
        }
    }

    #[test]
    fn rows_round_trip(table in table(30)) {
        let codec = RowCodec::new(&table.schema);
        codec.check(&table.columns).unwrap();
        let wanted: Vec<usize> = (table.schema.key_columns()..table.schema.columns().len()).collect();
        let mut builders: Vec<_> = wanted.iter().map(|&c| ColumnBuilder::new(table.schema.columns()[c].ty, 0)).collect();
        for row in 0..table.rows() {
            let mut value = Vec::new();
            codec.encode(&table.columns, row, &mut value);
            codec.append_columns(&value, &wanted, &mut builders).unwrap();
        }
        for (&column, builder) in wanted.iter().zip(&mut builders) {
            let array = builder.finish();
            for row in 0..table.rows() {
                let ty = table.schema.columns()[column].ty;
                prop_assert_eq!(scalar_at(&array, ty, row), table.scalar(column, row));
            }
        }
    }

    #[test]
    fn garbage_is_neither_key_nor_row(table in table(5), garbage in prop::collection::vec(any::<u8>(), 0..40), cut in 0usize..40) {
        let (keys, rows) = (KeyCodec::new(&table.schema), RowCodec::new(&table.schema));
        let mut value = Vec::new();
        rows.encode(&table.columns, 0, &mut value);
        let key = table.key(0);
        for bytes in [&garbage[..], &key[..cut.min(key.len())], &value[..cut.min(value.len())]] {
            for (i, column) in table.schema.columns().iter().enumerate() {
                let mut builder = ColumnBuilder::new(column.ty, 0);
                let result = if i < table.schema.key_columns() {
                    keys.append_to(bytes, i, &mut builder)
                } else {
                    rows.append_to(bytes, i, &mut builder)
                };
                match result {
                    Ok(()) => builder.finish().to_data().validate_full().unwrap(),
                    Err(Error::InvalidKey { .. } | Error::InvalidRow { .. }) => {}
                    Err(error) => prop_assert!(false, "{}", error),
                }
            }
        }
    }
}

/// Bytes that were not checked to be valid UTF-8 must not enter a column of text.
#[test]
#[should_panic(expected = "builder of Text for a column of Bytes")]
fn a_builder_of_text_refuses_bytes() {
    let mut builder = ColumnBuilder::new(ColumnType::Text, 1);
    let _ = RowCodec::new(&Schema::key_value()).append_to(b"\xff", 1, &mut builder);
}

/// The order that keys must have.
fn compare(ty: ColumnType, a: Scalar<'_>, b: Scalar<'_>) -> Ordering {
    match (a, b) {
        (Scalar::Null, Scalar::Null) => Ordering::Equal,
        (Scalar::Null, _) => Ordering::Less,
        (_, Scalar::Null) => Ordering::Greater,
        (Scalar::Word(a), Scalar::Word(b)) => match ty {
            ColumnType::Float32 => f32::from_bits(a as u32).total_cmp(&f32::from_bits(b as u32)),
            ColumnType::Float64 => f64::from_bits(a as u64).total_cmp(&f64::from_bits(b as u64)),
            _ => a.cmp(&b),
        },
        (Scalar::Wide(a), Scalar::Wide(b)) => a.cmp(&b),
        (Scalar::Bytes(a, _), Scalar::Bytes(b, _)) => a.cmp(b),
        _ => unreachable!("values of different types"),
    }
}
