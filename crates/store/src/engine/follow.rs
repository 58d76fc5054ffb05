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
use std::sync::atomic::Ordering;

use keyaki_device::{Lock, OpenMode};

use super::open::decode_checkpoint;
use crate::base::{Error, Result, TreeId, TreeKind};
use crate::engine::{Replay, Shared, Store, apply, check};
use crate::log::{LogTail, Record};
use crate::message::{Operation, decode};
use crate::pages::{Files, Superblock};

/// Bytes of records that are read before they are applied, about.
const RECORD_BYTES_MAX: usize = 16 << 20;
/// Number of times that a state is built again because the writer has written a checkpoint meanwhile. After the last one,
/// the state may lack the newest commits.
const ATTEMPTS: usize = 5;

/// The position of a reader.
#[derive(Debug)]
pub(crate) struct Follower {
    dir: PathBuf,
    /// Generation of the checkpoint of the current state.
    generation: u64,
    /// The position in the log; `None` if records before it may not have been applied. The next refresh builds the state
    /// again then.
    tail: Option<LogTail>,
    /// False if the checkpoint could not be pinned, because the directory cannot be written to. Nothing is followed then.
    is_pinned: bool,
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
    /// No later checkpoint existed when the last record was read.
    is_newest: bool,
}

impl Follower {
    /// Reads the newest state.
    ///
    /// # Errors
    /// [`Error::Corrupt`], also if an acknowledged record of the log is missing; [`Error::FormatVersion`]; device errors.
    pub fn open(files: &Arc<Files>, dir: &Path) -> Result<(Follower, Opened)> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match Follower::read(files, dir, true) {
                Ok((follower, opened)) if opened.is_newest || attempt >= ATTEMPTS => return Ok((follower, opened)),
                // The writer may have removed files of the log while they were read.
                Err(error) if attempt >= ATTEMPTS || !may_be_outdated(&error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Reads a state; with `checks`, makes sure that the log is complete.
    fn read(files: &Arc<Files>, dir: &Path, checks: bool) -> Result<(Follower, Opened)> {
        let (superblock, pin) = pin(files, dir)?;
        let (state, next_tree) = decode_checkpoint(files, &superblock, pin.as_ref())?;
        let mut tail = LogTail::new(&files.device, dir, superblock.log, superblock.sequence + 1);
        let mut replay = Replay::new(state, next_tree, superblock.sequence);
        let is_newest = loop {
            let records = tail.read(RECORD_BYTES_MAX)?;
            if Superblock::read(&*files.data)?.generation != superblock.generation {
                // These records may need the new checkpoint.
                break false;
            }
            if !records.is_empty() {
                records.iter().try_for_each(|(sequence, payload)| replay.apply(*sequence, payload))?;
                continue;
            }
            if checks && let Err(error) = tail.check_end() {
                // The writer may have gone on since.
                let records = tail.read(RECORD_BYTES_MAX)?;
                if Superblock::read(&*files.data)?.generation != superblock.generation {
                    break false;
                }
                if records.is_empty() {
                    return Err(error);
                }
                records.iter().try_for_each(|(sequence, payload)| replay.apply(*sequence, payload))?;
                continue;
            }
            break true;
        };
        replay.finish()?;
        let (dir, generation) = (dir.to_path_buf(), superblock.generation);
        // Without the tail if records were read that were not applied.
        let follower = Follower { dir, generation, tail: is_newest.then_some(tail), is_pinned: pin.is_some() };
        Ok((follower, Opened { superblock, replay, is_newest }))
    }
}

/// True for errors that the writer can cause by a checkpoint during a read.
fn may_be_outdated(error: &Error) -> bool {
    error.is_not_found() || error.is_damage()
}

/// Pins the newest checkpoint. There is no pin if the lock file does not exist and cannot be created.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::FormatVersion`], device errors.
fn pin(files: &Files, dir: &Path) -> Result<(Superblock, Option<Arc<dyn Lock>>)> {
    let (device, path) = (&files.device, dir.join("LOCK"));
    let mut superblock = Superblock::read(&*files.data)?;
    if !device.exists(&path)? && device.open(&path, OpenMode::CreateNew).is_err() && !device.exists(&path)? {
        return Ok((superblock, None));
    }
    loop {
        let pin: Arc<dyn Lock> = device.mark(&path, superblock.generation)?.into();
        let newest = Superblock::read(&*files.data)?;
        if newest.generation == superblock.generation {
            return Ok((superblock, Some(pin)));
        }
        superblock = newest;
    }
}

impl Store {
    /// Brings a store that is open read-only up to date: later snapshots have all commits that were acknowledged, under
    /// full durability, before the call. No effect on other stores. Blocks, for a read of the log and one of the superblock;
    /// after a checkpoint of the writer, until the new state is read. `before` is called before snapshots see anything of
    /// it, possibly several times.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::FormatVersion`], [`Error::Closed`]; device errors. The state may have some of the
    /// commits then, and the next refresh continues.
    pub fn refresh(&self, before: &dyn Fn()) -> Result<Refreshed> {
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
    fn follow(&self, follower: &mut Follower, before: &dyn Fn(), refreshed: &mut Refreshed) -> Result<()> {
        if !follower.is_pinned {
            return Ok(());
        }
        loop {
            // Taken out: records that were read and not applied must not be skipped.
            let Some(mut tail) = follower.tail.take() else {
                return self.follow_anew(follower, before, refreshed);
            };
            let records = tail.read(RECORD_BYTES_MAX)?;
            if Superblock::read(&*self.files.data)?.generation != follower.generation {
                return self.follow_anew(follower, before, refreshed);
            }
            if records.is_empty() {
                follower.tail = Some(tail);
                return Ok(());
            }
            before();
            self.apply_records(&records, &mut refreshed.trees)?;
            follower.tail = Some(tail);
        }
    }

    /// Builds the state from the newest checkpoint.
    fn follow_anew(&self, follower: &mut Follower, before: &dyn Fn(), refreshed: &mut Refreshed) -> Result<()> {
        for attempt in 1.. {
            let (new, opened) = match Follower::read(&self.files, &follower.dir, false) {
                Err(error) if attempt < ATTEMPTS && may_be_outdated(&error) => continue,
                read => read?,
            };
            if !opened.is_newest && attempt < ATTEMPTS {
                continue;
            }
            before();
            let commit = self.commit.lock();
            let mut current = self.state.write();
            if !opened.is_newest && opened.replay.inserted < self.inserted.load(Ordering::Relaxed) {
                // The current state is newer. The next refresh tries again.
                break;
            }
            let replaced = current.clone();
            self.replace_state(&mut current, opened.replay.state);
            self.inserted.store(opened.replay.inserted, Ordering::Release);
            refreshed.is_rebuilt = true;
            *follower = new;
            drop((current, commit));
            // Frees the extents that only the replaced state has.
            drop(replaced);
            break;
        }
        Ok(())
    }

    /// Applies further records of the log to the state, and adds the trees that they change to `trees`.
    fn apply_records(&self, records: &[Record], trees: &mut BTreeSet<TreeId>) -> Result<()> {
        let _commit = self.commit.lock();
        for (sequence, payload) in records {
            let newest = self.inserted.load(Ordering::Relaxed);
            assert_eq!(*sequence, newest + 1, "record {sequence} follows record {newest}");
            let state = self.state.read().clone();
            let contents = check(&state, payload, TreeKind::Disk, None)?;
            decode(payload, |operation| {
                trees.insert(match operation {
                    Operation::Message { tree, .. }
                    | Operation::CreateTree { tree, .. }
                    | Operation::ExtendTree { tree, .. }
                    | Operation::DropTree { tree } => tree,
                });
                Ok(())
            })?;
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
