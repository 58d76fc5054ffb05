//! Checkpoints that readers of other processes use ([`follow`](super::follow)).
//!
//! A reader marks the lock file with the generation of its checkpoint, and then reads the superblock again: if the
//! generation is still the same, the checkpoint is pinned. The writer lists the marks after it has written a superblock. So
//! either it finds the mark of a reader, or the reader finds the new superblock. As long as a checkpoint is pinned, its
//! extents and its node table are not freed.
//!
//! A process that opens the database for writing has only the newest checkpoint. While earlier ones are pinned, it frees
//! nothing of that checkpoint, whose extents they may have too, and uses none of the space that was free.

use std::path::Path;
use std::sync::Arc;

use keyaki_device::Device;

use crate::base::Result;
use crate::engine::{Checkpointed, Place, Shared};
use crate::pages::{Files, Purpose};
use crate::tree::StoreVersion;

/// Space of earlier checkpoints that readers use.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    /// Checkpoints of this process, oldest first.
    checkpoints: Vec<PinnedCheckpoint>,
    /// Those of earlier processes.
    earlier: Option<Earlier>,
}

/// The pins of checkpoints other than the newest one when the process opened the database.
#[derive(Debug)]
struct Earlier {
    /// The marks of these checkpoints. Later ones than the newest are possible if writing their superblock failed.
    marks: Vec<u64>,
    /// The free space, which is allocated meanwhile.
    withheld: Vec<Place>,
    /// Keeps the extents of the checkpoint from being freed.
    _state: Arc<StoreVersion>,
}

#[derive(Debug)]
struct PinnedCheckpoint {
    generation: u64,
    /// The range of the node table.
    meta: Place,
    /// Keeps the extents from being freed.
    _state: Arc<StoreVersion>,
}

/// The marked generations of the database in `dir`.
///
/// # Errors
/// Device errors. Without a lock file there are no marks.
fn marks(device: &dyn Device, dir: &Path) -> Result<Vec<u64>> {
    match device.marks(&dir.join("LOCK")) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        marks => Ok(marks?),
    }
}

impl Pinned {
    /// The pins of a database that is opened with the checkpoint `generation`. `files` have the free space.
    ///
    /// # Errors
    /// Device errors.
    pub fn find(dir: &Path, files: &Files, generation: u64, state: &Arc<StoreVersion>) -> Result<Pinned> {
        let mut marks = marks(&*files.device, dir)?;
        marks.retain(|&mark| mark != generation);
        let is_pinned = !marks.is_empty();
        let earlier = || Earlier { marks, withheld: files.space.withhold(), _state: state.clone() };
        Ok(Pinned { checkpoints: Vec::new(), earlier: is_pinned.then(earlier) })
    }

    /// The generation of the checkpoint after `generation`: one that no reader has pinned.
    pub fn next_generation(&self, generation: u64) -> u64 {
        let marks = self.earlier.iter().flat_map(|earlier| &earlier.marks);
        marks.copied().max().unwrap_or(0).max(generation) + 1
    }
}

impl Shared {
    /// The marked generations; `None` if they cannot be listed.
    fn marked(&self) -> Option<Vec<u64>> {
        let dir = self.files.data_path.parent().unwrap_or(Path::new(""));
        let marks = marks(&*self.files.device, dir);
        marks.inspect_err(|error| tracing::warn!(%error, "could not list the readers of other processes")).ok()
    }

    /// True if processes read the database beside this one.
    pub fn has_readers(&self) -> bool {
        self.marked().is_none_or(|marks| !marks.is_empty())
    }

    /// Frees the space of checkpoints that no reader uses any more.
    pub fn release_pins(&self, checkpointed: &mut Checkpointed) {
        let pinned = &mut checkpointed.pinned;
        if pinned.checkpoints.is_empty() && pinned.earlier.is_none() {
            return;
        }
        let Some(marks) = self.marked() else { return };
        let is_unused = |earlier: &mut Earlier| !earlier.marks.iter().any(|mark| marks.contains(mark));
        if let Some(earlier) = pinned.earlier.take_if(is_unused) {
            for (offset, len) in earlier.withheld {
                self.files.space.free(offset, len);
            }
        }
        pinned.checkpoints.retain(|checkpoint| {
            let is_marked = marks.contains(&checkpoint.generation);
            if !is_marked {
                self.files.space.free(checkpoint.meta.0, checkpoint.meta.1);
            }
            is_marked
        });
    }

    /// Ends the use of the checkpoint `old` by this process: sets the range of its node table aside for the next one, of
    /// about `len` bytes, and frees its extents. If readers use it, both stay.
    pub fn retire(&self, checkpointed: &mut Checkpointed, old: Checkpointed, len: u64) {
        self.release_pins(checkpointed);
        if self.marked().is_some_and(|marks| !marks.contains(&old.generation)) {
            self.set_table_aside(checkpointed, old.meta, len);
            let spare_bytes = checkpointed.spare_table.map_or(0, |spare| spare.1);
            assert!(spare_bytes >= len, "{spare_bytes} bytes for the node table after one of {len} bytes");
            return;
        }
        let Checkpointed { generation, meta, state, .. } = old;
        checkpointed.pinned.checkpoints.push(PinnedCheckpoint { generation, meta, _state: state });
        if checkpointed.spare_table.is_none_or(|spare| spare.1 < len) {
            // On a full disk, the next checkpoint fails unless the readers have ended by then.
            match self.files.allocate(len, Purpose::Checkpoint) {
                Ok(offset) => self.set_table_aside(checkpointed, (offset, len), len),
                Err(error) => tracing::warn!(%error, "could not allocate the next node table beside readers"),
            }
        }
    }
}
