//! Peak memory of scans, flushes and merges, counted by the allocator: bounded, whatever the number of messages to
//! merge.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{Direction, Durability, KeyRange, Options, Store, TreeId, block_on};

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak of the bytes allocated during `work`, without the bytes allocated before, and the result of `work`.
fn peak_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (PEAK.load(Ordering::Relaxed) - before, result)
}

fn count(store: &Store, direction: Direction) -> usize {
    let view = store.snapshot().tree(TreeId::new(1)).unwrap();
    let pages = store.blocking();
    let mut cursor = view.cursor(&pages, KeyRange::all(), direction);
    let mut rows = 0;
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        rows += chunk.rows();
    }
    rows
}

/// The only test of the file, so that no other test allocates at the same time.
#[test]
fn merging_uses_bounded_memory() {
    let options = Options {
        durability: Durability::Off,
        buffer_bytes: 1 << 30,
        checkpoint_log_bytes: 1 << 40,
        cache_bytes: 1 << 20,
        node_buffer_bytes: 24 << 20,
        runs_per_node: 3,
        ..Options::default()
    };
    let simulated = Simulated::new(SimulatedOptions::default());
    let store = Store::open(simulated.device(), Path::new("/db"), options).unwrap();
    let map = KeyValue::open(&store, TreeId::new(1)).unwrap();
    let mut random = Random::new(1);
    let mut rows = 0;
    for round in 0..6_u64 {
        for _ in 0..80 {
            let mut batch = KeyValueBatch::default();
            for _ in 0..500 {
                let mut value = [0; 200];
                value.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
                let key = [&random.below(1 << 40).to_be_bytes()[..], &round.to_be_bytes()].concat();
                batch.insert(&map, &key, &value);
                rows += 1;
            }
            map.commit(batch).unwrap();
        }
        // Each round adds 40,000 messages of 216 bytes, which stay in buffers and in runs above one or two leaves.
        for direction in [Direction::Ascending, Direction::Descending] {
            let (peak, found) = peak_of(|| count(&store, direction));
            assert_eq!(found, rows);
            assert!(peak < 4 << 20, "round {round}: {peak} bytes held by a scan, {direction:?}");
        }
        // The simulated device keeps the written bytes in memory, too. A checkpoint adds bytes to the tree before it shortens
        // the file.
        let (device, tree) = (simulated.used_bytes(), store.stats().data_bytes_used);
        let (peak, ()) = peak_of(|| store.checkpoint().unwrap());
        let of_device = simulated.used_bytes().saturating_sub(device);
        let written = of_device.max(store.stats().data_bytes_used.saturating_sub(tree)) as usize;
        println!("round {round}: {peak} bytes held by a checkpoint; {written} bytes were added to the device");
        assert!(peak < (24 << 20) + written, "round {round}: {peak} bytes held by a checkpoint");
    }
}
