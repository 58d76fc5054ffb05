//! `.stats`: the executor's counters for the last query.

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
