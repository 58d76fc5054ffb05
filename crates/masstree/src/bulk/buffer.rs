//! Memory for records: large and short-lived, so from huge pages.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::sort::Record;
use crate::arena::Chunk;

pub(crate) struct Buffer<R> {
    chunk: Chunk,
    count: usize,
    records: PhantomData<R>,
}

// SAFETY: a buffer owns its chunk, whose content only it hands out; records are plain numbers.
unsafe impl<R: Record> Sync for Buffer<R> {}

impl<R: Record> Buffer<R> {
    /// So many zeros.
    pub fn new(count: usize) -> Self {
        Buffer { chunk: Chunk::new((count * size_of::<R>()).max(1)), count, records: PhantomData }
    }
}

impl<R: Record> Deref for Buffer<R> {
    type Target = [R];

    #[inline]
    fn deref(&self) -> &[R] {
        // SAFETY: the chunk has room for so many records, is aligned for them, and is zeroed: records are numbers, of
        // which all bit patterns are values.
        unsafe { std::slice::from_raw_parts(self.chunk.start.cast().as_ptr(), self.count) }
    }
}

impl<R: Record> DerefMut for Buffer<R> {
    fn deref_mut(&mut self) -> &mut [R] {
        // SAFETY: as above; the access is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.start.cast().as_ptr(), self.count) }
    }
}
