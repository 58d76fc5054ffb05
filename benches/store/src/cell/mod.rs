//! A cell: one workload of one system, in this process. It prints its figures as lines `metric`, tabulator, number.

mod files;
mod indexes;
mod reads;
mod recovery;
mod scans;
mod writes;

use std::path::Path;
use std::time::{Duration, Instant};

pub use files::FILES;
pub use recovery::READY;

use crate::Result;
use crate::options::{Options, Workload};
use crate::system::{self, Memory, Name, System};

/// Rows of a batch.
const BATCH: u64 = 100;

struct Cell<'a> {
    name: Name,
    directory: &'a Path,
    memory: Memory,
    /// Keys to insert, or keys in the data.
    keys: u64,
    options: &'a Options,
}

pub fn run(workload: Workload, options: &Options) -> Result {
    let cell = Cell {
        name: options.systems[0],
        directory: &options.directory,
        memory: Memory::split((options.memory << 20) as usize),
        keys: options.keys,
        options,
    };
    match workload {
        Workload::Insert => writes::insert(&cell),
        Workload::Writers => writes::writers(&cell),
        Workload::Latency => writes::latency(&cell),
        Workload::Upsert => writes::upsert(&cell),
        Workload::Get => reads::get(&cell),
        Workload::GetMany => reads::get_many(&cell),
        Workload::Absent => reads::absent(&cell),
        Workload::Scan => scans::scan(&cell, 1),
        Workload::ScanTwo => scans::scan(&cell, 2),
        Workload::FullScan => scans::full_scan(&cell),
        Workload::Recover if options.crash => recovery::crash(&cell),
        Workload::Recover => recovery::recover(&cell),
        Workload::Files => Err("not a workload of its own".into()),
        Workload::Create => files::create(&cell),
        Workload::Find => files::find(&cell, false),
        Workload::FindSubtree => files::find(&cell, true),
        Workload::Grep => files::grep(&cell, false),
        Workload::GrepSubtree => files::grep(&cell, true),
        Workload::DeleteSubtree => files::delete(&cell, true),
        Workload::Delete => files::delete(&cell, false),
        Workload::Indexes => indexes::indexes(&cell),
    }
}

impl Cell<'_> {
    fn open(&self) -> Result<Box<dyn System>> {
        system::open(self.name, self.directory, self.memory, self.keys)
    }

    /// The end of a workload that begins now.
    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.options.seconds)
    }
}

fn print(metric: &str, value: f64) {
    println!("{metric}\t{value}");
}

/// Operations per second since `start`.
fn per_second(operations: u64, start: Instant) -> f64 {
    operations as f64 / start.elapsed().as_secs_f64()
}

/// Runs `work` on threads, with their numbers. Returns the sum of the results.
fn on_threads(threads: u64, work: impl Fn(u64) -> Result<u64> + Sync) -> Result<u64> {
    std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn({
                    let work = &work;
                    move || work(thread)
                })
            })
            .collect();
        let mut sum = 0;
        for thread in spawned {
            sum += thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(sum)
    })
}
