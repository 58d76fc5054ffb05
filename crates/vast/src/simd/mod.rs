//! SIMD primitives: comparing all lanes of a block with one number, on the best instruction set of the processor.
//!
//! All searches are written once, generic over [`Simd`]. Each instruction set implements its primitives. A block has
//! 16, 32 or 64 bytes of unsigned lanes. A comparison gives a bit string with one bit per lane (AVX-512, portable) or
//! per byte (the others). The position in the block is the number of its set bits. The instruction set is detected once
//! per process.
//!
//! Invariant: a value of [`Instructions`] exists only if the processor has the instructions.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod sse;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use sse::Sse;

use std::sync::OnceLock;

use crate::header::Header;
use crate::key::Key;
use crate::memory::read;

/// An instruction set that this processor has. Only [`Instructions::available`] and [`Instructions::best`] return
/// values, so that a value proves that the processor has the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instructions(Kind);

/// The instruction sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Sse,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Instructions {
    /// The best instruction set of this processor.
    pub fn best() -> Self {
        static BEST: OnceLock<Instructions> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().unwrap_or(&Instructions(Kind::Portable)))
    }

    /// The instruction set as an enumeration.
    #[inline(always)]
    pub(crate) fn kind(self) -> Kind {
        self.0
    }

    /// All instruction sets of this processor, from the portable code to the best.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut, reason = "some targets have only the portable code")]
        let mut all = vec![Instructions(Kind::Portable)];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let sse = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("popcnt");
            let avx2 = sse
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi");
            let kinds = [(sse, Kind::Sse), (avx2, Kind::Avx2), (avx512, Kind::Avx512)];
            all.extend(kinds.into_iter().filter(|(there, _)| *there).map(|(_, kind)| Instructions(kind)));
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        all.push(Instructions(Kind::Neon));
        all
    }

    /// The name: `portable`, `sse4.2`, `avx2`, `avx512` or `neon`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Sse => "sse4.2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
        }
    }
}

/// The primitives of an instruction set.
pub(crate) trait Simd: Copy {
    /// True if `compare` gives a bit per lane; otherwise it gives one per byte.
    const LANE_BITS: bool;

    /// Compares the unsigned `WIDTH`-byte lanes of a block of `BLOCK` bytes with `code`. Returns the bits of the lanes
    /// below it and of those equal to it.
    ///
    /// # Safety
    /// The processor has the instructions; `BLOCK` bytes can be read.
    unsafe fn compare<const WIDTH: usize, const BLOCK: usize>(block: *const u8, code: u64) -> (u64, u64);

    /// The number of keys of a cache line that are less than `key`.
    ///
    /// # Safety
    /// The processor has the instructions; 64 bytes can be read.
    #[inline(always)]
    unsafe fn line_below<K: Key>(line: *const u8, key: K) -> usize {
        // SAFETY: the caller's promise. Unsigned keys are lanes without conversion.
        unsafe {
            if K::FLIP == 0 {
                if K::BYTES == 4 {
                    Self::count::<4>(Self::compare::<4, 64>(line, key.ordered()).0)
                } else {
                    Self::count::<8>(Self::compare::<8, 64>(line, key.ordered()).0)
                }
            } else {
                Self::signed_line_below(line, key)
            }
        }
    }

    /// As [`line_below`](Self::line_below), for signed keys.
    ///
    /// # Safety
    /// As for `line_below`.
    unsafe fn signed_line_below<K: Key>(line: *const u8, key: K) -> usize;

    /// Unpacks values of a block of a packed column, in groups of eight, from group `first` on.
    ///
    /// # Safety
    /// The processor has the instructions. The block's residuals and 64 bytes after them can be read. `values` has a
    /// multiple of eight elements, and the block has so many values from group `first` on.
    #[inline(always)]
    unsafe fn unpack(header: &Header, residuals: *const u8, first: usize, values: &mut [u64]) {
        let width = header.width as usize;
        let mask = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
        for (index, value) in (first * 8..).zip(values) {
            let bit = index * width;
            // SAFETY: the residual begins within the block's residuals, which 64 readable bytes follow.
            let residual = unsafe { read::<u64>(residuals.add(bit / 8)) } >> (bit % 8) & mask;
            *value = header.base.wrapping_add(header.line(index)).wrapping_add(residual);
        }
    }

    /// The number of lanes whose bits are set in a bit string of `compare`.
    #[inline(always)]
    fn count<const WIDTH: usize>(bits: u64) -> usize {
        let bits = bits.count_ones() as usize;
        if Self::LANE_BITS { bits } else { bits / WIDTH }
    }

    /// A bit string of `compare` with the bits of the first `lanes` lanes cleared.
    #[inline(always)]
    fn skip<const WIDTH: usize>(bits: u64, lanes: u32) -> u64 {
        let step = if Self::LANE_BITS { 1 } else { WIDTH as u32 };
        bits & u64::MAX.wrapping_shl(lanes * step)
    }
}

/// Runs `$body`, compiled for the given instructions, with `$simd` as their [`Simd`] type.
///
/// The body calls an `#[inline(always)]` function that is generic over [`Simd`].
macro_rules! dispatch {
    ($instructions:expr, $simd:ident, fn run $([$($generics:tt)*])? ($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block, ($($value:expr),*)) => {{
        fn portable $(<$($generics)*>)? ($($argument: $type),*) $(-> $result)? {
            type $simd = $crate::simd::Portable;
            $body
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "sse4.2,popcnt")]
        fn sse $(<$($generics)*>)? ($($argument: $type),*) $(-> $result)? {
            type $simd = $crate::simd::Sse;
            $body
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
        fn avx2 $(<$($generics)*>)? ($($argument: $type),*) $(-> $result)? {
            type $simd = $crate::simd::Avx2;
            $body
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2,popcnt,bmi1,bmi2")]
        fn avx512 $(<$($generics)*>)? ($($argument: $type),*) $(-> $result)? {
            type $simd = $crate::simd::Avx512;
            $body
        }
        #[cfg(target_arch = "aarch64")]
        fn neon $(<$($generics)*>)? ($($argument: $type),*) $(-> $result)? {
            type $simd = $crate::simd::Neon;
            $body
        }
        // A value of `Instructions` exists only if the processor has them.
        match $instructions.kind() {
            $crate::simd::Kind::Portable => portable($($value),*),
            // SAFETY: the processor has the instructions.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Kind::Sse => unsafe { sse($($value),*) },
            // SAFETY: the processor has the instructions.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Kind::Avx2 => unsafe { avx2($($value),*) },
            // SAFETY: the processor has the instructions.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Kind::Avx512 => unsafe { avx512($($value),*) },
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Kind::Neon => neon($($value),*),
        }
    }};
}
pub(crate) use dispatch;
