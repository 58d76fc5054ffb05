//! Unaligned reads of plain integers from searched arrays.
//!
//! Arrays come from [`keyaki_primitives::AlignedMemory`], or from a file that was read or mapped. Everything that
//! searches takes `Bytes` and assumes no alignment.

/// Reads a number at any address.
///
/// # Safety
/// `size_of::<T>()` bytes can be read at `at`, and `T` is an integer.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(at: *const u8) -> T {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<T>().read_unaligned() }
}
