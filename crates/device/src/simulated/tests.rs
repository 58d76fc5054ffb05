//! Tests of the features that only a simulated device has: virtual time, crashes, faults.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use keyaki_primitives::Random;
use proptest::prelude::*;

use super::*;
use crate::interface::{Completion, Op, Request, Wait};
use crate::memory::{BLOCK, Buffer};

const B: u64 = BLOCK as u64;

fn device(seed: u64, model: Model) -> Simulated {
    Simulated::new(SimulatedOptions { seed, model, capacity_bytes: None })
}

fn path(name: &str) -> &Path {
    Path::new(name)
}

fn filled(byte: u8, blocks: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(blocks * BLOCK);
    buffer.fill(byte);
    buffer
}

fn create(device: &Simulated, name: &str) -> Arc<dyn File> {
    let file = device.open(path(name), OpenMode::CreateNew).unwrap();
    device.sync_dir(path("/")).unwrap();
    file
}

fn block(device: &Simulated, name: &str, block: u64) -> Result<Buffer> {
    let mut buffer = Buffer::zeroed(BLOCK);
    device.open(path(name), OpenMode::Read)?.read_at(block * B, &mut buffer)?;
    Ok(buffer)
}

fn push(queue: &mut dyn Queue, file: &Arc<dyn File>, block: u64, op: Op, tag: u64) {
    queue.push(Request { file: file.clone(), offset: block * B, op, tag });
}

fn drain(queue: &mut dyn Queue) -> Vec<Completion> {
    let mut completed = Vec::new();
    while queue.in_flight() > 0 {
        queue.complete(Wait::Until(None), &mut completed).unwrap();
    }
    completed
}

/// Runs 500 random reads. Returns tags and times of the completions, in order.
fn trace(seed: u64) -> Vec<(u64, u64)> {
    let device = device(seed, Model::nvme());
    let file = create(&device, "f");
    file.allocate(0, 1000 * B).unwrap();
    let mut queue = device.queue(50).unwrap();
    let mut random = Random::new(3);
    let mut trace = Vec::new();
    let mut completed = Vec::new();
    for tag in 0..500 {
        push(queue.as_mut(), &file, random.below(1000), Op::Read(Buffer::zeroed(BLOCK)), tag);
        if tag > 100 {
            queue.complete(Wait::Until(None), &mut completed).unwrap();
            trace.extend(completed.drain(..).map(|completion| (completion.tag, device.now_ns())));
        }
    }
    trace
}

#[test]
fn the_seed_determines_the_run() {
    let first = trace(1);
    assert!(first.len() > 300);
    assert_eq!(first, trace(1));
    assert_ne!(first, trace(2));
    assert!(first.windows(2).all(|pair| pair[0].1 <= pair[1].1), "time never runs backwards");
    assert!(first.windows(2).any(|pair| pair[0].0 > pair[1].0), "completions arrive out of order");
}

#[test]
fn the_clock_follows_the_model() {
    let model = Model { latency_ns: 1000, channels: 2, ..Model::instant() };
    let device = device(0, model);
    let file = create(&device, "f");
    file.write_at(0, &filled(1, 1)).unwrap();
    assert_eq!(device.now_ns(), 1000);
    let mut queue = device.queue(8).unwrap();
    for tag in 0..4 {
        push(queue.as_mut(), &file, 0, Op::Read(Buffer::zeroed(BLOCK)), tag);
    }
    queue.submit().unwrap();
    assert_eq!(device.now_ns(), 1000, "submitting takes no time");
    let mut completed = Vec::new();
    assert_eq!(queue.complete(Wait::No, &mut completed).unwrap(), 0);
    let timeout = Wait::Until(Some(Duration::from_nanos(400)));
    assert_eq!(queue.complete(timeout, &mut completed).unwrap(), 0);
    assert_eq!(device.now_ns(), 1400);
    assert_eq!(queue.complete(Wait::Until(None), &mut completed).unwrap(), 2, "two at a time");
    assert_eq!(device.now_ns(), 2000);
    drain(queue.as_mut());
    assert_eq!(device.now_ns(), 3000);
    device.advance(Duration::from_micros(1));
    assert_eq!(device.now_ns(), 4000);
}

#[test]
fn threads_overlap_in_virtual_time() {
    let model = Model { latency_ns: 100_000, ..Model::instant() };
    let device = device(0, model);
    let file = create(&device, "f");
    file.allocate(0, 100 * B).unwrap();
    let before = device.now_ns();
    // Both queues are in use before one waits, so the clock waits for both.
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut queue = device.queue(1).unwrap();
                queue.submit().unwrap();
                barrier.wait();
                for i in 0..100 {
                    push(queue.as_mut(), &file, i, Op::Read(Buffer::zeroed(BLOCK)), i);
                    drain(queue.as_mut());
                }
            });
        }
    });
    let elapsed = device.now_ns() - before;
    // 100 concurrent reads per thread: 10 ms, or up to 20 ms if a thread was descheduled.
    assert!((10_000_000..=20_000_000).contains(&elapsed), "{elapsed} ns");
}

#[test]
fn synced_data_survives_crashes() {
    for seed in 0..50 {
        let device = device(seed, Model::ssd_array_40());
        let file = create(&device, "f");
        file.write_at(0, &filled(1, 4)).unwrap();
        file.sync_data().unwrap();
        file.write_at(4 * B, &filled(2, 4)).unwrap();
        device.crash();
        let mut buffer = Buffer::zeroed(BLOCK);
        assert!(file.read_at(0, &mut buffer).is_err());
        for i in 0..4 {
            assert!(block(&device, "f", i).unwrap().iter().all(|&byte| byte == 1));
        }
        for i in 4..8 {
            if let Ok(torn) = block(&device, "f", i) {
                assert!(torn.chunks(512).all(|sector| sector == [0; 512] || sector == [2; 512]));
            }
        }
    }
}

#[test]
fn crashes_reach_requests_in_flight() {
    let (mut arrived, mut lost) = (0, 0);
    for seed in 0..60 {
        let device = device(seed, Model::disk());
        let file = create(&device, "f");
        file.allocate(0, B).unwrap();
        file.sync_data().unwrap();
        let mut queue = device.queue(4).unwrap();
        push(queue.as_mut(), &file, 0, Op::Write(filled(7, 1)), 1);
        push(queue.as_mut(), &file, 0, Op::Sync, 2);
        queue.submit().unwrap();
        device.crash();
        let completed = drain(queue.as_mut());
        assert!(completed.iter().all(|completion| completion.result.is_err()));
        assert!(completed.iter().any(|completion| completion.buffer.is_some()), "buffers are returned");
        assert!(queue.complete(Wait::Until(None), &mut Vec::new()).is_err(), "a queue fails after a power failure");
        push(queue.as_mut(), &file, 0, Op::Sync, 3);
        assert!(drain(queue.as_mut())[0].result.is_err());
        match block(&device, "f", 0).unwrap().iter().filter(|&&byte| byte == 7).count() {
            0 => lost += 1,
            BLOCK => arrived += 1,
            _ => {}
        }
    }
    assert!(arrived > 5 && lost > 5, "{arrived} {lost}");
}

#[test]
fn a_crash_ends_waiting() {
    let device = device(0, Model::disk());
    let file = create(&device, "f");
    for during_write in [false, true] {
        let mut queue = device.queue(1).unwrap();
        let waiter = std::thread::spawn(move || queue.complete(Wait::Until(None), &mut Vec::new()).is_err());
        std::thread::sleep(Duration::from_millis(5));
        if during_write {
            let file = device.open(path("f"), OpenMode::ReadWrite).unwrap();
            device.fail_after(0, FaultKind::Crash);
            assert!(file.write_at(0, &filled(1, 1)).is_err());
        } else {
            device.crash();
        }
        assert!(waiter.join().unwrap());
    }
    assert!(file.is_empty().is_err());
}

/// The usual test of a store: the same work, with a power failure at every operation in turn.
#[test]
fn power_may_fail_at_every_operation() {
    let work = |device: &Simulated| -> Result<u64> {
        let mut acknowledged = 0;
        let file = device.open(path("log"), OpenMode::CreateNew)?;
        device.sync_dir(path(""))?;
        file.allocate(0, 4 * B)?;
        for i in 0..4 {
            file.write_at(i * B, &filled(i as u8 + 1, 1))?;
            file.sync_data()?;
            acknowledged = i + 1;
            if i == 2 {
                device.rename(path("log"), path("renamed"))?;
                device.sync_dir(path(""))?;
            }
        }
        Ok(acknowledged)
    };
    let total = {
        let device = device(0, Model::instant());
        assert_eq!(work(&device).unwrap(), 4);
        assert_eq!(device.writes(), 4);
        device.operations()
    };
    assert_eq!(total, 13);
    for seed in 0..8 {
        for at in 0..total {
            let device = device(seed, Model::instant());
            device.crash_after_operations(at);
            let error = work(&device).unwrap_err();
            assert!(device.is_down(), "{error}");
            assert!(device.list(path("/")).is_err());
            device.crash();
            let name = if device.exists(path("log")).unwrap() { "log" } else { "renamed" };
            // Numbers of the syncs: two operations per write, and two for the rename and its sync.
            let synced = [4, 6, 8, 12].iter().filter(|&&sync| sync < at).count() as u64;
            for i in 0..synced {
                assert_eq!(block(&device, name, i).unwrap()[100], i as u8 + 1, "operation {at}, seed {seed}");
            }
        }
    }
}

#[test]
fn planned_faults_hit_their_writes() {
    let device = device(0, Model::instant());
    let file = create(&device, "f");
    file.allocate(0, 8 * B).unwrap();
    device.fail_after(1, FaultKind::Eio);
    device.fail_after(2, FaultKind::NoSpace);
    device.fail_after(3, FaultKind::Lose);
    device.fail_after(4, FaultKind::Misdirect { blocks: 2 });
    let write = |i: u64| file.write_at(i * B, &filled(i as u8 + 1, 1));
    write(0).unwrap();
    assert!(!write(1).unwrap_err().is_no_space());
    assert!(write(2).unwrap_err().is_no_space());
    write(3).unwrap();
    write(4).unwrap();
    write(5).unwrap();
    let contents: Vec<u8> = (0..8).map(|i| block(&device, "f", i).unwrap()[0]).collect();
    assert_eq!(contents, [1, 0, 0, 0, 0, 6, 5, 0]);
    assert_eq!(device.writes(), 6);
    device.fail_after(0, FaultKind::Eio);
    device.clear_faults();
    write(1).unwrap();
}

#[test]
fn faults_reach_queues() {
    let device = device(0, Model::instant());
    let file = create(&device, "f");
    let mut queue = device.queue(4).unwrap();
    device.fail_after(1, FaultKind::NoSpace);
    device.fail_sync(0);
    for tag in 0..3 {
        push(queue.as_mut(), &file, tag, Op::Write(filled(1, 1)), tag);
    }
    push(queue.as_mut(), &file, 0, Op::Sync, 3);
    let mut results: Vec<_> = drain(queue.as_mut()).into_iter().map(|c| (c.tag, c.result.is_ok())).collect();
    results.sort_unstable();
    assert_eq!(results, [(0, true), (1, false), (2, true), (3, false)]);
    device.fail_after(0, FaultKind::Crash);
    push(queue.as_mut(), &file, 0, Op::Write(filled(1, 1)), 0);
    push(queue.as_mut(), &file, 1, Op::Write(filled(1, 1)), 1);
    assert!(drain(queue.as_mut()).iter().all(|completion| completion.result.is_err()));
    assert!(device.is_down());
}

#[test]
fn syncs_fail_and_lie() {
    let device = device(9, Model::instant());
    let file = create(&device, "f");
    file.write_at(0, &filled(1, 1)).unwrap();
    file.sync_data().unwrap();
    device.fail_sync(1);
    file.sync_data().unwrap();
    assert!(!file.sync_data().unwrap_err().is_no_space());
    device.fail_sync_without_space(0);
    assert!(file.sync_data().unwrap_err().is_no_space());
    file.sync_data().unwrap();
    let mut lost = false;
    for i in 2..22 {
        let file = device.open(path("f"), OpenMode::ReadWrite).unwrap();
        device.set_lying_syncs(true);
        file.write_at(0, &filled(i, 1)).unwrap();
        file.sync_data().unwrap();
        device.crash();
        lost |= block(&device, "f", 0).unwrap()[0] < i;
    }
    assert!(lost);
}

#[test]
fn ranges_go_bad_and_bits_flip() {
    let device = device(0, Model::instant());
    let file = create(&device, "f");
    file.write_at(0, &filled(0, 4)).unwrap();
    device.fail_reads(path("f"), B + 10..B + 11).unwrap();
    device.flip_bit(path("f"), 3 * B + 5, 7).unwrap();
    assert!(block(&device, "f", 0).is_ok());
    assert!(block(&device, "f", 1).is_err());
    assert_eq!(block(&device, "f", 3).unwrap()[5], 0x80);
    device.clear_faults();
    assert!(block(&device, "f", 1).is_ok());
    assert!(device.flip_bit(path("f"), 4 * B, 0).is_err());
    assert!(device.flip_bit(path("g"), 0, 0).unwrap_err().is_not_found());
    assert!(device.fail_reads(path("g"), 0..1).is_err());
}

#[test]
fn capacity_limits_the_used_space() {
    let device = Simulated::new(SimulatedOptions { capacity_bytes: Some(10 * B), ..Default::default() });
    let file = create(&device, "f");
    file.allocate(0, 6 * B).unwrap();
    let other = create(&device, "g");
    assert!(other.write_at(0, &filled(1, 5)).unwrap_err().is_no_space());
    other.write_at(0, &filled(1, 4)).unwrap();
    file.write_at(0, &filled(1, 6)).unwrap();
    assert!(file.write_at(6 * B, &filled(1, 1)).unwrap_err().is_no_space());
    assert_eq!(device.used_bytes(), 10 * B);
    drop(other);
    device.remove(path("g")).unwrap();
    device.sync_dir(path("/")).unwrap();
    assert_eq!(device.used_bytes(), 6 * B);
    device.set_capacity(Some(7 * B));
    file.write_at(6 * B, &filled(1, 1)).unwrap();
    assert!(file.write_at(7 * B, &filled(1, 1)).unwrap_err().is_no_space());
}

#[test]
fn files_are_imported() {
    let device = device(0, Model::instant());
    let real = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(real.path(), [5; BLOCK + 100]).unwrap();
    device.import(path("/a/b/f"), real.path()).unwrap();
    device.crash();
    assert_eq!(device.list(path("a/b")).unwrap(), ["f"]);
    assert_eq!(block(&device, "/a/b/f", 0).unwrap()[..], [5; BLOCK]);
    let file = device.open(path("a/b/f"), OpenMode::ReadWrite).unwrap();
    assert_eq!(file.len().unwrap(), B + 100);
    assert!(block(&device, "a/b/f", 1).unwrap_err().is_end_of_file());
    assert!(device.import(path("x"), path("/no/such/file")).unwrap_err().is_not_found());
    device.insert(path("x"), &[1; BLOCK][..]).unwrap();
    assert_eq!(block(&device, "x", 0).unwrap()[..], [1; BLOCK]);
}

#[test]
fn locks_end_with_the_power() {
    let device = device(0, Model::instant());
    let lock = device.lock(path("lock")).unwrap();
    device.crash();
    let second = device.lock(path("lock")).unwrap();
    drop(lock);
    assert!(
        device.lock(path("lock")).unwrap_err().is_locked(),
        "a guard from before the crash does not release the new lock"
    );
    drop(second);
    device.lock(path("lock")).unwrap();
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, u64),
    Truncate(u64),
    Allocate(u64, u64),
    Sync,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..20_u64, 1..6_u64).prop_map(|(at, len)| Step::Write(at, len)),
        1 => (0..25 * B).prop_map(Step::Truncate),
        1 => (0..20_u64, 1..6_u64).prop_map(|(at, len)| Step::Allocate(at, len)),
        2 => Just(Step::Sync),
        1 => Just(Step::Crash),
    ]
}

proptest! {
    /// Between crashes a file behaves like an array of bytes. After a crash, every sector has the contents that it had
    /// at, or after, the last sync.
    #[test]
    fn files_agree_with_a_model(seed: u64, steps in prop::collection::vec(step(), 1..60)) {
        let device = device(seed, Model::instant());
        create(&device, "f");
        let mut file = device.open(path("f"), OpenMode::ReadWrite).unwrap();
        let mut model: Vec<u8> = Vec::new();
        // The images of the file at the last sync and after each step since.
        let mut history: Vec<Vec<u8>> = vec![Vec::new()];
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write(at, len) => {
                    file.write_at(at * B, &filled(i as u8 + 1, len as usize)).unwrap();
                    let end = ((at + len) * B) as usize;
                    model.resize(model.len().max(end), 0);
                    model[(at * B) as usize..end].fill(i as u8 + 1);
                }
                Step::Truncate(len) => {
                    file.truncate(len).unwrap();
                    model.resize(len as usize, 0);
                }
                Step::Allocate(at, len) => {
                    file.allocate(at * B, len * B).unwrap();
                    model.resize(model.len().max(((at + len) * B) as usize), 0);
                }
                Step::Sync => {
                    file.sync_data().unwrap();
                    history.clear();
                }
                Step::Crash => {
                    device.crash();
                    file = device.open(path("f"), OpenMode::ReadWrite).unwrap();
                    let found = contents(&file);
                    for (at, sector) in found.chunks(512).enumerate() {
                        // Zeros may also come from a truncation or growth that survived alone.
                        let known = sector.iter().all(|&byte| byte == 0) || history.iter().any(|image| {
                            image.get(at * 512..).is_some_and(|rest| rest.iter().zip(sector).all(|(a, b)| a == b || *b == 0))
                        });
                        prop_assert!(known, "sector {} has contents that were never written", at);
                    }
                    model = found;
                    history.clear();
                }
            }
            history.push(model.clone());
            prop_assert_eq!(file.len().unwrap(), model.len() as u64);
        }
        prop_assert_eq!(contents(&file), model);
    }
}

/// All bytes of the file. Grows it temporarily to read the last partial block.
fn contents(file: &Arc<dyn File>) -> Vec<u8> {
    let len = file.len().unwrap();
    let padded = len.next_multiple_of(B);
    if padded > len {
        file.truncate(padded).unwrap();
    }
    let mut buffer = Buffer::zeroed(padded as usize);
    file.read_at(0, &mut buffer).unwrap();
    if padded > len {
        file.truncate(len).unwrap();
    }
    buffer[..len as usize].to_vec()
}
