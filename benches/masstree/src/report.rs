//! Reports: a table for each workload and number of threads, with the ratio to each peer, and the same as JSON rows.

use comfy_table::{Table, presets};
use keyaki_bench_report::{Better, Rows};

/// A figure of one map.
pub struct Figure {
    pub map: String,
    pub experiment: String,
    pub metric: String,
    pub value: f64,
}

/// The C++ implementation. Its figures are constants, measured on a machine of this kind with 10 M keys and 2 threads.
const MASSTREE_BETA: &str = "masstree-beta (earlier run)";

fn masstree_beta(workload: &str, experiment: &str, metric: &str) -> Option<f64> {
    let figures = match workload {
        "u64" => [4.4, 4.1, 0.54, 33.0],
        "bytes10" => [3.6, 3.9, 0.42, 53.0],
        "skewed20" => [3.6, 3.6, 0.42, 58.0],
        _ => return None,
    };
    let place = match (experiment, metric) {
        ("insert", "insert") => 0,
        ("insert" | "bulk", "get" | "get in batches") => 1,
        ("insert" | "bulk", "scans of 100") => 2,
        ("insert", "memory") => 3,
        _ => return None,
    };
    Some(figures[place])
}

/// The speed of bulk construction relative to insertion in the paper.
fn paper(workload: &str) -> f64 {
    if workload == "skewed20" { 18.0 } else { 2.48 }
}

pub fn unit(metric: &str) -> &'static str {
    match metric {
        "memory" => "bytes/key",
        "bulk / insertion" => "times",
        _ => "million/s",
    }
}

/// A metric of Keyaki beside that of one peer.
pub struct Compared {
    experiment: String,
    metric: String,
    keyaki: f64,
    peer: f64,
    name: String,
    /// Above 1 if Keyaki is better.
    ratio: f64,
}

/// All comparisons between Keyaki and peers in the figures of one workload and number of threads.
pub fn compare(figures: &[Figure], workload: &str, keys: usize, threads: usize) -> Vec<Compared> {
    let mut all = Vec::new();
    let mut add = |experiment: &str, metric: &str, keyaki: f64, peer: f64, name: &str| {
        let ratio = if metric == "memory" { peer / keyaki } else { keyaki / peer };
        let (experiment, metric, name) = (experiment.into(), metric.into(), name.into());
        all.push(Compared { experiment, metric, keyaki, peer, name, ratio });
    };
    let find = |map: &str, experiment: &str, metric: &str| {
        let found = figures.iter().find(|f| f.map == map && f.experiment == experiment && f.metric == metric);
        found.map(|figure| figure.value)
    };
    let mut peers: Vec<&str> = Vec::new();
    for figure in figures.iter().filter(|figure| figure.map != "keyaki") {
        if !peers.contains(&figure.map.as_str()) {
            peers.push(&figure.map);
        }
    }
    for Figure { experiment, metric, value, .. } in figures.iter().filter(|figure| figure.map == "keyaki") {
        for peer in &peers {
            // Batched lookups are compared with the peer's single ones, bulk loading with the peer's fastest way to
            // load.
            let same = if metric == "get in batches" { "get" } else { metric };
            let mut other = find(peer, experiment, same);
            if metric == "bulk load" {
                other = other.into_iter().chain(find(peer, "insert", "insert")).reduce(f64::max);
            } else if experiment == "bulk" {
                other = other.or(find(peer, "insert", same));
            }
            if let Some(other) = other {
                add(experiment, metric, *value, other, peer);
            }
        }
        if let (10_000_000, 2, Some(other)) = (keys, threads, masstree_beta(workload, experiment, metric)) {
            add(experiment, metric, *value, other, MASSTREE_BETA);
        }
    }
    if let (Some(bulk), Some(insert)) = (find("keyaki", "bulk", "bulk load"), find("keyaki", "insert", "insert")) {
        add("bulk", "bulk / insertion", bulk / insert, paper(workload), "published");
    }
    all
}

/// Prints a table with a row for each metric and a column for each peer, with the peer's figure and the ratio.
pub fn print(rows: &[Compared], title: &str) {
    let mut names: Vec<&str> = Vec::new();
    let mut metrics: Vec<(&str, &str, f64)> = Vec::new();
    for row in rows {
        if !names.contains(&row.name.as_str()) {
            names.push(&row.name);
        }
        if !metrics.iter().any(|(experiment, metric, _)| (*experiment, *metric) == (&row.experiment, &row.metric)) {
            metrics.push((&row.experiment, &row.metric, row.keyaki));
        }
    }
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["", "keyaki"].into_iter().chain(names.iter().copied()));
    for (experiment, metric, keyaki) in metrics {
        let cell = |name: &&str| {
            let row = rows.iter().find(|row| {
                (row.experiment.as_str(), row.metric.as_str(), row.name.as_str()) == (experiment, metric, *name)
            });
            row.map_or(String::new(), |row| format!("{:.2} ({:.2}x)", row.peer, row.ratio))
        };
        let label = format!("{} [{}]", label(experiment, metric), unit(metric));
        table.add_row([label, format!("{keyaki:.2}")].into_iter().chain(names.iter().map(cell)));
    }
    println!("\n{title} (in brackets: ratio, above 1 if Keyaki is better)\n{table}\n");
}

fn label(experiment: &str, metric: &str) -> String {
    match (experiment, metric) {
        ("insert", "insert") | ("bulk", "bulk load" | "bulk / insertion") => metric.to_string(),
        ("insert", _) => format!("{metric} after insertion"),
        ("bulk", _) => format!("{metric} after bulk"),
        _ => metric.to_string(),
    }
}

/// Adds the comparisons to the rows of the JSON file.
pub fn add(compared: &[Compared], workload: &str, rows: &mut Rows) {
    for row in compared {
        let better = if row.metric == "memory" { Better::Lower } else { Better::Higher };
        let metric = label(&row.experiment, &row.metric);
        rows.compare(workload, (&metric, unit(&row.metric), better), row.keyaki, (&row.name, row.peer));
    }
}
