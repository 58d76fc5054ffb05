//! A deterministic sample database that uses every feature of the file format, and the rows expected from it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{
    Array, ArrayRef, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float32Array,
    Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, IntervalMonthDayNanoArray, ListArray, RecordBatch,
    StringViewArray, Time64MicrosecondArray, TimestampMicrosecondArray,
};
use arrow_buffer::{IntervalMonthDayNano, NullBuffer, OffsetBuffer};
use arrow_schema::Field;
use keyaki_device::Device;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{
    Column, ColumnType, Direction, KeyRange, ListType, Options, Result, Schema, Store, TreeId, UpsertFunctions,
    WriteBatch, block_on,
};

use crate::image::{DIR, Image};

/// A key-value tree with several levels of nodes, with runs in them.
pub const MAP: TreeId = TreeId::new(1);
/// A tree with columns of all types, with nulls.
pub const TYPES: TreeId = TreeId::new(2);
/// A bulk-loaded tree with compressed text and a few changes.
pub const LOADED: TreeId = TreeId::new(3);
pub const DROPPED: TreeId = TreeId::new(4);
pub const EMPTY: TreeId = TreeId::new(5);
/// A tree whose creation is in the log only.
pub const NEW: TreeId = TreeId::new(6);
/// All trees that may exist.
pub const TREES: [TreeId; 6] = [MAP, TYPES, LOADED, DROPPED, EMPTY, NEW];

const APPEND: u32 = 1;

/// A value of a column, with the order of keys and a textual form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    Null,
    /// Booleans, integers, dates, timestamps and decimals; floats as their bits.
    Number(i128),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Cell>),
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Null => write!(f, "-"),
            Cell::Number(number) => write!(f, "{number}"),
            Cell::Text(text) => write!(f, "{text:?}"),
            Cell::Bytes(bytes) => write!(f, "'{}'", bytes.escape_ascii()),
            Cell::List(cells) => {
                let cells: Vec<String> = cells.iter().map(Cell::to_string).collect();
                write!(f, "[{}]", cells.join(","))
            }
        }
    }
}

type Row = Vec<Cell>;

/// The expected rows of each tree, by key.
pub type Model = BTreeMap<TreeId, BTreeMap<Row, Row>>;

/// The expected result of [`read`] for a tree of the model.
pub fn lines(rows: &BTreeMap<Row, Row>) -> Vec<String> {
    let line = |(key, rest): (&Row, &Row)| key.iter().chain(rest).map(Cell::to_string).collect::<Vec<_>>().join(" ");
    rows.iter().map(line).collect()
}

pub fn options() -> Options {
    let append = |old: Option<&[u8]>, operand: &[u8]| Ok(Some([old.unwrap_or_default(), operand].concat()));
    Options {
        page_bytes: 4096,
        leaf_bytes: 4096,
        fan_out: 2,
        node_buffer_bytes: 25_000,
        runs_per_node: 4,
        cache_bytes: 1 << 20,
        upserts: Arc::new(UpsertFunctions::default().with(APPEND, append)),
        ..Options::default()
    }
}

pub fn types() -> Schema {
    let list = |ty| ColumnType::List(ListType::of(ty).unwrap());
    let column = |(i, (ty, nullable)): (usize, (ColumnType, bool))| Column { name: format!("c{i}"), ty, nullable };
    let types = [
        (ColumnType::Int32, false),
        (ColumnType::Text, true),
        (ColumnType::Boolean, true),
        (ColumnType::Int8, true),
        (ColumnType::Int16, false),
        (ColumnType::Int64, true),
        (ColumnType::Float32, true),
        (ColumnType::Float64, true),
        (ColumnType::Decimal { precision: 15, scale: 2 }, false),
        (ColumnType::Decimal { precision: 38, scale: 0 }, true),
        (ColumnType::Text, true),
        (ColumnType::Bytes, true),
        (ColumnType::Date, true),
        (ColumnType::Timestamp { utc: false }, false),
        (ColumnType::Timestamp { utc: true }, true),
        (ColumnType::Time, false),
        (ColumnType::Uuid, true),
        (ColumnType::Interval, true),
        (list(ColumnType::Text), true),
        (list(list(ColumnType::Decimal { precision: 38, scale: 0 })), false),
    ];
    Schema::new(types.into_iter().enumerate().map(column).collect(), 2)
}

pub fn loaded() -> Schema {
    let column = |name: &str, ty, nullable| Column { name: name.into(), ty, nullable };
    Schema::new(
        vec![
            column("id", ColumnType::Int64, false),
            column("words", ColumnType::Text, true),
            column("price", ColumnType::Float64, false),
        ],
        1,
    )
}

/// A hash of a number.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 3
}

/// The numbers of intervals with extreme parts.
const INTERVALS: (i128, i128) = (
    ((i32::MIN as i128) << 96) + ((i32::MAX as i128) << 64) - (i64::MAX / 1000) as i128,
    ((i32::MAX as i128) << 96) + ((i32::MAX as i128) << 64) + (i64::MAX / 1000) as i128,
);

/// The interval with a number: its months, days and microseconds are digits of 32, 32 and 64 bits, with signs.
fn interval(number: i128) -> IntervalMonthDayNano {
    let micros = number as i64;
    let calendar = (number.wrapping_sub(micros.into()) >> 64) as i64;
    let days = calendar as i32;
    let months = (calendar.wrapping_sub(days.into()) >> 32) as i32;
    IntervalMonthDayNano::new(months, days, micros * 1000)
}

/// The number of an interval; the inverse of [`interval`].
fn number_of(interval: IntervalMonthDayNano) -> i128 {
    let calendar = (i64::from(interval.months) << 32).wrapping_add(interval.days.into());
    (i128::from(calendar) << 64) + i128::from(interval.nanoseconds / 1000)
}

/// Row `i` of the tree of all types; the values depend on `edition`.
fn types_row(i: u64, edition: u64) -> Row {
    let random = |column: u64| mix(i * 1000 + edition * 100 + column);
    let number = |column: u64, extremes: [i128; 3]| match random(column) % 5 {
        0 => Cell::Null,
        1 => Cell::Number(extremes[(random(column + 50) % 3) as usize]),
        _ => Cell::Number(i128::from(random(column + 50) % 100)),
    };
    let never_null = |cell: Cell| if cell == Cell::Null { Cell::Number(0) } else { cell };
    let float64 = [f64::NAN.to_bits() as i64, (-0.0f64).to_bits() as i64, f64::NEG_INFINITY.to_bits() as i64];
    let float32 = [f32::NAN.to_bits() as i32, (-0.0f32).to_bits() as i32, f32::MIN_POSITIVE.to_bits() as i32];
    let text = ["", "ゼルコバ", "zelkova\0serrata", "a", "a longer text, which does not fit into a view"];
    let wide = 99_999_999_999_999_999_999_999_999_999_999_999_999;
    let micros = [i64::MIN.into(), i64::MAX.into(), -1];
    vec![
        Cell::Number(i128::from(i / 3) - 7),
        if i.is_multiple_of(3) { Cell::Null } else { Cell::Text(format!("{}{}", text[(i % 5) as usize], i % 3)) },
        match random(2) % 3 {
            0 => Cell::Null,
            value => Cell::Number(i128::from(value) - 1),
        },
        number(3, [-128, 127, -1]),
        never_null(number(4, [-32768, 32767, -1])),
        number(5, [i64::MIN.into(), i64::MAX.into(), -1]),
        match number(6, float32.map(i128::from)) {
            Cell::Number(small @ 0..100) => Cell::Number(((small as f32 / 4.0).to_bits() as i32).into()),
            other => other,
        },
        match number(7, float64.map(i128::from)) {
            Cell::Number(small @ 0..100) => Cell::Number((small as f64 / 10.0).to_bits().into()),
            other => other,
        },
        never_null(number(8, [-999_999_999_999_999, 999_999_999_999_999, -1])),
        number(9, [-wide, wide, -1]),
        match random(10) % 6 {
            5 => Cell::Null,
            n => Cell::Text(text[n as usize].into()),
        },
        match random(11) % 4 {
            0 => Cell::Null,
            n => Cell::Bytes(random(12).to_le_bytes()[..n as usize * 2].to_vec()),
        },
        number(12, [i32::MIN.into(), i32::MAX.into(), -1]),
        never_null(number(13, micros)),
        number(14, micros),
        never_null(number(15, micros)),
        number(16, [0, u128::MAX as i128, 1 << 64]),
        number(17, [INTERVALS.0, INTERVALS.1, -1]),
        match random(18) % 6 {
            5 => Cell::Null,
            n => Cell::List(
                (0..n).map(|k| if k == 2 { Cell::Null } else { Cell::Text(text[k as usize].into()) }).collect(),
            ),
        },
        Cell::List(match random(19) % 4 {
            0 => Vec::new(),
            1 => vec![Cell::Null, Cell::List(Vec::new())],
            n => vec![Cell::List((0..n).map(|k| number(19 + k, [-wide, wide, -1])).collect())],
        }),
    ]
}

fn loaded_row(i: u64) -> Row {
    let words = ["leaf", "branch", "trunk", "root", "bark", "seed", "crown", "grove"];
    let word = |k: u64| words[(mix(i * 50 + k) % 8) as usize];
    let text = (0..6 + i % 9).map(word).collect::<Vec<_>>().join(" ");
    let text = if i % 11 == 5 { Cell::Null } else { Cell::Text(text) };
    vec![Cell::Number(i128::from(i) * 10), text, Cell::Number(((i as f64) / 100.0).to_bits().into())]
}

fn map_key(i: u64) -> Vec<u8> {
    match i % 3 {
        0 => mix(i).to_be_bytes()[..5].to_vec(),
        1 => format!("key {:04}", i * 7 % 3000).into_bytes(),
        _ => [&[0; 3][..], &(i as u16).to_be_bytes()].concat(),
    }
}

fn map_value(i: u64, edition: u64) -> Vec<u8> {
    let seed = mix(i * 10 + edition);
    (0..seed % 50).map(|k| b' ' + (mix(seed + k) % 95) as u8).collect()
}

/// An Arrow array with the cells of a column.
fn array(ty: ColumnType, cells: &[&Cell]) -> ArrayRef {
    let number = |cell: &&Cell| match cell {
        Cell::Number(number) => Some(*number),
        _ => None,
    };
    let bytes = |cell: &&Cell| match cell {
        Cell::Bytes(bytes) => Some(bytes.clone()),
        _ => None,
    };
    let numbers = || cells.iter().map(number);
    let words = || numbers().map(|number| number.map(|number| number as i64));
    match ty {
        ColumnType::Boolean => Arc::new(numbers().map(|n| n.map(|n| n != 0)).collect::<BooleanArray>()),
        ColumnType::Int8 => Arc::new(words().map(|n| n.map(|n| n as i8)).collect::<Int8Array>()),
        ColumnType::Int16 => Arc::new(words().map(|n| n.map(|n| n as i16)).collect::<Int16Array>()),
        ColumnType::Int32 => Arc::new(words().map(|n| n.map(|n| n as i32)).collect::<Int32Array>()),
        ColumnType::Int64 => Arc::new(words().collect::<Int64Array>()),
        ColumnType::Float32 => Arc::new(words().map(|n| n.map(|n| f32::from_bits(n as u32))).collect::<Float32Array>()),
        ColumnType::Float64 => Arc::new(words().map(|n| n.map(|n| f64::from_bits(n as u64))).collect::<Float64Array>()),
        ColumnType::Decimal { .. } => Arc::new(numbers().collect::<Decimal128Array>().with_data_type(ty.arrow())),
        ColumnType::Time => Arc::new(words().collect::<Time64MicrosecondArray>()),
        ColumnType::Uuid => {
            let uuids = numbers().map(|number| number.map(i128::to_be_bytes));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(uuids, 16).unwrap())
        }
        ColumnType::Interval => Arc::new(numbers().map(|n| n.map(interval)).collect::<IntervalMonthDayNanoArray>()),
        ColumnType::Text => Arc::new(StringViewArray::from_iter(cells.iter().map(|cell| match cell {
            Cell::Text(text) => Some(text.as_str()),
            _ => None,
        }))),
        ColumnType::Bytes => Arc::new(BinaryViewArray::from_iter(cells.iter().map(bytes))),
        ColumnType::List(ty) => {
            let lists = || cells.iter().map(|cell| if let Cell::List(cells) = cell { Some(cells) } else { None });
            let elements: Vec<&Cell> = lists().flatten().flatten().collect();
            let lengths = OffsetBuffer::from_lengths(lists().map(|cells| cells.map_or(0, Vec::len)));
            let nulls = NullBuffer::from_iter(lists().map(|cells| cells.is_some()));
            let field = Arc::new(Field::new_list_field(ty.element().arrow(), true));
            Arc::new(ListArray::new(field, lengths, array(ty.element(), &elements), Some(nulls)))
        }
        ColumnType::Date => Arc::new(words().map(|n| n.map(|n| n as i32)).collect::<Date32Array>()),
        ColumnType::Timestamp { .. } => {
            Arc::new(words().collect::<TimestampMicrosecondArray>().with_data_type(ty.arrow()))
        }
    }
}

fn batch(schema: &Schema, rows: &[Row]) -> RecordBatch {
    let column = |(i, column): (usize, &Column)| array(column.ty, &rows.iter().map(|row| &row[i]).collect::<Vec<_>>());
    let columns = schema.columns().iter().enumerate().map(column).collect();
    RecordBatch::try_new(schema.arrow().clone(), columns).unwrap()
}

/// The cell in row `row` of an Arrow array.
fn cell(ty: ColumnType, array: &ArrayRef, row: usize) -> Cell {
    if array.is_null(row) {
        return Cell::Null;
    }
    Cell::Number(match ty {
        ColumnType::Boolean => array.as_boolean().value(row).into(),
        ColumnType::Int8 => array.as_primitive::<Int8Type>().value(row).into(),
        ColumnType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
        ColumnType::Int32 => array.as_primitive::<Int32Type>().value(row).into(),
        ColumnType::Int64 => array.as_primitive::<Int64Type>().value(row).into(),
        ColumnType::Float32 => (array.as_primitive::<Float32Type>().value(row).to_bits() as i32).into(),
        ColumnType::Float64 => (array.as_primitive::<Float64Type>().value(row).to_bits() as i64).into(),
        ColumnType::Decimal { .. } => array.as_primitive::<Decimal128Type>().value(row),
        ColumnType::Text => return Cell::Text(array.as_string_view().value(row).into()),
        ColumnType::List(ty) => {
            let elements = array.as_list::<i32>().value(row);
            return Cell::List((0..elements.len()).map(|i| cell(ty.element(), &elements, i)).collect());
        }
        ColumnType::Bytes => return Cell::Bytes(array.as_binary_view().value(row).into()),
        ColumnType::Date => array.as_primitive::<Date32Type>().value(row).into(),
        ColumnType::Timestamp { .. } => array.as_primitive::<TimestampMicrosecondType>().value(row).into(),
        ColumnType::Time => array.as_primitive::<Time64MicrosecondType>().value(row).into(),
        ColumnType::Uuid => i128::from_be_bytes(array.as_fixed_size_binary().value(row).try_into().unwrap()),
        ColumnType::Interval => number_of(array.as_primitive::<IntervalMonthDayNanoType>().value(row)),
    })
}

/// All rows of a tree, one per line.
pub fn read(store: &Store, tree: TreeId, direction: Direction) -> Result<Vec<String>> {
    let view = store.snapshot().tree(tree)?;
    let types = view.schema().columns().to_vec();
    let (pages, all) = (store.blocking(), (0..types.len()).collect::<Vec<_>>());
    let mut cursor = view.cursor(&pages, KeyRange::all(), direction);
    let mut lines = Vec::new();
    while let Some(chunk) = block_on(cursor.next())? {
        let columns = chunk.to_arrays(&all)?;
        for row in 0..chunk.rows() {
            let cells = types.iter().zip(&columns).map(|(column, array)| cell(column.ty, array, row).to_string());
            lines.push(cells.collect::<Vec<_>>().join(" "));
        }
    }
    Ok(lines)
}

/// The database under construction, and its expected rows so far.
struct SampleBuilder {
    store: Store,
    model: Model,
}

impl SampleBuilder {
    fn rows(&mut self, tree: TreeId) -> &mut BTreeMap<Row, Row> {
        self.model.entry(tree).or_default()
    }

    fn create(&mut self, tree: TreeId, schema: &Schema) {
        let mut batch = WriteBatch::new();
        batch.create_tree(tree, schema);
        self.store.commit(batch).unwrap();
        self.rows(tree);
    }

    fn drop_tree(&mut self, tree: TreeId) {
        let mut batch = WriteBatch::new();
        batch.drop_tree(tree);
        self.store.commit(batch).unwrap();
        self.model.remove(&tree);
    }

    fn insert(&mut self, tree: TreeId, schema: &Schema, rows: Vec<Row>) {
        let mut writes = WriteBatch::new();
        writes.insert(tree, schema, &batch(schema, &rows)).unwrap();
        self.store.commit(writes).unwrap();
        for mut row in rows {
            let rest = row.split_off(schema.key_columns());
            self.rows(tree).insert(row, rest);
        }
    }

    fn delete(&mut self, tree: TreeId, schema: &Schema, rows: Vec<Row>) {
        let mut writes = WriteBatch::new();
        writes.delete(tree, schema, &batch(schema, &rows)).unwrap();
        self.store.commit(writes).unwrap();
        for row in rows {
            self.rows(tree).remove(&row[..schema.key_columns()]);
        }
    }

    /// One commit of inserts, deletes and upserts of keys and values.
    fn change_map(&mut self, tree: TreeId, numbers: impl Iterator<Item = u64>, edition: u64) {
        let map = KeyValue::open(&self.store, tree).unwrap();
        let mut batch = KeyValueBatch::default();
        for i in numbers {
            let (key, value) = (map_key(i), map_value(i, edition));
            let rows = self.rows(tree);
            let cell = vec![Cell::Bytes(key.clone())];
            match mix(i + edition * 77) % 6 {
                0 => {
                    batch.delete(&map, &key);
                    rows.remove(&cell);
                }
                1 | 2 => {
                    let operand = &value[..value.len().min(3)];
                    batch.upsert(&map, &key, APPEND, operand);
                    match &mut rows.entry(cell).or_insert_with(|| vec![Cell::Bytes(Vec::new())])[0] {
                        Cell::Bytes(bytes) => bytes.extend_from_slice(operand),
                        other => panic!("unexpected value of the key-value tree: {other}"),
                    }
                }
                _ => {
                    batch.insert(&map, &key, &value);
                    rows.insert(cell, vec![Cell::Bytes(value)]);
                }
            }
        }
        map.commit(batch).unwrap();
    }

    fn load(&mut self, rows: Vec<Row>) {
        let mut writer = self.store.bulk_writer(LOADED, &loaded());
        writer.push(&batch(&loaded(), &rows)).unwrap();
        let writer = writer.finish().unwrap();
        self.store.install(WriteBatch::new(), vec![(LOADED, writer)]).unwrap();
        for mut row in rows {
            let rest = row.split_off(1);
            self.rows(LOADED).insert(row, rest);
        }
    }

    fn fill(&mut self) {
        self.create(MAP, &Schema::key_value());
        self.create(TYPES, &types());
        self.create(LOADED, &loaded());
        self.create(DROPPED, &Schema::key_value());
        self.create(EMPTY, &types());
        self.load((0..120).map(loaded_row).collect());
        for edition in 0..8 {
            let changes = if edition < 5 { 300 } else { 40 };
            self.change_map(MAP, (0..changes).map(|k| mix(edition * 1000 + k) % 1500), edition);
            self.insert(TYPES, &types(), (edition * 5..edition * 5 + 7).map(|i| types_row(i, edition)).collect());
            self.delete(TYPES, &types(), vec![types_row(edition * 3, 0)]);
            if edition == 4 {
                self.insert(LOADED, &loaded(), (30..35).map(|i| loaded_row(i * 4)).collect());
                self.delete(LOADED, &loaded(), (10..20).map(loaded_row).collect());
                self.change_map(DROPPED, 0..5, 0);
            }
            self.store.checkpoint().unwrap();
        }
        self.drop_tree(DROPPED);
        self.store.checkpoint().unwrap();
        self.after_the_checkpoint();
    }

    /// Commits that are in the log only.
    fn after_the_checkpoint(&mut self) {
        self.change_map(MAP, 0..25, 9);
        self.insert(TYPES, &types(), (0..4).map(|i| types_row(i * 10, 20)).collect());
        self.delete(TYPES, &types(), vec![types_row(20, 0), types_row(21, 0)]);
        self.create(NEW, &Schema::key_value());
        self.change_map(NEW, 40..46, 1);
        self.insert(LOADED, &loaded(), vec![loaded_row(1000)]);
        self.drop_tree(EMPTY);
        self.change_map(MAP, 500..503, 10);
    }
}

/// The sample after a crash, with commits in the log only, and after closing.
pub struct Samples {
    pub model: Model,
    pub crashed: Image,
    pub closed: Image,
}

pub fn samples() -> Samples {
    let device = Image::default().device();
    let store = Store::open(device.device(), Path::new(DIR), options()).unwrap();
    let mut builder = SampleBuilder { store, model: Model::new() };
    builder.fill();
    let crashed = Image::take(&device);
    drop(builder.store);
    Samples { model: builder.model, crashed, closed: Image::take(&device) }
}

/// A smaller sample: before the first checkpoint, after a checkpoint and further commits, and after closing.
pub fn small_samples() -> [Image; 3] {
    let device = Image::default().device();
    let store = Store::open(device.device(), Path::new(DIR), options()).unwrap();
    let mut builder = SampleBuilder { store, model: Model::new() };
    builder.create(MAP, &Schema::key_value());
    builder.create(TYPES, &types());
    builder.change_map(MAP, 0..9, 0);
    builder.insert(TYPES, &types(), (0..3).map(|i| types_row(i, 0)).collect());
    builder.delete(TYPES, &types(), vec![types_row(1, 0)]);
    let new = Image::take(&device);
    builder.store.checkpoint().unwrap();
    builder.change_map(MAP, 3..13, 1);
    builder.store.checkpoint().unwrap();
    builder.change_map(MAP, 5..8, 2);
    builder.insert(TYPES, &types(), (2..4).map(|i| types_row(i, 1)).collect());
    let crashed = Image::take(&device);
    drop(builder.store);
    [new, crashed, Image::take(&device)]
}

/// Sample encoded keys of the tree of all types.
pub fn types_keys() -> Vec<Vec<u8>> {
    let rows: Vec<Row> = (0..5).map(|i| types_row(i, 0)).collect();
    let (schema, mut keys) = (types(), Vec::new());
    let codec = keyaki_store::KeyCodec::new(&schema);
    for row in 0..rows.len() {
        keys.push(Vec::new());
        codec.encode(&batch(&schema, &rows).columns()[..2], row, &mut keys[row]);
    }
    keys
}

/// Opens the sample database on a device.
pub fn open(device: Arc<dyn Device>) -> Result<Store> {
    Store::open(device, Path::new(DIR), Options { create: false, ..options() })
}
