//! `keyaki tpch`: data files for tests and benchmarks, and a database made from them.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use keyaki::Database;
use keyaki::Progress;

use super::Table;
use super::generate::Rows;
use super::load::threads;
use crate::arguments::{TpchArguments, TpchIndexes};
use crate::bars::Bars;
use crate::failure::{Failure, Result};
use crate::terminal;

const ROW_GROUP_ROWS: usize = 1 << 20;

pub async fn run(arguments: &TpchArguments) -> Result<()> {
    let tables = tables(&arguments.tables)?;
    if let Some(directory) = &arguments.generate {
        write_files(directory, arguments.scale, &tables)?;
    }
    match (&arguments.load, &arguments.data) {
        (Some(database), Some(data)) => load(database, data, &tables, arguments).await,
        _ => Ok(()),
    }
}

fn tables(names: &[String]) -> Result<Vec<Table>> {
    if names.is_empty() {
        return Ok(Table::ALL.to_vec());
    }
    let find =
        |name: &String| Table::find(name).ok_or_else(|| Failure::Usage(format!("TPC-H has no table \"{name}\"")));
    names.iter().map(find).collect()
}

/// Writes `<table>.parquet` for each table. A file that exists is complete, because it gets its name last; it is kept.
fn write_files(directory: &Path, scale: f64, tables: &[Table]) -> Result<()> {
    fs::create_dir_all(directory).map_err(Failure::file(directory))?;
    let bars = Bars::new();
    for &table in tables {
        let path = directory.join(format!("{}.parquet", table.name()));
        if path.exists() {
            continue;
        }
        bars.start(&format!("generating {}", table.name()), Some(table.rows(scale)));
        let temporary = path.with_extension("incomplete");
        write_file(&temporary, table, scale, &bars)?;
        fs::rename(&temporary, &path).map_err(Failure::file(&path))?;
        bars.finish();
    }
    Ok(())
}

fn write_file(path: &Path, table: Table, scale: f64, bars: &Bars) -> Result<()> {
    let file = File::create(path).map_err(Failure::file(path))?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::LZ4_RAW)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let mut writer = ArrowWriter::try_new(file, table.schema(), Some(properties))?;
    for batch in Rows::new(table, scale, threads()) {
        let batch = batch?;
        writer.write(&batch)?;
        bars.advance(batch.num_rows() as u64);
    }
    let file = writer.into_inner()?;
    file.sync_all().map_err(Failure::file(path))
}

async fn load(path: &Path, data: &Path, tables: &[Table], arguments: &TpchArguments) -> Result<()> {
    let database = Database::open(path, arguments.open.options())?;
    let session = database.session();
    let bars = Bars::new();
    session.set_progress(bars.clone());
    for &table in tables {
        let start = Instant::now();
        session.execute(&table.create(None)).await?;
        for index in indexes(table, arguments.indexes) {
            session.execute(&index).await?;
        }
        let file = data.join(format!("{}.parquet", table.name()));
        let literal = file.display().to_string().replace('\'', "''");
        let outcome = session.query(&format!("COPY {} FROM '{literal}'", table.name())).await;
        bars.finish();
        let keyaki::Outcome::Done { rows, .. } = outcome? else {
            return Err(Failure::message("COPY returned rows"));
        };
        let (rows, elapsed) = (rows.unwrap_or(0), start.elapsed());
        let rate = terminal::thousands((rows as f64 / elapsed.as_secs_f64()) as u64);
        println!("{}: {} in {} ({rate} rows/s)", table.name(), terminal::rows(rows), terminal::seconds(elapsed));
    }
    Ok(())
}

fn indexes(table: Table, wanted: TpchIndexes) -> Vec<String> {
    match (wanted, table) {
        (TpchIndexes::All, _) => table.indexes().iter().map(|index| index.create(table)).collect(),
        (TpchIndexes::Two, Table::LineItem) => vec![
            "CREATE INDEX lineitem_part ON lineitem (l_partkey, l_suppkey)".into(),
            "CREATE INDEX lineitem_shipdate ON lineitem (l_shipdate)".into(),
        ],
        (TpchIndexes::Two | TpchIndexes::None, _) => Vec::new(),
    }
}
