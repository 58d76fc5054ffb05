//! `cargo xtask clients`: the suites of clients that need tools beside Python (`tests/clients/suites.py`).

use clap::Args;

use crate::python;
use crate::run::{Programs, Result, step};

#[derive(Debug, Args)]
pub struct Arguments {
    /// Suites to run: django, node, pgbench, pgjdbc, pgx, sqlx [default: all whose tools are installed]
    names: Vec<String>,
    /// Use the program that the tests have built, instead of building it
    #[arg(long)]
    built: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let programs = if arguments.built { Programs::built_by_tests() } else { Programs::build(false) }?;
    step(python::script(&programs, "tests/clients/suites.py")?.args(&arguments.names))
}
