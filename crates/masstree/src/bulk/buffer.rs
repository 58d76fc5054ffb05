//! Memory for the records of a sort: large, short-lived and therefore in huge pages.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;

use keyaki_primitives::AlignedMemory;

use super::sort::Record;

/// Zeroed records.
pub(crate) struct Buffer<R> {
    memory: AlignedMemory,
    count: usize,
    records: PhantomData<R>,
}

impl<R: Record> Buffer<R> {
    /// `count` records of zeros.
    pub fn new(count: usize) -> Self {
        let memory = AlignedMemory::zeroed(count * size_of::<R>());
        assert!(memory.start().cast::<R>().is_aligned(), "cache lines are aligned for records");
        Buffer { memory, count, records: PhantomData }
    }

    /// The words of all records, to be written by several threads.
    pub fn words(&mut self) -> &[AtomicU64] {
        let words = std::ptr::from_mut(self.memory.words_mut()) as *const [AtomicU64];
        // SAFETY: an `AtomicU64` has the layout of a `u64`, and the exclusive borrow excludes other accesses.
        unsafe { &*words }
    }
}

impl<R: Record> Deref for Buffer<R> {
    type Target = [R];

    #[inline]
    fn deref(&self) -> &[R] {
        // SAFETY: the memory has room for so many records, is aligned for them and initialised. Records are integers,
        // so that every bit pattern is one.
        unsafe { std::slice::from_raw_parts(self.memory.start().cast().as_ptr(), self.count) }
    }
}

impl<R: Record> DerefMut for Buffer<R> {
    fn deref_mut(&mut self) -> &mut [R] {
        // SAFETY: as in `deref`; `&mut self` excludes all other borrows.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().cast().as_ptr(), self.count) }
    }
}
