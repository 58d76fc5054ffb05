//! Bulk construction gives the same map as insertion, with a valid structure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::model::{compare, key};
use crate::{Bulk, BulkError, Masstree, pin};

type Encode = fn(u64) -> Vec<u8>;

fn shapes() -> Vec<Encode> {
    vec![
        |number| number.to_be_bytes().to_vec(),
        |number| format!("{:010}", number * 7_777_777 % 10_000_000_000).into_bytes(),
        |number| format!("constant{:012}", number * 7919 % 1_000_000).into_bytes(),
        // Most keys share one slice, and in its layer most share one slice again. Some keys end where layers begin.
        |number| match number % 10 {
            0 => number.to_be_bytes().to_vec(),
            1 => b"constant"[..(number / 10 % 9) as usize].to_vec(),
            2 => format!("constantx{number}").into_bytes(),
            _ => format!("constantconstant{}{number:07}", "yz".repeat(number as usize % 20)).into_bytes(),
        },
        |number| vec![b'a'; (number % 700) as usize],
        |number| format!("{number}{}", "long suffix ".repeat(number as usize % 5)).into_bytes(),
    ]
}

#[test]
fn the_same_as_insertion() {
    for encode in shapes() {
        for (count, threads, fill) in
            [(0, 1, 1.0), (1, 2, 1.0), (9, 1, 0.7), (2000, 1, 0.5), (25_000, 1, 1.0), (25_000, 3, 0.8)]
        {
            let keys: Vec<Vec<u8>> = (0..count).map(|number| encode(number * 7919 % 65_537)).collect();
            let model: BTreeMap<Vec<u8>, u64> = keys.iter().cloned().zip(0..).collect();
            let bulk = Bulk::new().threads(threads).fill(fill).keep_last();
            let map = bulk.from_unsorted(&keys, (0..count).collect()).unwrap();
            compare(&map, &model);
            let sorted: Vec<&Vec<u8>> = model.keys().collect();
            compare(&bulk.from_sorted(&sorted, model.values().copied().collect()).unwrap(), &model);
            // The map accepts writes afterwards.
            let guard = pin();
            let mut model = model;
            for number in 0..2000 {
                let key = encode(number * 3);
                assert_eq!(map.insert(&key, number, &guard), model.insert(key, number));
                let key = encode(number * 5);
                assert_eq!(map.remove(&key, &guard), model.remove(&key));
            }
            compare(&map, &model);
            drop(guard);
            let added: Vec<Vec<u8>> = (0..3000).map(|number| encode(number * 11 % 65_537)).collect();
            bulk.extend(&map, &added, (0..3000).collect()).unwrap();
            model.extend(added.into_iter().zip(0..));
            compare(&map, &model);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn adversarial_keys(keys in proptest::collection::vec(key(), 0..400), threads in 1usize..3) {
        let model: BTreeMap<Vec<u8>, u64> = keys.iter().cloned().zip(0..).collect();
        let map = Bulk::new().threads(threads).keep_last().from_unsorted(&keys, (0..keys.len() as u64).collect()).unwrap();
        compare(&map, &model);
        let order = crate::sort_order(&keys, threads);
        assert!(order.is_sorted_by(|&a, &b| (&keys[a], a) < (&keys[b], b)));
    }
}

#[test]
fn policies() {
    let keys = ["b", "a", "b", "c", "b"];
    let values = || vec![1u64, 2, 3, 4, 5];
    let get = |map: &Masstree<u64>| map.get("b", &pin());
    assert_eq!(get(&Bulk::new().keep_first().from_unsorted(&keys, values()).unwrap()), Some(1));
    assert_eq!(get(&Bulk::new().keep_last().from_unsorted(&keys, values()).unwrap()), Some(5));
    let merge = Bulk::new().merge(|earlier: u64, later| 10 * earlier + later);
    let map = merge.from_unsorted(&keys, values()).unwrap();
    assert_eq!(get(&map), Some(135));
    merge.extend(&map, &["b", "d"], vec![7, 8]).unwrap();
    assert_eq!((get(&map), map.len()), (Some(1357), 4));
    Bulk::new().keep_first().extend(&map, &["b"], vec![0]).unwrap();
    assert_eq!(get(&map), Some(1357));
    assert_eq!(Bulk::new().extend(&map, &["e", "b"], vec![0, 0]), Err(BulkError::Duplicate { position: 1 }));
    assert_eq!((get(&map), map.len()), (Some(1357), 5));

    let error = |result: Result<Masstree<u64>, BulkError>| result.map(|_| ()).unwrap_err();
    assert_eq!(error(Bulk::new().from_unsorted(&keys, values())), BulkError::Duplicate { position: 2 });
    assert_eq!(error(Bulk::new().from_sorted(&keys, values())), BulkError::Unsorted { position: 1 });
    assert_eq!(error(Bulk::new().from_sorted(&["a"], values())), BulkError::Lengths { keys: 1, values: 5 });
}

#[test]
fn owned_values_are_dropped_once() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let alive = Arc::new(AtomicUsize::new(0));
    let values = |count: usize| -> Vec<Box<Counted>> {
        alive.fetch_add(count, Ordering::Relaxed);
        (0..count).map(|_| Box::new(Counted(alive.clone()))).collect()
    };
    let keys: Vec<String> = (0..5000).map(|number| format!("constant{:09}", number / 2 * 7919 % 65_537)).collect();
    for bulk in [Bulk::new().keep_first(), Bulk::new().keep_last(), Bulk::new().merge(|_, later| later)] {
        let map = bulk.from_unsorted(&keys, values(5000)).unwrap();
        assert_eq!(alive.load(Ordering::Relaxed), map.len());
        drop(map);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    }
    assert!(Bulk::new().from_unsorted(&keys, values(5000)).is_err());
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn batched_lookups() {
    for encode in shapes() {
        let keys: Vec<Vec<u8>> = (0..20_000).map(|number| encode(number * 2)).collect();
        let map = Bulk::new().keep_last().from_unsorted(&keys, (0..20_000u64).collect()).unwrap();
        let wanted: Vec<Vec<u8>> = (0..5000).map(|number| encode(number * 3)).collect();
        let guard = pin();
        let mut values = Vec::new();
        for count in [0, 1, 5, 5000] {
            map.get_many(&wanted[..count], &mut values, &guard);
            assert!(values.iter().copied().eq(wanted[..count].iter().map(|key| map.get(key, &guard))));
        }
    }
}
