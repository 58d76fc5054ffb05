//! Tests of the whole log on a simulated medium that can fail.

mod basics;
mod crashes;
mod damage;
#[cfg(feature = "shuttle")]
mod interleavings;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_device::{BLOCK, Buffer, Device, OpenMode};

use super::format::segment_name;
use super::segment::LogSegments;
use super::{Log, LogPosition, LogReserve};
use crate::base::{Durability, Result};

type Records = Vec<(u64, Vec<u8>)>;

fn dir() -> &'static Path {
    Path::new("/db")
}

fn path(segment: u64) -> PathBuf {
    dir().join(segment_name(segment))
}

/// A simulated device with an empty directory.
pub(crate) fn device(seed: u64) -> Simulated {
    let device = Simulated::new(SimulatedOptions { seed, ..SimulatedOptions::default() });
    device.create_dir(dir()).unwrap();
    device.sync_dir(Path::new("/")).unwrap();
    device
}

/// The bytes of a file, in whole blocks.
pub(crate) fn bytes(device: &Simulated, path: &Path) -> Vec<u8> {
    let file = device.open(path, OpenMode::Read).unwrap();
    let mut buffer = Buffer::zeroed(file.len().unwrap() as usize / BLOCK * BLOCK);
    file.read_at(0, &mut buffer).unwrap();
    buffer.to_vec()
}

/// Replaces the contents of a file, durably.
pub(crate) fn set_bytes(device: &Simulated, path: &Path, bytes: Vec<u8>) {
    device.insert(path, std::io::Cursor::new(bytes)).unwrap();
}

/// Number of segments, without the spare one.
fn segment_count(device: &Simulated) -> u64 {
    LogSegments::list(device, dir()).unwrap().len() as u64
}

/// A device with the same files.
fn copy(original: &Simulated) -> Simulated {
    let copy = device(0);
    for name in original.list(dir()).unwrap() {
        set_bytes(&copy, &dir().join(&name), bytes(original, &dir().join(&name)));
    }
    copy
}

/// Opens the log and returns it with the recovered records.
fn open_at(device: &Simulated, from: LogPosition, first: u64, durability: Durability) -> Result<(Log, Records)> {
    open_on(device.device(), dir(), from, first, durability)
}

fn open_on(
    device: Arc<dyn Device>,
    dir: &Path,
    from: LogPosition,
    first: u64,
    durability: Durability,
) -> Result<(Log, Records)> {
    let mut records = Records::new();
    let log = Log::open(device, dir, from, first, durability, false, &mut |sequence, payload| {
        records.push((sequence, payload.to_vec()));
        Ok(())
    })?;
    Ok((log, records))
}

fn open(device: &Simulated) -> (Log, Records) {
    open_at(device, LogPosition::default(), 1, Durability::Full).unwrap()
}

/// The payload of record `sequence` in the tests.
fn payload(sequence: u64, len: usize) -> Vec<u8> {
    let mut bytes = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(len.div_ceil(8));
    bytes.truncate(len);
    bytes
}

fn append(log: &Log, sequence: u64, len: usize) {
    log.append(sequence, &payload(sequence, len), LogReserve::Keep).unwrap();
}
