use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::base::Error;
use crate::log::segment::SEGMENT_BYTES;
use crate::log::state::GROUP_BYTES;

#[test]
fn records_survive_reopening_in_order() {
    let medium = device(0);
    let mut expected = Records::new();
    for round in 0..5 {
        let (log, records) = open(&medium);
        assert_eq!(records, expected);
        assert_eq!(log.durable(), round * 10);
        for sequence in round * 10 + 1..=round * 10 + 10 {
            append(&log, sequence, sequence as usize * 100);
            expected.push((sequence, payload(sequence, sequence as usize * 100)));
            if sequence % 3 == 0 {
                log.commit(sequence).unwrap();
                assert!(log.durable() >= sequence);
            }
        }
    }
    assert_eq!(open(&medium).1, expected);
}

#[test]
fn commits_survive_a_crash_and_the_last_segment_is_trimmed() {
    let medium = device(0);
    let (log, _) = open(&medium);
    for sequence in 1..=20 {
        append(&log, sequence, 10);
        log.commit(sequence).unwrap();
    }
    append(&log, 21, 10);
    log.poison("the process dies");
    medium.crash();
    drop(log);
    let (log, records) = open(&medium);
    assert_eq!(records.len(), 20);
    drop(log);
    assert!(medium.used_bytes() < SEGMENT_BYTES, "the last segment was not trimmed");
}

/// Opens the log of a small database. Returns the sequence number of its newest record, too.
fn open_short(medium: &Simulated) -> (Log, u64) {
    let mut newest = 0;
    let (from, durability) = (LogPosition::default(), Durability::Full);
    let log = Log::open(medium.device(), dir(), from, 1, durability, true, &mut |sequence, _| {
        newest = sequence;
        Ok(())
    });
    (log.unwrap(), newest)
}

#[test]
fn logs_of_small_databases_are_short() {
    let (medium, short) = (device(0), SEGMENT_BYTES / 8);
    for sequence in 1..=5 {
        let (log, newest) = open_short(&medium);
        assert_eq!(newest, sequence - 1);
        append(&log, sequence, 10);
        log.commit(sequence).unwrap();
        assert!(medium.used_bytes() <= short * (sequence + 1), "{} bytes in use", medium.used_bytes());
        drop(log);
        assert!(medium.used_bytes() <= short * (sequence + 1), "{} bytes in use", medium.used_bytes());
    }
    // Each segment is twice as long as the one before.
    let (log, mut sequence) = open_short(&medium);
    while segment_count(&medium) < 12 {
        sequence += 1;
        append(&log, sequence, 2000);
        log.commit(sequence).unwrap();
    }
    assert!(medium.used_bytes() > 2 * SEGMENT_BYTES, "{} bytes in use", medium.used_bytes());
    drop(log);
    assert_eq!(open_short(&medium).1, sequence);
}

/// Once the database is not small any more, records need the usual spare segment; those of commits that free space do not.
#[test]
fn longer_logs_need_a_longer_spare_segment() {
    let medium = device(0);
    let (log, _) = open_short(&medium);
    append(&log, 1, 10);
    log.commit(1).unwrap();
    medium.set_capacity(Some(medium.used_bytes()));
    assert!(matches!(log.lengthen(), Err(Error::DiskFull { .. })));
    append(&log, 2, 10);
    assert!(log.keep_spare().unwrap());
    log.set_short(false);
    let refused = log.append(3, &payload(3, 10), LogReserve::Keep);
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    assert!(!log.keep_spare().unwrap());
    log.append(3, &payload(3, 10), LogReserve::Use).unwrap();
    log.commit(3).unwrap();
    log.set_short(true);
    medium.set_capacity(None);
    log.lengthen().unwrap();
    assert!(medium.used_bytes() >= SEGMENT_BYTES / 2, "{} bytes in use", medium.used_bytes());
    let segments = segment_count(&medium);
    append(&log, 4, SEGMENT_BYTES as usize / 10);
    log.commit(4).unwrap();
    assert_eq!(segment_count(&medium), segments, "the segment was not extended");
    drop(log);
    assert_eq!(open_short(&medium).1, 4);
    assert_eq!(open(&medium).1.len(), 4);
}

/// Checkpoints of a database with few commits do not make its log longer.
#[test]
fn segments_with_few_records_are_not_followed_by_longer_ones() {
    let medium = device(0);
    let (log, _) = open_short(&medium);
    for sequence in 1..=12 {
        append(&log, sequence, 10);
        log.commit(sequence).unwrap();
        let position = log.cut().unwrap();
        log.remove_before(position).unwrap();
    }
    assert!(medium.used_bytes() <= SEGMENT_BYTES / 4, "{} bytes in use", medium.used_bytes());
}

#[test]
fn segments_follow_each_other_and_huge_records_fit() {
    let medium = device(0);
    let (log, _) = open(&medium);
    let (segment, group) = (SEGMENT_BYTES as usize, GROUP_BYTES);
    let lens = [100, segment + 5000, group, group - 84, 0, 3 * group, segment / 2, segment / 3, segment - 8192, 1];
    for (i, &len) in lens.iter().enumerate() {
        append(&log, i as u64 + 1, len);
    }
    log.sync().unwrap();
    assert_eq!(log.durable(), lens.len() as u64);
    drop(log);
    let (_, records) = open(&medium);
    assert_eq!(records.len(), lens.len());
    for (i, (sequence, bytes)) in records.iter().enumerate() {
        assert_eq!(*sequence, i as u64 + 1);
        assert!(*bytes == payload(*sequence, lens[i]), "record {sequence} differs");
    }
}

#[test]
fn cut_allows_the_removal_of_older_segments() {
    let medium = device(0);
    let (log, _) = open(&medium);
    for sequence in 1..=5 {
        append(&log, sequence, 1000);
    }
    let position = log.cut().unwrap();
    assert_eq!(log.cut().unwrap(), position);
    append(&log, 6, 1000);
    log.commit(6).unwrap();
    assert_eq!(log.durable(), 6);
    assert!(log.bytes() >= 6000);
    log.remove_before(position).unwrap();
    assert!((1000..2000).contains(&log.bytes()));
    assert!(!medium.exists(&path(0)).unwrap());
    drop(log);
    let (log, records) = open_at(&medium, position, 6, Durability::Full).unwrap();
    assert_eq!(records, vec![(6, payload(6, 1000))]);
    drop(log);
    // Records that the checkpoint contains are skipped. A checkpoint may even contain more than the log.
    assert_eq!(open_at(&medium, position, 7, Durability::Full).unwrap().1, vec![]);
    let (log, records) = open_at(&medium, position, 9, Durability::Full).unwrap();
    assert_eq!(records, vec![]);
    append(&log, 9, 10);
    log.commit(9).unwrap();
    drop(log);
    assert_eq!(open_at(&medium, position, 9, Durability::Full).unwrap().1, vec![(9, payload(9, 10))]);
    let error = open_at(&medium, position, 3, Durability::Full).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn an_empty_log_can_be_cut_and_reopened_without_growing() {
    let medium = device(0);
    let mut position = LogPosition::default();
    for _ in 0..3 {
        let (log, records) = open_at(&medium, position, 1, Durability::Full).unwrap();
        assert!(records.is_empty());
        position = log.cut().unwrap();
    }
    assert_eq!(segment_count(&medium), 1);
    let (log, _) = open_at(&medium, position, 1, Durability::Full).unwrap();
    append(&log, 1, 10);
    log.commit(1).unwrap();
    drop(log);
    assert_eq!(open_at(&medium, position, 1, Durability::Full).unwrap().1.len(), 1);
}

#[test]
fn a_missing_segment_is_damage() {
    for missing in 0..3 {
        let medium = device(0);
        let (log, _) = open(&medium);
        let mut position = LogPosition::default();
        for sequence in 1..=3 {
            append(&log, sequence, 100);
            log.commit(sequence).unwrap();
            position = log.cut().unwrap();
        }
        drop(log);
        medium.remove(&path(missing)).unwrap();
        let error = open_at(&medium, LogPosition::default(), 1, Durability::Full).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        medium.remove(&path(3)).unwrap();
        let error = open_at(&medium, position, 4, Durability::Full).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}

#[test]
fn sequence_numbers_must_be_consecutive() {
    let medium = device(0);
    let (log, _) = open(&medium);
    append(&log, 1, 1);
    let panics = |call: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
    assert!(panics(&|| log.append(1, b"", LogReserve::Keep).unwrap()));
    assert!(panics(&|| log.append(3, b"", LogReserve::Keep).unwrap()));
    assert!(panics(&|| log.commit(2).unwrap()));
    assert!(panics(&|| drop(open_at(&medium, LogPosition::default(), 0, Durability::Full))));
    assert!(panics(&|| drop(open_at(&medium, LogPosition { segment: 0, offset: 12 }, 1, Durability::Full))));
    // A rejected call changes nothing.
    append(&log, 2, 1);
    log.commit(2).unwrap();
}

#[test]
fn a_failure_poisons_the_log() {
    let medium = device(0);
    let (log, _) = open(&medium);
    append(&log, 1, 1);
    log.commit(1).unwrap();
    append(&log, 2, 1);
    medium.fail_sync(0);
    assert!(matches!(log.commit(2), Err(Error::Poisoned { .. })));
    assert!(matches!(log.commit(2), Err(Error::Poisoned { .. })));
    assert!(matches!(log.commit(1), Err(Error::Poisoned { .. })));
    assert!(matches!(log.append(3, b"", LogReserve::Keep), Err(Error::Poisoned { .. })));
    assert!(matches!(log.sync(), Err(Error::Poisoned { .. })));
    assert!(matches!(log.cut(), Err(Error::Poisoned { .. })));

    let (log, _) = open(&device(0));
    log.poison("a reason");
    assert_eq!(
        log.append(1, b"", LogReserve::Keep).unwrap_err().to_string(),
        Error::Poisoned { cause: "a reason".into() }.to_string()
    );
}

#[test]
fn a_full_disk_refuses_only_the_record() {
    let medium = device(0);
    let (log, _) = open(&medium);
    medium.set_capacity(Some(3 * SEGMENT_BYTES + 8192));
    let mut sequence = 0;
    let refused = loop {
        let result = log.append(sequence + 1, &payload(sequence + 1, 12_000), LogReserve::Keep);
        match result {
            Ok(()) => sequence += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&refused, Error::DiskFull { .. }), "{refused}");
    log.commit(sequence).unwrap();
    assert!(log.append(sequence + 1, &payload(sequence + 1, 12_000), LogReserve::Keep).is_err());
    medium.set_capacity(Some(medium.used_bytes()));
    // Records of commits that free space are accepted if they fit into a spare segment.
    let mut used = 0;
    while log.append(sequence + 1, &payload(sequence + 1, 5000), LogReserve::Use).is_ok() {
        sequence += 1;
        used += 1;
        log.commit(sequence).unwrap();
    }
    assert!(used >= 2, "{used} records in the reserve");
    // A checkpoint is still possible, also a second one after one that failed.
    let position = log.cut().unwrap();
    assert_eq!(log.cut().unwrap(), position);
    assert!(position.segment > 0 && position.offset > 0);
    let (again, records) = open_at(&copy(&medium), position, sequence + 1, Durability::Full).unwrap();
    assert!(records.is_empty());
    drop(again);
    // It frees the older segments, whose space the spare segment takes.
    log.remove_before(position).unwrap();
    let first = sequence + 1;
    while log.append(sequence + 1, &payload(sequence + 1, 500), LogReserve::Keep).is_ok() {
        sequence += 1;
        log.commit(sequence).unwrap();
    }
    assert!(sequence >= first, "nothing fits after the removal of segments");
    let (again, records) = open_at(&copy(&medium), position, first, Durability::Full).unwrap();
    assert_eq!(records.len() as u64, sequence + 1 - first);
    drop(again);
    // Reopening needs no space, and keeps the spare segment.
    drop(log);
    medium.set_capacity(Some(medium.used_bytes()));
    let (log, records) = open_at(&medium, position, first, Durability::Full).unwrap();
    assert_eq!(records.len() as u64, sequence + 1 - first);
    sequence += 1;
    log.append(sequence, &payload(sequence, 500), LogReserve::Use).unwrap();
    log.commit(sequence).unwrap();
    medium.set_capacity(None);
    sequence += 1;
    append(&log, sequence, 12_000);
    log.commit(sequence).unwrap();
    drop(log);
    let records = open_at(&medium, position, first, Durability::Full).unwrap().1;
    assert_eq!(records.len() as u64, sequence + 1 - first);
}

#[test]
fn background_writes_bound_memory() {
    for durability in [Durability::Normal, Durability::Off] {
        let medium = device(0);
        let (log, _) = open_at(&medium, LogPosition::default(), 1, durability).unwrap();
        for sequence in 1..=200 {
            append(&log, sequence, GROUP_BYTES);
            log.commit(sequence).unwrap();
        }
        log.sync().unwrap();
        assert_eq!(log.durable(), 200);
        append(&log, 201, 100);
        while durability == Durability::Normal && log.durable() < 201 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        log.set_durability(Durability::Full);
        append(&log, 202, 100);
        log.commit(202).unwrap();
        assert_eq!(log.durable(), 202);
    }
}

#[test]
fn concurrent_commits_share_syncs_and_are_durable() {
    let medium = device(0);
    let (log, _) = open(&medium);
    let next = parking_lot::Mutex::new(1);
    let (threads, each) = (8, 250);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..each {
                    let sequence = {
                        let mut next = next.lock();
                        append(&log, *next, 100);
                        *next += 1;
                        *next - 1
                    };
                    log.commit(sequence).unwrap();
                    assert!(log.durable() >= sequence);
                }
            });
        }
    });
    medium.crash();
    drop(log);
    assert_eq!(open(&medium).1.len(), threads * each);
}

#[test]
fn commits_that_wait_together_share_a_sync() {
    let medium = device(0);
    let (log, _) = open(&medium);
    for sequence in 1..=30 {
        append(&log, sequence, 100);
    }
    let before = medium.operations();
    std::thread::scope(|scope| {
        for sequence in 1..=30 {
            let log = &log;
            scope.spawn(move || log.commit(sequence).unwrap());
        }
    });
    // Three operations: the group, zeros ahead of later groups, a sync.
    assert_eq!(medium.operations() - before, 3);
    medium.crash();
    drop(log);
    assert_eq!(open(&medium).1.len(), 30);
}

/// Polls the commits of records on one thread until all have ended. Returns the results.
fn committed(log: &Log, sequences: std::ops::RangeInclusive<u64>) -> Vec<Result<()>> {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut waiting: Vec<_> = sequences.map(|sequence| Box::pin(log.committed(sequence))).collect();
    let mut results = Vec::new();
    loop {
        waiting.retain_mut(|commit| match commit.as_mut().poll(&mut context) {
            Poll::Ready(result) => {
                results.push(result);
                false
            }
            Poll::Pending => true,
        });
        if waiting.is_empty() {
            return results;
        }
        std::thread::park();
    }
}

#[test]
fn commits_without_threads_are_synced_by_the_background_thread() {
    let medium = device(0);
    let (log, _) = open(&medium);
    for round in 0..20 {
        for sequence in 30 * round + 1..=30 * (round + 1) {
            append(&log, sequence, 100);
        }
        let before = medium.operations();
        assert!(committed(&log, 30 * round + 1..=30 * (round + 1)).iter().all(Result::is_ok));
        // One or two syncs: the background thread may start before the last commit has arrived.
        assert!(medium.operations() - before <= 6);
        assert_eq!(log.durable(), 30 * (round + 1));
    }
    medium.crash();
    drop(log);
    assert_eq!(open(&medium).1.len(), 600);
}

#[test]
fn commits_with_and_without_threads_share_turns() {
    let medium = device(0);
    let (log, _) = open(&medium);
    let next = parking_lot::Mutex::new(1);
    let append_next = || {
        let mut next = next.lock();
        append(&log, *next, 100);
        *next += 1;
        *next - 1
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (log, append_next) = (&log, &append_next);
            scope.spawn(move || {
                for _ in 0..250 {
                    let sequence = append_next();
                    if thread % 2 == 0 {
                        log.commit(sequence).unwrap();
                    } else {
                        assert!(committed(log, sequence..=sequence)[0].is_ok());
                    }
                    assert!(log.durable() >= sequence);
                }
            });
        }
    });
    medium.crash();
    drop(log);
    assert_eq!(open(&medium).1.len(), 2000);
}

#[test]
fn commits_without_threads_end_with_a_failure_and_with_the_log() {
    let medium = device(0);
    let (log, _) = open(&medium);
    for sequence in 1..=10 {
        append(&log, sequence, 1);
    }
    medium.fail_sync(0);
    let results = committed(&log, 1..=10);
    assert!(results.iter().all(|result| matches!(result, Err(Error::Poisoned { .. }))));

    // Without the background thread, the commit itself syncs.
    let medium = device(0);
    let (log, _) = open(&medium);
    append(&log, 1, 1);
    log.writer.stop_background();
    assert!(committed(&log, 1..=1)[0].is_ok());
    medium.crash();
    drop(log);
    assert_eq!(open(&medium).1.len(), 1);
}

#[test]
fn works_on_the_operating_systems_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut expected = Records::new();
    for round in 0..3 {
        let device = keyaki_device::open_default().unwrap();
        let from = LogPosition::default();
        let (log, records) = open_on(device, directory.path(), from, 1, Durability::Full).unwrap();
        assert!(records == expected);
        for sequence in round * 20 + 1..=round * 20 + 20 {
            append(&log, sequence, sequence as usize * 1000);
            log.commit(sequence).unwrap();
            expected.push((sequence, payload(sequence, sequence as usize * 1000)));
        }
    }
}

#[test]
fn opening_syncs_a_segment_that_was_not_synced() {
    // With a record, and with the opening group alone.
    for seed in 0..40 {
        let before = seed % 2;
        let original = device(0);
        let (log, _) = open(&original);
        log.cut().unwrap();
        if before == 1 {
            append(&log, 1, 100);
            log.commit(1).unwrap();
        }
        let content = bytes(&original, &path(0));
        // A segment whose directory entry and contents are not durable yet.
        let medium = device(seed);
        let file = medium.open(&path(0), OpenMode::CreateNew).unwrap();
        let mut buffer = Buffer::zeroed(content.len());
        buffer.copy_from_slice(&content);
        file.write_at(0, &buffer).unwrap();
        let (log, records) = open(&medium);
        assert_eq!(records.len() as u64, before);
        append(&log, before + 1, 100);
        log.commit(before + 1).unwrap();
        medium.crash();
        drop(log);
        assert_eq!(open(&medium).1.len() as u64, before + 1);
    }
}
