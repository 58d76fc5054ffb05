//! A check finds every damaged page, names its keys, and continues.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryViewArray};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_device::{Buffer, Device, OpenMode};
use keyaki_primitives::Random;
use keyaki_store::key_value::KeyValue;
use keyaki_store::{CheckedTree, DamagedPart, Error, KeyCodec, Options, Schema, Store, TreeId};

const TREE: TreeId = TreeId::new(2);
const OTHER: TreeId = TreeId::new(3);
const ROWS: u32 = 3000;

fn options() -> Options {
    Options {
        buffer_bytes: 40_000,
        cache_bytes: 50_000,
        page_bytes: 4096,
        leaf_bytes: 32_768,
        fan_out: 4,
        node_buffer_bytes: 10_000,
        ..Options::default()
    }
}

fn open(simulated: &Simulated) -> Store {
    Store::open(simulated.device(), Path::new("/db"), options()).unwrap()
}

/// 100 bytes that begin with the key and cannot be compressed.
fn value(key: u32) -> Vec<u8> {
    let mut random = Random::new(key.into());
    key.to_be_bytes().into_iter().chain((0..96).map(|_| random.below(256) as u8)).collect()
}

/// A database with two trees, whose messages lie in several levels.
fn filled() -> Simulated {
    let simulated = Simulated::new(SimulatedOptions { seed: 1, ..Default::default() });
    let store = open(&simulated);
    for tree in [TREE, OTHER] {
        let tree = KeyValue::open(&store, tree).unwrap();
        // In another order than that of the keys: 1,999 has no common divisor with the number of rows.
        let keys = (0..ROWS).map(|i| i * 1999 % ROWS);
        keys.for_each(|key| tree.insert(&key.to_be_bytes(), &value(key)).unwrap());
    }
    store.checkpoint().unwrap();
    simulated
}

fn contents(simulated: &Simulated) -> Buffer {
    let file = simulated.open(Path::new("/db/data"), OpenMode::Read).unwrap();
    let mut bytes = Buffer::zeroed(file.len().unwrap() as usize / 4096 * 4096);
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Offsets of all copies of a row in the data file.
fn places(simulated: &Simulated, key: u32) -> Vec<usize> {
    let (bytes, pattern) = (contents(simulated), value(key));
    // The values of a page may have a common prefix.
    let pattern = &pattern[4..];
    (0..bytes.len() - pattern.len()).filter(|&at| bytes[at..].starts_with(pattern)).collect()
}

fn encoded(key: u32) -> Vec<u8> {
    let mut encoded = Vec::new();
    let column: ArrayRef = Arc::new(BinaryViewArray::from_iter_values([key.to_be_bytes()]));
    KeyCodec::new(&Schema::key_value()).encode(&[column], 0, &mut encoded);
    encoded
}

#[test]
fn intact_pages_are_counted() {
    let store = open(&filled());
    let last = parking_lot::Mutex::new((0, 0));
    let checked = store
        .check(|_| true, &|done, total| {
            let mut last = last.lock();
            *last = (done.max(last.0), total);
            true
        })
        .unwrap();
    assert!(checked.is_complete && checked.damage.is_empty(), "{checked:?}");
    assert_eq!(checked.trees.iter().map(|tree| tree.tree).collect::<Vec<_>>(), [TREE, OTHER]);
    for CheckedTree { tree, pages, bytes } in checked.trees {
        assert!(pages > 75 && bytes == store.tree_bytes(tree), "{pages} pages, {bytes} bytes");
    }
    let (done, total) = *last.lock();
    assert!(done == total && total >= u64::from(2 * ROWS), "{done} of {total} rows");
    let one = store.check(|tree| tree == OTHER, &|_, _| true).unwrap();
    assert_eq!(one.trees.len(), 1);
}

#[test]
fn damaged_pages_are_named() {
    let (simulated, path) = (filled(), Path::new("/db/data"));
    let store = open(&simulated);
    for victim in [17, 1000, ROWS - 1] {
        // The page is cached, but a check reads the device.
        for tree in [TREE, OTHER] {
            let tree = KeyValue::open(&store, tree).unwrap();
            assert_eq!(tree.get(&victim.to_be_bytes()).unwrap(), Some(value(victim)));
        }
        let mut trees = Vec::new();
        // Copies in free space are not damage.
        for at in places(&simulated, victim) {
            for is_readable in [true, false] {
                match is_readable {
                    true => simulated.flip_bit(path, at as u64, 3).unwrap(),
                    false => simulated.fail_reads(path, at as u64 / 4096 * 4096..at as u64 + 1).unwrap(),
                }
                let checked = store.check(|_| true, &|_, _| true).unwrap();
                match is_readable {
                    true => simulated.flip_bit(path, at as u64, 3).unwrap(),
                    false => simulated.clear_faults(),
                }
                assert!(checked.is_complete);
                let damage = match checked.damage.as_slice() {
                    [] => continue,
                    [damage] => damage,
                    more => panic!("one page is damaged, not {more:?}"),
                };
                let offset = match &damage.cause {
                    Error::Corrupt { offset, .. } if is_readable => offset.expect("the position of a page"),
                    Error::Device(error) if !is_readable => error.range.as_ref().expect("the range of a page").offset,
                    error => panic!("{error}"),
                };
                assert!((offset..offset + 8192).contains(&(at as u64)), "{offset} is not at {at}");
                let (key, keys) = (encoded(victim), &damage.keys);
                assert!(keys.low <= key && (key < keys.high || keys.includes_high && key == keys.high), "{keys:?}");
                assert_ne!(damage.part, DamagedPart::Sample);
                trees.push(damage.tree);
            }
        }
        trees.sort();
        // A check reads whole runs: while a run is in use, it also has messages that were merged into leaves before.
        let (pairs, rest) = trees.as_chunks::<2>();
        assert!(rest.is_empty() && pairs.iter().all(|[flipped, unreadable]| flipped == unreadable), "row {victim}");
        trees.dedup();
        assert_eq!(trees, [TREE, OTHER], "row {victim}");
    }
    assert!(store.check(|_| true, &|_, _| true).unwrap().damage.is_empty());
}

#[test]
fn a_check_can_be_ended() {
    let checked = open(&filled()).check(|_| true, &|_, _| false).unwrap();
    assert!(!checked.is_complete);
}
