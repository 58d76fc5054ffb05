//! The contents of a simulated file: what readers see, what is durable, and the changes in between.
//!
//! ```text
//! base ──(journal: change, change, change …)──> current
//! ```
//!
//! A change goes to the current image and to the journal's end. A sync marks the changes it covers; marked changes at the
//! journal's front move into the base. A crash starts over from the base and replays the journal: marked changes surely,
//! of the others each survives, is lost, or is torn, as the dice fall. Changes that a failed sync covered are never
//! marked again: the system may have forgotten them.
//!
//! Invariant: `current` = `base` + all of `journal`.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_primitives::Random;

use super::extents::Extents;
use crate::BLOCK;

type Block = [u8; BLOCK];

/// The device's room for data, shared by its files.
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

    fn take(&self, blocks: u64) -> io::Result<()> {
        let used = self.used_blocks.load(Ordering::Relaxed) + blocks;
        if blocks > 0 && used > self.capacity_blocks.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.used_blocks.store(used, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self, blocks: u64) {
        self.used_blocks.fetch_sub(blocks, Ordering::Relaxed);
    }
}

/// One state of a file. Cloning shares the blocks.
#[derive(Debug, Clone, Default)]
struct Image {
    /// Absent blocks are zero.
    blocks: BTreeMap<u64, Arc<Block>>,
    len: u64,
    /// Blocks with room on the device: written or reserved.
    extents: Extents,
}

#[derive(Debug, Clone)]
enum Effect {
    Write { block: u64, data: Vec<Arc<Block>> },
    Truncate { len: u64 },
    Allocate { offset: u64, len: u64 },
}

#[derive(Debug)]
struct Change {
    sequence: u64,
    effect: Effect,
    fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The next sync makes it durable.
    Unsynced,
    Durable,
    /// A sync failed: no later one will make it durable.
    Abandoned,
}

/// How a crash treats what is not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    KeepAll,
    LoseAll,
    PerChange,
}

/// A simulated file.
#[derive(Debug)]
pub(super) struct Inode {
    /// Tells files apart (for the service model).
    pub(super) number: u64,
    current: Image,
    base: Image,
    journal: VecDeque<Change>,
    next_sequence: u64,
    unreadable: Vec<Range<u64>>,
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
    pub(super) fn with_contents(number: u64, space: Arc<Space>, mut bytes: impl io::Read) -> io::Result<Self> {
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

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        if self.unreadable.iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(io::Error::other("simulated read error"));
        }
        self.current.read(offset, bytes)
    }

    /// Writes whole blocks.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
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

    pub(super) fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let (start, end) = (offset / BLOCK as u64, (offset + len).div_ceil(BLOCK as u64));
        self.space.take(self.current.extents.missing(start, end))?;
        self.change(Effect::Allocate { offset, len });
        Ok(())
    }

    fn change(&mut self, effect: Effect) {
        self.current.apply(&effect);
        self.next_sequence += 1;
        self.journal.push_back(Change { sequence: self.next_sequence, effect, fate: Fate::Unsynced });
    }

    /// The last change made: a sync that starts now covers it and all before.
    pub(super) fn last_change(&self) -> u64 {
        self.next_sequence
    }

    /// Makes the changes up to `last` durable, but for abandoned ones.
    pub(super) fn sync(&mut self, last: u64) {
        self.settle(last, Fate::Durable);
        while let Some(change) = self.journal.pop_front_if(|change| change.fate == Fate::Durable) {
            self.base.apply(&change.effect);
        }
    }

    /// A sync failed: its changes may be lost, whatever later syncs say.
    pub(super) fn abandon(&mut self, last: u64) {
        self.settle(last, Fate::Abandoned);
    }

    fn settle(&mut self, last: u64, fate: Fate) {
        for change in self.journal.iter_mut().filter(|change| change.sequence <= last && change.fate == Fate::Unsynced)
        {
            change.fate = fate;
        }
    }

    /// The state after a loss of power.
    pub(super) fn crash(&mut self, mood: Mood, random: &mut Random) {
        let before = self.current.extents.total();
        for change in std::mem::take(&mut self.journal) {
            if change.fate == Fate::Durable {
                self.base.apply(&change.effect);
            } else if let Some(effect) = survivor(change.effect, mood, random) {
                self.base.apply_partly(&effect);
            }
        }
        self.current = self.base.clone();
        let after = self.current.extents.total();
        // A lost truncation takes its space back, even above the capacity: it was never free.
        self.space.give_back(before);
        self.space.used_blocks.fetch_add(after, Ordering::Relaxed);
    }

    /// Makes reads of `range` fail.
    pub(super) fn spoil(&mut self, range: Range<u64>) {
        self.unreadable.push(range);
    }

    pub(super) fn heal(&mut self) {
        self.unreadable.clear();
    }

    /// Turns one bit over, in what is read now and in what is durable.
    pub(super) fn flip_bit(&mut self, byte: u64, bit: u8) -> io::Result<()> {
        if byte >= self.current.len || bit > 7 {
            return Err(io::ErrorKind::UnexpectedEof.into());
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
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if offset + bytes.len() as u64 > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
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
            // What lies behind the end in the last block must not come back when the file grows.
            let inside = (len % BLOCK as u64) as usize;
            if inside > 0
                && let Some(block) = self.blocks.get_mut(&(kept - 1))
            {
                Arc::make_mut(block)[inside..].fill(0);
            }
        }
        self.len = len;
    }

    /// Applies what survives of a change, given as (maybe several) partial writes.
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

/// What is left of a change after a crash.
enum Survivor {
    Whole(Effect),
    /// Those units (512 or 4096 bytes) of a write that reached the medium.
    Units {
        block: u64,
        data: Vec<Arc<Block>>,
        unit: usize,
        kept: Vec<bool>,
    },
}

fn survivor(effect: Effect, mood: Mood, random: &mut Random) -> Option<Survivor> {
    let choice = match mood {
        Mood::KeepAll => 0,
        Mood::LoseAll => 1,
        Mood::PerChange => random.below(4),
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
    fn synced_changes_survive_and_others_may_not() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let mut inode = inode(None);
            inode.write(0, &[1; 2 * BLOCK]).unwrap();
            inode.sync(inode.last_change());
            inode.write(0, &[2; BLOCK]).unwrap();
            inode.crash(Mood::PerChange, &mut Random::new(seed));
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
    fn moods() {
        for (mood, expected) in [(Mood::KeepAll, 2), (Mood::LoseAll, 1)] {
            let mut inode = inode(None);
            inode.write(0, &[1; BLOCK]).unwrap();
            inode.sync(inode.last_change());
            inode.write(0, &[2; BLOCK]).unwrap();
            inode.crash(mood, &mut Random::new(0));
            assert_eq!(read(&inode, 0), [expected; BLOCK]);
        }
    }

    #[test]
    fn a_sync_covers_only_what_was_there_when_it_began() {
        let mut inode = inode(None);
        inode.write(0, &[1; BLOCK]).unwrap();
        let covered = inode.last_change();
        inode.write(0, &[2; BLOCK]).unwrap();
        inode.sync(covered);
        assert_eq!(read(&inode, 0), [2; BLOCK]);
        inode.crash(Mood::LoseAll, &mut Random::new(0));
        assert_eq!(read(&inode, 0), [1; BLOCK]);
    }

    #[test]
    fn a_failed_sync_is_not_made_good_by_the_next() {
        let mut inode = inode(None);
        inode.write(0, &[1; BLOCK]).unwrap();
        inode.abandon(inode.last_change());
        inode.write(BLOCK as u64, &[2; BLOCK]).unwrap();
        inode.sync(inode.last_change());
        assert_eq!(read(&inode, 0), [1; BLOCK]);
        inode.crash(Mood::LoseAll, &mut Random::new(0));
        assert_eq!(read(&inode, 0), [0; BLOCK]);
        assert_eq!(read(&inode, 1), [2; BLOCK]);
    }

    #[test]
    fn space_is_counted() {
        let mut inode = inode(Some(4));
        inode.allocate(0, 3 * BLOCK as u64).unwrap();
        inode.write(0, &[1; 3 * BLOCK]).unwrap();
        assert_eq!(inode.write(2 * BLOCK as u64, &[1; 3 * BLOCK]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(inode.len(), 3 * BLOCK as u64, "a refused write changes nothing");
        inode.write(3 * BLOCK as u64, &[1; BLOCK]).unwrap();
        assert!(inode.allocate(0, 5 * BLOCK as u64).is_err());
        inode.truncate(BLOCK as u64);
        inode.write(BLOCK as u64, &[1; 3 * BLOCK]).unwrap();
        let space = inode.space.clone();
        assert_eq!(space.used_bytes(), 4 * BLOCK as u64);
        inode.crash(Mood::LoseAll, &mut Random::new(0));
        assert_eq!(space.used_bytes(), 0);
        drop(inode);
        assert_eq!(space.used_bytes(), 0);
    }

    #[test]
    fn bits_flip_in_every_version() {
        let mut inode = inode(None);
        inode.write(0, &[0; BLOCK]).unwrap();
        inode.sync(inode.last_change());
        inode.write(0, &[0xff; BLOCK]).unwrap();
        inode.flip_bit(7, 3).unwrap();
        assert_eq!(read(&inode, 0)[7], 0xff ^ 8);
        inode.crash(Mood::LoseAll, &mut Random::new(0));
        assert_eq!(read(&inode, 0)[7], 8);
        assert!(inode.flip_bit(BLOCK as u64, 0).is_err());
    }
}
