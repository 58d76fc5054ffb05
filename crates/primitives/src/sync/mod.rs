//! Locks, atomics and threads. They are those of parking_lot and the standard library. With the feature `shuttle` they
//! are those of shuttle behind the same interface: every access is a scheduling point, so that tests drive the real
//! code through many interleavings. They then work inside of `explore` only. A lock of parking_lot that a thread of such
//! a test holds at a scheduling point stops the test.
//!
//! [`standard`] has locks with the interface of the standard library.
//!
//! Not modelled: memory orderings weaker than sequential consistency, spurious wake-ups, and time. A wait with a
//! time-out lets other threads run and then times out.

#[cfg(feature = "shuttle")]
mod explore;
#[cfg(feature = "shuttle")]
mod scheduled;

#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "shuttle")]
pub use explore::{Limits, explore};
#[cfg(feature = "shuttle")]
pub use scheduled::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};

/// Atomic integers.
pub mod atomic {
    pub use std::sync::atomic::{Ordering, fence};

    #[cfg(feature = "shuttle")]
    pub use shuttle::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize};
    #[cfg(not(feature = "shuttle"))]
    pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize};
}

/// Locks with the interface of the standard library.
pub mod standard {
    #[cfg(feature = "shuttle")]
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
    #[cfg(not(feature = "shuttle"))]
    pub use std::sync::{Condvar, Mutex, MutexGuard};
}

/// Threads.
pub mod thread {
    #[cfg(feature = "shuttle")]
    pub use super::scheduled::sleep;
    #[cfg(feature = "shuttle")]
    pub use shuttle::{
        thread::{Builder, JoinHandle, current, spawn, yield_now},
        thread_local,
    };
    #[cfg(not(feature = "shuttle"))]
    pub use std::{
        thread::{Builder, JoinHandle, current, sleep, spawn, yield_now},
        thread_local,
    };
}
