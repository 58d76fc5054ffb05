//! Tests of the whole log on a medium that can fail.

mod basics;
mod crashes;
mod damage;
pub(crate) mod medium;

use std::path::Path;

use self::medium::Medium;
use super::{Log, LogPosition};
use crate::{Durability, Result};

type Records = Vec<(u64, Vec<u8>)>;

fn dir() -> &'static Path {
    Path::new("/db")
}

/// Opens the log and returns what it had.
fn open_at(medium: &Medium, from: LogPosition, first: u64, durability: Durability) -> Result<(Log, Records)> {
    let mut records = Vec::new();
    let log = Log::open(medium.device(), dir(), from, first, durability, &mut |sequence, payload| {
        records.push((sequence, payload.to_vec()));
        Ok(())
    })?;
    Ok((log, records))
}

fn open(medium: &Medium) -> (Log, Records) {
    open_at(medium, LogPosition::default(), 1, Durability::Full).unwrap()
}

/// The payload of a record in the tests.
fn payload(sequence: u64, len: usize) -> Vec<u8> {
    let mut bytes = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(len.div_ceil(8));
    bytes.truncate(len);
    bytes
}

/// A medium with the same files.
fn copy(medium: &Medium) -> Medium {
    medium.after_crash(&mut || true)
}

fn append(log: &Log, sequence: u64, len: usize) {
    log.append(sequence, &payload(sequence, len)).unwrap();
}

/// Random numbers from a seed (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
