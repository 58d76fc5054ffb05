//! The mapping from addresses to line numbers of 38 bits: each new GiB gets the next region number.
//!
//! A process uses few GiB, scattered over 47 bits of addresses. Short line numbers make tags of 32 bits exact.
//!
//! Invariant: line numbers are below 2^38 - 2^24.

use std::collections::HashMap;

use super::LINE_BYTES;

/// Bits of an address within a region.
const REGION_BITS: u32 = 30;
/// Limit of region numbers.
const REGIONS_MAX: u32 = 1 << 14;
/// Entries of the cache of recent regions.
const RECENT: usize = 64;

/// The numbers of regions.
#[derive(Debug)]
pub(super) struct Regions {
    numbers: HashMap<u64, u32>,
    /// Recent regions and their numbers, by hash.
    recent: [(u64, u32); RECENT],
}

impl Regions {
    pub(super) fn new() -> Self {
        Regions { numbers: HashMap::new(), recent: [(u64::MAX, 0); RECENT] }
    }

    /// The line number of an address.
    #[inline(always)]
    pub(super) fn line(&mut self, address: u64) -> u64 {
        let region = address >> REGION_BITS;
        let recent = self.recent[recent_of(region)];
        let number = if recent.0 == region { recent.1 } else { self.number(region) };
        (u64::from(number) << (REGION_BITS - LINE_BYTES.trailing_zeros()))
            | ((address & ((1 << REGION_BITS) - 1)) / LINE_BYTES)
    }

    #[cold]
    fn number(&mut self, region: u64) -> u32 {
        // The last region number is unused, because its last line would get the tag of an empty way.
        let next = self.numbers.len() as u32 % (REGIONS_MAX - 1);
        let number = *self.numbers.entry(region).or_insert(next);
        self.recent[recent_of(region)] = (region, number);
        number
    }
}

#[inline(always)]
fn recent_of(region: u64) -> usize {
    (region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_numbers_are_unique_and_bounded() {
        let mut regions = Regions::new();
        let addresses =
            [0x7fff_0000_0000_u64, 0x5555_0000_0000, 0, 0x7fff_0000_0040, 0x7fff_0000_0000 + (64 << 30), u64::MAX];
        let lines = addresses.map(|address| regions.line(address));
        assert_eq!(lines, [0, 1 << 24, 2 << 24, 1, 3 << 24, (5 << 24) - 1]);
        assert_eq!(addresses.map(|address| regions.line(address)), lines);
        for region in 0..100_000 {
            assert!(regions.line(region << 30) < (1 << 38) - (1 << 24));
        }
    }
}
