//! Frames as tables: objects that were registered under a name, and variables of the caller.
//!
//! A registered object is converted once. A variable is looked up when a statement uses a name that no relation has: among the
//! local variables of the function that called, then among those of its module. It is converted once for each call, because
//! a statement may be planned several times, and a stream can be read once.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyaki::{Error, ProgramTable};
use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};

use crate::failure;
use crate::source::Source;

/// The frames of a connection.
#[derive(Default)]
pub struct Frames {
    registered: Mutex<HashMap<String, ProgramTable>>,
    /// The variables that the current call has used.
    variables: Mutex<HashMap<String, ProgramTable>>,
    /// Calls that keep `variables`.
    keepers: AtomicUsize,
    /// The exception of a conversion.
    raised: Mutex<Option<PyErr>>,
}

/// See [`Frames::kept`].
#[derive(Debug)]
pub struct Kept<'a>(&'a Frames);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.keepers.fetch_sub(1, Ordering::Relaxed);
        self.0.end_call();
    }
}

impl Frames {
    /// Registers the rows of an object under a name, in place of an earlier one.
    ///
    /// # Errors
    /// `ProgrammingError` for an object without rows; errors of the object.
    pub fn register(&self, name: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = object.py();
        // Later changes of the object have no effect.
        let kept = py.import(intern!(py, "keyaki._frames"))?.call_method1(intern!(py, "unshared"), (object,))?;
        let Some(table) = table(&kept)? else {
            let class = object.get_type().name()?;
            let message = format!("an object of type {class} has no rows to register: pass an Arrow object or a frame");
            return Err(failure::programming(py, &message));
        };
        py.detach(|| {
            let replaced = self.registered.lock().insert(name.into(), table);
            // The end of foreign data may run any code: no lock is held.
            drop(replaced);
        });
        Ok(())
    }

    /// Removes a registered object. Returns false if there is none with the name.
    pub fn unregister(&self, py: Python<'_>, name: &str) -> bool {
        py.detach(|| {
            let removed = self.registered.lock().remove(name);
            removed.is_some()
        })
    }

    /// Removes all registered objects.
    pub fn clear(&self) {
        let removed = std::mem::take(&mut *self.registered.lock());
        drop(removed);
    }

    /// Keeps the variables that were used until the guard is dropped: a call that executes several statements converts each
    /// variable once.
    pub fn kept(&self) -> Kept<'_> {
        self.keepers.fetch_add(1, Ordering::Relaxed);
        Kept(self)
    }

    /// Forgets the variables that the call has used.
    pub fn end_call(&self) {
        if self.keepers.load(Ordering::Relaxed) > 0 {
            return;
        }
        let mut variables = self.variables.lock();
        if !variables.is_empty() {
            let used = std::mem::take(&mut *variables);
            drop(variables);
            drop(used);
        }
    }

    /// The exception that the conversion of an object has raised during the call.
    pub fn take_raised(&self) -> Option<PyErr> {
        self.raised.lock().take()
    }

    /// The table with a name; `with_variables`: also variables of the caller. Runs on the thread of the call.
    ///
    /// # Errors
    /// `Cancelled` for an object that cannot be converted, and for all names after it until the call ends: a statement whose
    /// description has failed must not be executed with the rest of a stream.
    pub fn find(&self, name: &str, with_variables: bool) -> keyaki::Result<Option<ProgramTable>> {
        if self.raised.lock().is_some() {
            return Err(Error::Cancelled);
        }
        if let Some(table) = self.registered(name) {
            return Ok(Some(table));
        }
        if !with_variables {
            return Ok(None);
        }
        if let Some(table) = self.variables.lock().get(name) {
            return Ok(Some(table.clone()));
        }
        let found = Python::try_attach(|py| match variable(py, name) {
            Some(object) => table(&object),
            None => Ok(None),
        });
        match found.unwrap_or(Ok(None)) {
            Ok(Some(table)) => {
                self.variables.lock().insert(name.into(), table.clone());
                Ok(Some(table))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                *self.raised.lock() = Some(error);
                Err(Error::Cancelled)
            }
        }
    }

    /// The registered object with a name, or the only one that differs in case.
    fn registered(&self, name: &str) -> Option<ProgramTable> {
        let registered = self.registered.lock();
        if registered.is_empty() {
            return None;
        }
        let mut similar = registered.keys().filter(|key| key.to_lowercase() == name);
        let key = match (similar.next(), similar.next()) {
            _ if registered.contains_key(name) => name,
            (Some(only), None) => only,
            _ => return None,
        };
        registered.get(key).cloned()
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").finish_non_exhaustive()
    }
}

/// All rows of an object; `None` for an object without rows.
fn table(object: &Bound<'_, PyAny>) -> PyResult<Option<ProgramTable>> {
    let py = object.py();
    let Some(source) = Source::of(object)? else { return Ok(None) };
    let schema = source.schema();
    // The reader may be code that needs the GIL on another thread.
    let batches = py.detach(|| source.collect::<Result<Vec<_>, _>>());
    let batches = batches.map_err(|error| failure::data(py, &error.to_string(), "22000"))?;
    let table = ProgramTable::new(schema, batches).map_err(|error| failure::raised(py, &error))?;
    Ok(Some(table))
}

/// The value of a variable that the caller sees. Functions of this package are not the caller.
fn variable<'py>(py: Python<'py>, name: &str) -> Option<Bound<'py, PyAny>> {
    let mut frame = py.import(intern!(py, "sys")).ok()?.getattr(intern!(py, "_getframe")).ok()?.call0().ok()?;
    let (locals, globals) = loop {
        let globals = frame.getattr(intern!(py, "f_globals")).ok()?.cast_into::<PyDict>().ok()?;
        let module = globals.get_item(intern!(py, "__name__")).ok()?;
        let module = module.and_then(|module| module.extract::<String>().ok());
        let is_own = module.is_some_and(|module| module == "keyaki" || module.starts_with("keyaki."));
        if !is_own {
            break (frame.getattr(intern!(py, "f_locals")).ok()?, globals);
        }
        frame = frame.getattr(intern!(py, "f_back")).ok()?;
        if frame.is_none() {
            return None;
        }
    };
    let locals = locals.cast_into::<PyMapping>().ok()?;
    // Names in SQL are in lower case unless they are quoted.
    in_scope(&locals, name).or_else(|| in_scope(globals.as_mapping(), name))
}

/// The variable with a name, or the only one that differs in case.
fn in_scope<'py>(scope: &Bound<'py, PyMapping>, name: &str) -> Option<Bound<'py, PyAny>> {
    if let Ok(value) = scope.get_item(name) {
        return Some(value);
    }
    let mut similar = scope.keys().ok()?.into_iter().filter_map(|key| {
        let key: String = key.extract().ok()?;
        (key.to_lowercase() == name).then_some(key)
    });
    match (similar.next(), similar.next()) {
        (Some(only), None) => scope.get_item(only).ok(),
        _ => None,
    }
}
