//! Pages read by lookups: filters rule out absent keys, in leaves and in bulk-loaded extents that became runs.

mod common;

use std::path::Path;

use common::key_value_rows;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::KeyValue;
use keyaki_store::{Options, Schema, Store, TreeId, WriteBatch};

const TREE: TreeId = TreeId::new(1);
const ROWS: u32 = 200_000;

/// A value that cannot be compressed.
fn value(key: u32) -> Vec<u8> {
    let mut random = Random::new(key.into());
    (0..100).map(|_| random.below(256) as u8).collect()
}

fn load(store: &Store, keys: impl Iterator<Item = u32>) {
    let rows: Vec<_> = keys.map(|key| (key.to_be_bytes(), value(key))).collect();
    let mut writer = store.bulk_writer(TREE, &Schema::key_value());
    writer.push(&key_value_rows(rows.iter().map(|(key, value)| (&key[..], value.as_slice())))).unwrap();
    store.install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
}

/// Pages read per lookup of random keys with the given remainder by 4, each of which is looked up once.
fn pages_read(store: &Store, map: &KeyValue, remainder: u32, is_found: bool) -> f64 {
    let mut random = Random::new(remainder.into());
    let before = store.stats().pages_read;
    for _ in 0..1000 {
        let key = random.below(u64::from(ROWS / 4)) as u32 * 4 + remainder;
        assert_eq!(map.get(&key.to_be_bytes()).unwrap().is_some(), is_found, "key {key}");
    }
    (store.stats().pages_read - before) as f64 / 1000.0
}

#[test]
fn lookups_read_few_pages() {
    let options = Options { page_bytes: 4096, node_buffer_bytes: 1 << 30, ..Options::default() };
    let store = Store::open(Simulated::new(SimulatedOptions::default()).device(), Path::new("/db"), options).unwrap();
    let map = KeyValue::open(&store, TREE).unwrap();
    // Keys with remainder 0 are in leaves, those with remainder 2 in a run above them.
    load(&store, (0..ROWS).filter(|key| key % 4 == 0));
    load(&store, (0..ROWS).filter(|key| key % 4 == 2));
    store.drop_caches();
    // All index pages are cached.
    for key in (1..ROWS).step_by(500) {
        assert_eq!(map.get(&(key / 2 * 2 + 1).to_be_bytes()).unwrap(), None);
    }
    let (absent, in_leaves, in_run) =
        (pages_read(&store, &map, 3, false), pages_read(&store, &map, 0, true), pages_read(&store, &map, 2, true));
    println!("{absent} pages per absent key, {in_leaves} per key in a leaf, {in_run} per key in a run");
    assert!(absent <= 0.05, "{absent} pages per absent key");
    assert!(in_leaves <= 1.1 && in_run <= 1.1, "{in_leaves} pages per key in a leaf, {in_run} per key in a run");
}
