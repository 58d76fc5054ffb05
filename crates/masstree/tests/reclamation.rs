//! Owned values are dropped exactly once, after the last guard that could see them. Memory is returned and accounted
//! for.
//!
//! These tests have a process of their own, because guards held by other tests would delay the reclamation.

use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use keyaki_masstree::{Masstree, pin};

/// A value that counts the live values of its kind.
struct Counted(Arc<AtomicUsize>, u64);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>, number: u64) -> Box<Self> {
        alive.fetch_add(1, Ordering::Relaxed);
        Box::new(Counted(alive.clone(), number))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs the collector until `done` returns true, for a bounded number of rounds.
fn collect(done: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if done() {
            return;
        }
        pin().flush();
        std::thread::yield_now();
    }
}

#[test]
fn owned_values_are_dropped_once() {
    let alive = Arc::new(AtomicUsize::new(0));
    let map = Masstree::new();
    for round in 0..5u64 {
        for number in 0..1000u64 {
            let guard = pin();
            let old = map.insert(&number, Counted::new(&alive, round), &guard);
            assert_eq!(old.map(|old| old.1), round.checked_sub(1));
            if number % 3 == 0 {
                let removed = map.remove(&number, &guard).unwrap();
                assert_eq!(removed.1, round, "a removed value can be read as long as the guard lasts");
                map.insert(&number, Counted::new(&alive, round), &guard);
            }
            assert!(map.try_insert(&number, Counted::new(&alive, 9), &guard).is_err());
            let made = map.get_or_insert_with(&number, || Counted::new(&alive, 9), &guard);
            assert_eq!(made.1, round);
        }
    }
    map.flush();
    collect(|| alive.load(Ordering::Relaxed) == 1000);
    assert_eq!(alive.load(Ordering::Relaxed), 1000);
    drop(map);
    collect(|| alive.load(Ordering::Relaxed) == 0);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn arcs_are_shared() {
    let map = Masstree::new();
    let guard = pin();
    let value = Arc::new(String::from("shared"));
    map.insert("a", value.clone(), &guard);
    map.insert("b", value.clone(), &guard);
    map.insert("a", value.clone(), &guard);
    let copy = map.get("a", &guard).unwrap().to_arc();
    assert!(Arc::ptr_eq(&copy, &value));
    assert_eq!(map.get("b", &guard).unwrap().len(), 6);
    drop((guard, map));
    collect(|| Arc::strong_count(&value) == 2);
    assert_eq!(Arc::strong_count(&value), 2);
}

#[test]
fn memory_comes_back() {
    let charged = Arc::new(AtomicIsize::new(0));
    let sum = charged.clone();
    let map = Masstree::with_charge(move |bytes| {
        sum.fetch_add(bytes, Ordering::Relaxed);
    });
    let empty = map.memory().used_bytes;
    for _ in 0..3 {
        for number in 0..20_000u64 {
            let guard = pin();
            map.insert(&format!("{}{}", number * 7919 % 20_000, "x".repeat(number as usize % 60)), number, &guard);
        }
        let keys: Vec<Vec<u8>> = map.iter(&pin()).map(|(key, _)| key).collect();
        for key in keys {
            map.remove(&key, &pin());
        }
        assert_eq!((map.len(), map.count()), (0, 0));
        map.flush();
        collect(|| map.memory().used_bytes <= 2 * empty);
        // The first layer's last border node and the interior nodes above it stay.
        assert!(map.memory().used_bytes <= 10 * empty, "{:?}", map.memory());
    }
    assert_eq!(charged.load(Ordering::Relaxed) as usize, map.memory().reserved_bytes);
    drop(map);
    collect(|| charged.load(Ordering::Relaxed) == 0);
    assert_eq!(charged.load(Ordering::Relaxed), 0);
}
