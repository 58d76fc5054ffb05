//! Simulates probes of an index of 6 MiB beside a scan of 100 MiB on the machine of the published experiments, with and
//! without masks, and prints the speed of the simulator. With a file as argument, replays the trace in the file. `cargo
//! run --release -p keyaki-llc --example simulate [FILE]`

use std::fs::File;
use std::io::BufReader;
use std::time::Instant;

use keyaki_llc::CapacityMask;
use keyaki_llc::sim::generate::{BTree, Table, interleave};
use keyaki_llc::sim::trace::TraceReader;
use keyaki_llc::sim::{Access, InvalidMachine, Machine, Simulator};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(path) = std::env::args().nth(1) {
        return replay(&path);
    }
    generated().map_err(Into::into)
}

/// Prints the misses of each object of a recorded trace.
fn replay(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut trace = TraceReader::new(BufReader::new(File::open(path)?))?;
    let objects = trace.header().objects.clone();
    let mut simulator = Simulator::new(&Machine { cores: 8, ..Machine::paper() })?;
    for access in &mut trace {
        simulator.access(access?);
    }
    for (number, name) in objects.iter().enumerate() {
        let counts = simulator.report().object(number as u16);
        println!("{name}: {} accesses, misses {:.1} %", counts.accesses(), 100.0 * counts.last_level_miss_ratio());
    }
    Ok(())
}

/// Simulates generated accesses.
fn generated() -> Result<(), InvalidMachine> {
    let index = BTree::new(0, 450_000, 11, 4096);
    let table = Table::new(1 << 40, 100 << 20);
    println!("index of {} bytes in {} levels, scan of {} bytes", index.bytes(), index.levels(), table.bytes);
    for mask in [u32::MAX, 0b11] {
        let mut simulator = Simulator::new(&Machine { cores: 2, ..Machine::paper() })?;
        simulator.set_last_level_mask(1, CapacityMask(mask));
        simulator.run(index.walk().map(Access::load));
        simulator.forget();
        let probes = index.probes(100_000, 1).map(Access::load);
        let scan = table.scan().map(|address| Access::load(address).of(1, 1).on(1));
        let start = Instant::now();
        simulator.run(interleave(probes, scan, (2, 1)));
        let seconds = start.elapsed().as_secs_f64();
        let report = simulator.report();
        println!(
            "scan mask {:5x}: index misses {:.1} %, scan misses {:.1} %; {:.0} million accesses/s",
            mask & 0xf_ffff,
            100.0 * report.object(0).last_level_miss_ratio(),
            100.0 * report.object(1).last_level_miss_ratio(),
            report.total().accesses() as f64 / seconds / 1e6
        );
    }
    for (name, bytes) in
        [("within L1", 16 << 10), ("within L2", 128 << 10), ("within L3", 8 << 20), ("beyond L3", 64 << 20)]
    {
        let mut simulator = Simulator::new(&Machine::paper())?;
        let table = Table::new(0, bytes);
        let start = Instant::now();
        for _ in 0..(256_u64 << 20) / bytes {
            simulator.run(table.scan().map(Access::load));
        }
        let rate = simulator.report().total().accesses() as f64 / start.elapsed().as_secs_f64();
        println!("scans {name}: {:.0} million accesses/s", rate / 1e6);
    }
    Ok(())
}
