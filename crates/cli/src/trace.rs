//! `keyaki trace`: which memory a query touches, recorded; and what a cache would make of it, simulated.
//!
//! The replay does what the published experiment with TPC-H does: the query runs, something else sweeps over twice the cache, and the
//! query runs again, which is counted. Partitioned, the first run brings its lines into all ways but the fewest (as PIN does), and
//! everything after it allocates in these few only.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use keyaki::Database;
use keyaki_llc::CapacityMask;
use keyaki_llc::sim::generate::Table as Memory;
use keyaki_llc::sim::trace::TraceReader;
use keyaki_llc::sim::{Access, CLASSES_MAX, Machine, Report, Simulator};

use crate::arguments::TraceArguments;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::output::Mode;
use crate::run::Runner;
use crate::terminal::thousands;

/// The class of the sweep, and of everything that is not to be kept.
const OTHERS: u8 = CLASSES_MAX as u8 - 1;
/// Ways that those have: the fewest that usually may be.
const FEWEST_WAYS: u32 = 2;
/// The sweep is not among the recorded addresses.
const SWEEP_AT: u64 = 1 << 62;

pub async fn run(arguments: &TraceArguments, interrupts: std::sync::Arc<Interrupts>) -> Result<()> {
    match (&arguments.memory, &arguments.replay, &arguments.database) {
        (Some(file), None, Some(database)) => record(file, database, &arguments.sql, interrupts).await?,
        (None, Some(_), None) => {}
        _ => {
            return Err(Failure::Usage(
                "keyaki trace DATABASE --memory FILE -- SQL, or keyaki trace --replay FILE".into(),
            ));
        }
    }
    if let Some(file) = &arguments.replay {
        replay(file, arguments.cache_kib)?;
    }
    Ok(())
}

async fn record(file: &Path, database: &Path, sql: &[String], interrupts: std::sync::Arc<Interrupts>) -> Result<()> {
    let sql = sql.join(" ");
    if sql.trim().is_empty() {
        return Err(Failure::Usage("a query is missing: keyaki trace DATABASE --memory FILE -- SQL".into()));
    }
    let options = keyaki::Options { must_exist: true, ..Default::default() };
    let database = Database::open(database, options)?;
    let mut runner = Runner::new(&database, Mode::Table, interrupts);
    let trace = database.start_memory_trace(file)?;
    let result = runner.statement(&sql).await;
    let accesses = database.end_memory_trace(&trace)?;
    result?;
    eprintln!("{} accesses recorded in {}", thousands(accesses), file.display());
    Ok(())
}

fn replay(file: &Path, cache_kib: Option<u64>) -> Result<()> {
    let mut machine = Machine::paper();
    if let Some(kib) = cache_kib {
        machine.l3.bytes = kib << 10;
        // As many sets as a power of two: 20 ways for five times such a number of bytes, else 16.
        machine.l3.ways = if kib.is_power_of_two() { 16 } else { machine.l3.ways };
    }
    let failed = |error: &dyn std::fmt::Display| Failure::message(format!("{}: {error}", file.display()));
    let reader = TraceReader::new(BufReader::new(File::open(file).map_err(Failure::file(file))?));
    let reader = reader.map_err(|error| failed(&error))?;
    let names = reader.header().objects.clone();
    let accesses = reader.collect::<std::result::Result<Vec<Access>, _>>().map_err(|error| failed(&error))?;
    let simulate = |partitioned: bool| simulate(&machine, &accesses, partitioned);
    let (open, kept) = (simulate(false)?, simulate(true)?);
    println!(
        "{} accesses; last level of {} KiB, {} ways; run, sweep, run again (which is counted)\n",
        thousands(accesses.len() as u64),
        machine.l3.bytes >> 10,
        machine.l3.ways
    );
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["object", "accesses", "reach the last level", "missed", "missed, partitioned"]);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for (number, name) in names.iter().enumerate() {
        // As many objects as the trace's numbers can name.
        let (without, with) = (open.object(number as u16), kept.object(number as u16));
        if without.accesses() > 0 {
            let reached = without.l3 + without.memory;
            let (missed, missed_kept) = (without.last_level_miss_ratio(), with.last_level_miss_ratio());
            let counts = [thousands(without.accesses()), thousands(reached)];
            let [accesses, reached] = counts;
            table.add_row([name.clone(), accesses, reached, percent(missed), percent(missed_kept)]);
        }
    }
    let (without, with) = (open.total(), kept.total());
    table.add_row([
        "all".into(),
        thousands(without.accesses()),
        thousands(without.l3 + without.memory),
        percent(without.last_level_miss_ratio()),
        percent(with.last_level_miss_ratio()),
    ]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{}", table.trim_fmt());
    Ok(())
}

/// The second run of the trace, after a sweep.
fn simulate(machine: &Machine, accesses: &[Access], partitioned: bool) -> Result<Report> {
    let wrong = |error: keyaki_llc::sim::InvalidMachine| Failure::message(error.to_string());
    let mut simulator = Simulator::new(machine).map_err(wrong)?;
    let sweep = Memory::new(SWEEP_AT, 2 * machine.l3.bytes);
    let noise = || sweep.scan().map(|address| Access::load(address).of(OTHERS, 0));
    // The cache is full of other things before.
    simulator.run(noise());
    if partitioned {
        let kept = CapacityMask::run(FEWEST_WAYS, machine.l3.ways.saturating_sub(FEWEST_WAYS));
        (0..=OTHERS).for_each(|class| simulator.set_last_level_mask(class, kept));
    }
    simulator.run(accesses.iter().copied());
    if partitioned {
        for class in 0..=OTHERS {
            simulator.set_last_level_mask(class, CapacityMask::low(FEWEST_WAYS));
        }
    }
    simulator.run(noise());
    simulator.forget();
    simulator.run(accesses.iter().copied());
    Ok(simulator.report().clone())
}
