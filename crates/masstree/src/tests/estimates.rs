//! Shapes, estimates and split keys.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::model::key;
use crate::{Bulk, Masstree, pin};

type Encode = fn(u64) -> Vec<u8>;

fn shapes() -> [Encode; 4] {
    [
        |number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec(),
        |number| format!("{:010}", number * 7_777_777 % 10_000_000_000).into_bytes(),
        |number| format!("constant{:012}", number * 7919 % 1_000_003).into_bytes(),
        |number| format!("{:02}/constant/{:05}/end", number % 50, number * 7919 % 65_537).into_bytes(),
    ]
}

/// The same map built by insertion and in bulk.
fn maps(encode: Encode, keys: u64) -> [Masstree<u64>; 2] {
    let inserted = Masstree::new();
    for number in 0..keys {
        inserted.insert(&encode(number), number, &pin());
    }
    let all: Vec<Vec<u8>> = (0..keys).map(encode).collect();
    [inserted, Bulk::new().from_unsorted(&all, (0..keys).collect()).unwrap()]
}

#[test]
fn estimates_are_near() {
    const KEYS: u64 = 60_000;
    for encode in shapes() {
        let mut sorted: Vec<Vec<u8>> = (0..KEYS).map(encode).collect();
        sorted.sort();
        for map in maps(encode, KEYS) {
            let guard = pin();
            assert_eq!(map.estimate::<&[u8]>(.., &guard), KEYS as usize);
            let mut errors = vec![Vec::new(); 8];
            for i in 0..200usize {
                let from = i * 2_654_435_761 % KEYS as usize;
                for (length, errors) in [0, 1, 3, 10, 100, 1000, 10_000, 30_000].into_iter().zip(&mut errors) {
                    let to = (from + length).min(KEYS as usize - 1);
                    let estimate = map.estimate::<&Vec<u8>>(&sorted[from]..&sorted[to], &guard) as f64;
                    let exact = (to - from) as f64;
                    let error = (estimate - exact).abs() / exact.max(1.0);
                    assert!(error <= if length <= 3 { 0.0 } else { 0.8 }, "{from} {to} {estimate}");
                    errors.push(error);
                }
                let share = map.estimate_share::<&Vec<u8>>(..&sorted[from], &guard);
                assert!((share - from as f64 / KEYS as f64).abs() < 0.1, "{share} {from}");
                let share = map.estimate_share::<&Vec<u8>>((Bound::Excluded(&sorted[from]), Bound::Unbounded), &guard);
                assert!((share - (1.0 - from as f64 / KEYS as f64)).abs() < 0.1, "{share} {from}");
            }
            let means: Vec<f64> =
                errors.iter().map(|errors| errors.iter().sum::<f64>() / errors.len() as f64).collect();
            assert!(means.iter().all(|&mean| mean < 0.2), "{means:?}");
        }
    }
}

#[test]
fn estimates_within_a_node_are_exact() {
    let map = Masstree::new();
    let guard = pin();
    let keys = ["", "a", "ab", "abcdefgh", "abcdefghi", "abcdefghijkl", "b", "long key with a suffix", "z"];
    for key in keys {
        map.insert(key, 0u64, &guard);
    }
    let between = ["", "a", "aa", "abcdefgh\0", "abcdefghj", "abcdefghz", "b\0", "long key", "long key x", "zz"];
    let bounds = || keys.into_iter().chain(between);
    for low in bounds() {
        for high in bounds() {
            for range in [
                (Bound::Included(low), Bound::Excluded(high)),
                (Bound::Excluded(low), Bound::Included(high)),
                (Bound::Included(low), Bound::Unbounded),
                (Bound::Unbounded, Bound::Included(high)),
            ] {
                let exact = map.range::<&str>(range, &guard).count();
                assert_eq!(map.estimate::<&str>(range, &guard), exact, "{range:?}");
            }
        }
    }
}

#[test]
fn split_keys_divide_evenly() {
    const KEYS: usize = 60_000;
    for encode in shapes() {
        let mut sorted: Vec<Vec<u8>> = (0..KEYS as u64).map(encode).collect();
        sorted.sort();
        for map in maps(encode, KEYS as u64) {
            let guard = pin();
            for (from, to, count) in
                [(0, KEYS, 1), (0, KEYS, 7), (0, KEYS, 200), (7000, 50_000, 10), (100, 130, 3), (5, 6, 4)]
            {
                let (low, high) = (sorted[from].clone(), sorted[to - 1].clone());
                let cuts = map.split_keys(count, low.clone()..=high.clone(), &guard);
                assert!(cuts.len() <= count && cuts.is_sorted_by(|a, b| a < b));
                assert!(cuts.iter().all(|cut| *cut > low && *cut < high));
                if to - from < 10 * count {
                    continue;
                }
                assert_eq!(cuts.len(), count);
                let places: Vec<usize> = cuts.iter().map(|cut| sorted.partition_point(|key| key < cut)).collect();
                let ends = std::iter::once(from).chain(places.iter().copied());
                let parts: Vec<usize> =
                    ends.zip(places.iter().copied().chain([to])).map(|(start, end)| end - start).collect();
                let wanted = (to - from) / (count + 1);
                let (smallest, largest) = (parts.iter().min(), parts.iter().max());
                assert!(
                    *largest.unwrap() <= 2 * wanted + 8 && *smallest.unwrap() + 8 >= wanted / 3,
                    "{count} {parts:?}"
                );
            }
        }
    }
    let empty = Masstree::<u64>::new();
    assert!(empty.split_keys::<&[u8]>(5, .., &pin()).is_empty());
    assert_eq!(empty.estimate::<&[u8]>(.., &pin()), 0);
    assert_eq!(empty.estimate_share("a".., &pin()), 0.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn adversarial_keys(keys in proptest::collection::btree_set(key(), 0..400), ends in proptest::collection::vec(key(), 8)) {
        let map = Masstree::new();
        let guard = pin();
        for key in &keys {
            map.insert(key, 0u64, &guard);
        }
        for low in &ends {
            for high in &ends {
                let estimate = map.estimate::<&Vec<u8>>(low..high, &guard);
                prop_assert!(estimate <= keys.len());
                prop_assert!(low <= high || estimate == 0);
                let cuts = map.split_keys::<&Vec<u8>>(5, low..high, &guard);
                prop_assert!(cuts.is_sorted_by(|a, b| a < b));
                prop_assert!(cuts.iter().all(|cut| cut > low && cut < high));
            }
        }
        let shape = map.shape();
        prop_assert_eq!(shape.keys, keys.len());
        prop_assert_eq!(shape.layers, shape.links + 1);
        prop_assert!(shape.border_fill() <= 1.0 && shape.interior_fill() <= 1.0);
    }
}

#[test]
fn shapes_by_layer() {
    let encode = |number: u64| format!("constant{number:012}").into_bytes();
    let keys: Vec<Vec<u8>> = (0..10_000).map(encode).collect();
    let map = Bulk::new().from_unsorted(&keys, (0..10_000u64).collect()).unwrap();
    let layers = map.shape_by_layer();
    // Slices: "constant", eight digits (zeros, since the keys have at most four digits), four digits.
    assert_eq!((layers[0].layers, layers[0].keys, layers[0].links), (1, 0, 1));
    assert_eq!((layers[1].layers, layers[1].keys, layers[1].links), (1, 0, 1));
    assert_eq!((layers[2].layers, layers[2].keys, layers[2].links), (1, 10_000, 0));
    // The last node of each part may not be full.
    assert!((667..700).contains(&layers[2].border_nodes) && layers[2].slots == 15 * layers[2].border_nodes);
    assert_eq!(layers[2].depth, 4);
    assert!(layers[2].border_fill() > 0.95 && layers[2].interior_fill() > 0.8);
    let shape = map.shape();
    assert_eq!((shape.keys, shape.layers, shape.layers_deepest, shape.depth), (10_000, 3, 3, 1));
}

/// Beside writers, entries that stay in place are counted and none is counted twice.
#[test]
fn shapes_beside_writers() {
    let map = Masstree::new();
    for number in 0..20_000u64 {
        map.insert(&(2 * number), number, &pin());
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                let key = number * 7919 % 20_000 * 2 + 1;
                if map.insert(&key, number, &pin()).is_some() {
                    map.remove(&key, &pin());
                }
            }
        });
        for _ in 0..40 {
            let shape = map.shape();
            assert!(shape.keys <= 40_000 && shape.layers == 1, "{shape:?}");
            let guard = pin();
            let estimate = map.estimate(10_000u64..30_000, &guard);
            assert!((4_000..=30_000).contains(&estimate), "{estimate}");
            let cuts = map.split_keys(9, 1000u64.., &guard);
            assert!(cuts.is_sorted_by(|a, b| a < b) && cuts.len() <= 9);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(map.shape().keys, map.len());
}
