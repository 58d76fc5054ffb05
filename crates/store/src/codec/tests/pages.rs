//! Tests of pages: rows round-trip, and searches find them.

use super::*;
use crate::base::{Error, Prior};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn pages_round_trip(table in table(200), from in 0usize..200, cut in (0usize..200, 0usize..200)) {
        let from = from % table.rows();
        let (_, page) = page_of(&table, 8192, from, None);
        let all = decoded(&page, &table.schema, 0..page.rows());
        let expected: Vec<ArrayRef> = table.columns.iter().map(|c| c.slice(from, page.rows())).collect();
        assert_same(&table.schema, &all, &expected);
        // A random range and a random selection.
        let (a, b) = (cut.0 % (page.rows() + 1), cut.1 % (page.rows() + 1));
        let range = a.min(b)..a.max(b);
        let part = decoded(&page, &table.schema, range.clone());
        let expected: Vec<ArrayRef> = all.iter().map(|c| c.slice(range.start, range.len())).collect();
        assert_same(&table.schema, &part, &expected);
        let step = [2, 3, 7, 20][cut.1 % 4];
        let selection: Vec<u32> = (0..page.rows() as u32).filter(|row| row % step == cut.0 as u32 % step).collect();
        for (i, column) in table.schema.columns().iter().enumerate() {
            let mut builder = ColumnBuilder::new(column.ty, 8);
            page.append_to(i, 0..1, &table.schema, &mut builder);
            page.append_selected(i, &selection, &table.schema, &mut builder);
            let array = builder.finish();
            array.to_data().validate_full().unwrap();
            prop_assert_eq!(array.len(), 1 + selection.len());
            for (k, row) in [0].iter().chain(&selection).enumerate() {
                prop_assert_eq!(scalar_at(&array, column.ty, k), scalar_at(&all[i], column.ty, *row as usize));
            }
            // Copies from one array to another.
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
        let column = &table.schema.columns()[0];
        let is_bytes = table.schema.key_columns() == 1 && !column.nullable && matches!(column.ty, ColumnType::Text | ColumnType::Bytes);
        if let Some((keys, starts)) = page.bytes_keys(range.clone()) {
            prop_assert!(is_bytes && starts.len() == range.len() + 1);
            for (at, row) in range.clone().enumerate() {
                prop_assert_eq!(&keys[starts[at]..starts[at + 1]], &table.key(from + row)[..]);
            }
        }
        // Keys and values equal the encodings of the codecs.
        let rows = RowCodec::new(&table.schema);
        for row in 0..page.rows() {
            let (mut key, mut value, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            page.key(row, &mut key);
            prop_assert_eq!(&key, &table.key(from + row));
            page.value(row, &rows, &mut value);
            rows.encode(&table.columns, from + row, &mut expected);
            prop_assert_eq!(&value, &expected);
        }
    }

    #[test]
    fn lower_bounds_agree_with_a_linear_search(
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
    fn runs_round_trip(table in table(60), kinds in prop::collection::vec(0u8..3, 60)) {
        let kinds = &kinds[..table.rows()];
        let kind = |kind: &u8| [MessageKind::Insert, MessageKind::Delete, MessageKind::Upsert][usize::from(*kind)];
        let operand = |(i, kind): (usize, &u8)| if *kind == 2 { vec![i as u8; i * 7 % 50] } else { Vec::new() };
        let messages = RunColumns {
            kinds: kinds.iter().map(kind).collect(),
            operands: kinds.iter().enumerate().map(operand).collect(),
            priors: (0..kinds.len()).map(|row| [Prior::Unknown, Prior::Absent, Prior::Present][row / 2 % 3]).collect(),
        };
        // Messages without a row have nulls, even in columns that are not nullable.
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
            prop_assert_eq!(page.message(row), Some((messages.kinds[row], messages.priors[row])));
            prop_assert_eq!(page.operands(row), &messages.operands[row][..]);
            if kind == 0 {
                let (mut value, mut expected) = (Vec::new(), Vec::new());
                page.value(row, &rows, &mut value);
                rows.encode(&table.columns, row, &mut expected);
                prop_assert_eq!(value, expected);
            }
        }
    }
}

#[test]
fn index_pages_find_pages_and_rule_out_keys() {
    let schema = Arc::new(Schema::key_value());
    for count in [1usize, 2, 130] {
        let mut offset = 4096;
        let entry = |i: usize| {
            let page = PageRef {
                offset,
                len: if i == 5 { 3 * 8192 } else { 8192 },
                tree: TreeId::new(7),
                checksum: i as u32 * 77,
            };
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
        let place = PageRef { offset: base + offset, len: bytes.len() as u32, tree: TreeId::new(7), checksum: 0 };
        let place = seal(&mut bytes, place);
        let page = Page::open(&bytes, place, &schema, &test_path()).unwrap();
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
        assert!(passed < 100, "{passed} of 1000 absent keys pass");
    }
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
    let mut error =
        |columns: &[ArrayRef], messages: Option<&RunColumns>, from| writer.encode(columns, messages, from).unwrap_err();
    assert!(matches!(error(&[], None, 0), Error::ColumnCount { expected: 2, found: 0 }));
    assert!(matches!(error(std::slice::from_ref(&bytes), None, 0), Error::ColumnCount { expected: 2, found: 1 }));
    let text = array_of(ColumnType::Text, &[Value::Null]);
    assert!(matches!(error(&[bytes.clone(), text], None, 0), Error::ColumnType { column, .. } if column == "value"));
    let null = array_of(ColumnType::Bytes, &[Value::Null]);
    assert!(matches!(error(&[bytes.clone(), null], None, 0), Error::NullValue { column } if column == "value"));
    let shorter = array_of(ColumnType::Bytes, &[]);
    let is_invalid = |error, name| matches!(error, Error::InvalidArgument { argument, .. } if argument == name);
    assert!(is_invalid(error(&[bytes.clone(), shorter], None, 0), "columns"));
    assert!(is_invalid(error(&[bytes.clone(), bytes.clone()], None, 1), "from"));
    let messages = RunColumns { kinds: vec![MessageKind::Delete], operands: Vec::new(), priors: Vec::new() };
    assert!(is_invalid(error(&[bytes.clone(), bytes.clone()], Some(&messages), 0), "messages"));
    assert!(KeyCodec::new(&schema).check(&[array_of(ColumnType::Text, &[])]).is_err());
    assert!(RowCodec::new(&schema).check(std::slice::from_ref(&bytes)).is_err());
}

#[test]
fn decompressed_heaps_are_counted_until_the_page_is_dropped() {
    let text = |i: u32| format!("{i} {}", "compressible ".repeat(9));
    let keys: Vec<Value> = (0..100).map(|i| Value::Bytes(format!("{i:05}").into_bytes())).collect();
    let values: Vec<Value> = (0..100).map(|i| Value::Bytes(text(i).into_bytes())).collect();
    let columns = vec![array_of(ColumnType::Bytes, &keys), array_of(ColumnType::Bytes, &values)];
    let table = Table { schema: Arc::new(Schema::key_value()), columns };
    let (_, mut page) = page_of(&table, 8192, 0, None);
    let counter = Arc::<std::sync::atomic::AtomicUsize>::default();
    let counted = || counter.load(std::sync::atomic::Ordering::Relaxed);
    page.count_heaps(&counter);
    page.check_columns(&[0]).unwrap();
    let before = counted();
    page.check_columns(&[1]).unwrap();
    page.check_all_columns().unwrap();
    let heap = page.column_memory(1)[1].len();
    assert!(heap > 8192, "{heap} bytes of text in {} rows", page.rows());
    assert_eq!(counted(), before + heap);
    assert_eq!(page.memory_bytes_max(), page.memory_bytes() + before + heap);
    drop(page);
    assert_eq!(counted(), 0);
}
