//! The fuzz targets (see `fuzz/`). Each function accepts arbitrary bytes and must not panic, run forever, or use
//! unbounded memory.

use std::path::Path;
use std::sync::Arc;

use arrow_array::Array;
use keyaki_store::{
    Column, ColumnBuilder, ColumnType, Direction, KeyCodec, Page, PageKind, PageRef, RowCodec, Schema, TreeId, seal,
};

use crate::fields;
use crate::image::Image;
use crate::sample;

type Target = fn(&[u8]);

/// The targets by the names of their seed directories.
pub const TARGETS: [(&str, Target); 4] = [("open_file", open_file), ("page", page), ("log", log), ("key", key)];

/// Opens an image as it is and with recomputed checksums, reads all trees, and closes the store, which writes a
/// checkpoint.
pub fn open_file(bytes: &[u8]) {
    let mut image = Image::unpack(bytes);
    read_all(&image);
    fields::reseal(&mut image);
    read_all(&image);
}

fn read_all(image: &Image) {
    let device = image.device();
    let Ok(store) = sample::open(device.device()) else { return };
    for tree in sample::TREES {
        for direction in [Direction::Ascending, Direction::Descending] {
            // Rows and errors are both acceptable.
            let _ = sample::read(&store, tree, direction);
        }
        if let Ok(view) = store.snapshot().tree(tree) {
            view.estimate(&keyaki_store::KeyRange::prefix(vec![0x80]));
            view.split(&keyaki_store::KeyRange::all(), 3);
        }
    }
}

/// Opens an empty database whose first log segment consists of `bytes`.
pub fn log(bytes: &[u8]) {
    static EMPTY: std::sync::LazyLock<Image> = std::sync::LazyLock::new(|| {
        let device = Image::default().device();
        let options = keyaki_store::Options { create: true, ..sample::options() };
        drop(keyaki_store::Store::open(device.clone().device(), Path::new(crate::image::DIR), options));
        let mut image = Image::take(&device);
        image.files.retain(|name, _| name == "data");
        image
    });
    let mut image = EMPTY.clone();
    image.files.insert("log-0000000000000000".into(), bytes[..bytes.len().min(1 << 20)].to_vec());
    read_all(&image);
    fields::reseal(&mut image);
    read_all(&image);
}

pub fn schemas() -> [Arc<Schema>; 4] {
    let schema = |types: &[(ColumnType, bool)], key_columns| {
        let column =
            |(i, &(ty, nullable)): (usize, &(ColumnType, bool))| Column { name: format!("c{i}"), ty, nullable };
        Arc::new(Schema::new(types.iter().enumerate().map(column).collect(), key_columns))
    };
    use ColumnType::{Boolean, Bytes, Decimal, Float32, Text, Timestamp};
    let decimal = Decimal { precision: 38, scale: 3 };
    let timestamp = Timestamp { utc: true };
    [
        Arc::new(Schema::key_value()),
        Arc::new(sample::types()),
        Arc::new(sample::loaded()),
        schema(
            &[(Text, true), (decimal, true), (Boolean, true), (Float32, true), (Bytes, false), (timestamp, true)],
            6,
        ),
    ]
}

/// Opens a page. The first byte selects the schema; the rest is the page, whose tree, offset and checksum are
/// corrected.
pub fn page(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let schema = &schemas()[usize::from(choice) % 4];
    let mut bytes = bytes[..bytes.len().min(64 << 10)].to_vec();
    bytes.resize(bytes.len().next_multiple_of(4096).max(4096), 0);
    bytes[..4].copy_from_slice(b"KYPG");
    let place = PageRef { offset: 1 << 20, len: bytes.len() as u32, tree: TreeId::new(7), checksum: 0 };
    let place = seal(&mut bytes, place);
    let Ok(page) = Page::open(&bytes, place, schema, &Path::new("fuzz").into()) else { return };
    let sound = page.check_all_columns().is_ok();
    page.memory_bytes();
    let rows = page.rows();
    let (mut key, mut value, codec) = (Vec::new(), Vec::new(), RowCodec::new(schema));
    for row in (0..rows).step_by(rows.div_ceil(40).max(1)) {
        key.clear();
        value.clear();
        page.key(row, &mut key);
        page.value(row, &codec, &mut value);
        page.message(row);
        page.operands(row);
        page.entry(row);
        page.fence(row);
        assert!(page.lower_bound(&key, false) <= rows && page.lower_bound(&key[..key.len() / 2], true) <= rows);
        assert!(page.find(&key) <= rows);
        page.may_contain(&key);
        if page.kind() != PageKind::Index {
            KeyCodec::new(schema).check_encoded(&key).expect("keys of a valid page are valid");
        }
    }
    if page.kind() != PageKind::Index && sound {
        decode(&page, schema, 0..rows.min(20));
        decode(&page, schema, rows - rows.min(3)..rows);
    }
}

/// Checks that both ways of decoding give equal arrays that Arrow considers valid.
fn decode(page: &Page, schema: &Schema, rows: std::ops::Range<usize>) {
    let selected: Vec<u32> = rows.clone().map(|row| row as u32).collect();
    for (i, column) in schema.columns().iter().enumerate() {
        let mut builder = ColumnBuilder::new(column.ty, 0);
        page.append_to(i, rows.clone(), schema, &mut builder);
        let all = builder.finish();
        page.append_selected(i, &selected, schema, &mut builder);
        let each = builder.finish();
        all.to_data().validate_full().expect("decoded columns are valid");
        assert!(all.to_data() == each.to_data(), "column {i}: the two ways of decoding differ");
    }
}

/// Decodes a key. The first byte selects the schema; the rest is an error, or the encoding of the decoded values.
pub fn key(bytes: &[u8]) {
    let Some((&choice, key)) = bytes.split_first() else { return };
    let schema = &schemas()[usize::from(choice) % 4];
    let codec = KeyCodec::new(schema);
    let columns: Vec<usize> = (0..schema.key_columns()).collect();
    let mut builders: Vec<_> = columns.iter().map(|&i| ColumnBuilder::new(schema.columns()[i].ty, 1)).collect();
    let decoded = codec.append_columns(key, &columns, &mut builders);
    assert_eq!(decoded.is_ok(), codec.check_encoded(key).is_ok());
    if decoded.is_ok() {
        let arrays: Vec<_> = builders.iter_mut().map(ColumnBuilder::finish).collect();
        arrays.iter().for_each(|array| array.to_data().validate_full().expect("decoded columns are valid"));
        codec.check(&arrays).expect("decoded key columns have the types of the schema");
        let mut encoded = Vec::new();
        codec.encode(&arrays, 0, &mut encoded);
        assert_eq!(encoded, key);
    }
}
