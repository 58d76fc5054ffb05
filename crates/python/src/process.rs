//! Forks and the end of the process.
//!
//! A forked child has the memory of its parent, but none of its threads: a connection would wait for them forever. Python calls
//! [`after_fork`] in each child. Connections compare the number of forks with that at their creation, refuse to work in a child,
//! and are never closed there.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pyo3::{Python, ffi, pyfunction};

/// Number of forks between the start of the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The interpreter ends.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Notes the end of the interpreter.
pub fn end() {
    IS_ENDING.store(true, Ordering::Release);
}

/// True at the end of the interpreter: no statement begins any more.
pub fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Acquire)
}

/// Number of forks between the start of the first process and this one.
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Notes that this process is a forked child.
#[pyfunction]
#[pyo3(name = "_after_fork")]
pub fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A process, to be compared with the running one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This process.
    pub fn current() -> Process {
        Process(FORKS.load(Ordering::Relaxed))
    }
}

/// Runs `work` with the GIL, in a call from another library. `None` at the end of the interpreter.
///
/// That library may have released the GIL although this thread came from a function of this module, which
/// [`Python::try_attach`] alone would take for held.
pub fn attached<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    /// Gives the GIL back, also after a panic.
    struct Held(ffi::PyGILState_STATE);

    impl Drop for Held {
        fn drop(&mut self) {
            // SAFETY: the thread has the GIL since `PyGILState_Ensure` has returned this state.
            unsafe { ffi::PyGILState_Release(self.0) }
        }
    }

    // SAFETY: it can be called at any time.
    if is_ending() || unsafe { ffi::Py_IsInitialized() } == 0 {
        return None;
    }
    // SAFETY: the interpreter is initialized, and `end` comes before its finalization.
    let _held = Held(unsafe { ffi::PyGILState_Ensure() });
    Python::try_attach(work)
}

/// A number that differs between threads that run.
pub fn thread_mark() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}
