//! Indexes: plain and packed keys, values, ranges, serialised forms.

use bytes::Bytes;
use keyaki_primitives::Random;

use super::samples::{KINDS, sorted, wanted};
use crate::{Error, Goal, Index, IndexBuilder, Instructions, Key, Options, Parameters, Tree, reseal};

fn build<K: Key>(keys: &[K], values: &[u64], goal: Goal, packed: bool) -> Index<K> {
    let mut builder = IndexBuilder::new(Options { parameters: Parameters::new(goal), packed });
    for (at, keys) in keys.chunks(999).enumerate() {
        let values = if values.is_empty() { values } else { &values[at * 999..][..keys.len()] };
        builder.push(keys, values).unwrap();
    }
    builder.finish().unwrap()
}

fn check<K: Key>(index: &Index<K>, keys: &[K], values: &[u64], label: &str) {
    let wanted = wanted(keys, 7);
    let right: Vec<usize> = wanted.iter().map(|&key| keys.partition_point(|&other| other < key)).collect();
    for instructions in Instructions::available() {
        let index = index.clone().with_instructions(instructions);
        let mut rows = vec![0; wanted.len()];
        index.lower_bound_many(&wanted, &mut rows);
        assert_eq!(rows, right, "{label}, {}", instructions.name());
        for (&key, &row) in wanted.iter().zip(&right) {
            assert_eq!(index.lower_bound(key), row, "{label}: {key:?}");
            assert_eq!(index.get(key).is_some(), keys.binary_search(&key).is_ok());
        }
    }
    for pair in wanted.windows(2).step_by(31) {
        let (from, to) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
        let inside = |&&key: &&K| from <= key && key <= to;
        let rows = index.rows(from..=to);
        assert_eq!(rows.len(), keys.iter().filter(inside).count());
        assert_eq!(index.count((std::ops::Bound::Excluded(from), std::ops::Bound::Excluded(to))), {
            keys.iter().filter(|&&key| from < key && key < to).count()
        });
        let expected: Vec<(K, u64)> = rows.clone().map(|row| (keys[row], values[row])).collect();
        let mut found = Vec::new();
        index.scan(rows.clone(), |keys, values| {
            found.extend(keys.iter().copied().zip(values.iter().copied()));
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(found, expected);
        let aggregate = index.aggregate(from..=to);
        let part = &values[rows];
        assert_eq!(aggregate.sum, part.iter().map(|&value| value as i128).sum::<i128>());
        assert_eq!(index.sum(from..=to), aggregate.sum);
        assert_eq!((aggregate.count, aggregate.min, aggregate.max), {
            (part.len(), part.iter().min().copied(), part.iter().max().copied())
        });
    }
    assert_eq!(index.rows(..), 0..keys.len());
}

fn all_kinds<K: Key>() {
    let mut random = Random::new(11);
    for kind in KINDS {
        for count in [0, 1, 127, 128, 129, 5000] {
            let keys = sorted::<K>(kind, count, 5);
            let values: Vec<u64> = (0..count).map(|_| random.next_u64() >> random.below(64)).collect();
            for (goal, packed) in [(Goal::Fastest, false), (Goal::Smallest, true), (Goal::Bounded { rows: 1000 }, true)]
            {
                let label = format!("{kind}, {count}, {goal:?}");
                let index = build(&keys, &values, goal, packed);
                check(&index, &keys, &values, &label);
                check(&Index::from_bytes(index.to_bytes().into()).unwrap(), &keys, &values, &label);
                let numbers: Vec<u64> = (0..count as u64).collect();
                check(&build(&keys, &[], goal, packed), &keys, &numbers, &label);
            }
        }
    }
}

#[test]
fn indexes_u32() {
    all_kinds::<u32>();
}

#[test]
fn indexes_i64() {
    all_kinds::<i64>();
}

#[test]
fn rejected_rows() {
    let mut builder = IndexBuilder::<i32>::new(Options::default());
    builder.push(&[1, 2, 2], &[7, 8, 9]).unwrap();
    assert_eq!(builder.push(&[3], &[]), Err(Error::Lengths { keys: 1, values: 0 }));
    assert_eq!(builder.push(&[1], &[7]), Err(Error::Order { row: 3 }));
    assert_eq!(builder.push(&[2, 5, 4], &[7, 7, 7]), Err(Error::Order { row: 5 }));
    builder.push(&[], &[]).unwrap();
    builder.push(&[2], &[7]).unwrap();
    assert_eq!(builder.finish().unwrap().count(2..=2), 3);
    let mut builder = IndexBuilder::<i32>::new(Options::default());
    builder.push(&[1], &[]).unwrap();
    assert!(builder.push(&[2], &[2]).is_err());
}

#[test]
fn a_scan_stops_at_break() {
    let keys: Vec<u64> = (0..10_000).collect();
    let index = build(&keys, &[], Goal::Fastest, true);
    let mut calls = 0;
    index.scan(0..10_000, |_, _| {
        calls += 1;
        std::ops::ControlFlow::Break(())
    });
    assert_eq!(calls, 1);
}

#[test]
fn damage_is_found() {
    let keys: Vec<u32> = sorted("gaps", 2000, 1);
    let bytes = build(&keys, &keys.iter().map(|&key| key as u64).collect::<Vec<_>>(), Goal::Smallest, true).to_bytes();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(Index::<u32>::from_bytes(damaged.into()).is_err(), "byte {at}");
    }
    for length in (0..bytes.len()).step_by(13) {
        assert!(Index::<u32>::from_bytes(Bytes::from(bytes.clone()).slice(..length)).is_err());
    }
    assert!(Tree::<u32>::from_bytes(bytes.into()).is_err());
}

#[test]
fn resealing_restores_the_checksum() {
    let bytes = build(&[1u32, 2, 3], &[], Goal::Fastest, false).to_bytes();
    let mut again = bytes.clone();
    again[24..32].fill(0);
    reseal(&mut again);
    assert_eq!(bytes, again);
}
