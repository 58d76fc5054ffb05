//! DataFusion over Parquet files, as a peer: `keyaki-peers DIRECTORY RUNS QUERY.sql…` prints a line
//! `query <tab> run <tab> seconds <tab> rows` for each run of each query.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use datafusion::prelude::{ParquetReadOptions, SessionContext};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, runs, queries @ ..] = arguments.as_slice() else {
        return Err("usage: keyaki-peers DIRECTORY RUNS QUERY.sql...".into());
    };
    let runs: u32 = runs.parse()?;
    tokio::runtime::Runtime::new()?.block_on(run(Path::new(directory), runs, queries))
}

async fn run(directory: &Path, runs: u32, queries: &[String]) -> Result<(), Box<dyn Error>> {
    let context = SessionContext::new();
    for table in ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"] {
        let file = directory.join(format!("{table}.parquet"));
        context.register_parquet(table, file.to_string_lossy(), ParquetReadOptions::default()).await?;
    }
    for query in queries {
        let sql = std::fs::read_to_string(query)?;
        let sql = sql.trim().trim_end_matches(';');
        for run in 0..runs {
            let start = Instant::now();
            let batches = context.sql(sql).await?.collect().await?;
            let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
            println!("{query}\t{run}\t{}\t{rows}", start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}
