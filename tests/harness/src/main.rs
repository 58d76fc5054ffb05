//! `keyaki-harness`: the programs behind the tests and benchmarks that run Keyaki in a process of its own.
//!
//! `tpch` writes TPC-H data as Parquet files and loads them into a database. `session` runs and times statements that it reads
//! from standard input. `extents` makes a database with the metadata of a large one. `crash-writer` commits statements until it is killed. `simulate` runs the database on a
//! simulated device beside a model. The shipped program has none of these.

#![warn(clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod crash_writer;
mod extents;
mod session;
mod simulate;
mod tpch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

// The allocator of the shipped program, so that figures are comparable.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Parser)]
#[command(name = "keyaki-harness", about = "Programs behind Keyaki's tests and benchmarks")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write TPC-H data as Parquet files, or load such files into a database
    Tpch(tpch::Arguments),
    /// Run and time statements read from standard input
    Session(session::Arguments),
    /// Make a database with as many extents as a large one
    Extents(extents::Arguments),
    /// Commit transactions until killed
    CrashWriter(crash_writer::Arguments),
    /// Run random statements, crashes and faults on a simulated device beside a model
    Simulate(simulate::Arguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let runtime = Runtime::new()?;
    match command {
        Command::Tpch(arguments) => runtime.block_on(tpch::run(&arguments)),
        Command::Session(arguments) => session::run(&runtime, &arguments),
        Command::Extents(arguments) => runtime.block_on(extents::run(&arguments)),
        Command::CrashWriter(arguments) => runtime.block_on(crash_writer::run(&arguments)),
        Command::Simulate(arguments) => Ok(simulate::run(&arguments)?),
    }
}
