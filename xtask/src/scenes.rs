//! `cargo xtask scenes`: captures the scenes of `docs/shell.md` on a pseudo-terminal (`tests/python/scenes.py`).

use clap::Args;

use crate::python;
use crate::run::{Programs, Result, step};

#[derive(Debug, Args)]
pub struct Arguments {
    /// Compare the scenes with the file, instead of writing them
    #[arg(long)]
    check: bool,
    /// Use the program that the tests have built, instead of building it
    #[arg(long)]
    built: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let programs = if arguments.built { Programs::built_by_tests() } else { Programs::build(false) }?;
    let mut script = python::script(&programs, "tests/python/scenes.py")?;
    step(script.args(arguments.check.then_some("--check")))
}
