//! Cold gets: the process is new, and the files have been dropped from the page cache.

use std::time::Instant;

use keyaki_primitives::Random;

use super::{Cell, on_threads, per_second, print};
use crate::Result;
use crate::calibration::IN_FLIGHT;
use crate::keys::{self, Key};
use crate::process::{Io, drop_page_cache};
use crate::system::System;

/// Threads that share the gets in flight, for systems that read several keys at a time.
const THREADS: u64 = 2;
/// Bytes of a page, for systems that do not count their reads.
const PAGE_BYTES: f64 = 4096.0;

pub fn get(cell: &Cell) -> Result {
    one_by_one(cell, "get", true)
}

pub fn absent(cell: &Cell) -> Result {
    one_by_one(cell, "absent get", false)
}

fn one_by_one(cell: &Cell, metric: &str, is_present: bool) -> Result {
    let system = cell.open()?;
    let mut random = Random::new(1);
    let (io, reads, start) = (Io::now()?, system.page_reads(), Instant::now());
    for _ in 0..cell.options.gets {
        let number = random.below(cell.keys);
        let key = if is_present { keys::key(number) } else { keys::absent_key(number) };
        let mut is_right = false;
        system.get(&key, &mut |found| {
            is_right = if is_present { found == Some(&keys::value(&key)) } else { found.is_none() };
        })?;
        if !is_right {
            return Err(format!("{metric}: wrong value of key {number}").into());
        }
    }
    let gets = cell.options.gets as f64;
    print(metric, per_second(cell.options.gets, start));
    let bytes = (Io::now()?.read_bytes - io.read_bytes) as f64;
    let reads = match (reads, system.page_reads()) {
        (Some(before), Some(after)) => (after - before) as f64,
        _ => bytes / PAGE_BYTES,
    };
    print("page reads", reads / gets);
    print("bytes read", bytes / gets);
    Ok(())
}

/// A thread per get in flight, and batches of two threads in systems that read several keys at a time. The system is opened
/// anew between the two, with cold files.
pub fn get_many(cell: &Cell) -> Result {
    let threads = many(cell, &*cell.open()?, IN_FLIGHT as u64)?;
    print("64 threads", threads);
    drop_page_cache(cell.directory)?;
    let system = cell.open()?;
    let mut fastest = threads;
    if system.get_many(&[], &mut |_, _| {})? {
        let batches = many(cell, &*system, THREADS)?;
        print("2 threads, batches of 32", batches);
        fastest = fastest.max(batches);
    }
    print("get, 64 in flight", fastest);
    Ok(())
}

/// Gets per second of threads with [`IN_FLIGHT`] gets together.
fn many(cell: &Cell, system: &dyn System, threads: u64) -> Result<f64> {
    let batch = IN_FLIGHT / threads as usize;
    // So many that fresh memory for the cache is a small part of the time.
    let batches = 4 * cell.options.gets / IN_FLIGHT as u64;
    let start = Instant::now();
    let found = on_threads(threads, |thread| {
        let mut random = Random::new(2 + thread);
        let mut right = 0;
        for _ in 0..batches {
            let keys: Vec<Key> = (0..batch).map(|_| keys::key(random.below(cell.keys))).collect();
            let mut check =
                |at: usize, found: Option<&[u8]>| right += u64::from(found == Some(&keys::value(&keys[at])));
            if batch == 1 {
                system.get(&keys[0], &mut |found| check(0, found))?;
            } else {
                system.get_many(&keys, &mut check)?;
            }
        }
        Ok(right)
    })?;
    let gets = batches * IN_FLIGHT as u64;
    if found != gets {
        return Err(format!("{} of {gets} values are wrong", gets - found).into());
    }
    Ok(per_second(gets, start))
}
