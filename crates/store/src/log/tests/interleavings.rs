//! Group commit under shuttle: the real log on the simulated device, with other threads at every access to a lock or an
//! atomic, and before every operation of the device.
//!
//! A lost wake-up is a deadlock, which shuttle reports. After each run the power fails: the records that were
//! acknowledged must be recovered, and the recovered records must be a prefix of the appended ones.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_primitives::sync::thread::{JoinHandle, spawn, yield_now};
use keyaki_primitives::sync::{Limits, Mutex, explore};

use super::*;
use crate::base::Error;

/// A log that several threads use as a store does.
struct Shared {
    medium: Simulated,
    log: Log,
    /// The commit lock, with the newest appended record.
    appended: Mutex<u64>,
    /// Newest record that must survive.
    acknowledged: AtomicU64,
    /// The position and first sequence number of the newest checkpoint.
    checkpoint: Mutex<(LogPosition, u64)>,
}

impl Shared {
    fn open(durability: Durability) -> Arc<Shared> {
        let medium = device(1);
        let log = open_at(&medium, LogPosition::default(), 1, durability).unwrap().0;
        let checkpoint = Mutex::new((LogPosition::default(), 1));
        Arc::new(Shared { medium, log, appended: Mutex::new(0), acknowledged: AtomicU64::new(0), checkpoint })
    }

    fn append(&self, len: usize) -> Result<u64> {
        self.append_with(len, LogReserve::Keep)
    }

    fn append_with(&self, len: usize, reserve: LogReserve) -> Result<u64> {
        let mut appended = self.appended.lock();
        let sequence = *appended + 1;
        self.log.append(sequence, &payload(sequence, len), reserve)?;
        *appended = sequence;
        Ok(sequence)
    }

    fn commit(&self, len: usize) -> Result<()> {
        let sequence = self.append(len)?;
        self.log.commit(sequence)?;
        self.acknowledge(sequence);
        Ok(())
    }

    fn acknowledge(&self, sequence: u64) {
        assert!(self.log.durable() >= sequence, "record {sequence} is acknowledged, {} durable", self.log.durable());
        self.acknowledged.fetch_max(sequence, Ordering::SeqCst);
    }

    /// Returns the position of the checkpoint.
    fn checkpoint(&self) -> Result<LogPosition> {
        let (position, sequence) = {
            let appended = self.appended.lock();
            (self.log.cut()?, *appended)
        };
        // A store writes the superblock here, which makes the commits durable.
        *self.checkpoint.lock() = (position, sequence + 1);
        self.acknowledged.fetch_max(sequence, Ordering::SeqCst);
        self.log.remove_before(position).map(|()| position)
    }

    /// Cuts the power and recovers the log.
    fn check(self: Arc<Self>) {
        let Ok(shared) = Arc::try_unwrap(self) else { panic!("a thread still uses the log") };
        let Shared { medium, log, appended, acknowledged, checkpoint } = shared;
        log.poison("the process dies");
        drop(log);
        medium.crash();
        medium.set_capacity(None);
        let (from, first) = checkpoint.into_inner();
        let (log, records) = open_at(&medium, from, first, Durability::Full).unwrap();
        let recovered = first - 1 + records.len() as u64;
        assert!(records.iter().map(|(sequence, _)| *sequence).eq(first..=recovered));
        for (sequence, bytes) in &records {
            assert!(*bytes == payload(*sequence, bytes.len()), "record {sequence} is not what was appended");
        }
        let (acknowledged, appended) = (acknowledged.into_inner(), appended.into_inner());
        assert!(recovered >= acknowledged, "{acknowledged} acknowledged, {recovered} recovered");
        assert!(recovered <= appended, "{appended} appended, {recovered} recovered");
        log.poison("the process dies");
    }
}

type Work = fn(&Shared);

/// Runs the threads on one log.
fn run<const N: usize>(schedules: usize, durability: Durability, prepare: Work, threads: [Work; N]) {
    explore(Limits::schedules(schedules), move || {
        let shared = Shared::open(durability);
        prepare(&shared);
        let handles: Vec<_> = threads.iter().map(|work| start(&shared, *work)).collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        shared.check();
    });
}

fn start(shared: &Arc<Shared>, work: impl FnOnce(&Shared) + Send + 'static) -> JoinHandle<()> {
    let shared = shared.clone();
    spawn(move || work(&shared))
}

/// Commits that end by a failure of the device or by the poison that follows it.
fn commit_until_failure(shared: &Shared) {
    for _ in 0..2 {
        match shared.commit(100) {
            Ok(()) => {}
            Err(Error::Poisoned { .. } | Error::Device(_)) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn commit_twice(shared: &Shared) {
    shared.commit(100).unwrap();
    shared.commit(100).unwrap();
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    shuttle::future::block_on(future)
}

fn commit_without_blocking(shared: &Shared) {
    let sequence = shared.append(100).unwrap();
    block_on(shared.log.committed(sequence)).unwrap();
    shared.acknowledge(sequence);
}

#[test]
fn committers_share_turns() {
    run(500, Durability::Full, |_| (), [commit_twice, commit_twice, commit_twice]);
}

#[test]
fn tasks_commit_beside_threads() {
    let threads: [Work; 3] = [commit_without_blocking, commit_twice, commit_without_blocking];
    run(500, Durability::Full, |_| (), threads);
}

/// The thread of the log leads all turns.
#[test]
fn tasks_commit_alone() {
    let threads: [Work; 3] = [commit_without_blocking, commit_without_blocking, commit_without_blocking];
    run(500, Durability::Full, |_| (), threads);
}

#[test]
fn acknowledged_records_survive_a_power_failure() {
    let crash: Work = |shared| shared.medium.crash();
    run(1000, Durability::Full, |_| (), [commit_until_failure, commit_until_failure, crash]);
}

#[test]
fn a_failed_sync_ends_all_commits() {
    let task: Work = |shared| {
        let Ok(sequence) = shared.append(100) else { return };
        match block_on(shared.log.committed(sequence)) {
            Ok(()) => shared.acknowledge(sequence),
            Err(Error::Poisoned { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let fail: Work = |shared| shared.medium.fail_sync(0);
    run(1000, Durability::Full, |_| (), [commit_until_failure, commit_until_failure, task, fail]);
}

/// Records of half a group, so that appends start segments beside turns and beside the removal of segments.
#[test]
fn appends_start_segments_beside_turns() {
    let large: Work = |shared| {
        for _ in 0..3 {
            shared.commit(30_000).unwrap();
        }
    };
    let keep_spare: Work = |shared| assert!(shared.log.keep_spare().unwrap());
    run(300, Durability::Full, |_| (), [large, large, keep_spare]);
}

#[test]
fn cuts_beside_waiting_commits() {
    let checkpoint: Work = |shared| {
        for _ in 0..2 {
            shared.checkpoint().unwrap();
        }
    };
    run(500, Durability::Full, |_| (), [commit_twice, commit_twice, checkpoint]);
}

/// There is no spare segment, so a cut and another thread create one.
#[test]
fn cuts_beside_new_spare_segments() {
    let commit: Work = |shared| shared.commit(100).unwrap();
    let use_spare: Work = |shared| {
        shared.commit(100).unwrap();
        shared.log.cut().unwrap();
        shared.append_with(100, LogReserve::Use).unwrap();
    };
    let keep_spare: Work = |shared| assert!(shared.log.keep_spare().unwrap());
    let checkpoint: Work = |shared| assert_eq!(shared.checkpoint().unwrap().offset, 0);
    run(500, Durability::Full, use_spare, [keep_spare, commit, checkpoint]);
}

/// The disk is full and there is no spare segment: the cut writes a mark into the current segment.
#[test]
fn cuts_on_a_full_disk() {
    let commit: Work = |shared| {
        let sequence = shared.append_with(100, LogReserve::Use).unwrap();
        shared.log.commit(sequence).unwrap();
        shared.acknowledge(sequence);
    };
    let fill: Work = |shared| {
        shared.commit(100).unwrap();
        shared.medium.set_capacity(Some(shared.medium.used_bytes()));
        // Uses up the spare segment.
        shared.log.cut().unwrap();
        shared.append_with(100, LogReserve::Use).unwrap();
    };
    let checkpoint: Work = |shared| assert!(shared.checkpoint().unwrap().offset > 0);
    run(500, Durability::Full, fill, [commit, commit, checkpoint]);
}

/// Commits whose records were appended before the log is closed.
#[test]
fn a_log_closes_beside_waiting_commits() {
    explore(Limits::schedules(500), || {
        let shared = Shared::open(Durability::Full);
        let (first, second) = (shared.append(100).unwrap(), shared.append(100).unwrap());
        let threads = [
            start(&shared, move |shared| shared.log.commit(first).map(|()| shared.acknowledge(first)).unwrap()),
            start(&shared, move |shared| {
                block_on(shared.log.committed(second)).unwrap();
                shared.acknowledge(second);
            }),
            start(&shared, |shared| shared.log.close()),
        ];
        threads.into_iter().for_each(|handle| handle.join().unwrap());
        shared.check();
    });
}

/// The thread of the log writes records that nothing waits for.
#[test]
fn the_background_thread_syncs_beside_appends() {
    let append: Work = |shared| {
        for _ in 0..2 {
            let sequence = shared.append(9000).unwrap();
            shared.log.commit(sequence).unwrap();
        }
    };
    let wait: Work = |shared| {
        let appended = *shared.appended.lock();
        while shared.log.durable() < appended {
            yield_now();
        }
        shared.acknowledge(appended);
    };
    run(300, Durability::Normal, |_| (), [append, append, wait]);
}

/// The thread of the log syncs records that it has only written, once the durability requires it.
#[test]
fn written_records_are_synced_after_a_change_of_the_durability() {
    let append: Work = |shared| assert_eq!(shared.append(100).unwrap(), 1);
    let raise: Work = |shared| {
        shared.log.set_durability(Durability::Normal);
        while shared.log.durable() == 0 {
            yield_now();
        }
    };
    run(300, Durability::Off, append, [raise]);
}

/// The durability rises to `Full` beside commits, as in `Store::set_durability`.
#[test]
fn the_durability_rises_beside_commits() {
    let append: Work = |shared| {
        let sequence = shared.append(100).unwrap();
        shared.log.commit(sequence).unwrap();
    };
    let raise: Work = |shared| {
        let appended = {
            let appended = shared.appended.lock();
            shared.log.set_durability(Durability::Full);
            *appended
        };
        shared.log.sync().unwrap();
        shared.acknowledge(appended);
        shared.commit(100).unwrap();
    };
    run(300, Durability::Off, |_| (), [append, append, raise]);
}
