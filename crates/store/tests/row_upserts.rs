//! Row upserts compared with a model over long random histories: all changes on columns of all kinds, mixed with inserts and
//! deletes, in root buffers, runs and leaves, in transactions, after reopenings and crashes; and the refusal of sums that
//! could leave the range of their column.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float64Type, Int16Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, Decimal128Array, Float64Array, Int16Array, Int64Array, RecordBatch, StringViewArray,
};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::ColumnChange::{self, Add, Append, Fill, Keep, Max, Min, Replace, Set};
use keyaki_store::{
    Column, ColumnType, Direction, Durability, Error, KeyRange, MergePolicy, Options, Schema, Snapshot, Store, TreeId,
    WriteBatch, block_on,
};

use common::number_key;

const TREE: TreeId = TreeId::new(20);

/// The columns: key, counter (NOT NULL), small, amount, price, name.
fn schema() -> Schema {
    let column = |name: &str, ty, nullable| Column { name: name.into(), ty, nullable };
    let columns = vec![
        column("key", ColumnType::Int64, false),
        column("counter", ColumnType::Int64, false),
        column("small", ColumnType::Int16, true),
        column("amount", ColumnType::Float64, true),
        column("price", ColumnType::Decimal { precision: 12, scale: 2 }, true),
        column("name", ColumnType::Text, true),
    ];
    Schema::new(columns, 1)
}

/// A value of any column but the key. Floats are small integers, so that all sums are exact.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum Value {
    Null,
    Number(i64),
    Text(String),
}

type Row = Vec<Value>;
type Model = BTreeMap<i64, Row>;

fn batch(rows: &[(i64, Row)]) -> RecordBatch {
    let number = |column: usize| {
        rows.iter().map(move |(_, row)| match &row[column] {
            Value::Number(number) => Some(*number),
            _ => None,
        })
    };
    let texts = rows.iter().map(|(_, row)| match &row[4] {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    });
    let prices = number(3).map(|price| price.map(i128::from));
    let prices: Decimal128Array = prices.collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|(key, _)| *key))),
        Arc::new(number(0).collect::<Int64Array>()),
        Arc::new(number(1).map(|n| n.map(|n| n as i16)).collect::<Int16Array>()),
        Arc::new(number(2).map(|n| n.map(|n| n as f64)).collect::<Float64Array>()),
        Arc::new(prices.with_precision_and_scale(12, 2).unwrap()),
        Arc::new(texts.collect::<StringViewArray>()),
    ];
    let schema = schema();
    let fields = schema.arrow().fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let fields = fields.collect::<Vec<_>>();
    RecordBatch::try_new(Arc::new(arrow_schema::Schema::new(fields)), columns).unwrap()
}

fn contents(store: &Store, snapshot: &Snapshot, range: KeyRange, direction: Direction) -> Vec<(i64, Row)> {
    let (view, source, mut rows) = (snapshot.tree(TREE).unwrap(), store.blocking(), Vec::new());
    let mut cursor = view.cursor(&source, range, direction);
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        let columns = chunk.to_arrays(&[0, 1, 2, 3, 4, 5]).unwrap();
        for i in 0..chunk.rows() {
            let value = |c: usize, value: &dyn Fn(&ArrayRef) -> Value| match columns[c].is_null(i) {
                true => Value::Null,
                false => value(&columns[c]),
            };
            let row = vec![
                value(1, &|array| Value::Number(array.as_primitive::<Int64Type>().value(i))),
                value(2, &|array| Value::Number(array.as_primitive::<Int16Type>().value(i).into())),
                value(3, &|array| Value::Number(array.as_primitive::<Float64Type>().value(i) as i64)),
                value(4, &|array| Value::Number(array.as_primitive::<Decimal128Type>().value(i) as i64)),
                value(5, &|array| Value::Text(array.as_string_view().value(i).into())),
            ];
            rows.push((columns[0].as_primitive::<Int64Type>().value(i), row));
        }
    }
    rows
}

fn changed(change: ColumnChange, old: &Value, argument: &Value) -> Value {
    let is_null = |value: &Value| *value == Value::Null;
    match change {
        Keep => old.clone(),
        Set => argument.clone(),
        Fill => if is_null(old) { argument } else { old }.clone(),
        Replace => if is_null(argument) { old } else { argument }.clone(),
        Min if is_null(old) || (!is_null(argument) && argument < old) => argument.clone(),
        Max if is_null(old) || (!is_null(argument) && argument > old) => argument.clone(),
        Min | Max => old.clone(),
        Add | Append => match (old, argument) {
            (Value::Number(a), Value::Number(b)) => Value::Number(a + b),
            (Value::Text(a), Value::Text(b)) => Value::Text(format!("{a}{b}")),
            _ => Value::Null,
        },
    }
}

fn value(column: usize, random: &mut Random) -> Value {
    if column > 0 && random.below(5) == 0 {
        return Value::Null;
    }
    match column {
        4 => Value::Text("a€b".chars().cycle().skip(random.below(3) as usize).take(random.below(4) as usize).collect()),
        1 => Value::Number(random.below(7) as i64 - 3),
        _ => Value::Number(random.below(2000) as i64 - 1000),
    }
}

fn row(random: &mut Random) -> Row {
    (0..5).map(|column| value(column, random)).collect()
}

/// Random changes, defined for their columns.
fn changes(random: &mut Random) -> Vec<ColumnChange> {
    let change = |column| {
        let all: &[ColumnChange] = match column {
            4 => &[Keep, Set, Min, Max, Fill, Replace, Append],
            _ => &[Keep, Set, Add, Min, Max, Fill, Replace, Add],
        };
        all[random.below(all.len() as u64) as usize]
    };
    (0..5).map(change).collect()
}

/// Adds a random change to a batch and to the model. Each key gets at most one message.
fn change(write: &mut WriteBatch, model: &mut Model, random: &mut Random) {
    let mut keys: Vec<i64> = (0..1 + random.below(6)).map(|_| random.below(40) as i64).collect();
    keys.sort_unstable();
    keys.dedup();
    let rows: Vec<(i64, Row)> = keys.into_iter().map(|key| (key, row(random))).collect();
    match random.below(8) {
        0 => {
            write.insert(TREE, &schema(), &batch(&rows)).unwrap();
            model.extend(rows);
        }
        1 => {
            write.delete(TREE, &schema(), &batch(&rows)).unwrap();
            rows.iter().for_each(|(key, _)| drop(model.remove(key)));
        }
        _ => {
            let changes = changes(random);
            let arguments: Option<Vec<(i64, Row)>> =
                (random.below(2) == 0).then(|| rows.iter().map(|(key, _)| (*key, row(random))).collect());
            let arguments_batch = arguments.as_ref().map(|arguments| batch(arguments));
            write
                .upsert_rows(
                    TREE,
                    &schema(),
                    batch(&rows).columns(),
                    &changes,
                    arguments_batch.as_ref().map(|batch| batch.columns()),
                )
                .unwrap();
            for (i, (key, new)) in rows.into_iter().enumerate() {
                let argument = arguments.as_ref().map_or(&new, |arguments| &arguments[i].1).clone();
                let change = |old: &Row| (0..5).map(|c| changed(changes[c], &old[c], &argument[c])).collect();
                let updated = model.get(&key).map_or(new, change);
                model.insert(key, updated);
            }
        }
    }
}

fn options(seed: u64) -> Options {
    Options {
        buffer_bytes: [3_000, 20_000, 1 << 20][(seed % 3) as usize],
        checkpoint_log_bytes: 100_000,
        cache_bytes: 200_000,
        page_bytes: 4096,
        leaf_bytes: 8_192,
        fan_out: 2 + (seed % 4) as usize,
        node_buffer_bytes: 10_000,
        runs_per_node: 1 + (seed % 4) as usize,
        merge_policy: [MergePolicy::Tiered, MergePolicy::Leveled][(seed / 4 % 2) as usize],
        durability: Durability::Full,
        ..Options::default()
    }
}

fn check(store: &Store, snapshot: &Snapshot, model: &Model, random: &mut Random) {
    let expected: Vec<(i64, Row)> = model.iter().map(|(key, row)| (*key, row.clone())).collect();
    assert_eq!(contents(store, snapshot, KeyRange::all(), Direction::Ascending), expected);
    let mut descending = contents(store, snapshot, KeyRange::all(), Direction::Descending);
    descending.reverse();
    assert_eq!(descending, expected);
    for _ in 0..5 {
        let key = random.below(40) as i64;
        let expected: Vec<_> = model.get(&key).map(|row| (key, row.clone())).into_iter().collect();
        assert_eq!(contents(store, snapshot, KeyRange::point(number_key(key)), Direction::Ascending), expected);
    }
    let view = snapshot.tree(TREE).unwrap();
    let (source, mut rows) = (store.blocking(), 0);
    let mut counter = view.counter(&source, KeyRange::all());
    while let Some(more) = block_on(counter.next()).unwrap() {
        rows += more;
    }
    assert_eq!(rows, model.len() as u64);
}

#[test]
fn random_histories_match_the_model() {
    for seed in 0..16 {
        let mut random = Random::new(seed);
        let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
        let open = || Store::open(simulated.device(), Path::new("db"), options(seed)).unwrap();
        let mut store = open();
        let mut create = WriteBatch::new();
        create.create_tree(TREE, &schema());
        store.commit(create).unwrap();
        let mut model = Model::new();
        let mut held: Option<(Snapshot, Model)> = None;
        for step in 0..400 {
            match random.below(40) {
                0 => store.checkpoint().unwrap(),
                1 => held = Some((store.snapshot(), model.clone())),
                2 => {
                    held = None;
                    drop(store);
                    if random.below(2) == 0 {
                        simulated.crash();
                    }
                    store = open();
                }
                3..8 => {
                    // Several statements of a transaction, which sees its own upserts.
                    let mut transaction = store.begin();
                    for _ in 0..3 {
                        let mut write = WriteBatch::new();
                        change(&mut write, &mut model, &mut random);
                        transaction.write(write).unwrap();
                        check(&store, &transaction.snapshot(), &model, &mut random);
                    }
                    transaction.commit().unwrap().unwrap().wait().unwrap();
                }
                _ => {
                    let mut write = WriteBatch::new();
                    change(&mut write, &mut model, &mut random);
                    store.commit(write).unwrap();
                }
            }
            if step % 10 == 0 {
                check(&store, &store.snapshot(), &model, &mut random);
                if let Some((snapshot, model)) = &held {
                    check(&store, snapshot, model, &mut random);
                }
            }
        }
    }
}

fn new_store(simulated: &Simulated) -> Store {
    let store = Store::open(simulated.device(), Path::new("db"), options(2)).unwrap();
    let mut create = WriteBatch::new();
    create.create_tree(TREE, &schema());
    store.commit(create).unwrap();
    store
}

/// A row with these numbers as counter, small and price.
fn numbers(key: i64, counter: i64, small: i64, price: i64) -> (i64, Row) {
    let number = Value::Number;
    (key, vec![number(counter), number(small), Value::Null, number(price), Value::Null])
}

/// Adds the numbers of rows to those of the rows with their keys.
fn sums(rows: &[(i64, Row)]) -> WriteBatch {
    let mut write = WriteBatch::new();
    write.upsert_rows(TREE, &schema(), batch(rows).columns(), &[Add, Add, Keep, Add, Keep], None).unwrap();
    write
}

fn refused(result: keyaki_store::Result<u64>) -> bool {
    matches!(result, Err(Error::UpsertRange { tree: TREE }))
}

#[test]
fn sums_that_could_overflow_are_refused() {
    const PRICE_MAX: i64 = 10_i64.pow(12) - 1;
    let simulated = Simulated::new(SimulatedOptions::default());
    let mut store = new_store(&simulated);
    let mut write = WriteBatch::new();
    write.insert(TREE, &schema(), &batch(&[numbers(1, i64::MAX - 10, -32_000, PRICE_MAX - 5)])).unwrap();
    store.commit(write).unwrap();
    assert!(!refused(store.commit(sums(&[numbers(1, 3, 0, 0), numbers(2, -2, 700, -3)]))));
    for reopened in [false, true] {
        if reopened {
            store.checkpoint().unwrap();
            drop(store);
            store = Store::open(simulated.device(), Path::new("db"), options(2)).unwrap();
        }
        for row in [
            numbers(3, 6, 0, 0),
            numbers(1, -6, 0, 0),
            numbers(9, 0, 68, 0),
            numbers(9, 0, 0, 3),
            numbers(9, i64::MIN, 0, 0),
        ] {
            assert!(refused(store.commit(sums(std::slice::from_ref(&row)))), "{row:?}");
        }
        // The sums of one commit count together.
        assert!(refused(store.commit(sums(&[numbers(4, 3, 0, 0), numbers(5, 3, 0, 0)]))));
    }
    let rows = contents(&store, &store.snapshot(), KeyRange::all(), Direction::Ascending);
    assert_eq!(rows, [numbers(1, i64::MAX - 7, -32_000, PRICE_MAX - 5), numbers(2, -2, 700, -3)]);
    // Other changes are not affected.
    let mut write = WriteBatch::new();
    let row = batch(&[numbers(1, i64::MIN, i16::MIN.into(), 0)]);
    write.upsert_rows(TREE, &schema(), row.columns(), &[Set, Min, Keep, Max, Keep], None).unwrap();
    store.commit(write).unwrap();
    // A transaction is refused when it writes, and again when it commits.
    let (mut first, mut second) = (store.begin(), store.begin());
    assert!(matches!(first.write(sums(&[numbers(8, 6, 0, 0)])), Err(Error::UpsertRange { .. })));
    let small = |key| {
        let mut write = WriteBatch::new();
        write
            .upsert_rows(
                TREE,
                &schema(),
                batch(&[numbers(key, 0, 0, 2)]).columns(),
                &[Keep, Keep, Keep, Add, Keep],
                None,
            )
            .unwrap();
        write
    };
    first.write(small(10)).unwrap();
    second.write(small(11)).unwrap();
    assert!(first.commit().unwrap().unwrap().wait().is_ok());
    assert!(matches!(second.commit(), Err(Error::UpsertRange { .. })));
}

#[test]
fn sums_are_refused_after_own_writes_that_make_them_overflow() {
    let simulated = Simulated::new(SimulatedOptions::default());
    let store = new_store(&simulated);
    let insert = |key, first| {
        let mut write = WriteBatch::new();
        write.insert(TREE, &schema(), &batch(&[numbers(key, first, 0, 0)])).unwrap();
        write
    };
    store.commit(insert(1, 5)).unwrap();
    let mut transaction = store.begin();
    transaction.write(sums(&[numbers(1, 1, 0, 0)])).unwrap();
    let before = transaction.savepoint();
    transaction.write(insert(2, i64::MAX)).unwrap();
    for _ in 0..2 {
        assert!(matches!(transaction.write(sums(&[numbers(1, 1, 0, 0)])), Err(Error::UpsertRange { tree: TREE })));
    }
    transaction.roll_back_to(before);
    transaction.write(sums(&[numbers(1, 1, 0, 0)])).unwrap();
    transaction.write(insert(2, i64::MAX)).unwrap();
    let created = TreeId::new(TREE.get() + 1);
    let mut create = WriteBatch::new();
    create.create_tree(created, &schema());
    transaction.write(create).unwrap();
    assert!(transaction.write(sums(&[numbers(1, 1, 0, 0)])).is_err());
    let mut drop_tree = WriteBatch::new();
    drop_tree.drop_tree(created);
    transaction.write(drop_tree).unwrap();
    assert!(matches!(transaction.write(sums(&[numbers(1, 1, 0, 0)])), Err(Error::UpsertRange { tree: TREE })));
    // The accepted writes commit.
    assert!(transaction.commit().unwrap().unwrap().wait().is_ok());
    let rows = contents(&store, &store.snapshot(), KeyRange::point(number_key(1)), Direction::Ascending);
    assert_eq!(rows, [numbers(1, 7, 0, 0)]);
}

#[test]
fn bulk_loads_raise_the_bounds() {
    let simulated = Simulated::new(SimulatedOptions::default());
    let store = new_store(&simulated);
    let mut writer = store.bulk_writer(TREE, &schema());
    writer.push(&batch(&[numbers(1, i64::MAX, 1, 1), numbers(2, 0, -5, 1)])).unwrap();
    store.install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
    assert!(refused(store.commit(sums(&[numbers(2, 1, 0, 0)]))));
    let mut write = WriteBatch::new();
    write
        .upsert_rows(TREE, &schema(), batch(&[numbers(2, 1, 4, 0)]).columns(), &[Keep, Add, Keep, Keep, Keep], None)
        .unwrap();
    store.commit(write).unwrap();
    let rows = contents(&store, &store.snapshot(), KeyRange::point(number_key(2)), Direction::Ascending);
    assert_eq!(rows, [numbers(2, 0, -1, 1)]);
}

#[test]
fn invalid_upserts_are_errors() {
    let simulated = Simulated::new(SimulatedOptions::default());
    let store = new_store(&simulated);
    let commit = |changes: &[ColumnChange], argument: Row| {
        let mut write = WriteBatch::new();
        let arguments = batch(&[(1, argument)]);
        write.upsert_rows(
            TREE,
            &schema(),
            batch(&[numbers(1, 1, 1, 1)]).columns(),
            changes,
            Some(arguments.columns()),
        )?;
        store.commit(write)
    };
    let null = || [vec![Value::Number(1)], vec![Value::Null; 4]].concat();
    // A sum with NULL in a column that is not nullable, and changes that are not defined for a type.
    for changes in [[Keep, Append, Keep, Keep, Keep], [Keep, Keep, Keep, Keep, Add]] {
        assert!(
            matches!(commit(&changes, null()), Err(Error::InvalidRow { .. } | Error::NullValue { .. })),
            "{changes:?}"
        );
    }
    assert!(matches!(commit(&[Keep], null()), Err(Error::ColumnCount { expected: 5, found: 1 })));
    commit(&[Min, Add, Max, Replace, Append], null()).unwrap();
    assert_eq!(contents(&store, &store.snapshot(), KeyRange::all(), Direction::Ascending), [numbers(1, 1, 1, 1)]);
}

/// A counter that is never read keeps one operand for each run, and reads of a hot key stop at its newest message.
#[test]
fn upserts_of_a_key_are_combined() {
    let simulated = Simulated::new(SimulatedOptions::default());
    let store = new_store(&simulated);
    for round in 0..20 {
        for _ in 0..100 {
            store.commit(sums(&[numbers(7, 1, 0, 1)])).unwrap();
        }
        if round % 2 == 0 {
            store.checkpoint().unwrap();
        }
    }
    let rows = contents(&store, &store.snapshot(), KeyRange::all(), Direction::Ascending);
    assert_eq!(rows, [numbers(7, 2000, 0, 2000)]);
}
