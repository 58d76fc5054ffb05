//! `.stats`: the executor's counters for the last query. `.plot`: its reads over time.

use comfy_table::{CellAlignment, Table, presets};
use keyaki_exec::StatsSnapshot;

use crate::failure::Result;
use crate::plot;
use crate::run::Runner;
use crate::terminal::{bytes, significant, thousands};

const PLOT_WIDTH: usize = 60;
const PLOT_HEIGHT: usize = 6;

pub fn show(runner: &mut Runner) -> Result<()> {
    let stats: Vec<(String, StatsSnapshot)> =
        runner.session()?.last_stats().into_iter().map(|(name, stats)| (name, stats.snapshot())).collect();
    if stats.is_empty() {
        return runner.say("the last statement read no tables");
    }
    let mut text = format!("{}\n", table(&stats).trim_fmt());
    for (name, snapshot) in stats.iter().filter(|(_, snapshot)| snapshot.timeline.len() > 1) {
        text.push_str(&format!("\n{name}: reads in flight over time\n"));
        text.push_str(&plot::plot(&snapshot.timeline, snapshot.elapsed_ns, PLOT_WIDTH, PLOT_HEIGHT));
    }
    runner.show(&text)
}

/// Cells of a line beside the values of a plot: labels, the axis and a margin.
const LABELS: usize = 12;
/// Bounds of the width of a plot.
const WIDTHS: std::ops::RangeInclusive<usize> = 20..=400;
/// Width of a line where there is no terminal.
const LINE: usize = 80;

/// Plots the reads in flight and the reads per second of the last query, as wide as the terminal.
pub fn plot(runner: &mut Runner) -> Result<()> {
    let stats: Vec<(String, StatsSnapshot)> =
        runner.session()?.last_stats().into_iter().map(|(name, stats)| (name, stats.snapshot())).collect();
    let line = runner.style.max_width.or(runner.screen().map(|screen| screen.width)).unwrap_or(LINE);
    let width = line.saturating_sub(LABELS).clamp(*WIDTHS.start(), *WIDTHS.end());
    match plotted(&stats, width) {
        Some(text) => runner.show(&text),
        None => runner.say(if stats.is_empty() { NO_TABLES } else { NO_READS }),
    }
}

const NO_TABLES: &str = "no reads are recorded: the last statement ran no scan or pipeline (statements that find a few rows by \
                         key do not, unless SET keyaki.short_path = 'off')";
const NO_READS: &str = "no reads are recorded: the last query found all of its pages in memory (DROP CACHES, then run it \
                        again)";

/// The plots, and a line for each operator that has read pages; none if there is no such operator.
fn plotted(stats: &[(String, StatsSnapshot)], width: usize) -> Option<String> {
    let read: Vec<&(String, StatsSnapshot)> = stats.iter().filter(|(_, stats)| !stats.timeline.is_empty()).collect();
    let start_ns = read.iter().map(|(_, stats)| stats.started_ns).min()?;
    let end_ns = read.iter().map(|(_, stats)| stats.started_ns + stats.elapsed_ns).max()?;
    let elapsed_ns = end_ns - start_ns;
    let (mut in_flight, mut rates) = (vec![0.0; width], vec![0.0; width]);
    let mut operators = String::new();
    for (name, stats) in read {
        let timeline = plot::shifted(&stats.timeline, stats.started_ns - start_ns, stats.elapsed_ns);
        let add =
            |sum: &mut Vec<f64>, values: Vec<f64>| sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        add(&mut in_flight, plot::bins(&timeline, elapsed_ns, width));
        add(&mut rates, plot::rates(&timeline, elapsed_ns, width));
        let [from, to] = [stats.started_ns - start_ns, stats.started_ns - start_ns + stats.elapsed_ns]
            .map(|ns| significant(ns as f64 / 1e6));
        let (reads, bytes) = (thousands(stats.reads), bytes(stats.bytes_read));
        operators.push_str(&format!("{name}: {reads} reads, {bytes}, from {from} to {to} ms\n"));
    }
    let [in_flight, rates] = [in_flight, rates].map(|values| plot::draw(&values, elapsed_ns, PLOT_HEIGHT));
    Some(format!("reads in flight\n{in_flight}\nreads per second\n{rates}\n{operators}"))
}

fn table(stats: &[(String, StatsSnapshot)]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let header = ["operator", "rows", "pages", "cached", "shared", "read", "requests", "bytes", "IOPS", "flight", "ms"];
    table.set_header(header);
    for (name, snapshot) in stats {
        let rows: Vec<String> = snapshot.rows.iter().map(|&rows| thousands(rows)).collect();
        table.add_row([
            name.clone(),
            rows.join(" → "),
            thousands(snapshot.pages_requested),
            thousands(snapshot.pages_cached),
            thousands(snapshot.pages_shared),
            thousands(snapshot.pages_read),
            thousands(snapshot.reads),
            bytes(snapshot.bytes_read),
            thousands(per_second(snapshot.reads, snapshot.elapsed_ns) as u64),
            thousands(snapshot.in_flight_max),
            significant(snapshot.elapsed_ns as f64 / 1e6),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Events per second; 0 if no time has passed.
pub fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    if elapsed_ns == 0 { 0.0 } else { count as f64 * 1e9 / elapsed_ns as f64 }
}

#[cfg(test)]
mod tests {
    use keyaki_exec::Sample;

    use super::*;

    #[test]
    fn operators_are_added_up() {
        let sample = |at_ns, in_flight, reads| Sample { at_ns, in_flight, reads };
        let operator = |started_ns, timeline| StatsSnapshot {
            started_ns,
            elapsed_ns: 1_000_000,
            reads: 4,
            bytes_read: 8192,
            timeline,
            ..Default::default()
        };
        let first = operator(5_000_000, vec![sample(0, 3, 0), sample(1_000_000, 0, 4)]);
        let second = operator(6_000_000, vec![sample(0, 6, 0), sample(1_000_000, 0, 4)]);
        let stats = [("scan t".to_string(), first), ("scan u".to_string(), second)];
        let text = plotted(&stats, 20).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "reads in flight");
        assert_eq!(lines[1], "    6.00 ┤          ██████████");
        assert_eq!(lines[6], "         ┤████████████████████");
        assert!(lines[8].ends_with("2.00 ms"), "{text}");
        assert_eq!(lines[11], "    4000 ┤████████████████████");
        assert_eq!(lines.last(), Some(&"scan u: 4 reads, 8.0 KiB, from 1.00 to 2.00 ms"));
        assert!(lines.iter().all(|line| line.starts_with("scan") || line.chars().count() <= 20 + LABELS), "{text}");
        assert!(plotted(&[("scan t".into(), StatsSnapshot::default())], 20).is_none());
    }
}
