//! Measures one map under one workload and prints lines `metric <tab> value`. Each measurement has its own process, so
//! that its memory is not shared with other maps.

use std::thread;
use std::time::Instant;

use keyaki_primitives::AlignedMemory;

use crate::keys::{Keys, Zipf, mix};
use crate::maps::{Lookup, Map};

/// Entries per scan.
const SCAN: usize = 100;

/// Parameters of a measurement.
pub struct Cell {
    pub keys: usize,
    pub threads: usize,
    /// True if the map is loaded in its fastest way instead of by insertion.
    pub bulk: bool,
}

fn print(metric: &str, value: f64) {
    println!("{metric}\t{value}");
}

fn resident_bytes() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<f64>().ok());
    resident.unwrap_or(f64::NAN) * 4096.0
}

/// Runs `work` on each thread with its part of the operations. Returns the seconds and the sum of the results.
fn on_threads<T: Sync>(threads: usize, numbers: &[T], work: impl Fn(&[T]) -> usize + Sync) -> (f64, usize) {
    let start = Instant::now();
    let part = numbers.len().div_ceil(threads).max(1);
    let sum = thread::scope(|scope| {
        let handles: Vec<_> = numbers.chunks(part).map(|part| scope.spawn(|| work(part))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no thread panics")).sum()
    });
    (start.elapsed().as_secs_f64(), sum)
}

/// Most bytes that are touched beforehand.
const WARM_BYTES_MAX: usize = 6 << 30;

/// Touches as much memory as the maps will need and returns it to the system. The first use of a page in a virtual
/// machine costs up to twenty times as much as the second one, and no map should pay for it.
fn warm_memory(bytes: usize) {
    let Ok(mut memory) = AlignedMemory::huge(bytes.min(WARM_BYTES_MAX)) else { return };
    for at in (0..memory.len()).step_by(4096) {
        memory[at] = 1;
    }
    std::hint::black_box(&memory);
}

fn make_keys<const N: usize, K: Keys<N>>(count: usize) -> Vec<[u8; N]> {
    (0..count as u64).map(K::key).collect()
}

/// Loads the map, then measures lookups, batched lookups, scans and memory.
pub fn run<const N: usize, K: Keys<N>, M: Map<N>>(cell: &Cell) {
    let keys = make_keys::<N, K>(cell.keys);
    let count = cell.keys;
    let in_order: Vec<u32> = (0..count as u32).collect();
    // Keys are looked up in another random order than that of insertion.
    let chosen: Vec<u32> = (0..count.min(4_000_000) as u64).map(|i| (mix(i + 77) % count as u64) as u32).collect();
    // The search keys are contiguous, as in requests, so that loading them from memory is not measured.
    let wanted: Vec<[u8; N]> = chosen.iter().map(|&number| keys[number as usize]).collect();
    let lookups: Vec<Lookup<N>> = wanted.into_iter().zip(chosen).collect();
    let scans = &lookups[..lookups.len().div_ceil(20)];
    let per_second = |operations: usize, seconds: f64| operations as f64 / seconds / 1e6;

    warm_memory(count * 200 + (64 << 20));
    let before = resident_bytes();
    let start = Instant::now();
    let map = if cell.bulk {
        let Some(map) = M::load(&keys, cell.threads) else { return };
        print("bulk load", per_second(count, start.elapsed().as_secs_f64()));
        map
    } else {
        let map = M::new();
        let writers = cell.threads.min(M::WRITERS);
        let (seconds, _) = on_threads(writers, &in_order, |part| {
            map.insert(&keys, part);
            0
        });
        print("insert", per_second(count, seconds));
        map
    };
    print("memory", (resident_bytes() - before) / count as f64);

    let (seconds, found) = on_threads(cell.threads, &lookups, |part| map.get(part));
    assert_eq!(found, lookups.len(), "every key is found with its value");
    print("get", per_second(lookups.len(), seconds));
    if map.get_many(&[]).is_some() {
        let (seconds, found) = on_threads(cell.threads, &lookups, |part| map.get_many(part).unwrap_or(0));
        assert_eq!(found, lookups.len(), "every key is found with its value");
        print("get in batches", per_second(lookups.len(), seconds));
    }
    let (seconds, met) = on_threads(cell.threads, scans, |part| map.scan(part, SCAN));
    assert!(met >= scans.len(), "scans find something");
    print("scans of 100", per_second(scans.len(), seconds));
    std::process::exit(0);
}

/// Inserts the second half of the keys into a map with the first half, one by one and, if the map supports it, as a
/// batch.
pub fn extend<const N: usize, K: Keys<N>, M: Map<N>>(cell: &Cell) {
    let keys = make_keys::<N, K>(cell.keys);
    warm_memory(cell.keys * 300 + (64 << 20));
    let half = cell.keys / 2;
    let numbers: Vec<u32> = (0..cell.keys as u32).collect();
    let (first, second) = numbers.split_at(half);
    let writers = cell.threads.min(M::WRITERS);
    let insert = |map: &M, numbers: &[u32]| {
        on_threads(writers, numbers, |part| {
            map.insert(&keys, part);
            0
        })
        .0
    };
    let (one, other) = (M::new(), M::new());
    insert(&one, first);
    print("insert into half", second.len() as f64 / insert(&one, second) / 1e6);
    drop(one);
    insert(&other, first);
    let start = Instant::now();
    if other.extend(&keys, second, cell.threads) {
        print("extend by half", second.len() as f64 / start.elapsed().as_secs_f64() / 1e6);
    }
    std::process::exit(0);
}

/// Mixed reads and writes of Zipf-distributed keys.
pub fn mixed<const N: usize, K: Keys<N>, M: Map<N>>(cell: &Cell) {
    let keys = make_keys::<N, K>(cell.keys);
    warm_memory(cell.keys * 200 + (64 << 20));
    let map = M::new();
    let all: Vec<u32> = (0..cell.keys as u32).collect();
    on_threads(cell.threads.min(M::WRITERS), &all, |part| {
        map.insert(&keys, part);
        0
    });
    let zipf = Zipf::new(cell.keys as u64);
    let chosen: Vec<Lookup<N>> = (0..4_000_000)
        .map(|i| (mix(zipf.rank(mix(i))) % cell.keys as u64) as u32)
        .map(|number| (keys[number as usize], number))
        .collect();
    for (name, writes) in [("95/5 reads/writes", 5), ("50/50 reads/writes", 50)] {
        let (seconds, _) = on_threads(cell.threads, &chosen, |part| {
            // Alternate runs of writes and reads in the given proportion.
            let mut found = 0;
            for run in part.chunks(100) {
                let (written, read) = run.split_at(run.len() * writes / 100);
                map.update(written);
                found += map.get(read);
            }
            found
        });
        print(name, chosen.len() as f64 / seconds / 1e6);
    }
    std::process::exit(0);
}

/// Sorts the keys with Keyaki's radix sort, the standard library and rayon.
pub fn sort<const N: usize, K: Keys<N>>(cell: &Cell) {
    use rayon::prelude::ParallelSliceMut;
    let keys = make_keys::<N, K>(cell.keys);
    warm_memory(cell.keys * 100 + (64 << 20));
    let rate = |start: Instant| cell.keys as f64 / start.elapsed().as_secs_f64() / 1e6;
    let entries = || keys.iter().copied().zip(0u32..).collect::<Vec<([u8; N], u32)>>();

    let start = Instant::now();
    let order = keyaki_masstree::sort_order(&keys, cell.threads);
    print("sort, keyaki", rate(start));

    let mut sorted = entries();
    let start = Instant::now();
    sorted.sort_unstable();
    print("sort, std", rate(start));
    assert!(order.iter().zip(&sorted).all(|(a, b)| *a as u32 == b.1), "the same order");

    let pool = rayon::ThreadPoolBuilder::new().num_threads(cell.threads).build().expect("threads can be made");
    let mut sorted = entries();
    let start = Instant::now();
    pool.install(|| sorted.par_sort_unstable());
    print("sort, rayon", rate(start));
}
