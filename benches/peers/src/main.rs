//! DataFusion over Parquet files, as a peer: `keyaki-peers [--row] DIRECTORY RUNS QUERY.sql…` prints a line
//! `query <tab> run <tab> seconds <tab> rows` for each run of each query, with the values of the first row after it if
//! wanted (`a|b`). The directory may be a bucket, as `s3://bucket`: it holds the tables that have files.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::util::display::array_value_to_string;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use object_store::aws::AmazonS3Builder;
use url::Url;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// All tables, and those that a bucket has.
const TABLES: [&str; 8] = ["customer", "orders", "lineitem", "region", "nation", "supplier", "part", "partsupp"];
const IN_BUCKETS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let shows_row = arguments.first().is_some_and(|word| word == "--row");
    arguments.drain(..usize::from(shows_row));
    let [directory, runs, queries @ ..] = arguments.as_slice() else {
        return Err("usage: keyaki-peers [--row] DIRECTORY RUNS QUERY.sql...".into());
    };
    let runs: u32 = runs.parse()?;
    tokio::runtime::Runtime::new()?.block_on(run(directory, runs, queries, shows_row))
}

async fn run(directory: &str, runs: u32, queries: &[String], shows_row: bool) -> Result<(), Box<dyn Error>> {
    for query in queries {
        let sql = std::fs::read_to_string(query)?;
        let sql = sql.trim().trim_end_matches(';');
        let context = SessionContext::new();
        let is_bucket = directory.contains("://");
        if is_bucket {
            let store = AmazonS3Builder::from_env().with_url(directory).build()?;
            context.register_object_store(&Url::parse(directory)?, Arc::new(store));
        }
        // The footers of files in buckets belong to the time.
        let mut start = Instant::now();
        for table in &TABLES[..if is_bucket { IN_BUCKETS } else { TABLES.len() }] {
            let file = format!("{directory}/{table}.parquet");
            context.register_parquet(*table, file, ParquetReadOptions::default()).await?;
        }
        for run in 0..runs {
            if !is_bucket || run > 0 {
                start = Instant::now();
            }
            let batches = context.sql(sql).await?.collect().await?;
            let seconds = start.elapsed().as_secs_f64();
            let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
            print!("{query}\t{run}\t{seconds}\t{rows}");
            if let Some(batch) = batches.iter().find(|batch| shows_row && batch.num_rows() > 0) {
                let values = batch.columns().iter().map(|column| array_value_to_string(column, 0));
                print!("\t{}", values.collect::<Result<Vec<_>, _>>()?.join("|"));
            }
            println!();
        }
    }
    Ok(())
}
