//! Measures which scan method best protects the cache on this machine, and prints the figures. `--json` prints the
//! tuning as JSON, for storing. `--l2` protects L2 instead of the last level, and compares more distances. `cargo run
//! --release -p keyaki-llc --example tune [--l2] [--json]`

use std::time::Instant;

use keyaki_llc::Caches;
use keyaki_llc::software::{ScanMethod, Tuning, TuningOptions};

fn main() -> std::io::Result<()> {
    let caches = Caches::detect();
    let start = Instant::now();
    let mut options = TuningOptions::for_caches(&caches);
    if std::env::args().any(|argument| argument == "--l2") {
        let l2_bytes = caches.bytes(2) as usize;
        let distances = [512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10];
        options.methods = distances.map(|ahead_bytes| ScanMethod::NonTemporal { ahead_bytes }).to_vec();
        options.methods.extend(distances.map(|behind_bytes| ScanMethod::FlushBehind { behind_bytes }));
        (options.protected_bytes, options.scan_bytes, options.rounds) = (l2_bytes / 2, 8 * l2_bytes, 31);
    }
    let tuning = Tuning::measure(&options)?;
    let elapsed = start.elapsed();
    if std::env::args().any(|argument| argument == "--json") {
        println!("{}", tuning.to_json());
        return Ok(());
    }
    println!(
        "{}, {} KiB protected; warm: {} ns per load",
        tuning.processor,
        tuning.protected_bytes >> 10,
        tuning.warm_ns
    );
    for figure in &tuning.figures {
        let (method, kept) = (figure.method.to_string(), 100.0 * figure.kept);
        println!(
            "{method:32} {:22} ns, {kept:4.0} % of the harm avoided; scan at {} GB/s",
            figure.probe_ns.to_string(),
            figure.gigabytes_per_second
        );
    }
    println!("-> {} [{:.2} s]", tuning.reason, elapsed.as_secs_f64());
    Ok(())
}
