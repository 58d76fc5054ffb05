//! Prepares the demonstration's database: generates, loads and calibrates it once, then reuses it.
//!
//! ```text
//! <directory>/demo.json   marker: scale, columns, complete or not (written before and after loading)
//! <directory>/database/   the database
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use datafusion::error::DataFusionError;
use keyaki::Progress;
use keyaki::{Database, Options, Session};
use keyaki_tpch::{Rows, Table};
use serde::{Deserialize, Serialize};

use super::Setup;
use crate::arguments::{DemoArguments, DemoTables};
use crate::bars::Bars;
use crate::failure::{Failure, Result};
use crate::{calibrate, directories, terminal};

const MARKER: &str = "demo.json";
const DATABASE: &str = "database";
/// Version of the marker and of the loaded data. Databases of other versions are loaded again.
const VERSION: u32 = 1;

/// The contents of the marker file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Marker {
    keyaki_demo: u32,
    scale: f64,
    /// True if all columns are loaded, not only those of the query.
    all_columns: bool,
    complete: bool,
}

/// The columns to load: all, or the columns that the query reads and the keys.
fn columns(table: Table, wanted: DemoTables) -> Option<&'static [&'static str]> {
    match (wanted, table) {
        (DemoTables::All, _) => None,
        (DemoTables::Query, Table::Customer) => Some(&["c_custkey", "c_acctbal"]),
        (DemoTables::Query, Table::Orders) => Some(&["o_orderkey", "o_custkey"]),
        (DemoTables::Query, _) => Some(&["l_orderkey", "l_linenumber", "l_quantity"]),
    }
}

const INDEXES: [(Table, &str); 2] = [
    (Table::Customer, "CREATE INDEX customer_acctbal ON customer (c_acctbal)"),
    (Table::Orders, "CREATE INDEX orders_customer ON orders (o_custkey)"),
];

/// The directory given, else one in the user's cache directory, else one in the current directory.
pub fn directory(arguments: &DemoArguments) -> PathBuf {
    let columns = if arguments.tables == DemoTables::Query { "-query" } else { "" };
    let name = format!("demo-sf{}{columns}", arguments.scale);
    match (&arguments.dir, directories::cache()) {
        (Some(directory), _) => directory.clone(),
        (None, Some(cache)) => cache.join(name),
        (None, None) => PathBuf::from(format!("keyaki-{name}")),
    }
}

/// Opens or creates the complete database.
pub async fn database(arguments: &DemoArguments, directory: &Path) -> Result<Database> {
    let wanted = |complete| Marker {
        keyaki_demo: VERSION,
        scale: arguments.scale,
        all_columns: arguments.tables == DemoTables::All,
        complete,
    };
    let options = arguments.open.options();
    let path = directory.join(DATABASE);
    if read_marker(directory)? == Some(wanted(true)) {
        println!("TPC-H data at scale {} in {}", arguments.scale, directory.display());
        Ok(Database::open(&path, Options { must_exist: true, ..options })?)
    } else {
        clear(directory)?;
        println!("Loading TPC-H data at scale {} into {}", arguments.scale, directory.display());
        write_marker(directory, &wanted(false))?;
        let database = Database::create(&path, options)?;
        fill(&database, arguments).await?;
        write_marker(directory, &wanted(true))?;
        Ok(database)
    }
}

/// The demonstration on the device of the directory, which is measured unless the database has a calibration.
pub fn setup(database: Database) -> Result<Setup> {
    if !database.calibration().is_measured() {
        let mut options = calibrate::options(true);
        let page_bytes = database.store().options().page_bytes;
        if !options.request_bytes.contains(&page_bytes) {
            options.request_bytes.push(page_bytes);
        }
        let calibration = calibrate::measure(database.store().device(), database.path(), &options)?;
        database.set_calibration(calibration)?;
    }
    let calibration = (*database.calibration()).clone();
    let device = database.store().device().name().to_string();
    let description = format!("Device: {device}, direct I/O, cold caches");
    Ok(Setup { database, calibration, device, description })
}

/// Creates and fills the tables.
async fn fill(database: &Database, arguments: &DemoArguments) -> Result<()> {
    let session = database.session();
    let bars = Bars::new();
    session.set_progress(bars.clone());
    for table in [Table::Customer, Table::Orders, Table::LineItem] {
        let start = Instant::now();
        let columns = columns(table, arguments.tables);
        let rows = fill_table(&session, table, columns, arguments.scale).await;
        bars.finish();
        let (rows, elapsed) = (rows?, start.elapsed());
        let rate = terminal::thousands((rows as f64 / elapsed.as_secs_f64()) as u64);
        println!("  {:9} {} in {} ({rate} rows/s)", table.name(), terminal::rows(rows), terminal::seconds(elapsed));
    }
    Ok(())
}

async fn fill_table(session: &Session, table: Table, columns: Option<&[&str]>, scale: f64) -> Result<u64> {
    session.execute(&table.create(columns)).await?;
    for (_, index) in INDEXES.iter().filter(|(of, _)| *of == table) {
        session.execute(index).await?;
    }
    let schema = table.schema();
    let indices: Vec<usize> = match columns {
        None => (0..schema.fields().len()).collect(),
        Some(names) => names.iter().map(|name| schema.index_of(name)).collect::<std::result::Result<_, _>>()?,
    };
    let batches = Rows::new(table, scale).map(move |batch| {
        batch.and_then(|batch| batch.project(&indices)).map_err(|error| DataFusionError::from(error).into())
    });
    Ok(session.load_iter(table.name(), batches).await?)
}

fn read_marker(directory: &Path) -> Result<Option<Marker>> {
    let path = directory.join(MARKER);
    match fs::read(&path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::file(path)(error)),
    }
}

/// Writes the marker and syncs it: a later run relies on it.
fn write_marker(directory: &Path, marker: &Marker) -> Result<()> {
    let path = directory.join(MARKER);
    let write = || {
        fs::create_dir_all(directory)?;
        let temporary = path.with_extension("new");
        fs::write(&temporary, serde_json::to_vec_pretty(marker)?)?;
        fs::File::open(&temporary)?.sync_all()?;
        fs::rename(&temporary, &path)?;
        fs::File::open(directory)?.sync_all()
    };
    write().map_err(Failure::file(&path))
}

/// Removes an earlier demonstration's database. Fails if the directory has other contents.
fn clear(directory: &Path) -> Result<()> {
    let ours = directory.join(MARKER).exists();
    let empty = match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(Failure::file(directory)(error)),
    };
    if !ours && !empty {
        return Err(Failure::Message(format!(
            "{} is not empty and was not created by the demonstration (choose another --dir)",
            directory.display()
        )));
    }
    let database = directory.join(DATABASE);
    match fs::remove_dir_all(&database) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::file(&database)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_databases_of_the_demonstration_are_removed() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path();
        assert!(clear(path).is_ok() && clear(&path.join("missing")).is_ok());
        fs::create_dir(path.join(DATABASE)).expect("directory");
        assert!(clear(path).is_err(), "not created by the demonstration");
        let marker = Marker { keyaki_demo: VERSION, scale: 0.5, all_columns: true, complete: false };
        write_marker(path, &marker).expect("marker");
        assert_eq!(read_marker(path).expect("readable"), Some(marker));
        assert!(clear(path).is_ok());
        assert!(!path.join(DATABASE).exists());
        fs::write(path.join(MARKER), b"nonsense").expect("marker");
        assert_eq!(read_marker(path).expect("readable"), None);
    }
}
