//! What the machine's caches can show.

use keyaki_llc::calibrate::{CacheProfile, CalibrateOptions};

use crate::report::{Report, table};

pub fn run(report: &mut Report) -> Result<(), Box<dyn std::error::Error>> {
    let profile = CacheProfile::measure(&CalibrateOptions::default())?;
    let huge = profile.huge_pages.map_or("unknown".into(), |share| format!("{:.0} %", 100.0 * share));
    let mut latencies = table(
        &format!("Dependent loads by working set (huge pages: {huge}); median and quartiles"),
        &["working set", "ns"],
    );
    for latency in &profile.latencies {
        let kib = latency.working_set_bytes >> 10;
        latencies.add_row([format!("{kib} KiB"), latency.load_ns.to_string()]);
        report.figure(&format!("load, working set of {kib} KiB"), "ns", latency.load_ns.median);
    }
    println!("{latencies}");
    let mut pauses = table("What is left after a pause", &["working set", "pause", "ns before", "ns after"]);
    for retention in &profile.retentions {
        let (kib, pause) = (retention.working_set_bytes >> 10, retention.pause_ms);
        pauses.add_row([
            format!("{kib} KiB"),
            format!("{pause} ms"),
            retention.before_ns.to_string(),
            retention.after_ns.to_string(),
        ]);
        report.figure(&format!("load after {pause} ms, working set of {kib} KiB"), "ns", retention.after_ns.median);
    }
    println!("{pauses}\nthe caches hold about {} KiB in practice", profile.effective_bytes() >> 10);
    report.note("profile", serde_json::to_value(&profile)?);
    Ok(())
}
