//! Latencies of the machine's caches.

use keyaki_bench_report::Rows;
use keyaki_llc::calibrate::{CacheProfile, CalibrateOptions};

use crate::report::table;

/// Measures, prints and reports the cache profile.
pub fn run(report: &mut Rows) -> Result<(), Box<dyn std::error::Error>> {
    let profile = CacheProfile::measure(&CalibrateOptions::default())?;
    let huge = profile.huge_pages.map_or("unknown".into(), |share| format!("{:.0} %", 100.0 * share));
    let mut latencies = table(
        &format!("Dependent loads by working set (huge pages: {huge}); median and quartiles"),
        &["working set", "ns"],
    );
    for latency in &profile.latencies {
        let kib = latency.working_set_bytes >> 10;
        latencies.add_row([format!("{kib} KiB"), latency.load_ns.to_string()]);
        report.figure(&format!("working set of {kib} KiB"), "dependent load", "ns", latency.load_ns.median);
    }
    println!("{latencies}");
    let mut pauses = table(
        "Latency of a warm working set before and after a pause",
        &["working set", "pause", "ns before", "ns after"],
    );
    for retention in &profile.retentions {
        let (kib, pause) = (retention.working_set_bytes >> 10, retention.pause_ms);
        pauses.add_row([
            format!("{kib} KiB"),
            format!("{pause} ms"),
            retention.before_ns.to_string(),
            retention.after_ns.to_string(),
        ]);
        let workload = format!("working set of {kib} KiB");
        let reference = ("before", retention.before_ns.median);
        let metric = format!("dependent load after a pause of {pause} ms");
        report.reproduce(&workload, &metric, "ns", retention.after_ns.median, reference);
    }
    println!("{pauses}\neffective cache size: about {} KiB", profile.effective_bytes() >> 10);
    Ok(())
}
