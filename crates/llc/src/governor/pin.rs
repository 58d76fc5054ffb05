//! Memory that shall stay in the cache.

use std::sync::Arc;

use keyaki_primitives::{AlignedMemory, CACHE_LINE_BYTES};

use super::worker::thread_id;
use super::{Governor, Inner, PinStatus, State};
use crate::resctrl::Group;
use crate::software;

/// Something that is protected until this is dropped.
#[derive(Debug)]
pub struct Pin {
    inner: Arc<Inner>,
    id: u64,
}

impl Governor {
    /// Touches every line of the ranges: they are in the cache then, as far as they fit. Gives how many bytes were touched.
    pub fn warm(&self, ranges: &[&[u8]]) -> u64 {
        ranges.iter().map(|range| touch(range)).sum()
    }

    /// Warms the ranges, and keeps everybody else out of the part of the cache where they are. With hardware, they get parts of their
    /// own: they are thrown out wherever they are, the parts are taken from all classes, and the ranges are brought in under a class
    /// that has just these parts. Without, scans spare the cache from now on.
    ///
    /// The name is for [`Governor::status`]. Nothing is borrowed: if the memory is freed or moved, what was kept is of no use,
    /// but does no harm.
    pub fn protect(&self, name: &str, ranges: &[&[u8]]) -> Pin {
        let bytes = ranges.iter().map(|range| range.len() as u64).sum();
        let pin = self.pin(name, bytes);
        pin.warm(ranges);
        pin
    }

    /// As [`Governor::protect`], for memory whose places are not known: `touch` has to read all of it. (With hardware, everything is
    /// thrown out of the cache before, by reading as much other memory as the cache holds, twice.)
    pub fn protect_by(&self, name: &str, bytes: u64, mut touch: impl FnMut()) -> Pin {
        let pin = self.pin(name, bytes);
        pin.warm_by(&mut touch);
        pin
    }

    fn pin(&self, name: &str, bytes: u64) -> Pin {
        let id = {
            let mut state = self.inner.state.lock();
            state.next_pin += 1;
            let id = state.next_pin;
            state.pins.push(PinStatus { name: name.into(), bytes, id });
            self.inner.decide(&mut state, self.inner.now_ms(), None);
            state.adopt_strangers();
            id
        };
        Pin { inner: self.inner.clone(), id }
    }
}

impl Pin {
    /// Brings the ranges in (again).
    pub fn warm(&self, ranges: &[&[u8]]) {
        self.bring_in(&mut || ranges.iter().for_each(|range| _ = software::flush(range)), &mut || {
            ranges.iter().for_each(|range| _ = touch(range));
        });
    }

    /// As [`Pin::warm`], for memory whose places are not known.
    pub fn warm_by(&self, touch: &mut dyn FnMut()) {
        let bytes = self.inner.caches.last_level().map_or_else(|| self.inner.caches.bytes(3), |cache| cache.bytes);
        let sweep = &mut || {
            // Without that much memory, lines that are there already stay where they are.
            if let Ok(other) = AlignedMemory::huge(2 * bytes as usize) {
                std::hint::black_box(software::sum(other.words(), software::ScanMethod::Plain));
            }
        };
        self.bring_in(sweep, touch);
    }

    /// Throws out, where masks say where lines come to be, and brings in.
    fn bring_in(&self, throw_out: &mut dyn FnMut(), bring_in: &mut dyn FnMut()) {
        let _one_at_a_time = self.inner.pinning.lock();
        if self.inner.state.lock().classes.is_ok() {
            throw_out();
        }
        let group = self.inner.state.lock().pinning_group();
        bring_in();
        if group.is_some() {
            drop(group);
            self.inner.state.lock().put_back(thread_id());
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        state.pins.retain(|pin| pin.id != self.id);
        self.inner.decide(&mut state, self.inner.now_ms(), None);
    }
}

impl State {
    /// A class that has just the parts for what is pinned, with the thread that calls this in it.
    fn pinning_group(&self) -> Option<Group> {
        let classes = self.classes.as_ref().ok()?;
        let group = classes.control.create("pinning").ok()?;
        let pinned = self.allocation.pinned;
        group.set(&classes.masks(classes.parts.usable - pinned, pinned)).ok()?;
        group.assign(thread_id()).ok()?;
        Some(group)
    }

    /// A thread goes to the class of what it runs. (The kernel has put it into the default class.)
    fn put_back(&mut self, thread: u32) {
        if let (Ok(classes), Some(known)) = (&self.classes, self.threads.get_mut(&thread)) {
            // If that fails it is in the default class: wrong, but harmless, until its next announcement.
            known.group = known.runs.filter(|class| classes.assign(*class, thread).is_ok());
        }
    }

    /// Threads of this process that announce nothing must not run over what is pinned either.
    fn adopt_strangers(&mut self) {
        let Ok(classes) = &self.classes else { return };
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        for thread in tasks.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let known = self.threads.get_mut(&thread);
            if known.as_ref().is_none_or(|known| known.runs.is_none()) {
                // It may have ended meanwhile.
                let moved = classes.assign(super::WorkClass::Sensitive, thread).is_ok();
                if let Some(known) = known {
                    known.group = moved.then_some(super::WorkClass::Sensitive);
                }
            }
        }
    }
}

fn touch(range: &[u8]) -> u64 {
    // The last line too, wherever the range begins in its first one.
    let lines = range.iter().step_by(CACHE_LINE_BYTES).chain(range.last());
    std::hint::black_box(lines.fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
    range.len() as u64
}

#[cfg(test)]
mod tests {
    use super::super::policy::{Input, Mix, Parts, PolicyOptions, PolicyState, decide};
    use crate::CapacityMask;
    use crate::sim::generate::Table;
    use crate::sim::{Access, Machine, Op, Simulator};

    /// What [`Governor::protect`](super::Governor::protect) does, in the simulator: pinned lines stay whatever runs then.
    #[test]
    fn parts_of_their_own_keep_what_is_pinned() {
        let (index, noise) = (Table::new(0, 4 << 20), Table::new(1 << 40, 64 << 20));
        let parts = Parts { usable: 20, fewest: 1, part_bytes: 512 << 10 };
        let mix = Mix { streaming: 1, adaptive: 0, sensitive: 1 };
        let input = Input { now_ms: 0, parts, mix, pinned_bytes: index.bytes, adaptive: None };
        let (_, allocation) = decide(&PolicyOptions::default(), PolicyState::default(), &input);
        for flushed in [true, false] {
            let mut simulator = Simulator::new(&Machine::paper()).unwrap();
            // The index is in the cache before, anywhere.
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
            assert_eq!(missed == 0.0, flushed, "a line that is there already stays where it is: {missed}");
        }
    }
}
