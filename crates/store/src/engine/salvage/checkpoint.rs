//! Restores the newest readable state: the newest intact checkpoint and the intact prefix of the log.
//!
//! A checkpoint is intact if its superblock and its node table are intact. Usually both superblock slots name the same
//! one. They differ if a crash has interrupted a checkpoint; the space of the older one is then not reused yet, and the
//! log continues from it. Without an intact checkpoint, the log alone is replayed if it has its first segment, as that of
//! a new database has.
//!
//! The log has no rows of bulk loads and large transactions, only an empty record for each: a checkpoint has their rows.
//! Behind an older checkpoint than the newest one, such records mean that rows may be lost.

use std::path::Path;
use std::sync::Arc;

use keyaki_device::{Device, OpenMode};

use crate::base::{Error, Options, Result, TreeId};
use crate::engine::Replay;
use crate::engine::open::read_checkpoint;
use crate::log::{Log, LogPosition, SalvagedLog};
use crate::pages::{Files, Space, Superblock};
use crate::tree::StoreVersion;

/// A state of the database.
pub(super) struct Restored {
    pub files: Arc<Files>,
    pub state: StoreVersion,
    /// The superblock of the checkpoint; `None` if the log alone was replayed.
    pub superblock: Option<Superblock>,
    pub log: SalvagedLog,
    /// The damaged superblocks and node tables.
    pub damaged: Vec<Error>,
    /// Number of replayed records without changes.
    pub empty_records: u64,
}

/// Reads the newest state.
///
/// # Errors
/// [`Error::FormatVersion`]; [`Error::Corrupt`] or [`Error::NotADatabase`] if there is no intact checkpoint; device
/// errors other than of reads.
pub(super) fn restore(device: &Arc<dyn Device>, dir: &Path, options: &Options) -> Result<Restored> {
    let data_path = dir.join("data");
    let data = device.exists(&data_path)?.then(|| device.open(&data_path, OpenMode::Read)).transpose()?;
    let mut damaged = Vec::new();
    if let Some(data) = &data {
        let candidates;
        (candidates, damaged) = Superblock::read_all(&**data)?;
        for superblock in candidates {
            match read_checkpoint(device, data, &data_path, &superblock, options) {
                Ok((files, state, next_tree)) => {
                    let (from, sequence) = (superblock.log, superblock.sequence);
                    let (state, log, empty_records) = replay(device, dir, state, next_tree, from, sequence)?;
                    return Ok(Restored { files, state, superblock: Some(superblock), log, damaged, empty_records });
                }
                Err(error) if error.is_damage() => damaged.push(error),
                Err(error) => return Err(error),
            }
        }
    }
    if !Log::has_beginning(&**device, dir)? {
        let detail = "it has neither a data file nor the beginning of a log (name the directory of a database)".into();
        let foreign = Error::NotADatabase { path: dir.to_path_buf(), detail };
        return Err(damaged.pop().unwrap_or(foreign));
    }
    if data.is_none() {
        let (path, detail) = (data_path.clone(), "the file is missing".into());
        damaged.push(Error::Corrupt { path, what: "data file", offset: None, detail });
    }
    // No extent refers to the data file, which may be missing.
    let data = match data {
        Some(data) => data,
        None => device.open(&Log::path_of_beginning(dir), OpenMode::Read)?,
    };
    let space = Space::of_read_only(data.clone());
    let files = Arc::new(Files::new(device, data, &data_path, space, options.page_bytes as u32, options));
    let (state, from) = (StoreVersion::default(), LogPosition::default());
    let (state, log, empty_records) = replay(device, dir, state, TreeId::new(0), from, 0)?;
    Ok(Restored { files, state, superblock: None, log, damaged, empty_records })
}

/// Applies the intact records of the log to the state of a checkpoint. Also returns the number of empty records.
fn replay(
    device: &Arc<dyn Device>,
    dir: &Path,
    state: StoreVersion,
    next_tree: TreeId,
    from: LogPosition,
    sequence: u64,
) -> Result<(StoreVersion, SalvagedLog, u64)> {
    let (mut replay, mut empty) = (Replay::new(state, next_tree, sequence), 0);
    let log = Log::salvage(device, dir, from, sequence + 1, &mut |sequence, payload| {
        empty += u64::from(payload.is_empty());
        replay.apply(sequence, payload)
    })?;
    replay.finish()?;
    Ok((replay.state, log, empty))
}
