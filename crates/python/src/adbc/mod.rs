//! The ADBC driver: Keyaki behind Arrow's database interface, version 1.1.
//!
//! A driver manager loads the extension module as a library and calls `KeyakiDriverInit`. The crate `adbc_ffi` translates between
//! the functions in C and the traits that this module implements.
//!
//! Databases that this process has opened, by either interface, are shared.

mod connection;
mod objects;
mod session;
mod statement;

use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::Arc;

use adbc_core::error::{Error, Result, Status};
use adbc_core::options::{OptionConnection, OptionDatabase, OptionValue};
use adbc_core::{Driver, Optionable};
use arrow::array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use keyaki::{Database, Options};
use parking_lot::Mutex;

use self::connection::AdbcConnection;
use crate::api::{Refusal, open_database, parse_durability, parse_memory};
use crate::process::Process;
use crate::registry::{self, Chosen, Open, Opened};

/// Prefix of the options that only this driver has.
const PREFIX: &str = "adbc.keyaki.";

/// The driver.
#[derive(Debug, Default)]
pub struct AdbcDriver;

adbc_ffi::export_driver!(KeyakiDriverInit, AdbcDriver);

impl Driver for AdbcDriver {
    type DatabaseType = AdbcDatabase;

    fn new_database(&mut self) -> Result<AdbcDatabase> {
        self.new_database_with_opts([])
    }

    fn new_database_with_opts(
        &mut self,
        opts: impl IntoIterator<Item = (OptionDatabase, OptionValue)>,
    ) -> Result<AdbcDatabase> {
        let (mut path, mut options) = (None, Options::default());
        let mut chosen = Chosen::default();
        for (key, value) in opts {
            let name = key.as_ref();
            match (&key, name.strip_prefix(PREFIX)) {
                (OptionDatabase::Uri, _) => path = Some(path_of(&text(name, &value)?)),
                (_, Some("path")) => path = Some(text(name, &value)?.into()),
                (_, Some("read_only")) => options.read_only = bool::try_from(&value)?,
                (_, Some("create")) => options.must_exist = !bool::try_from(&value)?,
                (_, Some("memory")) => {
                    let memory = text(name, &value)?;
                    chosen.memory_bytes = Some(parse_memory(&memory).ok_or_else(|| invalid(name, &memory))?);
                }
                (_, Some("threads")) => {
                    let threads = text(name, &value)?;
                    let parsed = threads.parse().ok().filter(|threads| *threads > 0);
                    chosen.threads = Some(parsed.ok_or_else(|| invalid(name, &threads))?);
                }
                (_, Some("durability")) => {
                    let durability = text(name, &value)?;
                    let parsed = parse_durability(&durability);
                    chosen.durability = Some(parsed.ok_or_else(|| invalid(name, &durability))?);
                }
                _ => return Err(unknown(name)),
            }
        }
        let path = path.filter(|path: &PathBuf| !path.as_os_str().is_empty()).unwrap_or_else(|| ":memory:".into());
        let mut handles = registry::lock();
        let (database, opened) = open_database(&handles, &path, options, chosen).map_err(refused)?;
        let shared = Arc::new(Shared { database: Mutex::new(Some(database)), opened, process: Process::current() });
        handles.add(&shared);
        Ok(AdbcDatabase { shared })
    }
}

/// The directory of a URI: `keyaki:///path`, `file:///path`, a path, or nothing for a temporary database.
fn path_of(uri: &str) -> PathBuf {
    let path = uri.strip_prefix("keyaki:").or_else(|| uri.strip_prefix("file:")).unwrap_or(uri);
    path.strip_prefix("//").unwrap_or(path).into()
}

/// A database.
#[derive(Debug)]
pub struct AdbcDatabase {
    shared: Arc<Shared>,
}

/// A database that is open in this process.
#[derive(Debug)]
struct Shared {
    /// `None` after the end of the interpreter.
    database: Mutex<Option<Database>>,
    opened: Opened,
    process: Process,
}

impl Open for Shared {
    fn opened(&self) -> &Opened {
        &self.opened
    }

    fn database(&self) -> Option<Database> {
        self.database.lock().clone()
    }

    fn is_of_this_process(&self) -> bool {
        self.process == Process::current()
    }

    fn close(&self, py: pyo3::Python<'_>) -> pyo3::PyResult<()> {
        py.detach(|| drop(self.database.lock().take()));
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            std::mem::forget(self.database.get_mut().take());
        }
    }
}

impl adbc_core::Database for AdbcDatabase {
    type ConnectionType = AdbcConnection;

    fn new_connection(&self) -> Result<AdbcConnection> {
        self.new_connection_with_opts([])
    }

    fn new_connection_with_opts(
        &self,
        opts: impl IntoIterator<Item = (OptionConnection, OptionValue)>,
    ) -> Result<AdbcConnection> {
        if !self.shared.is_of_this_process() {
            return Err(state("the database belongs to the parent of this forked process"));
        }
        let database = self.shared.database().ok_or_else(|| state("the database is closed"))?;
        let mut connection = AdbcConnection::new(database.connect().map_err(failed)?, self.shared.opened.clone());
        registry::lock().add(connection.session());
        for (key, value) in opts {
            connection.set_option(key, value)?;
        }
        Ok(connection)
    }
}

impl Optionable for AdbcDatabase {
    type Option = OptionDatabase;

    fn set_option(&mut self, key: OptionDatabase, _value: OptionValue) -> Result<()> {
        Err(state(&format!("option {} is set before the database is opened", key.as_ref())))
    }

    fn get_option_string(&self, key: OptionDatabase) -> Result<String> {
        let opened = &self.shared.opened;
        match (&key, key.as_ref().strip_prefix(PREFIX)) {
            (OptionDatabase::Uri, _) | (_, Some("path")) => {
                Ok(opened.path.as_ref().map_or_else(|| ":memory:".into(), |path| path.display().to_string()))
            }
            (_, Some("read_only")) => Ok(opened.read_only.to_string()),
            _ => Err(unknown(key.as_ref())),
        }
    }

    fn get_option_bytes(&self, key: OptionDatabase) -> Result<Vec<u8>> {
        Err(unknown(key.as_ref()))
    }

    fn get_option_int(&self, key: OptionDatabase) -> Result<i64> {
        Err(unknown(key.as_ref()))
    }

    fn get_option_double(&self, key: OptionDatabase) -> Result<f64> {
        Err(unknown(key.as_ref()))
    }
}

/// Rows that a driver returns.
type Reader = Box<dyn RecordBatchReader + Send + 'static>;

/// The rows of one batch.
fn reader(schema: SchemaRef, batches: Vec<RecordBatch>) -> Reader {
    Box::new(RecordBatchIterator::new(batches.into_iter().map(Ok), schema))
}

fn text(name: &str, value: &OptionValue) -> Result<String> {
    match value {
        OptionValue::String(text) => Ok(text.clone()),
        OptionValue::Int(number) => Ok(number.to_string()),
        _ => Err(Error::with_message_and_status(format!("option {name} needs a text"), Status::InvalidArguments)),
    }
}

fn unknown(name: &str) -> Error {
    Error::with_message_and_status(format!("unknown option \"{name}\""), Status::NotImplemented)
}

fn invalid(name: &str, value: &str) -> Error {
    Error::with_message_and_status(format!("invalid value for option {name}: \"{value}\""), Status::InvalidArguments)
}

/// A call that does not fit the state of its object.
fn state(problem: &str) -> Error {
    Error::with_message_and_status(problem, Status::InvalidState)
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Failed(error) => failed(error),
        Refusal::Different(message) => Error::with_message_and_status(message, Status::InvalidArguments),
    }
}

/// An error of the database, with its SQLSTATE.
fn failed(error: keyaki::Error) -> Error {
    let sqlstate = error.sqlstate();
    let code = sqlstate.code();
    let status = match (&code[..2], code) {
        (_, "57014") => Status::Cancelled,
        (_, "42P01" | "42703" | "42704" | "42883" | "3F000" | "3D000") => Status::NotFound,
        (_, "42P07" | "42710" | "42P06") => Status::AlreadyExists,
        (_, "42501") => Status::Unauthorized,
        ("0A", _) => Status::NotImplemented,
        ("21" | "22", _) => Status::InvalidData,
        ("23" | "44", _) => Status::Integrity,
        ("25" | "55" | "2D", _) => Status::InvalidState,
        ("58" | "53", _) => Status::IO,
        ("42" | "07" | "26", _) => Status::InvalidArguments,
        ("XX", _) => Status::Internal,
        _ => Status::Unknown,
    };
    let mut state = [0; 5];
    for (to, from) in state.iter_mut().zip(code.bytes()) {
        *to = from as c_char;
    }
    // Texts in C end at the first zero byte.
    let message = error.to_string().replace('\0', "\u{fffd}");
    Error { sqlstate: state, ..Error::with_message_and_status(message, status) }
}
