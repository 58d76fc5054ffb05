//! Recorded concurrent histories must be linearizable: for each key there is an order of the operations on it that is
//! consistent with their beginnings and ends and explains all their results. Operations on different keys are
//! independent, so that histories are checked key by key.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use keyaki_primitives::Random;

use crate::{Masstree, pin};

#[derive(Debug, Clone, Copy)]
enum Call {
    Get,
    /// A forward scan that begins and ends at the key.
    Range,
    /// A backward scan that begins and ends at the key.
    RangeRev,
    Insert(u64),
    Remove,
    /// Replaces the first value by the second.
    Exchange(u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Record {
    call: Call,
    /// The value before the operation.
    result: Option<u64>,
    begun: u64,
    ended: u64,
}

impl Record {
    /// The value after the operation; `None` if its result contradicts this state.
    fn apply(&self, state: Option<u64>) -> Option<Option<u64>> {
        if self.result != state {
            return None;
        }
        Some(match self.call {
            Call::Get | Call::Range | Call::RangeRev => state,
            Call::Insert(value) => Some(value),
            Call::Remove => None,
            Call::Exchange(expected, new) if state == Some(expected) => Some(new),
            Call::Exchange(..) => state,
        })
    }
}

/// Searches depth first over the orders that the times allow, without visiting a state twice.
fn is_linearizable(records: &[Record]) -> bool {
    assert!(records.len() <= 64);
    let all = if records.len() == 64 { u64::MAX } else { (1 << records.len()) - 1 };
    let mut tried = HashSet::new();
    let mut pending = vec![(0u64, None)];
    while let Some((done, state)) = pending.pop() {
        if done == all {
            return true;
        }
        if !tried.insert((done, state)) {
            continue;
        }
        let open = || (0..records.len()).filter(|i| done >> i & 1 == 0);
        let first_end = open().map(|i| records[i].ended).min().unwrap_or(0);
        for i in open().filter(|&i| records[i].begun <= first_end) {
            if let Some(state) = records[i].apply(state) {
                pending.push((done | 1 << i, state));
            }
        }
    }
    false
}

/// Records threads that work on few keys, while another thread makes nodes split and vanish around them.
fn record(seed: u64, key: fn(u64) -> Vec<u8>) -> Vec<Vec<Record>> {
    const KEYS: u64 = 4;
    let map = Masstree::<u64>::new();
    let clock = AtomicU64::new(0);
    let now = || clock.fetch_add(1, Ordering::SeqCst);
    let work = |thread: u64| {
        let mut records = Vec::new();
        let mut random = Random::new(seed * 31 + thread);
        for step in 0..48u64 {
            let number = random.below(KEYS);
            let value = thread * 1000 + step;
            let call = match random.below(8) {
                0 => Call::Get,
                1 => Call::Range,
                2 => Call::RangeRev,
                3 | 4 => Call::Insert(value),
                5 | 6 => Call::Remove,
                _ => Call::Exchange(random.below(3) * 1000 + step.saturating_sub(1), value),
            };
            let guard = pin();
            let key = key(number * 8);
            let begun = now();
            let result = match call {
                Call::Get => map.get(&key, &guard),
                Call::Range => map.range(key.clone()..=key, &guard).next().map(|(_, value)| value),
                Call::RangeRev => map.range_rev(key.clone()..=key, &guard).next().map(|(_, value)| value),
                Call::Insert(value) => map.insert(&key, value, &guard),
                Call::Remove => map.remove(&key, &guard),
                Call::Exchange(expected, new) => {
                    let accept = |value: Option<&u64>| value == Some(&expected);
                    map.compare_exchange(&key, accept, Some(new), &guard).unwrap_or_else(|refused| refused.current)
                }
            };
            records.push((number, Record { call, result, begun, ended: now() }));
        }
        records
    };
    // Inserts and removes keys between the recorded ones.
    let churn = || {
        for round in 0..200u64 {
            let guard = pin();
            let key = key(round * 7 % 40 / 8 * 8 + round % 7 + 1);
            if round % 3 == 0 {
                map.remove(&key, &guard);
            } else {
                map.insert(&key, 0, &guard);
            }
        }
    };
    let records: Vec<(u64, Record)> = thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..3).map(|thread| scope.spawn(move || work(thread))).collect();
        scope.spawn(churn);
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    (0..KEYS)
        .map(|key| records.iter().filter(|(number, _)| *number == key).map(|(_, record)| *record).collect())
        .collect()
}

#[test]
fn histories_are_linearizable() {
    let shapes: [fn(u64) -> Vec<u8>; 3] = [
        |number| number.to_be_bytes().to_vec(),
        |number| format!("constant{number:03}").into_bytes(),
        |number| format!("constantconstant{}", "x".repeat(number as usize)).into_bytes(),
    ];
    for seed in 0..300 {
        for records in record(seed, shapes[seed as usize % 3]) {
            assert!(is_linearizable(&records), "seed {seed}: {records:#?}");
        }
    }
}

#[test]
fn the_checker_rejects_a_lost_update() {
    let record = |call, result, begun, ended| Record { call, result, begun, ended };
    let lost = [record(Call::Insert(1), None, 0, 1), record(Call::Get, None, 2, 3)];
    assert!(!is_linearizable(&lost));
    let overlapping = [record(Call::Insert(1), None, 0, 3), record(Call::Get, None, 1, 2)];
    assert!(is_linearizable(&overlapping));
}
