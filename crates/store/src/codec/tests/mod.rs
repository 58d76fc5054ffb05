//! Properties of the encodings: values round-trip, keys sort as their values, searches agree with a linear search, and
//! damage is an error or harmless.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use proptest::prelude::*;

use super::scalar::{Scalar, Values};
use super::*;
use crate::base::{Column, ColumnType, Compression, ListType, Schema, TreeId};

mod codecs;
mod compression;
mod damage;
mod list_values;
mod missing;
mod pages;
mod projection;

const TYPES: [ColumnType; 17] = [
    ColumnType::Boolean,
    ColumnType::Int8,
    ColumnType::Int16,
    ColumnType::Int32,
    ColumnType::Int64,
    ColumnType::Float32,
    ColumnType::Float64,
    ColumnType::Decimal { precision: 15, scale: 2 },
    ColumnType::Decimal { precision: 38, scale: 0 },
    ColumnType::Text,
    ColumnType::Bytes,
    ColumnType::Date,
    ColumnType::Timestamp { utc: false },
    ColumnType::Timestamp { utc: true },
    ColumnType::Time,
    ColumnType::Uuid,
    ColumnType::Interval,
];

/// Types of value columns: those of keys, and lists.
fn value_types() -> Vec<ColumnType> {
    let list = |ty| ColumnType::List(ListType::of(ty).unwrap());
    let scalars = [4, 1, 8, 10, 16].map(|i| TYPES[i]);
    let lists = scalars.into_iter().map(list);
    let nested = [list(list(TYPES[2])), list(list(list(ColumnType::Text)))];
    TYPES.into_iter().chain(lists).chain([list(ColumnType::Text)]).chain(nested).collect()
}

/// The value of a row. It leaks a little memory.
fn scalar_at(array: &ArrayRef, ty: ColumnType, row: usize) -> Scalar<'_> {
    if !ty.is_list() {
        return Box::leak(Box::new(Values::new(array, ty))).get(row);
    }
    let array: &ArrayRef = Box::leak(Box::new(array.slice(row, 1)));
    Box::leak(Box::new(Values::new(array, ty))).get(0)
}

/// An owned value.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Null,
    Word(i64),
    Wide(i128),
    Bytes(Vec<u8>),
}

impl Value {
    fn scalar(&self) -> Scalar<'_> {
        match self {
            Value::Null => Scalar::Null,
            Value::Word(word) => Scalar::Word(*word),
            Value::Wide(wide) => Scalar::Wide(*wide),
            Value::Bytes(bytes) => Scalar::Bytes(bytes, &[]),
        }
    }
}

/// Derives a value of any type from seeds, so that columns of one shape (small, sorted, repetitive) are frequent.
fn value_of(ty: ColumnType, word: i64, text: &[u8]) -> Value {
    match ty {
        ColumnType::Boolean => Value::Word(word & 1),
        ColumnType::Int8 => Value::Word((word as i8).into()),
        ColumnType::Int16 => Value::Word((word as i16).into()),
        ColumnType::Int32 | ColumnType::Date => Value::Word((word as i32).into()),
        ColumnType::Float32 if word % 3 == 0 => Value::Word(((word as f32 / 100.0).to_bits() as i32).into()),
        ColumnType::Float32 => Value::Word((word as i32).into()),
        ColumnType::Float64 if word % 5 != 0 => Value::Word((word as f64 / 100.0).to_bits() as i64),
        ColumnType::Int64 | ColumnType::Timestamp { .. } | ColumnType::Time | ColumnType::Float64 => Value::Word(word),
        ColumnType::Decimal { precision: 15, .. } => Value::Wide(word.into()),
        ColumnType::Uuid if word % 4 == 0 => Value::Wide(word.into()),
        ColumnType::Decimal { .. } | ColumnType::Uuid => Value::Wide(i128::from(word) * i128::from(word | 1)),
        // Short, and with extreme parts whose microseconds fit into the Arrow type.
        ColumnType::Interval if word % 4 == 0 => Value::Wide((word / 1000).into()),
        ColumnType::Interval => Value::Wide((i128::from(word) << 64) + i128::from(word / 1000)),
        ColumnType::Text => Value::Bytes(String::from_utf8_lossy(text).into_owned().into_bytes()),
        ColumnType::Bytes => Value::Bytes(text.to_vec()),
        ColumnType::List(list) => {
            let element = |i: usize| match text[i] % 4 {
                0 => Value::Null,
                _ => value_of(list.element(), word.wrapping_add(i as i64), &text[i + 1..]),
            };
            let elements: Vec<Value> = (0..text.len() % 5).map(element).collect();
            let mut encoded = Vec::new();
            lists::put(elements.len(), list.element(), |i| elements[i].scalar(), &mut encoded);
            Value::Bytes(encoded)
        }
    }
}

fn array_of(ty: ColumnType, values: &[Value]) -> ArrayRef {
    let mut builder = ColumnBuilder::new(ty, 0);
    for value in values {
        // SAFETY: `value_of` makes text of valid UTF-8.
        unsafe { builder.push(value.scalar()) };
    }
    builder.finish()
}

fn words() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 0i64..20,
        2 => any::<i64>(),
        2 => 1_000_000i64..1_010_000,
        1 => prop::sample::select(vec![
            i64::MIN, i64::MAX, 0, -1, i64::from(i32::MIN), i64::from(i32::MAX), (-0.0f64).to_bits() as i64,
            f64::NAN.to_bits() as i64 | 5, f64::INFINITY.to_bits() as i64, f32::NAN.to_bits() as i64 | 1 << 31,
        ]),
    ]
}

fn texts() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(prop::sample::select(vec![0u8, 1, b'a', b'b', 0xff]), 0..4),
        2 => "[a-z ]{0,40}".prop_map(String::into_bytes),
        2 => "(shared prefix é|shared prefix ê)[a-c]{0,3}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..30),
    ]
}

/// The distribution of the values of a column.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Any,
    Equal,
    Sorted,
    FewDistinct,
}

fn column() -> impl Strategy<Value = (ColumnType, bool, Shape)> {
    let shape = prop::sample::select(vec![Shape::Any, Shape::Equal, Shape::Sorted, Shape::FewDistinct]);
    (prop::sample::select(value_types()), any::<bool>(), shape)
}

#[derive(Debug, Clone)]
struct Table {
    schema: Arc<Schema>,
    columns: Vec<ArrayRef>,
}

impl Table {
    fn rows(&self) -> usize {
        self.columns[0].len()
    }

    fn scalar(&self, column: usize, row: usize) -> Scalar<'_> {
        scalar_at(&self.columns[column], self.schema.columns()[column].ty, row)
    }

    fn key(&self, row: usize) -> Vec<u8> {
        let mut key = Vec::new();
        KeyCodec::new(&self.schema).encode(&self.columns, row, &mut key);
        key
    }
}

/// Rows of random columns, sorted by key.
fn table(rows_max: usize) -> impl Strategy<Value = Table> {
    let columns = prop::collection::vec(column(), 1..6);
    let seeds = prop::collection::vec((words(), texts(), 0u8..8), 1..rows_max);
    let method = prop::sample::select(Compression::ALL.to_vec());
    (columns, seeds, 1usize..4, method).prop_map(|(mut shapes, seeds, key_columns, method)| {
        let key_columns = key_columns.min(shapes.len());
        for (ty, ..) in &mut shapes[..key_columns] {
            if let ColumnType::List(list) = *ty {
                *ty = list.innermost();
            }
        }
        let named = shapes.iter().map(|&(ty, nullable, _)| Column { name: format!("{ty:?}"), ty, nullable }).collect();
        let schema = Arc::new(Schema::new(named, key_columns).compressed(method));
        let mut rows: Vec<Vec<Value>> = Vec::new();
        for (i, seed) in seeds.iter().enumerate() {
            let value = |(c, &(ty, nullable, shape)): (usize, &(ColumnType, bool, Shape))| {
                let (word, text, null) = match shape {
                    Shape::Any => &seeds[(i * (c + 1)) % seeds.len()],
                    Shape::Equal => &seeds[0],
                    Shape::FewDistinct => &seeds[i % 3 % seeds.len()],
                    Shape::Sorted => seed,
                };
                let word = if matches!(shape, Shape::Sorted) { i as i64 * 977 + (word & 15) } else { *word };
                if nullable && *null == 0 { Value::Null } else { value_of(ty, word, text) }
            };
            rows.push(shapes.iter().enumerate().map(value).collect());
        }
        let build = |rows: &[Vec<Value>]| {
            let column = |c: usize| array_of(shapes[c].0, &rows.iter().map(|row| row[c].clone()).collect::<Vec<_>>());
            Table { schema: schema.clone(), columns: (0..shapes.len()).map(column).collect() }
        };
        let unsorted = build(&rows);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&row| unsorted.key(row));
        build(&order.iter().map(|&row| rows[row].clone()).collect::<Vec<_>>())
    })
}

const PLACE: PageRef = PageRef { offset: 12 * 4096, len: 0, tree: TreeId::new(7), checksum: 0 };

fn test_path() -> Arc<Path> {
    Path::new("test").into()
}

/// Encodes and opens as many rows as fit.
fn page_of(table: &Table, page_bytes: usize, from: usize, messages: Option<&RunColumns>) -> (Vec<u8>, Page) {
    let mut writer = PageWriter::new(table.schema.clone(), page_bytes);
    let mut written = writer.encode(&table.columns, messages, from).unwrap();
    assert!(written.rows >= 1 && written.bytes.len().is_multiple_of(4096));
    assert!(written.bytes.len() == page_bytes || written.rows == 1);
    let place = PageRef { len: written.bytes.len() as u32, ..PLACE };
    let place = seal(&mut written.bytes, place);
    let page = Page::open(&written.bytes, place, &table.schema, &test_path()).unwrap();
    assert_eq!(page.rows(), written.rows);
    (written.bytes, page)
}

/// Rows `rows` of every column, decoded from the page.
fn decoded(page: &Page, schema: &Schema, rows: std::ops::Range<usize>) -> Vec<ArrayRef> {
    let decode = |(i, column): (usize, &Column)| {
        let mut builder = ColumnBuilder::new(column.ty, 0);
        page.append_to(i, rows.clone(), schema, &mut builder);
        assert_eq!(builder.len(), rows.len());
        let array = builder.finish();
        array.to_data().validate_full().unwrap();
        array
    };
    schema.columns().iter().enumerate().map(decode).collect()
}

/// Asserts that arrays are equal, floats bit by bit.
fn assert_same(schema: &Schema, a: &[ArrayRef], b: &[ArrayRef]) {
    for (i, column) in schema.columns().iter().enumerate() {
        assert_eq!(a[i].data_type(), &column.ty.arrow());
        assert_eq!(a[i].len(), b[i].len());
        for row in 0..a[i].len() {
            let (a, b) = (scalar_at(&a[i], column.ty, row), scalar_at(&b[i], column.ty, row));
            assert_eq!(a, b, "row {row} of {column:?}");
        }
    }
}
