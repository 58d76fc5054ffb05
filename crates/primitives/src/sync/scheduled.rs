//! The locks of shuttle with the interface of parking_lot: no poisoning, and a guard that a wait borrows.

use std::fmt::{Debug, Formatter, Result};
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Lets other threads run.
pub fn sleep(_duration: Duration) {
    shuttle::thread::yield_now();
}

/// A mutual exclusion lock.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

/// The lock of a [`Mutex`], released on drop.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// `None` during a wait and during [`MutexGuard::unlocked`].
    locked: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, locked: Some(self.lock_inner()) }
    }

    /// The lock, if no thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let locked = match self.0.try_lock() {
            Ok(locked) => locked,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, locked: Some(locked) })
    }

    /// The value, which nothing else uses.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_inner(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Calls `f` without the lock.
    pub fn unlocked<U>(guard: &mut Self, f: impl FnOnce() -> U) -> U {
        /// Takes the lock again, also after a panic.
        struct Relock<'g, 'a, T: ?Sized>(&'g mut MutexGuard<'a, T>);
        impl<T: ?Sized> Drop for Relock<'_, '_, T> {
            fn drop(&mut self) {
                self.0.locked = Some(self.0.mutex.lock_inner());
            }
        }
        guard.locked = None;
        let _relock = Relock(guard);
        f()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(locked) = &self.locked else { unreachable!("the guard is borrowed while it is unlocked") };
        locked
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let Some(locked) = &mut self.locked else { unreachable!("the guard is borrowed while it is unlocked") };
        locked
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// The end of a wait with a time-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(());

impl WaitTimeoutResult {
    /// True if the wait timed out. Always true: a time-out may precede every notification.
    pub fn timed_out(&self) -> bool {
        true
    }
}

impl Condvar {
    /// A condition variable without waiting threads.
    pub const fn new() -> Self {
        Condvar(shuttle::sync::Condvar::new())
    }

    /// Releases the lock until a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let Some(locked) = guard.locked.take() else { unreachable!("the guard is borrowed while it is unlocked") };
        guard.locked = Some(self.0.wait(locked).unwrap_or_else(PoisonError::into_inner));
    }

    /// Releases the lock, and lets other threads run.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) -> WaitTimeoutResult {
        MutexGuard::unlocked(guard, shuttle::thread::yield_now);
        WaitTimeoutResult(())
    }

    /// Releases the lock, and lets other threads run.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, deadline.saturating_duration_since(Instant::now()))
    }

    /// Ends the wait of one thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Ends the waits of all threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A reader-writer lock.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(shuttle::sync::RwLock<T>);

/// The shared lock of an [`RwLock`], released on drop.
pub type RwLockReadGuard<'a, T> = shuttle::sync::RwLockReadGuard<'a, T>;

/// The exclusive lock of an [`RwLock`], released on drop.
pub type RwLockWriteGuard<'a, T> = shuttle::sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        RwLock(shuttle::sync::RwLock::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for the shared lock.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the exclusive lock.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, which nothing else uses.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + Debug> Debug for Mutex<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Debug::fmt(&self.0, f)
    }
}

impl<T: ?Sized + Debug> Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Debug::fmt(&self.locked, f)
    }
}

impl<T: ?Sized + Debug> Debug for RwLock<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Debug::fmt(&self.0, f)
    }
}
