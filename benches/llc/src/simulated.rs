//! The published experiments in the simulator, and the speed of the simulator.

use std::time::Instant;

use keyaki_bench_report::Rows;
use keyaki_llc::sim::experiments::{PAPER_TIMES, Protection, paper, query_order};
use keyaki_llc::sim::generate::{BTree, Table};
use keyaki_llc::sim::{Access, LastLevel, Machine, Replacement, Simulator};

use crate::report::table;

/// Simulates the published tables, the query order with every policy, and measures the simulator.
pub fn run(report: &mut Rows) -> Result<(), Box<dyn std::error::Error>> {
    let machine = Machine::paper();
    let mut rows = table(
        "Published experiments, simulated (L3 of 10 MiB, 20 ways): last-level misses and time",
        &["table", "experiment", "partitioned", "published", "simulated", "published ms", "simulated ms"],
    );
    for row in paper(&machine, 6)? {
        let shown = |value: f64, text: String| if value.is_nan() { "-".to_string() } else { text };
        rows.add_row([
            row.table.to_string(),
            row.what.into(),
            if row.partitioned { "yes" } else { "no" }.into(),
            shown(row.paper_miss_ratio, format!("{:.1} %", 100.0 * row.paper_miss_ratio)),
            format!("{:.1} %", 100.0 * row.miss_ratio),
            shown(row.paper_ms, format!("{:.2}", row.paper_ms)),
            format!("{:.2}", row.ms),
        ]);
        let workload = format!("simulated table {}: {}, partitioned: {}", row.table, row.what, row.partitioned);
        report.reproduce(&workload, "miss ratio", "share", row.miss_ratio, ("published", row.paper_miss_ratio));
        report.reproduce(&workload, "time", "ms", row.ms, ("published", row.paper_ms));
    }
    println!("{rows}");
    orders(report)?;
    speed(report)
}

/// The query-order experiment with every replacement policy, last level and protection. A has 60 % of the last level, B
/// five times A.
fn orders(report: &mut Rows) -> Result<(), Box<dyn std::error::Error>> {
    let mut rows = table(
        "Query order, simulated: A reads 6 MiB, B scans 30 MiB; slowdown of A by B, and of B by the protection of A",
        &["last level", "protection", "slowdown of A", "slowdown of B"],
    );
    for (last_level, replacement) in [
        (LastLevel::Inclusive, Replacement::Lru),
        (LastLevel::Inclusive, Replacement::TreePlru),
        (LastLevel::Inclusive, Replacement::Srrip),
        (LastLevel::Victim, Replacement::Lru),
    ] {
        let mut machine = Machine { last_level, ..Machine::paper() };
        machine.l3.replacement = replacement;
        let sizes = (6 << 20, 30 << 20);
        let open = query_order(&machine, sizes, 3, Protection::None)?;
        for protection in
            [Protection::None, Protection::Ways(2), Protection::NonTemporal, Protection::FlushBehind(8192)]
        {
            let run = query_order(&machine, sizes, 3, protection)?;
            let (slower, price) = (run.slowdown(&PAPER_TIMES), run.price(&open, &PAPER_TIMES));
            let name = format!("{last_level:?}, {replacement:?}");
            rows.add_row([
                name.clone(),
                format!("{protection:?}"),
                format!("{:.1} %", 100.0 * slower),
                format!("{:.1} %", 100.0 * price),
            ]);
            let workload = format!("simulated query order: {name}, {protection:?}");
            report.figure(&workload, "slowdown of A by B", "share", slower);
            report.figure(&workload, "slowdown of B by the protection of A", "share", price);
        }
    }
    println!("{rows}");
    Ok(())
}

/// Measures accesses per second of the simulator.
fn speed(report: &mut Rows) -> Result<(), Box<dyn std::error::Error>> {
    let mut rows = table("Speed of the simulator, one thread", &["accesses", "million/s"]);
    let mut row = |name: &str, accesses: &mut dyn Iterator<Item = Access>| -> Result<(), Box<dyn std::error::Error>> {
        let mut simulator = Simulator::new(&Machine::paper())?;
        let accesses: Vec<Access> = accesses.collect();
        let rounds = (10_000_000 / accesses.len()).max(1);
        let start = Instant::now();
        for _ in 0..rounds {
            simulator.run(accesses.iter().copied());
        }
        let rate = (rounds * accesses.len()) as f64 / start.elapsed().as_secs_f64() / 1e6;
        rows.add_row([name.to_string(), format!("{rate:.0}")]);
        report.figure(&format!("simulator: {name}"), "accesses", "million/s", rate);
        Ok(())
    };
    let table = |bytes| Table::new(0, bytes);
    row("rows of 23 bytes of 15 MB", &mut table(15_000_000).rows(23).map(Access::load))?;
    row("words of 1 MB", &mut table(1_000_000).rows(8).map(Access::load))?;
    let index = BTree::new(0, 400_000, 11, 4096);
    row("probes of an index of 5 MB", &mut index.probes(50_000, 1).map(Access::load))?;
    row("lines of 8 MB (all miss L2)", &mut table(8_000_000).scan().map(Access::load))?;
    row("lines of 100 MB (all miss)", &mut table(100_000_000).scan().map(Access::load))?;
    println!("{rows}");
    Ok(())
}
