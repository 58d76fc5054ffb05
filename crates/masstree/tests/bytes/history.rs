//! Interprets bytes as a history of operations and compares the map with `BTreeMap`. The fuzz target `masstree` and a
//! test with random bytes call it.

use std::collections::BTreeMap;

use keyaki_masstree::{Bulk, Masstree, pin};

/// Takes a key of up to 33 bytes: a run of one of four bytes, followed by up to three bytes of the input.
fn take_key(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let (&shape, rest) = bytes.split_first()?;
    let (own, rest) = rest.split_at(rest.len().min(usize::from(shape & 3)));
    let run = usize::from(shape >> 4) * 2;
    let mut key = vec![[0, b'a', 255, b'b'][usize::from(shape >> 2 & 3)]; run];
    key.extend_from_slice(own);
    *bytes = rest;
    Some(key)
}

/// Runs a history. Panics if the map differs from the model.
pub fn run(mut bytes: &[u8]) {
    let mut map = Masstree::<u64>::new();
    let mut model = BTreeMap::new();
    let mut number = 0;
    while let Some((&operation, rest)) = bytes.split_first() {
        bytes = rest;
        let Some(key) = take_key(&mut bytes) else { break };
        number += 1;
        let guard = pin();
        match operation % 8 {
            0..4 => assert_eq!(map.insert(&key, number, &guard), model.insert(key, number)),
            4 | 5 => assert_eq!(map.remove(&key, &guard), model.remove(&key)),
            6 => {
                let above = map.range::<&[u8]>(key.as_slice().., &guard);
                assert!(above.eq(model.range(key.clone()..).map(|(key, value)| (key.clone(), *value))));
                let below = map.range_rev::<&[u8]>(..key.as_slice(), &guard);
                assert!(below.eq(model.range(..key).rev().map(|(key, value)| (key.clone(), *value))));
            }
            _ => {
                // Rebuild the map in bulk, from the keys in another order.
                let mut keys: Vec<Vec<u8>> = model.keys().cloned().collect();
                let middle = keys.len() / 2;
                keys.rotate_left(middle);
                let values = keys.iter().map(|key| model[key]).collect();
                map = Bulk::new()
                    .threads(usize::from(operation >> 7) + 1)
                    .from_unsorted(&keys, values)
                    .expect("keys differ");
            }
        }
    }
    let guard = pin();
    assert_eq!(map.len(), model.len());
    assert!(map.iter(&guard).eq(model.iter().map(|(key, value)| (key.clone(), *value))));
    for (key, value) in &model {
        assert_eq!(map.get(key, &guard), Some(*value));
    }
}
