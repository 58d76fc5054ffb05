//! `.cache`, and `keyaki calibrate --cache`: the CPU's caches, and what is done about them.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use keyaki::{CacheCalibration, Database, Options, calibrate_caches};
use keyaki_llc::Quartiles;

use crate::bars::Bars;
use crate::failure::Result;
use crate::run::Runner;
use crate::terminal::bytes;

/// `.cache`
pub fn show(runner: &mut Runner) -> Result<()> {
    let status = runner.session.database().cache_status();
    let mut text = match &status.governor {
        Some(governor) => governor.to_string(),
        None => "the cache governor is off (SET keyaki.cache_governor = on)\n".into(),
    };
    if status.governor.is_some() {
        let source =
            if status.measured { "measured" } else { "as the machine tells; measured by keyaki calibrate --cache" };
        text.push_str(&format!("the last level holds {} ({source})\n", bytes(status.cache_bytes)));
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
    // Opened before the measurement: an error would come too late after it.
    let options = Options { must_exist: true, ..Default::default() };
    let database = database.map(|path| Database::open(path, options)).transpose()?;
    let bars = Bars::new();
    bars.status("measuring the CPU's caches".into());
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
    println!("\ndependent loads by working set (median, quartiles; in huge pages: {huge})");
    let mut loads = table(["working set", "ns"]);
    for latency in &profile.latencies {
        loads.add_row([bytes(latency.working_set_bytes), latency.load_ns.to_string()]);
    }
    println!("{}\n\nwhat is left of a warm working set after a pause", right(loads));
    let mut pauses = table(["working set", "pause ms", "ns before", "ns after"]);
    for retention in &profile.retentions {
        let ns = |quartiles: &Quartiles| quartiles.to_string();
        let (before, after) = (ns(&retention.before_ns), ns(&retention.after_ns));
        pauses.add_row([bytes(retention.working_set_bytes), format!("{}", retention.pause_ms), before, after]);
    }
    println!("{}\n\nprobes of {} after a scan", right(pauses), bytes(tuning.protected_bytes));
    let mut methods = table(["scan by", "ns a probe", "kept", "scan GB/s"]);
    methods.add_row(["no scan", &tuning.warm_ns.to_string(), "", ""]);
    for figure in &tuning.figures {
        let (method, kept) = (figure.method.to_string(), format!("{:.0} %", 100.0 * figure.kept));
        methods.add_row([method, figure.probe_ns.to_string(), kept, figure.gigabytes_per_second.to_string()]);
    }
    println!("{}\n", right(methods));
    println!("the caches hold about {} in practice", bytes(profile.effective_bytes()));
    println!("scans that stream: {}", tuning.reason);
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

/// All columns but the first to the right.
fn right(mut table: Table) -> String {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
