//! Capacity bit masks: the parts of a cache (ways, or groups of ways) in which a class of service may allocate.

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A capacity bit mask: one bit for each part of a cache. Displayed in hexadecimal, as the kernel does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct CapacityMask(pub u32);

impl CapacityMask {
    /// No part.
    pub const EMPTY: CapacityMask = CapacityMask(0);

    /// The lowest `bits` bits (at most 32).
    pub fn low(bits: u32) -> Self {
        CapacityMask(if bits >= u32::BITS { u32::MAX } else { (1 << bits) - 1 })
    }

    /// `bits` bits from bit `first` on; bits above bit 31 are dropped.
    pub fn run(first: u32, bits: u32) -> Self {
        CapacityMask(Self::low(bits).0.checked_shl(first).unwrap_or(0))
    }

    /// Number of set bits.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// True if no bit is set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if the set bits are one run. The empty mask is contiguous.
    pub fn is_contiguous(self) -> bool {
        self.0 == 0 || (self.0 >> self.0.trailing_zeros()).wrapping_add(1).is_power_of_two() || self.0 == u32::MAX
    }

    /// True if all bits of `other` are set.
    pub fn contains(self, other: CapacityMask) -> bool {
        other.0 & !self.0 == 0
    }

    /// The bits that are not set in `other`.
    pub fn without(self, other: CapacityMask) -> Self {
        CapacityMask(self.0 & !other.0)
    }

    /// The longest run of set bits; the lowest of several.
    pub fn longest_run(self) -> Self {
        let (mut best, mut rest) = (CapacityMask::EMPTY, self.0);
        while rest != 0 {
            let first = rest.trailing_zeros();
            let run = CapacityMask::run(first, (rest >> first).trailing_ones());
            if run.count() > best.count() {
                best = run;
            }
            rest &= !run.0;
        }
        best
    }
}

impl BitAnd for CapacityMask {
    type Output = CapacityMask;
    fn bitand(self, other: CapacityMask) -> CapacityMask {
        CapacityMask(self.0 & other.0)
    }
}

impl BitOr for CapacityMask {
    type Output = CapacityMask;
    fn bitor(self, other: CapacityMask) -> CapacityMask {
        CapacityMask(self.0 | other.0)
    }
}

impl Not for CapacityMask {
    type Output = CapacityMask;
    fn not(self) -> CapacityMask {
        CapacityMask(!self.0)
    }
}

impl fmt::Display for CapacityMask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:x}", self.0)
    }
}

impl fmt::Debug for CapacityMask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:#x}", self.0)
    }
}

/// Parses hexadecimal digits, with or without `0x`.
impl FromStr for CapacityMask {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.trim();
        u32::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).map(CapacityMask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_made_and_found() {
        assert_eq!(CapacityMask::low(32), CapacityMask(u32::MAX));
        assert_eq!(CapacityMask::low(0), CapacityMask::EMPTY);
        assert_eq!(CapacityMask::run(4, 3), CapacityMask(0x70));
        assert_eq!(CapacityMask::run(32, 3), CapacityMask::EMPTY);
        for (mask, contiguous, longest) in
            [(0, true, 0), (1, true, 1), (0x70, true, 0x70), (0xf0f, false, 0xf), (0x3b, false, 0x38)]
        {
            assert_eq!(CapacityMask(mask).is_contiguous(), contiguous, "{mask:x}");
            assert_eq!(CapacityMask(mask).longest_run(), CapacityMask(longest), "{mask:x}");
        }
        assert!(CapacityMask(u32::MAX).is_contiguous() && CapacityMask(0x8000_0000).is_contiguous());
    }

    #[test]
    fn masks_are_hexadecimal() {
        assert_eq!("ff0".parse(), Ok(CapacityMask(0xff0)));
        assert_eq!(" 0xF\n".parse(), Ok(CapacityMask(15)));
        assert!("".parse::<CapacityMask>().is_err() && "1ffffffff".parse::<CapacityMask>().is_err());
        assert_eq!(CapacityMask(0xff0).to_string(), "ff0");
    }
}
