//! The pages that reads need: the estimated share of a tree's pages in the cache, and lookups of absent keys.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::key_value_rows;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::KeyValue;
use keyaki_store::{
    BlockingPages, CachedShare, Direction, KeyRange, Options, Schema, Store, TreeId, TreeView, WriteBatch, block_on,
};

const TREE: TreeId = TreeId::new(1);

fn read(view: &TreeView, pages: &BlockingPages, range: KeyRange) {
    let mut cursor = view.cursor(pages, range, Direction::Ascending);
    while block_on(cursor.next()).unwrap().is_some() {}
}

#[test]
fn cached_share_follows_reads() {
    let device = Arc::new(Simulated::new(SimulatedOptions::default()));
    let options = Options { page_bytes: 4096, leaf_bytes: 65_536, fan_out: 4, ..Options::default() };
    let store = Store::open(device, Path::new("/db"), options).unwrap();
    KeyValue::open(&store, TREE).unwrap();
    assert_eq!(store.snapshot().tree(TREE).unwrap().cached_share().any, 0.0, "an empty tree");

    let rows: Vec<_> = (0..40_000u32).map(|i| (i.to_be_bytes(), [i as u8; 60])).collect();
    let mut writer = store.bulk_writer(TREE, &Schema::key_value());
    writer.push(&key_value_rows(rows.iter().map(|(key, value)| (&key[..], &value[..])))).unwrap();
    store.install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
    store.drop_caches();
    let view = store.snapshot().tree(TREE).unwrap();
    let pages = store.blocking();
    assert_eq!(view.cached_share().any, 0.0, "no page was read");
    let half = view.split(&KeyRange::all(), 2).swap_remove(0);
    read(&view, &pages, half);
    let share = view.cached_share().any;
    assert!((0.4..0.6).contains(&share), "{share} after half of the leaves");
    read(&view, &pages, KeyRange::all());
    assert_eq!(view.cached_share(), CachedShare { whole: 1.0, any: 1.0 }, "all pages were read");
}

#[test]
fn lookups_of_absent_keys_read_few_pages() {
    let device = Arc::new(Simulated::new(SimulatedOptions::default()));
    let options = Options { page_bytes: 4096, leaf_bytes: 65_536, fan_out: 4, ..Options::default() };
    let store = Store::open(device, Path::new("/db"), options).unwrap();
    let map = KeyValue::open(&store, TREE).unwrap();
    let key = |i: u32| [&i.to_be_bytes()[..], &[0; 8]].concat();
    let mut random = Random::new(1);
    // Values that cannot be compressed.
    let mut row = |i: u32| (key(2 * i), (0..60).map(|_| random.below(256) as u8).collect::<Vec<u8>>());
    let rows: Vec<_> = (0..40_000).map(&mut row).collect();
    let mut writer = store.bulk_writer(TREE, &Schema::key_value());
    writer.push(&key_value_rows(rows.iter().map(|(key, value)| (&key[..], &value[..])))).unwrap();
    store.install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
    store.drop_caches();
    let reads = |keys: &dyn Fn(u32) -> u32, is_present: bool| {
        let before = store.stats().pages_read;
        for i in 0..2_000 {
            assert_eq!(map.get(&key(keys(i))).unwrap().is_some(), is_present, "key {}", keys(i));
        }
        store.stats().pages_read - before
    };
    // One page for each leaf, and for one key in a hundred.
    let leaves = 40_000 * 72 / 65_536;
    let absent = reads(&|i| 40 * i + 1, false);
    assert!(absent < 2 * leaves + 100, "{absent} pages read for 2,000 absent keys in {leaves} leaves");
    // Changes of keys that the filters rule out.
    for i in 0..200 {
        map.insert(&key(100 * i + 1), b"new").unwrap();
    }
    for checkpoints in [false, true] {
        if checkpoints {
            store.checkpoint().unwrap();
        }
        store.drop_caches();
        for direction in [Direction::Ascending, Direction::Descending] {
            assert_eq!(map.range(.., direction).unwrap().count(), 40_200);
        }
        assert!((0..200).all(|i| map.get(&key(100 * i + 1)).unwrap().as_deref() == Some(&b"new"[..])));
    }
    for i in 0..200 {
        map.delete(&key(100 * i + 1)).unwrap();
        assert_eq!(map.get(&key(100 * i + 1)).unwrap(), None);
    }
    store.drop_caches();
    let present = reads(&|i| 40 * i, true);
    assert!(present > 600, "{present} pages read for 2,000 keys");
}
