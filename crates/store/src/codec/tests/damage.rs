//! Tests of damaged pages: opening fails, or all accesses are harmless.

use super::*;
use crate::base::{Error, Prior};

/// Calls every method of a page, whatever its kind.
pub(super) fn touch(page: &Page, schema: &Schema, key: &[u8]) {
    let rows = page.rows();
    page.memory_bytes();
    for after in [false, true] {
        assert!(page.lower_bound(key, after) <= rows);
    }
    let mut out = Vec::new();
    let codec = RowCodec::new(schema);
    for row in 0..rows.min(300) {
        page.key(row, &mut out);
        page.value(row, &codec, &mut out);
        page.message(row);
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
            page.append_selected(i, &selection, schema, &mut builder);
            builder.finish().to_data().validate_full().unwrap();
        }
    }
}

/// Damage to a page: positions (most of them in the used part) and masks to apply to their bytes.
pub(super) fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, bool, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u8>()), 1..5)
}

/// Damages header, directory or columns of a sealed page and seals it again with a correct checksum.
pub(super) fn damage_and_reseal(
    bytes: &mut [u8],
    place: PageRef,
    damage: &[(prop::sample::Index, bool, u8)],
) -> PageRef {
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
    for (index, near_start, byte) in damage {
        let len = if *near_start { used.min(200) } else { used };
        bytes[24 + index.index(len - 24)] ^= byte | 1;
    }
    seal(bytes, place)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_pages_are_errors_or_harmless(table in table(120), damage in damage(), run in any::<bool>()) {
        let kinds = [MessageKind::Insert, MessageKind::Upsert, MessageKind::Delete];
        let messages = RunColumns {
            kinds: (0..table.rows()).map(|row| kinds[row % 3]).collect(),
            operands: (0..table.rows()).map(|row| vec![7; row % 9]).collect(),
            priors: (0..table.rows()).map(|row| [Prior::Unknown, Prior::Absent, Prior::Present][row / 2 % 3]).collect(),
        };
        let (mut bytes, _) = page_of(&table, 8192, 0, run.then_some(&messages));
        let place = PageRef { len: bytes.len() as u32, ..PLACE };
        let place = damage_and_reseal(&mut bytes, place, &damage);
        if let Ok(page) = Page::open(&bytes, place, &table.schema, &test_path()) {
            touch(&page, &table.schema, &table.key(0));
        }
    }

    #[test]
    fn damaged_index_pages_are_errors_or_harmless(count in 1usize..200, damage in damage()) {
        let entry = |i: usize| IndexEntry {
            page: PageRef { offset: i as u64 * 8192, len: 8192, tree: TreeId::new(7), checksum: i as u32 },
            rows: 100 + i as u32 % 7,
            fence: if i == 0 { Vec::new() } else { format!("{i:03}").repeat(1 + i % 3).into_bytes() },
        };
        let entries: Vec<IndexEntry> = (0..count).map(entry).collect();
        let mut bytes = encode_index(&entries, &[1, 2, u64::MAX]);
        let place = PageRef { offset: 1 << 30, len: bytes.len() as u32, tree: TreeId::new(7), checksum: 0 };
        let place = damage_and_reseal(&mut bytes, place, &damage);
        let schema = Arc::new(Schema::key_value());
        if let Ok(page) = Page::open(&bytes, place, &schema, &test_path()) {
            touch(&page, &schema, b"007");
        }
    }
}

#[test]
fn wrong_pages_are_errors() {
    let schema = Arc::new(Schema::key_value());
    let value = |i: usize| Value::Bytes(format!("{i:05}").into_bytes());
    let values: Vec<Value> = (0..50).map(value).collect();
    let column = array_of(ColumnType::Bytes, &values);
    let table = Table { schema: schema.clone(), columns: vec![column.clone(), column] };
    let (bytes, _) = page_of(&table, 8192, 0, None);
    let checksum = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let place = PageRef { len: 8192, checksum, ..PLACE };
    assert!(Page::open(&bytes, place, &schema, &test_path()).is_ok());
    let damaged = |bytes: &[u8], place: PageRef, schema: &Arc<Schema>| {
        let result = Page::open(bytes, place, schema, &test_path());
        assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    };
    damaged(&bytes, PageRef { offset: place.offset + 4096, ..place }, &schema);
    damaged(&bytes, PageRef { tree: TreeId::new(8), ..place }, &schema);
    damaged(&bytes, PageRef { checksum: checksum ^ 1, ..place }, &schema);
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
