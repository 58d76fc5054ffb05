//! Sums of row references over ranges of keys.

use std::collections::BTreeMap;
use std::time::Instant;

use keyaki_vast::Goal;
use serde_json::json;

use crate::keys::Random;
use crate::peers::{BinaryTree, sum};
use crate::splus::SPlus;
use crate::{Arguments, BenchKey, Report, Workload, packed};

/// Microseconds of the middle one of some searches, whose sums are compared.
fn time<K: Copy>(ranges: &[(K, K, u64)], mut search: impl FnMut(K, K) -> u64) -> Result<f64, String> {
    let mut times = Vec::new();
    for &(from, to, right) in ranges {
        let start = Instant::now();
        let found = search(from, to);
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
        if found != right {
            return Err(format!("a wrong sum: {found} for {right}"));
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

pub fn run<K: BenchKey>(
    _: &Arguments,
    workload: &Workload<'_, K>,
    report: &mut Report,
) -> Result<(), Box<dyn std::error::Error>> {
    let keys = workload.keys;
    let values: Vec<u64> = (0..keys.len() as u64).collect();
    let index = packed(keys, Goal::Smallest)?;
    let splus = SPlus::new(keys, K::GREATEST);
    let small = workload.log <= 25;
    let tree = small.then(|| BinaryTree::new(keys));
    let map: Option<BTreeMap<K, u64>> = small.then(|| keys.iter().copied().zip(0..).collect());
    let distinct = map.as_ref().is_some_and(|map| map.len() == keys.len());
    println!("\n{}: microseconds for the sum of the row references of a range", workload.name);
    let bandwidth = bandwidth(&values);
    println!("  plain values are read at {bandwidth:.1} GB/s");
    for rows in [67, keys.len() / 1000, keys.len() / 100, keys.len() / 10] {
        let mut random = Random(rows as u64);
        let count = if rows > keys.len() / 200 { 21 } else { 101 };
        let ranges: Vec<(K, K, u64)> = (0..count)
            .map(|_| {
                let row = random.below((keys.len() - rows) as u64) as usize;
                let (from, to) = (keys[row], keys[row + rows]);
                let (first, end) = (keys.partition_point(|&key| key < from), keys.partition_point(|&key| key < to));
                (from, to, (first as u64..end as u64).sum())
            })
            .collect();
        let own = time(&ranges, |from, to| index.sum(from..to) as u64)?;
        let scan = time(&ranges, |from, to| {
            let mut sum = 0;
            index.scan(index.rows(from..to), |_, values| {
                sum += values.iter().sum::<u64>();
                std::ops::ControlFlow::Continue(())
            });
            sum
        })?;
        let plain = time(&ranges, |from, to| sum(&values[splus.lower_bound(from)..splus.lower_bound(to)]))?;
        println!(
            "  {rows:>10} rows: VAST {own:.2} ({:.2} with keys and values unpacked), S+-tree and plain values {plain:.2}",
            scan
        );
        let metric = format!("sum over {rows} rows");
        report.add(&workload.name, &metric, "µs", own, plain, "S+-tree, plain values");
        report.add(&workload.name, &format!("{metric}, unpacked"), "µs", scan, plain, "S+-tree, plain values");
        if let Some(tree) = &tree {
            let peer = time(&ranges, |from, to| tree.sum(from, to))?;
            println!("{:>18} binary tree {peer:.1}", "");
            report.add(&workload.name, &metric, "µs", own, peer, "binary tree");
        }
        if let Some(map) = map.as_ref().filter(|_| distinct) {
            let peer = time(&ranges, |from, to| map.range(from..to).map(|(_, &row)| row).sum())?;
            println!("{:>18} BTreeMap {peer:.1}", "");
            report.add(&workload.name, &metric, "µs", own, peer, "BTreeMap");
        }
        // What has to be read: levels of the tree twice, a summary for every 1024 rows, and the blocks at both ends; or all.
        let ends = 2.0 * 1024.0 * index.value_bytes() as f64 / keys.len() as f64;
        let levels = 2.0 * 64.0 * index.tree().plan().shapes.len() as f64;
        report.rows.push(json!({
            "bench": "vast", "figure": "bytes read", "workload": workload.name, "rows": rows,
            "summaries": levels + ends.min(rows as f64 * 2.0) + 64.0,
            "unpacked": levels + rows as f64 * (index.value_bytes() + index.key_bytes()) as f64 / keys.len() as f64,
            "plain": levels + rows as f64 * 8.0,
            "binary tree": rows as f64 * size_of::<(K, u32, u32, u32)>() as f64,
        }));
    }
    Ok(())
}

/// Gigabytes per second at which values are summed up.
fn bandwidth(values: &[u64]) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        std::hint::black_box(sum(values));
        best = best.min(start.elapsed().as_secs_f64());
    }
    values.len() as f64 * 8.0 / best / 1e9
}
