//! Counts of accesses by class and object, and their cost in time.

use serde::Serialize;

use super::CLASSES_MAX;

/// Numbers of accesses by the level that served them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Served by L1.
    pub l1: u64,
    /// Served by L2.
    pub l2: u64,
    /// Served by the last level.
    pub l3: u64,
    /// Served by memory.
    pub memory: u64,
}

impl Counts {
    /// Number of all accesses.
    pub fn accesses(&self) -> u64 {
        self.l1 + self.l2 + self.l3 + self.memory
    }

    /// Share of the accesses that reached the last level and missed it; 0 if none reached it.
    pub fn last_level_miss_ratio(&self) -> f64 {
        let reached = self.l3 + self.memory;
        if reached == 0 { 0.0 } else { self.memory as f64 / reached as f64 }
    }

    /// Adds the counts of `other`.
    pub(super) fn add(&mut self, other: &Counts) {
        self.l1 += other.l1;
        self.l2 += other.l2;
        self.l3 += other.l3;
        self.memory += other.memory;
    }
}

/// Counts by class and object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// Indexed by object times [`CLASSES_MAX`] plus class.
    counts: Vec<Counts>,
}

impl Report {
    /// The counts of a class and object, to be increased.
    #[inline]
    pub(super) fn counts_mut(&mut self, class: u8, object: u16) -> &mut Counts {
        let index = usize::from(object) * CLASSES_MAX + usize::from(class);
        if index >= self.counts.len() {
            self.grow(index);
        }
        &mut self.counts[index]
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.counts.resize((index / CLASSES_MAX + 1) * CLASSES_MAX, Counts::default());
    }

    /// Counts of an object, over all classes.
    pub fn object(&self, object: u16) -> Counts {
        self.sum(|_, other| other == usize::from(object))
    }

    /// Counts of a class, over all objects.
    pub fn class(&self, class: u8) -> Counts {
        self.sum(|other, _| other == usize::from(class))
    }

    /// Counts of all accesses.
    pub fn total(&self) -> Counts {
        self.sum(|_, _| true)
    }

    fn sum(&self, wanted: impl Fn(usize, usize) -> bool) -> Counts {
        let mut sum = Counts::default();
        for (index, counts) in self.counts.iter().enumerate() {
            if wanted(index % CLASSES_MAX, index / CLASSES_MAX) {
                sum.add(counts);
            }
        }
        sum
    }
}

/// A time model with fixed costs: each access costs its work, plus the latency of the level that serves it. L1 hits
/// have no latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeModel {
    /// Work per access.
    pub work_ns: f64,
    /// Latency of L2.
    pub l2_ns: f64,
    /// Latency of the last level.
    pub l3_ns: f64,
    /// Latency of memory.
    pub memory_ns: f64,
}

impl TimeModel {
    /// Time of the counted accesses.
    pub fn nanoseconds(&self, counts: &Counts) -> f64 {
        counts.accesses() as f64 * self.work_ns
            + counts.l2 as f64 * self.l2_ns
            + counts.l3 as f64 * self.l3_ns
            + counts.memory as f64 * self.memory_ns
    }
}
