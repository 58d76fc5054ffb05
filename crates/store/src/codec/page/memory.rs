//! The memory of pages. Each thread keeps a few buffers of the pages that it drops: a cache that is full drops a page for
//! each that it admits, and allocators take long for aligned memory of this size.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;

use arrow_buffer::MutableBuffer;

/// Number of buffers that a thread keeps.
const SPARE_MAX: usize = 8;
/// Maximum length in bytes of a buffer that is kept.
const SPARE_BYTES_MAX: usize = 16 << 10;

thread_local! {
    static SPARE: RefCell<Vec<MutableBuffer>> = const { RefCell::new(Vec::new()) };
}

/// Bytes at an address that is a multiple of a cache line.
pub(super) struct PageMemory(MutableBuffer);

impl PageMemory {
    /// Empty memory for `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> PageMemory {
        let spare = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            // A larger buffer would waste memory.
            let at = spare.iter().rposition(|buffer| bytes <= buffer.capacity() && buffer.capacity() - bytes < 64)?;
            Some(spare.swap_remove(at))
        });
        PageMemory(spare.ok().flatten().unwrap_or_else(|| MutableBuffer::with_capacity(bytes)))
    }

    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        if self.0.capacity() == 0 || self.0.capacity() > SPARE_BYTES_MAX {
            return;
        }
        let mut buffer = std::mem::take(&mut self.0);
        buffer.clear();
        // A thread that ends drops the buffer.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() == SPARE_MAX {
                // Pages of other lengths may have left it.
                spare.remove(0);
            }
            spare.push(buffer);
        });
    }
}

impl Deref for PageMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PageMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageMemory({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_dropped_pages_is_used_again() {
        let mut first = PageMemory::with_capacity(8192);
        first.extend_from_slice(&[7; 8192]);
        let address = first.as_ptr();
        // Another length.
        drop(first);
        let other = PageMemory::with_capacity(4096);
        assert!(other.capacity() >= 4096 && other.as_ptr() != address);
        let second = PageMemory::with_capacity(8192);
        assert_eq!((second.as_ptr(), second.len()), (address, 0));
        let third = PageMemory::with_capacity(8192);
        assert!(third.as_ptr() != address && third.as_ptr().addr().is_multiple_of(64));
        // Long buffers, and those above the limit, are not kept.
        drop(PageMemory::with_capacity(2 * SPARE_BYTES_MAX));
        let many: Vec<_> = (0..2 * SPARE_MAX).map(|_| PageMemory::with_capacity(4096)).collect();
        drop(many);
        SPARE.with(|spare| {
            let spare = spare.borrow();
            assert!(spare.len() == SPARE_MAX && spare.iter().all(|buffer| buffer.capacity() <= SPARE_BYTES_MAX));
        });
    }
}
