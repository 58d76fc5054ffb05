//! `keyaki trace`: records the reads of a query over time ([`crate::events`]), or its memory accesses, and replays these in a
//! simulated cache.
//!
//! The replay follows the published experiment with TPC-H: the query runs, a sweep reads twice the size of the cache, and the query
//! runs again. Only the second run is counted. With partitioning, the first run allocates in all ways but [`FEWEST_WAYS`], as PIN
//! does; the sweep and the second run allocate in these [`FEWEST_WAYS`] only.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use keyaki_llc::CapacityMask;
use keyaki_llc::sim::generate::Table as Memory;
use keyaki_llc::sim::trace::TraceReader;
use keyaki_llc::sim::{Access, CLASSES_MAX, Machine, Report, Simulator};

use crate::arguments::TraceArguments;
use crate::database;
use crate::events;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::output::Mode;
use crate::run::Runner;
use crate::terminal::thousands;

/// The class of service of the sweep.
const OTHERS: u8 = CLASSES_MAX as u8 - 1;
/// Ways of the unprotected part: the minimum of common processors.
const FEWEST_WAYS: u32 = 2;
/// Start address of the sweep, above all recorded addresses.
const SWEEP_AT: u64 = 1 << 62;

pub async fn run(arguments: &TraceArguments, interrupts: std::sync::Arc<Interrupts>) -> Result<()> {
    match (&arguments.database, arguments.output.is_some() || arguments.memory.is_some(), &arguments.replay) {
        (Some(database), true, None) => record(arguments, database, interrupts).await?,
        (None, false, Some(_)) => {}
        _ => {
            let usage = "usage: keyaki trace DATABASE [-o FILE] [--memory FILE] -- SQL, or keyaki trace --replay FILE";
            return Err(Failure::Usage(usage.into()));
        }
    }
    if let Some(file) = &arguments.replay {
        replay(file, arguments.cache_kib)?;
    }
    Ok(())
}

async fn record(arguments: &TraceArguments, database: &Path, interrupts: std::sync::Arc<Interrupts>) -> Result<()> {
    let sql = arguments.sql.join(" ");
    if sql.trim().is_empty() {
        return Err(Failure::Usage("a query is missing (usage: keyaki trace DATABASE -o FILE -- SQL)".into()));
    }
    let options = keyaki::Options { must_exist: true, ..Default::default() };
    let database = database::open(database, options)?;
    let mut runner = Runner::new(&database, Mode::Table, interrupts);
    let memory = arguments.memory.as_ref().map(|file| database.start_memory_trace(file)).transpose()?;
    let result = runner.statement(&sql).await;
    if let (Some(trace), Some(file)) = (memory, &arguments.memory) {
        let accesses = database.end_memory_trace(&trace)?;
        eprintln!("{} accesses recorded in {}", thousands(accesses), file.display());
    }
    result?;
    if let Some(file) = &arguments.output {
        let count = events::write(file, &sql, &runner.session()?.last_stats())?;
        eprintln!("{} events of the query's reads written to {}", thousands(count as u64), file.display());
    }
    Ok(())
}

fn replay(file: &Path, cache_kib: Option<u64>) -> Result<()> {
    let mut machine = Machine::paper();
    if let Some(kib) = cache_kib {
        machine.l3.bytes = kib << 10;
        // The number of sets must be a power of two: 16 ways if the size is a power of two, else 20 as in the paper's machine.
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
        "{} accesses; last-level cache of {} KiB, {} ways; counted: the second run, after a sweep\n",
        thousands(accesses.len() as u64),
        machine.l3.bytes >> 10,
        machine.l3.ways
    );
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["object", "accesses", "at the last level", "missed", "missed, partitioned"]);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for (number, name) in names.iter().enumerate() {
        // No truncation: object numbers in a trace have 16 bits.
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

/// Counts of the second run of the trace, after a sweep.
fn simulate(machine: &Machine, accesses: &[Access], partitioned: bool) -> Result<Report> {
    let wrong = |error: keyaki_llc::sim::InvalidMachine| Failure::message(error.to_string());
    let mut simulator = Simulator::new(machine).map_err(wrong)?;
    let sweep = Memory::new(SWEEP_AT, 2 * machine.l3.bytes);
    let noise = || sweep.scan().map(|address| Access::load(address).of(OTHERS, 0));
    // Fills the cache with other data first.
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
