//! Benchmarks of cache protection, on this machine and in the simulator. Run by `cargo xtask bench llc`.

mod caches;
mod report;
mod scans;
mod simulated;

use std::path::PathBuf;

use clap::Parser;
use keyaki_bench_report::Rows;
use keyaki_llc::software::{ScanMethod, Tuning, TuningOptions};
use keyaki_llc::{Caches, Governor, GovernorOptions};

/// Measures the caches of this machine and scans beside hot data by each scan method, and simulates the published
/// experiments
#[derive(Debug, Parser)]
struct Arguments {
    /// Parts to run: caches, scans, order, lookups, simulated
    #[arg(long, value_delimiter = ',', default_values_t = PARTS.map(String::from))]
    parts: Vec<String>,
    /// Interleaved repetitions of the measurements on this machine
    #[arg(long, default_value_t = 31)]
    repetitions: usize,
    /// MiB of large scans; parts that need one size use the last
    #[arg(long, value_delimiter = ',', default_values_t = [64, 512])]
    scan_mib: Vec<usize>,
    /// MiB of hot data
    #[arg(long, value_delimiter = ',', default_values_t = [5, 8])]
    hot_mib: Vec<usize>,
    /// Write the figures as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const PARTS: [&str; 5] = ["caches", "scans", "order", "lookups", "simulated"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    if let Some(unknown) = arguments.parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(format!("part \"{unknown}\" does not exist (parts: {})", PARTS.join(", ")).into());
    }
    if arguments.repetitions == 0
        || arguments.scan_mib.contains(&0)
        || arguments.scan_mib.is_empty()
        || arguments.hot_mib.contains(&0)
    {
        return Err("repetitions and sizes must be at least 1".into());
    }
    let wanted = |part: &str| arguments.parts.iter().any(|wanted| wanted == part);
    let mut report = Rows::new("llc");
    let caches = Caches::detect();
    let tuning = Tuning::measure(&TuningOptions::for_caches(&caches))?;
    let governor = Governor::new(GovernorOptions {
        software: keyaki_llc::governor::Software::Given(tuning.clone()),
        ..GovernorOptions::default()
    });
    println!("{}\n{}", tuning.processor, governor.status());
    if wanted("caches") {
        caches::run(&mut report)?;
    }
    // All methods that a tuning may choose, because the choice also depends on other load on the machine.
    let ahead = [4 << 10, 16 << 10].map(|ahead_bytes| ScanMethod::NonTemporal { ahead_bytes });
    let behind = [1 << 10, 8 << 10].map(|behind_bytes| ScanMethod::FlushBehind { behind_bytes });
    let methods = ahead.into_iter().chain(behind);
    let methods: Vec<ScanMethod> =
        std::iter::once(ScanMethod::Plain).chain(methods.filter(|method| method.is_supported())).collect();
    let setting = scans::Setting {
        repetitions: arguments.repetitions,
        scan_bytes: arguments.scan_mib.iter().map(|mib| mib << 20).collect(),
        hot_bytes: arguments.hot_mib.iter().map(|mib| mib << 20).collect(),
        l2_bytes: caches.bytes(2) as usize,
        methods,
    };
    if wanted("scans") {
        scans::micro(&setting, &mut report)?;
    }
    if wanted("order") {
        scans::query_order(&setting, &mut report)?;
    }
    if wanted("lookups") {
        scans::lookups(&setting, &mut report)?;
    }
    if wanted("simulated") {
        simulated::run(&mut report)?;
    }
    if let Some(path) = &arguments.json {
        report.write(path)?;
    }
    Ok(())
}
