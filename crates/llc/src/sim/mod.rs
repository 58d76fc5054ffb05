//! A simulator of caches whose ways are divided among classes of service.
//!
//! Each core has its own L1 and L2; all cores share the last level. Accesses are [generated](generate) (scans, B-tree
//! probes, hash joins), [recorded](trace), or made by the caller. Each access belongs to a class, whose masks determine
//! the ways in which it may allocate, and to an object, such as a table, by which the [`Report`] counts hits and
//! misses.
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
//! Addresses are virtual addresses of a process, in up to 16,383 different GiB. Addresses of further GiB share line
//! numbers with earlier ones.
//!
//! Prefetchers, memory bandwidth and overlapping misses are not simulated. [`TimeModel`] converts counts into time with
//! fixed costs.

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
pub const LINE_BYTES: u64 = CACHE_LINE_BYTES as u64;
/// Maximum number of ways of a cache.
pub const WAYS_MAX: u32 = 32;
/// Maximum number of classes of service.
pub const CLASSES_MAX: usize = 16;
/// Maximum number of cores.
pub const CORES_MAX: usize = 8;
/// Maximum number of objects.
pub const OBJECTS_MAX: usize = 1 << 12;

// Sets of cores are words of eight bits.
const _: () =
    assert!(CORES_MAX <= u8::BITS as usize && CLASSES_MAX <= u8::MAX as usize && OBJECTS_MAX <= u16::MAX as usize);

/// The operation of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Op {
    /// A load or a store: both bring the line in.
    #[default]
    Load,
    /// A load after a non-temporal prefetch: brings the line into L1 only. (Processors with an inclusive last level
    /// also use one way of it.)
    NonTemporal,
    /// Evicts the line from all caches (`clflush`). Not counted as an access.
    Flush,
}

/// One access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Access {
    /// Virtual address.
    pub address: u64,
    /// The object accessed, below [`OBJECTS_MAX`].
    pub object: u16,
    /// The class of service, below [`CLASSES_MAX`].
    pub class: u8,
    /// The core, below the machine's number of cores.
    pub core: u8,
    /// The operation.
    pub op: Op,
}

impl Access {
    /// A load of class 0 and object 0 on core 0.
    #[inline]
    pub fn load(address: u64) -> Self {
        Access { address, ..Access::default() }
    }

    /// The same access of a class and an object.
    #[inline]
    pub fn of(self, class: u8, object: u16) -> Self {
        Access { class, object, ..self }
    }

    /// The same access on a core.
    #[inline]
    pub fn on(self, core: u8) -> Self {
        Access { core, ..self }
    }

    /// The same access with an operation.
    #[inline]
    pub fn by(self, op: Op) -> Self {
        Access { op, ..self }
    }
}

/// The replacement policy of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Replacement {
    /// Least recently used.
    Lru,
    /// Pseudo-LRU by a tree of bits.
    TreePlru,
    /// Static re-reference interval prediction with two bits: lines stay only if they are used again.
    Srrip,
}

/// The mapping from line numbers to physical memory, and so to sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Placement {
    /// Contiguous physical memory: sets follow from the low bits of the line number.
    Identity,
    /// Pages at random positions of physical memory, as operating systems allocate them. Lines of a page are adjacent.
    Pages {
        /// A power of two from a line to 1 GiB.
        page_bytes: u64,
        /// Seed of the positions.
        seed: u64,
    },
}

impl Placement {
    /// The number of a line in physical memory: a bijection of the numbers below 2^38.
    #[inline(always)]
    fn physical(self, line: u64) -> u64 {
        match self {
            Placement::Identity => line,
            Placement::Pages { page_bytes, seed } => {
                let shift = (page_bytes / LINE_BYTES).trailing_zeros();
                scatter(line >> shift, seed, LINE_BITS - shift) << shift | (line & ((1 << shift) - 1))
            }
        }
    }

    /// The inverse of `physical`.
    #[inline(always)]
    fn line(self, physical: u64) -> u64 {
        match self {
            Placement::Identity => physical,
            Placement::Pages { page_bytes, seed } => {
                let shift = (page_bytes / LINE_BYTES).trailing_zeros();
                unscatter(physical >> shift, seed, LINE_BITS - shift) << shift | (physical & ((1 << shift) - 1))
            }
        }
    }
}

/// Bits of a line number: 16 TiB of addresses.
const LINE_BITS: u32 = 38;
/// An odd multiplier: 2^64 / φ.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// The inverse of `ODD` modulo 2^64.
const ODD_INVERSE: u64 = 0xf1de_83e1_9937_733d;

const _: () = assert!(ODD.wrapping_mul(ODD_INVERSE) == 1);

/// A pseudo-random permutation of the numbers of `bits` bits.
fn scatter(mut number: u64, seed: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    for _ in 0..2 {
        number = number.wrapping_add(seed).wrapping_mul(ODD) & mask;
        number ^= number >> bits.div_ceil(2);
    }
    number
}

/// The inverse of `scatter`.
fn unscatter(mut number: u64, seed: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    for _ in 0..2 {
        // The shift left the upper half unchanged, and XORed the lower half with it.
        number ^= number >> bits.div_ceil(2);
        number = number.wrapping_mul(ODD_INVERSE).wrapping_sub(seed) & mask;
    }
    number
}

/// A cache of the simulated machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CacheOptions {
    /// Capacity: at most 4 GiB, and a power of two of sets.
    pub bytes: u64,
    /// Associativity: 1 to [`WAYS_MAX`].
    pub ways: u32,
    /// The replacement policy.
    pub replacement: Replacement,
    /// The mapping of lines to physical memory.
    pub placement: Placement,
}

/// The relation of the last level to the other levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum LastLevel {
    /// Contains all lines of the other levels: a line that it evicts leaves them too (Intel until Broadwell).
    Inclusive,
    /// Contains lines that L2 has evicted (AMD; similar: Intel since Skylake).
    Victim,
}

/// The simulated processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// L1 of each core.
    pub l1: CacheOptions,
    /// L2 of each core.
    pub l2: CacheOptions,
    /// The last level, shared by all cores.
    pub l3: CacheOptions,
    /// The relation of the last level to the other levels.
    pub last_level: LastLevel,
    /// Number of cores: 1 to [`CORES_MAX`].
    pub cores: usize,
}

/// A machine that cannot be simulated, with the level and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{level}: {why}")]
pub struct InvalidMachine {
    level: &'static str,
    why: &'static str,
}

impl CacheOptions {
    /// A cache with LRU replacement and contiguous memory.
    pub const fn new(bytes: u64, ways: u32) -> Self {
        CacheOptions { bytes, ways, replacement: Replacement::Lru, placement: Placement::Identity }
    }

    fn sets(&self) -> u64 {
        self.bytes / LINE_BYTES / u64::from(self.ways.max(1))
    }

    fn check(&self, level: &'static str) -> Result<(), InvalidMachine> {
        let page_fits = match self.placement {
            Placement::Identity => true,
            Placement::Pages { page_bytes, .. } => {
                page_bytes.is_power_of_two() && (LINE_BYTES..=1 << 30).contains(&page_bytes)
            }
        };
        let why = if self.ways == 0 || self.ways > WAYS_MAX {
            "the number of ways must be from 1 to 32"
        } else if !self.sets().is_power_of_two() || self.sets() * u64::from(self.ways) * LINE_BYTES != self.bytes {
            "the size must be a power of two of sets with `ways` lines of 64 bytes each"
        } else if self.sets() < 64 || (self.sets() < 128 && self.placement != Placement::Identity) {
            "the number of sets must be at least 64, or 128 with placed pages"
        } else if self.bytes > 1 << 32 {
            "the size must be at most 4 GiB"
        } else if !page_fits {
            "the page size must be a power of two from 64 bytes to 1 GiB"
        } else {
            return Ok(());
        };
        Err(InvalidMachine { level, why })
    }
}

impl Machine {
    /// The processor of the published experiments (Xeon E5-2623 v4): 32 KiB, 256 KiB, and 10 MiB in 20 ways, inclusive.
    /// Memory is contiguous, because with randomly placed pages every tenth line of 7.4 MB would miss, and the authors
    /// measured 1 %.
    pub const fn paper() -> Self {
        Machine {
            l1: CacheOptions::new(32 << 10, 8),
            l2: CacheOptions::new(256 << 10, 8),
            l3: CacheOptions::new(10 << 20, 20),
            last_level: LastLevel::Inclusive,
            cores: 1,
        }
    }

    /// A core complex of a recent AMD server processor: 32 KiB, 1 MiB, and 32 MiB in 16 ways as a victim cache.
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
            return Err(InvalidMachine { level: "cores", why: "the number of cores must be from 1 to 8" });
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
        fn placement_is_a_bijection(line in 0_u64..1 << LINE_BITS, seed in any::<u64>(), shift in 0_u32..24) {
            let placement = Placement::Pages { page_bytes: LINE_BYTES << shift, seed };
            let physical = placement.physical(line);
            prop_assert!(physical < 1 << LINE_BITS);
            prop_assert_eq!(placement.line(physical), line);
            prop_assert_eq!(physical & ((1 << shift) - 1), line & ((1 << shift) - 1));
        }
    }

    #[test]
    fn invalid_machines_are_rejected() {
        let paper = Machine::paper();
        let with_l3 = |l3: CacheOptions| Simulator::new(&Machine { l3, ..paper }).map(|_| ()).unwrap_err().to_string();
        assert_eq!(with_l3(CacheOptions::new(10 << 20, 33)), "L3: the number of ways must be from 1 to 32");
        assert_eq!(with_l3(CacheOptions::new(10 << 20, 0)), "L3: the number of ways must be from 1 to 32");
        assert!(with_l3(CacheOptions::new(11 << 20, 20)).contains("power of two of sets"));
        assert!(with_l3(CacheOptions::new(4096, 2)).contains("at least 64"));
        let placement = Placement::Pages { page_bytes: 100, seed: 0 };
        assert!(with_l3(CacheOptions { placement, ..paper.l3 }).contains("page size"));
        assert!(Simulator::new(&Machine { cores: 9, ..paper }).is_err());
    }
}
