//! Forks and the end of the process.
//!
//! A forked child has the memory of its parent, but none of its threads: a connection would wait for them forever. Python calls
//! [`after_fork`] in each child. Connections compare the number of forks with that at their creation, refuse to work in a child,
//! and are never closed there.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pyo3::pyfunction;

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
