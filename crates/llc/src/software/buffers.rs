//! A few buffers, used again and again.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Buffers for a scan: the one that was given back last is given out first, because it is still in the cache. More may be out
/// than the ring has; those beyond are made anew and dropped when they come back. Of any type: `Vec<u8>`, [`AlignedBytes`], one's own.
///
/// ```
/// use keyaki_llc::software::{AlignedBytes, ScanBuffers};
///
/// let buffers = ScanBuffers::within(1 << 20, 64 << 10, || AlignedBytes::new(64 << 10));
/// assert_eq!(buffers.capacity(), 8); // half of an L2 of 1 MiB
/// let mut buffer = buffers.take();
/// buffer[0] = 1; // read a part of a file, work on it …
/// drop(buffer); // and here it is again for the next part:
/// assert_eq!(buffers.take()[0], 1);
/// ```
pub struct ScanBuffers<B> {
    ring: Arc<Ring<B>>,
    make: Box<dyn Fn() -> B + Send + Sync>,
}

struct Ring<B> {
    free: Mutex<Vec<B>>,
    capacity: usize,
    /// Buffers that there are, in the ring or out.
    made: AtomicU64,
    taken: AtomicU64,
}

/// A buffer that goes back when dropped.
pub struct ScanBuffer<B> {
    buffer: Option<B>,
    ring: Arc<Ring<B>>,
}

impl<B> ScanBuffers<B> {
    /// A ring of `capacity` buffers (at least one), made when they are needed.
    pub fn new(capacity: usize, make: impl Fn() -> B + Send + Sync + 'static) -> Self {
        let capacity = capacity.max(1);
        let free = Mutex::new(Vec::with_capacity(capacity));
        let ring = Ring { free, capacity, made: AtomicU64::new(0), taken: AtomicU64::new(0) };
        ScanBuffers { ring: Arc::new(ring), make: Box::new(make) }
    }

    /// As many buffers of `buffer_bytes` as fit into half of an L2 of `l2_bytes`; the other half is for what is done with them.
    pub fn within(l2_bytes: u64, buffer_bytes: usize, make: impl Fn() -> B + Send + Sync + 'static) -> Self {
        let capacity = l2_bytes / 2 / (buffer_bytes.max(1) as u64);
        Self::new(usize::try_from(capacity).unwrap_or(usize::MAX).min(1 << 16), make)
    }

    /// A buffer, with whatever is in it.
    pub fn take(&self) -> ScanBuffer<B> {
        let free = self.ring.free.lock().pop();
        self.ring.taken.fetch_add(1, Ordering::Relaxed);
        let buffer = free.unwrap_or_else(|| {
            self.ring.made.fetch_add(1, Ordering::Relaxed);
            (self.make)()
        });
        ScanBuffer { buffer: Some(buffer), ring: self.ring.clone() }
    }

    pub fn capacity(&self) -> usize {
        self.ring.capacity
    }

    /// How often a buffer was taken, and how often one had to be made for that.
    pub fn counts(&self) -> (u64, u64) {
        (self.ring.taken.load(Ordering::Relaxed), self.ring.made.load(Ordering::Relaxed))
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
        let mut free = self.ring.free.lock();
        if free.len() < self.ring.capacity {
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

/// Zeroed bytes aligned to 4096, as direct I/O wants them.
pub struct AlignedBytes {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for AlignedBytes {}
// SAFETY: through `&self` it is only read.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    const ALIGNMENT: usize = 4096;

    /// # Panics
    /// If there cannot be so many. (If there are not, the process ends, as for any allocation.)
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), Self::ALIGNMENT);
        let Ok(layout) = layout else { panic!("a buffer of {len} bytes is impossible") };
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBytes { start, layout }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: so many initialised bytes are ours.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` excludes all others.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
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
    fn a_scan_uses_one_buffer_and_readers_ahead_a_few() {
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
        assert_eq!(buffers.counts(), (108, 6), "two were kept");
        drop((two, third));
    }

    #[test]
    fn the_last_one_back_is_the_first_one_out() {
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
