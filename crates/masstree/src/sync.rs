//! Atomics and back-off. With the feature `shuttle`, every access to an atomic of a node is a scheduling point, so that
//! tests drive the real code through many interleavings. Layouts are the same with and without the feature.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

pub(crate) use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
pub(crate) use std::sync::atomic::fence;

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Waits for another thread: spins at first, and yields the core from the 64th wait on, since that thread may not be
/// running.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    spins: u32,
}

impl Backoff {
    #[inline]
    pub fn wait(&mut self) {
        #[cfg(feature = "shuttle")]
        scheduled::wait();
        self.spins += 1;
        if self.spins < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

/// Number of stripes into which counters, free lists and retired memory are split, so that threads rarely share one.
pub(crate) const STRIPES: usize = 16;

/// The stripe of this thread.
#[inline]
pub(crate) fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    STRIPE.with(|stripe| {
        if stripe.get() == usize::MAX {
            stripe.set(NEXT.fetch_add(1, Relaxed) % STRIPES);
        }
        stripe.get()
    })
}

#[cfg(feature = "shuttle")]
mod scheduled {
    use std::sync::atomic::Ordering;

    /// A scheduling point: shuttle chooses the thread that continues. Outside of a shuttle run it does nothing.
    pub fn point() {
        if shuttle::current::get_current_task().is_some() {
            // An access to an atomic of shuttle's is a scheduling point. Unlike a yield, it does not change priorities.
            shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
        }
    }

    /// Another thread must run first.
    pub fn wait() {
        if shuttle::current::get_current_task().is_some() {
            shuttle::thread::yield_now();
        }
    }

    macro_rules! scheduled {
        ($name:ident, $value:ty) => {
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(std::sync::atomic::$name);

            #[allow(dead_code, reason = "not every width needs every operation")]
            impl $name {
                pub const fn new(value: $value) -> Self {
                    Self(std::sync::atomic::$name::new(value))
                }

                pub fn load(&self, ordering: Ordering) -> $value {
                    point();
                    self.0.load(ordering)
                }

                pub fn store(&self, value: $value, ordering: Ordering) {
                    point();
                    self.0.store(value, ordering);
                }

                pub fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    point();
                    self.0.compare_exchange(current, new, success, failure)
                }
            }
        };
    }

    scheduled!(AtomicU8, u8);
    scheduled!(AtomicU16, u16);
    scheduled!(AtomicU32, u32);
    scheduled!(AtomicU64, u64);
}
