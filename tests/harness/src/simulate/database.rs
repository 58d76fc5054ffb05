//! A database on a simulated device: options from a seed, statements, results, and the classes of errors.
//!
//! One thread runs all statements. The runtime, the executor and the planner have one thread each. Small sizes cause
//! frequent flushes, merges and evictions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::arrow::util::display::array_value_to_string;
use keyaki::{Database, Durability, ExecutorOptions, MergePolicy, Options, Outcome, Session, StoreOptions};
use keyaki_device::simulated::Simulated;
use keyaki_device::{Device, OpenMode};
use keyaki_primitives::Random;
use tokio::runtime::Runtime;

use super::state::{Answer, State, Value};
use super::steps::index_name;

/// The directory of the database on the device.
pub const DIRECTORY: &str = "/simulated";
/// The smallest memory that a database accepts.
const MEMORY_BYTES: usize = 16 << 20;
/// Budget of the buffers that the changes during a transaction do not exceed.
const AMPLE_BUFFER_BYTES: usize = 4 << 20;
/// The CHECK constraint of a table, among its columns.
const CONSTRAINT: &str = "CHECK";
/// Longest wait for the background thread of the store after a step.
const SETTLE: Duration = Duration::from_millis(50);
/// Attempts to open a database whose last tasks may not have ended, every 5 ms.
const OPENINGS: usize = 8000;

/// An error of the database: its SQLSTATE and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub code: &'static str,
    pub text: String,
}

impl From<keyaki::Error> for Failed {
    fn from(error: keyaki::Error) -> Self {
        Failed { code: error.sqlstate().code(), text: error.to_string() }
    }
}

impl Failed {
    /// The disk is full: the statement has changed nothing.
    pub fn is_disk_full(&self) -> bool {
        self.code == "53100"
    }

    /// The device has failed, or a file is damaged, or the store has stopped after such an error.
    pub fn is_device(&self) -> bool {
        matches!(self.code, "58030" | "XX001" | "57P01")
    }

    /// A file is damaged, missing, or not recognized as a database.
    pub fn is_damage(&self) -> bool {
        self.is_device() || matches!(self.code, "3D000" | "0A000" | "58P01" | "58P02" | "55000" | "54000")
    }
}

pub type Result<T> = std::result::Result<T, Failed>;

/// The sizes of a database.
#[derive(Debug, Clone)]
pub struct Sizes(StoreOptions);

impl Sizes {
    pub fn new(random: &mut Random) -> Self {
        Sizes(StoreOptions {
            durability: Durability::Full,
            page_bytes: *random.pick(&[4096, 4096, 8192]),
            buffer_bytes: *random.pick(&[6_000, 20_000, 60_000, 400_000, AMPLE_BUFFER_BYTES]),
            cache_bytes: *random.pick(&[60_000, 200_000, 1_000_000]),
            leaf_bytes: *random.pick(&[8192, 16_384, 65_536]),
            fan_out: *random.pick(&[2, 3, 5, 8]),
            node_buffer_bytes: *random.pick(&[10_000, 30_000, 100_000]),
            runs_per_node: *random.pick(&[2, 3, 6]),
            merge_policy: *random.pick(&[MergePolicy::Tiered, MergePolicy::Tiered, MergePolicy::Leveled]),
            checkpoint_log_bytes: *random.pick(&[30_000, 200_000, 4_000_000]),
            ..StoreOptions::default()
        })
    }

    /// True if the buffers have space for all changes during a transaction.
    pub fn has_ample_buffers(&self) -> bool {
        self.0.buffer_bytes >= AMPLE_BUFFER_BYTES
    }

    fn options(&self, simulated: &Simulated, read_only: bool) -> Options {
        let executor =
            ExecutorOptions { workers: 1, queue_depth: 8, tasks_in_flight: 16, ..ExecutorOptions::default() };
        Options {
            memory_bytes: Some(MEMORY_BYTES),
            threads: Some(1),
            durability: Durability::Full,
            device: Some(simulated.device()),
            store: Some(self.0.clone()),
            executor: Some(executor),
            read_only,
            ..Options::default()
        }
    }

    /// Opens a database for reading, beside the one that writes it.
    pub fn open_read_only(&self, simulated: &Simulated, directory: &str, runtime: &Runtime) -> Result<Database> {
        let _context = runtime.enter();
        Database::open(Path::new(directory), self.options(simulated, true)).map_err(Failed::from)
    }

    /// Opens a database; waits for the tasks of an earlier handle, if there was one.
    pub fn open(&self, simulated: &Simulated, directory: &str, runtime: &Runtime) -> Result<Database> {
        let mut attempts = 0;
        loop {
            let opened = {
                let _context = runtime.enter();
                Database::open(Path::new(directory), self.options(simulated, false))
            };
            match opened {
                Err(keyaki::Error::Locked { .. }) if attempts < OPENINGS => {
                    attempts += 1;
                    runtime.block_on(tokio::time::sleep(Duration::from_millis(5)));
                }
                other => return other.map_err(Failed::from),
            }
        }
    }
}

/// Runs one statement and collects its result.
pub fn run(runtime: &Runtime, session: &Session, sql: &str) -> Result<Answer> {
    runtime.block_on(async {
        match session.query(sql).await? {
            Outcome::Done { rows: Some(rows), .. } => Ok(Answer::Count(rows)),
            Outcome::Done { rows: None, .. } => Ok(Answer::Done),
            outcome => Ok(Answer::Rows { rows: values(&outcome.collect().await?), ordered: true }),
        }
    })
}

/// The rows of batches.
pub fn values(batches: &[RecordBatch]) -> Vec<Vec<Value>> {
    let rows = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |row| (batch, row)));
    rows.map(|(batch, row)| batch.columns().iter().map(|column| value(column, row)).collect()).collect()
}

fn value(column: &Arc<dyn Array>, row: usize) -> Value {
    match column.data_type() {
        _ if column.is_null(row) => Value::Null,
        DataType::Int64 => Value::Integer(column.as_primitive::<Int64Type>().value(row)),
        DataType::Utf8 => Value::Text(column.as_string::<i32>().value(row).into()),
        DataType::Utf8View => Value::Text(column.as_string_view().value(row).into()),
        other => {
            let shown = array_value_to_string(column, row);
            Value::Text(shown.unwrap_or_else(|error| format!("{other}: {error}")).into())
        }
    }
}

/// Waits until the buffers of the store are within their budget, so that the steps of the background thread lie between
/// the same statements in each run.
pub fn settle(database: &Database) {
    let start = Instant::now();
    let store = database.store();
    while store.stats().buffer_bytes as usize > store.options().buffer_bytes && start.elapsed() < SETTLE {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Tables and indexes as a program sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Names with the columns, the constraint and the rows in the order of their keys.
    pub tables: BTreeMap<String, (Vec<String>, Vec<Vec<Value>>)>,
    /// Names with the definitions in short.
    pub indexes: BTreeMap<String, String>,
}

/// A short form of the definition of an index.
fn definition(method: &str, columns: &[String], includes_a: bool, unique: bool, partial: bool) -> String {
    let method = method.to_ascii_lowercase();
    format!("{method} of {columns:?}, unique: {unique}, partial: {partial}, includes a: {includes_a}")
}

impl Contents {
    /// The contents of a database.
    ///
    /// # Errors
    /// Errors of the queries.
    pub fn of_database(runtime: &Runtime, database: &Database) -> Result<Contents> {
        let session = database.session();
        let mut tables = BTreeMap::new();
        for table in database.tables() {
            let columns: Vec<String> = database.columns(&table.name)?.into_iter().map(|(name, _)| name).collect();
            let sql = format!("SELECT {} FROM {} ORDER BY k", columns.join(", "), table.name);
            let Answer::Rows { rows, .. } = run(runtime, &session, &sql)? else { continue };
            let constraint = table.sql.contains("CONSTRAINT small").then(|| CONSTRAINT.to_string());
            tables.insert(table.name, (columns.into_iter().chain(constraint).collect(), rows));
        }
        let indexes = database.indexes().into_iter().map(|index| {
            let (method, partial) = (format!("{:?}", index.method), index.predicate.is_some());
            let text = definition(&method, &index.columns, !index.include.is_empty(), index.unique, partial);
            (index.name, text)
        });
        Ok(Contents { tables, indexes: indexes.collect() })
    }

    /// The expected contents for a state of the model.
    pub fn of_state(state: &State) -> Contents {
        let (mut tables, mut indexes) = (BTreeMap::new(), BTreeMap::new());
        for (number, table) in &state.tables {
            let others = table.d.map(|_| "d").into_iter().chain(table.checked.then_some(CONSTRAINT));
            let columns = ["k", "a", "b", "c"].into_iter().chain(others).map(String::from).collect();
            let row = |(&k, row): (&i64, &super::state::Row)| {
                let mut values = row.values(k);
                values.extend(table.d.map(|_| row.d.map_or(Value::Null, Value::Integer)));
                values
            };
            tables.insert(format!("t{number}"), (columns, table.rows.iter().map(row).collect()));
            indexes.extend(table.indexes.iter().map(|(&slot, index)| {
                let columns: Vec<String> = index.columns.iter().map(ToString::to_string).collect();
                let text = definition(index.method, &columns, index.includes_a, index.unique, index.partial);
                (index_name(*number, slot), text)
            }));
        }
        Contents { tables, indexes }
    }

    /// The first difference of `found` from these contents, in words.
    pub fn difference(&self, found: &Contents) -> Option<(String, String)> {
        let names = |contents: &Contents| contents.tables.keys().cloned().collect::<Vec<_>>();
        if names(self) != names(found) {
            return Some((format!("tables {:?}", names(self)), format!("tables {:?}", names(found))));
        }
        if self.indexes != found.indexes {
            return Some((format!("indexes {:?}", self.indexes), format!("indexes {:?}", found.indexes)));
        }
        for ((name, (columns, rows)), (found_columns, found_rows)) in self.tables.iter().zip(found.tables.values()) {
            if columns != found_columns {
                return Some((format!("{name} with {columns:?}"), format!("{name} with {found_columns:?}")));
            }
            if let Some((expected, found)) = row_difference(rows, found_rows) {
                return Some((format!("{name}: {expected}"), format!("{name}: {found}")));
            }
        }
        None
    }
}

/// The first difference of two lists of rows, in words.
pub fn row_difference(expected: &[Vec<Value>], found: &[Vec<Value>]) -> Option<(String, String)> {
    let at = (0..expected.len().max(found.len())).find(|&i| expected.get(i) != found.get(i))?;
    let shown = |rows: &[Vec<Value>]| {
        let row = rows.get(at).map_or("no row".into(), |row| shown_row(row));
        format!("{} rows, at position {at}: {row}", rows.len())
    };
    Some((shown(expected), shown(found)))
}

fn shown_row(row: &[Value]) -> String {
    let shown = row.iter().map(|value| match value {
        Value::Null => "NULL".to_string(),
        Value::Integer(number) => number.to_string(),
        Value::Text(text) => format!("'{}'", text.chars().take(40).collect::<String>()),
    });
    format!("({})", shown.collect::<Vec<_>>().join(", "))
}

/// The files of a directory of the device with their lengths, or none if it does not exist.
pub fn files(simulated: &Simulated, directory: &str) -> Vec<(std::path::PathBuf, u64)> {
    let names = simulated.list(Path::new(directory)).unwrap_or_default();
    let paths = names.into_iter().map(|name| Path::new(directory).join(name));
    let length = |path: &Path| simulated.open(path, OpenMode::Read)?.len();
    paths.filter_map(|path| Some((path.clone(), length(&path).ok()?))).collect()
}

/// Removes a directory of the device and its files, as far as the device works.
pub fn remove(simulated: &Simulated, directory: &str) {
    for (path, _) in files(simulated, directory) {
        // A file that remains takes space only.
        let _ = simulated.remove(&path);
    }
    let _ = simulated.remove(Path::new(directory));
}
