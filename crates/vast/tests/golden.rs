//! Golden files: serialised forms of version 1 must stay readable and give the same answers in every later version.
//!
//! `cargo test -p keyaki-vast --test golden -- --ignored` writes the files, once for each version.

use std::path::PathBuf;

use keyaki_vast::{Goal, Index, IndexBuilder, Instructions, Key, Options, Packed, Parameters, Preset, Tree};

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/golden", name].iter().collect()
}

/// Keys with runs of equal keys, neighbouring keys and gaps of many lengths. The generator's sequence is part of the
/// golden files.
fn keys<K: Key>(count: u64) -> Vec<K> {
    let mut random = 7u64;
    let mut at = K::LAST / 3;
    let keys = (0..count).map(|row| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let gap = if row % 97 == 0 { 20 } else { 3 };
        at += (random >> 33) >> (31 - gap);
        K::from_ordered(at)
    });
    keys.collect()
}

fn wanted<K: Key>(keys: &[K]) -> Vec<K> {
    let near = keys.iter().flat_map(|key| [key.ordered() - 1, key.ordered(), key.ordered() + 1]);
    near.chain([0, K::LAST]).map(K::from_ordered).collect()
}

fn values(count: u64) -> Vec<u64> {
    (0..count).map(|row| row * 0x9e37_79b9 % 100_003).collect()
}

fn index_of<K: Key>(packed: bool) -> Index<K> {
    let mut builder = IndexBuilder::new(Options { parameters: Parameters::new(Goal::Fastest), packed });
    builder.push(&keys(3000), &values(3000)).unwrap();
    builder.finish().unwrap()
}

fn opened(name: &str) -> bytes::Bytes {
    std::fs::read(path(name)).unwrap().into()
}

fn same_index<K: Key>(name: &str) {
    let keys = keys::<K>(3000);
    let index = Index::<K>::from_bytes(opened(name)).unwrap();
    assert_eq!(index.len(), keys.len());
    for instructions in Instructions::available() {
        let index = index.clone().with_instructions(instructions);
        for key in wanted(&keys) {
            assert_eq!(index.lower_bound(key), keys.partition_point(|&other| other < key), "{name}: {key:?}");
        }
        let sum: u64 = values(3000)[500..2900].iter().sum();
        let first = keys.partition_point(|&key| key < keys[500]);
        let more: u64 = values(3000)[first..500].iter().sum();
        let end = keys.partition_point(|&key| key < keys[2900]);
        let less: u64 = values(3000)[end..2900].iter().sum();
        assert_eq!(index.sum(keys[500]..keys[2900]), (sum + more - less) as i128);
    }
}

#[test]
fn indexes() {
    same_index::<u64>("index-packed-u64.v1");
    same_index::<i32>("index-plain-i32.v1");
}

#[test]
fn a_tree_of_the_published_layout() {
    let keys = keys::<i64>(3000);
    let tree = Tree::<i64>::from_bytes(opened("tree-published-i64.v1")).unwrap();
    for key in wanted(&keys) {
        assert_eq!(tree.lower_bound(&keys, key), keys.partition_point(|&other| other < key), "{key:?}");
    }
}

#[test]
fn a_column() {
    let column = Packed::<u64>::from_bytes(opened("column-u64.v1")).unwrap();
    let values = values(3000);
    assert!(values.iter().enumerate().all(|(row, &value)| column.get(row) == value));
    assert_eq!(column.aggregate(100, 2800).max, values[100..2800].iter().copied().max());
}

#[test]
#[ignore = "overwrites the golden files"]
fn write() {
    let plan = Preset::published(4, 6).plan::<i64>(3000).unwrap();
    let tree = Tree::build_with(&keys::<i64>(3000)[..], &plan).unwrap();
    for (name, bytes) in [
        ("index-packed-u64.v1", index_of::<u64>(true).to_bytes()),
        ("index-plain-i32.v1", index_of::<i32>(false).to_bytes()),
        ("tree-published-i64.v1", tree.to_bytes()),
        ("column-u64.v1", Packed::new(&values(3000), true).unwrap().to_bytes()),
    ] {
        std::fs::write(path(name), bytes).unwrap();
    }
}
