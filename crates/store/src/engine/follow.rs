//! A store that is open read-only, beside a process that may write the database.
//!
//! ```text
//! superblock ─► pin the checkpoint (see `pins`) ─► node table ─► records of the log ─► state
//!     ▲                                                              │
//!     └───────────── refresh: another superblock? ◄──────────────────┘ further records
//! ```
//!
//! A refresh first reads the new records of the log, then the superblock, and then applies the records if the superblock
//! is the old one. A bulk load has an empty record, and its rows are in the checkpoint that ends it. No later commit has a
//! record before that checkpoint. So records that were read before the old superblock was found need nothing of a later
//! checkpoint. If the superblock has changed, the state is built again from the new checkpoint.
//!
//! *Invariants.* The state is that after some commit of the writer, with all commits before it. It has all commits whose
//! records were complete when the last refresh began. Commits that the writer has not acknowledged yet may be among them.
//! All extents of a state are pinned as long as anything refers to them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_device::{File, Lock};
use keyaki_primitives::sync::atomic::Ordering;

use super::open::decode_checkpoint;
use crate::base::{Error, Result, TreeId, TreeKind};
use crate::engine::{Replay, Shared, Store, apply, check};
use crate::log::{LogTail, Record};
use crate::message::{Operation, decode};
use crate::pages::{Files, Superblock};
use crate::tree::StoreVersion;

/// Approximate bytes of records read at a time.
const RECORD_BYTES_MAX: usize = 16 << 20;
/// Number of times that a state is built again because the writer has written a checkpoint meanwhile.
const ATTEMPTS: usize = 20;
/// Number of times that a damaged state is read: the writer may have changed it meanwhile.
const DAMAGED_ATTEMPTS: usize = 3;
/// Number of times that the superblock is read if it seems damaged: the writer may be writing it.
const SUPERBLOCK_READS: usize = 5;

/// The position of a reader.
#[derive(Debug)]
pub(crate) struct Follower {
    dir: PathBuf,
    /// The checkpoint of the current state.
    superblock: Superblock,
    /// `None` if the database has no lock file: no process has it open for writing, and none can change it without an error
    /// of the next refresh.
    pin: Option<Arc<dyn Lock>>,
    /// The position in the log; `None` if records before it may not have been applied. The next refresh builds the state
    /// again then.
    tail: Option<LogTail>,
}

/// The effect of a refresh.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// The state was built from another checkpoint: any tree may have changed.
    pub is_rebuilt: bool,
    /// The trees that further commits have changed, created or dropped.
    pub trees: BTreeSet<TreeId>,
}

impl Refreshed {
    /// True if the tree may have changed.
    pub fn may_have_changed(&self, tree: TreeId) -> bool {
        self.is_rebuilt || self.trees.contains(&tree)
    }
}

/// A state that was read.
pub(crate) struct Opened {
    pub superblock: Superblock,
    /// The trees and the newest sequence number.
    pub replay: Replay,
}

impl Follower {
    /// Reads the newest state. Makes sure that the log is complete.
    ///
    /// # Errors
    /// [`Error::Corrupt`], also if an acknowledged record of the log is missing; [`Error::FormatVersion`],
    /// [`Error::Overtaken`]; device errors.
    pub fn open(files: &Arc<Files>, dir: &Path) -> Result<(Follower, Opened)> {
        Follower::read(files, dir, true)
    }

    /// The trees of the checkpoint of the current state, without the records of the log, its sequence number, and the next
    /// tree id.
    ///
    /// # Errors
    /// [`Error::Corrupt`], device errors.
    pub fn checkpoint(&self, files: &Arc<Files>) -> Result<(Arc<StoreVersion>, u64, TreeId)> {
        let (state, next_tree) = decode_checkpoint(files, &self.superblock, self.pin.as_ref())?;
        Ok((Arc::new(state), self.superblock.sequence, next_tree))
    }

    fn read(files: &Arc<Files>, dir: &Path, checks: bool) -> Result<(Follower, Opened)> {
        for attempt in 1..=ATTEMPTS {
            match Follower::try_read(files, dir, checks) {
                Ok(Some(read)) => return Ok(read),
                Ok(None) => {}
                // The writer may have removed files of the log while they were read.
                Err(error) if attempt < ATTEMPTS && error.is_not_found() => {}
                Err(error) if attempt < DAMAGED_ATTEMPTS && error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Overtaken { path: dir.to_path_buf() })
    }

    /// Reads a state; `None` if a new checkpoint was written meanwhile. With `checks`, makes sure that the log is complete.
    fn try_read(files: &Arc<Files>, dir: &Path, checks: bool) -> Result<Option<(Follower, Opened)>> {
        let (superblock, pin) = pin(files, dir)?;
        let (state, next_tree) = decode_checkpoint(files, &superblock, pin.as_ref())?;
        let mut tail = LogTail::new(&files.device, dir, superblock.log, superblock.sequence + 1);
        let mut replay = Replay::new(state, next_tree, superblock.sequence);
        loop {
            let mut records = tail.read(RECORD_BYTES_MAX)?;
            if records.is_empty() {
                let problem = if checks { tail.check_end().err() } else { None };
                if let Some(problem) = problem {
                    // The writer may have written further groups.
                    records = tail.read(RECORD_BYTES_MAX)?;
                    if records.is_empty() && newest(&*files.data)? == superblock {
                        return Err(problem);
                    }
                }
            }
            if newest(&*files.data)? != superblock {
                // The records may need the new checkpoint.
                return Ok(None);
            }
            if records.is_empty() {
                break;
            }
            records.iter().try_for_each(|(sequence, payload)| replay.apply(*sequence, payload))?;
        }
        replay.finish()?;
        let follower = Follower { dir: dir.to_path_buf(), superblock: superblock.clone(), pin, tail: Some(tail) };
        Ok(Some((follower, Opened { superblock, replay })))
    }
}

/// The newest superblock.
///
/// # Errors
/// As [`Superblock::read`].
pub(super) fn newest(data: &dyn File) -> Result<Superblock> {
    let mut read = Superblock::read(data);
    for _ in 1..SUPERBLOCK_READS {
        let is_torn = matches!(&read, Err(error) if error.is_damage() || matches!(error, Error::NotADatabase { .. }));
        if !is_torn {
            break;
        }
        read = Superblock::read(data);
    }
    read
}

/// Pins the newest checkpoint. There is no pin without a lock file.
///
/// # Errors
/// [`Error::DatabaseNotFound`] if the data file was removed or is being replaced; [`Error::Corrupt`],
/// [`Error::FormatVersion`], device errors.
fn pin(files: &Files, dir: &Path) -> Result<(Superblock, Option<Arc<dyn Lock>>)> {
    let (device, path) = (&files.device, dir.join("LOCK"));
    let mut superblock = newest(&*files.data)?;
    loop {
        let pin: Arc<dyn Lock> = match device.mark(&path, superblock.generation) {
            Ok(pin) => pin.into(),
            Err(error) if error.is_not_found() => return Ok((superblock, None)),
            Err(error) => return Err(error.into()),
        };
        // A backup that replaces the file renames it, and then looks for marks.
        if !device.exists(&dir.join("data"))? {
            return Err(Error::DatabaseNotFound { path: dir.to_path_buf() });
        }
        let again = newest(&*files.data)?;
        if again == superblock {
            return Ok((superblock, Some(pin)));
        }
        superblock = again;
    }
}

impl Store {
    /// Brings a store that is open read-only up to date: later snapshots have all commits that were acknowledged, under
    /// full durability, before the call. No effect on other stores. Blocks, for a read of the log and one of the superblock;
    /// after a checkpoint of the writer, until the new state is read. `before` receives the changes before
    /// snapshots see them, possibly in several parts.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::FormatVersion`], [`Error::Closed`]; device errors. The state may have some of the
    /// commits then, and the next refresh continues.
    pub fn refresh(&self, before: &dyn Fn(&Refreshed)) -> Result<Refreshed> {
        let Some(follower) = &self.shared.follower else { return Ok(Refreshed::default()) };
        self.shared.files.check_open()?;
        let mut refreshed = Refreshed::default();
        let followed = self.shared.follow(&mut follower.lock(), before, &mut refreshed);
        if refreshed.is_rebuilt || !refreshed.trees.is_empty() {
            self.shared.tell_generation();
        }
        followed.map(|()| refreshed)
    }
}

impl Shared {
    fn follow(&self, follower: &mut Follower, before: &dyn Fn(&Refreshed), refreshed: &mut Refreshed) -> Result<()> {
        if follower.pin.is_none() {
            if !self.files.device.exists(&follower.dir.join("LOCK"))? {
                return Ok(());
            }
            let holder = "a process that has created the lock file since (open it again)";
            return Err(Error::Locked { path: follower.dir.clone(), holder: Some(holder.into()) });
        }
        loop {
            // Taken out: records that were read and not applied must not be skipped.
            let Some(mut tail) = follower.tail.take() else {
                return self.follow_anew(follower, before, refreshed);
            };
            let records = tail.read(RECORD_BYTES_MAX)?;
            if newest(&*self.files.data)? != follower.superblock {
                return self.follow_anew(follower, before, refreshed);
            }
            if records.is_empty() {
                follower.tail = Some(tail);
                return Ok(());
            }
            records.iter().try_for_each(|(_, payload)| add_trees(payload, &mut refreshed.trees))?;
            before(refreshed);
            self.apply_records(&records)?;
            follower.tail = Some(tail);
        }
    }

    /// Builds the state from the newest checkpoint.
    fn follow_anew(
        &self,
        follower: &mut Follower,
        before: &dyn Fn(&Refreshed),
        refreshed: &mut Refreshed,
    ) -> Result<()> {
        let (new, opened) = Follower::read(&self.files, &follower.dir, false)?;
        refreshed.is_rebuilt = true;
        before(refreshed);
        let commit = self.commit.lock();
        let mut current = self.state.write();
        let inserted = self.inserted.load(Ordering::Relaxed);
        if opened.replay.inserted < inserted {
            // A failed sync of the writer, or damage to the log.
            let (path, what) = (follower.dir.clone(), "database");
            let detail = format!("commits after {} that were read before are missing", opened.replay.inserted);
            return Err(Error::Corrupt { path, what, offset: None, detail });
        }
        let replaced = current.clone();
        self.replace_state(&mut current, opened.replay.state);
        self.inserted.store(opened.replay.inserted, Ordering::Release);
        *follower = new;
        drop((current, commit));
        // Frees the extents that only the replaced state has.
        drop(replaced);
        let state = self.state.read().clone();
        self.files.dictionaries.retain(|tree| state.trees.contains_key(&tree));
        Ok(())
    }

    /// Applies further records of the log to the state.
    fn apply_records(&self, records: &[Record]) -> Result<()> {
        let _commit = self.commit.lock();
        for (sequence, payload) in records {
            let newest = self.inserted.load(Ordering::Relaxed);
            assert_eq!(*sequence, newest + 1, "record {sequence} follows record {newest}");
            let state = self.state.read().clone();
            let contents = check(&state, payload, TreeKind::Disk, None)?;
            if contents.changes_trees {
                let mut current = self.state.write();
                let mut changed = Cow::Borrowed(&**current);
                apply(&mut changed, *sequence, payload)?;
                let changed = changed.into_owned();
                self.replace_state(&mut current, changed);
                self.inserted.store(*sequence, Ordering::Release);
            } else {
                apply(&mut Cow::Borrowed(&*state), *sequence, payload)?;
                self.inserted.store(*sequence, Ordering::Release);
            }
        }
        Ok(())
    }
}

/// Adds the trees that a record changes.
fn add_trees(payload: &[u8], trees: &mut BTreeSet<TreeId>) -> Result<()> {
    decode(payload, |operation| {
        trees.insert(match operation {
            Operation::Message { tree, .. }
            | Operation::CreateTree { tree, .. }
            | Operation::ExtendTree { tree, .. }
            | Operation::DropTree { tree } => tree,
        });
        Ok(())
    })
}
