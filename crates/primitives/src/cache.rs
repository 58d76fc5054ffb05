//! Cache lines: their size, and prefetch instructions.
//!
//! A prefetch is a hint without architectural effect. It never faults, whatever the address, so both functions are safe
//! for every pointer, dangling and null ones included. Under Miri and on processors other than x86-64 and AArch64 they
//! do nothing.

/// Bytes of a cache line on x86-64 and most AArch64 processors.
///
/// Layouts are aligned to this number. Correctness never depends on the processor's true line size.
pub const CACHE_LINE_BYTES: usize = 64;

/// Starts loading the cache line that contains `at` into all cache levels.
///
/// The address need not be valid.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults and changes nothing but caches; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch never faults and changes nothing but caches; the instruction uses neither stack nor flags.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = at;
}

/// Starts loading the cache line that contains `at` with the non-temporal hint, for memory that is read once.
///
/// On x86-64 the line goes to L1 without displacing other lines of the last-level cache. On other processors the call
/// does nothing. The address need not be valid.
#[inline(always)]
pub fn prefetch_non_temporal<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults and changes nothing but caches; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_NTA }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetch_accepts_every_address() {
        let value = 7_u64;
        for at in [&raw const value, std::ptr::null(), std::ptr::without_provenance(usize::MAX)] {
            prefetch(at);
            prefetch_non_temporal(at);
        }
        assert_eq!(value, 7);
    }
}
