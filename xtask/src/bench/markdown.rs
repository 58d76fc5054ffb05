//! `cargo xtask measurements`: the rows of a run as a Markdown table.

use std::path::PathBuf;

use clap::Args;

use super::info::RunInfo;
use super::{BENCHES, RUN_FILE, Row, read_rows};
use crate::run::Result;

#[derive(Debug, Args)]
pub struct Arguments {
    /// The directory that `cargo xtask bench all --json DIR` wrote
    directory: PathBuf,
}

/// A ratio that a figure must reach. Rows without an entry here must not be worse than their peer (ratio 1).
struct Target {
    bench: &'static str,
    /// Part of the metric's name.
    metric: &'static str,
    peer: &'static str,
    ratio_min: f64,
}

/// The first match counts.
const TARGETS: &[Target] = &[
    // Lookups beside a scan: at most 1.2 times the latency of lookups alone.
    Target { bench: "llc", metric: "p99", peer: "alone", ratio_min: 1.0 / 1.2 },
    Target { bench: "llc-sql", metric: "p99", peer: "alone", ratio_min: 1.0 / 1.2 },
    // The governor may cost a scan 3 %, and leaves a quarter of the slowdown that the scan causes.
    Target { bench: "llc-sql", metric: "time of B", peer: "unprotected", ratio_min: 1.0 / 1.03 },
    Target { bench: "llc-sql", metric: "slowdown", peer: "unprotected", ratio_min: 4.0 },
    // The Python package: lookups in twice the time of sqlite3 and a fifth of DuckDB's, results in 1.2 times DuckDB's time.
    Target { bench: "python", metric: "lookup", peer: "sqlite3", ratio_min: 0.5 },
    Target { bench: "python", metric: "lookup", peer: "DuckDB", ratio_min: 5.0 },
    Target { bench: "python", metric: "result", peer: "DuckDB", ratio_min: 1.0 / 1.2 },
    Target { bench: "python", metric: "append", peer: "sqlite3", ratio_min: 3.0 },
    // Half the memory of the S+-tree.
    Target { bench: "vast", metric: "index, VAST fast", peer: "S+-tree", ratio_min: 2.0 },
];

pub fn run(arguments: &Arguments) -> Result<()> {
    let info = RunInfo::read(&arguments.directory.join(RUN_FILE))?;
    println!("Machine: {}.\n", info.machine);
    for bench in &BENCHES {
        let file = arguments.directory.join(bench.name).with_extension("json");
        if file.exists() {
            println!("## {}\n\n{}", bench.name, table(&read_rows(&file)?, &info));
        }
    }
    Ok(())
}

/// The Markdown table of one bench.
fn table(rows: &[Row], info: &RunInfo) -> String {
    let mut text = String::from(
        "| workload | figure | Keyaki | target | peer | ratio | verdict | command | commit | date |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let target = target(row);
        let verdict = match (row.ratio, target) {
            (Some(ratio), Some(target)) if ratio >= target => "met",
            (Some(_), Some(_)) => "missed",
            _ => "–",
        };
        let peer = match (&row.peer_name, row.peer) {
            (Some(name), Some(figure)) => format!("{name}: {}", number(figure)),
            (Some(name), None) => format!("{name}: –"),
            (None, _) => "–".into(),
        };
        let command = info.commands.get(&row.bench).map_or("–".into(), |command| format!("`{command}`"));
        let cells = [
            row.workload.clone(),
            format!("{} ({})", row.metric, row.unit),
            row.keyaki.map_or("–".into(), number),
            target.map_or("–".into(), |target| format!("ratio ≥ {}", number(target))),
            peer,
            row.ratio.map_or("–".into(), number),
            verdict.into(),
            command,
            info.commit.clone(),
            info.date.clone(),
        ];
        text.push_str(&format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | ")));
    }
    text
}

/// The ratio that a row must reach; none if it has no ratio.
fn target(row: &Row) -> Option<f64> {
    row.ratio?;
    let peer = row.peer_name.as_deref()?;
    let matches =
        |target: &&Target| target.bench == row.bench && row.metric.contains(target.metric) && target.peer == peer;
    Some(TARGETS.iter().find(matches).map_or(1.0, |target| target.ratio_min))
}

/// At least three significant digits, with thousands separated by commas.
fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let decimals = (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, digits) = whole.split_at(whole.len() - whole.trim_start_matches('-').len());
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let shown = [0.0, 0.012345, 1.5, -12.345, 999.9, 1234.5, 76_543_210.0].map(number);
        assert_eq!(shown, ["0", "0.0123", "1.50", "-12.3", "1,000", "1,234", "76,543,210"]);
    }

    #[test]
    fn verdicts_follow_targets() {
        let row = |bench: &str, metric: &str, peer: Option<&str>, ratio: Option<f64>| Row {
            bench: bench.into(),
            workload: "w".into(),
            metric: metric.into(),
            unit: "s".into(),
            keyaki: Some(2.0),
            peer: peer.map(|_| 3.0),
            peer_name: peer.map(str::to_string),
            ratio,
        };
        let info = RunInfo {
            machine: "m".into(),
            date: "2026-01-31".into(),
            commit: "c0ffee".into(),
            commands: [("tpch".into(), "cargo xtask bench tpch --scale 1".into())].into(),
        };
        let rows = [
            row("tpch", "warm time", Some("DuckDB"), Some(1.5)),
            row("tpch", "warm time", Some("DuckDB"), Some(0.5)),
            row("llc", "p99", Some("alone"), Some(0.85)),
            row("llc", "load", None, None),
        ];
        let text = table(&rows, &info);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let command = "`cargo xtask bench tpch --scale 1` | c0ffee | 2026-01-31 |";
        let first = "| w | warm time (s) | 2.00 | ratio ≥ 1.00 | DuckDB: 3.00 | 1.50 | met |";
        assert_eq!(lines[0], format!("{first} {command}"));
        assert!(lines[1].contains("| 0.500 | missed |"));
        assert!(lines[2].contains("| ratio ≥ 0.833 | alone: 3.00 | 0.850 | met | – |"));
        assert!(lines[3].contains("| load (s) | 2.00 | – | – | – | – |"));
    }
}
