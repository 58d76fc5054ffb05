//! The connections that are open in this process.
//!
//! A database can be open once in a process: further connections to the same directory share it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use keyaki::{Database, Durability};
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;

use crate::process;

/// Options that only the first connection to a database can choose; `None` for defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Memory of the database in bytes.
    pub memory_bytes: Option<usize>,
    /// Number of worker threads.
    pub threads: Option<usize>,
    /// When commits wait for the disk.
    pub durability: Option<Durability>,
}

impl Chosen {
    /// True if a database with these options has all options that a later connection specifies.
    pub fn includes(&self, later: &Chosen) -> bool {
        fn agree<T: PartialEq>(first: Option<T>, later: Option<T>) -> bool {
            later.is_none() || later == first
        }
        agree(self.memory_bytes, later.memory_bytes)
            && agree(self.threads, later.threads)
            && agree(self.durability, later.durability)
    }
}

/// The options with which a database was opened. Later connections of the process to it must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The canonical path; `None` for a temporary database.
    pub path: Option<PathBuf>,
    /// True if it was opened for reading only.
    pub read_only: bool,
    /// The options of the first connection.
    pub chosen: Chosen,
}

/// An object that keeps a database open.
pub trait Open: Send + Sync {
    /// How the database was opened.
    fn opened(&self) -> &Opened;
    /// The database, unless it is closed.
    fn database(&self) -> Option<Database>;
    /// False in a forked child.
    fn is_of_this_process(&self) -> bool;
    /// Closes the database, at the end of the interpreter.
    ///
    /// # Errors
    /// Exceptions.
    fn close(&self, py: Python<'_>) -> PyResult<()>;
}

/// Each generation of forked processes has a list of its own: another thread of the parent may hold the lock of the parent's
/// list at the fork.
static HANDLES: [Mutex<Handles>; 64] = [const { Mutex::new(Handles { list: Vec::new() }) }; 64];

/// The handles that may be open.
pub struct Handles {
    list: Vec<Weak<dyn Open>>,
}

/// The handles of this process. Must not be called with the GIL held: a database may be opened under the lock.
pub fn lock() -> MutexGuard<'static, Handles> {
    HANDLES[process::forks() as usize % HANDLES.len()].lock()
}

impl Handles {
    /// The open database with a path, and how it was opened.
    pub fn found(&self, path: &Path) -> Option<(Opened, Database)> {
        let path = std::fs::canonicalize(path).ok()?;
        let handles = self.list.iter().filter_map(Weak::upgrade);
        let mut open =
            handles.filter(|handle| handle.is_of_this_process() && handle.opened().path.as_ref() == Some(&path));
        open.find_map(|handle| Some((handle.opened().clone(), handle.database()?)))
    }

    /// Adds a new handle.
    pub fn add<T: Open + 'static>(&mut self, handle: &Arc<T>) {
        let handle: Arc<dyn Open> = handle.clone();
        self.list.retain(|other| other.strong_count() > 0);
        self.list.push(Arc::downgrade(&handle));
    }
}

/// Closes all connections, at the end of the interpreter. Running statements are cancelled.
#[pyfunction]
#[pyo3(name = "_close_all")]
pub fn close_all(py: Python<'_>) -> PyResult<()> {
    process::end();
    let handles: Vec<Arc<dyn Open>> = py.detach(|| lock().list.iter().filter_map(Weak::upgrade).collect());
    let handles = handles.iter().filter(|handle| handle.is_of_this_process());
    // All are closed, also after an error.
    let mut ended = Ok(());
    for handle in handles {
        ended = ended.and(handle.close(py));
    }
    ended
}
