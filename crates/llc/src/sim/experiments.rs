//! Simulations of the published experiments with SQLite on a Xeon with 10 MiB of L3, with and without partitioning
//! (Shimizu and Yamada: a CPU cache partitioning method based on memory objects of a DBMS). [`paper`] runs all of them
//! and lists the published beside the simulated figures.
//!
//! - *Query order* (tables 4 and 5): query A reads a table of 7.4 MB, query B a table of 15 MB. Each runs repeatedly
//!   alone, or in alternation.
//! - *Join* (table 9): a thousand probes of an index of 5 MB, with a scan of 15 MB between any two runs.
//! - *Two queries* (tables 10 and 11): queries in the shape of TPC-H Q14 and Q18 on 12 MB, after a run of Q14 and a
//!   sweep over the cache.
//!
//! Partitioned means, as in the publication: the data to protect are loaded under a mask of all ways, and all later
//! work runs under a mask of the fewest ways. In the query-order experiment only B runs under that mask.

use serde::Serialize;

use super::generate::{BTree, Table};
use super::{Access, Counts, Machine, Op, Simulator, TimeModel};
use crate::CapacityMask;

/// The protection of the data of query A in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Protection {
    /// No protection.
    None,
    /// The other side may allocate only in this many ways of the last level.
    Ways(u32),
    /// The other side loads by non-temporal prefetches.
    NonTemporal,
    /// The other side flushes each line this many bytes behind its loads.
    FlushBehind(u64),
}

/// One row: the published and the simulated figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The number of the published table.
    pub table: u32,
    /// The experiment.
    pub what: &'static str,
    /// With partitioning.
    pub partitioned: bool,
    /// Published miss ratio of the last level; NaN if there is none.
    pub paper_miss_ratio: f64,
    /// Published time per run; NaN if there is none.
    pub paper_ms: f64,
    /// Simulated miss ratio of the last level.
    pub miss_ratio: f64,
    /// Simulated time per run.
    pub ms: f64,
}

const MB: u64 = 1_000_000;
/// The class of the other side.
const CLASS: u8 = 1;
/// Ways of the smallest class: a tenth of the cache.
const FEWEST: u32 = 2;
/// First addresses of the objects.
const A: u64 = 1 << 36;
const B: u64 = 2 << 36;
const C: u64 = 3 << 36;
const D: u64 = 4 << 36;
/// Bytes of a row with 16 bytes of data, including the overhead of the table.
const ROW_BYTES: u64 = 23;

/// Costs fitted to the published times: a row takes 100 ns, and a line from memory 67 ns more than one from the last
/// level.
pub const PAPER_TIMES: TimeModel = TimeModel { work_ns: 100.0, l2_ns: 3.0, l3_ns: 10.0, memory_ns: 77.0 };
/// As [`PAPER_TIMES`], for accesses within B-tree nodes.
const PROBE_TIMES: TimeModel = TimeModel { work_ns: 12.0, ..PAPER_TIMES };

/// Counts of both queries in both orders.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct QueryOrder {
    /// A in alternation with B.
    pub a_alternated: Counts,
    /// B in alternation with A.
    pub b_alternated: Counts,
    /// A after A.
    pub a_alone: Counts,
    /// B after B.
    pub b_alone: Counts,
}

impl QueryOrder {
    /// Relative increase of the time of A by alternation with B: 0.23 is 23 %.
    pub fn slowdown(&self, times: &TimeModel) -> f64 {
        times.nanoseconds(&self.a_alternated) / times.nanoseconds(&self.a_alone) - 1.0
    }

    /// Relative increase of the time of B in alternation over that in `other`: the cost of protecting A.
    pub fn price(&self, other: &QueryOrder, times: &TimeModel) -> f64 {
        times.nanoseconds(&self.b_alternated) / times.nanoseconds(&other.b_alternated) - 1.0
    }
}

/// Runs A and B in both orders, `repetitions` times each. The first run of each is not counted.
///
/// # Errors
/// If the machine is invalid.
pub fn query_order(
    machine: &Machine,
    (a_bytes, b_bytes): (u64, u64),
    repetitions: u32,
    protection: Protection,
) -> Result<QueryOrder, super::InvalidMachine> {
    let (a, b) = (Table::new(A, a_bytes), Table::new(B, b_bytes));
    let mut measured = [Counts::default(); 4];
    for alternated in [true, false] {
        let mut simulator = Simulator::new(machine)?;
        protect(&mut simulator, protection);
        let mut both = Vec::new();
        for which in 0..2 * repetitions {
            both.push(if alternated { which % 2 == 0 } else { which < repetitions });
        }
        let (mut first_a, mut first_b) = (true, true);
        for is_a in both {
            simulator.forget();
            if is_a {
                simulator.run(a.rows(ROW_BYTES).map(Access::load));
            } else {
                other_side(&mut simulator, b, protection);
            }
            let first = std::mem::replace(if is_a { &mut first_a } else { &mut first_b }, false);
            if !first {
                measured[usize::from(!is_a) + 2 * usize::from(!alternated)].add(&simulator.report().total());
            }
        }
    }
    let [a_alternated, b_alternated, a_alone, b_alone] = measured;
    Ok(QueryOrder { a_alternated, b_alternated, a_alone, b_alone })
}

/// Sets the mask of the other side.
fn protect(simulator: &mut Simulator, protection: Protection) {
    if let Protection::Ways(ways) = protection {
        simulator.set_last_level_mask(CLASS, CapacityMask::low(ways));
    }
}

/// Runs query B under a protection.
fn other_side(simulator: &mut Simulator, table: Table, protection: Protection) {
    let op = if protection == Protection::NonTemporal { Op::NonTemporal } else { Op::Load };
    for address in table.rows(ROW_BYTES) {
        simulator.access(Access::load(address).of(CLASS, 1).by(op));
        if let Protection::FlushBehind(distance) = protection
            && address >= table.base + distance
            && address % super::LINE_BYTES < ROW_BYTES
        {
            simulator.access(Access::load(address - distance).by(Op::Flush));
        }
    }
}

/// Counts of the index join, with a scan between any two runs.
///
/// # Errors
/// If the machine is invalid.
pub fn join(machine: &Machine, partitioned: bool, repetitions: u32) -> Result<Counts, super::InvalidMachine> {
    let index = BTree::new(A, 400_000, 11, 4096);
    let (outer, scanned) = (Table::new(B, 1_000 * ROW_BYTES), Table::new(C, 15 * MB));
    let mut simulator = Simulator::new(machine)?;
    simulator.run(index.walk().map(Access::load));
    let class = u8::from(partitioned);
    simulator.set_last_level_mask(CLASS, CapacityMask::low(FEWEST));
    let mut sum = Counts::default();
    for run in 0..repetitions {
        simulator.run(scanned.rows(ROW_BYTES).map(|address| Access::load(address).of(class, 2)));
        simulator.forget();
        let mut probes = index.probes(1_000, u64::from(run) / 2);
        for row in outer.rows(ROW_BYTES) {
            simulator.access(Access::load(row).of(class, 1));
            // 60 accesses per row, regardless of the boundaries between probes.
            simulator.run(probes.by_ref().take(60).map(|address| Access::load(address).of(class, 0)));
        }
        sum.add(&simulator.report().total());
    }
    Ok(sum)
}

/// Counts of queries in the shape of Q14 (first) and Q18, each after a run of Q14 and a sweep over twice the cache.
///
/// # Errors
/// If the machine is invalid.
pub fn two_queries(machine: &Machine, partitioned: bool) -> Result<[Counts; 2], super::InvalidMachine> {
    let (lineitem, part) = (Table::new(A, 7_600_000), BTree::new(B, 2_000, 150, 4096));
    let (orders, groups) = (BTree::new(C, 15_000, 110, 4096), BTree::new(D, 15_000, 24, 4096));
    let sweep = Table::new(5 << 36, 2 * machine.l3.bytes);
    // Reads every row. One row in eighty is of the month, and its part is looked up.
    let q14 = |simulator: &mut Simulator, class: u8| {
        for (row, address) in lineitem.rows(125).enumerate() {
            simulator.access(Access::load(address).of(class, 0));
            simulator.access(Access::load(address + 64).of(class, 0));
            if row % 80 == 0 {
                simulator.run(part.probes(1, row as u64).map(|address| Access::load(address).of(class, 1)));
            }
        }
    };
    // Reads every row and adds it to the group of its order. Ten orders are looked up at the end.
    let q18 = |simulator: &mut Simulator, class: u8| {
        let mut touched = Vec::new();
        for (row, address) in lineitem.rows(125).enumerate() {
            simulator.access(Access::load(address).of(class, 0));
            touched.clear();
            groups.probe(row as u64 / 4, &mut touched);
            simulator.run(touched.iter().map(|address| Access::load(*address).of(class, 2)));
        }
        simulator.run(orders.probes(10, 3).map(|address| Access::load(address).of(class, 3)));
    };
    let measure = |query: &dyn Fn(&mut Simulator, u8)| {
        let mut simulator = Simulator::new(machine)?;
        q14(&mut simulator, 0);
        q14(&mut simulator, 0);
        let class = u8::from(partitioned);
        simulator.set_last_level_mask(CLASS, CapacityMask::low(FEWEST));
        simulator.run(sweep.scan().map(|address| Access::load(address).of(class, 9)));
        simulator.forget();
        query(&mut simulator, class);
        Ok(simulator.report().total())
    };
    Ok([measure(&q14)?, measure(&q18)?])
}

/// All published tables, with published and simulated figures.
///
/// # Errors
/// If the machine is invalid.
pub fn paper(machine: &Machine, repetitions: u32) -> Result<Vec<Row>, super::InvalidMachine> {
    let sizes = (320_000 * ROW_BYTES, 640_000 * ROW_BYTES);
    let order = query_order(machine, sizes, repetitions, Protection::None)?;
    let protected = query_order(machine, sizes, repetitions, Protection::Ways(FEWEST))?;
    let runs = f64::from(repetitions.max(2) - 1);
    let row =
        |table, what, partitioned, (paper_miss_ratio, paper_ms), counts: Counts, (times, runs): (TimeModel, f64)| {
            let ms = times.nanoseconds(&counts) / runs / 1e6;
            Row { table, what, partitioned, paper_miss_ratio, paper_ms, miss_ratio: counts.last_level_miss_ratio(), ms }
        };
    let (scan, unknown) = ((PAPER_TIMES, runs), (f64::NAN, f64::NAN));
    let mut rows = vec![
        row(4, "A after B", false, (0.983, 41.3), order.a_alternated, scan),
        row(4, "A after A", false, (0.010, 33.5), order.a_alone, scan),
        row(4, "A after B", true, unknown, protected.a_alternated, scan),
        row(5, "B after A", false, (0.99, 83.2), order.b_alternated, scan),
        row(5, "B after B", false, (0.85, 81.0), order.b_alone, scan),
        row(5, "B after A", true, unknown, protected.b_alternated, scan),
    ];
    for (partitioned, figures) in [(false, (0.77, 1.16)), (true, (0.25, 0.84))] {
        let counts = join(machine, partitioned, repetitions)?;
        rows.push(row(9, "index join", partitioned, figures, counts, (PROBE_TIMES, f64::from(repetitions))));
    }
    for (partitioned, q14, q18) in [(false, (0.94, 19.4), (0.98, 17.5)), (true, (0.18, 13.5), (0.33, 13.1))] {
        let [first, second] = two_queries(machine, partitioned)?;
        rows.push(row(10, "Q14", partitioned, q14, first, (PAPER_TIMES, 1.0)));
        rows.push(row(11, "Q18", partitioned, q18, second, (PROBE_TIMES, 1.0)));
    }
    rows.sort_by_key(|row| row.table);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{CacheOptions, LastLevel, Replacement};

    #[test]
    fn simulated_figures_resemble_the_published_ones() {
        for row in paper(&Machine::paper(), 3).unwrap() {
            println!("{row:?}");
            match (row.table, row.what, row.partitioned) {
                (4, "A after A", _) | (4, _, true) => assert!(row.miss_ratio < 0.15, "{row:?}"),
                (4 | 5, ..) => assert!(row.miss_ratio > 0.8, "{row:?}"),
                (_, _, false) => assert!(row.miss_ratio > 0.7, "{row:?}"),
                (_, _, true) => assert!(row.miss_ratio < 0.35, "{row:?}"),
            }
        }
    }

    /// The machine of the publication at an eighth of its size.
    fn small(replacement: Replacement, last_level: LastLevel) -> Machine {
        let l3 = CacheOptions { replacement, ..CacheOptions::new(1280 << 10, 20) };
        Machine { l2: CacheOptions::new(32 << 10, 8), l3, last_level, ..Machine::paper() }
    }

    #[test]
    fn protection_works_with_every_policy_and_last_level() {
        let sizes = (40_000 * ROW_BYTES, 80_000 * ROW_BYTES);
        for replacement in [Replacement::Lru, Replacement::TreePlru, Replacement::Srrip] {
            let run =
                |protection| query_order(&small(replacement, LastLevel::Inclusive), sizes, 3, protection).unwrap();
            let (open, closed) = (run(Protection::None), run(Protection::Ways(2)));
            assert!(open.slowdown(&PAPER_TIMES) > 0.1, "{replacement:?}: {}", open.slowdown(&PAPER_TIMES));
            assert!(closed.slowdown(&PAPER_TIMES) < 0.05, "{replacement:?}: {}", closed.slowdown(&PAPER_TIMES));
            assert!(closed.price(&open, &PAPER_TIMES) < 0.03);
        }
        for last_level in [LastLevel::Inclusive, LastLevel::Victim] {
            for protection in [Protection::Ways(2), Protection::NonTemporal, Protection::FlushBehind(8192)] {
                let run = query_order(&small(Replacement::Lru, last_level), sizes, 3, protection).unwrap();
                let slowdown = run.slowdown(&PAPER_TIMES);
                assert!(slowdown < 0.05, "{last_level:?} {protection:?}: {slowdown}");
            }
        }
    }
}
