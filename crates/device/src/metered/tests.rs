//! Tests of the meters on a device with virtual time.

use std::path::Path;

use super::{Issued, Metering};
use crate::interface::{Completion, Device, ErrorKind, Op, OpenMode, Operation, Queue, Request, Wait};
use crate::memory::{BLOCK, Buffer};
use crate::simulated::{Model, Simulated, SimulatedOptions};

fn kind_of(path: &Path) -> usize {
    usize::from(path != Path::new("data"))
}

fn device() -> Metering {
    let model = Model { latency_ns: 100_000, ..Model::instant() };
    let simulated = Simulated::new(SimulatedOptions { model, ..SimulatedOptions::default() });
    for name in ["data", "log", "lock"] {
        simulated.insert(Path::new(name), &vec![7; 16 * BLOCK][..]).unwrap();
    }
    Metering::new(simulated.device(), &["data", "log"], kind_of)
}

fn collect(queue: &mut dyn Queue) -> Vec<Completion> {
    let mut completed = Vec::new();
    while queue.in_flight() > 0 {
        queue.complete(Wait::Until(None), &mut completed).unwrap();
    }
    completed
}

#[test]
fn requests_are_counted_by_kind_operation_and_issuer() {
    let device = device();
    let data = device.open(Path::new("data"), OpenMode::ReadWrite).unwrap();
    let log = device.open(Path::new("log"), OpenMode::ReadWrite).unwrap();
    data.read_at(0, &mut Buffer::zeroed(BLOCK)).unwrap();
    log.write_at(0, &Buffer::zeroed(2 * BLOCK)).unwrap();
    log.sync_data().unwrap();
    assert!(data.read_at(64 * BLOCK as u64, &mut Buffer::zeroed(BLOCK)).is_err());
    let mut queue = device.queue(4).unwrap();
    for tag in 0..3 {
        queue.push(Request { file: data.clone(), offset: 0, op: Op::Read(Buffer::zeroed(BLOCK)), tag });
    }
    assert_eq!(device.meters().snapshot("data", Operation::Read, Issued::Queued).started, 3);
    let mut tags: Vec<u64> = collect(&mut *queue).into_iter().map(|completion| completion.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2]);
    let count = |kind, operation, issued| {
        let metered = device.meters().snapshot(kind, operation, issued);
        (metered.completed, metered.failed, metered.bytes / BLOCK as u64)
    };
    assert_eq!(count("data", Operation::Read, Issued::Blocking), (2, 1, 2));
    assert_eq!(count("data", Operation::Read, Issued::Queued), (3, 0, 3));
    assert_eq!(count("log", Operation::Write, Issued::Blocking), (1, 0, 2));
    assert_eq!(count("log", Operation::Sync, Issued::Blocking), (1, 0, 0));
    assert_eq!(count("log", Operation::Read, Issued::Blocking), (0, 0, 0));
    assert_eq!(count("none", Operation::Read, Issued::Blocking), (0, 0, 0));
    assert_eq!(count("data", Operation::Open, Issued::Blocking), (0, 0, 0));
    let reads = device.meters().snapshot("data", Operation::Read, Issued::Queued);
    assert!(reads.mean_ns > 0.0 && reads.max_ns as f64 >= reads.mean_ns);
    assert!(reads.quantile_ns(0.5) <= reads.quantile_ns(0.99));
}

#[test]
fn files_of_other_devices_are_refused() {
    let (own, other) = (device(), device());
    let file = other.open(Path::new("data"), OpenMode::ReadWrite).unwrap();
    let mut queue = own.queue(4).unwrap();
    queue.push(Request { file, offset: 0, op: Op::Read(Buffer::zeroed(BLOCK)), tag: 9 });
    let completed = collect(&mut *queue);
    assert_eq!(completed[0].tag, 9);
    assert!(matches!(completed[0].result.as_ref().unwrap_err().kind, ErrorKind::ForeignFile));
    assert!(completed[0].buffer.is_some());
}
