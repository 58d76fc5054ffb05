//! Compares small statements with SQLite and DuckDB, and bulk inserts with SQLite. See `cargo xtask bench oltp`.
//!
//! | module | contents |
//! |---|---|
//! | `side`, `keyaki_side`, `sqlite_side` | table `t` and the statements on it |
//! | `statements` | median times of statements, warm; statements per second of several threads |
//! | `duckdb` | the same statements in DuckDB, run by Python |
//! | `bulk` | table `purchase` and its bulk inserts |
//! | `appender`, `iibench` | rates of bulk inserts |
//! | `upsert` | rates of upserts with random keys |

mod appender;
mod bulk;
mod duckdb;
mod iibench;
mod keyaki_side;
mod side;
mod sqlite_side;
mod statements;
mod upsert;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use keyaki_bench_report::{Better, Rows};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Compare small statements with SQLite and DuckDB, and bulk inserts with SQLite
#[derive(Debug, Parser)]
struct Arguments {
    /// Rows of the table of small statements
    #[arg(long, default_value_t = 1_000_000)]
    rows: i64,
    /// Small statements per figure
    #[arg(long, default_value_t = 20_000)]
    statements: usize,
    /// Rows of the experiment `appender`
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(bulk::PARTS..))]
    appender_rows: u64,
    /// Rows of the experiment `iibench`
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(bulk::PARTS..))]
    iibench_rows: u64,
    /// Rows of the experiment `iibench` in SQLite, whose rate falls steadily
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(bulk::PARTS..))]
    iibench_peer_rows: u64,
    /// Rows of the table of the experiment `upsert`
    #[arg(long, default_value_t = 20_000_000)]
    upsert_rows: i64,
    /// Statements per figure of the experiment `upsert`
    #[arg(long, default_value_t = 200_000)]
    upserts: usize,
    /// Only these experiments
    #[arg(long, value_delimiter = ',', default_values_t = Experiment::value_variants().to_vec())]
    experiments: Vec<Experiment>,
    /// Write the figures as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Experiment {
    Point,
    PointText,
    Index,
    IndexText,
    Group,
    Insert,
    Update,
    Delete,
    InsertMany,
    Count,
    InsertFull,
    Threads,
    Appender,
    Iibench,
    Upsert,
}

impl std::fmt::Display for Experiment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A run of the benchmark: its options and the figures so far.
struct Run {
    arguments: Arguments,
    report: Rows,
    /// DuckDB's microseconds by the name of the experiment.
    duckdb: BTreeMap<String, f64>,
}

impl Run {
    fn wants(&self, experiment: Experiment) -> bool {
        self.arguments.experiments.contains(&experiment)
    }

    /// Adds the median microseconds of a statement in Keyaki and SQLite, beside DuckDB's if they were measured.
    fn time(&mut self, experiment: Experiment, workload: &str, (ours, sqlite): (f64, f64)) {
        let duckdb = self.duckdb.get(&experiment.to_string());
        let peers = [("SQLite", Some(&sqlite)), ("DuckDB", duckdb)];
        print!("{workload:<28} Keyaki {ours:>10.2}");
        for (name, theirs) in peers.into_iter().filter_map(|(name, theirs)| Some((name, *theirs?))) {
            print!("   {name} {theirs:>10.2} {:>7.3}x", ours / theirs);
            self.report.compare(workload, ("time", "µs", Better::Lower), ours, (name, theirs));
        }
        println!();
    }

    /// Adds a rate beside SQLite's. `unit` is `1/s` or `rows/s`.
    fn rate(&mut self, workload: &str, unit: &str, ours: f64, sqlite: f64) {
        println!("{workload:<54} Keyaki {ours:>10.0} {unit}   SQLite {sqlite:>10.0} {unit}   {:>6.2}x", ours / sqlite);
        self.report.compare(workload, ("throughput", unit, Better::Higher), ours, ("SQLite", sqlite));
    }
}

fn main() -> Result {
    let arguments = Arguments::parse();
    let duckdb = duckdb::times(&arguments)?;
    let mut run = Run { arguments, report: Rows::new("oltp"), duckdb };
    statements::run(&mut run)?;
    appender::run(&mut run)?;
    iibench::run(&mut run)?;
    upsert::run(&mut run)?;
    match &run.arguments.json {
        Some(path) => Ok(run.report.write(path)?),
        None => Ok(()),
    }
}
