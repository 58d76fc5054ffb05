//! Tests of pacing. Times have lower bounds only: a busy machine may delay every call.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Paced;
use crate::interface::{Completion, Device, ErrorKind, File, Op, OpenMode, Queue, Request, Wait};
use crate::memory::{BLOCK, Buffer};
use crate::model::Model;
use crate::simulated::{Simulated, SimulatedOptions};

const MS: u64 = 1_000_000;

/// A device without a limit of requests.
fn latency(latency_ns: u64) -> Model {
    Model { latency_ns, ..Model::instant() }
}

/// A paced device over an instant one in memory, and a file of 16 blocks.
fn device(model: Model) -> (Paced, Arc<dyn File>) {
    let simulated = Simulated::new(SimulatedOptions::default());
    simulated.insert(Path::new("file"), &vec![7; 16 * BLOCK][..]).unwrap();
    let device = Paced::new(simulated.device(), model);
    let file = device.open(Path::new("file"), OpenMode::ReadWrite).unwrap();
    (device, file)
}

fn read(file: &Arc<dyn File>, tag: u64) -> Request {
    Request { file: file.clone(), offset: 0, op: Op::Read(Buffer::zeroed(BLOCK)), tag }
}

fn collect(queue: &mut dyn Queue) -> Vec<Completion> {
    let mut completed = Vec::new();
    while queue.in_flight() > 0 {
        queue.complete(Wait::Until(None), &mut completed).unwrap();
    }
    completed
}

#[test]
fn requests_are_held_back_until_they_are_due() {
    let (device, file) = device(latency(20 * MS));
    let mut queue = device.queue(8).unwrap();
    let start_ns = device.now_ns();
    queue.push(read(&file, 5));
    let mut completed = Vec::new();
    while queue.complete(Wait::No, &mut completed).unwrap() == 0 {
        assert_eq!(queue.in_flight(), 1);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(device.now_ns() - start_ns >= 20 * MS);
    assert_eq!((queue.in_flight(), completed[0].tag), (0, 5));
    let buffer = completed[0].buffer.as_ref().unwrap();
    assert!(completed[0].result.is_ok() && buffer.iter().all(|&byte| byte == 7));
    for op in [Op::Sync, Op::Write(Buffer::zeroed(BLOCK))] {
        let start_ns = device.now_ns();
        queue.push(Request { file: file.clone(), offset: 0, op, tag: 6 });
        assert!(collect(queue.as_mut())[0].result.is_ok());
        assert!(device.now_ns() - start_ns >= 20 * MS);
    }
}

#[test]
fn blocking_calls_take_their_time() {
    let (device, file) = device(latency(10 * MS));
    let mut buffer = Buffer::zeroed(BLOCK);
    let start_ns = device.now_ns();
    file.read_at(0, &mut buffer).unwrap();
    file.write_at(0, &buffer).unwrap();
    file.sync_data().unwrap();
    assert!(file.read_at(16 * BLOCK as u64, &mut buffer).unwrap_err().is_end_of_file());
    assert!(device.now_ns() - start_ns >= 40 * MS);
}

#[test]
fn all_queues_and_files_share_the_channels() {
    let (device, file) = device(Model { channels: 1, ..latency(5 * MS) });
    let start_ns = device.now_ns();
    let mut queues: Vec<_> = (0..2).map(|_| device.queue(4).unwrap()).collect();
    for queue in &mut queues {
        for tag in 0..4 {
            queue.push(read(&file, tag));
        }
        queue.submit().unwrap();
    }
    file.read_at(0, &mut Buffer::zeroed(BLOCK)).unwrap();
    assert!(device.now_ns() - start_ns >= 45 * MS, "nine requests, one after the other");
    assert_eq!(queues.iter_mut().map(|queue| collect(queue.as_mut()).len()).sum::<usize>(), 8);
}

#[test]
fn requests_beyond_the_depth_start_later() {
    let (device, file) = device(latency(5 * MS));
    let mut queue = device.queue(2).unwrap();
    let start_ns = device.now_ns();
    for tag in 0..8 {
        queue.push(read(&file, tag));
    }
    assert_eq!(queue.in_flight(), 8);
    assert_eq!(collect(queue.as_mut()).len(), 8);
    assert!(device.now_ns() - start_ns >= 20 * MS, "four rounds of two");
}

/// The model decides the order: with a jitter, requests overtake each other.
#[test]
fn requests_complete_in_the_order_of_their_due_times() {
    let (device, file) = device(Model { jitter: 1.0, ..latency(50 * MS) });
    let mut queue = device.queue(64).unwrap();
    for tag in 0..64 {
        queue.push(read(&file, tag));
    }
    let mut tags: Vec<u64> = collect(queue.as_mut()).iter().map(|completion| completion.tag).collect();
    assert!(!tags.is_sorted());
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..64));
}

#[test]
fn a_wake_up_ends_a_wait_for_a_due_time() {
    let (device, file) = device(latency(3_600_000 * MS));
    let mut queue = device.queue(4).unwrap();
    // Not dropped: that would wait for the read.
    queue.push(read(&file, 1));
    let waker = queue.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        waker.wake();
    });
    let mut completed = Vec::new();
    assert_eq!(queue.complete(Wait::Until(None), &mut completed).unwrap(), 0);
    thread.join().unwrap();
    let start = Instant::now();
    assert_eq!(queue.complete(Wait::Until(Some(Duration::from_millis(5))), &mut completed).unwrap(), 0);
    assert!(start.elapsed() >= Duration::from_millis(5));
    assert_eq!(queue.in_flight(), 1);
    std::mem::forget(queue);
}

/// A wake-up that arrives with a completion stays pending.
#[test]
fn completions_do_not_consume_wake_ups() {
    let (device, file) = device(latency(MS));
    let mut queue = device.queue(4).unwrap();
    let mut completed = Vec::new();
    for tag in 0..20 {
        queue.push(read(&file, tag));
        queue.submit().unwrap();
        std::thread::sleep(Duration::from_millis(2));
        queue.waker().wake();
        assert_eq!(queue.complete(Wait::Until(None), &mut completed).unwrap(), 1);
        assert_eq!(queue.complete(Wait::Until(None), &mut completed).unwrap(), 0, "ended by the wake-up");
    }
}

#[test]
fn dropping_a_queue_waits_for_its_requests() {
    let (device, file) = device(latency(10 * MS));
    let mut queue = device.queue(2).unwrap();
    let start_ns = device.now_ns();
    for tag in 0..4 {
        queue.push(read(&file, tag));
    }
    queue.submit().unwrap();
    drop(queue);
    assert!(device.now_ns() - start_ns >= 10 * MS);
}

#[test]
fn files_of_other_devices_are_rejected() {
    let (device, file) = device(Model::instant());
    let (_other, foreign) = self::device(Model::instant());
    let mut queue = device.queue(4).unwrap();
    queue.push(read(&foreign, 1));
    queue.push(read(&file, 2));
    let completed = collect(queue.as_mut());
    let of = |tag| completed.iter().find(|completion| completion.tag == tag).unwrap();
    assert!(matches!(of(1).result.as_ref().unwrap_err().kind, ErrorKind::ForeignFile));
    assert!(of(1).buffer.is_some() && of(2).result.is_ok());
}

/// The model's rates hold in real time, at the most.
#[test]
fn rates_do_not_exceed_the_model() {
    let model = Model::cloud(2 * MS, 1000, 1_000_000_000);
    let (device, file) = device(model);
    let mut queue = device.queue(model.queue_depth()).unwrap();
    let start_ns = device.now_ns();
    for tag in 0..50 {
        queue.push(read(&file, tag));
    }
    assert_eq!(collect(queue.as_mut()).len(), 50);
    assert!(device.now_ns() - start_ns >= 49 * MS);
}
