//! Transactions, compared with models: own writes in every form of read, savepoints, conflicts through flushes and bulk
//! loads, trees created and dropped, and threads whose transactions must be serializable.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::{
    Direction, Durability, Error, KeyRange, Options, Savepoint, Snapshot, Store, Transaction, TreeId, UpsertFunctions,
    WriteBatch, block_on,
};

use common::{number_key as key, number_schema as schema};

const TREE: TreeId = TreeId::new(20);
const MEMORY_TREE: TreeId = TreeId::new(1 << 31 | 3);
const TREES: [TreeId; 2] = [TREE, MEMORY_TREE];
/// Adds the operand to the value.
const ADD: u32 = 7;

type Model = BTreeMap<i64, i64>;

fn range(low: i64, high: i64) -> KeyRange {
    KeyRange { start: Bound::Included(key(low)), end: Bound::Excluded(key(high)) }
}

fn open(simulated: &Simulated, durability: Durability, buffer_bytes: usize) -> Store {
    let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
    let upsert = move |old: Option<&[u8]>, operand: &[u8]| {
        Ok(Some((old.map_or(0, number) + number(operand)).to_le_bytes().to_vec()))
    };
    let options = Options {
        buffer_bytes,
        cache_bytes: 200_000,
        page_bytes: 4096,
        leaf_bytes: 16_384,
        fan_out: 3,
        node_buffer_bytes: 30_000,
        durability,
        upserts: Arc::new(UpsertFunctions::default().with(ADD, upsert)),
        ..Options::default()
    };
    Store::open(simulated.device(), Path::new("/db"), options).unwrap()
}

/// A store with an empty tree on disk and an empty one in memory.
fn new_store(seed: u64, durability: Durability, buffer_bytes: usize) -> Store {
    let store = open(&Simulated::new(SimulatedOptions { seed, ..Default::default() }), durability, buffer_bytes);
    let mut batch = WriteBatch::new();
    TREES.iter().for_each(|&tree| batch.create_tree(tree, &schema()));
    store.commit(batch).unwrap();
    store
}

fn contents(store: &Store, snapshot: &Snapshot, tree: TreeId, direction: Direction) -> Vec<(i64, i64)> {
    let (view, source) = (snapshot.tree(tree).unwrap(), store.blocking());
    let (mut cursor, mut rows) = (view.cursor(&source, KeyRange::all(), direction), Vec::new());
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        let arrays = chunk.to_arrays(&[0, 1]).unwrap();
        let [keys, values] = [0, 1].map(|column| arrays[column].as_primitive::<Int64Type>().values());
        rows.extend(keys.iter().copied().zip(values.iter().copied()));
    }
    rows
}

fn get(store: &Store, snapshot: &Snapshot, tree: TreeId, number: i64) -> Option<i64> {
    let (view, source) = (snapshot.tree(tree).unwrap(), store.blocking());
    let mut cursor = view.cursor(&source, KeyRange::point(key(number)), Direction::Ascending);
    let chunk = block_on(cursor.next()).unwrap()?;
    let value = chunk.to_arrays(&[1]).unwrap()[0].as_primitive::<Int64Type>().value(0);
    assert_eq!(chunk.rows(), 1);
    Some(value)
}

fn count(store: &Store, snapshot: &Snapshot, tree: TreeId, range: KeyRange) -> u64 {
    let (view, source) = (snapshot.tree(tree).unwrap(), store.blocking());
    let (mut counter, mut rows) = (view.counter(&source, range), 0);
    while let Some(more) = block_on(counter.next()).unwrap() {
        rows += more;
    }
    rows
}

/// Compares everything that a snapshot shows of trees with a model.
fn check(store: &Store, trees: &[TreeId], snapshot: &Snapshot, model: &Model, random: &mut Random) {
    let rows: Vec<(i64, i64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
    let reversed: Vec<(i64, i64)> = rows.iter().rev().copied().collect();
    for &tree in trees {
        assert_eq!(contents(store, snapshot, tree, Direction::Ascending), rows, "{tree}");
        assert_eq!(contents(store, snapshot, tree, Direction::Descending), reversed, "{tree}");
        let number = random.below(KEYS) as i64;
        assert_eq!(get(store, snapshot, tree, number), model.get(&number).copied(), "{tree}, key {number}");
        let high = number + random.below(KEYS) as i64;
        let expected = model.range(number..high).count() as u64;
        assert_eq!(count(store, snapshot, tree, range(number, high)), expected, "{tree}, from {number} to {high}");
        assert_eq!(count(store, snapshot, tree, KeyRange::all()), rows.len() as u64, "{tree}");
        let view = snapshot.tree(tree).unwrap();
        assert!(view.live_rows().is_none_or(|known| known == rows.len() as u64), "{tree}: {:?}", view.live_rows());
        assert!(rows.is_empty() || !view.is_empty());
        assert!(view.estimate(&KeyRange::all()).rows.is_finite());
    }
}

/// A statement with random changes, the same in all trees, applied to the model too. Returns the changed keys.
fn statement(trees: &[TreeId], model: &mut Model, random: &mut Random) -> (WriteBatch, Vec<i64>) {
    let (mut batch, mut changed) = (WriteBatch::new(), Vec::new());
    for _ in 0..1 + random.below(6) {
        let number = random.below(KEYS) as i64;
        let (kind, value) = (random.below(4), random.below(1000) as i64);
        let (key, row) = (key(number), value.to_le_bytes());
        for &tree in trees {
            match (kind, model.contains_key(&number)) {
                (0, _) => batch.insert_raw(tree, &key, &row),
                (1, false) => batch.insert_new_raw(tree, &key, &row),
                (1, true) => batch.update_raw(tree, &key, &row),
                (2, true) => batch.delete_existing_raw(tree, &key),
                (2, false) => batch.delete_raw(tree, &key),
                _ => batch.upsert_raw(tree, &key, ADD, &row),
            }
        }
        match kind {
            0 | 1 => drop(model.insert(number, value)),
            2 => drop(model.remove(&number)),
            _ => *model.entry(number).or_insert(0) += value,
        }
        changed.push(number);
    }
    (batch, changed)
}

const KEYS: u64 = 120;

/// A transaction beside its model.
struct Open {
    transaction: Transaction,
    model: Model,
    /// The number of commits that the base sees.
    base: usize,
    /// Each changed key, with the base of its statement.
    changed: Vec<(i64, usize)>,
    dependencies: Vec<(i64, i64, usize)>,
    savepoints: Vec<(Savepoint, Model, usize)>,
    is_read_committed: bool,
}

/// Interleaved transactions on one thread. Whether each commit succeeds is predicted exactly. Returns the numbers of
/// conflicts, of commits, and of transactions that have spilled.
fn history(seed: u64, durability: Durability, trees: &[TreeId]) -> [u64; 3] {
    let mut random = Random::new(seed);
    let store = new_store(seed, durability, 1 << 20);
    // The keys that each commit has changed.
    let mut commits: Vec<BTreeSet<i64>> = Vec::new();
    let mut committed = Model::new();
    let mut active: Vec<Open> = Vec::new();
    let mut held: Vec<(Snapshot, Model)> = Vec::new();
    let (mut conflicts, mut successes, mut spilled) = (0, 0, 0);
    for _ in 0..1500 {
        let at = random.below(active.len().max(1) as u64) as usize;
        match random.below(20) {
            0 if active.len() < 5 => active.push(Open {
                transaction: store.begin(),
                model: committed.clone(),
                base: commits.len(),
                changed: Vec::new(),
                dependencies: Vec::new(),
                savepoints: Vec::new(),
                is_read_committed: random.below(3) == 0,
            }),
            1 => {
                let (batch, changed) = statement(trees, &mut committed, &mut random);
                store.commit(batch).unwrap();
                commits.push(changed.into_iter().collect());
            }
            2 => store.checkpoint().unwrap(),
            3 if random.below(8) == 0 => {
                // Bulk-loaded keys may be any, for a conflict check.
                let first = 1_000_000 + commits.len() as i64 * 10;
                let mut rows = store.bulk_writer(TREE, &schema());
                let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
                let columns = vec![column((first..first + 5).collect()), column(vec![1; 5])];
                rows.push(&RecordBatch::try_new(schema().arrow().clone(), columns).unwrap()).unwrap();
                let loaded = vec![(TREE, rows.finish().unwrap().claim_new_keys())];
                let mut batch = WriteBatch::new();
                for number in first..first + 5 {
                    if trees.contains(&MEMORY_TREE) {
                        batch.insert_new_raw(MEMORY_TREE, &key(number), &1_i64.to_le_bytes());
                    }
                    committed.insert(number, 1);
                }
                store.install(batch, loaded).unwrap();
                commits.push((0..KEYS as i64).collect());
            }
            4 if !held.is_empty() => {
                let (snapshot, model) = held.swap_remove(random.below(held.len() as u64) as usize);
                check(&store, trees, &snapshot, &model, &mut random);
            }
            5 if held.len() < 4 => match active.get(at) {
                Some(open) => held.push((open.transaction.snapshot(), open.model.clone())),
                None => held.push((store.snapshot(), committed.clone())),
            },
            6 => check(&store, trees, &store.snapshot(), &committed, &mut random),
            7 | 8 if !active.is_empty() => {
                let Open { transaction, changed, dependencies, .. } = active.swap_remove(at);
                let is_newer = |number: i64, base: usize| commits[base..].iter().any(|keys| keys.contains(&number));
                let conflict = changed.iter().any(|&(number, base)| is_newer(number, base))
                    || dependencies.iter().any(|&(low, high, base)| (low..high).any(|number| is_newer(number, base)));
                if random.below(5) == 0 {
                    drop(transaction);
                    continue;
                }
                let mut batch_model = committed.clone();
                let changes: BTreeSet<i64> = changed.iter().map(|&(number, _)| number).collect();
                let (own, has_spilled) = (transaction.snapshot(), transaction.has_spilled());
                spilled += u64::from(has_spilled);
                for &number in &changes {
                    match get(&store, &own, TREE, number) {
                        Some(value) => batch_model.insert(number, value),
                        None => batch_model.remove(&number),
                    };
                }
                match transaction.commit() {
                    Ok(None) => assert!(changed.is_empty()),
                    Ok(Some(submitted)) => {
                        assert!(!conflict && !changed.is_empty(), "a conflict was overlooked");
                        submitted.wait().unwrap();
                        committed = batch_model;
                        // The commit of spilled writes counts as a change of any key.
                        commits.push(if has_spilled { (0..KEYS as i64).collect() } else { changes });
                        successes += 1;
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::Conflict { .. }), "{error}");
                        assert!(conflict && !changed.is_empty(), "no conflict");
                        conflicts += 1;
                    }
                }
            }
            _ => {
                let Some(open) = active.get_mut(at) else { continue };
                match random.below(12) {
                    0 => open.savepoints.push((open.transaction.savepoint(), open.model.clone(), open.changed.len())),
                    1 if !open.savepoints.is_empty() && !open.is_read_committed => {
                        let to = random.below(open.savepoints.len() as u64) as usize;
                        open.savepoints.truncate(to + 1);
                        let (savepoint, model, changes) = &open.savepoints[to];
                        open.transaction.roll_back_to(*savepoint);
                        open.model = model.clone();
                        open.changed.truncate(*changes);
                    }
                    2 if open.is_read_committed && open.changed.is_empty() => {
                        open.transaction.refresh();
                        (open.model, open.base) = (committed.clone(), commits.len());
                        open.savepoints.clear();
                    }
                    // Not in the memory tree, where a delete of a missing row leaves no trace.
                    3 if random.below(3) == 0 => {
                        let low = random.below(KEYS) as i64;
                        let high = low + random.below(6) as i64;
                        open.transaction.depend_on(TREE, range(low, high));
                        open.dependencies.push((low, high, open.base));
                    }
                    4 | 5 => {
                        let before = (open.transaction.snapshot(), open.model.clone());
                        let (batch, changed) = statement(trees, &mut open.model, &mut random);
                        open.transaction.write(batch).unwrap();
                        open.changed.extend(changed.into_iter().map(|number| (number, open.base)));
                        check(&store, trees, &before.0, &before.1, &mut random);
                    }
                    6 => check(&store, trees, &open.transaction.snapshot(), &open.model, &mut random),
                    7 => {
                        let before = open.transaction.snapshot();
                        let live: Vec<Savepoint> = open.savepoints.iter().map(|(savepoint, ..)| *savepoint).collect();
                        open.transaction.spill(&live).unwrap();
                        check(&store, trees, &before, &open.model, &mut random);
                        check(&store, trees, &open.transaction.snapshot(), &open.model, &mut random);
                    }
                    _ => {}
                }
            }
        }
    }
    for (snapshot, model) in held {
        check(&store, trees, &snapshot, &model, &mut random);
    }
    drop(active);
    check(&store, trees, &store.snapshot(), &committed, &mut random);
    [conflicts, successes, spilled]
}

fn seeds(otherwise: u64) -> u64 {
    std::env::var("KEYAKI_SEEDS").map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn histories_equal_their_models() {
    let mut sums = [0; 3];
    for seed in 0..seeds(10) {
        println!("seed {seed}");
        // Memory trees are not flushed, so conflicts of both trees are found without kept buffers.
        let trees = if seed % 3 == 0 { &TREES[..] } else { &TREES[..1] };
        let counts = history(seed, [Durability::Full, Durability::Off][(seed % 2) as usize], trees);
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(sums.iter().all(|count| *count > 30), "conflicts, commits, and transactions that have spilled: {sums:?}");
}

fn put(number: i64, value: i64) -> WriteBatch {
    let mut batch = WriteBatch::new();
    batch.insert_raw(TREE, &key(number), &value.to_le_bytes());
    batch
}

fn is_conflict<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Conflict { tree: TREE }))
}

/// Read committed: each change is checked against the base of its statement.
#[test]
fn changes_are_checked_against_the_base_of_their_statement() {
    let store = new_store(1, Durability::Full, 1 << 20);
    let mut transaction = store.begin();
    store.commit(put(1, 10)).unwrap();
    assert_eq!(get(&store, &transaction.snapshot(), TREE, 1), None);
    transaction.refresh();
    assert_eq!(get(&store, &transaction.snapshot(), TREE, 1), Some(10));
    transaction.write(put(1, 11)).unwrap();
    store.commit(put(2, 20)).unwrap();
    transaction.refresh();
    let snapshot = transaction.snapshot();
    assert_eq!([1, 2].map(|number| get(&store, &snapshot, TREE, number)), [Some(11), Some(20)]);
    transaction.write(put(2, 21)).unwrap();
    transaction.commit().unwrap().unwrap().wait().unwrap();
    assert_eq!(get(&store, &store.snapshot(), TREE, 2), Some(21));

    let mut transaction = store.begin();
    transaction.write(put(1, 12)).unwrap();
    store.commit(put(1, 13)).unwrap();
    transaction.refresh();
    transaction.write(put(2, 22)).unwrap();
    assert!(is_conflict(transaction.commit()), "the first statement did not see the other commit");
    assert_eq!(contents(&store, &store.snapshot(), TREE, Direction::Ascending), [(1, 13), (2, 21)]);
}

/// A dependency on the existence of a key fails only if another commit has removed it.
#[test]
fn rows_that_others_remove_are_conflicts() {
    // The keys that other commits put (true) or delete, and whether the range of keys 10 to 12 then is empty.
    let cases: [(&[(i64, bool)], bool); 6] = [
        (&[(9, true), (13, true)], false),
        (&[(10, true)], false),
        (&[(10, false)], true),
        (&[(10, false), (10, true)], false),
        (&[(10, false), (12, true)], false),
        (&[(11, true), (10, false), (11, false)], true),
    ];
    for (case, (others, is_removed)) in cases.into_iter().enumerate() {
        for flushes in [false, true] {
            let store = new_store(8, Durability::Full, 1 << 20);
            store.commit(put(10, 1)).unwrap();
            store.checkpoint().unwrap();
            let mut transaction = store.begin();
            transaction.depend_on_existence(TREE, range(10, 13));
            transaction.write(put(1000, 1)).unwrap();
            for &(number, is_put) in others {
                let mut batch = WriteBatch::new();
                batch.delete_raw(TREE, &key(number));
                store.commit(if is_put { put(number, 2) } else { batch }).unwrap();
            }
            if flushes {
                store.checkpoint().unwrap();
            }
            assert_eq!(is_conflict(transaction.commit()), is_removed, "case {case}, flushes: {flushes}");
        }
    }
    let store = new_store(8, Durability::Full, 1 << 20);
    let mut transaction = store.begin();
    transaction.depend_on_existence(TREE, range(10, 13));
    transaction.write(put(10, 1)).unwrap();
    assert!(transaction.commit().unwrap().is_some(), "no other commit has changed the range");
    for exists in [false, true] {
        let store = new_store(9, Durability::Full, 1 << 20);
        store.commit(put(10, 1)).unwrap();
        let mut transaction = store.begin();
        match exists {
            true => transaction.depend_on_existence(TREE, range(10, 13)),
            false => transaction.depend_on(TREE, range(50, 51)),
        }
        let own = store.new_tree_id();
        let mut batch = WriteBatch::new();
        batch.create_tree(own, &schema());
        transaction.write(batch).unwrap();
        transaction.depend_on(own, range(0, 1));
        let mut batch = WriteBatch::new();
        batch.drop_tree(TREE);
        store.commit(batch).unwrap();
        assert!(is_conflict(transaction.commit()), "another commit has dropped the tree");
    }
}

#[test]
fn trees_are_created_and_dropped_with_the_commit() {
    let store = new_store(2, Durability::Full, 1 << 20);
    store.commit(put(1, 1)).unwrap();
    let (new, other) = (store.new_tree_id(), store.new_tree_id());
    let mut transaction = store.begin();
    let mut batch = WriteBatch::new();
    batch.create_tree(new, &schema());
    batch.insert_new_raw(new, &key(5), &50_i64.to_le_bytes());
    batch.drop_tree(TREE);
    transaction.write(batch).unwrap();
    let savepoint = transaction.savepoint();
    let mut batch = WriteBatch::new();
    batch.create_tree(other, &schema());
    transaction.write(batch).unwrap();
    assert!(transaction.snapshot().tree(other).is_ok());
    transaction.roll_back_to(savepoint);
    store.checkpoint().unwrap();
    let snapshot = transaction.snapshot();
    assert!(matches!(snapshot.tree(other), Err(Error::TreeNotFound(_))));
    assert!(matches!(snapshot.tree(TREE), Err(Error::TreeNotFound(_))));
    assert!(matches!(transaction.write(put(1, 2)), Err(Error::TreeNotFound(_))), "the transaction has dropped it");
    assert_eq!(contents(&store, &snapshot, new, Direction::Ascending), [(5, 50)]);
    assert_eq!(snapshot.tree(new).unwrap().live_rows(), Some(1));
    assert_eq!(contents(&store, &store.snapshot(), TREE, Direction::Ascending), [(1, 1)]);
    assert!(store.snapshot().tree(new).is_err());

    // Another transaction writes to the tree that this one drops.
    let mut late = store.begin();
    late.write(put(3, 3)).unwrap();
    transaction.commit().unwrap().unwrap().wait().unwrap();
    assert!(is_conflict(late.commit()));
    assert_eq!(contents(&store, &store.snapshot(), new, Direction::Ascending), [(5, 50)]);
    assert!(store.snapshot().tree(TREE).is_err());
}

/// Memory is bounded: a transaction that stays open during many flushes may fail, but others do not.
#[test]
fn flushed_buffers_are_kept_within_a_budget() {
    let store = new_store(3, Durability::Off, 20_000);
    let mut old = store.begin();
    old.write(put(-1, 0)).unwrap();
    for number in 0..20_000 {
        store.commit(put(number, 0)).unwrap();
    }
    store.checkpoint().unwrap();
    let mut young = store.begin();
    young.write(put(-2, 0)).unwrap();
    store.commit(put(7, 7)).unwrap();
    store.checkpoint().unwrap();
    assert!(is_conflict(old.commit()));
    young.commit().unwrap().unwrap().wait().unwrap();
    assert_eq!(get(&store, &store.snapshot(), TREE, -1), None);
    assert_eq!(get(&store, &store.snapshot(), TREE, -2), Some(0));
}

#[test]
fn statements_that_are_not_applicable_change_nothing() {
    let store = new_store(4, Durability::Full, 1 << 20);
    let mut transaction = store.begin();
    transaction.write(put(1, 1)).unwrap();
    let mut batch = put(2, 2);
    batch.insert_raw(TreeId::new(77), &key(1), &[]);
    assert!(matches!(transaction.write(batch), Err(Error::TreeNotFound(_))));
    let mut batch = put(2, 2);
    batch.insert_raw(TREE, b"not a key", &[]);
    assert!(transaction.write(batch).is_err());
    transaction.write(WriteBatch::new()).unwrap();
    assert_eq!(contents(&store, &transaction.snapshot(), TREE, Direction::Ascending), [(1, 1)]);
    assert!(transaction.bytes() > 0 && !transaction.is_read_only());
    transaction.commit().unwrap().unwrap().wait().unwrap();
    assert_eq!(contents(&store, &store.snapshot(), TREE, Direction::Ascending), [(1, 1)]);
    assert!(store.begin().commit().unwrap().is_none());
}

#[test]
fn a_crash_leaves_all_of_a_transaction_or_nothing() {
    for seed in 0..seeds(60) {
        let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
        let mut random = Random::new(seed);
        let mut created = WriteBatch::new();
        created.create_tree(TREE, &schema());
        open(&simulated, Durability::Full, 8_000).commit(created).unwrap();
        simulated.crash_after_operations(10 + random.below(200));
        let mut acknowledged = 0;
        let mut run = || -> Result<(), Error> {
            let store = open(&simulated, Durability::Full, 8_000);
            for round in 1..=60 {
                let mut transaction = store.begin();
                for number in 0..20 {
                    transaction.write(put(number, round))?;
                    if random.below(20) == 0 {
                        transaction.spill(&[])?;
                    }
                }
                if let Some(submitted) = transaction.commit()? {
                    submitted.wait()?;
                }
                acknowledged = round;
            }
            Ok(())
        };
        // The crash ends the run, unless it has fewer operations; opening may fail too.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut run));
        simulated.crash();
        let store = open(&simulated, Durability::Full, 8_000);
        let rows = contents(&store, &store.snapshot(), TREE, Direction::Ascending);
        assert!(rows.is_empty() && acknowledged == 0 || rows.len() == 20, "seed {seed}: {rows:?}");
        assert!(rows.iter().all(|row| row.1 == rows[0].1), "seed {seed}: {rows:?}");
        assert!(rows.first().is_none_or(|row| row.1 >= acknowledged), "seed {seed}: round {acknowledged} is lost");
    }
}

/// Threads move amounts between accounts, and write the sum that they read: with dependencies on all that is read, the
/// result must be that of some serial order, in which every sum is the constant total.
#[test]
fn concurrent_transactions_are_serializable() {
    const ACCOUNTS: i64 = 12;
    let store = new_store(5, Durability::Off, 30_000);
    for account in 0..ACCOUNTS {
        store.commit(put(account, 100)).unwrap();
    }
    let (commits, conflicts) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, commits, conflicts) = (&store, &commits, &conflicts);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for round in 0..300 {
                    let mut transaction = store.begin();
                    let snapshot = transaction.snapshot();
                    let from = random.below(ACCOUNTS as u64) as i64;
                    let to = (from + 1 + random.below(ACCOUNTS as u64 - 1) as i64) % ACCOUNTS;
                    let balances = [from, to].map(|account| get(store, &snapshot, TREE, account).unwrap());
                    let amount = random.below(20) as i64;
                    transaction.write(put(from, balances[0] - amount)).unwrap();
                    transaction.write(put(to, balances[1] + amount)).unwrap();
                    let sum: i64 =
                        (0..ACCOUNTS).map(|account| get(store, &transaction.snapshot(), TREE, account).unwrap()).sum();
                    assert_eq!(sum, 100 * ACCOUNTS, "a transaction sees one moment and its own writes");
                    transaction.depend_on(TREE, range(0, ACCOUNTS));
                    transaction.write(put(1000 + thread as i64 * 1000 + round, sum)).unwrap();
                    match transaction.commit() {
                        Ok(submitted) => {
                            submitted.unwrap().wait().unwrap();
                            commits.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::Conflict { .. }) => {
                            conflicts.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        scope.spawn(|| (0..20).for_each(|_| store.checkpoint().unwrap()));
    });
    let rows = contents(&store, &store.snapshot(), TREE, Direction::Ascending);
    let sums = rows.iter().filter(|row| row.0 >= 1000).count() as u64;
    assert_eq!(rows.iter().filter(|row| row.0 < 1000).map(|row| row.1).sum::<i64>(), 100 * ACCOUNTS);
    assert_eq!(
        (sums, commits.load(Ordering::Relaxed) + conflicts.load(Ordering::Relaxed)),
        (commits.into_inner(), 1200)
    );
    assert!(sums > 0);
}

/// Write skew: two doctors are on call, and each leaves if the other one stays. Snapshot isolation lets both leave;
/// serializable transactions do not.
#[test]
fn serializable_transactions_have_no_write_skew() {
    for is_serializable in [false, true] {
        let store = new_store(6, Durability::Full, 1 << 20);
        store.commit(put(1, 1)).unwrap();
        store.commit(put(2, 1)).unwrap();
        let [first, second] = [(1, 2), (2, 1)].map(|(leaves, stays)| {
            let mut transaction = store.begin();
            if is_serializable {
                transaction.track_reads();
            }
            assert_eq!(get(&store, &transaction.snapshot(), TREE, stays), Some(1));
            transaction.write(put(leaves, 0)).unwrap();
            transaction
        });
        first.commit().unwrap().unwrap().wait().unwrap();
        assert_eq!(is_conflict(second.commit()), is_serializable);
    }
}

/// As by TRUNCATE and DROP INDEX, which leave later commits without a message to the tree that was read.
#[test]
fn reads_of_a_dropped_tree_are_a_dependency() {
    for (reads, drops) in [(true, true), (true, false), (false, true)] {
        let store = new_store(8, Durability::Full, 1 << 20);
        let read = TreeId::new(90);
        let mut batch = WriteBatch::new();
        batch.create_tree(read, &schema());
        store.commit(batch).unwrap();
        let mut transaction = store.begin();
        transaction.track_reads();
        if reads {
            let snapshot = transaction.snapshot();
            let view = snapshot.tree(read).unwrap();
            assert!(
                block_on(view.cursor(store.blocking(), KeyRange::all(), Direction::Ascending).next())
                    .unwrap()
                    .is_none()
            );
        }
        transaction.write(put(1000, 1)).unwrap();
        if drops {
            let mut batch = WriteBatch::new();
            batch.drop_tree(read);
            store.commit(batch).unwrap();
        } else {
            store.commit(put(5, 1)).unwrap();
        }
        match transaction.commit() {
            Err(Error::Conflict { tree }) => assert!(reads && drops && tree == read, "{tree}"),
            committed => assert!(committed.is_ok() && !(reads && drops), "{committed:?}"),
        }
    }
}

/// A serializable transaction depends on the ranges of all its reads, and on nothing else.
#[test]
fn every_form_of_read_is_a_dependency() {
    type Read = fn(&Store, &Snapshot);
    // Each read with the keys that it depends on.
    let reads: [(Read, std::ops::Range<i64>); 6] = [
        (|store, snapshot| assert!(get(store, snapshot, TREE, 5).is_none()), 5..6),
        (|store, snapshot| assert_eq!(count(store, snapshot, TREE, range(10, 20)), 5), 10..20),
        (|store, snapshot| drop(contents(store, snapshot, TREE, Direction::Descending)), 0..100),
        (|_, snapshot| assert!(snapshot.tree(TREE).unwrap().live_rows().is_none_or(|rows| rows == 30)), 0..100),
        (|_, snapshot| assert!(!snapshot.tree(TREE).unwrap().is_empty()), 0..100),
        (|_, snapshot| assert!(snapshot.tree(TREE).unwrap().estimate(&KeyRange::all()).rows > 0.0), 0..0),
    ];
    for (case, (read, keys)) in reads.into_iter().enumerate() {
        for changed in [0, 5, 6, 9, 10, 19, 20, 50] {
            for flushes in [false, true] {
                let store = new_store(7, Durability::Full, 1 << 20);
                for number in 0..30 {
                    store.commit(put(number * 2, 1)).unwrap();
                }
                store.checkpoint().unwrap();
                let mut transaction = store.begin();
                transaction.track_reads();
                read(&store, &transaction.snapshot());
                transaction.write(put(1000, 1)).unwrap();
                assert!(transaction.bytes() > 0);
                store.commit(put(changed, 2)).unwrap();
                if flushes {
                    store.checkpoint().unwrap();
                }
                let conflicts = is_conflict(transaction.commit());
                assert_eq!(conflicts, keys.contains(&changed), "read {case}, changed key {changed}");
            }
        }
    }
}
