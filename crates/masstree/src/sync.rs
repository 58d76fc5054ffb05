//! The atomics that nodes are made of, behind a façade: with the feature `shuttle` every access is a scheduling point first,
//! so that the tests drive the real code through many interleavings. Layouts are the same either way.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

pub(crate) use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
pub(crate) use std::sync::atomic::fence;

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Spins a little, then lets other threads run: the thread that is waited for may not be on a core.
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

/// Counters and free lists are split into this many stripes, so that threads rarely share one.
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

    /// Lets shuttle's scheduler choose who goes on; outside of a shuttle run it does nothing.
    pub fn point() {
        if shuttle::current::get_current_task().is_some() {
            // Any access of shuttle's own is such a point, and unlike a yield it does not change priorities.
            shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
        }
    }

    /// Somebody else has to go on first.
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
