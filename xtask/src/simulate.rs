//! `cargo xtask simulate`: the whole database on a simulated device beside a model, see `tests/harness/src/simulate`.

use std::process::Command;

use clap::Args;

use crate::run::{Programs, Result, cargo, step};

/// Fixed seeds of `cargo xtask test`.
const FIXED_SEEDS: [u64; 3] = [1, 2, 3];
/// Time for fresh seeds in `cargo xtask test`, in seconds.
const FRESH_SECONDS: u64 = 300;

#[derive(Debug, Args)]
pub struct Arguments {
    /// Run one seed; without it, fresh seeds in a loop
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of each seed [default: 2000]
    #[arg(long)]
    steps: Option<u64>,
    /// Start no new seed after this many seconds [default: 60]
    #[arg(long)]
    seconds: Option<u64>,
    /// Print each step before it is executed
    #[arg(long)]
    trace: bool,
    /// Print the failing steps as they are, without reducing them
    #[arg(long)]
    no_reduction: bool,
}

impl Arguments {
    /// The arguments of the program of the harness.
    fn words(&self) -> Vec<String> {
        let mut words = vec!["simulate".to_string()];
        for (option, value) in [("--seed", self.seed), ("--steps", self.steps), ("--seconds", self.seconds)] {
            words.extend(value.into_iter().flat_map(|value| [option.to_string(), value.to_string()]));
        }
        words.extend(self.trace.then(|| "--trace".to_string()));
        words.extend(self.no_reduction.then(|| "--no-reduction".to_string()));
        words
    }
}

pub fn run(arguments: &Arguments) -> Result<()> {
    // Build with the features of the tests, because other features would compile DataFusion again.
    step(&mut cargo(&["test", "--workspace", "--test", "crash", "--no-run"]))?;
    step(Command::new(Programs::built_by_tests()?.harness).args(arguments.words()))
}

/// The simulations that `cargo xtask test` runs: fixed seeds, and fresh ones.
///
/// # Errors
/// If the program was not built.
pub fn tests() -> Result<Vec<Command>> {
    let harness = Programs::built_by_tests()?.harness;
    let simulate = |option: &str, value: u64| {
        let mut command = Command::new(&harness);
        command.args(["simulate", option]).arg(value.to_string());
        command
    };
    let fixed = FIXED_SEEDS.map(|seed| simulate("--seed", seed));
    Ok([simulate("--seconds", FRESH_SECONDS)].into_iter().chain(fixed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_the_program() {
        let none = Arguments { seed: None, steps: None, seconds: None, trace: false, no_reduction: false };
        assert_eq!(none.words(), ["simulate"]);
        let some = Arguments { seed: Some(7), steps: Some(100), seconds: None, trace: true, no_reduction: true };
        assert_eq!(some.words(), ["simulate", "--seed", "7", "--steps", "100", "--trace", "--no-reduction"]);
    }
}
