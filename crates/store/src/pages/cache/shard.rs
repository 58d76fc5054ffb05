//! One shard of the page cache: a table and two queues with second chances.
//!
//! ```text
//! insert, priority Scan ──> scan queue ──used again?──> main queue <── insert, priority Lookup or Index
//!                           │ no                       │ no chances left
//!                           v                          v
//!                        evicted, offset remembered   evicted
//! ```
//!
//! A page has a number of chances, which is higher for index pages. Every lookup adds one, up to a maximum. When a page
//! reaches the head of its queue without a chance, it is evicted. Otherwise it loses a chance and moves to the tail of
//! the main queue. Pages of scans are evicted first while they hold more than a sixteenth of the budget, so they do not
//! displace other pages. The offsets of evicted scan pages are remembered for a while. A scan page that returns while
//! its offset is remembered goes straight to the main queue, so that a range that is scanned repeatedly becomes cached.
//!
//! Pinned pages are in no queue and are never evicted. They may hold three quarters of the budget.
//!
//! Invariants: the bytes held exceed the budget only if it was lowered below the pinned bytes, or until the next access
//! if heaps have grown. Every slot in use is in the table, and is either pinned or in exactly one queue.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use super::Priority;

/// Scan pages keep one part in this many of the budget while other pages are cached.
const SCAN_SHARE: usize = 16;
/// Part of the budget that may be pinned, in quarters.
const PINNED_QUARTERS: usize = 3;
const NONE: u32 = u32::MAX;

/// A hash of an offset. All bits depend on the block number.
pub(super) fn hash(offset: u64) -> u64 {
    let mixed = (offset >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// Hashes offsets (`u64`) by [`hash`].
#[derive(Debug, Default)]
pub(super) struct OffsetHasher(u64);

impl Hasher for OffsetHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte) << 12);
        }
    }
    fn write_u64(&mut self, offset: u64) {
        self.0 = hash(offset);
    }
}

type ByOffset<V> = HashMap<u64, V, BuildHasherDefault<OffsetHasher>>;

#[derive(Debug)]
struct Slot<V> {
    /// `None` while the slot is free.
    value: Option<V>,
    offset: u64,
    bytes: usize,
    /// Number of times that the page is passed over at the head of its queue.
    chances: u8,
    chances_max: u8,
    in_scan: bool,
    pinned: bool,
    /// Neighbours in the queue, or the next free slot.
    before: u32,
    after: u32,
}

/// A doubly linked list through the slots.
#[derive(Debug, Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
}

#[derive(Debug)]
pub(super) struct Shard<V> {
    table: ByOffset<u32>,
    slots: Vec<Slot<V>>,
    free: u32,
    main: Queue,
    scan: Queue,
    budget: usize,
    bytes: usize,
    scan_bytes: usize,
    pinned_bytes: usize,
    /// Offsets of recently evicted scan pages, oldest first. The set is authoritative; the queue may have stale
    /// entries.
    evicted: VecDeque<u64>,
    evicted_set: HashSet<u64, BuildHasherDefault<OffsetHasher>>,
}

/// Subtracts `bytes` that were added to the sum before.
fn subtract(sum: &mut usize, bytes: usize) {
    assert!(bytes <= *sum, "{bytes} bytes taken from a sum of {sum}");
    *sum -= bytes;
}

impl<V: Clone> Shard<V> {
    pub(super) fn new(budget: usize) -> Self {
        let queue = Queue { head: NONE, tail: NONE };
        Shard {
            table: ByOffset::default(),
            slots: Vec::new(),
            free: NONE,
            main: queue,
            scan: queue,
            budget,
            bytes: 0,
            scan_bytes: 0,
            pinned_bytes: 0,
            evicted: VecDeque::new(),
            evicted_set: HashSet::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the budget, of which heaps take `heap_bytes`. Returns the evicted values, for the caller to drop.
    pub(super) fn set_budget(&mut self, budget: usize, heap_bytes: usize) -> Vec<V> {
        self.budget = budget;
        self.make_room(0, heap_bytes)
    }

    /// Evicts pages until `bytes` more fit into the budget beside `heap_bytes` of heaps. If they fit without the heaps,
    /// pages of scans are evicted first, so that others do not make room for heaps of scans. Returns the evicted values,
    /// for the caller to drop.
    #[inline]
    pub(super) fn make_room(&mut self, bytes: usize, heap_bytes: usize) -> Vec<V> {
        let mut displaced = Vec::new();
        while self.bytes + bytes + heap_bytes > self.budget {
            let scan_first = heap_bytes > 0 && self.bytes + bytes <= self.budget;
            match self.evict(scan_first) {
                Some(evicted) => displaced.push(evicted),
                None => break,
            }
        }
        displaced
    }

    pub(super) fn get(&mut self, offset: u64) -> Option<V> {
        let slot = &mut self.slots[*self.table.get(&offset)? as usize];
        slot.chances = (slot.chances + 1).min(slot.chances_max);
        slot.value.clone()
    }

    /// As [`Self::get`], without counting as a use.
    pub(super) fn peek(&self, offset: u64) -> Option<V> {
        self.slots[*self.table.get(&offset)? as usize].value.clone()
    }

    /// Inserts a value beside `heap_bytes` of heaps. Returns the evicted values, and the value itself if it is not
    /// cached, for the caller to drop.
    pub(super) fn insert(
        &mut self,
        offset: u64,
        value: V,
        bytes: usize,
        priority: Priority,
        heap_bytes: usize,
    ) -> Vec<V> {
        let mut displaced = Vec::new();
        displaced.extend(self.remove(offset));
        let budget = self.budget.saturating_sub(heap_bytes);
        if bytes > budget.saturating_sub(self.pinned_bytes) {
            displaced.push(value);
            return displaced;
        }
        displaced.extend(self.make_room(bytes, heap_bytes));
        assert!(self.bytes + bytes <= budget, "{} + {bytes} bytes exceed {budget}", self.bytes);
        let seen = self.evicted_set.remove(&offset);
        let (chances, chances_max) = match priority {
            Priority::Index => (12, 16),
            Priority::Lookup => (1, 3),
            Priority::Scan => (0, 2),
        };
        let in_scan = priority == Priority::Scan && !seen;
        let (value, pinned) = (Some(value), false);
        let slot = Slot { value, offset, bytes, chances, chances_max, in_scan, pinned, before: NONE, after: NONE };
        let index = self.place(slot);
        self.table.insert(offset, index);
        self.bytes += bytes;
        self.push_tail(index);
        displaced
    }

    pub(super) fn remove(&mut self, offset: u64) -> Option<V> {
        let index = self.table.remove(&offset)?;
        if self.slots[index as usize].pinned {
            subtract(&mut self.pinned_bytes, self.slots[index as usize].bytes);
        } else {
            self.unlink(index);
        }
        let slot = &mut self.slots[index as usize];
        subtract(&mut self.bytes, slot.bytes);
        slot.after = self.free;
        self.free = index;
        slot.value.take()
    }

    /// Pins a page. Returns false if it is not cached, or if the pinned pages would exceed their share of the budget.
    pub(super) fn pin(&mut self, offset: u64) -> bool {
        let Some(&index) = self.table.get(&offset) else { return false };
        let slot = &self.slots[index as usize];
        let bytes = slot.bytes;
        if slot.pinned || self.pinned_bytes + bytes > self.budget / 4 * PINNED_QUARTERS {
            return slot.pinned;
        }
        self.unlink(index);
        self.slots[index as usize].pinned = true;
        self.pinned_bytes += bytes;
        true
    }

    /// Unpins a page, which moves to the main queue. Returns false if it was not pinned.
    pub(super) fn unpin(&mut self, offset: u64) -> bool {
        let Some(&index) = self.table.get(&offset) else { return false };
        let slot = &mut self.slots[index as usize];
        if !slot.pinned {
            return false;
        }
        (slot.pinned, slot.in_scan) = (false, false);
        subtract(&mut self.pinned_bytes, slot.bytes);
        self.push_tail(index);
        true
    }

    pub(super) fn is_pinned(&self, offset: u64) -> bool {
        self.table.get(&offset).is_some_and(|&index| self.slots[index as usize].pinned)
    }

    pub(super) fn remove_range(&mut self, offsets: &Range<u64>) -> Vec<V> {
        let found: Vec<u64> = self.table.keys().filter(|offset| offsets.contains(offset)).copied().collect();
        found.into_iter().filter_map(|offset| self.remove(offset)).collect()
    }

    /// Evicts one page, of the scan queue if it has one and `scan_first` is set; `None` if all pages are pinned.
    fn evict(&mut self, scan_first: bool) -> Option<V> {
        loop {
            let has_many = self.scan_bytes > self.budget / SCAN_SHARE || self.main.head == NONE;
            let of_scan = has_many || scan_first && self.scan.head != NONE;
            let index = if of_scan { self.scan.head } else { self.main.head };
            let slot = self.slots.get_mut(index as usize)?;
            let offset = slot.offset;
            if slot.chances == 0 {
                if slot.in_scan {
                    self.remember(offset);
                }
                return self.remove(offset);
            }
            slot.chances -= 1;
            self.unlink(index);
            self.slots[index as usize].in_scan = false;
            self.push_tail(index);
        }
    }

    /// Remembers the offset of an evicted scan page. At most as many offsets are remembered as pages are cached.
    fn remember(&mut self, offset: u64) {
        if self.evicted_set.insert(offset) {
            self.evicted.push_back(offset);
        }
        while self.evicted.len() > self.table.len() {
            if let Some(oldest) = self.evicted.pop_front() {
                self.evicted_set.remove(&oldest);
            }
        }
    }

    fn place(&mut self, slot: Slot<V>) -> u32 {
        if self.free == NONE {
            // A shard's budget divided by the overhead of a page is far below 2^32.
            assert!(self.slots.len() < NONE as usize, "{} pages in one shard", self.slots.len());
            self.slots.push(slot);
            return (self.slots.len() - 1) as u32;
        }
        let index = self.free;
        self.free = self.slots[index as usize].after;
        self.slots[index as usize] = slot;
        index
    }

    fn push_tail(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let queue = if slot.in_scan { &mut self.scan } else { &mut self.main };
        if slot.in_scan {
            self.scan_bytes += slot.bytes;
        }
        slot.before = queue.tail;
        slot.after = NONE;
        let before = std::mem::replace(&mut queue.tail, index);
        if before == NONE {
            queue.head = index;
        } else {
            self.slots[before as usize].after = index;
        }
    }

    fn unlink(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let (before, after, bytes, in_scan) = (slot.before, slot.after, slot.bytes, slot.in_scan);
        let queue = if in_scan { &mut self.scan } else { &mut self.main };
        if in_scan {
            subtract(&mut self.scan_bytes, bytes);
        }
        if before == NONE {
            queue.head = after;
        } else {
            self.slots[before as usize].after = after;
        }
        if after == NONE {
            queue.tail = before;
        } else {
            self.slots[after as usize].before = before;
        }
    }
}

#[cfg(test)]
impl<V: Clone> Shard<V> {
    /// Asserts the invariants of queues, table and sums.
    pub(super) fn check(&self) {
        let (mut bytes, mut scan_bytes, mut count) = (0, 0, 0);
        for (queue, in_scan) in [(self.main, false), (self.scan, true)] {
            let (mut before, mut index) = (NONE, queue.head);
            while index != NONE {
                let slot = &self.slots[index as usize];
                assert!(slot.value.is_some() && slot.in_scan == in_scan && slot.before == before);
                assert_eq!(self.table.get(&slot.offset), Some(&index));
                bytes += slot.bytes;
                scan_bytes += if in_scan { slot.bytes } else { 0 };
                count += 1;
                (before, index) = (index, slot.after);
            }
            assert_eq!(queue.tail, before);
        }
        let pinned: Vec<_> = self.slots.iter().filter(|slot| slot.pinned && slot.value.is_some()).collect();
        assert_eq!(pinned.iter().map(|slot| slot.bytes).sum::<usize>(), self.pinned_bytes);
        (bytes, count) = (bytes + self.pinned_bytes, count + pinned.len());
        assert_eq!((bytes, scan_bytes, count), (self.bytes, self.scan_bytes, self.table.len()));
        assert!(self.evicted_set.len() <= self.evicted.len());
    }
}
