//! `cargo xtask bench`: programs that print the workload, the machine, our figure, the peer's and their ratio.

use std::path::PathBuf;
use std::process::Command;

use clap::{Args, Subcommand};

use crate::python;
use crate::run::{Result, build_keyaki, cargo, root, step, target};

#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// TPC-H scale factor
    #[arg(long, global = true, default_value_t = 1.0)]
    scale: f64,
    /// Write the figures as JSON rows
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// A selective query in order and out of order; further options are those of `keyaki demo`
    Demo {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// The 22 TPC-H queries, cold and warm, against DuckDB; Q1 and Q6 against DataFusion over Parquet
    Tpch,
    /// Loading lineitem with a primary key and two indexes, against DuckDB
    Load,
    /// The in-memory ordered map (Masstree) against others: sorting, construction, lookups, scans, mixed work
    Masstree {
        /// Keys in a map
        #[arg(long, default_value_t = 10_000_000)]
        keys: usize,
        /// Further options, see `-- --help`
        #[arg(last = true)]
        options: Vec<String>,
    },
    /// The CPU's caches: what they hold, scans beside hot data, the published experiments in the simulator
    Llc {
        /// Through SQL, against SQLite and DuckDB
        #[arg(long)]
        sql: bool,
        /// Options, see `-- --help`
        #[arg(last = true)]
        options: Vec<String>,
    },
    /// The static search tree (VAST-Tree) against others: lookups, ranges, compression, displacement, threads
    Vast {
        /// Options, see `-- --help`
        #[arg(last = true)]
        options: Vec<String>,
    },
}

pub fn run(arguments: &Arguments) -> Result<()> {
    if let Bench::Masstree { keys, options } = &arguments.bench {
        let mut command = Command::new(build_bench("keyaki-bench-masstree")?);
        command.args(["--keys", &keys.to_string()]).args(options);
        return step(with_json(&mut command, arguments)?);
    }
    if let Bench::Llc { sql: false, options } = &arguments.bench {
        let mut command = Command::new(build_bench("keyaki-bench-llc")?);
        command.args(options);
        return step(with_json(&mut command, arguments)?);
    }
    if let Bench::Vast { options } = &arguments.bench {
        let mut command = Command::new(build_bench("keyaki-bench-vast")?);
        command.args(options);
        return step(with_json(&mut command, arguments)?);
    }
    let keyaki = build_keyaki(true)?;
    let mut command = match &arguments.bench {
        Bench::Demo { options } => {
            let mut command = Command::new(&keyaki);
            command.arg("demo").args(options);
            command
        }
        Bench::Tpch => {
            let mut command = python::script(&keyaki, "benches/tpch/bench.py")?;
            command.env("KEYAKI_PEERS", build_bench("keyaki-peers")?);
            command
        }
        Bench::Load => python::script(&keyaki, "benches/load/bench.py")?,
        Bench::Llc { sql: true, options } => {
            let mut command = python::script(&keyaki, "benches/llc/sql.py")?;
            command.args(options);
            command
        }
        Bench::Masstree { .. } | Bench::Llc { .. } | Bench::Vast { .. } => {
            unreachable!("it has returned: it needs no database")
        }
    };
    command.arg("--scale").arg(arguments.scale.to_string());
    step(with_json(&mut command, arguments)?)
}

fn with_json<'c>(command: &'c mut Command, arguments: &Arguments) -> Result<&'c mut Command> {
    if let Some(path) = &arguments.json {
        let directory = std::env::current_dir().map_err(|error| error.to_string())?;
        command.arg("--json").arg(directory.join(path));
    }
    Ok(command)
}

/// A program of `benches/`: a workspace of its own, with exactly the versions of ours, and what both need built once.
fn build_bench(package: &str) -> Result<PathBuf> {
    let lock = root().join("benches/Cargo.lock");
    std::fs::copy(root().join("Cargo.lock"), &lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    let mut command = cargo(&["build", "--release", "--package", package]);
    step(command.args(["--manifest-path", "benches/Cargo.toml", "--target-dir"]).arg(target()))?;
    Ok(target().join("release").join(package))
}
