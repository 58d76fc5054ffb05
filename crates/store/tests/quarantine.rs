//! A damaged tree is quarantined: other trees and checkpoints go on, no acknowledged change is lost, and the tree can
//! be dropped.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryViewArray};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_device::{Buffer, Device, OpenMode};
use keyaki_primitives::Random;
use keyaki_store::key_value::KeyValue;
use keyaki_store::{Direction, Durability, Error, KeyCodec, Options, Result, Schema, Store, TreeId, WriteBatch};

const DAMAGED: TreeId = TreeId::new(2);
const INTACT: TreeId = TreeId::new(3);

const ROWS: u32 = 3000;
/// The row whose page is damaged, and an upper bound on the distance of the rows of its page.
const VICTIM: u32 = 1000;
const PAGE_ROWS: u32 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    FlippedBit,
    UnreadableBlock,
}

fn options() -> Options {
    Options {
        durability: Durability::Full,
        buffer_bytes: 40_000,
        checkpoint_log_bytes: 400_000,
        cache_bytes: 50_000,
        page_bytes: 4096,
        leaf_bytes: 32_768,
        fan_out: 4,
        node_buffer_bytes: 10_000,
        runs_per_node: 3,
        ..Options::default()
    }
}

struct Database {
    simulated: Simulated,
    store: Store,
    damaged: KeyValue,
    intact: KeyValue,
    /// The acknowledged rows of the two trees.
    rows: [BTreeMap<u32, Vec<u8>>; 2],
    random: Random,
}

/// 100 bytes that cannot be compressed.
fn value(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..100).map(|_| random.below(256) as u8).collect()
}

impl Database {
    /// A database with two trees of equal rows in leaves, one of which is damaged.
    fn new(seed: u64, damage: Damage) -> Database {
        let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
        let (store, damaged, intact) = Self::open(&simulated);
        let rows: BTreeMap<_, _> = (0..ROWS).map(|key| (key, value(key.into()))).collect();
        for tree in [&damaged, &intact] {
            rows.iter().for_each(|(key, value)| tree.insert(&key.to_be_bytes(), value).unwrap());
        }
        store.checkpoint().unwrap();
        let mut batch = WriteBatch::new();
        // No other copy of the row is left in a root buffer or in the other tree.
        batch.drop_tree(INTACT);
        batch.create_tree(INTACT, &Schema::key_value());
        store.commit(batch).unwrap();
        store.checkpoint().unwrap();
        drop((damaged, intact, store));
        spoil(&simulated, damage);
        let (store, damaged, intact) = Self::open(&simulated);
        let rows = [rows, BTreeMap::new()];
        Database { simulated, store, damaged, intact, rows, random: Random::new(seed) }
    }

    fn open(simulated: &Simulated) -> (Store, KeyValue, KeyValue) {
        let store = Store::open(simulated.device(), Path::new("/db"), options()).unwrap();
        let (damaged, intact) = (KeyValue::open(&store, DAMAGED).unwrap(), KeyValue::open(&store, INTACT).unwrap());
        (store, damaged, intact)
    }

    fn reopen(self, crashes: bool) -> Database {
        let Database { simulated, store, damaged, intact, rows, random } = self;
        if crashes {
            simulated.crash();
        }
        drop((damaged, intact, store));
        let (store, damaged, intact) = Self::open(&simulated);
        Database { simulated, store, damaged, intact, rows, random }
    }

    /// Writes to both trees until the damaged one refuses it. The other one never does.
    fn write_until_refused(&mut self) -> Error {
        let mut refused = None;
        for step in 0..6000 {
            let (key, value) = (self.random.below(u64::from(ROWS)) as u32, value(self.random.next_u64()));
            self.intact.insert(&key.to_be_bytes(), &value).unwrap();
            self.rows[1].insert(key, value.clone());
            if refused.is_none() {
                match self.damaged.insert(&key.to_be_bytes(), &value) {
                    Ok(()) => drop(self.rows[0].insert(key, value)),
                    Err(error) => refused = Some(error),
                }
            } else if step % 100 == 0 {
                let again = self.damaged.delete(&key.to_be_bytes());
                assert!(matches!(again, Err(Error::Quarantined { tree: DAMAGED, .. })), "{again:?}");
            }
        }
        refused.expect("no flush has found the damage")
    }

    /// Checks all acknowledged rows, except for those of the damaged page.
    fn check(&self) {
        let rows = self.intact.range(.., Direction::Ascending).unwrap().map(Result::unwrap);
        assert!(rows.eq(self.rows[1].iter().map(|(key, value)| (key.to_be_bytes().to_vec(), value.clone()))));
        let mut unreadable = 0;
        for (key, value) in &self.rows[0] {
            match self.damaged.get(&key.to_be_bytes()) {
                Ok(found) => assert!(found.as_ref() == Some(value), "another value of row {key}"),
                Err(Error::Corrupt { .. } | Error::Device(_)) if key.abs_diff(VICTIM) < PAGE_ROWS => unreadable += 1,
                Err(error) => panic!("row {key}: {error}"),
            }
        }
        assert!(unreadable < PAGE_ROWS, "{unreadable} rows cannot be read");
    }
}

/// The encoded key of a row.
fn encoded(key: u32) -> Vec<u8> {
    let mut encoded = Vec::new();
    let column: ArrayRef = Arc::new(BinaryViewArray::from_iter_values([key.to_be_bytes()]));
    KeyCodec::new(&Schema::key_value()).encode(&[column], 0, &mut encoded);
    encoded
}

/// Damages the page with the victim.
fn spoil(simulated: &Simulated, damage: Damage) {
    let path = Path::new("/db/data");
    let file = simulated.open(path, OpenMode::Read).unwrap();
    let mut bytes = Buffer::zeroed(file.len().unwrap() as usize / 4096 * 4096);
    file.read_at(0, &mut bytes).unwrap();
    let pattern = value(VICTIM.into());
    let copies: Vec<usize> =
        (0..bytes.len() - 100).filter(|&at| bytes[at] == pattern[0] && bytes[at..at + 100] == pattern).collect();
    assert!(!copies.is_empty(), "the row is not in the file");
    // All but one are in free space.
    for at in copies.into_iter().map(|at| at as u64) {
        match damage {
            Damage::FlippedBit => simulated.flip_bit(path, at, 3).unwrap(),
            Damage::UnreadableBlock => simulated.fail_reads(path, at / 4096 * 4096..at + 1).unwrap(),
        }
        if Database::open(simulated).1.get(&VICTIM.to_be_bytes()).is_err() {
            return;
        }
        match damage {
            Damage::FlippedBit => simulated.flip_bit(path, at, 3).unwrap(),
            Damage::UnreadableBlock => simulated.clear_faults(),
        }
    }
    panic!("no copy of the row is read");
}

#[test]
fn a_damaged_tree_stops_no_other_tree_and_loses_nothing() {
    for (seed, damage) in [(1, Damage::FlippedBit), (2, Damage::UnreadableBlock), (3, Damage::FlippedBit)] {
        let mut database = Database::new(seed, damage);
        assert!(database.damaged.get(&VICTIM.to_be_bytes()).is_err());
        for crashes in [false, true, false] {
            let refused = database.write_until_refused();
            assert!(matches!(refused, Error::Quarantined { tree: DAMAGED, .. }), "{refused}");
            assert!(refused.to_string().starts_with("tree 2 is damaged"), "{refused}");
            let quarantined = database.store.quarantined_trees();
            let [quarantined] = quarantined.as_slice() else { panic!("{quarantined:?}") };
            assert!(
                quarantined.tree == DAMAGED && matches!(*quarantined.cause, Error::Corrupt { .. } | Error::Device(_))
            );
            let keys = quarantined.keys.as_ref().expect("the error has the position of a page");
            let victim = encoded(VICTIM);
            assert!(keys.low <= victim && victim < keys.high, "{keys:?}");
            database.check();
            // Checkpoints contain the tree, so that the log does not grow.
            database.store.checkpoint().unwrap();
            database.check();
            database = database.reopen(crashes);
            database.check();
        }
    }
}

#[test]
fn a_damaged_tree_can_be_dropped_and_truncated() {
    for truncates in [false, true] {
        let mut database = Database::new(4, Damage::FlippedBit);
        database.write_until_refused();
        let used = database.store.stats().data_bytes_used;
        let mut batch = WriteBatch::new();
        batch.drop_tree(DAMAGED);
        if truncates {
            batch.create_tree(DAMAGED, &Schema::key_value());
            batch.insert_raw(DAMAGED, b"new\0\0", b"row");
        }
        database.store.commit(batch).unwrap();
        assert!(database.store.quarantined_trees().is_empty());
        database.store.checkpoint().unwrap();
        let left = database.store.stats().data_bytes_used;
        assert!(left < used - 100_000, "{left} of {used} bytes in use after the drop");
        if truncates {
            assert_eq!(database.damaged.get(b"new").unwrap().as_deref(), Some(&b"row"[..]));
            database.damaged.delete(b"new").unwrap();
            database.rows[0].clear();
            for key in 0..2000_u32 {
                database.damaged.insert(&key.to_be_bytes(), &value(7)).unwrap();
                database.rows[0].insert(key, value(7));
            }
            database.check();
            database.reopen(true).check();
        }
    }
}

/// A flush is repeated after a read that failed once.
#[test]
fn single_failed_reads_damage_nothing() {
    let mut database = Database::new(6, Damage::UnreadableBlock);
    database.simulated.clear_faults();
    for _ in 0..20 {
        database.simulated.fail_next_reads(Path::new("/db/data"), 0..u64::MAX, 1).unwrap();
        for _ in 0..400 {
            let (key, value) = (database.random.below(u64::from(ROWS)) as u32, value(database.random.next_u64()));
            database.damaged.insert(&key.to_be_bytes(), &value).unwrap();
            database.rows[0].insert(key, value);
        }
        database.store.checkpoint().unwrap();
        assert!(database.store.quarantined_trees().is_empty());
    }
    database.simulated.clear_faults();
    database.check();
    database.reopen(true).check();
}

/// Bulk loads into a quarantined tree are refused, and leave the others as they are.
#[test]
fn loads_into_a_damaged_tree_are_refused() {
    let mut database = Database::new(5, Damage::FlippedBit);
    database.write_until_refused();
    let load = |tree| {
        let loaded = database.store.bulk_writer(tree, &Schema::key_value()).finish().unwrap();
        database.store.install(WriteBatch::new(), vec![(tree, loaded)])
    };
    assert!(matches!(load(DAMAGED), Err(Error::Quarantined { tree: DAMAGED, .. })));
    load(INTACT).unwrap();
    database.check();
}
