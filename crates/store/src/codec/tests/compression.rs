//! Tests of compressed columns: all methods give the values back, dictionaries save space, damage is harmless.

use super::damage::{damage, damage_and_reseal, touch};
use super::*;

/// Rows with a number as the key and texts of a hundred words, different in each row.
fn texts(rows: usize, seed: usize, compression: Compression) -> Table {
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: ty != ColumnType::Int64 };
    let columns = vec![
        column("key", ColumnType::Int64),
        column("text", ColumnType::Text),
        column("bytes", ColumnType::Bytes),
        column("number", ColumnType::Int32),
    ];
    let schema = Arc::new(Schema::new(columns, 1).compressed(compression));
    let parts = ["äußer", "compr", "zelk", "欅", "serr", "ova", "ible", "st", "ata", "mit"];
    let word = |i: usize| format!("{}{}{} ", parts[i % 10], parts[i / 10 % 10], parts[i / 3 % 10]);
    let text = |i: usize| {
        let mut random = keyaki_primitives::Random::new((seed * rows + i) as u64);
        let words = (0..2 + i % 5).map(|_| word(random.below(100) as usize));
        Value::Bytes((words.collect::<String>() + &(i * 7919).to_string()).into_bytes())
    };
    let number = |i: usize| Value::Word(i as i64);
    let values =
        |column: usize| (0..rows).map(move |i| if column.is_multiple_of(3) { number(i) } else { text(i * column) });
    let array = |column: usize| array_of(schema.columns()[column].ty, &values(column).collect::<Vec<_>>());
    let columns = (0..4).map(array).collect();
    Table { schema, columns }
}

/// All pages of a table, opened, and their rows.
fn pages(table: &Table, writer: &mut PageWriter, dictionaries: &Dictionaries) -> Vec<(Vec<u8>, Page)> {
    let (mut row, mut pages) = (0, Vec::new());
    while row < table.rows() {
        let mut written = writer.encode(&table.columns, None, row).unwrap();
        row += written.rows;
        let place = PageRef { len: written.bytes.len() as u32, ..PLACE };
        let place = seal(&mut written.bytes, place);
        let page = Page::open_with(&written.bytes, place, &table.schema, &test_path(), None, dictionaries).unwrap();
        pages.push((written.bytes, page));
    }
    pages
}

fn assert_has_rows(pages: &[(Vec<u8>, Page)], table: &Table) {
    let mut row = 0;
    for (_, page) in pages {
        let expected: Vec<ArrayRef> = table.columns.iter().map(|column| column.slice(row, page.rows())).collect();
        assert_same(&table.schema, &decoded(page, &table.schema, 0..page.rows()), &expected);
        row += page.rows();
    }
    assert_eq!(row, table.rows());
}

#[test]
fn methods_need_different_numbers_of_pages() {
    let count = |method| {
        let table = texts(8000, 3, method);
        let pages = pages(&table, &mut PageWriter::new(table.schema.clone(), 8192), &Dictionaries::default());
        assert_has_rows(&pages, &table);
        pages.len()
    };
    let [none, lz4, zstd] = Compression::ALL.map(count);
    assert!(zstd < lz4 && lz4 < none, "{none} pages, {lz4} with LZ4, {zstd} with Zstandard");
}

#[test]
fn dictionaries_save_space_and_are_needed() {
    let table = texts(8000, 3, Compression::Zstd);
    let dictionaries = Dictionaries::default();
    let without = pages(&table, &mut PageWriter::new(table.schema.clone(), 4096), &dictionaries).len();
    let trained = dictionaries.of(PLACE.tree);
    let few = texts(100, 3, Compression::Zstd);
    let mut writer = PageWriter::new(table.schema.clone(), 4096);
    writer.train(&few.columns, &trained);
    assert!(trained.all().is_empty(), "too few rows to decide");
    writer.train(&table.columns, &trained);
    let columns: Vec<u16> = trained.all().iter().map(|(column, _)| *column).collect();
    assert_eq!(columns, [1, 2], "columns of texts and bytes");
    let written = pages(&table, &mut writer, &dictionaries);
    assert_has_rows(&written, &table);
    assert!(written.len() * 10 < without * 9, "{} pages with dictionaries, {without} without", written.len());
    // Another writer uses the same dictionaries.
    let mut other = PageWriter::new(table.schema.clone(), 4096);
    other.train(&few.columns, &trained);
    assert_eq!(pages(&table, &mut other, &dictionaries).len(), written.len());
    // Without them, or with others, the page cannot be read.
    let bytes = &written[0].0;
    let place =
        PageRef { len: bytes.len() as u32, checksum: u32::from_le_bytes(*bytes[4..].first_chunk().unwrap()), ..PLACE };
    assert!(Page::open(bytes, place, &table.schema, &test_path()).is_err());
    let others = Dictionaries::default();
    let different = texts(8000, 5, Compression::Zstd);
    PageWriter::new(table.schema.clone(), 4096).train(&different.columns, &others.of(PLACE.tree));
    let page = Page::open_with(bytes, place, &table.schema, &test_path(), None, &others).unwrap();
    assert!(page.check_all_columns().is_err(), "a heap that needs another dictionary");
    // A dictionary survives in its bytes.
    for (column, dictionary) in trained.all() {
        assert!(others.of(PLACE.tree).set(column, dictionary.bytes()));
    }
    let page = Page::open_with(bytes, place, &table.schema, &test_path(), None, &others).unwrap();
    assert!(page.check_all_columns().is_ok());
    assert!(!others.of(PLACE.tree).set(3, &[7; 1000]) && !others.of(PLACE.tree).set(3, b"no dictionary"));
    assert_eq!((others.of(PLACE.tree).stored().len(), trained.stored().len()), (2, 0));
    dictionaries.set_stored();
    assert_eq!(trained.stored().len(), 2);
}

#[test]
fn columns_of_few_or_random_values_get_no_dictionary() {
    let mut random = keyaki_primitives::Random::new(1);
    let random: Vec<Value> =
        (0..20_000).map(|_| Value::Bytes((0..4).flat_map(|_| random.next_u64().to_le_bytes()).collect())).collect();
    let few: Vec<Value> = (0..20_000).map(|i| Value::Bytes(format!("one of nine values: {}", i % 9).into())).collect();
    let mut table = texts(20_000, 3, Compression::Zstd);
    table.columns[1] = array_of(ColumnType::Text, &few);
    table.columns[2] = array_of(ColumnType::Bytes, &random);
    let dictionaries = Dictionaries::default();
    let mut writer = PageWriter::new(table.schema.clone(), 8192);
    writer.train(&table.columns, &dictionaries.of(PLACE.tree));
    assert!(dictionaries.of(PLACE.tree).all().is_empty());
    assert_has_rows(&pages(&table, &mut writer, &dictionaries), &table);
}

#[test]
fn dictionaries_are_forgotten_with_their_trees() {
    let dictionaries = Dictionaries::default();
    let (kept, used) = (dictionaries.of(TreeId::new(1)), dictionaries.of(TreeId::new(2)));
    drop((kept, dictionaries.of(TreeId::new(3))));
    let table = texts(8000, 3, Compression::Zstd);
    for tree in [1, 2, 3] {
        let of_tree = dictionaries.of(TreeId::new(tree));
        PageWriter::new(table.schema.clone(), 4096).train(&table.columns, &of_tree);
    }
    dictionaries.retain(|tree| tree == TreeId::new(1));
    let count = |tree| dictionaries.of(TreeId::new(tree)).all().len();
    assert_eq!([count(1), count(2), count(3)], [2, 2, 0], "of an existing tree, one in use, and a dropped one");
    drop(used);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn damaged_compressed_text_is_harmless(
        damage in damage(),
        seed in 0usize..50,
        method in prop::sample::select(Compression::ALL.to_vec()),
        has_dictionary in any::<bool>(),
    ) {
        let table = texts(if has_dictionary { 6000 } else { 200 }, seed, method);
        let dictionaries = Dictionaries::default();
        let mut writer = PageWriter::new(table.schema.clone(), 4096);
        writer.train(&table.columns, &dictionaries.of(PLACE.tree));
        let mut written = writer.encode(&table.columns, None, 0).unwrap();
        let place = PageRef { len: written.bytes.len() as u32, ..PLACE };
        let place = damage_and_reseal(&mut written.bytes, place, &damage);
        let opened = Page::open_with(&written.bytes, place, &table.schema, &test_path(), None, &dictionaries);
        if let Ok(page) = opened {
            touch(&page, &table.schema, &table.key(0));
        }
    }
}
