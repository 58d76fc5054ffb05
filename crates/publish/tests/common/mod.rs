//! An object store with faults, and databases to publish.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod faulty;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use keyaki_device::Device;
use keyaki_device::simulated::Simulated;
use keyaki_primitives::Random;
use keyaki_publish::{PublishOptions, Published, ReadOptions, Repository, RequestOptions, VersionDevice};
use keyaki_store::key_value::KeyValue;
use keyaki_store::{Direction, Options, Store, TreeId};

#[allow(unused_imports, reason = "each test file uses a part of it")]
pub use faulty::{Fault, Faulty};

pub const TREE: TreeId = TreeId::new(2);

pub type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Small pages and extents, so that few rows make many of them.
pub fn options() -> Options {
    Options { buffer_bytes: 40_000, page_bytes: 4096, leaf_bytes: 32_768, fan_out: 4, ..Options::default() }
}

/// Few attempts within milliseconds.
pub fn requests(seed: u64) -> RequestOptions {
    RequestOptions {
        backoff: Duration::from_micros(100),
        backoff_max: Duration::from_millis(1),
        attempts_max: 12,
        seed,
        ..RequestOptions::default()
    }
}

/// The repository `shop` in a store.
pub fn repository(store: &Arc<Faulty>) -> Repository {
    Repository::open(store.clone(), "bucket/shop", "memory:/bucket/shop", requests(1)).unwrap()
}

pub fn device() -> Arc<dyn Device> {
    Simulated::new(Default::default()).device()
}

pub fn database(device: &Arc<dyn Device>, directory: &str) -> (Store, KeyValue) {
    let store = Store::open(device.clone(), Path::new(directory), options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    (store, tree)
}

/// 100 bytes that cannot be compressed.
pub fn value(key: u32, round: u64) -> Vec<u8> {
    let mut random = Random::new(u64::from(key) << 16 | round);
    (0..100).map(|_| random.below(256) as u8).collect()
}

pub fn insert(tree: &KeyValue, keys: impl IntoIterator<Item = u32>, round: u64) {
    keys.into_iter().for_each(|key| tree.insert(&key.to_be_bytes(), &value(key, round)).unwrap());
}

pub fn rows(store: &Store) -> Rows {
    let tree = KeyValue::open(store, TREE).unwrap();
    tree.range(.., Direction::Ascending).unwrap().map(Result::unwrap).collect()
}

pub fn publish(repository: &Repository, store: &Store) -> keyaki_publish::Result<Published> {
    let published = repository.publish(store, &PublishOptions { threads: 3, first_tree: None }, &|_, _| true)?;
    Ok(published.expect("nobody has ended it"))
}

pub fn open_version(repository: &Repository, number: Option<u64>) -> Arc<VersionDevice> {
    repository.open_version(number, &ReadOptions { memory_bytes: 1 << 20, disk: None }).unwrap()
}

/// A version whose reads all go to the store.
pub fn open_uncached(repository: &Repository, number: Option<u64>) -> Arc<VersionDevice> {
    repository.open_version(number, &ReadOptions { memory_bytes: 0, disk: None }).unwrap()
}

/// Opens a version as a read-only store.
pub fn reader(device: &Arc<VersionDevice>) -> keyaki_store::Result<Store> {
    Store::open_read_only(device.clone(), device.directory(), options())
}

/// All rows of a version, with every page verified.
pub fn rows_of(repository: &Repository, number: Option<u64>) -> Rows {
    let store = reader(&open_version(repository, number)).unwrap();
    let checked = store.check(|_| true, &|_, _| true).unwrap();
    assert!(checked.is_complete && checked.damage.is_empty(), "{:?}", checked.damage);
    rows(&store)
}
