//! Packed columns compared with plain values.

use bytes::Bytes;
use keyaki_primitives::Random;
use proptest::prelude::*;

use super::samples::{KINDS, sorted};
use crate::packed::BLOCK;
use crate::{Instructions, Key, Packed, Packer};

fn number<V: Key>(value: V) -> i128 {
    value.ordered() as i128 - V::FLIP as i128
}

fn check<V: Key>(values: &[V], label: &str) {
    for summaries in [false, true] {
        // Pushed in pieces, like a stream.
        let mut packer = Packer::new(summaries);
        values.chunks(777).for_each(|chunk| packer.push(chunk).unwrap());
        let packed = packer.finish().unwrap();
        assert_eq!(packed.to_bytes(), Packed::new(values, summaries).unwrap().to_bytes());
        check_column(&packed, values, label);
        check_column(&Packed::from_bytes(packed.to_bytes().into()).unwrap(), values, label);
    }
}

fn check_column<V: Key>(packed: &Packed<V>, values: &[V], label: &str) {
    assert_eq!(packed.len(), values.len());
    for (row, &value) in values.iter().enumerate() {
        assert_eq!(packed.get(row), value, "{label}: row {row}");
    }
    let mut random = Random::new(values.len() as u64);
    for instructions in Instructions::available() {
        let packed = packed.clone().with_instructions(instructions);
        let mut all = Vec::new();
        packed.scan(0, values.len(), |some| all.extend_from_slice(some));
        assert_eq!(all, values, "{label}, {}", instructions.name());
        for _ in 0..8 {
            let (one, other) =
                (random.below(values.len() as u64 + 1) as usize, random.below(values.len() as u64 + 1) as usize);
            let (from, to) = (one.min(other), one.max(other));
            let part = &values[from..to];
            let aggregate = packed.aggregate(from, to);
            assert_eq!(aggregate.count, part.len());
            assert_eq!(aggregate.sum, part.iter().map(|&value| number(value)).sum::<i128>(), "{label}");
            assert_eq!((aggregate.min, aggregate.max), (part.iter().min().copied(), part.iter().max().copied()));
            assert_eq!((packed.sum(from, to), packed.sum_by_scan(from, to)), (aggregate.sum, aggregate.sum));
            let mut some = Vec::new();
            packed.scan(from, to, |values| some.extend_from_slice(values));
            assert_eq!(some, part);
        }
    }
}

fn all_kinds<V: Key>() {
    for kind in KINDS {
        for count in [0, 1, 7, BLOCK, BLOCK + 1, 1024, 3000] {
            let mut values = sorted::<V>(kind, count, 1);
            check(&values, &format!("{kind}, {count}"));
            values.reverse();
            check(&values, &format!("{kind}, {count}, falling"));
            let mut random = Random::new(3);
            for row in 0..count {
                values.swap(row, random.below(count as u64) as usize);
            }
            check(&values, &format!("{kind}, {count}, in no order"));
        }
    }
}

#[test]
fn columns_u32() {
    all_kinds::<u32>();
}

#[test]
fn columns_i32() {
    all_kinds::<i32>();
}

#[test]
fn columns_u64() {
    all_kinds::<u64>();
}

#[test]
fn columns_i64() {
    all_kinds::<i64>();
}

#[test]
fn chunks_are_joined() {
    let values: Vec<u64> = sorted("gaps", 600_000, 1);
    let packed = Packed::new(&values, true).unwrap();
    assert!((0..values.len()).step_by(997).all(|row| packed.get(row) == values[row]));
    assert_eq!(packed.sum(5, 599_990), values[5..599_990].iter().map(|&value| value as i128).sum());
}

#[test]
fn even_steps_take_headers_only() {
    let values: Vec<u64> = (0..100_000u64).map(|row| 1_700_000_000_000 + row * 250).collect();
    assert!(Packed::new(&values, false).unwrap().bytes() < values.len() / 7);
}

#[test]
fn timestamps_take_a_quarter() {
    let mut random = Random::new(1);
    let mut at = 1u64 << 40;
    let values: Vec<u64> = (0..100_000)
        .map(|_| {
            at += random.below(17);
            at
        })
        .collect();
    assert!(Packed::new(&values, false).unwrap().bytes() * 5 < values.len() * 8);
}

#[test]
fn damage_is_found() {
    let values: Vec<i64> = sorted("clusters", 3000, 1);
    let bytes = Packed::new(&values, true).unwrap().to_bytes();
    for at in 0..bytes.len().min(2000) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(Packed::<i64>::from_bytes(damaged.into()).is_err(), "byte {at}");
    }
    assert!(Packed::<u64>::from_bytes(bytes.clone().into()).is_err(), "other values");
    assert!(Packed::<i64>::from_bytes(Bytes::from(bytes).slice(..1000)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 100 }))]

    #[test]
    fn any_values(values in prop::collection::vec(any::<i64>(), 0..400), small in prop::collection::vec(any::<i16>(), 0..400)) {
        check(&values, "any");
        check(&small.iter().map(|&value| value as i64).collect::<Vec<_>>(), "small");
        check(&small.iter().map(|&value| value as u32).collect::<Vec<_>>(), "wrapped");
    }
}
