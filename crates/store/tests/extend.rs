//! Trees that get further columns, compared with a model over random histories: rows of all ages in root buffers, runs and
//! leaves, old snapshots, row upserts of the old columns, flushes, reopenings and crashes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int16Type, Int64Type, IntervalMonthDayNanoType};
use arrow_array::{
    Array, ArrayRef, Decimal128Array, FixedSizeBinaryArray, Int16Array, Int64Array, IntervalMonthDayNanoArray,
    ListArray, RecordBatch, StringViewArray,
};
use arrow_buffer::IntervalMonthDayNano;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::{
    Column, ColumnChange, ColumnType, Direction, Durability, Error, KeyRange, ListType, Options, Schema, Snapshot,
    Store, TreeId, WriteBatch, block_on,
};

const TREE: TreeId = TreeId::new(20);
const KEYS: u64 = 60;
/// Columns of the tree at first: the key, a counter that is not nullable, a text.
const FIRST_COLUMNS: usize = 3;
const LAST_COLUMNS: usize = 9;

fn column_type(column: usize) -> ColumnType {
    match column {
        0 | 1 => ColumnType::Int64,
        _ => {
            let list = ColumnType::List(ListType::of(ColumnType::Int64).unwrap());
            [ColumnType::Text, ColumnType::Int16, ColumnType::Uuid, ColumnType::Interval, list][column % 5]
        }
    }
}

/// The counter, and columns with a missing value.
fn is_nullable(column: usize) -> bool {
    !matches!(column, 0 | 1 | 5 | 6)
}

/// The value of older rows in a column that the tree gets.
fn missing(column: usize) -> Option<i64> {
    [Some(44), Some(55), Some(-66), Some(77)].get(column.checked_sub(4)?).copied().flatten()
}

fn schema(columns: usize) -> Schema {
    let column = |i| Column { name: format!("c{i}"), ty: column_type(i), nullable: is_nullable(i) };
    let schema = Schema::new((0..columns).map(column).collect(), 1);
    (FIRST_COLUMNS..columns).fold(schema, |schema, i| schema.with_missing(i, &array(i, vec![missing(i)])).unwrap())
}

/// As [`schema`], without missing values: the columns in which a writer encodes rows.
fn bare(columns: usize) -> Schema {
    Schema::new(schema(columns).columns().to_vec(), 1)
}

/// The values of the columns behind the key; texts, UUIDs, intervals and lists are written as numbers.
type Row = Vec<Option<i64>>;
type Model = BTreeMap<i64, Row>;

fn array(column: usize, values: Vec<Option<i64>>) -> ArrayRef {
    match column_type(column) {
        ColumnType::Int64 => Arc::new(Int64Array::from(values)),
        ColumnType::Int16 => Arc::new(values.iter().map(|v| v.map(|v| v as i16)).collect::<Int16Array>()),
        ColumnType::Text => Arc::new(values.iter().map(|v| v.map(|v| v.to_string())).collect::<StringViewArray>()),
        ColumnType::List(_) => Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(
            values.iter().map(|value| value.map(|value| [None, Some(value)])),
        )),
        ColumnType::Interval => {
            let interval = |days| IntervalMonthDayNano::new(1, days as i32, 0);
            Arc::new(values.iter().map(|value| value.map(interval)).collect::<IntervalMonthDayNanoArray>())
        }
        _ => {
            let uuids = values.iter().map(|value| value.map(|value| i128::from(value).to_be_bytes()));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(uuids, 16).unwrap())
        }
    }
}

fn value(column: usize, array: &ArrayRef, row: usize) -> Option<i64> {
    array.is_valid(row).then(|| match column_type(column) {
        ColumnType::Int64 => array.as_primitive::<Int64Type>().value(row),
        ColumnType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
        ColumnType::Text => array.as_string_view().value(row).parse().unwrap(),
        ColumnType::List(_) => array.as_list::<i32>().value(row).as_primitive::<Int64Type>().value(1),
        ColumnType::Interval => array.as_primitive::<IntervalMonthDayNanoType>().value(row).days.into(),
        _ => i128::from_be_bytes(array.as_fixed_size_binary().value(row).try_into().unwrap()) as i64,
    })
}

fn batch(rows: &[(i64, Row)], columns: usize) -> RecordBatch {
    let values = |column: usize| match column {
        0 => rows.iter().map(|(key, _)| Some(*key)).collect(),
        column => rows.iter().map(|(_, row)| row[column - 1]).collect(),
    };
    let arrays = (0..columns).map(|column| array(column, values(column))).collect();
    RecordBatch::try_new(schema(columns).arrow().clone(), arrays).unwrap()
}

fn row(columns: usize, random: &mut Random) -> Row {
    let value = |column| (!is_nullable(column) || random.below(4) > 0).then(|| random.below(1000) as i64 - 500);
    (1..columns).map(value).collect()
}

fn contents(store: &Store, snapshot: &Snapshot, direction: Direction) -> Vec<(i64, Row)> {
    let (view, source, mut rows) = (snapshot.tree(TREE).unwrap(), store.blocking(), Vec::new());
    let all: Vec<usize> = (0..view.schema().columns().len()).collect();
    let mut cursor = view.cursor(&source, KeyRange::all(), direction);
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        let columns = chunk.to_arrays(&all).unwrap();
        for i in 0..chunk.rows() {
            let values = all[1..].iter().map(|&column| value(column, &columns[column], i));
            rows.push((columns[0].as_primitive::<Int64Type>().value(i), values.collect()));
        }
    }
    rows
}

/// Adds a random change to a batch and to the model.
fn change(write: &mut WriteBatch, model: &mut Model, columns: usize, random: &mut Random) {
    let mut keys: Vec<i64> = (0..1 + random.below(8)).map(|_| random.below(KEYS) as i64).collect();
    keys.sort_unstable();
    keys.dedup();
    let rows: Vec<(i64, Row)> = keys.into_iter().map(|key| (key, row(columns, random))).collect();
    let schema = bare(columns);
    match random.below(6) {
        0..3 => {
            write.insert(TREE, &schema, &batch(&rows, columns)).unwrap();
            model.extend(rows);
        }
        3 => {
            write.delete(TREE, &schema, &batch(&rows, columns)).unwrap();
            rows.iter().for_each(|(key, _)| drop(model.remove(key)));
        }
        _ => {
            // Adds to the counter, sets another column, and keeps the rest.
            let set = 1 + random.below(columns as u64 - 1) as usize;
            let mut changes = vec![ColumnChange::Keep; columns - 1];
            changes[set - 1] = ColumnChange::Set;
            changes[0] = ColumnChange::Add;
            write.upsert_rows(TREE, &schema, batch(&rows, columns).columns(), &changes, None).unwrap();
            for (key, new) in rows {
                match model.get_mut(&key) {
                    Some(old) => {
                        let sum = old[0].zip(new[0]).map(|(a, b)| a + b);
                        old[set - 1] = new[set - 1];
                        old[0] = sum;
                    }
                    None => drop(model.insert(key, new)),
                }
            }
        }
    }
}

fn options(seed: u64) -> Options {
    Options {
        buffer_bytes: [3_000, 20_000, 1 << 20][(seed % 3) as usize],
        checkpoint_log_bytes: 60_000,
        cache_bytes: 200_000,
        page_bytes: 4096,
        leaf_bytes: 8_192,
        fan_out: 2 + (seed % 4) as usize,
        node_buffer_bytes: 10_000,
        runs_per_node: 1 + (seed % 4) as usize,
        durability: Durability::Full,
        ..Options::default()
    }
}

fn check(store: &Store, snapshot: &Snapshot, model: &Model) {
    let expected: Vec<(i64, Row)> = model.iter().map(|(key, row)| (*key, row.clone())).collect();
    assert_eq!(contents(store, snapshot, Direction::Ascending), expected);
    let mut descending = contents(store, snapshot, Direction::Descending);
    descending.reverse();
    assert_eq!(descending, expected);
}

fn extend(store: &Store, model: &mut Model, columns: usize) {
    let mut write = WriteBatch::new();
    // The tree keeps the missing values of its columns, whatever the schema has for them.
    let known = store.snapshot().tree(TREE).unwrap().schema().columns().len();
    let changed = match known > 7 {
        true => schema(columns).with_missing(7, &array(7, vec![Some(-1)])).unwrap(),
        false => schema(columns),
    };
    write.extend_tree(TREE, &changed);
    store.commit(write).unwrap();
    model.values_mut().for_each(|row| row.extend((row.len() + 1..columns).map(missing)));
}

#[test]
fn random_histories_match_the_model() {
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
        let open = || Store::open(simulated.device(), Path::new("db"), options(seed)).unwrap();
        let mut store = open();
        let mut columns = FIRST_COLUMNS;
        let mut create = WriteBatch::new();
        create.create_tree(TREE, &schema(columns));
        store.commit(create).unwrap();
        let mut model = Model::new();
        let mut held: Vec<(Snapshot, Model)> = Vec::new();
        for step in 0..500 {
            match random.below(50) {
                0 => store.checkpoint().unwrap(),
                1..3 => held.push((store.snapshot(), model.clone())),
                3 => {
                    held.clear();
                    drop(store);
                    if random.below(2) == 0 {
                        simulated.crash();
                    }
                    store = open();
                }
                4 if columns < LAST_COLUMNS => {
                    columns += 1 + random.below(2) as usize;
                    extend(&store, &mut model, columns);
                    check(&store, &store.snapshot(), &model);
                }
                5..8 => {
                    let mut transaction = store.begin();
                    for _ in 0..3 {
                        let mut write = WriteBatch::new();
                        change(&mut write, &mut model, columns, &mut random);
                        transaction.write(write).unwrap();
                        check(&store, &transaction.snapshot(), &model);
                    }
                    transaction.commit().unwrap().unwrap().wait().unwrap();
                }
                _ => {
                    let mut write = WriteBatch::new();
                    change(&mut write, &mut model, columns, &mut random);
                    store.commit(write).unwrap();
                }
            }
            if step % 10 == 0 {
                check(&store, &store.snapshot(), &model);
                held.iter().for_each(|(snapshot, model)| check(&store, snapshot, model));
                held.truncate(3);
            }
        }
        assert!(columns > FIRST_COLUMNS, "seed {seed}");
    }
}

fn new_store(simulated: &Simulated) -> Store {
    let store = Store::open(simulated.device(), Path::new("db"), options(2)).unwrap();
    let mut create = WriteBatch::new();
    create.create_tree(TREE, &schema(FIRST_COLUMNS));
    store.commit(create).unwrap();
    store
}

#[test]
fn rows_with_other_columns_are_refused() {
    let simulated = Simulated::new(SimulatedOptions::default());
    let store = new_store(&simulated);
    let rows = |columns: usize| batch(&[(1, vec![Some(1); columns - 1])], columns);
    let insert = |columns: usize| {
        let mut write = WriteBatch::new();
        write.insert(TREE, &schema(columns), &rows(columns)).unwrap();
        write
    };
    store.commit(insert(3)).unwrap();
    assert!(matches!(store.commit(insert(4)), Err(Error::TreeMismatch { .. })));
    // A transaction that began before.
    let mut transaction = store.begin();
    transaction.write(insert(3)).unwrap();
    // The columns and the rows of one commit.
    let mut both = WriteBatch::new();
    both.extend_tree(TREE, &schema(5));
    both.append(insert(5));
    store.commit(both).unwrap();
    assert!(transaction.commit().is_err());
    assert!(matches!(store.commit(insert(3)), Err(Error::TreeMismatch { .. })));
    store.commit(insert(5)).unwrap();
    assert_eq!(contents(&store, &store.snapshot(), Direction::Ascending), [(1, vec![Some(1); 4])]);
}

#[test]
fn added_columns_are_nullable_or_have_missing_values() {
    let simulated = Simulated::new(SimulatedOptions::default());
    let store = new_store(&simulated);
    let refused = |schema: &Schema| {
        let mut write = WriteBatch::new();
        write.extend_tree(TREE, schema);
        matches!(store.commit(write), Err(Error::TreeMismatch { .. }))
    };
    // Fewer columns, other types, and a column that is not nullable.
    assert!(refused(&schema(2)));
    let mut columns = schema(4).columns().to_vec();
    columns[3].nullable = false;
    assert!(refused(&Schema::new(columns.clone(), 1)));
    columns[3].nullable = true;
    assert!(refused(&Schema::new(columns.clone(), 2)));
    columns[2].nullable = !columns[2].nullable;
    assert!(refused(&Schema::new(columns.clone(), 1)));
    columns[2].nullable = !columns[2].nullable;
    columns[2].ty = ColumnType::Bytes;
    assert!(refused(&Schema::new(columns, 1)));
    let mut missing = WriteBatch::new();
    missing.extend_tree(TreeId::new(21), &schema(4));
    assert!(matches!(store.commit(missing), Err(Error::TreeNotFound(_))));
    let mut write = WriteBatch::new();
    write.extend_tree(TREE, &schema(4));
    assert!(matches!(store.begin().write(write), Err(Error::InvalidBatch { .. })));
}

#[test]
fn rows_can_be_loaded_beside_older_ones() {
    let simulated = Simulated::new(SimulatedOptions::default());
    let mut store = new_store(&simulated);
    let load = |store: &Store, keys: std::ops::Range<i64>, columns: usize| {
        let rows: Vec<(i64, Row)> = keys.map(|key| (key, vec![Some(key % 400); columns - 1])).collect();
        let mut writer = store.bulk_writer(TREE, &schema(columns));
        writer.push(&batch(&rows, columns)).unwrap();
        writer.finish().unwrap()
    };
    let loaded = load(&store, 0..3000, 3);
    store.install(WriteBatch::new(), vec![(TREE, loaded)]).unwrap();
    let early = load(&store, 3000..3100, 3);
    let mut model: Model = (0..3000).map(|key| (key, vec![Some(key % 400); 2])).collect();
    extend(&store, &mut model, 6);
    assert!(matches!(store.install(WriteBatch::new(), vec![(TREE, early)]), Err(Error::TreeMismatch { .. })));
    let loaded = load(&store, 2500..5000, 6);
    store.install(WriteBatch::new(), vec![(TREE, loaded)]).unwrap();
    model.extend((2500..5000).map(|key| (key, vec![Some(key % 400); 5])));
    check(&store, &store.snapshot(), &model);
    store.checkpoint().unwrap();
    drop(store);
    store = Store::open(simulated.device(), Path::new("db"), options(2)).unwrap();
    check(&store, &store.snapshot(), &model);
}

/// Sums on top of a missing value may not leave the range of the column, and changes of a row that lacks a column see its
/// missing value.
#[test]
fn upserts_see_missing_values() {
    use ColumnChange::{Add, Append, Fill, Keep, Max, Set};
    let column = |name: &str, ty, nullable| Column { name: name.into(), ty, nullable };
    let columns = |count: usize| {
        let all = [
            column("key", ColumnType::Int64, false),
            column("n", ColumnType::Int16, false),
            column("text", ColumnType::Text, true),
            column("filled", ColumnType::Int16, true),
        ];
        all[..count].to_vec()
    };
    let number = |value: i16| Arc::new(Int16Array::from(vec![value])) as ArrayRef;
    let text = |value: &str| Arc::new(StringViewArray::from(vec![value])) as ArrayRef;
    let key = |key: i64| Arc::new(Int64Array::from(vec![key])) as ArrayRef;
    for flushed in [false, true] {
        let simulated = Simulated::new(SimulatedOptions::default());
        let open = || Store::open(simulated.device(), Path::new("db"), options(2)).unwrap();
        let mut store = open();
        let mut write = WriteBatch::new();
        write.create_tree(TREE, &Schema::new(columns(1), 1));
        store.commit(write).unwrap();
        let mut write = WriteBatch::new();
        let first = Schema::new(columns(1), 1);
        let rows = Arc::new(Int64Array::from_iter_values(0..4)) as ArrayRef;
        write.insert(TREE, &first, &RecordBatch::try_new(first.arrow().clone(), vec![rows]).unwrap()).unwrap();
        // A row upsert that a later schema must widen.
        write.upsert_rows(TREE, &first, &[key(4)], &[], None).unwrap();
        store.commit(write).unwrap();
        if flushed {
            store.checkpoint().unwrap();
        }
        let schema = Schema::new(columns(4), 1).with_missing(1, &number(32_000)).unwrap();
        let schema = schema.with_missing(2, &text("old")).unwrap().with_missing(3, &number(7)).unwrap();
        let mut write = WriteBatch::new();
        write.extend_tree(TREE, &schema);
        store.commit(write).unwrap();
        let upsert = |store: &Store, id: i64, n: i16, changes: [ColumnChange; 3]| {
            let mut write = WriteBatch::new();
            let row = [key(id), number(n), text("+"), number(n)];
            write.upsert_rows(TREE, &Schema::new(columns(4), 1), &row, &changes, None).unwrap();
            store.commit(write).map(drop)
        };
        upsert(&store, 0, 700, [Add, Append, Fill]).unwrap();
        assert!(matches!(upsert(&store, 0, 100, [Add, Keep, Keep]), Err(Error::UpsertRange { .. })));
        upsert(&store, 1, 1, [Max, Set, Keep]).unwrap();
        upsert(&store, 5, 1, [Add, Append, Fill]).unwrap();
        let found = |store: &Store| {
            let (snapshot, source) = (store.snapshot(), store.blocking());
            let (view, mut rows) = (snapshot.tree(TREE).unwrap(), Vec::new());
            let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
            while let Some(chunk) = block_on(cursor.next()).unwrap() {
                let columns = chunk.to_arrays(&[0, 1, 2, 3]).unwrap();
                for i in 0..chunk.rows() {
                    rows.push((
                        columns[0].as_primitive::<Int64Type>().value(i),
                        columns[1].as_primitive::<Int16Type>().value(i),
                        columns[2].as_string_view().value(i).to_string(),
                        columns[3].as_primitive::<Int16Type>().value(i),
                    ));
                }
            }
            rows
        };
        let row = |key: i64, n: i16, text: &str, filled: i16| (key, n, text.to_string(), filled);
        let expected = [
            row(0, 32_700, "old+", 7),
            row(1, 32_000, "+", 7),
            row(2, 32_000, "old", 7),
            row(3, 32_000, "old", 7),
            row(4, 32_000, "old", 7),
            row(5, 1, "+", 1),
        ];
        assert_eq!(found(&store), expected);
        for crash in [false, true] {
            drop(store);
            if crash {
                simulated.crash();
            }
            store = open();
            assert_eq!(found(&store), expected);
            assert!(matches!(upsert(&store, 0, 100, [Add, Keep, Keep]), Err(Error::UpsertRange { .. })));
            store.checkpoint().unwrap();
            assert_eq!(found(&store), expected);
        }
    }
}

/// Decimals get digits without changing their rows, runs and buffers, and sums may then be larger.
#[test]
fn decimals_get_digits() {
    let schema = |key: u8, precision: u8, scale: i8, more: bool| {
        let column = |name: &str, precision, scale, nullable| Column {
            name: name.into(),
            ty: ColumnType::Decimal { precision, scale },
            nullable,
        };
        let columns = [column("key", key, 0, false), column("n", precision, scale, false), column("more", 5, 0, true)];
        Schema::new(columns[..2 + usize::from(more)].to_vec(), 1)
    };
    let decimals = |precision, scale, value| {
        let array = Decimal128Array::from(vec![Some(value)]).with_precision_and_scale(precision, scale).unwrap();
        Arc::new(array) as ArrayRef
    };
    for flushed in [false, true] {
        let simulated = Simulated::new(SimulatedOptions::default());
        let open = || Store::open(simulated.device(), Path::new("db"), options(1)).unwrap();
        let mut store = open();
        let mut write = WriteBatch::new();
        write.create_tree(TREE, &schema(6, 4, 2, false));
        store.commit(write).unwrap();
        let upsert = |store: &Store, key: i128, value: i128, precision: u8, more: bool| {
            let mut write = WriteBatch::new();
            let mut row = vec![decimals(6, 0, key), decimals(precision, 2, value)];
            let mut changes = vec![ColumnChange::Add];
            if more {
                row.push(decimals(5, 0, 7));
                changes.push(ColumnChange::Fill);
            }
            write.upsert_rows(TREE, &schema(6, precision, 2, more), &row, &changes, None).unwrap();
            store.commit(write).map(drop)
        };
        for key in 0..3 {
            upsert(&store, key, 1000, 4, false).unwrap();
        }
        assert!(matches!(upsert(&store, 0, 9000, 4, false), Err(Error::UpsertRange { .. })));
        if flushed {
            store.checkpoint().unwrap();
        }
        upsert(&store, 1, 500, 4, false).unwrap();
        for wrong in [schema(6, 3, 2, false), schema(6, 6, 3, false), schema(7, 4, 2, false)] {
            let mut write = WriteBatch::new();
            write.extend_tree(TREE, &wrong);
            assert!(matches!(store.commit(write), Err(Error::TreeMismatch { .. })), "{wrong:?}");
        }
        for (precision, more) in [(6, false), (8, true)] {
            let mut write = WriteBatch::new();
            write.extend_tree(TREE, &schema(6, precision, 2, more));
            store.commit(write).unwrap();
            assert!(matches!(upsert(&store, 0, 1, 4, false), Err(Error::TreeMismatch { .. })));
            upsert(&store, 0, 5000, precision, more).unwrap();
        }
        let found = |store: &Store| {
            let (snapshot, source) = (store.snapshot(), store.blocking());
            let (view, mut rows) = (snapshot.tree(TREE).unwrap(), Vec::new());
            let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
            while let Some(chunk) = block_on(cursor.next()).unwrap() {
                let columns = chunk.to_arrays(&[0, 1, 2]).unwrap();
                assert_eq!(*columns[1].data_type(), ColumnType::Decimal { precision: 8, scale: 2 }.arrow());
                let values = columns.iter().map(|column| column.as_primitive::<Decimal128Type>());
                let values: Vec<_> = values.collect();
                rows.extend((0..chunk.rows()).map(|i| {
                    let value = |column: usize| values[column].is_valid(i).then(|| values[column].value(i));
                    [value(0), value(1), value(2)]
                }));
            }
            rows
        };
        let expected = [[Some(0), Some(11_000), Some(7)], [Some(1), Some(1500), None], [Some(2), Some(1000), None]];
        assert_eq!(found(&store), expected);
        for crash in [false, true] {
            drop(store);
            if crash {
                simulated.crash();
            }
            store = open();
            assert_eq!(found(&store), expected);
            store.checkpoint().unwrap();
            assert_eq!(found(&store), expected);
        }
    }
}
