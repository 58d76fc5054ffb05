//! Properties of the encodings: everything comes back, keys sort as their values, searches find what a linear one finds,
//! damage is noticed or harmless.

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use proptest::prelude::*;

use super::scalar::{Scalar, scalar_at};
use super::*;
use crate::{Column, ColumnType, Error, Schema};

const TYPES: [ColumnType; 14] = [
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
];

/// A value in a form that is easy to make.
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

/// Seeds a value of any type is made of, so that columns of one shape (small, sorted, repetitive) are common.
fn value_of(ty: ColumnType, word: i64, text: &[u8]) -> Value {
    match ty {
        ColumnType::Boolean => Value::Word(word & 1),
        ColumnType::Int8 => Value::Word((word as i8).into()),
        ColumnType::Int16 => Value::Word((word as i16).into()),
        ColumnType::Int32 | ColumnType::Date => Value::Word((word as i32).into()),
        ColumnType::Float32 if word % 3 == 0 => Value::Word(((word as f32 / 100.0).to_bits() as i32).into()),
        ColumnType::Float32 => Value::Word((word as i32).into()),
        ColumnType::Float64 if word % 5 != 0 => Value::Word((word as f64 / 100.0).to_bits() as i64),
        ColumnType::Int64 | ColumnType::Timestamp { .. } | ColumnType::Float64 => Value::Word(word),
        ColumnType::Decimal { precision: 15, .. } => Value::Wide(word.into()),
        ColumnType::Decimal { .. } => Value::Wide(i128::from(word) * i128::from(word | 1)),
        ColumnType::Text => Value::Bytes(String::from_utf8_lossy(text).into_owned().into_bytes()),
        ColumnType::Bytes => Value::Bytes(text.to_vec()),
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

/// How the values of a column relate.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Any,
    Equal,
    Sorted,
    FewDistinct,
}

fn column() -> impl Strategy<Value = (ColumnType, bool, Shape)> {
    let shape = prop::sample::select(vec![Shape::Any, Shape::Equal, Shape::Sorted, Shape::FewDistinct]);
    (prop::sample::select(TYPES.to_vec()), any::<bool>(), shape)
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

/// Rows sorted by key, of any columns.
fn table(rows_max: usize) -> impl Strategy<Value = Table> {
    let columns = prop::collection::vec(column(), 1..6);
    let seeds = prop::collection::vec((words(), texts(), 0u8..8), 1..rows_max);
    (columns, seeds, 1usize..4).prop_map(|(shapes, seeds, key_columns)| {
        let key_columns = key_columns.min(shapes.len());
        let named = shapes.iter().map(|&(ty, nullable, _)| Column { name: format!("{ty:?}"), ty, nullable }).collect();
        let schema = Arc::new(Schema::new(named, key_columns));
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

const PLACE: PageRef = PageRef { offset: 12 * 4096, len: 0, tree: 7 };

/// Encodes and opens as many rows as fit.
fn page_of(table: &Table, page_bytes: usize, from: usize, messages: Option<&RunColumns>) -> (Vec<u8>, Page) {
    let mut writer = PageWriter::new(table.schema.clone(), page_bytes);
    let mut written = writer.encode(&table.columns, messages, from).unwrap();
    assert!(written.rows >= 1 && written.bytes.len().is_multiple_of(4096));
    assert!(written.bytes.len() == page_bytes || written.rows == 1);
    let place = PageRef { len: written.bytes.len() as u32, ..PLACE };
    seal(&mut written.bytes, place);
    let page = Page::open(&written.bytes, place, &table.schema, Path::new("test")).unwrap();
    assert_eq!(page.rows(), written.rows);
    (written.bytes, page)
}

/// Rows `rows` of every column, decoded from the page.
fn decoded(page: &Page, schema: &Schema, rows: std::ops::Range<usize>) -> Vec<ArrayRef> {
    let decode = |(i, column): (usize, &Column)| {
        let mut builder = ColumnBuilder::new(column.ty, 0);
        page.append_to(i, rows.clone(), &mut builder);
        assert_eq!(builder.len(), rows.len());
        let array = builder.finish();
        array.to_data().validate_full().unwrap();
        array
    };
    schema.columns().iter().enumerate().map(decode).collect()
}

/// Whether arrays are the same, floats bit by bit.
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn pages_give_back_all_rows(table in table(200), from in 0usize..200, cut in (0usize..200, 0usize..200)) {
        let from = from % table.rows();
        let (_, page) = page_of(&table, 8192, from, None);
        let all = decoded(&page, &table.schema, 0..page.rows());
        let expected: Vec<ArrayRef> = table.columns.iter().map(|c| c.slice(from, page.rows())).collect();
        assert_same(&table.schema, &all, &expected);
        // Any range, any selection.
        let (a, b) = (cut.0 % (page.rows() + 1), cut.1 % (page.rows() + 1));
        let range = a.min(b)..a.max(b);
        let part = decoded(&page, &table.schema, range.clone());
        let expected: Vec<ArrayRef> = all.iter().map(|c| c.slice(range.start, range.len())).collect();
        assert_same(&table.schema, &part, &expected);
        let selection: Vec<u32> = (0..page.rows() as u32).filter(|row| row % 3 == (cut.0 % 3) as u32).collect();
        for (i, column) in table.schema.columns().iter().enumerate() {
            let mut builder = ColumnBuilder::new(column.ty, 8);
            page.append_selected(i, &selection, &mut builder);
            let array = builder.finish();
            for (k, &row) in selection.iter().enumerate() {
                prop_assert_eq!(scalar_at(&array, column.ty, k), scalar_at(&all[i], column.ty, row as usize));
            }
            // From array to array.
            builder.append_array(&all[i], range.clone());
            builder.append_nulls(2);
            builder.append_array(&all[i], 0..1);
            let array = builder.finish();
            array.to_data().validate_full().unwrap();
            for (k, row) in range.clone().enumerate() {
                prop_assert_eq!(scalar_at(&array, column.ty, k), scalar_at(&all[i], column.ty, row));
            }
            prop_assert!(array.is_null(range.len()) && array.len() == range.len() + 3);
        }
        // Keys and values as the codecs make them.
        let rows = RowCodec::new(&table.schema);
        for row in 0..page.rows() {
            let (mut key, mut value, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            page.key(row, &mut key);
            prop_assert_eq!(&key, &table.key(from + row));
            page.value(row, &mut value);
            rows.encode(&table.columns, from + row, &mut expected);
            prop_assert_eq!(&value, &expected);
        }
    }

    #[test]
    fn lower_bounds_are_those_of_a_linear_search(
        table in table(150),
        targets in prop::collection::vec((any::<prop::sample::Index>(), 0usize..40, any::<u8>()), 1..20),
    ) {
        let (_, page) = page_of(&table, 8192, 0, None);
        let keys: Vec<Vec<u8>> = (0..page.rows()).map(|row| table.key(row)).collect();
        for (index, cut, byte) in targets {
            let key = &keys[index.index(keys.len())];
            let mut cases = vec![key.clone(), vec![byte; cut / 8], [&key[..], &[byte]].concat()];
            cases.push(key[..cut.min(key.len())].to_vec());
            cases.extend(crate::successor(&key[..cut.min(key.len())]));
            let mut other = key.clone();
            let at = cut % other.len();
            other[at] = byte;
            cases.push(other);
            for target in cases {
                for after in [false, true] {
                    let found = |key: &Vec<u8>| *key >= target && !(after && key.starts_with(&target));
                    let expected = keys.iter().position(found).unwrap_or(keys.len());
                    prop_assert_eq!(page.lower_bound(&target, after), expected, "{:02x?} after {}", target, after);
                }
            }
        }
    }

    #[test]
    fn keys_sort_as_their_values_and_come_back(table in table(60)) {
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
    fn rows_come_back(table in table(30)) {
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
    fn garbage_is_no_key_and_no_row(table in table(5), garbage in prop::collection::vec(any::<u8>(), 0..40), cut in 0usize..40) {
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
                    Err(error) => prop_assert!(matches!(error, Error::Invalid(_))),
                }
            }
        }
    }

    #[test]
    fn runs_give_back_messages(table in table(60), kinds in prop::collection::vec(0u8..3, 60)) {
        let kinds = &kinds[..table.rows()];
        let kind = |kind: &u8| [MessageKind::Insert, MessageKind::Delete, MessageKind::Upsert][usize::from(*kind)];
        let operand = |(i, kind): (usize, &u8)| if *kind == 2 { vec![i as u8; i * 7 % 50] } else { Vec::new() };
        let messages = RunColumns {
            kinds: kinds.iter().map(kind).collect(),
            operands: kinds.iter().enumerate().map(operand).collect(),
        };
        // Rows without values have nulls whatever the schema says.
        let mut with_nulls = table.clone();
        for (i, column) in table.schema.columns().iter().enumerate().skip(table.schema.key_columns()) {
            let mut builder = ColumnBuilder::new(column.ty, 0);
            for (row, &kind) in kinds.iter().enumerate() {
                if kind == 0 { builder.append_array(&table.columns[i], row..row + 1) } else { builder.append_nulls(1) }
            }
            with_nulls.columns[i] = builder.finish();
        }
        let (_, page) = page_of(&with_nulls, 8192, 0, Some(&messages));
        prop_assert_eq!(page.kind(), PageKind::Run);
        let columns: Vec<ArrayRef> = with_nulls.columns.iter().map(|c| c.slice(0, page.rows())).collect();
        assert_same(&table.schema, &decoded(&page, &table.schema, 0..page.rows()), &columns);
        let rows = RowCodec::new(&table.schema);
        for (row, &kind) in kinds.iter().enumerate().take(page.rows()) {
            prop_assert_eq!(page.message_kind(row), messages.kinds[row]);
            prop_assert_eq!(page.operands(row), &messages.operands[row][..]);
            if kind == 0 {
                let (mut value, mut expected) = (Vec::new(), Vec::new());
                page.value(row, &mut value);
                rows.encode(&table.columns, row, &mut expected);
                prop_assert_eq!(value, expected);
            }
        }
    }
}

#[test]
fn index_pages_find_pages_and_rule_out_keys() {
    let schema = Arc::new(Schema::key_value());
    for count in [0usize, 1, 2, 130] {
        let mut offset = 4096;
        let entry = |i: usize| {
            let page = PageRef { offset, len: if i == 5 { 3 * 8192 } else { 8192 }, tree: 7 };
            offset += u64::from(page.len);
            let fence = if i == 0 { Vec::new() } else { format!("key {i:05}").into_bytes() };
            IndexEntry { page, rows: 100 + i as u32 % 7, fence }
        };
        let entries: Vec<IndexEntry> = (0..count).map(entry).collect();
        let hash = |i: usize| xxhash_rust::xxh3::xxh3_64(format!("key {i:05}").as_bytes());
        let hashes: Vec<u64> = (0..count).map(hash).collect();
        let mut bytes = encode_index(&entries, &hashes);
        // The extent is placed 64 KiB into the file.
        let base = 65536;
        let place = PageRef { offset: base + offset, len: bytes.len() as u32, tree: 7 };
        seal(&mut bytes, place);
        let page = Page::open(&bytes, place, &schema, Path::new("test")).unwrap();
        assert_eq!((page.kind(), page.rows()), (PageKind::Index, count));
        for (i, entry) in entries.iter().enumerate() {
            let expected = PageRef { offset: base + entry.page.offset, ..entry.page };
            assert_eq!(page.entry(i), (expected, entry.rows));
            assert_eq!(page.fence(i), entry.fence);
            assert_eq!(page.find(&entry.fence), i);
            assert_eq!(page.find(format!("key {i:05}x").as_bytes()), i);
            assert_eq!(page.find(b"key"), 0);
            assert!(page.may_contain(format!("key {i:05}").as_bytes()));
        }
        let passed = (0..1000).filter(|i| page.may_contain(format!("other {i}").as_bytes())).count();
        assert!(count == 0 || passed < 100, "{passed} of 1000 absent keys pass");
    }
}

/// Calls everything that a page has, whatever it says that it is.
fn touch(page: &Page, schema: &Schema, key: &[u8]) {
    let rows = page.rows();
    page.memory_bytes();
    for after in [false, true] {
        assert!(page.lower_bound(key, after) <= rows);
    }
    let mut out = Vec::new();
    for row in 0..rows.min(300) {
        page.key(row, &mut out);
        page.value(row, &mut out);
        page.message_kind(row);
        page.operands(row);
        page.lower_bound(&out[out.len().saturating_sub(9)..], false);
        out.clear();
        let (data_page, _) = page.entry(row);
        assert!(data_page.len <= 1 << 30 && data_page.offset % 4096 == 0);
        page.fence(row);
    }
    if page.kind() == PageKind::Index {
        assert!(page.find(key) <= rows);
        page.may_contain(key);
    } else {
        decoded(page, schema, 0..rows);
        decoded(page, schema, rows / 3..rows / 2);
        let selection: Vec<u32> = (0..rows as u32).step_by(3).collect();
        for (i, column) in schema.columns().iter().enumerate() {
            let mut builder = ColumnBuilder::new(column.ty, 0);
            page.append_selected(i, &selection, &mut builder);
            builder.finish().to_data().validate_full().unwrap();
        }
    }
}

/// Damage to bytes of a page: places (most of them in its used part) and what is done to them.
fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, bool, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u8>()), 1..5)
}

/// Damages a sealed page at its header, directory or columns, and gives it a right checksum again.
fn damage_and_reseal(bytes: &mut [u8], place: PageRef, damage: &[(prop::sample::Index, bool, u8)]) {
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
    for (index, near_start, byte) in damage {
        let len = if *near_start { used.min(200) } else { used };
        bytes[24 + index.index(len - 24)] ^= byte | 1;
    }
    seal(bytes, place);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_pages_are_errors_or_harmless(table in table(120), damage in damage(), run in any::<bool>()) {
        let kinds = [MessageKind::Insert, MessageKind::Upsert, MessageKind::Delete];
        let messages = RunColumns {
            kinds: (0..table.rows()).map(|row| kinds[row % 3]).collect(),
            operands: (0..table.rows()).map(|row| vec![7; row % 9]).collect(),
        };
        let (mut bytes, _) = page_of(&table, 8192, 0, run.then_some(&messages));
        let place = PageRef { len: bytes.len() as u32, ..PLACE };
        damage_and_reseal(&mut bytes, place, &damage);
        if let Ok(page) = Page::open(&bytes, place, &table.schema, Path::new("test")) {
            touch(&page, &table.schema, &table.key(0));
        }
    }

    #[test]
    fn damaged_index_pages_are_errors_or_harmless(count in 0usize..200, damage in damage()) {
        let entry = |i: usize| IndexEntry {
            page: PageRef { offset: i as u64 * 8192, len: 8192, tree: 7 },
            rows: 100 + i as u32 % 7,
            fence: format!("{i:03}").repeat(i % 4).into_bytes(),
        };
        let entries: Vec<IndexEntry> = (0..count).map(entry).collect();
        let mut bytes = encode_index(&entries, &[1, 2, u64::MAX]);
        let place = PageRef { offset: 1 << 30, len: bytes.len() as u32, tree: 7 };
        damage_and_reseal(&mut bytes, place, &damage);
        let schema = Arc::new(Schema::key_value());
        if let Ok(page) = Page::open(&bytes, place, &schema, Path::new("test")) {
            touch(&page, &schema, b"007");
        }
    }
}

#[test]
fn wrong_pages_are_noticed() {
    let schema = Arc::new(Schema::key_value());
    let value = |i: usize| Value::Bytes(format!("{i:05}").into_bytes());
    let values: Vec<Value> = (0..50).map(value).collect();
    let column = array_of(ColumnType::Bytes, &values);
    let table = Table { schema: schema.clone(), columns: vec![column.clone(), column] };
    let (bytes, _) = page_of(&table, 8192, 0, None);
    let place = PageRef { len: 8192, ..PLACE };
    let damaged = |bytes: &[u8], place: PageRef, schema: &Arc<Schema>| {
        let result = Page::open(bytes, place, schema, Path::new("test"));
        assert!(matches!(result, Err(Error::Damaged { .. })), "{result:?}");
    };
    damaged(&bytes, PageRef { offset: place.offset + 4096, ..place }, &schema);
    damaged(&bytes, PageRef { tree: 8, ..place }, &schema);
    damaged(&bytes, PageRef { len: 4096, ..place }, &schema);
    damaged(&bytes[..4096], PageRef { len: 4096, ..place }, &schema);
    damaged(&bytes[..100], place, &schema);
    damaged(&[], PageRef { len: 0, ..place }, &schema);
    damaged(&[0; 8192], place, &schema);
    for bit in (0..8192 * 8).step_by(97) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        damaged(&flipped, place, &schema);
    }
    let text = Column { name: "key".into(), ty: ColumnType::Text, nullable: false };
    damaged(&bytes, place, &Arc::new(Schema::new(vec![text; 3], 1)));
}

#[test]
fn long_rows_get_long_pages() {
    let schema = Arc::new(Schema::key_value());
    let long = |i: u8| (0..100_000u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 13) as u8 ^ i).collect::<Vec<u8>>();
    let keys = array_of(ColumnType::Bytes, &[Value::Bytes(vec![1]), Value::Bytes(long(2)), Value::Bytes(vec![3])]);
    let values =
        array_of(ColumnType::Bytes, &[Value::Bytes(vec![]), Value::Bytes(long(3)), Value::Bytes(vec![0; 100_000])]);
    let table = Table { schema, columns: vec![keys, values] };
    let mut from = 0;
    while from < 3 {
        let (_, page) = page_of(&table, 4096, from, None);
        let expected: Vec<ArrayRef> = table.columns.iter().map(|c| c.slice(from, page.rows())).collect();
        assert_same(&table.schema, &decoded(&page, &table.schema, 0..page.rows()), &expected);
        assert_eq!(page.lower_bound(&table.key(from), false), 0);
        assert_eq!(page.lower_bound(&table.key(from), true), 1);
        from += page.rows();
    }
}

#[test]
fn pages_are_filled_well() {
    let count = 50_000;
    let words = |f: &dyn Fn(i64) -> i64| {
        array_of(ColumnType::Int64, &(0..count).map(|i| Value::Word(f(i))).collect::<Vec<_>>())
    };
    let named = |name: &str, ty| Column { name: name.into(), ty, nullable: false };
    let schema = Schema::new(
        vec![named("k", ColumnType::Int64), named("v", ColumnType::Int64), named("t", ColumnType::Text)],
        1,
    );
    let mixed = |i: i64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15u64 as i64);
    let text = |i: i64| Value::Bytes(format!("{:x}", mixed(i)).repeat((i / 10_000) as usize).into_bytes());
    let texts = array_of(ColumnType::Text, &(0..count).map(text).collect::<Vec<_>>());
    let columns = vec![words(&|i| i * 3), words(&|i| mixed(i) >> 40), texts];
    let mut writer = PageWriter::new(Arc::new(schema), 8192);
    let (mut from, mut used, mut pages) = (0, 0, 0);
    while from < count as usize {
        let page = writer.encode(&columns, None, from).unwrap();
        from += page.rows;
        used += page.bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
        pages += 1;
    }
    assert!(used * 100 > pages * 8192 * 93, "{used} bytes in {pages} pages");
}

#[test]
fn wrong_columns_are_errors() {
    let schema = Arc::new(Schema::key_value());
    let bytes = array_of(ColumnType::Bytes, &[Value::Bytes(vec![1])]);
    let mut writer = PageWriter::new(schema.clone(), 8192);
    let mut is_invalid = |columns: &[ArrayRef], messages: Option<&RunColumns>, from| {
        assert!(matches!(writer.encode(columns, messages, from), Err(Error::Invalid(_))));
    };
    is_invalid(&[], None, 0);
    is_invalid(std::slice::from_ref(&bytes), None, 0);
    is_invalid(&[bytes.clone(), array_of(ColumnType::Text, &[Value::Null])], None, 0);
    is_invalid(&[bytes.clone(), array_of(ColumnType::Bytes, &[Value::Null])], None, 0);
    is_invalid(&[bytes.clone(), array_of(ColumnType::Bytes, &[])], None, 0);
    is_invalid(&[bytes.clone(), bytes.clone()], None, 1);
    let messages = RunColumns { kinds: vec![MessageKind::Delete], operands: Vec::new() };
    is_invalid(&[bytes.clone(), bytes.clone()], Some(&messages), 0);
    assert!(KeyCodec::new(&schema).check(&[array_of(ColumnType::Text, &[])]).is_err());
    assert!(RowCodec::new(&schema).check(std::slice::from_ref(&bytes)).is_err());
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
