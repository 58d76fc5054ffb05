//! The contents of a simulated file: the current image, the durable image, and the changes between them.
//!
//! ```text
//! base ──(journal: change, change, change …)──> current
//! ```
//!
//! A change is applied to the current image and appended to the journal. A sync marks the changes it covers as durable;
//! durable changes at the front of the journal move into the base. A crash restarts from the base and replays the
//! journal: durable changes always, each other change survives, is lost, or is torn at random. Changes that a failed
//! sync covered never become durable: the system may have dropped them.
//!
//! Invariants: `current` = `base` + all of `journal`. Sequence numbers in the journal increase. The used blocks of the
//! space are the sum of the current extents of all files.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_primitives::Random;

use super::extents::Extents;
use crate::interface::ErrorKind;
use crate::memory::BLOCK;

type Block = [u8; BLOCK];

/// The space of the device, shared by its files.
#[derive(Debug)]
pub(super) struct Space {
    capacity_blocks: AtomicU64,
    used_blocks: AtomicU64,
}

impl Space {
    pub(super) fn new(capacity_bytes: Option<u64>) -> Self {
        let space = Space { capacity_blocks: AtomicU64::new(0), used_blocks: AtomicU64::new(0) };
        space.set_capacity(capacity_bytes);
        space
    }

    pub(super) fn set_capacity(&self, bytes: Option<u64>) {
        let blocks = bytes.map_or(u64::MAX, |bytes| bytes / BLOCK as u64);
        self.capacity_blocks.store(blocks, Ordering::Relaxed);
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_blocks.load(Ordering::Relaxed) * BLOCK as u64
    }

    /// Takes `blocks`; fails without effect if they exceed the capacity.
    fn take(&self, blocks: u64) -> Result<(), ErrorKind> {
        let capacity = self.capacity_blocks.load(Ordering::Relaxed);
        let take = |used: u64| Some(used + blocks).filter(|after| blocks == 0 || *after <= capacity);
        // Not a load and a store: a file that is dropped on another thread may give space back at the same time.
        match self.used_blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(_) => Err(ErrorKind::NoSpace),
        }
    }

    fn give_back(&self, blocks: u64) {
        let used = self.used_blocks.fetch_sub(blocks, Ordering::Relaxed);
        assert!(used >= blocks, "more space given back than taken");
    }
}

/// One state of a file. Cloning shares the blocks.
#[derive(Debug, Clone, Default)]
struct Image {
    /// Written blocks by number. Absent blocks are zero.
    blocks: BTreeMap<u64, Arc<Block>>,
    /// Length in bytes.
    len: u64,
    /// Blocks with space on the device: written or reserved.
    extents: Extents,
}

/// A change of a file's contents.
#[derive(Debug, Clone)]
enum Effect {
    Write { block: u64, data: Vec<Arc<Block>> },
    Truncate { len: u64 },
    Allocate { offset: u64, len: u64 },
}

/// An entry of the journal.
#[derive(Debug)]
struct Change {
    sequence: u64,
    effect: Effect,
    state: SyncState,
}

/// The durability of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncState {
    /// The next sync makes the change durable.
    Unsynced,
    /// A sync has covered the change.
    Durable,
    /// A failed sync has covered the change: no later sync makes it durable.
    Abandoned,
}

/// The treatment of changes that are not durable in a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrashPolicy {
    /// All survive.
    KeepAll,
    /// None survives.
    LoseAll,
    /// A random decision for each.
    PerChange,
}

/// A simulated file.
#[derive(Debug)]
pub(super) struct Inode {
    /// The file's number, which separates files on the simulated medium.
    pub(super) number: u64,
    current: Image,
    base: Image,
    journal: VecDeque<Change>,
    next_sequence: u64,
    /// Byte ranges in which reads fail, and how many of them.
    unreadable: Vec<(Range<u64>, AtomicU64)>,
    space: Arc<Space>,
}

impl Inode {
    pub(super) fn new(number: u64, space: Arc<Space>) -> Self {
        Inode {
            number,
            current: Image::default(),
            base: Image::default(),
            journal: VecDeque::new(),
            next_sequence: 0,
            unreadable: Vec::new(),
            space,
        }
    }

    /// A file with durable contents.
    pub(super) fn with_contents(number: u64, space: Arc<Space>, mut bytes: impl io::Read) -> Result<Self, ErrorKind> {
        let mut inode = Inode::new(number, space);
        loop {
            let mut block = [0; BLOCK];
            let mut filled = 0;
            while filled < BLOCK {
                match bytes.read(&mut block[filled..])? {
                    0 => break,
                    count => filled += count,
                }
            }
            let at = inode.current.len / BLOCK as u64;
            if filled > 0 {
                inode.space.take(1)?;
                inode.current.extents.insert(at, at + 1);
                inode.current.blocks.insert(at, Arc::new(block));
                inode.current.len += filled as u64;
            }
            if filled < BLOCK {
                inode.base = inode.current.clone();
                return Ok(inode);
            }
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.current.len
    }

    /// Reads whole blocks.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ErrorKind> {
        let end = offset + bytes.len() as u64;
        let fails = |(bad, reads): &(Range<u64>, AtomicU64)| {
            let take = |left: u64| left.checked_sub(1);
            let overlaps = bad.start < end && offset < bad.end;
            overlaps && reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        };
        if self.unreadable.iter().any(fails) {
            return Err(ErrorKind::Injected);
        }
        self.current.read(offset, bytes)
    }

    /// Writes whole blocks.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ErrorKind> {
        assert!(offset.is_multiple_of(BLOCK as u64) && bytes.len().is_multiple_of(BLOCK));
        let block = offset / BLOCK as u64;
        let data: Vec<_> = bytes.as_chunks::<BLOCK>().0.iter().map(|block| Arc::new(*block)).collect();
        self.space.take(self.current.extents.missing(block, block + data.len() as u64))?;
        self.change(Effect::Write { block, data });
        Ok(())
    }

    pub(super) fn truncate(&mut self, len: u64) {
        let before = self.current.extents.total();
        self.change(Effect::Truncate { len });
        self.space.give_back(before - self.current.extents.total());
    }

    pub(super) fn allocate(&mut self, offset: u64, len: u64) -> Result<(), ErrorKind> {
        let (start, end) = (offset / BLOCK as u64, (offset + len).div_ceil(BLOCK as u64));
        self.space.take(self.current.extents.missing(start, end))?;
        self.change(Effect::Allocate { offset, len });
        Ok(())
    }

    /// Applies a change and appends it to the journal.
    fn change(&mut self, effect: Effect) {
        self.current.apply(&effect);
        self.next_sequence += 1;
        self.journal.push_back(Change { sequence: self.next_sequence, effect, state: SyncState::Unsynced });
    }

    /// The sequence number of the last change. A sync that starts now covers the changes up to it.
    pub(super) fn last_change(&self) -> u64 {
        self.next_sequence
    }

    /// Makes the changes up to `last` durable, except abandoned ones.
    pub(super) fn sync(&mut self, last: u64) {
        self.settle(last, SyncState::Durable);
        while let Some(change) = self.journal.pop_front_if(|change| change.state == SyncState::Durable) {
            self.base.apply(&change.effect);
        }
    }

    /// Abandons the changes up to `last`, because a sync of them failed.
    pub(super) fn abandon(&mut self, last: u64) {
        self.settle(last, SyncState::Abandoned);
    }

    /// Sets the state of the unsynced changes up to `last`.
    fn settle(&mut self, last: u64, state: SyncState) {
        for change in
            self.journal.iter_mut().filter(|change| change.sequence <= last && change.state == SyncState::Unsynced)
        {
            change.state = state;
        }
    }

    /// Replaces the contents by those after a power failure.
    pub(super) fn crash(&mut self, policy: CrashPolicy, random: &mut Random) {
        let before = self.current.extents.total();
        for change in std::mem::take(&mut self.journal) {
            if change.state == SyncState::Durable {
                self.base.apply(&change.effect);
            } else if let Some(effect) = survivor(change.effect, policy, random) {
                self.base.apply_partly(&effect);
            }
        }
        self.current = self.base.clone();
        let after = self.current.extents.total();
        // A lost truncation takes its space again, even above the capacity: the space was never free.
        self.space.give_back(before);
        self.space.used_blocks.fetch_add(after, Ordering::Relaxed);
    }

    /// Makes the next `reads` reads of `range` fail.
    pub(super) fn spoil(&mut self, range: Range<u64>, reads: u64) {
        self.unreadable.push((range, AtomicU64::new(reads)));
    }

    /// Makes all ranges readable again.
    pub(super) fn heal(&mut self) {
        self.unreadable.clear();
    }

    /// Flips a bit in the current image, the durable image and all changes in between.
    pub(super) fn flip_bit(&mut self, byte: u64, bit: u8) -> Result<(), ErrorKind> {
        if byte >= self.current.len || bit > 7 {
            return Err(ErrorKind::EndOfFile);
        }
        let (block, at) = (byte / BLOCK as u64, (byte % BLOCK as u64) as usize);
        let flip = |contents: &mut Arc<Block>| Arc::make_mut(contents)[at] ^= 1 << bit;
        flip(self.current.blocks.entry(block).or_insert_with(|| Arc::new([0; BLOCK])));
        if byte < self.base.len {
            flip(self.base.blocks.entry(block).or_insert_with(|| Arc::new([0; BLOCK])));
        }
        for change in &mut self.journal {
            if let Effect::Write { block: first, data } = &mut change.effect
                && let Some(contents) = block.checked_sub(*first).and_then(|i| data.get_mut(i as usize))
            {
                flip(contents);
            }
        }
        Ok(())
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.space.give_back(self.current.extents.total());
    }
}

impl Image {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ErrorKind> {
        if offset + bytes.len() as u64 > self.len {
            return Err(ErrorKind::EndOfFile);
        }
        for (i, bytes) in bytes.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            match self.blocks.get(&(offset / BLOCK as u64 + i as u64)) {
                Some(block) => *bytes = **block,
                None => bytes.fill(0),
            }
        }
        Ok(())
    }

    fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Write { block, data } => {
                let end = block + data.len() as u64;
                self.extents.insert(*block, end);
                self.blocks.extend((*block..).zip(data.iter().cloned()));
                self.len = self.len.max(end * BLOCK as u64);
            }
            Effect::Truncate { len } => self.truncate(*len),
            Effect::Allocate { offset, len } => {
                self.extents.insert(offset / BLOCK as u64, (offset + len).div_ceil(BLOCK as u64));
                self.len = self.len.max(offset + len);
            }
        }
    }

    fn truncate(&mut self, len: u64) {
        if len < self.len {
            let kept = len.div_ceil(BLOCK as u64);
            self.blocks.split_off(&kept);
            self.extents.cut(kept);
            // Bytes behind the end in the last block must read as zero when the file grows again.
            let inside = (len % BLOCK as u64) as usize;
            if inside > 0
                && let Some(block) = self.blocks.get_mut(&(kept - 1))
            {
                Arc::make_mut(block)[inside..].fill(0);
            }
        }
        self.len = len;
    }

    /// Applies the surviving part of a change.
    fn apply_partly(&mut self, effect: &Survivor) {
        match effect {
            Survivor::Whole(effect) => self.apply(effect),
            Survivor::Units { block, data, unit, kept } => {
                let per_block = BLOCK / unit;
                for (i, contents) in data.iter().enumerate() {
                    let kept = &kept[i * per_block..(i + 1) * per_block];
                    if !kept.contains(&true) {
                        continue;
                    }
                    let at = block + i as u64;
                    let old = self.blocks.entry(at).or_insert_with(|| Arc::new([0; BLOCK]));
                    for (old, (new, kept)) in Arc::make_mut(old).chunks_mut(*unit).zip(contents.chunks(*unit).zip(kept))
                    {
                        if *kept {
                            old.copy_from_slice(new);
                        }
                    }
                    self.extents.insert(at, at + 1);
                    self.len = self.len.max((at + 1) * BLOCK as u64);
                }
            }
        }
    }
}

/// The part of a change that survives a crash.
enum Survivor {
    Whole(Effect),
    /// A torn write: the units of 512 or 4096 bytes with `kept` set reached the medium.
    Units {
        block: u64,
        data: Vec<Arc<Block>>,
        unit: usize,
        kept: Vec<bool>,
    },
}

/// Decides which part of a change survives; `None`: nothing.
fn survivor(effect: Effect, policy: CrashPolicy, random: &mut Random) -> Option<Survivor> {
    let choice = match policy {
        CrashPolicy::KeepAll => 0,
        CrashPolicy::LoseAll => 1,
        CrashPolicy::PerChange => random.below(4),
    };
    match (choice, effect) {
        (0, effect) => Some(Survivor::Whole(effect)),
        (2 | 3, Effect::Write { block, data }) => {
            let unit = if random.below(2) == 0 { 512 } else { BLOCK };
            let units = data.len() * BLOCK / unit;
            let kept = if random.below(2) == 0 {
                let cut = random.below(units as u64 + 1) as usize;
                (0..units).map(|i| i < cut).collect()
            } else {
                (0..units).map(|_| random.below(2) == 0).collect()
            };
            Some(Survivor::Units { block, data, unit, kept })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(capacity_blocks: Option<u64>) -> Inode {
        Inode::new(0, Arc::new(Space::new(capacity_blocks.map(|blocks| blocks * BLOCK as u64))))
    }

    fn read(inode: &Inode, block: u64) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        inode.read(block * BLOCK as u64, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn synced_changes_survive_crashes() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let mut inode = inode(None);
            inode.write(0, &[1; 2 * BLOCK]).unwrap();
            inode.sync(inode.last_change());
            inode.write(0, &[2; BLOCK]).unwrap();
            inode.crash(CrashPolicy::PerChange, &mut Random::new(seed));
            assert_eq!(read(&inode, 1), [1; BLOCK]);
            let block = read(&inode, 0);
            match block.iter().filter(|&&byte| byte == 2).count() {
                0 => lost += 1,
                BLOCK => kept += 1,
                count => {
                    assert!(count.is_multiple_of(512));
                    torn += 1;
                }
            }
        }
        assert!(lost > 20 && kept > 20 && torn > 20, "{lost} {kept} {torn}");
    }

    #[test]
    fn crash_policies_keep_or_lose_everything() {
        for (policy, expected) in [(CrashPolicy::KeepAll, 2), (CrashPolicy::LoseAll, 1)] {
            let mut inode = inode(None);
            inode.write(0, &[1; BLOCK]).unwrap();
            inode.sync(inode.last_change());
            inode.write(0, &[2; BLOCK]).unwrap();
            inode.crash(policy, &mut Random::new(0));
            assert_eq!(read(&inode, 0), [expected; BLOCK]);
        }
    }

    #[test]
    fn a_sync_covers_only_earlier_changes() {
        let mut inode = inode(None);
        inode.write(0, &[1; BLOCK]).unwrap();
        let covered = inode.last_change();
        inode.write(0, &[2; BLOCK]).unwrap();
        inode.sync(covered);
        assert_eq!(read(&inode, 0), [2; BLOCK]);
        inode.crash(CrashPolicy::LoseAll, &mut Random::new(0));
        assert_eq!(read(&inode, 0), [1; BLOCK]);
    }

    #[test]
    fn later_syncs_do_not_repair_a_failed_one() {
        let mut inode = inode(None);
        inode.write(0, &[1; BLOCK]).unwrap();
        inode.abandon(inode.last_change());
        inode.write(BLOCK as u64, &[2; BLOCK]).unwrap();
        inode.sync(inode.last_change());
        assert_eq!(read(&inode, 0), [1; BLOCK]);
        inode.crash(CrashPolicy::LoseAll, &mut Random::new(0));
        assert_eq!(read(&inode, 0), [0; BLOCK]);
        assert_eq!(read(&inode, 1), [2; BLOCK]);
    }

    #[test]
    fn used_space_is_accounted_for() {
        let mut inode = inode(Some(4));
        inode.allocate(0, 3 * BLOCK as u64).unwrap();
        inode.write(0, &[1; 3 * BLOCK]).unwrap();
        assert!(matches!(inode.write(2 * BLOCK as u64, &[1; 3 * BLOCK]), Err(ErrorKind::NoSpace)));
        assert_eq!(inode.len(), 3 * BLOCK as u64, "a failed write changes nothing");
        inode.write(3 * BLOCK as u64, &[1; BLOCK]).unwrap();
        assert!(inode.allocate(0, 5 * BLOCK as u64).is_err());
        inode.truncate(BLOCK as u64);
        inode.write(BLOCK as u64, &[1; 3 * BLOCK]).unwrap();
        let space = inode.space.clone();
        assert_eq!(space.used_bytes(), 4 * BLOCK as u64);
        inode.crash(CrashPolicy::LoseAll, &mut Random::new(0));
        assert_eq!(space.used_bytes(), 0);
        drop(inode);
        assert_eq!(space.used_bytes(), 0);
    }

    #[test]
    fn bits_flip_in_every_image() {
        let mut inode = inode(None);
        inode.write(0, &[0; BLOCK]).unwrap();
        inode.sync(inode.last_change());
        inode.write(0, &[0xff; BLOCK]).unwrap();
        inode.flip_bit(7, 3).unwrap();
        assert_eq!(read(&inode, 0)[7], 0xff ^ 8);
        inode.crash(CrashPolicy::LoseAll, &mut Random::new(0));
        assert_eq!(read(&inode, 0)[7], 8);
        assert!(inode.flip_bit(BLOCK as u64, 0).is_err());
    }
}
