//! `.cache` and `keyaki calibrate --cache`: status and measurement of the CPU caches.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use keyaki::{CacheCalibration, Options, calibrate_caches};
use keyaki_llc::Quartiles;

use crate::bars::Bars;
use crate::database;
use crate::failure::Result;
use crate::run::Runner;
use crate::terminal::bytes;

/// `.cache`
pub fn show(runner: &mut Runner) -> Result<()> {
    let status = runner.session()?.database().cache_status();
    let mut text = match &status.governor {
        Some(governor) => governor.to_string(),
        None => "the cache governor is off (turn it on with SET keyaki.cache_governor = on)\n".into(),
    };
    if status.governor.is_some() {
        let source = if status.measured {
            "measured"
        } else {
            "reported by the machine; run keyaki calibrate --cache to measure it"
        };
        text.push_str(&format!("last-level cache: {} ({source})\n", bytes(status.cache_bytes)));
    }
    for pin in &status.pins {
        let kept = match pin.in_memory {
            true => "in memory".into(),
            false => format!("{} of {} pages kept in the page cache", pin.pages_kept, pin.pages),
        };
        text.push_str(&format!("pin \"{}\": {}, {kept}\n", pin.name, bytes(pin.bytes)));
    }
    runner.show(&text)
}

/// `keyaki calibrate --cache [PATH]`
pub fn calibrate(database: Option<&Path>) -> Result<()> {
    // Opened before the measurement, which takes long, to report errors at once.
    let options = Options { must_exist: true, ..Default::default() };
    let database = database.map(|path| database::open(path, options)).transpose()?;
    let bars = Bars::new();
    bars.status("measuring the CPU caches".into());
    let measured = calibrate_caches();
    bars.clear();
    let measured = measured?;
    print(&measured);
    if let Some(database) = database {
        database.set_cache_calibration(measured)?;
        println!("stored in {}", database.path().join("caches.json").display());
    }
    Ok(())
}

fn print(measured: &CacheCalibration) {
    let (profile, tuning) = (&measured.profile, &measured.tuning);
    println!("{}", tuning.processor);
    for cache in profile.caches.all.iter().filter(|cache| cache.id == 0) {
        println!("L{} {:?}: {}, {} ways", cache.level, cache.kind, bytes(cache.bytes), cache.ways);
    }
    let huge = profile.huge_pages.map_or("unknown".into(), |share| format!("{:.0} %", 100.0 * share));
    println!("\nlatency of dependent loads by working set (median and quartiles; huge pages: {huge})");
    let mut loads = table(["working set", "ns"]);
    for latency in &profile.latencies {
        loads.add_row([bytes(latency.working_set_bytes), latency.load_ns.to_string()]);
    }
    println!("{}\n\nlatency of a warm working set before and after a pause", right(loads));
    let mut pauses = table(["working set", "pause ms", "ns before", "ns after"]);
    for retention in &profile.retentions {
        let ns = |quartiles: &Quartiles| quartiles.to_string();
        let (before, after) = (ns(&retention.before_ns), ns(&retention.after_ns));
        pauses.add_row([bytes(retention.working_set_bytes), format!("{}", retention.pause_ms), before, after]);
    }
    println!("{}\n\nlatency of probes of {} after a scan", right(pauses), bytes(tuning.protected_bytes));
    let mut methods = table(["scan method", "ns per probe", "kept", "scan GB/s"]);
    methods.add_row(["no scan", &tuning.warm_ns.to_string(), "", ""]);
    for figure in &tuning.figures {
        let (method, kept) = (figure.method.to_string(), format!("{:.0} %", 100.0 * figure.kept));
        methods.add_row([method, figure.probe_ns.to_string(), kept, figure.gigabytes_per_second.to_string()]);
    }
    println!("{}\n", right(methods));
    println!("effective cache size: about {}", bytes(profile.effective_bytes()));
    println!("scan method for large scans: {}", tuning.reason);
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

/// The table as text, with all columns but the first aligned to the right.
fn right(mut table: Table) -> String {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
