//! The real code under shuttle: at every access to an atomic of a node another thread may continue. Memory orderings
//! weaker than sequential consistency are not explored.

use std::sync::Arc;

use crate::ascending::AscendingWriter;
use crate::write::Change;
use crate::{Masstree, pin};

/// Runs two or three threads on a map that `before` has filled. Then checks the structure and calls `after`.
fn explore(before: fn(&Masstree<u64>), threads: &'static [fn(&Masstree<u64>)], after: fn(&Masstree<u64>)) {
    let run = move || {
        let map = Arc::new(Masstree::new());
        before(&map);
        let handles: Vec<_> = threads
            .iter()
            .map(|work| {
                let map = map.clone();
                shuttle::thread::spawn(move || work(&map))
            })
            .collect();
        for handle in handles {
            handle.join().unwrap();
        }
        map.tree.check();
        after(&map);
    };
    let seed = std::env::var("KEYAKI_SHUTTLE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121);
    println!("KEYAKI_SHUTTLE_SEED={seed}");
    // Random schedules, and schedules with few changes of priority, which find errors that need one thread to rest for
    // long.
    let random = shuttle::scheduler::RandomScheduler::new_from_seed(seed, 300);
    shuttle::Runner::new(random, shuttle::Config::new()).run(run);
    let few_changes = shuttle::scheduler::PctScheduler::new_from_seed(seed, 3, 3000);
    shuttle::Runner::new(few_changes, shuttle::Config::new()).run(run);
}

fn insert(map: &Masstree<u64>, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        map.insert(&number, number, &pin());
    }
}

fn remove(map: &Masstree<u64>, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        assert_eq!(map.remove(&number, &pin()), Some(number));
    }
}

fn keys(map: &Masstree<u64>) -> Vec<u64> {
    map.iter(&pin()).map(|(_, value)| value).collect()
}

#[test]
fn splits_beside_readers() {
    explore(
        |map| insert(map, (0..28).map(|number| 10 * number)),
        &[
            |map| insert(map, (0..4).map(|number| 10 * number + 5)),
            |map| {
                for number in [0, 70, 150, 270] {
                    assert_eq!(map.get(&number, &pin()), Some(number));
                }
            },
            |map| {
                let found = keys(map);
                assert_eq!(found.iter().filter(|&number| number % 10 == 0).count(), 28);
                assert!(found.is_sorted());
            },
        ],
        |map| assert_eq!(map.len(), 32),
    );
}

#[test]
fn nodes_are_unlinked_beside_scans() {
    explore(
        |map| insert(map, 0..40),
        &[
            |map| remove(map, 8..24),
            |map| {
                let guard = pin();
                let found: Vec<u64> = map.iter_rev(&guard).map(|(_, value)| value).collect();
                assert!(found.is_sorted_by(|a, b| a > b));
                assert_eq!(found.iter().filter(|number| !(8..24).contains(*number) && **number < 40).count(), 24);
            },
            |map| insert(map, [100, 101].into_iter()),
        ],
        |map| assert_eq!(map.len(), 26),
    );
}

#[test]
fn slots_are_reused() {
    explore(
        |map| insert(map, 0..5),
        &[
            |map| {
                remove(map, 2..3);
                insert(map, [7].into_iter());
                remove(map, 3..4);
                insert(map, [2].into_iter());
            },
            |map| {
                for number in [2, 7, 3] {
                    assert!(map.get(&number, &pin()).is_none_or(|value| value == number));
                }
                assert!(keys(map).is_sorted_by(|a, b| a < b));
            },
            |map| assert_eq!(map.get(&1u64, &pin()), Some(1)),
        ],
        |map| assert_eq!(keys(map), [0, 1, 2, 4, 7]),
    );
}

#[test]
fn layers_come_and_go() {
    fn key(number: u64) -> Vec<u8> {
        format!("constantconstant{number}").into_bytes()
    }
    explore(
        |map| {
            map.insert(&key(0), 0, &pin());
        },
        &[
            |map| {
                map.insert(&key(1), 1, &pin());
                assert_eq!(map.remove(&key(0), &pin()), Some(0));
                assert_eq!(map.remove(&key(1), &pin()), Some(1));
            },
            |map| {
                for number in 2..8 {
                    map.insert(&key(number), number, &pin());
                }
            },
            |map| {
                for number in 0..8 {
                    assert!(map.get(&key(number), &pin()).is_none_or(|value| value == number));
                }
            },
        ],
        |map| assert_eq!(keys(map), [2, 3, 4, 5, 6, 7]),
    );
}

#[test]
fn exchanges_are_atomic() {
    fn add(map: &Masstree<u64>) {
        for _ in 0..3 {
            map.update_with("counter", |old| Some(old.unwrap_or(0) + 1), &pin());
        }
    }
    explore(|_| (), &[add, add, add], |map| assert_eq!(map.get("counter", &pin()), Some(9)));
}

/// A batch that keeps a node locked between keys, beside splits and removals.
#[test]
fn batches_beside_splits() {
    explore(
        |map| insert(map, (0..14).map(|number| 10 * number)),
        &[
            |map| {
                let guard = pin();
                let mut writer = AscendingWriter::new(&map.tree, &guard);
                for number in [5u64, 15, 65, 75, 135, 145] {
                    assert_eq!(writer.modify(&number.to_be_bytes(), |_| Change::Set(number)), None);
                }
            },
            |map| insert(map, [6, 66, 67, 136].into_iter()),
            |map| {
                remove(map, [10, 130].into_iter());
                assert!(keys(map).is_sorted_by(|a, b| a < b));
            },
        ],
        |map| assert_eq!(keys(map).len(), 22),
    );
}
