//! Random histories of operations by one thread, compared with `BTreeMap`.

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;

use crate::{Masstree, pin};

#[derive(Debug, Clone)]
enum Operation {
    Insert(Vec<u8>, u64),
    TryInsert(Vec<u8>, u64),
    Remove(Vec<u8>),
    Update(Vec<u8>, u64),
    /// Keys changed by one ascending writer, sorted if the flag is set.
    Many(Vec<(Vec<u8>, u64)>, bool),
    Get(Vec<u8>),
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

/// Keys of few distinct bytes, including NUL, with lengths near multiples of eight: they share many slices, layers and
/// prefixes.
pub(super) fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(255), Just(b'a')];
    let short = proptest::collection::vec(byte.clone(), 0..=10);
    let parts = (0usize..4, 0usize..3, proptest::collection::vec(byte, 0..=9));
    let long = parts.prop_map(|(slices, letter, end)| {
        let mut key = [b'x', 0, 255][letter..=letter].repeat(8 * slices);
        key.extend(end);
        key
    });
    let wide = (0u32..400).prop_map(|number| number.to_be_bytes().to_vec());
    let suffix = (0u8..8, 9usize..80).prop_map(|(first, length)| vec![first; length]);
    prop_oneof![short, long, wide, suffix]
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![Just(Bound::Unbounded), key().prop_map(Bound::Included), key().prop_map(Bound::Excluded)]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (key(), any::<u64>()).prop_map(|(key, value)| Operation::Insert(key, value)),
        1 => (key(), any::<u64>()).prop_map(|(key, value)| Operation::TryInsert(key, value)),
        6 => key().prop_map(Operation::Remove),
        1 => (key(), any::<u64>()).prop_map(|(key, value)| Operation::Update(key, value)),
        1 => (proptest::collection::vec((key(), any::<u64>()), 0..40), any::<bool>())
            .prop_map(|(entries, sorted)| Operation::Many(entries, sorted)),
        1 => key().prop_map(Operation::Get),
        1 => (bound(), bound()).prop_map(|(from, to)| Operation::Range(from, to)),
    ]
}

fn in_range(key: &[u8], from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> bool {
    let after = match from {
        Bound::Unbounded => true,
        Bound::Included(from) => key >= from.as_slice(),
        Bound::Excluded(from) => key > from.as_slice(),
    };
    let before = match to {
        Bound::Unbounded => true,
        Bound::Included(to) => key <= to.as_slice(),
        Bound::Excluded(to) => key < to.as_slice(),
    };
    after && before
}

pub(super) fn compare(map: &Masstree<u64>, model: &BTreeMap<Vec<u8>, u64>) {
    assert_eq!(map.tree.check(), model.len());
    let guard = pin();
    assert!(map.iter(&guard).eq(model.iter().map(|(key, value)| (key.clone(), *value))));
    assert!(map.iter_rev(&guard).eq(model.iter().rev().map(|(key, value)| (key.clone(), *value))));
    assert_eq!(map.len(), model.len());
    assert_eq!(map.is_empty(), model.is_empty());
    for (key, value) in model {
        assert_eq!(map.get(key, &guard), Some(*value));
    }
}

fn run(operations: Vec<Operation>) {
    let map = Masstree::new();
    let mut model = BTreeMap::new();
    for (number, operation) in operations.into_iter().enumerate() {
        let guard = pin();
        match operation {
            Operation::Insert(key, value) => assert_eq!(map.insert(&key, value, &guard), model.insert(key, value)),
            Operation::TryInsert(key, value) => {
                let result = map.try_insert(&key, value, &guard).map_err(|occupied| occupied.current);
                assert_eq!(result.err(), model.get(&key).copied());
                model.entry(key).or_insert(value);
            }
            Operation::Remove(key) => assert_eq!(map.remove(&key, &guard), model.remove(&key)),
            Operation::Update(key, mask) => {
                // An odd mask removes the key.
                let update = |old: Option<u64>| (mask % 2 == 0).then(|| old.unwrap_or(7) ^ mask);
                let old = map.update_with(&key, update, &guard);
                assert_eq!(old, model.get(&key).copied());
                match update(old) {
                    Some(value) => model.insert(key, value),
                    None => model.remove(&key),
                };
            }
            Operation::Many(mut entries, sorted) => {
                if sorted {
                    entries.sort();
                }
                let mut writer = map.ascending(&guard);
                for (key, value) in entries {
                    let make = |old: Option<u64>| (value % 3 > 0).then(|| old.unwrap_or(1) ^ value);
                    let old = writer.insert_with(&key, make);
                    assert_eq!(old, model.get(&key).copied());
                    if let Some(new) = make(old) {
                        model.insert(key, new);
                    }
                }
            }
            Operation::Get(key) => {
                assert_eq!(map.get(&key, &guard), model.get(&key).copied());
                assert_eq!(map.contains(&key), model.contains_key(&key));
            }
            Operation::Range(from, to) => {
                let expected: Vec<(Vec<u8>, u64)> = model
                    .iter()
                    .filter(|(key, _)| in_range(key, &from, &to))
                    .map(|(key, value)| (key.clone(), *value))
                    .collect();
                let bounds = (from, to);
                let forward: Vec<_> = map.range::<Vec<u8>>(bounds.clone(), &guard).collect();
                assert_eq!(forward, expected);
                let mut backward: Vec<_> = map.range_rev::<Vec<u8>>(bounds, &guard).collect();
                backward.reverse();
                assert_eq!(backward, expected);
            }
        }
        if number.is_multiple_of(500) {
            compare(&map, &model);
        }
    }
    compare(&map, &model);
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    for key in keys {
        let guard = pin();
        assert_eq!(map.remove(&key, &guard), model.remove(&key));
    }
    compare(&map, &model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn histories(operations in proptest::collection::vec(operation(), 1..3000)) {
        run(operations);
    }
}

#[test]
fn orders_of_insertion_and_removal() {
    const KEYS: u64 = 6000;
    type Order = fn(u64) -> u64;
    let orders: [Order; 3] = [|i| i, |i| KEYS - 1 - i, |i| i * 7919 % KEYS];
    let encode: [fn(u64) -> Vec<u8>; 4] = [
        |number| number.to_be_bytes().to_vec(),
        |number| format!("{number:010}").into_bytes(),
        |number| format!("constant{number:012}").into_bytes(),
        |number| format!("{number:06}{}", "long suffix ".repeat(number as usize % 9)).into_bytes(),
    ];
    for insertion in orders {
        for removal in orders {
            for encode in encode {
                let map = Masstree::new();
                let guard = pin();
                for i in 0..KEYS {
                    assert_eq!(map.insert(&encode(insertion(i)), i, &guard), None);
                }
                assert_eq!(map.tree.check(), KEYS as usize);
                for i in 0..KEYS {
                    assert!(map.remove(&encode(removal(i)), &guard).is_some());
                    if i % 1500 == 1 {
                        assert_eq!(map.tree.check(), (KEYS - 1 - i) as usize);
                    }
                }
                assert_eq!(map.tree.check(), 0);
            }
        }
    }
}

#[test]
fn very_long_keys() {
    let map = Masstree::new();
    let guard = pin();
    let mut model = BTreeMap::new();
    for length in [0, 1, 7, 8, 9, 15, 16, 17, 24, 25, 1000, 70_000, 100_000] {
        for end in [b'a', b'b'] {
            let mut key = vec![b'k'; length];
            key.push(end);
            map.insert(&key, length as u64, &guard);
            model.insert(key, length as u64);
        }
    }
    compare(&map, &model);
    for key in model.keys() {
        assert!(map.remove(key, &guard).is_some());
    }
    compare(&map, &BTreeMap::new());
}
