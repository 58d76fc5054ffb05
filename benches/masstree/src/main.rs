//! Compares Keyaki's Masstree with other ordered maps. See `cargo xtask bench masstree`.

mod cell;
mod keys;
mod maps;
mod report;

use std::process::Command;

use clap::Parser;
use crossbeam_skiplist::SkipMap;
use keyaki_bench_report::Rows;
use keyaki_masstree::Masstree;

use crate::cell::Cell;
use crate::keys::{Decimal, Integers, Keys, Skewed};
use crate::maps::{Congee, Map, PeerMasstree, Standard};
use crate::report::Figure;

/// The allocator of the peers. Keyaki takes the memory of large maps from the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Compare sorting, construction, lookups, scans and mixed work with other ordered maps
#[derive(Debug, Parser)]
struct Arguments {
    /// Keys in a map
    #[arg(long, default_value_t = 10_000_000)]
    keys: usize,
    /// Threads
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Only these workloads: u64, bytes10, skewed20
    #[arg(long, value_delimiter = ',', default_values_t = [String::from("u64"), "bytes10".into(), "skewed20".into()])]
    workloads: Vec<String>,
    /// Only these experiments: sort, insert, bulk, extend, mixed
    #[arg(long, value_delimiter = ',', default_values_t = ["sort", "insert", "bulk", "extend", "mixed"].map(String::from))]
    experiments: Vec<String>,
    /// Only these maps: keyaki, BTreeMap, crossbeam-skiplist, masstree, congee
    #[arg(long, value_delimiter = ',', default_values_t = MAPS.map(String::from))]
    maps: Vec<String>,
    /// Write the figures as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
    /// Run one map in this process and print its figures
    #[arg(long, hide = true)]
    cell: bool,
}

const MAPS: [&str; 5] = ["keyaki", "BTreeMap", "crossbeam-skiplist", "masstree", "congee"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    if arguments.cell {
        let cell =
            Cell { keys: arguments.keys, threads: arguments.threads[0], bulk: arguments.experiments[0] == "bulk" };
        match arguments.workloads[0].as_str() {
            "u64" => run_cell::<8, Integers>(&arguments, &cell),
            "bytes10" => run_cell::<10, Decimal>(&arguments, &cell),
            "skewed20" => run_cell::<20, Skewed>(&arguments, &cell),
            other => return Err(format!("no workload {other}").into()),
        }
        return Ok(());
    }
    compare(&arguments)
}

fn run_cell<const N: usize, K: Keys<N>>(arguments: &Arguments, cell: &Cell) {
    let experiment = arguments.experiments[0].as_str();
    if experiment == "sort" {
        return cell::sort::<N, K>(cell);
    }
    match arguments.maps[0].as_str() {
        "BTreeMap" => run_map::<N, K, Standard<N>>(experiment, cell),
        "crossbeam-skiplist" => run_map::<N, K, SkipMap<[u8; N], u64>>(experiment, cell),
        "masstree" => run_map::<N, K, PeerMasstree>(experiment, cell),
        "congee" if N == 8 => run_map::<N, K, Congee>(experiment, cell),
        "congee" => {}
        _ => run_map::<N, K, Masstree<u64>>(experiment, cell),
    }
}

fn run_map<const N: usize, K: Keys<N>, M: Map<N>>(experiment: &str, cell: &Cell) {
    match experiment {
        "mixed" => cell::mixed::<N, K, M>(cell),
        "extend" => cell::extend::<N, K, M>(cell),
        _ => cell::run::<N, K, M>(cell),
    }
}

/// The figures of one measurement: metrics and values.
type Figures = Vec<(String, f64)>;

/// Measures one map in a process of its own.
fn measure(
    arguments: &Arguments,
    experiment: &str,
    workload: &str,
    threads: usize,
    map: &str,
) -> Result<Figures, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["--cell", "--experiments", experiment, "--workloads", workload, "--maps", map])
        .args(["--threads", &threads.to_string(), "--keys", &arguments.keys.to_string()])
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{map}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(metric, value)| Some((metric.to_string(), value.parse().ok()?)))
        .collect())
}

fn compare(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    println!("{} keys; million operations per second; memory in bytes per key (resident)", arguments.keys);
    let mut rows = Rows::new("masstree");
    for workload in &arguments.workloads {
        for &threads in &arguments.threads {
            let figures = run_all(arguments, workload, threads);
            let compared = report::compare(&figures, workload, arguments.keys, threads);
            let title = format!("{workload}, {} keys, {threads} threads", arguments.keys);
            report::print(&compared, &title);
            report::add(&compared, &title, &mut rows);
        }
    }
    if let Some(path) = &arguments.json {
        rows.write(path)?;
    }
    Ok(())
}

/// Measures all maps and prints their figures.
fn run_all(arguments: &Arguments, workload: &str, threads: usize) -> Vec<Figure> {
    let mut all = Vec::new();
    for experiment in &arguments.experiments {
        let maps: &[String] = if experiment == "sort" { &arguments.maps[..1] } else { &arguments.maps };
        for map in maps {
            match measure(arguments, experiment, workload, threads, map) {
                Ok(figures) if figures.is_empty() => {}
                Ok(figures) => {
                    let line: Vec<String> =
                        figures.iter().map(|(metric, value)| format!("{metric} {value:.2}")).collect();
                    println!("{workload}, {threads} threads, {experiment}: {map}: {}", line.join(", "));
                    all.extend(figures.into_iter().map(|(metric, value)| {
                        // The experiment `sort` measures all libraries in one process.
                        let (metric, map) = match metric.split_once(", ") {
                            Some((metric, map)) => (metric.to_string(), map.to_string()),
                            None => (metric, map.clone()),
                        };
                        Figure { map, experiment: experiment.clone(), metric, value }
                    }));
                }
                Err(error) => println!("{workload}, {threads} threads, {experiment}: {error}"),
            }
        }
    }
    all
}
