//! Measures which way of scanning memory leaves the caches alone on this machine, and prints it, or with `--json` what may be stored.
//! `cargo run --release -p keyaki-llc --example tune`

use std::time::Instant;

use keyaki_llc::Caches;
use keyaki_llc::software::{Tuning, TuningOptions};

fn main() -> std::io::Result<()> {
    let caches = Caches::detect();
    let start = Instant::now();
    let tuning = Tuning::measure(&TuningOptions::for_caches(&caches))?;
    let elapsed = start.elapsed();
    if std::env::args().any(|argument| argument == "--json") {
        println!("{}", tuning.to_json());
        return Ok(());
    }
    println!(
        "{}, {} MiB protected; warm: {} ns a probe",
        tuning.processor,
        tuning.protected_bytes >> 20,
        tuning.warm_ns
    );
    for figure in &tuning.figures {
        let (method, kept) = (figure.method.to_string(), 100.0 * figure.kept);
        println!(
            "{method:32} {:22} ns, {kept:4.0} % kept; scan at {} GB/s",
            figure.probe_ns.to_string(),
            figure.gigabytes_per_second
        );
    }
    println!("-> {} [{:.2} s]", tuning.reason, elapsed.as_secs_f64());
    Ok(())
}
