//! Opening a database: creation of the directory and the data file, recovery from the newest checkpoint and the log.
//!
//! Recovery reads the superblock and the node table, builds the map of used space from all extents, then replays the
//! log records after the checkpoint into root buffers.
//!
//! *Invariants.* A data file gets its final name only when it is complete, so a crash during creation leaves no partial
//! database. All bytes read are checked before they are used.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use keyaki_device::metered::Meter;
use keyaki_device::{BLOCK, Buffer, Device, File, Lock, OpenMode};
use keyaki_primitives::sync::atomic::{AtomicU32, AtomicU64};
use keyaki_primitives::sync::{Condvar, Mutex, RwLock};

use super::follow::newest;
use super::node_table::Trained;
use crate::base::{Durability, Error, Malformed, Options, Result, TreeId};
use crate::codec::Dictionaries;
use crate::engine::Transactions;
use crate::engine::{
    Checkpointed, CommitToken, Follower, LocatorThread, Pacing, Pinned, Replay, Shared, Visibility, node_table,
};
use crate::locator::Locators;
use crate::log::{Log, LogPosition, random_id};
use crate::pages::{Files, RESERVED_BYTES, Space, Superblock};
use crate::tree::{FULL_DISK_PARTS, StoreVersion};

/// The first tree id returned by [`Store::new_tree_id`]; lower ids are reserved for the application.
const FIRST_FREE_TREE: TreeId = TreeId::new(16);

/// Maximum value of the option `leaf_bytes`.
const LEAF_BYTES_MAX: usize = 1 << 30;

/// Checks the options for consistency.
///
/// # Errors
/// [`Error::InvalidArgument`].
pub(crate) fn check_options(options: &Options) -> Result<()> {
    let Options { page_bytes, leaf_bytes, fan_out, .. } = *options;
    let (argument, detail) = if page_bytes == 0 || !page_bytes.is_multiple_of(BLOCK) {
        ("page_bytes", format!("{page_bytes} is not a multiple of {BLOCK}"))
    } else if !(page_bytes..=LEAF_BYTES_MAX).contains(&leaf_bytes) {
        ("leaf_bytes", format!("{leaf_bytes} is not between page_bytes ({page_bytes}) and {LEAF_BYTES_MAX}"))
    } else if fan_out < 2 {
        ("fan_out", format!("{fan_out} is less than 2"))
    } else {
        return Ok(());
    };
    Err(Error::InvalidArgument { argument, detail })
}

/// Creates the directory if it does not exist, and checks that it has no files of other programs.
///
/// # Errors
/// [`Error::NotADatabase`] if the directory has other files; device errors.
pub(crate) fn prepare_directory(device: &dyn Device, dir: &Path) -> Result<()> {
    if !device.exists(dir)? {
        device.create_dir(dir)?;
        if let Some(parent) = dir.parent() {
            // The parent of a relative path of one component is the current directory.
            device.sync_dir(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
        }
    }
    let ours =
        |name: &String| matches!(name.as_str(), "LOCK" | "data.new" | "tmp" | "log.spare") || name.starts_with("log-");
    match device.list(dir)?.into_iter().find(|name| !ours(name)) {
        Some(other) => Err(Error::NotADatabase {
            path: dir.to_path_buf(),
            detail: format!("the directory contains another file, \"{other}\""),
        }),
        None => Ok(()),
    }
}

/// Checks that the directory has no log segments. The log is created after the data file, so segments without a data
/// file belong to a damaged database.
///
/// # Errors
/// [`Error::Corrupt`] if there are segments, device errors.
pub(crate) fn check_no_log(device: &dyn Device, dir: &Path) -> Result<()> {
    match device.list(dir)?.into_iter().find(|name| name.starts_with("log-")) {
        Some(segment) => Err(Error::Corrupt {
            path: dir.join("data"),
            what: "database",
            offset: None,
            detail: format!("the data file is missing, but log segment \"{segment}\" exists"),
        }),
        None => Ok(()),
    }
}

/// Creates an empty data file. It is written under another name and renamed once it is durable.
///
/// # Errors
/// [`Error::DiskFull`], device errors.
pub(crate) fn create(device: &dyn Device, dir: &Path, options: &Options) -> Result<()> {
    let new = dir.join("data.new");
    if device.exists(&new)? {
        device.remove(&new)?;
    }
    let file = device.open(&new, OpenMode::CreateNew)?;
    file.allocate(0, RESERVED_BYTES + 4096)?;
    let meta = node_table::encode(&StoreVersion::default(), FIRST_FREE_TREE, &Dictionaries::default(), Trained::All);
    let mut buffer = Buffer::zeroed(4096);
    buffer[..meta.len()].copy_from_slice(&meta);
    file.write_at(RESERVED_BYTES, &buffer)?;
    file.sync_data()?;
    let superblock = Superblock {
        generation: 1,
        sequence: 0,
        log: LogPosition::default(),
        node_table_offset: RESERVED_BYTES,
        node_table_len: meta.len() as u64,
        node_table_hash: xxhash_rust::xxh3::xxh3_64(&meta),
        page_bytes: options.page_bytes as u32,
        database_id: random_id(),
    };
    superblock.write(&*file)?;
    drop(file);
    device.rename(&new, &dir.join("data"))?;
    device.sync_dir(dir)?;
    Ok(())
}

pub(crate) fn recover(
    device: Arc<dyn Device>,
    dir: &Path,
    mut options: Options,
    lock: Box<dyn Lock>,
) -> Result<Shared> {
    let data_path = dir.join("data");
    let data = device.open(&data_path, OpenMode::ReadWrite)?;
    let superblock = Superblock::read(&*data)?;
    set_page_bytes(&mut options, &superblock, &data_path)?;
    let bytes = read_node_table(&*data, &data_path, &superblock)?;
    let in_meta = |malformed: Malformed| malformed_node_table(&data_path, &superblock, malformed);
    let meta_space = (superblock.node_table_offset, superblock.node_table_len.next_multiple_of(4096));
    let mut used = node_table::used_space(&bytes).map_err(in_meta)?;
    used.push(meta_space);
    // Extents that a flush writes on a full disk, with their last page and their index page.
    let extent_bytes = options.leaf_bytes / FULL_DISK_PARTS;
    let slot_bytes = (extent_bytes + extent_bytes / 4 + 2 * options.page_bytes).next_multiple_of(BLOCK) as u64;
    let space = Space::new(data.clone(), used, slot_bytes)?;
    let files = Arc::new(Files::new(&device, data, &data_path, space, superblock.page_bytes, &options));
    let (state, next_tree) = node_table::decode(&bytes, &files, None).map_err(in_meta)?;
    // Without buffers, so that the checkpoint does not keep messages of later commits in memory.
    let without_buffers = Arc::new(state.without_buffers());
    let pinned = Pinned::find(dir, &files, superblock.generation, &without_buffers)?;
    let checkpointed = Checkpointed {
        generation: superblock.generation,
        sequence: superblock.sequence,
        log: superblock.log,
        meta: meta_space,
        // Before anything else is allocated: the range that the previous process has set aside is still free.
        spare_table: files.space.find(meta_space.1).map(|offset| (offset, meta_space.1)),
        state: without_buffers,
        pinned,
        doubtful: None,
    };
    files.space.set_spare_bytes(checkpointed.spare_table.map_or(0, |spare| spare.1));

    let mut replay = Replay::new(state, next_tree, superblock.sequence);
    superblock.mirror(&*files.data)?;
    let first = superblock.sequence + 1;
    let is_short = files.space.open_small(0);
    let log = Log::open(device, dir, superblock.log, first, options.durability, is_short, &mut |sequence, payload| {
        replay.apply(sequence, payload)
    })?;
    replay.finish()?;
    let shared = shared(&superblock, files, log, replay, checkpointed, options, Some(lock), None);
    let (buffered, excess) = shared.run_bytes();
    if !shared.files.space.open_small(buffered + excess) {
        // On a full disk, rows are refused until there is space.
        shared.log.set_short(false);
    }
    Ok(shared)
}

/// Opens a database for reading, see [`Store::open_read_only`](super::Store::open_read_only).
pub(super) fn open_read_only(device: Arc<dyn Device>, dir: &Path, options: Options) -> Result<Shared> {
    let path = dir.join("data");
    let data = device.open(&path, OpenMode::Read).map_err(|error| match error.is_not_found() {
        true => Error::DatabaseNotFound { path: dir.to_path_buf() },
        false => error.into(),
    })?;
    let mut options = Options { durability: Durability::Off, ..options };
    let superblock = newest(&*data)?;
    set_page_bytes(&mut options, &superblock, &path)?;
    let files = read_only_files(&device, &data, &path, &superblock, &options);
    files.set_read_only();
    let (follower, opened) = Follower::open(&files, dir)?;
    let log = Log::without_files(device, dir);
    let checkpointed = Checkpointed {
        generation: opened.superblock.generation,
        sequence: opened.superblock.sequence,
        log: opened.superblock.log,
        meta: (opened.superblock.node_table_offset, opened.superblock.node_table_len),
        spare_table: None,
        state: Arc::default(),
        pinned: Pinned::default(),
        doubtful: None,
    };
    Ok(shared(&opened.superblock, files, log, opened.replay, checkpointed, options, None, Some(Mutex::new(follower))))
}

/// Sets the page length of a database in the options of its store.
///
/// # Errors
/// [`Error::InvalidArgument`] if it contradicts the others.
fn set_page_bytes(options: &mut Options, superblock: &Superblock, data_path: &Path) -> Result<()> {
    options.page_bytes = superblock.page_bytes as usize;
    check_options(options).map_err(|error| match error {
        Error::InvalidArgument { argument, detail } => {
            let detail = format!("{detail}; \"{}\" has pages of {} bytes", data_path.display(), superblock.page_bytes);
            Error::InvalidArgument { argument, detail }
        }
        other => other,
    })
}

/// The shared part of a store after recovery.
fn shared(
    superblock: &Superblock,
    files: Arc<Files>,
    log: Log,
    replay: Replay,
    checkpointed: Checkpointed,
    options: Options,
    lock: Option<Box<dyn Lock>>,
    follower: Option<Mutex<Follower>>,
) -> Shared {
    Shared {
        locators: Arc::new(Locators::new(files.clone())),
        database_id: superblock.database_id,
        files,
        log,
        state: RwLock::new(Arc::new(replay.state)),
        released: Mutex::default(),
        generation: AtomicU64::new(0),
        observer: Default::default(),
        commit: CommitToken::new_lock(),
        inserted: AtomicU64::new(replay.inserted),
        visibility: Visibility::new(options.durability, replay.inserted),
        next_tree: AtomicU32::new(replay.next_tree.get()),
        next_memory_tree: AtomicU32::new(TreeId::MEMORY_START.get()),
        snapshots: Arc::default(),
        transactions: Transactions::default(),
        logged: AtomicU64::new(replay.inserted),
        maintenance: Mutex::new(checkpointed),
        work: Mutex::default(),
        work_changed: Condvar::new(),
        locator_thread: LocatorThread::default(),
        bytes_flushed: AtomicU64::new(0),
        bytes_loaded: AtomicU64::new(0),
        checkpoints: AtomicU64::new(0),
        commits: Meter::default(),
        stalls: Meter::default(),
        pacing: Pacing::default(),
        futile: Mutex::default(),
        lock: Mutex::new(lock),
        follower,
        options,
    }
}

/// The error for a node table that cannot be decoded.
fn malformed_node_table(path: &Path, superblock: &Superblock, malformed: Malformed) -> Error {
    let Malformed { position, detail } = malformed;
    let offset = Some(superblock.node_table_offset + position as u64);
    Error::Corrupt { path: path.to_path_buf(), what: "node table", offset, detail }
}

fn corrupt_node_table(path: &Path, superblock: &Superblock, detail: &str) -> Error {
    let (path, detail) = (path.to_path_buf(), detail.to_string());
    Error::Corrupt { path, what: "node table", offset: Some(superblock.node_table_offset), detail }
}

/// The bytes of the node table that a superblock names.
///
/// # Errors
/// [`Error::Corrupt`] if they have another checksum, device errors.
fn read_node_table(data: &dyn File, path: &Path, superblock: &Superblock) -> Result<Vec<u8>> {
    let end = superblock.node_table_offset.checked_add(superblock.node_table_len);
    if end.is_none_or(|end| end > data.len().unwrap_or(0)) {
        return Err(corrupt_node_table(path, superblock, "the node table extends beyond the end of the file"));
    }
    let mut buffer = Buffer::zeroed((superblock.node_table_len as usize).next_multiple_of(4096));
    data.read_at(superblock.node_table_offset, &mut buffer)?;
    let bytes = &buffer[..superblock.node_table_len as usize];
    if xxhash_rust::xxh3::xxh3_64(bytes) != superblock.node_table_hash {
        return Err(corrupt_node_table(path, superblock, "checksum mismatch"));
    }
    Ok(bytes.to_vec())
}

/// The trees of a checkpoint in a data file that is only read, and the next tree id.
///
/// # Errors
/// [`Error::Corrupt`], device errors.
pub(super) fn read_checkpoint(
    device: &Arc<dyn Device>,
    data: &Arc<dyn File>,
    path: &Path,
    superblock: &Superblock,
    options: &Options,
) -> Result<(Arc<Files>, StoreVersion, TreeId)> {
    let files = read_only_files(device, data, path, superblock, options);
    let (state, next_tree) = decode_checkpoint(&files, superblock, None)?;
    Ok((files, state, next_tree))
}

/// The files of a store that reads the data file only.
fn read_only_files(
    device: &Arc<dyn Device>,
    data: &Arc<dyn File>,
    path: &Path,
    superblock: &Superblock,
    options: &Options,
) -> Arc<Files> {
    let space = Space::of_read_only(data.clone());
    Arc::new(Files::new(device, data.clone(), path, space, superblock.page_bytes, options))
}

/// The trees of a checkpoint in a data file that is only read, and the next tree id. `pin` keeps another process from
/// using the space of the checkpoint again.
///
/// # Errors
/// [`Error::Corrupt`], device errors.
pub(super) fn decode_checkpoint(
    files: &Arc<Files>,
    superblock: &Superblock,
    pin: Option<&Arc<dyn Lock>>,
) -> Result<(StoreVersion, TreeId)> {
    let path = &files.data_path;
    let bytes = read_node_table(&*files.data, path, superblock)?;
    let decoded = node_table::decode(&bytes, files, pin);
    let decoded = decoded.map_err(|malformed| malformed_node_table(path, superblock, malformed))?;
    check_disjoint(&decoded.0, path)?;
    Ok(decoded)
}

/// Checks that extents do not overlap. A file that is opened for writing also checks its length.
///
/// # Errors
/// [`Error::Corrupt`].
fn check_disjoint(state: &StoreVersion, path: &Path) -> Result<()> {
    let mut extents = BTreeMap::new();
    for version in state.trees.values() {
        version.visit_extents(&mut |extent| {
            extents.insert(extent.meta.offset, extent.meta.len);
        });
    }
    let mut end = 0;
    for (offset, len) in extents {
        if offset < end {
            let (path, detail) = (path.to_path_buf(), format!("a range of {len} bytes is used twice"));
            return Err(Error::Corrupt { path, what: "node table", offset: Some(offset), detail });
        }
        end = offset.saturating_add(len);
    }
    Ok(())
}
