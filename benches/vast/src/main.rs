//! Keyaki's VAST-Tree beside other ways to search sorted integers. See `cargo xtask bench vast`.

mod figures;
mod keys;
mod peers;
mod ranges;
mod splus;

use std::time::Instant;

use clap::Parser;
use keyaki_vast::{Goal, Index, IndexBuilder, Key, Options, Plan, Preset, Settings, Shape, Tree};
use serde_json::{Value, json};

use crate::peers::Search;

/// Lookups, ranges, compression, displacement and threads: side by side with other ways to search
#[derive(Debug, Parser)]
struct Arguments {
    /// Numbers of keys, as powers of two
    #[arg(long, value_delimiter = ',', default_values_t = [24])]
    log: Vec<u32>,
    /// poisson1 to poisson128, uniform, zipf, clustered, commits
    #[arg(long, value_delimiter = ',', default_values_t = keys::DISTRIBUTIONS.map(String::from))]
    distributions: Vec<String>,
    /// Bits of a key: 32, 64
    #[arg(long, value_delimiter = ',', default_values_t = [32, 64])]
    bits: Vec<u32>,
    /// search, ranges, compression, displacement, threads; plans (what else could be chosen)
    #[arg(long, value_delimiter = ',', default_values_t = EXPERIMENTS.map(String::from))]
    experiments: Vec<String>,
    /// Only these peers (S+-tree, PGM, Eytzinger, "binary tree", FAST, Elias-Fano, BTreeMap, branchless, partition_point)
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Lookups of a measurement
    #[arg(long, default_value_t = 1 << 20)]
    lookups: usize,
    /// Write the figures as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
    /// Draw the figures into this directory
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<std::path::PathBuf>,
}

/// Those that run if none are named; `plans` is the other one.
const EXPERIMENTS: [&str; 5] = ["search", "ranges", "compression", "displacement", "threads"];

/// A key that peers can take.
trait BenchKey: Key + TryFrom<u64> + Into<u64> {
    const GREATEST: Self;
}

impl BenchKey for u32 {
    const GREATEST: Self = u32::MAX;
}

impl BenchKey for u64 {
    const GREATEST: Self = u64::MAX;
}

/// Figures of all experiments.
#[derive(Default)]
struct Report {
    rows: Vec<Value>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let mut report = Report::default();
    for &log in &arguments.log {
        for distribution in &arguments.distributions {
            for &bits in &arguments.bits {
                if bits == 32 {
                    all::<u32>(&arguments, distribution, log, &mut report)?;
                } else {
                    all::<u64>(&arguments, distribution, log, &mut report)?;
                }
            }
        }
    }
    if let Some(directory) = &arguments.svg {
        figures::draw(directory, &report.rows)?;
    }
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&report.rows)?)?;
    }
    Ok(())
}

/// What is searched, and what is searched for.
struct Workload<'a, K> {
    name: String,
    distribution: &'a str,
    log: u32,
    keys: &'a [K],
    wanted: Vec<K>,
    right: Vec<usize>,
}

fn all<K: BenchKey>(
    arguments: &Arguments,
    distribution: &str,
    log: u32,
    report: &mut Report,
) -> Result<(), Box<dyn std::error::Error>> {
    let made: Vec<K> = keys::sorted(distribution, 1 << log).ok_or_else(|| format!("no distribution {distribution}"))?;
    let lines = splus::lines_of(&made, K::GREATEST);
    // SAFETY: the buffer is aligned to cache lines and begins with as many keys.
    let keys = unsafe { std::slice::from_raw_parts(lines.as_ptr().cast::<K>(), made.len()) };
    drop(made);
    let wanted = keys::wanted(keys, arguments.lookups);
    let right = wanted.iter().map(|&key| keys.partition_point(|&other| other < key)).collect();
    let name = format!("{distribution}, {} bits, 2^{log}", K::BYTES * 8);
    let workload = Workload { name, distribution, log, keys, wanted, right };
    for experiment in &arguments.experiments {
        match experiment.as_str() {
            "search" => search(arguments, &workload, report)?,
            "ranges" => ranges::run(arguments, &workload, report)?,
            "compression" => compression(&workload, report)?,
            "displacement" => displacement(&workload, report)?,
            "threads" => threads(&workload, report)?,
            "plans" => plans(&workload)?,
            other => return Err(format!("no experiment {other}").into()),
        }
    }
    Ok(())
}

/// The best of three, in nanoseconds a lookup. The answers are compared.
fn time<K: Key>(workload: &Workload<'_, K>, mut lookups: impl FnMut(&[K], &mut [usize])) -> Result<f64, String> {
    let mut rows = vec![0; workload.wanted.len()];
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        lookups(&workload.wanted, &mut rows);
        best = best.min(start.elapsed().as_nanos() as f64 / rows.len() as f64);
    }
    if rows == workload.right { Ok(best) } else { Err("wrong answers".into()) }
}

/// Single and batched lookups and the bits of the index for each key.
struct Figures {
    name: String,
    single: f64,
    many: f64,
    bits: f64,
}

fn measure<K: Key>(workload: &Workload<'_, K>, peer: &dyn Search<K>) -> Figures {
    let single = time(workload, |wanted, rows| {
        wanted.iter().zip(rows).for_each(|(&key, row)| *row = peer.single(key));
    });
    let many = time(workload, |wanted, rows| peer.many(wanted, rows));
    let bits = peer.bytes() as f64 * 8.0 / workload.keys.len() as f64;
    if single.is_err() || many.is_err() {
        println!("{}: {} gives wrong answers", workload.name, peer.name());
    }
    let (single, many) = (single.unwrap_or(f64::NAN), many.unwrap_or(f64::NAN));
    Figures { name: peer.name().into(), single, many, bits }
}

fn search<'k, K: BenchKey>(
    arguments: &Arguments,
    workload: &Workload<'k, K>,
    report: &mut Report,
) -> Result<(), Box<dyn std::error::Error>> {
    let keys = workload.keys;
    println!("\n{}: nanoseconds a lookup (single, batched); bits of the index for each key", workload.name);
    let mut peers = Vec::new();
    let mut run = |name: &str, log_max: u32, make: &dyn Fn() -> Option<Box<dyn Search<K> + 'k>>| {
        let chosen = match arguments.peers.is_empty() {
            true => workload.log <= log_max,
            false => arguments.peers.iter().any(|peer| peer == name),
        };
        if chosen && let Some(peer) = make() {
            let figures = measure(workload, peer.as_ref());
            println!("  {:<16}{:8.1}{:8.1}{:9.3}", figures.name, figures.single, figures.many, figures.bits);
            peers.push(figures);
        }
    };
    // Up to so many keys, as powers of two, by what they take.
    run("S+-tree", 40, &|| Some(Box::new(splus::SPlus::new(keys, K::GREATEST))));
    run("PGM", 40, &|| Some(Box::new(peers::Pgm::new(keys))));
    run("Elias-Fano", 27, &|| Some(Box::new(peers::EliasFano::new(keys)?)));
    run("Eytzinger", 26, &|| Some(Box::new(peers::Eytzinger::new(keys))));
    run("FAST", 26, &|| Some(Box::new(peers::Fast::new(keys)?)));
    run("branchless", 40, &|| Some(Box::new(peers::Branchless(keys))));
    run("partition_point", 26, &|| Some(Box::new(peers::Partition(keys))));
    run("binary tree", 26, &|| Some(Box::new(peers::BinaryTree::new(keys))));
    run("BTreeMap", 25, &|| {
        Some(Box::new(peers::Standard(
            keys.iter().rev().copied().zip((0..keys.len() as u64).rev()).collect(),
            keys.len(),
        )))
    });
    for (goal, name) in [(Goal::Fastest, "fast"), (Goal::Smallest, "small")] {
        let start = Instant::now();
        let tree = Tree::build(keys, &Settings::new(goal))?;
        let seconds = start.elapsed().as_secs_f64();
        let own = measure(workload, &Own { tree: &tree, keys });
        let shapes: Vec<String> =
            tree.plan().shapes.iter().map(|shape| format!("{}x{}", shape.width * 8, shape.simd_bytes)).collect();
        let displacement = tree.displacement();
        println!(
            "  VAST {name:<11}{:8.1}{:8.1}{:9.3}   slots of {}, [{}], displacement max {} mean {:.1}, built in {seconds:.2} s",
            own.single,
            own.many,
            own.bits,
            tree.plan().slot_rows,
            shapes.join(" "),
            displacement.max,
            displacement.mean
        );
        for peer in &peers {
            for (metric, unit, own, other) in [
                ("single", "ns", own.single, peer.single),
                ("batched", "ns", own.many, peer.many),
                ("index", "bits/key", own.bits, peer.bits),
            ] {
                report.add(&workload.name, &format!("{metric}, goal {name}"), unit, own, other, &peer.name);
            }
        }
    }
    Ok(())
}

/// A tree and its keys.
struct Own<'a, K: Key> {
    tree: &'a Tree<K>,
    keys: &'a [K],
}

impl<K: Key> Search<K> for Own<'_, K> {
    fn name(&self) -> &'static str {
        "VAST"
    }
    fn bytes(&self) -> usize {
        self.tree.bytes()
    }
    fn single(&self, key: K) -> usize {
        self.tree.lower_bound(self.keys, key)
    }
    fn many(&self, wanted: &[K], rows: &mut [usize]) {
        self.tree.lower_bound_many(self.keys, wanted, rows);
    }
}

impl Report {
    /// A row; the ratio is above 1 where Keyaki is better (all figures are better when smaller).
    fn add(&mut self, workload: &str, metric: &str, unit: &str, keyaki: f64, peer: f64, name: &str) {
        self.rows.push(json!({
            "bench": "vast", "workload": workload, "metric": metric, "unit": unit,
            "keyaki": keyaki, "peer": peer, "peer_name": name, "ratio": peer / keyaki,
        }));
    }
}

/// An index with packed keys and row references that are the rows.
fn packed<K: BenchKey>(keys: &[K], goal: Goal) -> Result<Index<K>, keyaki_vast::Error> {
    let mut builder = IndexBuilder::new(Options { settings: Settings::new(goal), packed: true });
    let mut row = 0;
    for keys in keys.chunks(1 << 16) {
        let rows: Vec<u64> = (row..row + keys.len() as u64).collect();
        builder.push(keys, &rows)?;
        row += keys.len() as u64;
    }
    builder.finish()
}

fn compression<K: BenchKey>(workload: &Workload<'_, K>, report: &mut Report) -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let index = packed(workload.keys, Goal::Smallest)?;
    let seconds = start.elapsed().as_secs_f64();
    let bits = index.key_bytes() as f64 * 8.0 / workload.keys.len() as f64;
    let many = time(workload, |wanted, rows| index.lower_bound_many(wanted, rows))?;
    println!(
        "{}: packed keys {bits:.2} bits ({:.1} % of plain), tree {:.3} bits; batched lookup {many:.1} ns; built from a stream at {:.1} M rows/s",
        workload.name,
        bits / (K::BYTES * 8) as f64 * 100.0,
        index.tree().bits_per_row(),
        workload.keys.len() as f64 / seconds / 1e6
    );
    report.add(&workload.name, "packed keys", "bits/key", bits, (K::BYTES * 8) as f64, "plain keys");
    Ok(())
}

/// Δw for the published parameters, and for those chosen.
fn displacement<K: BenchKey>(
    workload: &Workload<'_, K>,
    report: &mut Report,
) -> Result<(), Box<dyn std::error::Error>> {
    println!("{}: displacement in rows (mean, maximum), by parameters", workload.name);
    let mut row = |name: String, tree: Tree<K>| -> Result<(), String> {
        let figures = tree.displacement();
        let many = time(workload, |wanted, rows| tree.lower_bound_many(workload.keys, wanted, rows))?;
        println!(
            "  {name:<28}{:12.1}{:12}  {:.3} bits/key, {many:.1} ns batched",
            figures.mean,
            figures.max,
            tree.bits_per_row()
        );
        report.rows.push(json!({
            "bench": "vast", "figure": "displacement", "workload": workload.name, "distribution": workload.distribution,
            "parameters": name, "mean": figures.mean, "max": figures.max, "bits": tree.bits_per_row(), "batched": many,
            "regions": figures.regions.iter().map(|region| json!({
                "bits": region.bits, "bytes": region.bytes, "max": region.max, "mean": region.mean, "share": region.share,
            })).collect::<Vec<_>>(),
        }));
        Ok(())
    };
    for (exact, h16) in [(4, 6), (4, 12), (8, 6), (8, 12), (12, 0), (12, 6), (12, 12)] {
        let plan = Preset::published(exact, h16).plan::<K>(workload.keys.len())?;
        row(format!("published, exact {exact}, H16 {h16}"), Tree::build_with(workload.keys, &plan)?)?;
    }
    for goal in [Goal::Fastest, Goal::Smallest, Goal::Bounded { rows: 512 }] {
        row(format!("{goal:?}"), Tree::build(workload.keys, &Settings::new(goal))?)?;
    }
    Ok(())
}

/// Lookups with plans that could be chosen: by lines of a slot, shape of the lowest level, and of the one above.
fn plans<K: BenchKey>(workload: &Workload<'_, K>) -> Result<(), Box<dyn std::error::Error>> {
    let keys = workload.keys;
    println!("\n{}: lookups by parameters, beside the S+-tree at the same time", workload.name);
    let peer = splus::SPlus::new(keys, K::GREATEST);
    let whole = Shape::line(K::BYTES as u8);
    for lines in [1, 2, 4, 8, 16] {
        for bottom in [Shape::line(1), Shape::part(1, 32), Shape::part(1, 16), Shape::line(2), Shape::line(4), whole] {
            for above in [whole, Shape::line(2)] {
                if bottom.width as usize >= K::BYTES && (bottom != whole || above != whole) {
                    continue;
                }
                let slot_rows = lines * 64 / K::BYTES;
                let tree = (0..10).find_map(|more| {
                    let mut shapes = vec![whole; more];
                    shapes.extend([above, bottom]);
                    Tree::build_with(keys, &Plan { slot_rows, shapes }).ok()
                });
                let Some(tree) = tree else { continue };
                let other = measure(workload, &peer);
                let own = measure(workload, &Own { tree: &tree, keys });
                println!(
                    "  {slot_rows:>4} rows, {:>2}x{} below {:>2}x{}: single {:6.1} ({:4.2}), batched {:6.1} ({:4.2}), {:.3} bits/key, displacement {} {:.1}",
                    bottom.width * 8,
                    bottom.simd_bytes,
                    above.width * 8,
                    above.simd_bytes,
                    own.single,
                    own.single / other.single,
                    own.many,
                    own.many / other.many,
                    own.bits,
                    tree.displacement().max,
                    tree.displacement().mean
                );
            }
        }
    }
    Ok(())
}

/// Range searches (0.1 % of the rows, sum of row references) by all threads together, per second.
fn threads<K: BenchKey>(workload: &Workload<'_, K>, report: &mut Report) -> Result<(), Box<dyn std::error::Error>> {
    let index = packed(workload.keys, Goal::Fastest)?;
    let processors = std::thread::available_parallelism()?.get();
    let rows = workload.keys.len() / 1000;
    for threads in [1, 2, 4, 8].into_iter().filter(|&threads| threads <= processors) {
        let start = Instant::now();
        let count: usize = std::thread::scope(|scope| {
            let run = |first: usize| {
                let (index, keys) = (&index, workload.keys);
                move || {
                    let mut random = keys::Random(first as u64);
                    let mut done = 0;
                    while start.elapsed().as_millis() < 500 {
                        let row = random.below((keys.len() - rows) as u64) as usize;
                        std::hint::black_box(index.sum(keys[row]..keys[row + rows]));
                        done += 1;
                    }
                    done
                }
            };
            let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
            handles.into_iter().map(|handle| handle.join().unwrap_or(0)).sum()
        });
        let rate = count as f64 / start.elapsed().as_secs_f64();
        println!("{}: {threads} threads: {:.0} k range searches/s (0.1 % each)", workload.name, rate / 1e3);
        report.rows.push(json!({
            "bench": "vast", "figure": "threads", "workload": workload.name, "threads": threads, "per_second": rate,
        }));
    }
    Ok(())
}
