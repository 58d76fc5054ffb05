//! Compares Keyaki's VAST-Tree with other ways to search sorted integers. See `cargo xtask bench vast`.

mod figures;
mod keys;
mod peers;
mod ranges;
mod splus;

use std::time::Instant;

use clap::Parser;
use keyaki_bench_report::{Better, Rows};
use keyaki_primitives::{CACHE_LINE_BYTES, Random};
use keyaki_vast::{Goal, Index, IndexBuilder, Key, Options, Parameters, Plan, Preset, Shape, Tree};
use serde_json::{Value, json};

use crate::peers::Search;

/// Compare lookups, range searches, compression, displacement and scaling with other ways to search
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
    /// search, ranges, compression, displacement, threads; plans (a sweep over plans)
    #[arg(long, value_delimiter = ',', default_values_t = EXPERIMENTS.map(String::from))]
    experiments: Vec<String>,
    /// Only these peers (S+-tree, PGM, Eytzinger, "binary tree", FAST, Elias-Fano, BTreeMap, branchless,
    /// partition_point)
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Lookups per measurement
    #[arg(long, default_value_t = 1 << 20)]
    lookups: usize,
    /// Passes over the lookups; the shortest time of each part counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Write the figures as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
    /// Draw the figures into this directory
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<std::path::PathBuf>,
}

/// The default experiments. `plans` exists, too.
const EXPERIMENTS: [&str; 5] = ["search", "ranges", "compression", "displacement", "threads"];

/// A key type that all peers support.
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
struct Report {
    /// For the JSON file.
    rows: Rows,
    /// For the charts.
    figures: Vec<Value>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let mut report = Report { rows: Rows::new("vast"), figures: Vec::new() };
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
        figures::draw(directory, &report.figures)?;
    }
    if let Some(path) = &arguments.json {
        report.rows.write(path)?;
    }
    Ok(())
}

/// The keys, the search keys and the right answers.
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
    // SAFETY: the memory is aligned to cache lines and begins with so many keys.
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
            "plans" => plans(arguments, &workload)?,
            other => return Err(format!("no experiment {other}").into()),
        }
    }
    Ok(())
}

/// Parts of a pass over all lookups. For each part the shortest time of several passes counts, which reduces the
/// influence of other processes.
const PARTS: usize = 32;

/// Runs a pass and updates the shortest time of each part. Returns whether the answers are right.
fn pass<K: Key>(
    workload: &Workload<'_, K>,
    best: &mut [f64; PARTS],
    mut lookups: impl FnMut(&[K], &mut [usize]),
) -> bool {
    let length = workload.wanted.len().div_ceil(PARTS);
    let mut rows = vec![0; length];
    let mut right = true;
    for (best, (wanted, answers)) in
        best.iter_mut().zip(workload.wanted.chunks(length).zip(workload.right.chunks(length)))
    {
        let rows = &mut rows[..wanted.len()];
        let start = Instant::now();
        lookups(wanted, rows);
        *best = best.min(start.elapsed().as_nanos() as f64 / rows.len() as f64);
        right &= rows == answers;
    }
    right
}

fn mean(times: &[f64; PARTS]) -> f64 {
    times.iter().filter(|time| time.is_finite()).sum::<f64>()
        / times.iter().filter(|time| time.is_finite()).count() as f64
}

/// Nanoseconds per lookup. The answers are checked.
fn time<K: Key>(workload: &Workload<'_, K>, mut lookups: impl FnMut(&[K], &mut [usize])) -> Result<f64, String> {
    let mut best = [f64::INFINITY; PARTS];
    let right = (0..3).all(|_| pass(workload, &mut best, &mut lookups));
    if right { Ok(mean(&best)) } else { Err("wrong answers".into()) }
}

/// A way to search and its shortest times for single and batched lookups.
struct Contender<'a, K> {
    name: String,
    remark: String,
    peer: Box<dyn Search<K> + 'a>,
    single: [f64; PARTS],
    many: [f64; PARTS],
}

impl<'a, K: Key> Contender<'a, K> {
    fn new(name: &str, remark: String, peer: Box<dyn Search<K> + 'a>) -> Self {
        Contender { name: name.into(), remark, peer, single: [f64::INFINITY; PARTS], many: [f64::INFINITY; PARTS] }
    }

    fn run(&mut self, workload: &Workload<'_, K>) -> Result<(), String> {
        let (peer, name) = (self.peer.as_ref(), &self.name);
        let right = pass(workload, &mut self.single, |wanted, rows| {
            wanted.iter().zip(rows).for_each(|(&key, row)| *row = peer.single(key));
        });
        let right = right & pass(workload, &mut self.many, |wanted, rows| peer.many(wanted, rows));
        if right { Ok(()) } else { Err(format!("{}: {name} gives wrong answers", workload.name)) }
    }

    fn bits(&self, workload: &Workload<'_, K>) -> f64 {
        self.peer.bytes() as f64 * 8.0 / workload.keys.len() as f64
    }
}

fn search<'k, K: BenchKey>(
    arguments: &Arguments,
    workload: &Workload<'k, K>,
    report: &mut Report,
) -> Result<(), Box<dyn std::error::Error>> {
    let keys = workload.keys;
    let mut contenders = Vec::new();
    for (goal, name) in [(Goal::Fastest, "VAST fast"), (Goal::Smallest, "VAST small")] {
        let start = Instant::now();
        let tree = Tree::build(keys, &Parameters::new(goal))?;
        let seconds = start.elapsed().as_secs_f64();
        let shapes: Vec<String> =
            tree.plan().shapes.iter().map(|shape| format!("{}x{}", shape.width * 8, shape.simd_bytes)).collect();
        let remark = format!(
            "slots of {} rows, [{}], displacement max {} mean {:.1}, built in {seconds:.2} s",
            tree.plan().slot_rows,
            shapes.join(" "),
            tree.displacement().max,
            tree.displacement().mean
        );
        contenders.push(Contender::new(name, remark, Box::new(Own { tree, keys })));
    }
    let mut add = |name: &str, log_max: u32, make: &dyn Fn() -> Option<Box<dyn Search<K> + 'k>>| {
        let chosen = match arguments.peers.is_empty() {
            true => workload.log <= log_max,
            false => arguments.peers.iter().any(|peer| peer == name),
        };
        if chosen && let Some(peer) = make() {
            contenders.push(Contender::new(name, String::new(), peer));
        }
    };
    // Peers, with the largest number of keys for which they run by default, as a power of two. Memory and time limit
    // it.
    add("S+-tree", 40, &|| Some(Box::new(splus::SPlus::new(keys, K::GREATEST))));
    add("PGM", 40, &|| Some(Box::new(peers::Pgm::new(keys))));
    add("Elias-Fano", 27, &|| Some(Box::new(peers::EliasFano::new(keys)?)));
    add("Eytzinger", 26, &|| Some(Box::new(peers::Eytzinger::new(keys))));
    add("FAST", 26, &|| Some(Box::new(peers::Fast::new(keys)?)));
    add("branchless", 40, &|| Some(Box::new(peers::Branchless(keys))));
    add("partition_point", 26, &|| Some(Box::new(peers::Partition(keys))));
    add("binary tree", 26, &|| {
        let rows: Vec<u32> = (0..keys.len() as u32).collect();
        Some(Box::new(peers::BinaryTree::new(keys, &rows)))
    });
    add("BTreeMap", 25, &|| {
        Some(Box::new(peers::Standard(
            keys.iter().rev().copied().zip((0..keys.len() as u64).rev()).collect(),
            keys.len(),
        )))
    });
    for _ in 0..arguments.rounds {
        contenders.iter_mut().try_for_each(|contender| contender.run(workload))?;
    }
    println!("\n{}: nanoseconds per lookup (single, batched); size of the index in bits per key", workload.name);
    for contender in &contenders {
        let (single, many, bits) = (mean(&contender.single), mean(&contender.many), contender.bits(workload));
        println!("  {:<16}{single:8.1}{many:8.1}{bits:9.3}   {}", contender.name, contender.remark);
        report.figures.push(json!({
            "figure": "lookups", "workload": workload.name, "name": contender.name, "single": single,
            "batched": many, "bits": bits,
        }));
    }
    for own in &contenders[..2] {
        let name = &own.name;
        for peer in &contenders[2..] {
            for (metric, unit, own, other) in [
                ("single", "ns", mean(&own.single), mean(&peer.single)),
                ("batched", "ns", mean(&own.many), mean(&peer.many)),
                ("index", "bits/key", own.bits(workload), peer.bits(workload)),
            ] {
                report.add(&workload.name, &format!("{metric}, {name}"), unit, own, other, &peer.name);
            }
        }
    }
    Ok(())
}

/// A tree and its keys.
struct Own<'a, K: Key> {
    tree: Tree<K>,
    keys: &'a [K],
}

impl<K: Key> Search<K> for Own<'_, K> {
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
    /// Adds a row. All figures are better if smaller, and the ratio is above 1 if Keyaki is better.
    fn add(&mut self, workload: &str, metric: &str, unit: &str, keyaki: f64, peer: f64, name: &str) {
        self.rows.compare(workload, (metric, unit, Better::Lower), keyaki, (name, peer));
    }
}

/// An index with packed keys and values.
fn packed<K: BenchKey>(keys: &[K], values: &[u32], goal: Goal) -> Result<Index<K>, keyaki_vast::Error> {
    let mut builder = IndexBuilder::new(Options { parameters: Parameters::new(goal), packed: true });
    for (keys, values) in keys.chunks(1 << 16).zip(values.chunks(1 << 16)) {
        let values: Vec<u64> = values.iter().map(|&value| value as u64).collect();
        builder.push(keys, &values)?;
    }
    builder.finish()
}

fn compression<K: BenchKey>(workload: &Workload<'_, K>, report: &mut Report) -> Result<(), Box<dyn std::error::Error>> {
    let rows: Vec<u32> = (0..workload.keys.len() as u32).collect();
    let start = Instant::now();
    let index = packed(workload.keys, &rows, Goal::Smallest)?;
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

/// The displacement (Δw) of published presets and of chosen plans.
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
        let metrics = [("mean displacement", figures.mean), ("maximum displacement", figures.max as f64)];
        for (metric, value) in metrics {
            report.rows.figure(&workload.name, &format!("{metric}, {name}"), "rows", value);
        }
        report.figures.push(json!({
            "figure": "displacement", "workload": workload.name, "distribution": workload.distribution,
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
        let name = match goal {
            Goal::Fastest => "chosen, goal fast",
            Goal::Smallest => "chosen, goal small",
            Goal::Bounded { .. } => "chosen, at most 512 rows",
        };
        row(name.into(), Tree::build(workload.keys, &Parameters::new(goal))?)?;
    }
    Ok(())
}

/// Lookups with plans of all slot sizes, shapes of the lowest level and shapes of the level above.
fn plans<K: BenchKey>(arguments: &Arguments, workload: &Workload<'_, K>) -> Result<(), Box<dyn std::error::Error>> {
    let keys = workload.keys;
    println!("\n{}: lookups by plan, interleaved with those of the S+-tree", workload.name);
    let mut peer = Contender::new("S+-tree", String::new(), Box::new(splus::SPlus::new(keys, K::GREATEST)));
    let whole = Shape::line(K::BYTES as u8);
    for lines in [1, 2, 4, 8, 16] {
        for bottom in [Shape::line(1), Shape::part(1, 32), Shape::part(1, 16), Shape::line(2), Shape::line(4), whole] {
            for above in [whole, Shape::line(2)] {
                if bottom.width as usize >= K::BYTES && (bottom != whole || above != whole) {
                    continue;
                }
                let slot_rows = lines * CACHE_LINE_BYTES / K::BYTES;
                let tree = (0..10).find_map(|more| {
                    let mut shapes = vec![whole; more];
                    shapes.extend([above, bottom]);
                    Tree::build_with(keys, &Plan { slot_rows, shapes }).ok()
                });
                let Some(tree) = tree else { continue };
                let remark = format!(
                    "{:.3} bits/key, displacement {} {:.1}",
                    tree.bits_per_row(),
                    tree.displacement().max,
                    tree.displacement().mean
                );
                let mut own = Contender::new("VAST", remark, Box::new(Own { tree, keys }));
                for _ in 0..arguments.rounds {
                    own.run(workload)?;
                    peer.run(workload)?;
                }
                let single = (mean(&own.single), mean(&own.single) / mean(&peer.single));
                let many = (mean(&own.many), mean(&own.many) / mean(&peer.many));
                println!(
                    "  {slot_rows:>4} rows, {:>2}x{} below {:>2}x{}: single {:6.1} ({:4.2}), batched {:6.1} ({:4.2}), {}",
                    bottom.width * 8,
                    bottom.simd_bytes,
                    above.width * 8,
                    above.simd_bytes,
                    single.0,
                    single.1,
                    many.0,
                    many.1,
                    own.remark
                );
            }
        }
    }
    Ok(())
}

/// Range searches per second of all threads together. Each sums the row references of 0.1 % of the rows.
fn threads<K: BenchKey>(workload: &Workload<'_, K>, report: &mut Report) -> Result<(), Box<dyn std::error::Error>> {
    let rows: Vec<u32> = (0..workload.keys.len() as u32).collect();
    let index = packed(workload.keys, &rows, Goal::Fastest)?;
    let processors = std::thread::available_parallelism()?.get();
    let rows = workload.keys.len() / 1000;
    for threads in [1, 2, 4, 8].into_iter().filter(|&threads| threads <= processors) {
        let start = Instant::now();
        let count: usize = std::thread::scope(|scope| {
            let run = |first: usize| {
                let (index, keys) = (&index, workload.keys);
                move || {
                    let mut random = Random::new(first as u64);
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
        report.rows.figure(&workload.name, &format!("range searches of 0.1 %, {threads} threads"), "1/s", rate);
        report.figures.push(json!({
            "figure": "threads", "workload": workload.name, "threads": threads, "per_second": rate,
        }));
    }
    Ok(())
}
