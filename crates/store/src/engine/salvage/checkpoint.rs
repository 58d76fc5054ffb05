//! The newest state that can be read: that of the newest intact checkpoint, with the intact prefix of the log.
//!
//! A checkpoint is intact if its superblock and its node table are. Usually both superblock slots name the same one.
//! They differ if a crash has interrupted a checkpoint; the space of the older one is then not reused yet, and the log
//! goes on from it. Without an intact checkpoint, the log alone is replayed if it has been kept from its beginning, as
//! in a new database.

use std::path::Path;
use std::sync::Arc;

use keyaki_device::{Device, File, OpenMode};

use crate::base::{Error, Options, Result, TreeId};
use crate::engine::open::{malformed_node_table, read_node_table};
use crate::engine::{Replay, node_table};
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
}

/// Reads the newest state.
///
/// # Errors
/// [`Error::FormatVersion`]; [`Error::Corrupt`] or [`Error::NotADatabase`] if there is no intact checkpoint; device
/// errors other than of reads.
pub(super) fn restore(device: &Arc<dyn Device>, dir: &Path, options: &Options) -> Result<Restored> {
    let data_path = dir.join("data");
    let Opened { data, candidates, mut damaged } = Opened::open(device, &data_path)?;
    for superblock in candidates {
        match decode(device, &data, &data_path, &superblock, options) {
            Ok((files, state, next_tree)) => {
                let (from, sequence) = (superblock.log, superblock.sequence);
                let (state, log) = replay(device, dir, state, next_tree, from, sequence)?;
                return Ok(Restored { files, state, superblock: Some(superblock), log, damaged });
            }
            Err(error) if error.is_damage() => damaged.push(error),
            Err(error) => return Err(error),
        }
    }
    if !Log::has_beginning(&**device, dir)? {
        let missing = || Error::NotADatabase { path: dir.to_path_buf(), detail: "it has no data file".into() };
        return Err(damaged.pop().unwrap_or_else(missing));
    }
    // No extent refers to the data file, which may be missing.
    let data = match data {
        Some(data) => data,
        None => device.open(&Log::path_of_beginning(dir), OpenMode::Read)?,
    };
    let space = Space::of_read_only(data.clone());
    let files = Arc::new(Files::new(device, data, &data_path, space, options.page_bytes as u32, options));
    let (state, from) = (StoreVersion::default(), LogPosition::default());
    let (state, log) = replay(device, dir, state, TreeId::new(0), from, 0)?;
    Ok(Restored { files, state, superblock: None, log, damaged })
}

/// The data file, if it exists, and its superblocks, newest first.
struct Opened {
    data: Option<Arc<dyn File>>,
    candidates: Vec<Superblock>,
    damaged: Vec<Error>,
}

impl Opened {
    fn open(device: &Arc<dyn Device>, path: &Path) -> Result<Opened> {
        if !device.exists(path)? {
            let (path, detail) = (path.to_path_buf(), "the file is missing".into());
            let damaged = vec![Error::Corrupt { path, what: "data file", offset: None, detail }];
            return Ok(Opened { data: None, candidates: Vec::new(), damaged });
        }
        let data = device.open(path, OpenMode::Read)?;
        let (candidates, damaged) = Superblock::read_all(&*data)?;
        Ok(Opened { data: Some(data), candidates, damaged })
    }
}

/// The trees of a checkpoint.
fn decode(
    device: &Arc<dyn Device>,
    data: &Option<Arc<dyn File>>,
    path: &Path,
    superblock: &Superblock,
    options: &Options,
) -> Result<(Arc<Files>, StoreVersion, TreeId)> {
    let Some(data) = data else { return Err(Error::Closed) };
    let bytes = read_node_table(&**data, path, superblock)?;
    let space = Space::of_read_only(data.clone());
    let files = Arc::new(Files::new(device, data.clone(), path, space, superblock.page_bytes, options));
    let decoded = node_table::decode(&bytes, &files);
    let (state, next_tree) = decoded.map_err(|malformed| malformed_node_table(path, superblock, malformed))?;
    Ok((files, state, next_tree))
}

/// Applies the intact records of the log to the state of a checkpoint.
fn replay(
    device: &Arc<dyn Device>,
    dir: &Path,
    state: StoreVersion,
    next_tree: TreeId,
    from: LogPosition,
    sequence: u64,
) -> Result<(StoreVersion, SalvagedLog)> {
    let mut replay = Replay::new(state, next_tree, sequence);
    let log = Log::salvage(device, dir, from, sequence + 1, &mut |sequence, payload| replay.apply(sequence, payload))?;
    replay.finish()?;
    Ok((replay.state, log))
}
