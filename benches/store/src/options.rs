//! Options of the program.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::system::Name;

/// Compare the key-value store with RocksDB, redb, fjall and LMDB
#[derive(Debug, Parser)]
pub struct Options {
    /// Keys to insert, of 16 bytes with values of 100 bytes
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(10_000..1 << 40))]
    pub keys: u64,
    /// Memory of a system for cache and buffers together, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..1 << 20))]
    pub memory: u64,
    /// Only these systems
    #[arg(long, value_delimiter = ',', default_values_t = Name::value_variants().to_vec())]
    pub systems: Vec<Name>,
    /// Only these workloads
    #[arg(long, value_delimiter = ',', default_values_t = Workload::value_variants().to_vec())]
    pub workloads: Vec<Workload>,
    /// Gets of the workloads `get`, `get-many` and `absent`
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub gets: u64,
    /// Scans of the workloads `scan` and `scan-two`
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..))]
    pub scans: u64,
    /// Longest time of a workload that writes, in seconds. A system that needs longer has fewer keys in all workloads
    #[arg(long, default_value_t = 600)]
    pub seconds: u64,
    /// Directory for the data, on the device to be measured. A subdirectory is created and finally removed
    #[arg(long, default_value = "target/bench-store")]
    pub directory: PathBuf,
    /// Write the figures as JSON rows
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Run one workload of one system on the data in `directory`, and print its figures
    #[arg(long, hide = true)]
    pub cell: Option<Workload>,
    /// With `--cell recover`: write the log and wait to be killed
    #[arg(long, hide = true)]
    pub crash: bool,
}

/// A workload, in the order of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Workload {
    /// Random inserts in batches of 100 by one writer. The workloads up to `upsert` use its data.
    Insert,
    /// Cold gets of present keys, one at a time.
    Get,
    /// Cold gets of present keys, 64 in flight.
    GetMany,
    /// Cold gets of absent keys, one at a time.
    Absent,
    /// Scans of 1,000 rows by one thread.
    Scan,
    /// Scans of 1,000 rows by two threads.
    ScanTwo,
    /// One scan of all rows.
    FullScan,
    /// Latencies of single inserts without a pause.
    Latency,
    /// Blind additions to values in batches of 100.
    Upsert,
    /// As `insert`, by two writers, into another directory.
    Writers,
    /// Opening after SIGKILL.
    Recover,
}

impl Workload {
    /// True if the workload works on the data of [`Workload::Insert`].
    pub fn needs_data(self) -> bool {
        !matches!(self, Workload::Insert | Workload::Recover)
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

impl Options {
    pub fn wants(&self, workload: Workload) -> bool {
        self.workloads.contains(&workload)
    }

    /// The workloads to run, in order. Rates of two writers and of upserts relate to those of [`Workload::Insert`], so
    /// that it runs for all that need its data or its rate.
    pub fn schedule(&self) -> Vec<Workload> {
        let needs_insert = self.workloads.iter().any(|workload| workload.needs_data());
        let runs = |workload: &Workload| self.wants(*workload) || (*workload == Workload::Insert && needs_insert);
        Workload::value_variants().iter().copied().filter(runs).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Options {
        Options::try_parse_from([&["store"], words].concat()).unwrap()
    }

    #[test]
    fn all_systems_and_workloads_are_the_default() {
        let options = parse(&[]);
        assert_eq!((options.keys, options.memory), (20_000_000, 256));
        assert_eq!(options.systems, Name::value_variants());
        assert_eq!(options.schedule(), Workload::value_variants());
    }

    #[test]
    fn lists_select_systems_and_workloads() {
        let options = parse(&["--workloads", "scan-two,get", "--systems", "keyaki,rocksdb", "--keys=500000"]);
        assert_eq!(options.systems, [Name::Keyaki, Name::Rocksdb]);
        assert_eq!(options.schedule(), [Workload::Insert, Workload::Get, Workload::ScanTwo]);
        assert!(!options.wants(Workload::Insert));
        assert_eq!(parse(&["--workloads", "recover"]).schedule(), [Workload::Recover]);
    }

    #[test]
    fn unknown_names_and_sizes_out_of_range_are_errors() {
        for words in [["--systems", "sqlite"], ["--workloads", "put"], ["--keys", "10"], ["--memory", "1"]] {
            assert!(Options::try_parse_from([&["store"], &words[..]].concat()).is_err(), "{words:?}");
        }
    }
}
