//! Figures and their targets.

use std::collections::BTreeMap;

use keyaki_bench_report::Better;

use crate::calibration::Device;
use crate::options::Workload;
use crate::system::Name;

/// The figures of one system by workload and metric.
pub type Figures = BTreeMap<(Workload, String), f64>;

/// A target for Keyaki's figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// At least this multiple of RocksDB's figure.
    RocksDb(f64),
}

/// A metric in the report.
#[derive(Debug)]
pub struct Metric {
    pub workload: Workload,
    /// Name in the output of a cell.
    pub name: &'static str,
    /// Name of the workload in tables and rows.
    pub title: &'static str,
    pub unit: &'static str,
    pub better: Better,
    pub target: Option<Target>,
}

const INSERT: &str = "random inserts, batches of 100";
const GET: &str = "cold gets of present keys";
const MANY: &str = "cold gets, 64 in flight";
const ABSENT: &str = "cold gets of absent keys";
const FULL: &str = "full scan";
const LATENCY: &str = "single inserts";
const UPSERT: &str = "upserts, batches of 100";
const WRITERS: &str = "random inserts, two writers";
const RECOVER: &str = "open after SIGKILL, 64 MiB of log";
const CREATE: &str = "files: create";
const FIND: &str = "files: find, all";
const FIND_SUBTREE: &str = "files: find, subtree";
const GREP: &str = "files: grep, all";
const GREP_SUBTREE: &str = "files: grep, subtree";
const DELETE_SUBTREE: &str = "files: delete a subtree";
const DELETE: &str = "files: delete all";
const INDEXES: &str = "inserts, seven indexes";

/// All metrics, in the order of the report.
pub static METRICS: [Metric; 74] = {
    use Better::{Higher, Lower};
    use Target::{AtLeast, AtMost, RocksDb};
    use Workload as W;
    const fn metric(
        workload: Workload,
        name: &'static str,
        title: &'static str,
        unit: &'static str,
        better: Better,
        target: Option<Target>,
    ) -> Metric {
        Metric { workload, name, title, unit, better, target }
    }
    [
        metric(W::Insert, "insert", INSERT, "rows/s", Higher, Some(RocksDb(2.0))),
        metric(W::Insert, "settle", INSERT, "s", Lower, None),
        metric(W::Insert, "write amplification", INSERT, "bytes/byte", Lower, Some(AtMost(2.7))),
        metric(W::Insert, "space amplification", INSERT, "bytes/byte", Lower, Some(AtMost(1.3))),
        metric(W::Insert, "memory", INSERT, "MiB", Lower, None),
        metric(W::Writers, "two writers", WRITERS, "rows/s", Higher, None),
        metric(W::Writers, TWO_TO_ONE, WRITERS, "times", Higher, Some(AtLeast(1.5))),
        metric(W::Latency, "single inserts", LATENCY, "rows/s", Higher, None),
        metric(W::Latency, "p50", LATENCY, "ms", Lower, None),
        metric(W::Latency, "p99", LATENCY, "ms", Lower, None),
        metric(W::Latency, "p99.9", LATENCY, "ms", Lower, Some(AtMost(20.0))),
        metric(W::Latency, "max", LATENCY, "ms", Lower, Some(AtMost(200.0))),
        metric(W::Get, "get", GET, "gets/s", Higher, Some(RocksDb(1.0))),
        metric(W::Get, "page reads", GET, "reads/get", Lower, Some(AtMost(1.1))),
        metric(W::Get, "bytes read", GET, "bytes/get", Lower, None),
        metric(W::GetMany, "64 threads", MANY, "gets/s", Higher, None),
        metric(W::GetMany, "2 threads, batches of 32", MANY, "gets/s", Higher, None),
        metric(W::GetMany, "get, 64 in flight", MANY, "gets/s", Higher, None),
        metric(W::GetMany, OF_READS, MANY, "%", Higher, Some(AtLeast(80.0))),
        metric(W::Absent, "absent get", ABSENT, "gets/s", Higher, None),
        metric(W::Absent, "page reads", ABSENT, "reads/get", Lower, Some(AtMost(0.05))),
        metric(W::Scan, SCANS, "scans of 1,000, one thread", "scans/s", Higher, Some(RocksDb(1.0))),
        metric(W::ScanTwo, SCANS, "scans of 1,000, two threads", "scans/s", Higher, Some(RocksDb(1.0))),
        metric(W::FullScan, FULL, FULL, "MB/s", Higher, None),
        metric(W::FullScan, OF_BANDWIDTH, FULL, "%", Higher, Some(AtLeast(70.0))),
        metric(W::Upsert, "upsert", UPSERT, "rows/s", Higher, None),
        metric(W::Upsert, TO_INSERTS, UPSERT, "times", Higher, Some(AtLeast(0.8))),
        metric(W::Recover, "open", RECOVER, "s", Lower, Some(AtMost(1.0))),
        metric(W::Recover, "lost rows", RECOVER, "rows", Lower, None),
        metric(W::Create, "create", CREATE, "files/s", Higher, None),
        metric(W::Create, "until sync", CREATE, "s", Lower, None),
        metric(W::Create, "time", CREATE, "s", Lower, None),
        metric(W::Create, "CPU time", CREATE, "s", Lower, None),
        metric(W::Create, "bytes written", CREATE, "MB", Lower, None),
        metric(W::Create, "written to the device", CREATE, "MB", Lower, None),
        metric(W::Create, "space", CREATE, "MB", Lower, None),
        metric(W::Find, "find", FIND, "files/s", Higher, None),
        metric(W::Find, "time", FIND, "s", Lower, None),
        metric(W::Find, "CPU time", FIND, "s", Lower, None),
        metric(W::Find, "bytes read", FIND, "MB", Lower, None),
        metric(W::FindSubtree, "find", FIND_SUBTREE, "files/s", Higher, None),
        metric(W::FindSubtree, "time", FIND_SUBTREE, "s", Lower, None),
        metric(W::FindSubtree, "CPU time", FIND_SUBTREE, "s", Lower, None),
        metric(W::FindSubtree, "bytes read", FIND_SUBTREE, "MB", Lower, None),
        metric(W::Grep, "grep", GREP, "files/s", Higher, None),
        metric(W::Grep, "time", GREP, "s", Lower, None),
        metric(W::Grep, "CPU time", GREP, "s", Lower, None),
        metric(W::Grep, "bytes read", GREP, "MB", Lower, None),
        metric(W::GrepSubtree, "grep", GREP_SUBTREE, "files/s", Higher, None),
        metric(W::GrepSubtree, "time", GREP_SUBTREE, "s", Lower, None),
        metric(W::GrepSubtree, "CPU time", GREP_SUBTREE, "s", Lower, None),
        metric(W::GrepSubtree, "bytes read", GREP_SUBTREE, "MB", Lower, None),
        metric(W::DeleteSubtree, "delete", DELETE_SUBTREE, "files/s", Higher, None),
        metric(W::DeleteSubtree, "until sync", DELETE_SUBTREE, "s", Lower, None),
        metric(W::DeleteSubtree, "time", DELETE_SUBTREE, "s", Lower, None),
        metric(W::DeleteSubtree, "CPU time", DELETE_SUBTREE, "s", Lower, None),
        metric(W::DeleteSubtree, "bytes written", DELETE_SUBTREE, "MB", Lower, None),
        metric(W::DeleteSubtree, "written to the device", DELETE_SUBTREE, "MB", Lower, None),
        metric(W::DeleteSubtree, "space", DELETE_SUBTREE, "MB", Lower, None),
        metric(W::Delete, "delete", DELETE, "files/s", Higher, None),
        metric(W::Delete, "until sync", DELETE, "s", Lower, None),
        metric(W::Delete, "time", DELETE, "s", Lower, None),
        metric(W::Delete, "CPU time", DELETE, "s", Lower, None),
        metric(W::Delete, "bytes written", DELETE, "MB", Lower, None),
        metric(W::Delete, "written to the device", DELETE, "MB", Lower, None),
        metric(W::Delete, "space", DELETE, "MB", Lower, None),
        metric(W::Indexes, "rows, eight trees", INDEXES, "rows/s", Higher, None),
        metric(W::Indexes, "bytes, eight trees", INDEXES, "MB/s", Higher, None),
        metric(W::Indexes, "bytes, one tree", INDEXES, "MB/s", Higher, None),
        metric(W::Indexes, "write amplification, eight trees", INDEXES, "bytes/byte", Lower, None),
        metric(W::Indexes, "write amplification, one tree", INDEXES, "bytes/byte", Lower, None),
        metric(W::Indexes, "write amplification, eight trees / one", INDEXES, "times", Lower, Some(AtMost(1.3))),
        metric(W::Indexes, "space amplification, eight trees", INDEXES, "bytes/byte", Lower, None),
        metric(W::Indexes, "space amplification, one tree", INDEXES, "bytes/byte", Lower, None),
    ]
};

/// The number of inserted keys: in the output of the cell, not in the report.
pub const KEYS: &str = "keys";
const SCANS: &str = "scans of 1,000";
const TWO_TO_ONE: &str = "two writers / one";
const OF_READS: &str = "share of the device's reads/s";
const OF_BANDWIDTH: &str = "share of the device's bandwidth";
const TO_INSERTS: &str = "upserts / inserts";

/// Adds the figures that follow from others.
pub fn derive(figures: &mut Figures, device: Option<Device>) {
    use Workload as W;
    let figure = |workload: Workload, name: &str| figures.get(&(workload, name.into())).copied();
    let insert = figure(W::Insert, "insert");
    let derived = [
        (W::Writers, TWO_TO_ONE, figure(W::Writers, "two writers"), insert),
        (W::Upsert, TO_INSERTS, figure(W::Upsert, "upsert"), insert),
        (W::GetMany, OF_READS, figure(W::GetMany, "get, 64 in flight"), device.map(|device| device.reads / 100.0)),
        (W::FullScan, OF_BANDWIDTH, figure(W::FullScan, FULL), device.map(|device| device.bandwidth / 1e8)),
    ];
    for (workload, name, figure, base) in derived {
        if let (Some(figure), Some(base)) = (figure, base) {
            figures.insert((workload, name.into()), figure / base);
        }
    }
}

impl Target {
    /// True if Keyaki's figure reaches the target; `None` if RocksDB's figure is missing.
    pub fn is_reached(self, keyaki: f64, rocksdb: Option<f64>) -> Option<bool> {
        Some(match self {
            Target::AtLeast(target) => keyaki >= target,
            Target::AtMost(target) => keyaki <= target,
            Target::RocksDb(factor) => keyaki >= factor * rocksdb?,
        })
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::AtLeast(target) => write!(f, ">= {target}"),
            Target::AtMost(target) => write!(f, "<= {target}"),
            Target::RocksDb(factor) => write!(f, ">= {factor}x {}", Name::Rocksdb.title()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_reached_at_their_value() {
        assert_eq!(Target::AtLeast(1.5).is_reached(1.5, None), Some(true));
        assert_eq!(Target::AtMost(2.7).is_reached(2.8, None), Some(false));
        assert_eq!(Target::RocksDb(2.0).is_reached(4.0, Some(2.0)), Some(true));
        assert_eq!(Target::RocksDb(2.0).is_reached(4.0, None), None);
        assert_eq!(Target::RocksDb(2.0).to_string(), ">= 2x RocksDB");
    }

    #[test]
    fn ratios_follow_from_figures() {
        let device = Device { reads: 50_000.0, bandwidth: 2e9 };
        let measured = [
            (Workload::Insert, "insert", 100.0),
            (Workload::Writers, "two writers", 150.0),
            (Workload::GetMany, "get, 64 in flight", 40_000.0),
            (Workload::FullScan, FULL, 500.0),
        ];
        let mut figures: Figures =
            measured.into_iter().map(|(workload, name, figure)| ((workload, name.into()), figure)).collect();
        derive(&mut figures, Some(device));
        assert_eq!(figures[&(Workload::Writers, TWO_TO_ONE.into())], 1.5);
        assert_eq!(figures[&(Workload::GetMany, OF_READS.into())], 80.0);
        assert_eq!(figures[&(Workload::FullScan, OF_BANDWIDTH.into())], 25.0);
        assert!(!figures.contains_key(&(Workload::Upsert, TO_INSERTS.into())));
    }
}
