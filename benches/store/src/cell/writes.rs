//! Inserts by one and two writers, latencies of single inserts, upserts.

use std::time::Instant;

use super::{BATCH, Cell, on_threads, per_second, print};
use crate::Result;
use crate::histogram::Histogram;
use crate::keys::{self, Key, ROW_BYTES, Row, add};
use crate::metrics::KEYS;
use crate::process::{self, Io};
use crate::system::System;

/// Upserted values that are read back.
const CHECKED: u64 = 1_000;

pub fn insert(cell: &Cell) -> Result {
    let written = Io::now()?.write_bytes;
    let system = cell.open()?;
    let start = Instant::now();
    let inserted = write(cell, &*system, 1)?;
    print("insert", per_second(inserted, start));
    let start = Instant::now();
    system.settle()?;
    print("settle", start.elapsed().as_secs_f64());
    drop(system);
    let user_bytes = (inserted * ROW_BYTES) as f64;
    print("write amplification", (Io::now()?.write_bytes - written) as f64 / user_bytes);
    print("space amplification", process::allocated_bytes(cell.directory)? as f64 / user_bytes);
    print("memory", process::resident_bytes_max()? as f64 / f64::from(1 << 20));
    print(KEYS, inserted as f64);
    Ok(())
}

pub fn writers(cell: &Cell) -> Result {
    let system = cell.open()?;
    let start = Instant::now();
    let inserted = write(cell, &*system, 2)?;
    print("two writers", per_second(inserted, start));
    Ok(())
}

/// Inserts the keys in batches, which the writers take in turn, until the deadline. Returns the number of keys.
fn write(cell: &Cell, system: &dyn System, writers: u64) -> Result<u64> {
    let deadline = cell.deadline();
    on_threads(writers, |writer| {
        let mut rows: Vec<Row> = Vec::new();
        let mut inserted = 0;
        for first in (writer * BATCH..cell.keys).step_by((writers * BATCH) as usize) {
            if Instant::now() > deadline {
                break;
            }
            rows.clear();
            rows.extend((first..(first + BATCH).min(cell.keys)).map(keys::row));
            system.insert(&rows)?;
            inserted += rows.len() as u64;
        }
        Ok(inserted)
    })
}

pub fn latency(cell: &Cell) -> Result {
    let system = cell.open()?;
    let mut histogram = Histogram::new();
    let (deadline, start) = (cell.deadline(), Instant::now());
    let mut inserted = 0;
    for number in cell.keys..cell.keys + cell.keys / 4 {
        let row = keys::row(number);
        let before = Instant::now();
        if before > deadline {
            break;
        }
        system.insert(&[row])?;
        histogram.add(before.elapsed().as_nanos() as u64);
        inserted += 1;
    }
    print("single inserts", per_second(inserted, start));
    let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    for (metric, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
        print(metric, milliseconds(histogram.percentile(share)));
    }
    print("max", milliseconds(histogram.max()));
    Ok(())
}

/// Upserts a quarter of the keys, which are random in key order and the first ones inserted.
pub fn upsert(cell: &Cell) -> Result {
    let system = cell.open()?;
    if !system.upsert(&[])? {
        return Ok(());
    }
    let (deadline, start) = (cell.deadline(), Instant::now());
    let mut keys: Vec<Key> = Vec::new();
    let mut upserted = 0;
    for first in (0..cell.keys / 4).step_by(BATCH as usize) {
        if Instant::now() > deadline {
            break;
        }
        keys.clear();
        keys.extend((first..first + BATCH).map(keys::key));
        system.upsert(&keys)?;
        upserted += BATCH;
    }
    print("upsert", per_second(upserted, start));
    for number in (0..upserted).step_by((upserted / CHECKED).max(1) as usize) {
        let (key, value) = keys::row(number);
        let mut is_right = false;
        system.get(&key, &mut |found| is_right = found == Some(&*add(Some(&value), 1)))?;
        if !is_right {
            return Err(format!("key {number} has a wrong value after its upsert").into());
        }
    }
    Ok(())
}
