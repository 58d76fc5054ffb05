//! What was counted, by class and object, and what it would cost.

use serde::Serialize;

use super::CLASSES_MAX;

/// Accesses by where they were served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    pub l1: u64,
    pub l2: u64,
    pub l3: u64,
    pub memory: u64,
}

impl Counts {
    pub fn accesses(&self) -> u64 {
        self.l1 + self.l2 + self.l3 + self.memory
    }

    /// Of the accesses that reached the last level, how many it could not serve; 0 if none reached it.
    pub fn last_level_miss_ratio(&self) -> f64 {
        let reached = self.l3 + self.memory;
        if reached == 0 { 0.0 } else { self.memory as f64 / reached as f64 }
    }

    fn add(&mut self, other: &Counts) {
        self.l1 += other.l1;
        self.l2 += other.l2;
        self.l3 += other.l3;
        self.memory += other.memory;
    }
}

/// Counts by class and object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// At object times [`CLASSES_MAX`] plus class.
    counts: Vec<Counts>,
}

impl Report {
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

    pub fn object(&self, object: u16) -> Counts {
        self.sum(|_, other| other == usize::from(object))
    }

    pub fn class(&self, class: u8) -> Counts {
        self.sum(|other, _| other == usize::from(class))
    }

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

/// Time as the sum of fixed costs: what an access costs where it is served, on top of the work done with what it brings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeModel {
    /// Work that goes with each access.
    pub work_ns: f64,
    pub l2_ns: f64,
    pub l3_ns: f64,
    pub memory_ns: f64,
}

impl TimeModel {
    pub fn nanoseconds(&self, counts: &Counts) -> f64 {
        counts.accesses() as f64 * self.work_ns
            + counts.l2 as f64 * self.l2_ns
            + counts.l3 as f64 * self.l3_ns
            + counts.memory as f64 * self.memory_ns
    }
}
