//! Tests of the whole log on a medium that can fail.

mod basics;
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
    (0..len).map(|i| (sequence as usize * 31 + i * 7) as u8).collect()
}

fn append(log: &Log, sequence: u64, len: usize) {
    log.append(sequence, &payload(sequence, len)).unwrap();
}
