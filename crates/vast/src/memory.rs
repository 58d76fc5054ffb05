//! Memory for arrays that are searched: aligned to cache lines, in huge pages where they are large.
//!
//! A random access to an array of many megabytes in small pages pays for the page table as well as for the data; with huge
//! pages only the data are left. Bytes are zeroed at first. A filled buffer becomes [`Bytes`], which can as well come from a
//! file that was read or mapped: everything that searches takes `Bytes` and assumes no alignment.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use bytes::Bytes;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;
const HUGE: usize = 2 << 20;

/// Zeroed memory, aligned to a cache line.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    layout: Layout,
}

// SAFETY: the buffer owns its memory, and gives it out by the borrow rules only.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `length` zero bytes.
    ///
    /// # Panics
    /// When `length` is more than any memory can have (`isize::MAX`).
    pub fn zeroed(length: usize) -> Self {
        let align = if length >= HUGE { HUGE } else { LINE };
        let layout = Layout::from_size_align(length.max(1), align);
        let layout = layout.unwrap_or_else(|_| panic!("a buffer of {length} bytes"));
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        // Before the first touch: pages that are there already would stay small.
        advise_huge(start, length);
        // SAFETY: so many bytes were allocated.
        unsafe { start.write_bytes(0, length) };
        Buffer { start, length, layout }
    }
}

/// Asks for huge pages. Without them everything works, only slower.
#[cfg(all(target_os = "linux", not(miri)))]
fn advise_huge(start: NonNull<u8>, length: usize) {
    use rustix::mm::{Advice, madvise};
    if length >= HUGE {
        // SAFETY: advice about whole pages of an allocation of ours; it changes no contents.
        let _ = unsafe { madvise(start.as_ptr().cast(), length / HUGE * HUGE, Advice::LinuxHugepage) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn advise_huge(_: NonNull<u8>, _: usize) {}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as many initialised bytes, borrowed with the buffer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as many initialised bytes, borrowed with the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; nobody borrows it any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Bytes {
        Bytes::from_owner(buffer)
    }
}

/// A number at any address.
///
/// # Safety
/// `size_of::<T>()` bytes can be read there, and `T` is a plain integer.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(at: *const u8) -> T {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<T>().read_unaligned() }
}

/// Asks for a cache line. The address need not be valid.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_become_bytes() {
        for length in [0, 1, 63, 4096, HUGE - 1, HUGE, 3 * HUGE + 5] {
            let mut buffer = Buffer::zeroed(length);
            assert_eq!(buffer.len(), length);
            assert!(buffer.as_ptr().addr().is_multiple_of(LINE) && buffer.iter().all(|&byte| byte == 0));
            if let Some(last) = buffer.last_mut() {
                *last = 7;
            }
            assert_eq!(Bytes::from(buffer).last().copied().unwrap_or(7), 7);
        }
    }
}
