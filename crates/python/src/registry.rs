//! The connections that are open in this process.
//!
//! A database can be open once in a process: further connections to the same directory share it.

use std::path::Path;
use std::sync::{Arc, Weak};

use keyaki::Database;
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;

use crate::handle::{Handle, Opened};

static HANDLES: Mutex<Handles> = Mutex::new(Handles { list: Vec::new() });

/// The handles that may be open.
#[derive(Debug)]
pub struct Handles {
    list: Vec<Weak<Handle>>,
}

/// The handles of this process. Must not be called with the GIL held: a database may be opened under the lock.
pub fn lock() -> MutexGuard<'static, Handles> {
    HANDLES.lock()
}

impl Handles {
    /// The open database with a path, and how it was opened.
    pub fn found(&self, path: &Path) -> Option<(Opened, Database)> {
        let path = std::fs::canonicalize(path).ok()?;
        let handles = self.list.iter().filter_map(Weak::upgrade);
        let mut open =
            handles.filter(|handle| handle.is_of_this_process() && handle.opened.path.as_ref() == Some(&path));
        open.find_map(|handle| Some((handle.opened.clone(), handle.database()?)))
    }

    /// Adds a new handle.
    pub fn add(&mut self, handle: Handle) -> Arc<Handle> {
        let handle = Arc::new(handle);
        self.list.retain(|other| other.strong_count() > 0);
        self.list.push(Arc::downgrade(&handle));
        handle
    }
}

/// Closes all connections, at the end of the interpreter. Running statements are cancelled.
#[pyfunction]
#[pyo3(name = "_close_all")]
pub fn close_all(py: Python<'_>) -> PyResult<()> {
    let handles: Vec<Arc<Handle>> = py.detach(|| lock().list.iter().filter_map(Weak::upgrade).collect());
    for handle in handles.iter().filter(|handle| handle.is_of_this_process()) {
        handle.interrupt();
        handle.close(py)?;
    }
    Ok(())
}
