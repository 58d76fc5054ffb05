//! Range searches: sums of row references over ranges of keys.

use std::collections::BTreeMap;
use std::time::Instant;

use keyaki_primitives::Random;
use keyaki_vast::Goal;
use serde_json::json;

use crate::peers::{BinaryTree, sum};
use crate::splus::SPlus;
use crate::{Arguments, BenchKey, Report, Workload, packed};

/// The median time of the searches in microseconds. Their sums are checked. All searches run once before, so that the
/// content of the caches does not depend on the peer measured before.
fn time<K: Copy>(ranges: &[(K, K, u64)], mut search: impl FnMut(K, K) -> u64) -> Result<f64, String> {
    let mut times = Vec::new();
    for &(from, to, _) in ranges {
        std::hint::black_box(search(from, to));
    }
    for &(from, to, right) in ranges {
        let start = Instant::now();
        let found = search(from, to);
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
        if found != right {
            return Err(format!("wrong sum {found}, expected {right}"));
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
    // Row references of a table in the order of the keys, and of one in random order.
    for shuffled in [false, true] {
        references(workload, shuffled, report)?;
    }
    Ok(())
}

/// The row reference of a row.
fn reference(row: usize, log: u32, shuffled: bool) -> u32 {
    if !shuffled {
        return row as u32;
    }
    // Multiplications by odd factors and xors with right shifts are permutations of the numbers of `log` bits.
    let mask = (1u64 << log) - 1;
    let mut number = row as u64;
    for factor in [0x9e37_79b9_7f4a_7c15u64, 0xbf58_476d_1ce4_e5b9] {
        number = number.wrapping_mul(factor) & mask;
        number ^= number >> (log / 2);
    }
    number as u32
}

fn references<K: BenchKey>(
    workload: &Workload<'_, K>,
    shuffled: bool,
    report: &mut Report,
) -> Result<(), Box<dyn std::error::Error>> {
    let keys = workload.keys;
    let values: Vec<u32> = (0..keys.len()).map(|row| reference(row, workload.log, shuffled)).collect();
    let index = packed(keys, &values, Goal::Smallest)?;
    let column = index.values().ok_or("no values")?;
    let splus = SPlus::new(keys, K::GREATEST);
    let small = workload.log <= 25;
    let tree = small.then(|| BinaryTree::new(keys, &values));
    let map: Option<BTreeMap<(K, u32), u32>> =
        small.then(|| keys.iter().copied().zip(0..).zip(values.iter().copied()).collect());
    let mut before = Vec::with_capacity(keys.len() + 1);
    before.push(0u64);
    for &value in &values {
        before.push(before[before.len() - 1] + value as u64);
    }
    let name = format!("{}, {}", workload.name, if shuffled { "any order" } else { "in order" });
    let bits = |bytes: usize| bytes as f64 * 8.0 / keys.len() as f64;
    println!(
        "\n{name}: microseconds for the sum of the row references of a range; packed keys {:.2} bits, row references {:.2}",
        bits(index.key_bytes()),
        bits(index.value_bytes())
    );
    let bandwidth = bandwidth(&values);
    println!("  plain row references are read at {bandwidth:.1} GB/s, when there are many");
    for rows in [67, keys.len() / 1000, keys.len() / 100, keys.len() / 10] {
        let mut random = Random::new(rows as u64);
        let count = if rows > keys.len() / 200 { 41 } else { 401 };
        let ranges: Vec<(K, K, u64)> = (0..count)
            .map(|_| {
                let row = random.below((keys.len() - rows) as u64) as usize;
                let (from, to) = (keys[row], keys[row + rows]);
                let (first, end) = (keys.partition_point(|&key| key < from), keys.partition_point(|&key| key < to));
                (from, to, before[end] - before[first])
            })
            .collect();
        let own = time(&ranges, |from, to| index.sum(from..to) as u64)?;
        let scan = time(&ranges, |from, to| {
            let rows = index.rows(from..to);
            column.sum_by_scan(rows.start, rows.end) as u64
        })?;
        let plain = time(&ranges, |from, to| sum(&values[splus.lower_bound(from)..splus.lower_bound(to)]))?;
        let point = |key: K| keys.partition_point(|&other| other < key);
        let binary = time(&ranges, |from, to| sum(&values[point(from)..point(to)]))?;
        let least = rows as f64 * 4.0 / bandwidth / 1e3;
        println!(
            "  {rows:>10} rows: VAST {own:.2} ({scan:.2} with all values unpacked); plain values below S+-tree {plain:.2}, partition_point {binary:.2}; at the bandwidth {least:.2}"
        );
        let metric = format!("sum over {rows} rows");
        let mut peers = vec![("S+-tree, plain values", plain), ("partition_point, plain values", binary)];
        if let Some(tree) = &tree {
            peers.push(("binary tree", time(&ranges, |from, to| tree.sum(from, to))?));
        }
        if let Some(map) = &map {
            let all = |from: K, to: K| map.range((from, 0)..(to, 0)).map(|(_, &row)| row as u64).sum();
            peers.push(("BTreeMap", time(&ranges, all)?));
        }
        for (peer, time) in &peers {
            report.add(&name, &metric, "µs", own, *time, peer);
            report.add(&name, &format!("{metric}, unpacked"), "µs", scan, *time, peer);
        }
        for (peer, time) in &peers[2..] {
            println!(
                "{:>18} {peer} {time:.1}, {:.0} times VAST's, {:.1} times that of unpacking",
                "",
                time / own,
                time / scan
            );
        }
        // Bytes read: the levels of the tree twice, and either summaries and values at both ends, or all values.
        let value = index.value_bytes() as f64 / keys.len() as f64;
        let levels = 2.0 * 64.0 * (index.tree().plan().shapes.len() as f64 + 1.0);
        report.figures.push(json!({
            "figure": "bytes read", "workload": name, "rows": rows,
            "summaries": levels + (2.0 * 512.0 * value).min(rows as f64 * value) + 64.0,
            "unpacked": levels + rows as f64 * value,
            "plain": levels + rows as f64 * 4.0,
            "binary tree": rows as f64 * size_of::<(K, u32, u32, u32)>() as f64,
        }));
    }
    Ok(())
}

/// The speed of summing plain values in gigabytes per second.
fn bandwidth(values: &[u32]) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        std::hint::black_box(sum(values));
        best = best.min(start.elapsed().as_secs_f64());
    }
    values.len() as f64 * 4.0 / best / 1e9
}
