//! The demonstration's results: a table, plots of the reads in flight, JSON rows.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::Setup;
use super::measure::{Comparison, Run};
use crate::failure::{Failure, Result};
use crate::plot;
use crate::terminal::{bytes, significant, thousands};

const PLOT_WIDTH: usize = 60;

pub struct Report<'a> {
    results: &'a [Comparison],
    scale: f64,
    device: &'a str,
    page_bytes: u64,
    /// Measured random reads of one page per second at the best queue depth.
    device_iops: f64,
    /// Random reads of one page per second at queue depth 256, divided by those at depth 1.
    device_ratio: f64,
}

impl<'a> Report<'a> {
    pub fn new(setup: &'a Setup, scale: f64, results: &'a [Comparison]) -> Self {
        let page_bytes = setup.database.store().options().page_bytes as u64;
        let depths = setup.calibration.reads().iter().map(|rate| rate.depth as usize);
        let device_iops = depths.map(|depth| setup.calibration.iops(page_bytes, depth)).fold(0.0, f64::max);
        let device = setup.device.as_str();
        let iops = |depth| setup.calibration.iops(page_bytes, depth);
        Report { results, scale, device, page_bytes, device_iops, device_ratio: iops(256) / iops(1).max(1.0) }
    }

    fn device_share(&self, run: &Run) -> f64 {
        if self.device_iops > 0.0 { run.page_rate() / self.device_iops } else { 0.0 }
    }

    /// The results as a table. Pages per second count each page of a read of several neighbouring pages, so they can exceed the
    /// device's rate of single-page reads.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "customers",
            "rows",
            "pages read",
            "in order, s",
            "pages/s",
            "out of order, s",
            "reads",
            "pages/s",
            "device share",
            "in flight",
            "ratio",
        ]);
        for result in self.results {
            let (ours, theirs) = (&result.out_of_order, result.in_order.as_ref());
            let skipped = |expected: &f64| format!("skipped (~{})", significant(*expected));
            table.add_row([
                result.workload.share(),
                thousands(ours.rows().unsigned_abs()),
                thousands(ours.pages_read),
                theirs.map_or_else(skipped, |run| significant(run.seconds)),
                theirs.map_or_else(|_| "–".into(), |run| thousands(run.page_rate() as u64)),
                significant(ours.seconds),
                thousands(ours.reads),
                thousands(ours.page_rate() as u64),
                format!("{:.0} %", 100.0 * self.device_share(ours)),
                thousands(ours.in_flight_max),
                theirs.map_or_else(|_| "–".into(), |run| format!("{:.1}×", ratio(run, ours))),
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!(
            "{table}\nThe device performs at most {} random reads of {} per second, {:.1}× as many at queue depth 256 as at depth 1.",
            thousands(self.device_iops as u64),
            bytes(self.page_bytes),
            self.device_ratio
        )
    }

    /// Reads in flight over time: a line per execution mode and selectivity, with one scale for all.
    pub fn plots(&self) -> String {
        let peak_of = |run: &Run| plot::peak(&run.timeline, run.timeline_ns, PLOT_WIDTH);
        let runs = self.results.iter().flat_map(|result| [Some(&result.out_of_order), result.in_order.as_ref().ok()]);
        let peak = runs.flatten().map(peak_of).fold(1.0, f64::max);
        let mut text = format!("\nReads in flight during each run (a full block is {})\n", significant(peak));
        for result in self.results {
            let share = result.workload.share();
            let modes = [("in order", result.in_order.as_ref().ok()), ("out of order", Some(&result.out_of_order))];
            for (mode, run) in modes {
                if let Some(run) = run.filter(|run| run.timeline.len() > 1) {
                    let line = plot::sparkline(&run.timeline, run.timeline_ns, PLOT_WIDTH, peak);
                    let milliseconds = significant(run.timeline_ns as f64 / 1e6);
                    text.push_str(&format!("{share:>9} {mode:12} │{line}│ {milliseconds} ms\n"));
                }
            }
        }
        text
    }

    /// Rows `{bench, workload, metric, unit, keyaki, peer, peer_name, ratio}`. A ratio above 1 means that Keyaki is better.
    fn json(&self) -> Vec<Value> {
        let mut rows = Vec::new();
        for result in self.results {
            let share = result.workload.share();
            let workload = format!("TPC-H scale {}, {share} of customers, cold, {}", self.scale, self.device);
            let ours = &result.out_of_order;
            let theirs = result.in_order.as_ref().ok();
            let mut row = |metric: &str, unit: &str, keyaki: f64, peer: Option<f64>, ratio: Option<f64>| {
                rows.push(json!({
                    "bench": "demo", "workload": workload, "metric": metric, "unit": unit, "keyaki": keyaki,
                    "peer": peer, "peer_name": "in-order execution", "ratio": ratio,
                }));
            };
            row("time", "s", ours.seconds, theirs.map(|run| run.seconds), theirs.map(|run| ratio(run, ours)));
            let rate_ratio = theirs.filter(|run| run.page_rate() > 0.0).map(|run| ours.page_rate() / run.page_rate());
            row("pages per second", "1/s", ours.page_rate(), theirs.map(Run::page_rate), rate_ratio);
            row("pages read", "pages", ours.pages_read as f64, theirs.map(|run| run.pages_read as f64), None);
            row(
                "share of the device's reads",
                "1",
                self.device_share(ours),
                theirs.map(|run| self.device_share(run)),
                None,
            );
        }
        rows
    }

    pub fn write_json(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.json()).map_err(|error| Failure::Message(error.to_string()))?;
        std::fs::write(path, text + "\n").map_err(Failure::file(path))
    }
}

fn ratio(in_order: &Run, out_of_order: &Run) -> f64 {
    in_order.seconds / out_of_order.seconds.max(1e-9)
}
