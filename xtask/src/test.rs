//! `cargo xtask test` and `cargo xtask tpch`.

use std::process::Command;

use clap::Args;

use crate::floors;
use crate::jobs;
use crate::layers;
use crate::lints;
use crate::package;
use crate::python;
use crate::run::{Programs, Result, cargo, root, step, works};
use crate::simulate;

#[derive(Debug, Args)]
pub struct Arguments {
    /// Run only the Rust tests
    #[arg(long)]
    quick: bool,
    /// TPC-H scale factor of the comparison with DuckDB
    #[arg(long, default_value_t = 0.01)]
    scale: f64,
}

#[derive(Debug, Args)]
pub struct TpchArguments {
    /// TPC-H scale factor
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Compare all answers with DuckDB (required)
    #[arg(long)]
    check: bool,
    /// Use the release build
    #[arg(long)]
    release: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let documentation = cargo(&["test", "--workspace", "--doc"]);
    if arguments.quick {
        let mut tests = jobs::build_tests()?;
        tests.push(documentation);
        return jobs::run(tests);
    }
    floors::check(&root())?;
    layers::check(&root())?;
    lints::check(&root())?;
    step(&mut cargo(&["fmt", "--all", "--check"]))?;
    step(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;
    if works(&mut cargo(&["deny", "--version"])) {
        step(&mut cargo(&["deny", "check"]))?;
    }
    let mut tests = jobs::build_tests()?;
    // The map's real code under many interleavings of its atomic accesses: seconds in a release build.
    let interleavings = ["--package", "keyaki-masstree", "--features", "shuttle", "--lib", "interleavings"];
    let mut release = cargo(&["test", "--release"]);
    release.args(interleavings);
    // Those of the log, the engine, the waker of io_uring and the executor, with scheduling points at locks too.
    let models = ["--package", "keyaki-device", "--package", "keyaki-store", "--package", "keyaki-exec"];
    let mut scheduled = cargo(&["test", "--features", "shuttle", "--lib"]);
    scheduled.args(models).arg("interleavings");
    let suite = |folder: &str| -> Result<Command> {
        let mut python = python::command(&Programs::built_by_tests()?)?;
        python.args(["-m", "unittest", "discover", "--verbose", "--start-directory", folder]).current_dir(root());
        Ok(python)
    };
    let (mut answers, clients) = (suite("tests/python")?, suite("tests/clients")?);
    answers.env("TPCH_SCALE", arguments.scale.to_string());
    let package = package::tests()?;
    // The longest programs start first, beside the first test program.
    tests.splice(
        1..1,
        simulate::tests()?.into_iter().chain([answers, clients, scheduled, release, package, documentation]),
    );
    jobs::run(tests)
}

pub fn tpch(arguments: &TpchArguments) -> Result<()> {
    if !arguments.check {
        return Err("--check is missing (to measure, use `cargo xtask bench tpch`)".into());
    }
    let mut test = python::script(&Programs::build(arguments.release)?, "tests/python/test_tpch.py")?;
    step(test.arg("--verbose").env("TPCH_SCALE", arguments.scale.to_string()))
}
