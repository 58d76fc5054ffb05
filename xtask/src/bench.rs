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
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let keyaki = build_keyaki(true)?;
    let mut command = match &arguments.bench {
        Bench::Demo { options } => {
            let mut command = Command::new(&keyaki);
            command.arg("demo").args(options);
            command
        }
        Bench::Tpch => {
            let mut command = python::script(&keyaki, "benches/tpch/bench.py")?;
            command.env("KEYAKI_PEERS", build_peers()?);
            command
        }
        Bench::Load => python::script(&keyaki, "benches/load/bench.py")?,
    };
    command.arg("--scale").arg(arguments.scale.to_string());
    if let Some(path) = &arguments.json {
        let directory = std::env::current_dir().map_err(|error| error.to_string())?;
        command.arg("--json").arg(directory.join(path));
    }
    step(&mut command)
}

/// The Rust peers: a workspace of their own, with exactly the versions of ours, and what both need built once.
fn build_peers() -> Result<PathBuf> {
    let lock = root().join("benches/Cargo.lock");
    std::fs::copy(root().join("Cargo.lock"), &lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    let mut command = cargo(&["build", "--release", "--package", "keyaki-peers"]);
    step(command.args(["--manifest-path", "benches/Cargo.toml", "--target-dir"]).arg(target()))?;
    Ok(target().join("release/keyaki-peers"))
}
