//! Warming and pinning: memory that stays in the cache.
//!
//! A capacity bit mask limits where lines are allocated, not where they are found. With hardware, pinned memory is
//! therefore flushed, then read by a thread whose class of service has only the parts reserved for pins. No other class
//! may allocate in these parts afterwards, so the lines stay.

use std::sync::Arc;

use keyaki_primitives::{AlignedMemory, CACHE_LINE_BYTES};

use super::worker::thread_id;
use super::{Governor, GovernorCore, GovernorState, PinStatus};
use crate::resctrl::Group;
use crate::software;

/// Protected memory. Dropping the pin ends the protection.
#[derive(Debug)]
pub struct Pin {
    core: Arc<GovernorCore>,
    id: u64,
}

impl Governor {
    /// Reads every line of the ranges, so that they are in the cache as far as they fit. Returns their total length in
    /// bytes.
    pub fn warm(&self, ranges: &[&[u8]]) -> u64 {
        ranges.iter().map(|range| touch(range)).sum()
    }

    /// Warms the ranges and protects them until the pin is dropped. With hardware they get parts of the cache for
    /// themselves: the parts are taken from all classes, and the ranges are flushed and read again under a class of
    /// service that has only these parts. Without hardware, scans bypass the cache while the pin exists.
    ///
    /// The name appears in [`Governor::status`]. The pin does not borrow the memory: freeing or moving it only makes
    /// the pin useless.
    pub fn protect(&self, name: &str, ranges: &[&[u8]]) -> Pin {
        let bytes = ranges.iter().map(|range| range.len() as u64).sum();
        let pin = self.pin(name, bytes);
        pin.warm(ranges);
        pin
    }

    /// As [`Governor::protect`], for memory whose addresses are not known: `touch` reads all of its `bytes` bytes. With
    /// hardware, other memory of twice the cache's size is read first, to evict the data.
    pub fn protect_by(&self, name: &str, bytes: u64, mut touch: impl FnMut()) -> Pin {
        let pin = self.pin(name, bytes);
        pin.warm_by(&mut touch);
        pin
    }

    /// Registers a pin and applies the new allocation.
    fn pin(&self, name: &str, bytes: u64) -> Pin {
        let id = {
            let mut state = self.core.state.lock();
            state.next_pin += 1;
            let id = state.next_pin;
            state.pins.push(PinStatus { name: name.into(), bytes, id });
            self.core.decide(&mut state, self.core.now_ms(), None);
            state.adopt_idle_threads();
            id
        };
        Pin { core: self.core.clone(), id }
    }
}

impl Pin {
    /// Warms the ranges again.
    pub fn warm(&self, ranges: &[&[u8]]) {
        self.reload(&mut || ranges.iter().for_each(|range| _ = software::flush(range)), &mut || {
            ranges.iter().for_each(|range| _ = touch(range));
        });
    }

    /// As [`Pin::warm`], for memory whose addresses are not known: `touch` reads all of it.
    pub fn warm_by(&self, touch: &mut dyn FnMut()) {
        let bytes = self.core.caches.last_level().map_or_else(|| self.core.caches.bytes(3), |cache| cache.bytes);
        let sweep = &mut || {
            // Without that much memory, lines that are in the cache stay in their parts.
            if let Ok(other) = AlignedMemory::huge(2 * bytes as usize) {
                std::hint::black_box(software::sum(other.words(), software::ScanMethod::Plain));
            }
        };
        self.reload(sweep, touch);
    }

    /// Calls `load` in the class of service for pinning. With hardware, `evict` is called before.
    fn reload(&self, evict: &mut dyn FnMut(), load: &mut dyn FnMut()) {
        let _one_at_a_time = self.core.pinning.lock();
        if self.core.state.lock().classes.is_ok() {
            evict();
        }
        let group = self.core.state.lock().pinning_group();
        load();
        if group.is_some() {
            drop(group);
            self.core.state.lock().put_back(thread_id());
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.pins.retain(|pin| pin.id != self.id);
        self.core.decide(&mut state, self.core.now_ms(), None);
    }
}

impl GovernorState {
    /// A new class of service with only the parts for pins, which contains the calling thread; `None` without hardware.
    fn pinning_group(&self) -> Option<Group> {
        let classes = self.classes.as_ref().ok()?;
        let group = classes.control.create("pinning").ok()?;
        let pinned = self.allocation.pinned;
        group.set(&classes.masks(classes.parts.usable - pinned, pinned)).ok()?;
        group.assign(thread_id()).ok()?;
        Some(group)
    }

    /// Moves a thread from the default class back to the class of its work.
    fn put_back(&mut self, thread: u32) {
        if let (Ok(classes), Some(known)) = (&self.classes, self.threads.get_mut(&thread)) {
            // After a failure the thread stays in the default class until its next announcement.
            known.group = known.runs.filter(|class| classes.assign(*class, thread).is_ok());
        }
    }

    /// Moves threads of this process without announced work to the sensitive class, so that they do not evict pinned
    /// memory either.
    fn adopt_idle_threads(&mut self) {
        let Ok(classes) = &self.classes else { return };
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        for thread in tasks.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let known = self.threads.get_mut(&thread);
            if known.as_ref().is_none_or(|known| known.runs.is_none()) {
                // Fails if the thread has ended.
                let moved = classes.assign(super::WorkClass::Sensitive, thread).is_ok();
                if let Some(known) = known {
                    known.group = moved.then_some(super::WorkClass::Sensitive);
                }
            }
        }
    }
}

/// Reads every line of a range. Returns its length.
fn touch(range: &[u8]) -> u64 {
    // Plus the last byte: an unaligned range may end in a further line.
    let lines = range.iter().step_by(CACHE_LINE_BYTES).chain(range.last());
    std::hint::black_box(lines.fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
    range.len() as u64
}

#[cfg(test)]
mod tests {
    use super::super::policy::{Mix, Parts, PolicyInput, PolicyOptions, PolicyState, decide};
    use crate::CapacityMask;
    use crate::sim::generate::Table;
    use crate::sim::{Access, Machine, Op, Simulator};

    /// The steps of [`Governor::protect`](super::Governor::protect) in the simulator: pinned lines stay in the cache if
    /// they were flushed before.
    #[test]
    fn reserved_parts_keep_pinned_lines() {
        let (index, noise) = (Table::new(0, 4 << 20), Table::new(1 << 40, 64 << 20));
        let parts = Parts { usable: 20, fewest: 1, part_bytes: 512 << 10 };
        let mix = Mix { streaming: 1, adaptive: 0, sensitive: 1 };
        let input = PolicyInput { now_ms: 0, parts, mix, pinned_bytes: index.bytes, adaptive: None };
        let (_, allocation) = decide(&PolicyOptions::default(), PolicyState::default(), &input);
        for flushed in [true, false] {
            let mut simulator = Simulator::new(&Machine::paper()).unwrap();
            // The index is in arbitrary parts of the cache before.
            simulator.run(noise.scan().chain(index.scan()).map(|address| Access::load(address).of(2, 9)));
            let own = CapacityMask::run(allocation.sensitive, allocation.pinned);
            simulator.set_last_level_mask(0, own);
            simulator.set_last_level_mask(1, CapacityMask::low(allocation.sensitive));
            if flushed {
                simulator.run(index.scan().map(|address| Access::load(address).by(Op::Flush)));
            }
            simulator.run(index.scan().map(Access::load));
            simulator.forget();
            simulator.run(noise.scan().map(|address| Access::load(address).of(1, 1)));
            simulator.run(index.random(50_000, 1).map(|address| Access::load(address).of(1, 0)));
            let missed = simulator.report().object(0).last_level_miss_ratio();
            assert_eq!(missed == 0.0, flushed, "a line that was not flushed stays in its part: {missed}");
        }
    }
}
