//! Several threads at once: each thread checks the results that are determined by its own actions, and the structure
//! must be valid afterwards.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use keyaki_primitives::Random;

use crate::{Bulk, Masstree, pin};

const THREADS: u64 = 4;

fn shapes() -> [fn(u64) -> Vec<u8>; 4] {
    [
        |number| number.to_be_bytes().to_vec(),
        |number| format!("{:010}", number * 7_777_777 % 10_000_000_000).into_bytes(),
        |number| format!("constant{:012}", number * 7919).into_bytes(),
        |number| format!("{}{}{number}", number % 97, "suffix of some length".repeat(number as usize % 5)).into_bytes(),
    ]
}

/// Each thread owns the keys of one residue class and compares them with a model. All threads share the nodes.
fn own_keys(encode: fn(u64) -> Vec<u8>, keys: u64, rounds: u64) {
    let map = Masstree::<u64>::new();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let map = &map;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let mut model = vec![None; keys as usize];
                for round in 0..rounds {
                    let index = random.below(keys);
                    let key = encode(index * THREADS + thread);
                    let guard = pin();
                    let expected = &mut model[index as usize];
                    match random.below(8) {
                        0..4 => assert_eq!(map.insert(&key, round, &guard), expected.replace(round)),
                        4..7 => assert_eq!(map.remove(&key, &guard), expected.take()),
                        _ => assert_eq!(map.get(&key, &guard), *expected),
                    }
                }
                for (index, expected) in model.iter().enumerate() {
                    let key = encode(index as u64 * THREADS + thread);
                    assert_eq!(map.get(&key, &pin()), *expected);
                }
            });
        }
    });
    let keys = map.tree.check();
    assert_eq!(map.count(), keys);
}

#[test]
fn threads_keep_their_own_keys() {
    for encode in shapes() {
        // Many keys cause splits; with few keys, nodes and layers come and go.
        own_keys(encode, 5000, 40_000);
        own_keys(encode, 8, 20_000);
    }
}

/// Every scan must return the keys that stay exactly once, whatever other keys are inserted and removed.
#[test]
fn scans_return_the_keys_that_stay() {
    for encode in shapes() {
        let map = Masstree::<u64>::new();
        let mut staying: Vec<Vec<u8>> = (0..300).map(|number| encode(number * 7)).collect();
        staying.sort();
        staying.dedup();
        for key in &staying {
            map.insert(key, u64::MAX, &pin());
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 1..3 {
                let (map, stop) = (&map, &stop);
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    while !stop.load(Ordering::Relaxed) {
                        let key = encode(random.below(4000));
                        let guard = pin();
                        if random.below(2) == 0 {
                            let _ = map.try_insert(&key, 1, &guard);
                        } else {
                            let _ = map.compare_exchange(&key, |value| value == Some(&1), None, &guard);
                        }
                    }
                });
            }
            for round in 0..60 {
                let guard = pin();
                let entries: Vec<(Vec<u8>, u64)> = if round % 2 == 0 {
                    map.iter(&guard).collect()
                } else {
                    let mut entries: Vec<_> = map.iter_rev(&guard).collect();
                    entries.reverse();
                    entries
                };
                assert!(entries.is_sorted_by(|a, b| a.0 < b.0));
                let found: Vec<_> =
                    entries.into_iter().filter(|(_, value)| *value == u64::MAX).map(|(key, _)| key).collect();
                assert_eq!(found, staying);
            }
            stop.store(true, Ordering::Relaxed);
        });
        map.tree.check();
    }
}

/// No increment is lost, and no box is read after it has been freed.
#[test]
fn updates_are_atomic() {
    let map = Masstree::<Box<(u64, u64)>>::new();
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (map, done) = (&map, &done);
            scope.spawn(move || {
                let mut random = Random::new(thread + 1);
                for _ in 0..20_000 {
                    let key = random.below(7) * 3;
                    let guard = pin();
                    let add = |old: Option<&(u64, u64)>| old.map_or((1, !1), |old| (old.0 + 1, !(old.0 + 1)));
                    map.update_with(&key, |old| Some(Box::new(add(old))), &guard);
                    let seen = map.get(&key, &guard).unwrap();
                    assert_eq!(seen.0, !seen.1);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let sum: u64 = map.iter(&pin()).map(|(_, value)| value.0).sum();
    assert_eq!(sum, done.load(Ordering::Relaxed));
}

/// Several threads add overlapping batches beside scans and single changes: no key is lost.
#[test]
fn batches_beside_others() {
    for encode in shapes() {
        let map = Masstree::<u64>::new();
        let numbers = |thread: u64| (0..6000u64).map(move |i| (i * 7919 + thread * 1000) % 9000);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let map = &map;
            let batches: Vec<_> = (0..3)
                .map(|thread| {
                    scope.spawn(move || {
                        let keys: Vec<Vec<u8>> = numbers(thread).map(|number| encode(2 * number)).collect();
                        let add = Bulk::new().threads(2).merge(|a: u64, b| a + b);
                        for part in keys.chunks(1700) {
                            add.extend(map, part, vec![1; part.len()]).unwrap();
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut random = Random::new(5);
                while !stop.load(Ordering::Relaxed) {
                    let key = encode(2 * random.below(9000) + 1);
                    let guard = pin();
                    map.insert(&key, 0, &guard);
                    map.remove(&encode(2 * random.below(9000) + 1), &guard);
                    if random.below(500) == 0 {
                        assert!(map.iter(&guard).map(|(key, _)| key).is_sorted_by(|a, b| a < b));
                    }
                }
            });
            for batch in batches {
                batch.join().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        map.tree.check();
        let mut expected = std::collections::BTreeMap::<Vec<u8>, u64>::new();
        for number in (0..3).flat_map(numbers) {
            *expected.entry(encode(2 * number)).or_default() += 1;
        }
        for (key, count) in expected {
            assert_eq!(map.get(&key, &pin()), Some(count));
        }
    }
}
