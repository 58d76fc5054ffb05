//! The published experiments with SQLite on a Xeon with 10 MiB of L3, simulated: who runs what after whom, with and without
//! partitioning. [`paper`] runs them all, its figures beside the simulated ones.
//!
//! - *Query order* (its tables 4 and 5): A reads a table of 7.4 MB, B one of 15 MB; each a hundred times by itself, or in turn.
//! - *Join* (table 9): a thousand probes of an index of 5 MB, a scan of 15 MB between any two runs.
//! - *Two queries* (tables 10, 11): TPC-H's Q14 and Q18 in shape, on 12 MB, after Q14 has run and a sweep has gone over the cache.
//!
//! Partitioned means, as published: what is to be kept is brought in under a mask of all ways, everything after that runs under
//! a mask of the fewest; or, for the query order, B alone runs under that mask.

use serde::Serialize;

use super::generate::{BTree, Table};
use super::{Access, Counts, Machine, Op, Simulator, TimeModel};
use crate::CapacityMask;

/// What keeps the protected side's data in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Protection {
    None,
    /// The other side may allocate in this many ways of the last level.
    Ways(u32),
    /// The other side announces its loads by non-temporal prefetches.
    NonTemporal,
    /// The other side flushes each line, this many bytes behind where it reads.
    FlushBehind(u64),
}

/// One row: what was measured by the authors, and what the simulation gives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The number of the published table.
    pub table: u32,
    pub what: &'static str,
    pub partitioned: bool,
    pub paper_miss_ratio: f64,
    pub paper_ms: f64,
    pub miss_ratio: f64,
    pub ms: f64,
}

const MB: u64 = 1_000_000;
const CLASS: u8 = 1;
/// Ways of the smallest class: a tenth.
const FEWEST: u32 = 2;
/// Addresses of the objects.
const A: u64 = 1 << 36;
const B: u64 = 2 << 36;
const C: u64 = 3 << 36;
const D: u64 = 4 << 36;
/// Bytes of a row of 16 with what the table needs besides.
const ROW_BYTES: u64 = 23;

/// Costs that fit the published times: a row takes 100 ns, a line from memory 67 ns more than one from the last level.
pub const PAPER_TIMES: TimeModel = TimeModel { work_ns: 100.0, l2_ns: 3.0, l3_ns: 10.0, memory_ns: 77.0 };
/// The same for accesses within nodes.
const PROBE_TIMES: TimeModel = TimeModel { work_ns: 12.0, ..PAPER_TIMES };

/// What both queries met, in the two orders.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct QueryOrder {
    pub a_alternated: Counts,
    pub b_alternated: Counts,
    pub a_alone: Counts,
    pub b_alone: Counts,
}

impl QueryOrder {
    /// How much longer A takes when B runs in between: 0.23 is 23 %.
    pub fn slowdown(&self, times: &TimeModel) -> f64 {
        times.nanoseconds(&self.a_alternated) / times.nanoseconds(&self.a_alone) - 1.0
    }

    /// How much longer B takes by itself than `other`'s B did: the price of protecting A.
    pub fn price(&self, other: &QueryOrder, times: &TimeModel) -> f64 {
        times.nanoseconds(&self.b_alternated) / times.nanoseconds(&other.b_alternated) - 1.0
    }
}

/// Runs A and B, `repetitions` times each, in both orders; the first run of each is not counted.
///
/// # Errors
/// If the machine is impossible.
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
                add(&mut measured[usize::from(!is_a) + 2 * usize::from(!alternated)], simulator.report().total());
            }
        }
    }
    let [a_alternated, b_alternated, a_alone, b_alone] = measured;
    Ok(QueryOrder { a_alternated, b_alternated, a_alone, b_alone })
}

fn add(sum: &mut Counts, more: Counts) {
    sum.l1 += more.l1;
    sum.l2 += more.l2;
    sum.l3 += more.l3;
    sum.memory += more.memory;
}

fn protect(simulator: &mut Simulator, protection: Protection) {
    if let Protection::Ways(ways) = protection {
        simulator.set_last_level_mask(CLASS, CapacityMask::low(ways));
    }
}

fn other_side(simulator: &mut Simulator, table: Table, protection: Protection) {
    let op = if protection == Protection::NonTemporal { Op::NonTemporal } else { Op::Load };
    for address in table.rows(ROW_BYTES) {
        simulator.access(Access::load(address).of(CLASS, 1).by(op));
        if let Protection::FlushBehind(distance) = protection
            && address >= table.base + distance
            && address % super::LINE < ROW_BYTES
        {
            simulator.access(Access::load(address - distance).by(Op::Flush));
        }
    }
}

/// The join by an index, with a scan between any two runs: what the join met.
///
/// # Errors
/// If the machine is impossible.
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
            // A probe's accesses come one after another; which of them belong to which row does not matter.
            simulator.run(probes.by_ref().take(60).map(|address| Access::load(address).of(class, 0)));
        }
        add(&mut sum, simulator.report().total());
    }
    Ok(sum)
}

/// Q14 (first) and Q18 in shape: each after Q14 has run and a sweep over twice the cache has followed.
///
/// # Errors
/// If the machine is impossible.
pub fn two_queries(machine: &Machine, partitioned: bool) -> Result<[Counts; 2], super::InvalidMachine> {
    let (lineitem, part) = (Table::new(A, 7_600_000), BTree::new(B, 2_000, 150, 4096));
    let (orders, groups) = (BTree::new(C, 15_000, 110, 4096), BTree::new(D, 15_000, 24, 4096));
    let sweep = Table::new(5 << 36, 2 * machine.l3.bytes);
    // Every row is read; one in eighty is of the month, and its part is looked up.
    let q14 = |simulator: &mut Simulator, class: u8| {
        for (row, address) in lineitem.rows(125).enumerate() {
            simulator.access(Access::load(address).of(class, 0));
            simulator.access(Access::load(address + 64).of(class, 0));
            if row % 80 == 0 {
                simulator.run(part.probes(1, row as u64).map(|address| Access::load(address).of(class, 1)));
            }
        }
    };
    // Every row is read and added to its order's group; a few orders are looked up in the end.
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

/// All the published tables, each row with its figures and ours.
///
/// # Errors
/// If the machine is impossible.
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
        row(4, "A, B in between", false, (0.983, 41.3), order.a_alternated, scan),
        row(4, "A by itself", false, (0.010, 33.5), order.a_alone, scan),
        row(4, "A, B in between", true, unknown, protected.a_alternated, scan),
        row(5, "B, A in between", false, (0.99, 83.2), order.b_alternated, scan),
        row(5, "B by itself", false, (0.85, 81.0), order.b_alone, scan),
        row(5, "B, A in between", true, unknown, protected.b_alternated, scan),
    ];
    for (partitioned, figures) in [(false, (0.77, 1.16)), (true, (0.25, 0.84))] {
        let counts = join(machine, partitioned, repetitions)?;
        rows.push(row(9, "join by an index", partitioned, figures, counts, (PROBE_TIMES, f64::from(repetitions))));
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
    fn the_published_tables_in_shape() {
        for row in paper(&Machine::paper(), 3).unwrap() {
            println!("{row:?}");
            match (row.table, row.what, row.partitioned) {
                (4, "A by itself", _) | (4, _, true) => assert!(row.miss_ratio < 0.15, "{row:?}"),
                (4 | 5, ..) => assert!(row.miss_ratio > 0.8, "{row:?}"),
                (_, _, false) => assert!(row.miss_ratio > 0.7, "{row:?}"),
                (_, _, true) => assert!(row.miss_ratio < 0.35, "{row:?}"),
            }
        }
    }

    /// The paper's machine, and its tables, at an eighth.
    fn small(replacement: Replacement, last_level: LastLevel) -> Machine {
        let l3 = CacheOptions { replacement, ..CacheOptions::new(1280 << 10, 20) };
        Machine { l2: CacheOptions::new(32 << 10, 8), l3, last_level, ..Machine::paper() }
    }

    #[test]
    fn every_policy_and_both_kinds_of_last_level() {
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
