//! Cold scans. Order, number and the first bytes of the values are verified.

use std::time::Instant;

use keyaki_primitives::Random;

use super::{Cell, on_threads, per_second, print};
use crate::Result;
use crate::keys::{self, KEY_BYTES, Key, ROW_BYTES};

/// Rows of a short scan.
const ROWS: u64 = 1_000;

/// The rows of a scan so far.
#[derive(Default)]
struct Checked {
    rows: u64,
    last: Option<Key>,
    is_wrong: bool,
}

impl Checked {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let key: Option<Key> = key.try_into().ok();
        let is_right = key > self.last && key.is_some_and(|key| value.starts_with(&keys::value_head(&key)));
        self.is_wrong |= !is_right;
        self.last = key;
        self.rows += 1;
    }

    fn finish(&self, expected: u64) -> Result<u64> {
        match self.is_wrong || self.rows != expected {
            true => Err(format!("a scan of {expected} rows has {} rows, or wrong rows", self.rows).into()),
            false => Ok(self.rows),
        }
    }
}

pub fn scan(cell: &Cell, threads: u64) -> Result {
    let system = cell.open()?;
    let scans = cell.options.scans / threads;
    let start = Instant::now();
    let rows = on_threads(threads, |thread| {
        let mut random = Random::new(100 + thread);
        let mut rows = 0;
        for _ in 0..scans {
            let from = start_key(&mut random, cell.keys);
            let mut checked = Checked::default();
            system.scan(&from, ROWS as usize, &mut |key, value| checked.add(key, value))?;
            rows += checked.finish(ROWS)?;
        }
        Ok(rows)
    })?;
    print("scans of 1,000", per_second(rows / ROWS, start));
    Ok(())
}

/// A random key of the data that at least [`ROWS`] keys follow: at most the expected key at this distance from the end,
/// with a margin.
fn start_key(random: &mut Random, keys: u64) -> Key {
    let share = (2 * ROWS) as f64 / keys as f64;
    let last = ((1.0 - share) * 2f64.powi(64)) as u64;
    loop {
        let key = keys::key(random.below(keys));
        if key.first_chunk().is_some_and(|head| u64::from_be_bytes(*head) < last) {
            return key;
        }
    }
}

pub fn full_scan(cell: &Cell) -> Result {
    let system = cell.open()?;
    let start = Instant::now();
    let mut checked = Checked::default();
    system.scan(&[0; KEY_BYTES], usize::MAX, &mut |key, value| checked.add(key, value))?;
    let rows = checked.finish(cell.keys)?;
    print("full scan", per_second(rows * ROW_BYTES, start) / 1e6);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_are_checked() {
        let (key, value) = keys::row(1);
        let add = |rows: &[(&[u8], &[u8])]| {
            let mut checked = Checked::default();
            rows.iter().for_each(|(key, value)| checked.add(key, value));
            checked
        };
        assert_eq!(add(&[(&key, &value)]).finish(1).unwrap(), 1);
        assert!(add(&[(&key, &value)]).finish(2).is_err());
        assert!(add(&[(&key, &value), (&key, &value)]).finish(2).is_err());
        assert!(add(&[(&key[1..], &value)]).finish(1).is_err());
        assert!(add(&[(&keys::key(2), &value)]).finish(1).is_err());
    }

    #[test]
    fn enough_keys_follow_the_start_of_a_scan() {
        let all: Vec<Key> = (0..10_000).map(keys::key).collect();
        let mut random = Random::new(1);
        for _ in 0..100 {
            let from = start_key(&mut random, 10_000);
            assert!(all.iter().filter(|key| **key >= from).count() as u64 >= ROWS);
        }
    }
}
