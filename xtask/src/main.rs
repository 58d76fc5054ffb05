//! Developer commands: `cargo xtask COMMAND` runs everything the CI runs.

#![warn(clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod bench;
mod clients;
mod floors;
mod hostile;
mod jobs;
mod layers;
mod lints;
mod package;
mod python;
mod run;
mod scenes;
mod simulate;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Developer commands of Keyaki")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check formatting, lints, floors and layers, and run all tests (Rust, documentation, Python)
    Test(test::Arguments),
    /// Run benchmarks beside other systems (release build)
    Bench(bench::Arguments),
    /// Print the figures of `bench all --json DIR` as Markdown tables
    Measurements(bench::MeasurementsArguments),
    /// Run the suites of clients of PostgreSQL whose tools are installed (Java, Go, Node.js, Rust, Django, pgbench)
    Clients(clients::Arguments),
    /// Compare all 22 TPC-H queries in every execution mode with DuckDB, value by value
    Tpch(test::TpchArguments),
    /// Run random statements, crashes and faults on a simulated device beside a model, from a seed
    Simulate(simulate::Arguments),
    /// Send random messages to a server (release build) before and after authentication, and compare what it holds
    Hostile(hostile::Arguments),
    /// Run the tests of the Python package with the module that `cargo test --workspace` has built
    Python,
    /// Build the wheel of the Python package (release build)
    Wheel(package::Arguments),
    /// Capture the scenes of docs/shell.md on a pseudo-terminal
    Scenes(scenes::Arguments),
    /// Check that no crate uses a crate of its own or a higher floor
    Floors,
    /// Check that no module uses a module of a higher layer of its crate
    Layers,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(arguments) => test::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Measurements(arguments) => bench::measurements(&arguments),
        Command::Scenes(arguments) => scenes::run(&arguments),
        Command::Clients(arguments) => clients::run(&arguments),
        Command::Tpch(arguments) => test::tpch(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Hostile(arguments) => hostile::run(&arguments),
        Command::Python => package::tests().and_then(|mut tests| run::step(&mut tests)),
        Command::Wheel(arguments) => package::wheel(&arguments),
        Command::Floors => floors::check(&run::root()),
        Command::Layers => layers::check(&run::root()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
