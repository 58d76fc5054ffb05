use keyaki_primitives::Random;
use proptest::prelude::*;

use super::*;

const PAGE: u64 = BLOCK as u64;
/// Makes a page cost 8 KiB, including its overhead.
const BYTES: usize = 8192 - OVERHEAD_BYTES;

impl<V: Clone> Shards<V> {
    fn get(&self, offset: u64) -> Option<V> {
        self.get_if(offset, |_| true)
    }

    fn insert(&self, offset: u64, value: V, bytes: usize, priority: Priority) {
        self.insert_if(offset, value, bytes, priority, |_| true);
    }
}

fn small() -> Shards<u64> {
    // One shard with a budget of a hundred pages.
    Shards::new(100 * 8192)
}

#[test]
fn pages_stay_cached_until_removed() {
    let cache = Shards::new(64 << 20);
    assert_eq!(cache.shards.len(), 64);
    for i in 0..1000 {
        cache.insert(i * PAGE, i, BYTES, Priority::Lookup);
    }
    assert!((0..1000).all(|i| cache.get(i * PAGE) == Some(i)));
    assert_eq!(cache.get(5000 * PAGE), None);
    assert_eq!(cache.counters(), (1000, 1));
    assert_eq!(cache.usage(), (1000 * 8192, 64 << 20));
    // A range with few possible offsets, then one with many.
    cache.remove(10 * PAGE + 1..20 * PAGE);
    cache.remove(500 * PAGE..u64::MAX);
    for i in 0..1000 {
        assert_eq!(cache.get(i * PAGE).is_some(), i <= 10 || (20..500).contains(&i), "{i}");
    }
    cache.insert(0, 7, BYTES, Priority::Scan);
    assert_eq!(cache.get(0), Some(7));
    cache.clear();
    assert_eq!(cache.usage().0, 0);
    assert_eq!(cache.get(0), None);
}

#[test]
fn the_budget_may_change() {
    let cache = small();
    for i in 0..100 {
        cache.insert(i * PAGE, i, BYTES, Priority::Lookup);
    }
    cache.set_budget(40 * 8192);
    assert_eq!(cache.usage(), (40 * 8192, 40 * 8192));
    // The most recent pages stay.
    assert!((60..100).all(|i| cache.get(i * PAGE) == Some(i)));
    cache.set_budget(100 * 8192);
    for i in 0..60 {
        cache.insert(i * PAGE, i, BYTES, Priority::Lookup);
    }
    assert_eq!(cache.usage().0, 100 * 8192);
    cache.set_budget(0);
    assert_eq!(cache.usage(), (0, 0));
}

#[test]
fn scans_do_not_displace_used_pages() {
    let cache = small();
    for i in 0..90 {
        cache.insert(i * PAGE, i, BYTES, Priority::Lookup);
    }
    for i in 1000..9000 {
        cache.insert(i * PAGE, i, BYTES, Priority::Scan);
    }
    let kept = (0..90).filter(|i| cache.get(i * PAGE).is_some()).count();
    assert!(kept >= 85, "{kept} of 90 survived");
}

#[test]
fn lookups_evict_in_turn_but_keep_index_pages_and_used_pages() {
    let cache = small();
    for i in 0..20 {
        cache.insert(i * PAGE, i, BYTES, Priority::Index);
    }
    for i in 20..40 {
        cache.insert(i * PAGE, i, BYTES, Priority::Lookup);
    }
    for i in 1000..1250 {
        cache.insert(i * PAGE, i, BYTES, Priority::Lookup);
        for hot in 20..40 {
            cache.get(hot * PAGE);
        }
    }
    assert!((0..40).all(|i| cache.get(i * PAGE).is_some()));
    assert!(cache.get(1000 * PAGE).is_none());
}

#[test]
fn a_range_scanned_repeatedly_becomes_cached() {
    let cache = small();
    for i in 0..100 {
        cache.insert(i * PAGE, i, BYTES, Priority::Lookup);
    }
    let mut hits = 0;
    for round in 0..20 {
        for i in 1000..1050 {
            if cache.get(i * PAGE).is_some() {
                hits += usize::from(round >= 10);
            } else {
                cache.insert(i * PAGE, i, BYTES, Priority::Scan);
            }
        }
    }
    assert!(hits >= 400, "{hits} hits of 500");
}

#[test]
fn pinned_pages_stay_within_their_share() {
    let cache = small();
    let place = |i: u64| i * PAGE;
    (0..90).for_each(|i| cache.insert(place(i), i, BYTES, Priority::Scan));
    let pinned = (0..90).filter(|&i| cache.shards[0].shard.lock().pin(place(i))).count();
    assert_eq!(pinned, 75, "three quarters");
    (100..1000).for_each(|i| cache.insert(place(i), i, BYTES, Priority::Lookup));
    let kept = |cache: &Shards<u64>| (0..75).filter(|&i| cache.get(place(i)) == Some(i)).count();
    assert_eq!(kept(&cache), 75);
    cache.shards[0].shard.lock().check();
    assert!(!cache.shards[0].shard.lock().pin(place(5_000)), "the page is not cached");
    // The pinned pages exceed the smaller budget, so no other page is cached.
    cache.set_budget(50 * 8192);
    cache.insert(place(2_000), 0, BYTES, Priority::Index);
    assert_eq!((kept(&cache), cache.get(place(2_000))), (75, None));
    cache.set_budget(100 * 8192);
    cache.remove(place(0)..place(10));
    assert!(!cache.shards[0].shard.lock().unpin(place(3)), "the page was removed");
    (10..75).for_each(|i| assert!(cache.shards[0].shard.lock().unpin(place(i))));
    cache.shards[0].shard.lock().check();
    (100..1000).for_each(|i| cache.insert(place(i), i, BYTES, Priority::Lookup));
    assert_eq!(kept(&cache), 0);
    cache.shards[0].shard.lock().check();
}

#[test]
fn heaps_evict_pages() {
    let cache = small();
    for i in 0..100 {
        cache.insert(i * PAGE, i, BYTES, Priority::Lookup);
    }
    cache.heap_bytes.store(30 * 8192, Ordering::Relaxed);
    assert_eq!(cache.usage().0, 130 * 8192, "the next access evicts");
    cache.get(99 * PAGE);
    assert_eq!(cache.usage().0, 100 * 8192);
    cache.insert(200 * PAGE, 200, BYTES, Priority::Lookup);
    assert_eq!((cache.get(200 * PAGE), cache.usage().0), (Some(200), 100 * 8192));
    cache.heap_bytes.store(1000 * 8192, Ordering::Relaxed);
    cache.insert(201 * PAGE, 201, BYTES, Priority::Index);
    assert_eq!((cache.get(201 * PAGE), cache.get(200 * PAGE)), (None, None));
    cache.heap_bytes.store(0, Ordering::Relaxed);
    cache.insert(202 * PAGE, 202, BYTES, Priority::Lookup);
    assert_eq!((cache.get(202 * PAGE), cache.usage().0), (Some(202), 8192));
}

#[test]
fn heaps_of_scans_do_not_displace_used_pages() {
    let cache = small();
    for i in 0..90 {
        cache.insert(i * PAGE, i, BYTES, Priority::Lookup);
    }
    for i in 1000..2000 {
        // Each of the last pages of the scan has a heap of ten times its size.
        let scanned = (1000..i).filter(|i| cache.shards[0].shard.lock().peek(i * PAGE).is_some()).count();
        cache.heap_bytes.store(scanned * 10 * 8192, Ordering::Relaxed);
        cache.insert(i * PAGE, i, BYTES, Priority::Scan);
    }
    let kept = (0..90).filter(|i| cache.get(i * PAGE).is_some()).count();
    assert!(kept >= 80, "{kept} of 90 survived");
}

#[test]
fn pages_that_do_not_fit_are_not_cached() {
    let cache = small();
    cache.insert(0, 1, 100 * 8192, Priority::Lookup);
    assert_eq!(cache.get(0), None);
    cache.insert(0, 1, 50 * 8192, Priority::Lookup);
    cache.insert(PAGE, 2, 80 * 8192, Priority::Lookup);
    assert_eq!((cache.get(0), cache.get(PAGE)), (None, Some(2)));
    let nothing = Shards::new(0);
    nothing.insert(0, 1, 1, Priority::Index);
    assert_eq!(nothing.get(0), None);
}

#[test]
fn threads_share_a_cache() {
    let cache = Shards::new(4 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..20_000 {
                    let i = random.below(2000);
                    match random.below(20) {
                        0 => cache.remove(i * PAGE..(i + 8) * PAGE),
                        1..=9 => cache.insert(i * PAGE, i, BYTES, Priority::Lookup),
                        _ => assert!(cache.get(i * PAGE).is_none_or(|found| found == i)),
                    }
                }
            });
        }
    });
    assert!(cache.usage().0 <= 4 << 20);
}

proptest! {
    /// Under random operations, a cached page is the one inserted last, the budget holds, and the queues agree with the
    /// table.
    #[test]
    fn budget_and_contents_hold(steps in prop::collection::vec((0..8_u8, 0..200_u64, 0..20_000_usize), 1..400)) {
        let cache = small();
        let mut newest = std::collections::HashMap::new();
        for (n, (action, i, bytes)) in steps.into_iter().enumerate() {
            let offset = i * PAGE;
            match action {
                0 => {
                    cache.remove(offset..offset + 5 * PAGE);
                    newest.retain(|&at, _| !(offset..offset + 5 * PAGE).contains(&at));
                }
                1..=3 => {
                    let found = cache.get(offset);
                    prop_assert!(found.is_none() || found == newest.get(&offset).copied());
                }
                _ => {
                    let priority = [Priority::Index, Priority::Lookup, Priority::Scan][(action % 3) as usize];
                    cache.insert(offset, n as u64, bytes, priority);
                    newest.insert(offset, n as u64);
                    prop_assert_eq!(cache.get(offset), Some(n as u64));
                }
            }
            prop_assert!(cache.usage().0 <= 100 * 8192);
            cache.shards[0].shard.lock().check();
        }
    }
}

#[test]
fn values_are_found_and_replaced_under_conditions() {
    let cache = small();
    cache.insert(0, 1, BYTES, Priority::Scan);
    assert_eq!(cache.get_if(0, |&value| value > 1), None);
    assert_eq!(cache.counters(), (0, 1), "a value that is not usable is missing");
    cache.insert_if(0, 2, BYTES, Priority::Scan, |&before| before > 1);
    assert_eq!(cache.get(0), Some(1));
    cache.insert_if(0, 2, BYTES, Priority::Scan, |&before| before == 1);
    assert_eq!((cache.get(0), cache.usage().0), (Some(2), 8192));
}
