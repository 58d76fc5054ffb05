//! Owned, zeroed, aligned memory: cache lines from the heap when small, huge pages from the operating system when
//! large.
//!
//! A random access to gigabytes of 4 KiB pages spends most of its time in the page tables, and a device request into 4
//! KiB pages consists of hundreds of segments. Large blocks are therefore mapped at a multiple of 2 MiB, with huge
//! pages requested by `madvise`. If the system grants none, everything works with small pages.
//!
//! ```text
//! mapping   | unaligned head | capacity: a multiple of 2 MiB                        | tail |
//!                            ^ start, a multiple of 2 MiB      ^ start + len
//! ```
//!
//! The kernel zeroes pages of a mapping when they are first touched: a mapping costs address space at first, memory
//! later.
//!
//! Invariants: `capacity` bytes from `start` on belong to the value alone and are initialised; `len <= capacity`.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::CACHE_LINE_BYTES;

/// Bytes of a huge page, and the alignment of large blocks.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// [`AlignedMemory::zeroed`] maps blocks of this many bytes and more.
const MAP_BYTES_MIN: usize = 1 << 20;

const _: () = assert!(HUGE_PAGE_BYTES.is_multiple_of(CACHE_LINE_BYTES) && HUGE_PAGE_BYTES.is_power_of_two());

/// Owned memory, zeroed when made, aligned to [`CACHE_LINE_BYTES`] or [`HUGE_PAGE_BYTES`].
///
/// It dereferences to its [`len`](slice::len) bytes. [`start`](Self::start) and [`capacity`](Self::capacity) describe
/// the whole block for owners that hand out parts of it by pointer.
#[derive(Debug)]
pub struct AlignedMemory {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    origin: Origin,
}

/// How the block is given back.
#[derive(Debug)]
enum Origin {
    Heap(Layout),
    #[cfg(all(unix, not(miri)))]
    Mapping {
        address: NonNull<u8>,
        bytes: usize,
    },
}

// SAFETY: the value owns its memory, which is plain bytes, and lends it out by the borrow rules only.
unsafe impl Send for AlignedMemory {}
// SAFETY: as above: through `&self` the bytes can only be read.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// `len` zero bytes. From 1 MiB on they are in huge pages (see [`huge`](Self::huge)) if the system allows a
    /// mapping; otherwise they come from the heap, aligned to a cache line.
    ///
    /// Without memory the process ends, as it does for the standard collections.
    ///
    /// # Panics
    /// If `len`, rounded up to whole cache lines, exceeds `isize::MAX`.
    pub fn zeroed(len: usize) -> Self {
        if len >= MAP_BYTES_MIN
            && let Ok(memory) = Self::huge(len)
        {
            return memory;
        }
        let layout = layout(len, CACHE_LINE_BYTES).unwrap_or_else(|| panic!("capacity overflow: {len} bytes"));
        Self::from_heap(len, layout).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// `len` zero bytes at a multiple of [`HUGE_PAGE_BYTES`], mapped with huge pages requested; the capacity is `len`
    /// rounded up to whole huge pages, at least one. Memory is taken when it is touched.
    ///
    /// Systems without `mmap` take the whole capacity from the heap.
    ///
    /// # Errors
    /// If the system refuses that much address space, or `len` exceeds `isize::MAX`.
    pub fn huge(len: usize) -> io::Result<Self> {
        let layout = layout(len, HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        #[cfg(all(unix, not(miri)))]
        {
            let (start, origin) = mapping::map(layout.size())?;
            Ok(AlignedMemory { start, len, capacity: layout.size(), origin })
        }
        #[cfg(not(all(unix, not(miri))))]
        Ok(Self::from_heap(len, layout).ok_or(io::ErrorKind::OutOfMemory)?)
    }

    fn from_heap(len: usize, layout: Layout) -> Option<Self> {
        assert!(layout.size() > 0 && len <= layout.size());
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(AlignedMemory { start, len, capacity: layout.size(), origin: Origin::Heap(layout) })
    }

    /// The first byte. The pointer may be used for reads and writes of all [`capacity`](Self::capacity) bytes as long
    /// as the value lives and no slice of it is borrowed.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes that can be used from [`start`](Self::start) on: the length, rounded up to whole cache lines or huge
    /// pages.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes as 64-bit words in the machine's byte order; up to seven bytes at the end are left out.
    pub fn words(&self) -> &[u64] {
        // SAFETY: `start` is aligned to a cache line, so to 8; `len` initialised bytes are ours, borrowed with `self`,
        // and every bit pattern is a `u64`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }

    /// As [`words`](Self::words), to be written.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`; `&mut self` excludes all other borrows.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len / 8) }
    }

    /// Bytes of the kernel's mapping around the block that are in huge pages now (Linux; the kernel may merge
    /// neighbouring mappings). `None` if the system does not report it.
    pub fn huge_page_bytes(&self) -> Option<u64> {
        huge_page_bytes_at(&std::fs::read_to_string("/proc/self/smaps").ok()?, self.start.as_ptr().addr() as u64)
    }
}

impl Deref for AlignedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes from `start` on are ours, borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` excludes all other borrows.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedMemory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        match &self.origin {
            // SAFETY: allocated with this layout in `from_heap`; it is no longer borrowed.
            Origin::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), *layout) },
            #[cfg(all(unix, not(miri)))]
            // SAFETY: the whole mapping made by `huge`; it is no longer borrowed.
            Origin::Mapping { address, bytes } => unsafe { mapping::unmap(*address, *bytes) },
        }
    }
}

/// `len` bytes, at least one, rounded up to whole units of `align`; `None` if they exceed `isize::MAX`.
fn layout(len: usize, align: usize) -> Option<Layout> {
    Layout::from_size_align(len.max(1).checked_next_multiple_of(align)?, align).ok()
}

/// `AnonHugePages` of the mapping that contains `address`, from the text of `/proc/self/smaps`.
fn huge_page_bytes_at(smaps: &str, address: u64) -> Option<u64> {
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |text| u64::from_str_radix(text, 16).ok();
        if let Some((first, end)) = range.and_then(|(first, end)| Some((hex(first)?, hex(end)?))) {
            inside = (first..end).contains(&address);
        } else if let Some(rest) = line.strip_prefix("AnonHugePages:")
            && inside
        {
            return rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024);
        }
    }
    None
}

#[cfg(all(unix, not(miri)))]
mod mapping {
    //! A private anonymous mapping, one huge page longer than its aligned part.

    use std::io;
    use std::ptr::NonNull;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::{HUGE_PAGE_BYTES, Origin};

    /// A new mapping that holds `capacity` bytes (a multiple of a huge page) from the returned address on, which is a
    /// multiple of a huge page.
    pub(super) fn map(capacity: usize) -> io::Result<(NonNull<u8>, Origin)> {
        assert!(capacity > 0 && capacity.is_multiple_of(HUGE_PAGE_BYTES));
        let bytes = capacity.checked_add(HUGE_PAGE_BYTES).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory in use.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
        let address = NonNull::new(address.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let head = address.as_ptr().addr().wrapping_neg() % HUGE_PAGE_BYTES;
        // SAFETY: `head` is less than a huge page and the mapping is `capacity` bytes and a huge page long, so
        // `head + capacity` bytes lie inside it.
        let start = unsafe { address.add(head) };
        assert!(start.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
        advise_huge(start, capacity);
        Ok((start, Origin::Mapping { address, bytes }))
    }

    /// # Safety
    /// `address` and `bytes` are those of a mapping made by [`map`] that is no longer used.
    pub(super) unsafe fn unmap(address: NonNull<u8>, bytes: usize) {
        // The call fails if it would split a merged mapping of the kernel's and no more mappings are allowed; the pages
        // then stay mapped until the process ends.
        // SAFETY: the caller's promise.
        let _ = unsafe { munmap(address.as_ptr().cast(), bytes) };
    }

    /// Requests huge pages. A refusal is no error: the pages are then small.
    fn advise_huge(start: NonNull<u8>, bytes: usize) {
        #[cfg(target_os = "linux")]
        // SAFETY: the range lies inside a mapping of ours, and the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
        #[cfg(not(target_os = "linux"))]
        let _ = (start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_blocks_are_zeroed_aligned_and_writable() {
        for len in [0, 1, 63, 4096, MAP_BYTES_MIN - 1, MAP_BYTES_MIN, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5] {
            let mut memory = AlignedMemory::zeroed(len);
            assert_eq!(memory.len(), len);
            assert!(memory.capacity() >= len.max(1) && memory.capacity().is_multiple_of(CACHE_LINE_BYTES));
            assert!(memory.start().as_ptr().addr().is_multiple_of(CACHE_LINE_BYTES));
            assert!(memory.iter().all(|&byte| byte == 0));
            memory.fill(7);
            assert!(memory.as_ref().iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn huge_blocks_are_aligned_and_whole() {
        for len in [0, 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1] {
            let memory = AlignedMemory::huge(len).unwrap();
            assert_eq!((memory.len(), memory.capacity()), (len, len.max(1).next_multiple_of(HUGE_PAGE_BYTES)));
            assert!(memory.start().as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
            // SAFETY: the last byte of the capacity, while nothing is borrowed.
            unsafe { memory.start().add(memory.capacity() - 1).write(1) };
        }
        for len in [usize::MAX, usize::MAX - HUGE_PAGE_BYTES, isize::MAX as usize] {
            assert_eq!(AlignedMemory::huge(len).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        }
    }

    #[test]
    #[should_panic(expected = "capacity overflow")]
    fn too_long_a_block_panics() {
        let _ = AlignedMemory::zeroed(usize::MAX);
    }

    #[test]
    fn words_are_the_bytes() {
        let mut memory = AlignedMemory::zeroed(21);
        memory.words_mut()[1] = u64::from_ne_bytes(*b"abcdefgh");
        assert_eq!(memory.words().len(), 2);
        assert_eq!(&memory[8..16], b"abcdefgh");
    }

    #[test]
    fn blocks_move_between_threads() {
        let mut memory = AlignedMemory::huge(HUGE_PAGE_BYTES).unwrap();
        let memory = std::thread::spawn(move || {
            memory[5] = 1;
            memory
        });
        assert_eq!(memory.join().unwrap()[5], 1);
    }

    #[test]
    fn huge_page_bytes_come_from_the_blocks_own_mapping() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0\nSize: 8 kB\nAnonHugePages:      4096 kB\n\
                     3000-5000 rw-p 00000000 00:00 0\nAnonHugePages:         0 kB\n5000-6000 r--p 0 0 0\nSize: 4 kB\n";
        assert_eq!(huge_page_bytes_at(smaps, 0x1000), Some(4096 << 10));
        assert_eq!(huge_page_bytes_at(smaps, 0x3000), Some(0));
        assert_eq!(huge_page_bytes_at(smaps, 0x5000), None);
        assert_eq!(huge_page_bytes_at(smaps, 0x9000), None);
        if cfg!(all(target_os = "linux", not(miri))) {
            assert!(AlignedMemory::huge(1).unwrap().huge_page_bytes().is_some());
        }
    }
}
