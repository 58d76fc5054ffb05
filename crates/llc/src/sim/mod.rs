//! A simulator of caches whose ways are divided among classes: what would happen on a machine with (or without) partitioning.
//!
//! Each core has an L1 and an L2 of its own, all share the last level. Accesses come from anywhere: [generated](generate) ones
//! (scans, B-tree probes, hash joins), [recorded](trace) ones, or one's own; each belongs to a class, whose masks say in which ways
//! it may allocate, and to an object, by which the [`Report`] tells hits from misses.
//!
//! ```
//! use keyaki_llc::CapacityMask;
//! use keyaki_llc::sim::{Access, Machine, Simulator, generate};
//!
//! let mut simulator = Simulator::new(&Machine::paper()).unwrap();
//! simulator.set_last_level_mask(1, CapacityMask(0b11)); // class 1 streams
//! let table = generate::Table::new(0, 5 << 20);
//! let big = generate::Table::new(1 << 40, 20 << 20);
//! for _ in 0..2 {
//!     simulator.run(table.scan().map(|address| Access::load(address)));
//!     simulator.run(big.scan().map(|address| Access::load(address).of(1, 1))); // class and object
//! }
//! simulator.forget();
//! simulator.run(table.scan().map(|address| Access::load(address)));
//! assert!(simulator.report().object(0).last_level_miss_ratio() < 0.05);
//! ```
//!
//! Addresses are those of a process: any, of up to 16,384 different GiB (those of more are folded together).
//!
//! Prefetchers, bandwidth and overlap of misses are not simulated; [`TimeModel`] turns counts into time with fixed costs.

mod cache;
pub mod experiments;
pub mod generate;
mod hierarchy;
mod regions;
mod report;
pub mod trace;

pub use hierarchy::Simulator;
pub use report::{Counts, Report, TimeModel};

use keyaki_primitives::CACHE_LINE_BYTES;
use serde::Serialize;

/// Bytes of a cache line.
pub const LINE: u64 = CACHE_LINE_BYTES as u64;
/// Ways of a cache, at most.
pub const WAYS_MAX: u32 = 32;
/// Classes, cores and objects, at most.
pub const CLASSES_MAX: usize = 16;
pub const CORES_MAX: usize = 8;
pub const OBJECTS_MAX: usize = 1 << 12;

/// What happens to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Op {
    /// Loads and stores alike: both bring the line in.
    #[default]
    Load,
    /// A load announced by a non-temporal prefetch: brought into L1 only. (Where the last level is inclusive, processors use a way of
    /// it as well.)
    NonTemporal,
    /// The line leaves all caches (`clflush`). Not counted as an access.
    Flush,
}

/// One access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Access {
    pub address: u64,
    pub object: u16,
    pub class: u8,
    pub core: u8,
    pub op: Op,
}

impl Access {
    /// Of class 0, object 0, on core 0.
    #[inline]
    pub fn load(address: u64) -> Self {
        Access { address, ..Access::default() }
    }

    #[inline]
    pub fn of(self, class: u8, object: u16) -> Self {
        Access { class, object, ..self }
    }

    #[inline]
    pub fn on(self, core: u8) -> Self {
        Access { core, ..self }
    }

    #[inline]
    pub fn by(self, op: Op) -> Self {
        Access { op, ..self }
    }
}

/// Which line leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Replacement {
    /// The least recently used.
    Lru,
    /// A tree of bits that approximates that.
    TreePlru,
    /// Static re-reference interval prediction (two bits): lines must be used again to stay.
    Srrip,
}

/// How addresses are spread over sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Placement {
    /// By their low bits, as if memory were contiguous.
    Identity,
    /// Pages are anywhere in physical memory, as operating systems give them out; within a page lines are neighbours.
    Pages { page_bytes: u64, seed: u64 },
}

impl Placement {
    /// The line's number in physical memory: one to one, below 2^38.
    #[inline(always)]
    fn place(self, line: u64) -> u64 {
        match self {
            Placement::Identity => line,
            Placement::Pages { page_bytes, seed } => {
                let shift = (page_bytes / LINE).trailing_zeros();
                scatter(line >> shift, seed, LINE_BITS - shift) << shift | (line & ((1 << shift) - 1))
            }
        }
    }

    /// The line that `place` puts there.
    #[inline(always)]
    fn line(self, placed: u64) -> u64 {
        match self {
            Placement::Identity => placed,
            Placement::Pages { page_bytes, seed } => {
                let shift = (page_bytes / LINE).trailing_zeros();
                gather(placed >> shift, seed, LINE_BITS - shift) << shift | (placed & ((1 << shift) - 1))
            }
        }
    }
}

/// Lines are numbered by so many bits: 16 TiB.
const LINE_BITS: u32 = 38;
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Times `ODD` it is 1, modulo 2^64.
const ODD_INVERSE: u64 = 0xf1de_83e1_9937_733d;

/// A permutation of the numbers of `bits` bits that looks random.
fn scatter(mut number: u64, seed: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    for _ in 0..2 {
        number = number.wrapping_add(seed).wrapping_mul(ODD) & mask;
        number ^= number >> bits.div_ceil(2);
    }
    number
}

/// Its inverse.
fn gather(mut number: u64, seed: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    for _ in 0..2 {
        // The upper half was not changed by the shift, the lower one by the upper.
        number ^= number >> bits.div_ceil(2);
        number = number.wrapping_mul(ODD_INVERSE).wrapping_sub(seed) & mask;
    }
    number
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CacheOptions {
    pub bytes: u64,
    pub ways: u32,
    pub replacement: Replacement,
    pub placement: Placement,
}

/// How the last level relates to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum LastLevel {
    /// Holds whatever they hold: what leaves it leaves them too (Intel until Broadwell).
    Inclusive,
    /// Holds what leaves L2 (AMD; in spirit Intel since Skylake).
    Victim,
}

/// A processor: what each core has, and what they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Machine {
    pub l1: CacheOptions,
    pub l2: CacheOptions,
    pub l3: CacheOptions,
    pub last_level: LastLevel,
    pub cores: usize,
}

/// A machine that cannot be simulated, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{level}: {why}")]
pub struct InvalidMachine {
    level: &'static str,
    why: &'static str,
}

impl CacheOptions {
    /// LRU, contiguous memory.
    pub const fn new(bytes: u64, ways: u32) -> Self {
        CacheOptions { bytes, ways, replacement: Replacement::Lru, placement: Placement::Identity }
    }

    fn sets(&self) -> u64 {
        self.bytes / LINE / u64::from(self.ways.max(1))
    }

    fn check(&self, level: &'static str) -> Result<(), InvalidMachine> {
        let page_fits = match self.placement {
            Placement::Identity => true,
            Placement::Pages { page_bytes, .. } => {
                page_bytes.is_power_of_two() && (LINE..=1 << 30).contains(&page_bytes)
            }
        };
        let why = if self.ways == 0 || self.ways > WAYS_MAX {
            "between 1 and 32 ways"
        } else if !self.sets().is_power_of_two() || self.sets() * u64::from(self.ways) * LINE != self.bytes {
            "its size must be a power of two of sets, each of as many lines of 64 bytes as it has ways"
        } else if self.sets() < 64 || (self.sets() < 128 && self.placement != Placement::Identity) {
            "at least 64 sets, and 128 if pages are placed"
        } else if self.bytes > 1 << 32 {
            "at most 4 GiB"
        } else if !page_fits {
            "pages must be a power of two between a line and 1 GiB"
        } else {
            return Ok(());
        };
        Err(InvalidMachine { level, why })
    }
}

impl Machine {
    /// The processor of the published experiments (Xeon E5-2623 v4): 32 KiB, 256 KiB, and 10 MiB in 20 ways, inclusive. Memory
    /// counts as contiguous: with pages placed at random 7.4 MB would miss in every tenth line, and 1 % was measured.
    pub const fn paper() -> Self {
        Machine {
            l1: CacheOptions::new(32 << 10, 8),
            l2: CacheOptions::new(256 << 10, 8),
            l3: CacheOptions::new(10 << 20, 20),
            last_level: LastLevel::Inclusive,
            cores: 1,
        }
    }

    /// A part of a recent AMD server processor: 32 KiB, 1 MiB, and 32 MiB in 16 ways that take what leaves L2.
    pub const fn zen() -> Self {
        Machine {
            l1: CacheOptions::new(32 << 10, 8),
            l2: CacheOptions::new(1 << 20, 8),
            l3: CacheOptions::new(32 << 20, 16),
            last_level: LastLevel::Victim,
            cores: 2,
        }
    }

    fn check(&self) -> Result<(), InvalidMachine> {
        self.l1.check("L1")?;
        self.l2.check("L2")?;
        self.l3.check("L3")?;
        if self.cores == 0 || self.cores > CORES_MAX {
            return Err(InvalidMachine { level: "cores", why: "between 1 and 8" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn placement_is_one_to_one(line in 0_u64..1 << LINE_BITS, seed in any::<u64>(), shift in 0_u32..24) {
            let placement = Placement::Pages { page_bytes: LINE << shift, seed };
            let placed = placement.place(line);
            prop_assert!(placed < 1 << LINE_BITS);
            prop_assert_eq!(placement.line(placed), line);
            prop_assert_eq!(placed & ((1 << shift) - 1), line & ((1 << shift) - 1));
        }
    }

    #[test]
    fn impossible_machines_are_refused() {
        let paper = Machine::paper();
        let with_l3 = |l3: CacheOptions| Simulator::new(&Machine { l3, ..paper }).map(|_| ()).unwrap_err().to_string();
        assert_eq!(with_l3(CacheOptions::new(10 << 20, 33)), "L3: between 1 and 32 ways");
        assert_eq!(with_l3(CacheOptions::new(10 << 20, 0)), "L3: between 1 and 32 ways");
        assert!(with_l3(CacheOptions::new(11 << 20, 20)).contains("power of two of sets"));
        assert!(with_l3(CacheOptions::new(4096, 2)).contains("at least 64 sets"));
        let placement = Placement::Pages { page_bytes: 100, seed: 0 };
        assert!(with_l3(CacheOptions { placement, ..paper.l3 }).contains("pages must be"));
        assert!(Simulator::new(&Machine { cores: 9, ..paper }).is_err());
    }
}
