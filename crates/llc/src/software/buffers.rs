//! A pool of scan buffers that stay in the cache because they are reused.
//!
//! The pool is a stack: the buffer that was returned last is taken first, because it is most likely still in the cache.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A pool of buffers of any type, such as `Vec<u8>` or [`AlignedBytes`]. More buffers than its capacity may be in use;
/// the excess is dropped when it is returned.
///
/// ```
/// use keyaki_llc::software::{AlignedBytes, ScanBuffers};
///
/// let buffers = ScanBuffers::within(1 << 20, 64 << 10, || AlignedBytes::new(64 << 10));
/// assert_eq!(buffers.capacity(), 8); // half of an L2 of 1 MiB
/// let mut buffer = buffers.take();
/// buffer[0] = 1; // read a part of a file, process it …
/// drop(buffer); // the next part reuses the buffer:
/// assert_eq!(buffers.take()[0], 1);
/// ```
pub struct ScanBuffers<B> {
    pool: Arc<Pool<B>>,
    make: Box<dyn Fn() -> B + Send + Sync>,
}

struct Pool<B> {
    /// Buffers not in use; the last one was returned last.
    free: Mutex<Vec<B>>,
    capacity: usize,
    /// Buffers ever made.
    made: AtomicU64,
    /// Calls of [`ScanBuffers::take`].
    taken: AtomicU64,
}

/// A buffer in use; dropping it returns it to the pool.
pub struct ScanBuffer<B> {
    buffer: Option<B>,
    pool: Arc<Pool<B>>,
}

impl<B> ScanBuffers<B> {
    /// A pool of `capacity` buffers (at least one), made on demand by `make`.
    pub fn new(capacity: usize, make: impl Fn() -> B + Send + Sync + 'static) -> Self {
        let capacity = capacity.max(1);
        let free = Mutex::new(Vec::with_capacity(capacity));
        let pool = Pool { free, capacity, made: AtomicU64::new(0), taken: AtomicU64::new(0) };
        ScanBuffers { pool: Arc::new(pool), make: Box::new(make) }
    }

    /// A pool of as many buffers of `buffer_bytes` as fit into half of an L2 of `l2_bytes`. The other half is for their
    /// processing.
    pub fn within(l2_bytes: u64, buffer_bytes: usize, make: impl Fn() -> B + Send + Sync + 'static) -> Self {
        let capacity = l2_bytes / 2 / (buffer_bytes.max(1) as u64);
        Self::new(usize::try_from(capacity).unwrap_or(usize::MAX).min(1 << 16), make)
    }

    /// Takes a buffer. Its contents are those of its last use, or of `make`.
    pub fn take(&self) -> ScanBuffer<B> {
        let free = self.pool.free.lock().pop();
        self.pool.taken.fetch_add(1, Ordering::Relaxed);
        let buffer = free.unwrap_or_else(|| {
            self.pool.made.fetch_add(1, Ordering::Relaxed);
            (self.make)()
        });
        ScanBuffer { buffer: Some(buffer), pool: self.pool.clone() }
    }

    /// Maximum number of buffers kept.
    pub fn capacity(&self) -> usize {
        self.pool.capacity
    }

    /// Number of buffers taken, and number of buffers made for that.
    pub fn counts(&self) -> (u64, u64) {
        (self.pool.taken.load(Ordering::Relaxed), self.pool.made.load(Ordering::Relaxed))
    }
}

impl<B> Deref for ScanBuffer<B> {
    type Target = B;
    fn deref(&self) -> &B {
        match &self.buffer {
            Some(buffer) => buffer,
            None => unreachable!("a buffer leaves its guard only when that is dropped"),
        }
    }
}

impl<B> DerefMut for ScanBuffer<B> {
    fn deref_mut(&mut self) -> &mut B {
        match &mut self.buffer {
            Some(buffer) => buffer,
            None => unreachable!("a buffer leaves its guard only when that is dropped"),
        }
    }
}

impl<B> Drop for ScanBuffer<B> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let mut free = self.pool.free.lock();
        if free.len() < self.pool.capacity {
            free.push(buffer);
        }
    }
}

impl<B> fmt::Debug for ScanBuffers<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (taken, made) = self.counts();
        out.debug_struct("ScanBuffers")
            .field("capacity", &self.capacity())
            .field("taken", &taken)
            .field("made", &made)
            .finish()
    }
}

impl<B: fmt::Debug> fmt::Debug for ScanBuffer<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.buffer.fmt(out)
    }
}

/// Zeroed bytes at a multiple of 4096, as direct I/O requires.
pub struct AlignedBytes {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its memory.
unsafe impl Send for AlignedBytes {}
// SAFETY: a shared reference gives read access only.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    const ALIGNMENT: usize = 4096;

    /// `len` zero bytes (at least one). Without memory the process ends, as it does for the standard collections.
    ///
    /// # Panics
    /// If `len` exceeds `isize::MAX`.
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), Self::ALIGNMENT);
        let Ok(layout) = layout else { panic!("buffer of {len} bytes exceeds the address space") };
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBytes { start, layout }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `layout.size()` initialised bytes that this value owns.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`; no borrow of it is left.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "AlignedBytes({})", self.layout.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_up_to_the_capacity() {
        let buffers = ScanBuffers::new(2, || AlignedBytes::new(8192));
        for _ in 0..100 {
            assert_eq!(buffers.take().len(), 8192);
        }
        assert_eq!(buffers.counts(), (100, 1));
        let out: Vec<_> = (0..5).map(|_| buffers.take()).collect();
        assert!(out.iter().all(|buffer| buffer.as_ptr().addr().is_multiple_of(4096)));
        drop(out);
        assert_eq!(buffers.counts(), (105, 5));
        let two = (buffers.take(), buffers.take());
        let third = buffers.take();
        assert_eq!(buffers.counts(), (108, 6), "the pool kept two");
        drop((two, third));
    }

    #[test]
    fn the_last_returned_buffer_is_taken_first() {
        let next = std::sync::atomic::AtomicU64::new(0);
        let buffers = ScanBuffers::new(4, move || next.fetch_add(1, Ordering::Relaxed));
        let (first, second) = (buffers.take(), buffers.take());
        drop(first);
        drop(second);
        assert_eq!(*buffers.take(), 1);
        assert_eq!(ScanBuffers::within(100, 1 << 20, || 0).capacity(), 1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| drop(buffers.take())));
            }
        });
        assert!(buffers.counts().1 <= 4);
    }
}
