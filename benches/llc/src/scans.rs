//! Hot data beside scans on this machine, with each scan method, in interleaved repetitions.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use keyaki_bench_report::{Better, Rows};
use keyaki_llc::Quartiles;
use keyaki_llc::calibrate::Chase;
use keyaki_llc::software::{ScanMethod, sum};
use keyaki_primitives::AlignedMemory;

use crate::report::table;

/// Sizes, methods and repetitions of the measurements.
#[derive(Debug)]
pub struct Setting {
    /// Interleaved repetitions.
    pub repetitions: usize,
    /// Sizes of scans; at least one.
    pub scan_bytes: Vec<usize>,
    /// Sizes of hot data.
    pub hot_bytes: Vec<usize>,
    /// Size of L2.
    pub l2_bytes: usize,
    /// Scan methods, plain loads first.
    pub methods: Vec<ScanMethod>,
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Memory for scans, with every page touched.
fn scanned(bytes: usize) -> std::io::Result<AlignedMemory> {
    let mut memory = AlignedMemory::huge(bytes)?;
    memory.words_mut().iter_mut().step_by(512).for_each(|word| *word = 1);
    Ok(memory)
}

/// The step between warming and probing.
#[derive(Debug, Clone, Copy)]
enum Between {
    /// A pause as long as the plain scan. It shows the effect of other load on the machine, which is the lower bound
    /// for every scan method.
    Pause,
    /// A scan.
    Scan(ScanMethod),
}

impl std::fmt::Display for Between {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Between::Pause => write!(out, "no scan, pause of equal length"),
            Between::Scan(method) => write!(out, "{method}"),
        }
    }
}

impl Setting {
    /// The last of the scan sizes.
    fn longest_scan(&self) -> usize {
        self.scan_bytes.last().copied().unwrap_or(512 << 20)
    }

    /// The steps: the plain scan, the pause, the other methods.
    fn between(&self) -> Vec<Between> {
        let mut all: Vec<Between> = self.methods.iter().map(|method| Between::Scan(*method)).collect();
        all.insert(1.min(all.len()), Between::Pause);
        all
    }
}

/// Runs a step; its milliseconds. `plain_ms`: the time of the last plain scan.
fn run_step(between: Between, memory: &AlignedMemory, plain_ms: &mut f64) -> f64 {
    let start = Instant::now();
    match between {
        Between::Pause => {
            while start.elapsed().as_secs_f64() * 1e3 < *plain_ms {
                std::hint::spin_loop();
            }
        }
        Between::Scan(method) => _ = black_box(sum(memory.words(), method)),
    }
    let elapsed = start.elapsed().as_secs_f64() * 1e3;
    if let Between::Scan(ScanMethod::Plain) = between {
        *plain_ms = elapsed;
    }
    elapsed
}

/// Probes of hot data (an index) after a scan. The first case is scaled down by one cache level: hot data of half of
/// L2, and a scan of eight times L2.
pub fn micro(setting: &Setting, report: &mut Rows) -> Outcome {
    let title = format!(
        "Dependent loads from hot data after a scan ({} interleaved repetitions, median and quartiles)",
        setting.repetitions
    );
    let header = ["hot data", "scan", "method", "ns per load", "harm avoided", "scan GB/s", "scan time"];
    let mut rows = table(&title, &header);
    let mut cases = vec![(setting.l2_bytes / 2, 8 * setting.l2_bytes)];
    for hot_bytes in &setting.hot_bytes {
        cases.extend(setting.scan_bytes.iter().map(|scan_bytes| (*hot_bytes, *scan_bytes)));
    }
    for (hot_bytes, scan_bytes) in cases {
        let memory = &scanned(scan_bytes)?;
        let mut hot = Chase::new(hot_bytes, 7)?;
        let probes = (hot.lines() / 8).max(500);
        let mut warm = Vec::new();
        let (all, mut last_ms) = (setting.between(), 0.0);
        let mut samples = vec![(Vec::new(), Vec::new()); all.len()];
        for _ in 0..setting.repetitions {
            hot.warm();
            warm.push(hot.run(probes));
            for (between, (probe_ns, scan_ms)) in all.iter().zip(&mut samples) {
                hot.warm();
                scan_ms.push(run_step(*between, memory, &mut last_ms));
                probe_ns.push(hot.run(probes));
            }
        }
        let (warm, bytes) = (Quartiles::of(&warm), scan_bytes);
        let name = format!("{} KiB", hot_bytes >> 10);
        rows.add_row([&name, &format!("{} MiB", bytes >> 20), "no scan", &warm.to_string(), "", "", ""]);
        report.figure(&format!("hot data of {name}"), "probe, warm", "ns", warm.median);
        let plain = (Quartiles::of(&samples[0].0).median, Quartiles::of(&samples[0].1).median);
        for (method, (probe_ns, scan_ms)) in all.iter().zip(&samples) {
            let (probe_ns, scan_ms) = (Quartiles::of(probe_ns), Quartiles::of(scan_ms));
            let kept = (plain.0 - probe_ns.median) / (plain.0 - warm.median);
            rows.add_row([
                String::new(),
                String::new(),
                method.to_string(),
                probe_ns.to_string(),
                format!("{:.0} %", 100.0 * kept),
                format!("{:.1}", bytes as f64 / scan_ms.median / 1e6),
                format!("{:+.1} %", 100.0 * (scan_ms.median / plain.1 - 1.0)),
            ]);
            let workload = format!("probe of {name} after a scan of {} KiB by {method}", bytes >> 10);
            report.compare(&workload, ("probe", "ns", Better::Lower), probe_ns.median, ("plain scan", plain.0));
            report.compare(&workload, ("scan", "ms", Better::Lower), scan_ms.median, ("plain scan", plain.1));
        }
    }
    println!("{rows}");
    Ok(())
}

/// The query-order experiment, for L3 (assumed: 8 MiB) and for L2. Query A reads a table of 60 % of the cache in index
/// order, with dependent loads and work on each row. Query B scans a table many times as large. Compares A after B with
/// A after A.
pub fn query_order(setting: &Setting, report: &mut Rows) -> Outcome {
    order_over((8 << 20) / 10 * 6, setting.longest_scan(), setting, report)?;
    order_over(setting.l2_bytes / 10 * 6, 8 * setting.l2_bytes, setting, report)
}

/// The query-order experiment with tables of these sizes.
fn order_over(a_bytes: usize, b_bytes: usize, setting: &Setting, report: &mut Rows) -> Outcome {
    let mut a = Chase::new(a_bytes, 9)?;
    let b = scanned(b_bytes)?;
    let lines = a.lines();
    let mut after_a = Vec::new();
    let (all, mut last_ms) = (setting.between(), 0.0);
    let mut after_b = vec![Vec::new(); all.len()];
    // Work per row besides its cache line, similar to that of a database engine.
    let query_a = |a: &mut Chase| {
        let start = Instant::now();
        let mut work = 0_u64;
        for _ in 0..lines {
            black_box(a.step());
            for step in 0..WORK_STEPS {
                work = work.rotate_left(5) ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            black_box(work);
        }
        start.elapsed().as_secs_f64() * 1e3
    };
    for _ in 0..setting.repetitions {
        query_a(&mut a);
        after_a.push(query_a(&mut a));
        for (between, samples) in all.iter().zip(&mut after_b) {
            query_a(&mut a);
            run_step(*between, &b, &mut last_ms);
            samples.push(query_a(&mut a));
        }
    }
    let alone = Quartiles::of(&after_a);
    let title = format!(
        "Query order: A reads {} KiB, B scans {} MiB ({} repetitions)",
        a_bytes >> 10,
        b_bytes >> 20,
        setting.repetitions
    );
    let mut rows = table(&title, &["A after", "ms", "slowdown", "share of the unprotected slowdown"]);
    rows.add_row(["A", &format!("{alone:.2}"), "", ""]);
    let name = format!("query order, A of {} KiB", a_bytes >> 10);
    report.figure(&name, "A after A", "ms", alone.median);
    let plain = Quartiles::of(&after_b[0]).median - alone.median;
    for (method, samples) in all.iter().zip(&after_b) {
        let after = Quartiles::of(samples);
        let slower = after.median / alone.median - 1.0;
        rows.add_row([
            if matches!(method, Between::Pause) { "a pause of equal length".into() } else { format!("B by {method}") },
            format!("{after:.2}"),
            format!("{:.1} %", 100.0 * slower),
            format!("{:.0} %", 100.0 * (after.median - alone.median) / plain),
        ]);
        let workload = format!("{name}, B by {method}");
        report.compare(&workload, ("A after B", "ms", Better::Lower), after.median, ("A after A", alone.median));
    }
    println!("{rows}");
    Ok(())
}

/// Steps of work per row of A; they take a few nanoseconds.
const WORK_STEPS: u64 = 8;

/// Latency of point lookups (dependent loads from hot data) on one thread beside an endless scan on another.
pub fn lookups(setting: &Setting, report: &mut Rows) -> Outcome {
    const LOADS: usize = 16;
    const LOOKUPS: usize = 20_000;
    let big = scanned(setting.longest_scan())?;
    let hot_bytes = setting.hot_bytes.first().copied().unwrap_or(5 << 20);
    let title = format!("Lookups of {LOADS} dependent loads from {} KiB beside an endless scan", hot_bytes >> 10);
    let mut rows = table(&title, &["beside", "median ns", "p99 ns", "p99 relative to alone"]);
    let mut hot = Chase::new(hot_bytes, 5)?;
    let rounds = (setting.repetitions / 3).max(3);
    let mut samples = vec![(Vec::new(), Vec::new()); setting.methods.len() + 1];
    for _ in 0..rounds {
        for (index, (medians, p99s)) in samples.iter_mut().enumerate() {
            let method = index.checked_sub(1).map(|index| setting.methods[index]);
            let times = beside(&mut hot, &big, method, LOOKUPS, LOADS);
            medians.push(times[LOOKUPS / 2]);
            p99s.push(times[LOOKUPS * 99 / 100]);
        }
    }
    let alone = Quartiles::of(&samples[0].1).median;
    for (index, (medians, p99s)) in samples.iter().enumerate() {
        let method = index.checked_sub(1).map(|index| setting.methods[index]);
        let name = method.map_or("nothing".into(), |method| format!("a scan by {method}"));
        let (median, p99) = (Quartiles::of(medians), Quartiles::of(p99s));
        let ratio = p99.median / alone;
        rows.add_row([name.clone(), format!("{median:.0}"), format!("{p99:.0}"), format!("{ratio:.2}x")]);
        report.compare(&format!("lookups beside {name}"), ("p99", "ns", Better::Lower), p99.median, ("alone", alone));
    }
    println!("{rows}");
    Ok(())
}

/// Sorted times of lookups, in nanoseconds, while another thread scans by `method` (`None`: does nothing).
fn beside(hot: &mut Chase, big: &AlignedMemory, method: Option<ScanMethod>, lookups: usize, loads: usize) -> Vec<f64> {
    let stop = AtomicBool::new(method.is_none());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // In parts, so that the thread stops soon.
                for part in big.words().chunks(4 << 20) {
                    black_box(sum(part, method.unwrap_or_default()));
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
        });
        hot.warm();
        let mut times: Vec<f64> = (0..lookups).map(|_| hot.run(loads) * loads as f64).collect();
        stop.store(true, Ordering::Relaxed);
        times.sort_by(f64::total_cmp);
        times
    })
}
