//! The cache hierarchy: private L1 and L2, and a shared, partitioned last level.
//!
//! Invariant: `lines_of_class` counts the lines in the last level by the class in `class_of` of their slots.

use super::cache::Cache;
use super::regions::Regions;
use super::report::{Counts, Report};
use super::{Access, CLASSES_MAX, InvalidMachine, LINE_BYTES, LastLevel, Machine, OBJECTS_MAX, Op};
use crate::CapacityMask;

/// The caches of a machine, with counters.
#[derive(Debug)]
pub struct Simulator {
    machine: Machine,
    regions: Regions,
    /// L1 and L2 of each core.
    cores: Vec<(Cache, Cache)>,
    l3: Cache,
    /// For each slot of the last level: the class that loaded the line.
    class_of: Vec<u8>,
    /// For each slot of an inclusive last level: the cores that may contain the line, one bit each.
    cores_of: Vec<u8>,
    l2_masks: [u32; CLASSES_MAX],
    l3_masks: [u32; CLASSES_MAX],
    lines_of_class: [u64; CLASSES_MAX],
    report: Report,
}

/// The level that served an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    L1,
    L2,
    L3,
    Memory,
}

impl Simulator {
    /// A simulator with empty caches, in which every class may allocate in all ways.
    ///
    /// # Errors
    /// If the machine is invalid.
    pub fn new(machine: &Machine) -> Result<Self, InvalidMachine> {
        machine.check()?;
        let l3 = Cache::new(&machine.l3);
        let slots = l3.slots();
        Ok(Simulator {
            machine: *machine,
            regions: Regions::new(),
            cores: (0..machine.cores).map(|_| (Cache::new(&machine.l1), Cache::new(&machine.l2))).collect(),
            l3,
            class_of: vec![0; slots],
            cores_of: vec![0; slots],
            l2_masks: [u32::MAX; CLASSES_MAX],
            l3_masks: [u32::MAX; CLASSES_MAX],
            lines_of_class: [0; CLASSES_MAX],
            report: Report::default(),
        })
    }

    /// The simulated machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Sets the ways of the last level in which a class may allocate. With a mask that has no way of the cache it
    /// allocates nowhere.
    ///
    /// # Panics
    /// If the class is out of range.
    pub fn set_last_level_mask(&mut self, class: u8, mask: CapacityMask) {
        self.l3_masks[usize::from(class)] = mask.0;
    }

    /// Sets the ways of L2 in which a class may allocate.
    ///
    /// # Panics
    /// If the class is out of range.
    pub fn set_l2_mask(&mut self, class: u8, mask: CapacityMask) {
        self.l2_masks[usize::from(class)] = mask.0;
    }

    /// Bytes of the last level that a class has loaded.
    ///
    /// # Panics
    /// If the class is out of range.
    pub fn occupancy_bytes(&self, class: u8) -> u64 {
        self.lines_of_class[usize::from(class)] * LINE_BYTES
    }

    /// Resets the counters. The caches keep their contents.
    pub fn forget(&mut self) {
        self.report = Report::default();
    }

    /// The counters.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Simulates accesses.
    ///
    /// # Panics
    /// If a class, object or core is out of range.
    pub fn run(&mut self, accesses: impl IntoIterator<Item = Access>) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("lzcnt")
        {
            // SAFETY: the processor has all features for which the function is compiled.
            return unsafe { self.run_avx2(accesses) };
        }
        for access in accesses {
            self.step(access);
        }
    }

    /// The same code, compiled for wider vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn run_avx2(&mut self, accesses: impl IntoIterator<Item = Access>) {
        for access in accesses {
            self.step(access);
        }
    }

    /// Simulates one access.
    ///
    /// # Panics
    /// As [`Simulator::run`].
    pub fn access(&mut self, access: Access) {
        self.step(access);
    }

    /// Simulates one access and counts it.
    #[inline(always)]
    fn step(&mut self, access: Access) {
        if usize::from(access.class) >= CLASSES_MAX {
            out_of_range("class", access.class.into());
        }
        let line = self.regions.line(access.address);
        let core = usize::from(access.core);
        let served = match access.op {
            Op::Flush => return self.flush(line),
            _ if self.cores[core].0.hit(line).is_some() => Served::L1,
            _ => self.beyond_l1(access, line),
        };
        let counts: &mut Counts = self.report.counts_mut(access.class, access.object);
        match served {
            Served::L1 => counts.l1 += 1,
            Served::L2 => counts.l2 += 1,
            Served::L3 => counts.l3 += 1,
            Served::Memory => counts.memory += 1,
        }
    }

    /// Simulates an access that missed L1. Returns the level that served it.
    #[inline(always)]
    fn beyond_l1(&mut self, access: Access, line: u64) -> Served {
        let (core, class) = (usize::from(access.core), usize::from(access.class));
        if usize::from(access.object) >= OBJECTS_MAX {
            out_of_range("object", access.object);
        }
        // Lines evicted from L1 are dropped: the other levels contain them, or a non-temporal load brought them.
        self.cores[core].0.insert(line, u32::MAX);
        if self.cores[core].1.hit(line).is_some() {
            return Served::L2;
        }
        match self.machine.last_level {
            LastLevel::Inclusive => {
                if let Some(slot) = self.l3.hit(line) {
                    self.cores_of[slot] |= 1 << core;
                    self.cores[core].1.insert(line, self.l2_masks[class]);
                    return Served::L3;
                }
                if access.op != Op::NonTemporal {
                    self.cores[core].1.insert(line, self.l2_masks[class]);
                    if let Some(slot) = self.fill_last_level(line, class) {
                        self.cores_of[slot] = 1 << core;
                    }
                }
                Served::Memory
            }
            LastLevel::Victim => {
                let moved = self.l3.remove(line);
                if let Some(slot) = moved {
                    self.count_removal(slot);
                }
                if moved.is_some() || access.op != Op::NonTemporal {
                    let inserted = self.cores[core].1.insert(line, self.l2_masks[class]);
                    if let Some(victim) = inserted.and_then(|inserted| inserted.evicted) {
                        // Another core may have evicted it to there already.
                        if self.l3.hit(victim).is_none() {
                            self.fill_last_level(victim, class);
                        }
                    }
                }
                if moved.is_some() { Served::L3 } else { Served::Memory }
            }
        }
    }

    /// Inserts a line into the last level. Returns its slot; `None` if the class may not allocate.
    #[inline(always)]
    fn fill_last_level(&mut self, line: u64, class: usize) -> Option<usize> {
        let inserted = self.l3.insert(line, self.l3_masks[class])?;
        if let Some(victim) = inserted.evicted {
            self.count_removal(inserted.slot);
            if self.machine.last_level == LastLevel::Inclusive {
                let mut cores = self.cores_of[inserted.slot];
                while cores != 0 {
                    let core = cores.trailing_zeros() as usize;
                    cores &= cores - 1;
                    self.cores[core].0.remove(victim);
                    self.cores[core].1.remove(victim);
                }
            }
        }
        self.class_of[inserted.slot] = class as u8;
        self.lines_of_class[class] += 1;
        Some(inserted.slot)
    }

    /// Evicts a line from all caches.
    fn flush(&mut self, line: u64) {
        for (l1, l2) in &mut self.cores {
            l1.remove(line);
            l2.remove(line);
        }
        if let Some(slot) = self.l3.remove(line) {
            self.count_removal(slot);
        }
    }

    /// Accounts for a line that left a slot of the last level.
    #[inline(always)]
    fn count_removal(&mut self, slot: usize) {
        let lines = &mut self.lines_of_class[usize::from(self.class_of[slot])];
        debug_assert!(*lines > 0);
        *lines -= 1;
    }
}

/// Panics. Not inlined, because formatting would force `step` to keep values in memory.
#[cold]
#[inline(never)]
fn out_of_range(what: &str, number: u16) -> ! {
    panic!("{what} {number} is out of range");
}
