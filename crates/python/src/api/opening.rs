//! `keyaki.connect()`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use bytesize::ByteSize;
use keyaki::{Database, DiskCacheOptions, Durability, Options};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use super::Connection;
use crate::handle::{Handle, Modes};
use crate::progress::Reporter;
use crate::registry::{Chosen, Handles, Opened};
use crate::{failure, registry};

/// Limit of a cache of pages on disk.
const OBJECT_CACHE_BYTES: u64 = 10 << 30;
/// The name of a new temporary database.
const MEMORY: &str = ":memory:";

/// Opens a database directory, and creates it if it does not exist.
#[pyfunction]
#[pyo3(signature = (path=PathBuf::from(MEMORY), *, read_only=false, create=true, memory=None, threads=None, durability=None,
    autocommit=false, frames=true, progress=None, settings=None, object_store=None, object_cache=None, object_cache_size=None),
    text_signature = "(path=':memory:', *, read_only=False, create=True, memory=None, threads=None, durability=None, \
    autocommit=False, frames=True, progress=None, settings=None, object_store=None, object_cache=None, \
    object_cache_size=None)")]
#[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
pub fn connect(
    py: Python<'_>,
    path: PathBuf,
    read_only: bool,
    create: bool,
    memory: Option<&Bound<'_, PyAny>>,
    threads: Option<usize>,
    durability: Option<&str>,
    autocommit: bool,
    frames: bool,
    progress: Option<&Bound<'_, PyAny>>,
    settings: Option<&Bound<'_, PyDict>>,
    object_store: Option<HashMap<String, String>>,
    object_cache: Option<PathBuf>,
    object_cache_size: Option<&Bound<'_, PyAny>>,
) -> PyResult<Connection> {
    let durability = durability.map(|name| {
        let message = || format!("durability=\"{name}\" is not \"full\", \"normal\" or \"off\"");
        parse_durability(name).ok_or_else(|| failure::programming(py, &message()))
    });
    let chosen = Chosen { memory_bytes: bytes("memory", memory)?, threads, durability: durability.transpose()? };
    let cache_bytes = bytes("object_cache_size", object_cache_size)?;
    if cache_bytes.is_some() && object_cache.is_none() {
        return Err(failure::programming(py, "object_cache_size is the size of object_cache, which is missing"));
    }
    let cache = object_cache.map(|directory| DiskCacheOptions {
        directory,
        bytes_max: cache_bytes.map_or(OBJECT_CACHE_BYTES, |bytes| bytes as u64),
    });
    let object_store = object_store.into_iter().flatten().collect();
    let options = Options { must_exist: !create, read_only, object_store, object_cache: cache, ..Options::default() };
    let modes = Modes { autocommit, uses_variables: frames };
    let reporter = Reporter::of(progress, py)?;
    let opened = py.detach(|| open(&path, options, chosen, modes));
    let handle = opened.map_err(|refusal| match refusal {
        Refusal::Failed(error) => failure::raised(py, &error),
        Refusal::Different(message) => failure::programming(py, &message),
    })?;
    handle.progress().set_reporter(reporter);
    let connection = Connection::new(handle);
    for (name, value) in settings.into_iter().flatten() {
        connection.set(py, &setting(&name, &value)?)?;
    }
    Ok(connection)
}

/// Why a database was not opened.
pub enum Refusal {
    /// Opening it failed.
    Failed(keyaki::Error),
    /// It is open with other options.
    Different(String),
}

impl From<keyaki::Error> for Refusal {
    fn from(error: keyaki::Error) -> Refusal {
        Refusal::Failed(error)
    }
}

fn open(path: &Path, options: Options, chosen: Chosen, modes: Modes) -> Result<Arc<Handle>, Refusal> {
    // Held while the database is opened: another thread that opens it waits.
    let mut handles = registry::lock();
    let (database, opened) = open_database(&handles, path, options, chosen)?;
    let handle = Arc::new(Handle::new(database, opened, modes)?);
    handles.add(&handle);
    Ok(handle)
}

/// Opens a database, or shares one that this process has open. `chosen` replaces the same options in `options`.
///
/// # Errors
/// `Refusal`.
pub fn open_database(
    handles: &Handles,
    path: &Path,
    options: Options,
    chosen: Chosen,
) -> Result<(Database, Opened), Refusal> {
    let read_only = options.read_only;
    let options = Options {
        memory_bytes: chosen.memory_bytes,
        threads: chosen.threads,
        durability: chosen.durability.unwrap_or_default(),
        ..options
    };
    if path == Path::new(MEMORY) {
        if read_only {
            return Err(Refusal::Different(format!("a new database ({MEMORY}) cannot be opened with read_only=True")));
        }
        return Ok((Database::open_temporary(options)?, Opened { path: None, read_only: false, chosen }));
    }
    if let Some((opened, database)) = handles.found(path) {
        let shown = path.display();
        if opened.read_only != read_only {
            let as_opened = if opened.read_only { "True" } else { "False" };
            let message =
                format!("\"{shown}\" is already open in this process with read_only={as_opened}: use the same value");
            return Err(Refusal::Different(message));
        }
        if !opened.chosen.includes(&chosen) {
            let message = format!(
                "\"{shown}\" is already open in this process with other options: \
                 only its first connection can choose memory, threads and durability"
            );
            return Err(Refusal::Different(message));
        }
        return Ok((database, opened));
    }
    let database = Database::open(path, options)?;
    let canonical = std::fs::canonicalize(database.path()).ok();
    let opened = Opened { path: Some(canonical.unwrap_or_else(|| path.into())), read_only, chosen };
    Ok((database, opened))
}

/// A number of bytes, or a text such as `"512 MiB"`.
fn bytes(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    let Some(value) = value else { return Ok(None) };
    if let Ok(bytes) = value.extract::<usize>() {
        return Ok(Some(bytes));
    }
    let text = value.extract::<&str>().ok();
    let bytes = text.and_then(parse_memory).ok_or_else(|| {
        let shown = value.repr().map_or_else(|_| "?".into(), |text| text.to_string());
        let message = format!("{name}={shown} is neither a number of bytes nor a size as \"512 MiB\"");
        failure::programming(value.py(), &message)
    });
    bytes.map(Some)
}

/// The number of bytes of a text such as `"512 MiB"`.
pub fn parse_memory(text: &str) -> Option<usize> {
    usize::try_from(ByteSize::from_str(text).ok()?.as_u64()).ok()
}

/// A durability by its name.
pub fn parse_durability(name: &str) -> Option<Durability> {
    match name {
        "full" => Some(Durability::Full),
        "normal" => Some(Durability::Normal),
        "off" => Some(Durability::Off),
        _ => None,
    }
}

/// The statement that sets a setting.
fn setting(name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let name = name.extract::<&str>()?;
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || ['_', '.'].contains(&letter);
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(failure::programming(value.py(), &format!("\"{name}\" is not the name of a setting")));
    }
    let text = match value.cast::<PyBool>() {
        Ok(switch) => if switch.is_true() { "on" } else { "off" }.to_string(),
        Err(_) => value.str()?.to_str()?.to_string(),
    };
    Ok(format!("SET {name} = '{}'", text.replace('\'', "''")))
}
