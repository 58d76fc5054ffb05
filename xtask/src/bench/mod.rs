//! `cargo xtask bench`: programs that print the workload, the machine, our figure, the peer's and their ratio.
//!
//! [`BENCHES`] is the list of them. Each program takes `--json FILE` and writes rows of the form of [`Row`] there.
//! `bench all --json DIR` runs all with their default sizes and adds `run.json`, which says where and when; `cargo xtask
//! measurements DIR` prints both as Markdown ([`markdown`]).

mod info;
mod markdown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Deserialize;

use crate::package;
use crate::python;
use crate::run::{Programs, Result, cargo, root, step, target};
use info::RunInfo;
pub use markdown::{Arguments as MeasurementsArguments, run as measurements};

/// The name that stands for all benches.
const ALL: &str = "all";
/// Packages of the shells that `bench shell` runs beside ours.
const SHELLS: &str = "benches/shell/requirements.txt";
/// Packages of `bench publish`.
const STORE: &str = "benches/publish/requirements.txt";
/// Name of the file that describes the run, beside the rows.
const RUN_FILE: &str = "run.json";

/// A bench: its name is also the name of its JSON file and the `bench` of its rows.
struct Bench {
    name: &'static str,
    program: Program,
    /// Default options with their values. A caller's option of the same name replaces the default.
    defaults: &'static [(&'static str, &'static str)],
}

enum Program {
    /// A command of the shipped program.
    Keyaki(&'static str),
    /// A Python script that runs the shipped program beside its peers.
    Script(&'static str),
    /// Like `Script`, with the peers that are written in Rust (`benches/peers`).
    ScriptWithPeers(&'static str),
    /// Like `Script`, with the shells of the peers.
    ScriptWithShells(&'static str),
    /// Like `ScriptWithPeers`, in an environment with clients of object stores.
    ScriptWithStore(&'static str),
    /// A package of `benches/`.
    Package(&'static str),
    /// Like `Package`, with a Python interpreter that has the packages of the peers.
    PackageWithPython(&'static str),
    /// A Python script that uses the Python package.
    ScriptWithModule(&'static str),
}

static BENCHES: [Bench; 14] = [
    Bench { name: "demo", program: Program::Keyaki("demo"), defaults: &[("--scale", "1")] },
    Bench { name: "tpch", program: Program::ScriptWithPeers("benches/tpch/bench.py"), defaults: &[("--scale", "1")] },
    Bench { name: "joins", program: Program::Script("benches/joins/bench.py"), defaults: &[("--scale", "1")] },
    Bench { name: "load", program: Program::Script("benches/load/bench.py"), defaults: &[("--scale", "1")] },
    Bench {
        name: "oltp",
        program: Program::PackageWithPython("keyaki-bench-oltp"),
        defaults: &[("--rows", "1000000")],
    },
    Bench {
        name: "python",
        program: Program::ScriptWithModule("benches/python/bench.py"),
        defaults: &[("--rows", "1000000"), ("--append-rows", "10000000")],
    },
    Bench {
        name: "publish",
        program: Program::ScriptWithStore("benches/publish/bench.py"),
        defaults: &[("--scale", "1")],
    },
    Bench { name: "server", program: Program::Script("benches/server/bench.py"), defaults: &[("--scale", "1")] },
    Bench {
        name: "shell",
        program: Program::ScriptWithShells("benches/shell/bench.py"),
        defaults: &[("--rows", "1000000"), ("--printed-rows", "100000")],
    },
    Bench {
        name: "store",
        program: Program::Package("keyaki-bench-store"),
        defaults: &[("--keys", "20000000"), ("--files", "3000000")],
    },
    Bench {
        name: "masstree",
        program: Program::Package("keyaki-bench-masstree"),
        defaults: &[("--keys", "10000000"), ("--threads", "2"), ("--workloads", "bytes10")],
    },
    Bench {
        name: "vast",
        program: Program::Package("keyaki-bench-vast"),
        defaults: &[("--log", "24"), ("--distributions", "poisson8")],
    },
    Bench { name: "llc", program: Program::Package("keyaki-bench-llc"), defaults: &[("--repetitions", "31")] },
    Bench { name: "llc-sql", program: Program::Script("benches/llc/sql.py"), defaults: &[("--repetitions", "25")] },
];

const HELP: &str = "\
Benches and their default sizes:
  demo      one selective join, in-order against out-of-order execution (--scale 1)
  tpch      the 22 TPC-H queries, cold and warm, against DuckDB; Q1 and Q6 against DataFusion over Parquet (--scale 1)
  joins     selective joins, cold and warm, against DuckDB, SQLite, PostgreSQL and MariaDB; simulated devices (--scale 1)
  load      loading lineitem with a primary key and two indexes, against DuckDB (--scale 1)
  oltp      small statements by key, against SQLite and DuckDB; bulk inserts, against SQLite (--rows 1000000)
  python    the Python package against sqlite3 and DuckDB: import, point SELECTs, results as frames, appending (--rows 1000000 --append-rows 10000000)
  publish   a database in an object store with 20 ms latency, against DuckDB and DataFusion over Parquet (--scale 1)
  server    clients of `keyaki serve` (pgbench, COPY, results, idle connections; --cold: lookups in ten times the memory), against PostgreSQL (--scale 1)
  shell     the shell against those of sqlite3 and DuckDB: start, small statements, CSV files, long tables (--rows 1000000 --printed-rows 100000)
  store     the key-value store against RocksDB, redb, fjall and LMDB: inserts, gets, scans, upserts, recovery, indexes; small files, against a file system (--keys 20000000 --files 3000000)
  masstree  the in-memory ordered map against others: sorting, construction, lookups, scans, mixed work (--keys 10000000 --threads 2 --workloads bytes10)
  vast      the static search tree against others: lookups, ranges, compression, displacement, threads (--log 24 --distributions poisson8)
  llc       CPU caches: capacity, scans beside hot data, the published experiments in the simulator (--repetitions 31)
  llc-sql   CPU caches through SQL, against SQLite and DuckDB (--repetitions 25)
  all       every bench with its default sizes; --json names a directory";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// The bench to run
    #[arg(value_parser = PossibleValuesParser::new(BENCHES.iter().map(|bench| bench.name).chain([ALL])))]
    bench: String,
    /// Write the figures as JSON rows to this file (with `all`: to this directory, one file per bench)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Options of the bench's program, for example --scale 0.1 or --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

/// A figure in a bench's JSON file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    bench: String,
    workload: String,
    metric: String,
    unit: String,
    /// Keyaki's figure; none if Keyaki failed.
    keyaki: Option<f64>,
    /// The peer's figure in the same run; none if there is no peer or it failed.
    peer: Option<f64>,
    peer_name: Option<String>,
    /// Above 1 where Keyaki is better; none if the figures cannot be compared.
    ratio: Option<f64>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    match BENCHES.iter().find(|bench| bench.name == arguments.bench) {
        Some(bench) => run_one(bench, &arguments.options, arguments.json.as_deref()),
        None => run_all(arguments),
    }
}

/// Runs every bench. A bench that fails does not keep the others from running.
fn run_all(arguments: &Arguments) -> Result<()> {
    if !arguments.options.is_empty() {
        return Err("`bench all` takes no options of single benches".into());
    }
    if let Some(directory) = &arguments.json {
        std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let commands: BTreeMap<String, String> =
            BENCHES.iter().map(|bench| (bench.name.to_string(), bench.command_line())).collect();
        RunInfo::collect(commands)?.write(&directory.join(RUN_FILE))?;
    }
    let mut failures = Vec::new();
    for bench in &BENCHES {
        let file = arguments.json.as_ref().map(|directory| directory.join(bench.name).with_extension("json"));
        failures.extend(run_one(bench, &[], file.as_deref()).err());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn run_one(bench: &Bench, options: &[String], json: Option<&Path>) -> Result<()> {
    let mut command = match bench.program {
        Program::Keyaki(name) => {
            let mut command = Command::new(Programs::build(true)?.keyaki);
            command.arg(name);
            command
        }
        Program::Script(path) => python::script(&Programs::build(true)?, path)?,
        Program::ScriptWithPeers(path) => {
            let mut command = python::script(&Programs::build(true)?, path)?;
            command.env("KEYAKI_PEERS", build_package("keyaki-peers")?);
            command
        }
        Program::ScriptWithShells(path) => python::script_in("shell-venv", SHELLS, &Programs::build(true)?, path)?,
        Program::ScriptWithStore(path) => {
            let mut command = python::script_in("store-venv", STORE, &Programs::build(true)?, path)?;
            // On its own: with others, some of their dependencies would be built again for its features.
            step(&mut cargo(&["build", "--release", "--package", "keyaki-object-server"]))?;
            command.env("KEYAKI_PEERS", build_package("keyaki-peers")?);
            command
        }
        Program::Package(package) => Command::new(build_package(package)?),
        Program::PackageWithPython(package) => {
            let mut command = Command::new(build_package(package)?);
            command.env("KEYAKI_PYTHON", python::interpreter()?);
            command
        }
        Program::ScriptWithModule(path) => package::script(path)?,
    };
    command.args(bench.options(options));
    if let Some(path) = json {
        command.arg("--json").arg(path);
    }
    step(&mut command)?;
    json.map_or(Ok(()), |path| read_rows(path).map(drop))
}

impl Bench {
    /// The given options, after the defaults they do not replace.
    fn options(&self, given: &[String]) -> Vec<String> {
        let is_given = |option: &str| {
            given
                .iter()
                .any(|word| word == option || word.strip_prefix(option).is_some_and(|rest| rest.starts_with('=')))
        };
        let defaults = self.defaults.iter().filter(|(option, _)| !is_given(option));
        defaults.flat_map(|&(option, value)| [option.into(), value.into()]).chain(given.iter().cloned()).collect()
    }

    /// The command that runs this bench with its default sizes.
    fn command_line(&self) -> String {
        format!("cargo xtask bench {} {}", self.name, self.options(&[]).join(" "))
    }
}

/// Reads and checks a bench's file.
fn read_rows(path: &Path) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Builds a program of `benches/`, a workspace of its own. It gets our lock file, so that both use the same versions and share
/// the target directory. RocksDB computes checksums in software unless it is compiled with SSE 4.2 and PCLMUL. Crates in Rust
/// detect these instructions at run time.
fn build_package(package: &str) -> Result<PathBuf> {
    let lock = root().join("benches/Cargo.lock");
    std::fs::copy(root().join("Cargo.lock"), &lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    let mut command = cargo(&["build", "--release", "--package", package]);
    command.env("CXXFLAGS_x86_64_unknown_linux_gnu", "-msse4.2 -mpclmul");
    step(command.args(["--manifest-path", "benches/Cargo.toml", "--target-dir"]).arg(target()))?;
    Ok(target().join("release").join(package))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_options_replace_defaults() {
        let bench = BENCHES.iter().find(|bench| bench.name == "oltp").unwrap();
        let options = |given: &[&str]| bench.options(&given.iter().map(|word| word.to_string()).collect::<Vec<_>>());
        assert_eq!(options(&[]), ["--rows", "1000000"]);
        assert_eq!(options(&["--threads", "1"]), ["--rows", "1000000", "--threads", "1"]);
        assert_eq!(options(&["--rows", "5"]), ["--rows", "5"]);
        assert_eq!(options(&["--rows=5"]), ["--rows=5"]);
        assert_eq!(bench.command_line(), "cargo xtask bench oltp --rows 1000000");
    }

    #[test]
    fn the_help_states_every_bench_and_its_sizes() {
        for bench in &BENCHES {
            let line = HELP.lines().find(|line| line.trim_start().starts_with(&format!("{} ", bench.name))).unwrap();
            let sizes = bench.options(&[]).join(" ");
            assert!(line.ends_with(&format!("({sizes})")), "{line}");
        }
    }

    #[test]
    fn rows_have_all_fields_and_no_others() {
        let row = r#"{"bench": "b", "workload": "w", "metric": "m", "unit": "s", "keyaki": 1, "peer": null,
                      "peer_name": null, "ratio": null}"#;
        assert_eq!(serde_json::from_str::<Row>(row).unwrap().keyaki, Some(1.0));
        assert!(serde_json::from_str::<Row>(&row.replace("\"unit\": \"s\", ", "")).is_err());
        assert!(serde_json::from_str::<Row>(&row.replace("\"ratio\"", "\"extra\"")).is_err());
    }
}
