//! The caches together: private L1 and L2, a last level that all share and that is partitioned.

use super::cache::Cache;
use super::regions::Regions;
use super::report::{Counts, Report};
use super::{Access, CLASSES_MAX, InvalidMachine, LINE, LastLevel, Machine, OBJECTS_MAX, Op};
use crate::CapacityMask;

/// A machine's caches, and what was counted.
#[derive(Debug)]
pub struct Simulator {
    machine: Machine,
    regions: Regions,
    cores: Vec<(Cache, Cache)>,
    l3: Cache,
    /// For each slot of the last level: whose class brought the line in.
    class_of: Vec<u8>,
    /// For each slot of an inclusive last level: the cores that may have the line too, one bit each.
    cores_of: Vec<u8>,
    l2_masks: [u32; CLASSES_MAX],
    l3_masks: [u32; CLASSES_MAX],
    lines_of_class: [u64; CLASSES_MAX],
    report: Report,
}

/// Where an access was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    L1,
    L2,
    L3,
    Memory,
}

impl Simulator {
    /// Empty caches; every class may use all ways.
    ///
    /// # Errors
    /// If a size or a number of ways is impossible.
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

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Where a class may allocate in the last level from now on. A mask without a way of the cache: nowhere.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn set_last_level_mask(&mut self, class: u8, mask: CapacityMask) {
        self.l3_masks[usize::from(class)] = mask.0;
    }

    /// The same for L2.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn set_l2_mask(&mut self, class: u8, mask: CapacityMask) {
        self.l2_masks[usize::from(class)] = mask.0;
    }

    /// Bytes of the last level that a class has brought in.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn occupancy_bytes(&self, class: u8) -> u64 {
        self.lines_of_class[usize::from(class)] * LINE
    }

    /// Forgets what was counted; the caches stay as they are.
    pub fn forget(&mut self) {
        self.report = Report::default();
    }

    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Carries out accesses.
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
            // SAFETY: the processor has all features that the function is compiled for.
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

    /// Carries out one access.
    ///
    /// # Panics
    /// As [`Simulator::run`].
    pub fn access(&mut self, access: Access) {
        self.step(access);
    }

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

    #[inline(always)]
    fn beyond_l1(&mut self, access: Access, line: u64) -> Served {
        let (core, class) = (usize::from(access.core), usize::from(access.class));
        if usize::from(access.object) >= OBJECTS_MAX {
            out_of_range("object", access.object);
        }
        // What leaves L1 is dropped: the levels below have it, or it was there by a non-temporal load.
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
                    self.lines_of_class[usize::from(self.class_of[slot])] -= 1;
                }
                if moved.is_some() || access.op != Op::NonTemporal {
                    let inserted = self.cores[core].1.insert(line, self.l2_masks[class]);
                    if let Some(victim) = inserted.and_then(|inserted| inserted.evicted) {
                        // Another core may have brought it there already.
                        if self.l3.hit(victim).is_none() {
                            self.fill_last_level(victim, class);
                        }
                    }
                }
                if moved.is_some() { Served::L3 } else { Served::Memory }
            }
        }
    }

    /// Puts a line into the last level; gives its slot.
    #[inline(always)]
    fn fill_last_level(&mut self, line: u64, class: usize) -> Option<usize> {
        let inserted = self.l3.insert(line, self.l3_masks[class])?;
        if let Some(victim) = inserted.evicted {
            self.lines_of_class[usize::from(self.class_of[inserted.slot])] -= 1;
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

    fn flush(&mut self, line: u64) {
        for (l1, l2) in &mut self.cores {
            l1.remove(line);
            l2.remove(line);
        }
        if let Some(slot) = self.l3.remove(line) {
            self.lines_of_class[usize::from(self.class_of[slot])] -= 1;
        }
    }
}

/// Not inlined: what is formatted would have to be in memory.
#[cold]
#[inline(never)]
fn out_of_range(what: &str, number: u16) -> ! {
    panic!("there is no {what} {number}");
}
