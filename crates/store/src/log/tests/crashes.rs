//! Crash tests. A log is used until a changing call fails or the process or the machine dies, then it is recovered.
//! Acknowledged records must be recovered, and the recovered records must be a prefix of the appended ones.

use keyaki_device::simulated::FaultKind;
use keyaki_primitives::Random;

use super::*;
use crate::base::Error;
use crate::log::segment::SEGMENT_BYTES;

/// The state that a correct log must recover.
struct Model {
    medium: Simulated,
    random: Random,
    /// The position and first sequence number of the newest checkpoint, as a superblock stores them.
    from: LogPosition,
    first: u64,
    /// Newest record that was appended. `acknowledged` is the newest record that must survive.
    appended: u64,
    acknowledged: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let (medium, random) = (device(seed), Random::new(seed));
        Model { medium, random, from: LogPosition::default(), first: 1, appended: 0, acknowledged: 0 }
    }

    /// Opens the log; `None` if the power fails meanwhile.
    fn open(&mut self, durability: Durability, power_fails: bool) -> Option<Log> {
        let (log, records) = match open_at(&self.medium, self.from, self.first, durability) {
            Ok(opened) => opened,
            Err(Error::Device(_)) if power_fails => return None,
            Err(error) => panic!("{error}"),
        };
        for (i, (sequence, bytes)) in records.iter().enumerate() {
            assert_eq!(*sequence, self.first + i as u64);
            assert!(*bytes == payload(*sequence, len_of(*sequence)), "record {sequence} is not what was appended");
        }
        let recovered = self.first - 1 + records.len() as u64;
        assert!(recovered >= self.acknowledged, "{} was acknowledged, {recovered} recovered", self.acknowledged);
        assert!(recovered <= self.appended, "{recovered} recovered of {}", self.appended);
        assert_eq!(log.durable(), recovered);
        (self.appended, self.acknowledged) = (recovered, recovered);
        Some(log)
    }

    /// Uses the log until a call fails or a random number of steps was made.
    fn live(&mut self, log: &Log, durability: Durability) -> Result<()> {
        for _ in 0..self.random.below(60) {
            match self.random.below(13) {
                0..=5 => self.append(log)?,
                6..=8 => {
                    let sequence = self.appended - self.random.below(3).min(self.appended);
                    log.commit(sequence)?;
                    if durability == Durability::Full {
                        self.acknowledged = self.acknowledged.max(sequence);
                    }
                }
                9 => {
                    log.sync()?;
                    self.acknowledged = self.appended;
                }
                10 => self.checkpoint(log)?,
                11 if self.random.one_in(2) => self.medium.set_capacity(None),
                11 => self.medium.set_capacity(Some(self.medium.used_bytes() + self.random.below(20_000))),
                _ => assert!(log.durable() <= self.appended),
            }
        }
        Ok(())
    }

    /// Appends a record. A full disk only refuses the record.
    fn append(&mut self, log: &Log) -> Result<()> {
        let sequence = self.appended + 1;
        match log.append(sequence, &payload(sequence, len_of(sequence)), LogReserve::Keep) {
            Ok(()) => self.appended = sequence,
            Err(Error::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn checkpoint(&mut self, log: &Log) -> Result<()> {
        let sequence = self.appended;
        let position = match log.cut() {
            Err(Error::DiskFull { .. }) => return Ok(()),
            result => result?,
        };
        if self.random.one_in(2) {
            self.append(log)?;
        }
        // A store would write the superblock here.
        (self.from, self.first) = (position, sequence + 1);
        self.acknowledged = self.acknowledged.max(sequence);
        if self.random.one_in(3) { Ok(()) } else { log.remove_before(position) }
    }

    /// Ends the process, with or without the loss of writes that were not synced.
    fn die(&mut self, log: Option<Log>) {
        if let Some(log) = log {
            // The dead process makes no further calls.
            log.poison("the process dies");
        }
        if self.medium.is_down() || self.random.one_in(2) {
            self.medium.crash();
        }
        self.medium.clear_faults();
        self.medium.set_capacity(None);
    }
}

/// Length of a record: mostly small, sometimes larger than a group, rarely larger than a segment.
fn len_of(sequence: u64) -> usize {
    let mut random = Random::new(sequence);
    let len = match random.below(40) {
        0 => random.below(SEGMENT_BYTES + SEGMENT_BYTES / 2),
        1..=3 => random.below(30_000),
        4..=12 => random.below(5000),
        _ => random.below(100),
    };
    len as usize
}

fn run(seed: u64, durability: Durability) {
    let mut model = Model::new(seed);
    for _ in 0..4 {
        let power_fails = !model.random.one_in(4);
        if power_fails {
            let successes = model.random.below(60);
            match model.random.below(4) {
                0 => model.medium.fail_after(successes / 2, FaultKind::Eio),
                1 => model.medium.fail_sync(successes / 2),
                _ => model.medium.crash_after_operations(successes),
            }
        }
        let log = model.open(durability, power_fails);
        let result = log.as_ref().map_or(Ok(()), |log| model.live(log, durability));
        match (result, power_fails) {
            (Ok(()), false) if model.random.one_in(2) => drop(log),
            (Ok(()), _) => model.die(log),
            (Err(Error::Device(_) | Error::Poisoned { .. }), true) => model.die(log),
            (Err(error), _) => panic!("{error}"),
        }
    }
    model.open(Durability::Full, false);
}

fn run_all(seeds: std::ops::Range<u64>, durability: Durability) {
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed, durability));
        if let Err(panic) = result {
            eprintln!("seed {seed}, {durability:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn acknowledged_records_survive_under_full() {
    run_all(0..3000, Durability::Full);
}

#[test]
fn synced_records_survive_under_normal() {
    run_all(10_000..11_000, Durability::Normal);
}

#[test]
fn synced_records_survive_under_off() {
    run_all(20_000..21_000, Durability::Off);
}
