//! `keyaki-harness tpch`: TPC-H data files for tests and benchmarks, and databases made from them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use keyaki::{Database, Options, Outcome};
use keyaki_tpch::{Rows, Table};

use crate::Result;

const ROW_GROUP_ROWS: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Write the eight tables as DIR/<table>.parquet
    #[arg(long, value_name = "DIR", required_unless_present = "load")]
    generate: Option<PathBuf>,
    /// Create the tables with keys and indexes in this database and copy the files of --data into them
    #[arg(long, value_name = "DB", requires = "data")]
    load: Option<PathBuf>,
    /// Directory of the Parquet files to load
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Scale factor of the generated files
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Only these tables, separated by commas
    #[arg(long, value_delimiter = ',')]
    tables: Vec<String>,
    /// Secondary indexes to create
    #[arg(long, value_enum, default_value_t)]
    indexes: Indexes,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Indexes {
    /// On foreign keys and dates, with included columns
    #[default]
    All,
    /// Two on lineitem: (l_partkey, l_suppkey) and (l_shipdate)
    Two,
    /// Primary keys only
    None,
}

pub async fn run(arguments: &Arguments) -> Result<()> {
    let tables = tables(&arguments.tables)?;
    if let Some(directory) = &arguments.generate {
        write_files(directory, arguments.scale, &tables)?;
    }
    match (&arguments.load, &arguments.data) {
        (Some(database), Some(data)) => load(database, data, &tables, arguments.indexes).await,
        _ => Ok(()),
    }
}

fn tables(names: &[String]) -> Result<Vec<Table>> {
    if names.is_empty() {
        return Ok(Table::ALL.to_vec());
    }
    let find = |name: &String| Table::find(name).ok_or_else(|| format!("TPC-H has no table \"{name}\"").into());
    names.iter().map(find).collect()
}

/// Writes `<table>.parquet` for each table. An existing file is complete, because a file gets its name last, and is kept.
fn write_files(directory: &Path, scale: f64, tables: &[Table]) -> Result<()> {
    fs::create_dir_all(directory)?;
    for &table in tables {
        let path = directory.join(format!("{}.parquet", table.name()));
        if path.exists() {
            continue;
        }
        let temporary = path.with_extension("incomplete");
        write_file(&temporary, table, scale).map_err(|error| format!("{}: {error}", temporary.display()))?;
        fs::rename(&temporary, &path)?;
    }
    Ok(())
}

fn write_file(path: &Path, table: Table, scale: f64) -> Result<()> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::LZ4_RAW)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, table.schema(), Some(properties))?;
    for batch in Rows::new(table, scale) {
        writer.write(&batch?)?;
    }
    Ok(writer.into_inner()?.sync_all()?)
}

async fn load(path: &Path, data: &Path, tables: &[Table], indexes: Indexes) -> Result<()> {
    let database = Database::open(path, Options::default())?;
    let session = database.session();
    for &table in tables {
        let start = Instant::now();
        session.execute(&table.create(None)).await?;
        for index in create_indexes(table, indexes) {
            session.execute(&index).await?;
        }
        let file = data.join(format!("{}.parquet", table.name()));
        let literal = file.display().to_string().replace('\'', "''");
        let Outcome::Done { rows, .. } = session.query(&format!("COPY {} FROM '{literal}'", table.name())).await?
        else {
            return Err("COPY returned rows".into());
        };
        let (rows, seconds) = (rows.unwrap_or(0), start.elapsed().as_secs_f64());
        println!("{}: {rows} rows in {seconds:.3} s ({:.0} rows/s)", table.name(), rows as f64 / seconds);
    }
    Ok(())
}

fn create_indexes(table: Table, wanted: Indexes) -> Vec<String> {
    match (wanted, table) {
        (Indexes::All, _) => table.indexes().iter().map(|index| index.create(table)).collect(),
        (Indexes::Two, Table::LineItem) => vec![
            "CREATE INDEX lineitem_part ON lineitem (l_partkey, l_suppkey)".into(),
            "CREATE INDEX lineitem_shipdate ON lineitem (l_shipdate)".into(),
        ],
        (Indexes::Two | Indexes::None, _) => Vec::new(),
    }
}
