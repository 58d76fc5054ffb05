//! Options of the program.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::files::tree::{FILE_BYTES_MIN, Order};
use crate::system::Name;

/// Compare the key-value store with RocksDB, redb, fjall and LMDB, and with a file system
#[derive(Debug, Parser)]
pub struct Options {
    /// Keys to insert, of 16 bytes with values of 100 bytes. The workload `indexes` inserts half as many rows
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
    /// Gets of the workloads `get` and `absent`, and a quarter of those of `get-many`
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub gets: u64,
    /// Scans of the workloads `scan` and `scan-two`
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..))]
    pub scans: u64,
    /// Files of the workloads of files
    #[arg(long, default_value_t = 3_000_000, value_parser = clap::value_parser!(u64).range(1_000..1 << 30))]
    pub files: u64,
    /// Bytes of the largest file. The smallest has 200
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(FILE_BYTES_MIN..1 << 20))]
    pub file_bytes: u64,
    /// Order in which files are created
    #[arg(long, default_value_t = Order::Archive)]
    pub order: Order,
    /// Longest time of a workload that writes keys, in seconds. A system that needs longer has fewer keys in all
    /// workloads
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
    /// All workloads of files: from `create` to `delete`.
    Files,
    /// Creation of a tree of small files. The workloads up to `delete` use it.
    Create,
    /// A cold listing of all paths.
    Find,
    /// A cold listing of all paths below a directory.
    FindSubtree,
    /// A cold search for a string in the contents of all files.
    Grep,
    /// A cold search in all files below a directory.
    GrepSubtree,
    /// The deletion of a directory with all its contents.
    DeleteSubtree,
    /// The deletion of all files.
    Delete,
    /// Inserts into a tree and seven secondary indexes, and as many bytes into a single tree.
    Indexes,
}

impl Workload {
    /// The workload whose data this one works on, or whose rate it relates to.
    pub fn base(self) -> Option<Workload> {
        match self {
            Workload::Insert | Workload::Recover | Workload::Files | Workload::Create | Workload::Indexes => None,
            _ if self.is_of_files() => Some(Workload::Create),
            _ => Some(Workload::Insert),
        }
    }

    /// True for the workloads that [`Workload::Files`] stands for.
    pub fn is_of_files(self) -> bool {
        (Workload::Create..=Workload::Delete).contains(&self)
    }

    pub fn runs_on(self, name: Name) -> bool {
        match self {
            Workload::Indexes => matches!(name, Name::Keyaki | Name::Rocksdb),
            _ if self.is_of_files() => matches!(name, Name::Keyaki | Name::Rocksdb | Name::FileSystem),
            _ => name != Name::FileSystem,
        }
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

impl Options {
    pub fn wants(&self, workload: Workload) -> bool {
        self.workloads.contains(&workload) || (workload.is_of_files() && self.workloads.contains(&Workload::Files))
    }

    /// The selected workloads and their prerequisites, in the order of execution.
    pub fn schedule(&self) -> Vec<Workload> {
        let all = || Workload::value_variants().iter().copied().filter(|workload| *workload != Workload::Files);
        let needed: Vec<Workload> = all().filter(|workload| self.wants(*workload)).filter_map(Workload::base).collect();
        all().filter(|workload| self.wants(*workload) || needed.contains(workload)).collect()
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
        let mut all = Workload::value_variants().to_vec();
        all.retain(|workload| *workload != Workload::Files);
        assert_eq!(options.schedule(), all);
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
    fn files_stand_for_seven_workloads() {
        let options = parse(&["--workloads", "files"]);
        assert_eq!(options.schedule().len(), 7);
        assert!(options.wants(Workload::Find) && !options.wants(Workload::Indexes));
        assert_eq!(parse(&["--workloads", "grep"]).schedule(), [Workload::Create, Workload::Grep]);
        assert!(!Workload::Find.runs_on(Name::Redb) && !Workload::Get.runs_on(Name::FileSystem));
    }

    #[test]
    fn unknown_names_and_sizes_out_of_range_are_errors() {
        for words in [["--systems", "sqlite"], ["--workloads", "put"], ["--keys", "10"], ["--memory", "1"]] {
            assert!(Options::try_parse_from([&["store"], &words[..]].concat()).is_err(), "{words:?}");
        }
    }
}
