//! Predicts write amplification and read costs from sizes alone, with the store's own decisions about flushes.
//!
//! ```sh
//! cargo run --release -p keyaki-store --example policy -- [name=value …]
//! ```
//! Names of the workload: `keys`, `row_bytes`, `window` (the keys of each flush are uniform over a random interval with
//! this share of all keys), `seed`. Names of options: `page_bytes`, `leaf_bytes`, `fan_out`, `node_buffer_bytes`,
//! `runs_per_node`, `buffer_bytes`, `cache_bytes`, `checkpoint_log_bytes`. A comma separates several values; all
//! combinations are computed. `policy` is `tiered`, `leveled` or, by default, both. `svg=DIRECTORY` draws charts of
//! fan-out and node size instead.
//!
//! Rows have incompressible values. `examples/key_value` measures the same workload on the store.

mod chart;
mod costs;
mod tree;

use std::error::Error;
use std::path::PathBuf;

use keyaki_primitives::Random;
use keyaki_store::{MergePolicy, Options};

use crate::costs::{Costs, costs};
use crate::tree::{Encoding, Tree, Written, unit};

/// Bytes of a page that are not rows, and those of a row beside its key and value.
const PAGE_HEADER_BYTES: u64 = 60;
const ROW_OVERHEAD_BYTES: f64 = 1.9;
/// Bytes of a row in a root buffer, and in the log, beside its key and value.
const BUFFER_OVERHEAD_BYTES: f64 = 87.0;
const MESSAGE_OVERHEAD_BYTES: f64 = 7.0;
const LOG_OVERHEAD_BYTES: f64 = 7.0;
/// Bytes in root buffers at a flush, per byte of their budget: writers continue during the flush before.
const BUFFER_FILL: f64 = 1.2;

/// The rows that are written.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    pub keys: u64,
    /// Bytes of a key and its value.
    pub row_bytes: u64,
    /// Share of the keys over which the keys of one flush are distributed.
    pub window: f64,
    pub seed: u64,
}

/// The result of a simulation.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub costs: Costs,
    pub written: Written,
    /// Bytes written per byte of rows, without the log.
    pub amplification: f64,
    /// Bytes of log per byte of rows.
    pub log: f64,
    /// Bytes of extents per byte of rows.
    pub space: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut settings: Vec<(String, Vec<String>)> = Vec::new();
    let mut directory: Option<PathBuf> = None;
    for argument in std::env::args().skip(1) {
        let (name, values) = argument.split_once('=').ok_or("arguments are name=value")?;
        match name {
            "svg" => directory = Some(values.into()),
            _ => settings.push((name.to_string(), values.split(',').map(str::to_string).collect())),
        }
    }
    if !settings.iter().any(|(name, _)| name == "policy") {
        settings.push(("policy".into(), vec!["tiered".into(), "leveled".into()]));
    }
    let mut combinations = vec![Vec::new()];
    for (name, values) in &settings {
        let with = |combination: &Vec<(String, String)>, value: &String| {
            combination.iter().cloned().chain([(name.clone(), value.clone())]).collect()
        };
        combinations = combinations.iter().flat_map(|old| values.iter().map(move |value| with(old, value))).collect();
    }
    if let Some(directory) = directory {
        let (workload, options) = parse(&combinations[0])?;
        return chart::draw(&directory, &workload, &options);
    }
    println!(
        "| parameters | written, without the log | with it | root runs, merges, leaves, node tables | levels | runs on the path | \
         pages per get without filters | with filters and cache | pages per scan | space | index pages, MB |\n\
         |---|---|---|---|---|---|---|---|---|---|---|"
    );
    for combination in combinations {
        let (workload, options) = parse(&combination)?;
        let figures = simulate(&workload, &options);
        let names: Vec<String> = combination.iter().map(|(name, value)| format!("{name}={value}")).collect();
        println!("| {} | {} |", names.join(" "), figures.row(&workload));
    }
    Ok(())
}

fn parse(settings: &[(String, String)]) -> Result<(Workload, Options), Box<dyn Error>> {
    let mut workload = Workload { keys: 20_000_000, row_bytes: 116, window: 1.0, seed: 1 };
    let mut options = Options::default();
    for (name, value) in settings {
        let number = || value.parse::<usize>().map_err(|error| format!("{name}={value}: {error}"));
        match name.as_str() {
            "keys" => workload.keys = number()?.max(1) as u64,
            "row_bytes" => workload.row_bytes = number()?.max(1) as u64,
            "window" => workload.window = value.parse::<f64>()?.clamp(1e-6, 1.0),
            "seed" => workload.seed = number()? as u64,
            "page_bytes" => options.page_bytes = number()?,
            "leaf_bytes" => options.leaf_bytes = number()?,
            "fan_out" => options.fan_out = number()?,
            "node_buffer_bytes" => options.node_buffer_bytes = number()?,
            "runs_per_node" => options.runs_per_node = number()?,
            "buffer_bytes" => options.buffer_bytes = number()?,
            "cache_bytes" => options.cache_bytes = number()?,
            "checkpoint_log_bytes" => options.checkpoint_log_bytes = number()? as u64,
            "policy" if value == "tiered" => options.merge_policy = MergePolicy::Tiered,
            "policy" if value == "leveled" => options.merge_policy = MergePolicy::Leveled,
            _ => return Err(format!("unknown argument {name}={value}").into()),
        }
    }
    Ok((workload, options))
}

/// Loads the rows of a workload into an empty tree.
pub fn simulate(workload: &Workload, options: &Options) -> Figures {
    let row = workload.row_bytes as f64;
    let page_bytes = options.page_bytes.next_multiple_of(4096) as u64;
    let page_rows = ((page_bytes - PAGE_HEADER_BYTES) as f64 / (row + ROW_OVERHEAD_BYTES)).max(1.0) as u64;
    let encoding = Encoding { page_bytes, page_rows, message_bytes: row + MESSAGE_OVERHEAD_BYTES };
    let buffer_rows = (options.buffer_bytes as f64 * BUFFER_FILL / (row + BUFFER_OVERHEAD_BYTES)).max(1.0) as u64;
    let mut tree = Tree::new(options, encoding, workload.seed);
    let mut windows = Random::new(workload.seed);
    let mut written = 0;
    while written < workload.keys {
        let rows = buffer_rows.min(workload.keys - written);
        let low = unit(&mut windows) * (1.0 - workload.window);
        tree.flush(rows, low, low + workload.window);
        written += rows;
    }
    let costs = costs(&tree, workload.keys, options.cache_bytes as f64);
    // The node table grows with the rows, from one checkpoint to the next.
    let log_bytes = workload.keys as f64 * (row + LOG_OVERHEAD_BYTES);
    let checkpoints = (log_bytes / options.checkpoint_log_bytes.max(1) as f64).max(1.0);
    tree.written.node_tables = (costs.node_table as f64 * (checkpoints + 1.0) / 2.0) as u64;
    let Written { buffers, merges, leaves, node_tables } = tree.written;
    let bytes = (workload.keys * workload.row_bytes) as f64;
    Figures {
        costs,
        written: tree.written,
        amplification: (buffers + merges + leaves + node_tables) as f64 / bytes,
        log: 1.0 + LOG_OVERHEAD_BYTES / row,
        space: costs.space as f64 / bytes,
    }
}

impl Figures {
    fn row(&self, workload: &Workload) -> String {
        let bytes = (workload.keys * workload.row_bytes) as f64;
        let Written { buffers, merges, leaves, node_tables } = self.written;
        let parts = [buffers, merges, leaves, node_tables].map(|part| format!("{:.2}", part as f64 / bytes));
        let costs = &self.costs;
        format!(
            "{:.2} | {:.2} | {} | {} | {:.1} | {:.1} | {:.2} | {:.1} | {:.2} | {:.0}",
            self.amplification,
            self.amplification + self.log,
            parts.join(", "),
            costs.depth,
            costs.runs,
            costs.pages_unfiltered,
            costs.pages_get,
            costs.pages_scan,
            self.space,
            costs.index_bytes as f64 / 1e6
        )
    }
}
