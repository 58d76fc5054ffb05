use std::path::Path;

use keyaki_device::simulated::Simulated;
use keyaki_device::{Device, OpenMode};
use proptest::prelude::*;

use super::*;
use crate::log::tests::{device, set_bytes};

const PAGE: u64 = BLOCK as u64;

fn new_space(medium: &Simulated, len: u64, used: Vec<(u64, u64)>) -> Result<Space> {
    let path = Path::new("/db/data");
    set_bytes(medium, path, vec![0; len as usize]);
    Space::new(medium.open(path, OpenMode::ReadWrite).unwrap(), used, PAGE)
}

#[test]
fn best_fit_with_the_lowest_offset() {
    let start = RESERVED_BYTES;
    let used = vec![(start + 3 * PAGE, PAGE), (start, PAGE), (start + 6 * PAGE, PAGE)];
    let medium = device(0);
    // Free: 2 pages at 1, 2 pages at 4, 3 pages at 7.
    let space = new_space(&medium, start + 10 * PAGE, used).unwrap();
    assert_eq!(space.usage(), (start + 3 * PAGE, start + 10 * PAGE));
    assert_eq!(space.allocate(2 * PAGE, Purpose::Load).unwrap(), start + PAGE);
    assert_eq!(space.allocate(PAGE, Purpose::Load).unwrap(), start + 4 * PAGE);
    assert_eq!(space.allocate(PAGE, Purpose::Load).unwrap(), start + 5 * PAGE);
    assert_eq!(space.allocate(3 * PAGE, Purpose::Load).unwrap(), start + 7 * PAGE);
    space.free(start + 4 * PAGE, PAGE);
    space.free(start + 6 * PAGE, PAGE);
    space.free(start + 5 * PAGE, PAGE);
    assert_eq!(space.allocate(3 * PAGE, Purpose::Load).unwrap(), start + 4 * PAGE);
    let panics =
        |len| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| space.allocate(len, Purpose::Load))).is_err();
    assert!(panics(100) && panics(0));
}

#[test]
#[should_panic(expected = "freed twice or never allocated")]
fn a_double_free_panics() {
    let space = new_space(&device(0), RESERVED_BYTES + 10 * PAGE, vec![]).unwrap();
    let offset = space.allocate(PAGE, Purpose::Load).unwrap();
    space.free(offset, PAGE);
    space.free(offset, PAGE);
}

#[test]
fn grows_in_smaller_steps_when_the_disk_is_nearly_full() {
    const STEP: u64 = *GROWTH_BYTES.start();
    let medium = device(0);
    let space = new_space(&medium, RESERVED_BYTES, vec![]).unwrap();
    let first = space.allocate(PAGE, Purpose::Load).unwrap();
    assert_eq!(space.usage().1, RESERVED_BYTES + STEP);
    let large = space.allocate(2 * STEP, Purpose::Load).unwrap();
    assert_eq!(large, first + PAGE);
    assert!(space.usage().1 > large + 2 * STEP);
    space.free(large, 2 * STEP);
    space.trim(Kept::Growth).unwrap();
    assert_eq!(space.usage().1, large + STEP);
    assert_eq!(medium.used_bytes(), space.usage().1);
    space.trim(Kept::Growth).unwrap();
    assert_eq!(medium.used_bytes(), space.usage().1);
    // Other files get all but the reserve.
    space.trim(Kept::Reserve).unwrap();
    let reserve = space.usage().1 - large;
    assert!(reserve > 0 && reserve < STEP / 8, "{reserve} bytes are kept");

    medium.set_capacity(Some(medium.used_bytes() + 100 * PAGE));
    let before = space.usage();
    assert!(space.allocate(reserve + 101 * PAGE, Purpose::Checkpoint).is_err());
    assert_eq!(space.usage(), before);
    assert!(space.is_full());
    assert!(matches!(space.allocate(1 << 62, Purpose::Load), Err(Error::DiskFull { .. })));
    assert_eq!(space.allocate(90 * PAGE, Purpose::Load).unwrap(), large);
    assert!(space.allocate(reserve + 20 * PAGE, Purpose::Load).is_err());
    space.free(large, PAGE);
    assert_eq!(space.allocate(PAGE, Purpose::Load).unwrap(), large);
}

/// Each purpose leaves its part of the reserve, and only slots count.
#[test]
fn purposes_leave_a_reserve() {
    let medium = device(0);
    let (path, slot, start) = (Path::new("/db/data"), 2 * PAGE, RESERVED_BYTES);
    set_bytes(&medium, path, vec![0; (start + 70 * PAGE) as usize]);
    medium.set_capacity(Some(medium.used_bytes()));
    let file = medium.open(path, OpenMode::ReadWrite).unwrap();
    // Free: one page, which is too short to count, and 60 pages.
    let used = vec![(start, PAGE), (start + 2 * PAGE, 8 * PAGE)];
    let space = Space::new(file, used, slot).unwrap();
    let count = |purpose| std::iter::from_fn(|| space.allocate(slot, purpose).ok()).count() as u64;
    assert!(!space.is_full() && space.make_room(14 * slot).is_ok());
    assert!(matches!(space.make_room(15 * slot), Err(Error::DiskFull { .. })));
    assert_eq!(count(Purpose::Load), 30 - RESERVE_SLOTS_MIN);
    // Full until there is more space.
    assert!(space.is_full() && space.make_room(0).is_err() && space.is_full());
    assert_eq!(count(Purpose::Settle), RESERVE_SLOTS_MIN / 2);
    assert!(matches!(space.make_room(0), Err(Error::DiskFull { .. })));
    assert_eq!(count(Purpose::Checkpoint), RESERVE_SLOTS_MIN / 2);
    // A short range is useless for an extent, but not for a node table.
    assert_eq!(space.allocate(PAGE, Purpose::Checkpoint).unwrap(), start + PAGE);
    assert!(matches!(space.allocate(PAGE, Purpose::Checkpoint), Err(Error::DiskFull { .. })));
    // Freed space fills the reserve first.
    let reserve = RESERVE_SLOTS_MIN * slot;
    space.free(start + 20 * PAGE, reserve);
    assert!(space.allocate(PAGE, Purpose::Load).is_err() && space.top_up().is_ok());
    space.free(start + 20 * PAGE + reserve, slot);
    assert_eq!(space.allocate(PAGE, Purpose::Load).unwrap(), start + 20 * PAGE);
    medium.set_capacity(None);
    space.make_room(1 << 20).unwrap();
    assert!(!space.is_full() && space.usage().1 > start + 70 * PAGE);
}

#[test]
fn damaged_metadata_is_an_error() {
    let start = RESERVED_BYTES;
    for used in [
        vec![(start, PAGE), (start, PAGE)],
        vec![(start, 2 * PAGE), (start + PAGE, PAGE)],
        vec![(0, PAGE)],
        vec![(start, 0)],
        vec![(start + 1, PAGE)],
        vec![(start, PAGE + 1)],
        vec![(start + 9 * PAGE, 2 * PAGE)],
        vec![(u64::MAX - PAGE + 1, PAGE)],
        vec![(start, u64::MAX - PAGE + 1)],
    ] {
        let error = new_space(&device(0), start + 10 * PAGE, used.clone()).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{used:?}: {error}");
    }
}

#[test]
fn invalid_frees_are_rejected() {
    let mut free = Free { file_len: RESERVED_BYTES + 10 * PAGE, slot_bytes: PAGE, ..Free::default() };
    assert!(free.give_back(RESERVED_BYTES + 2 * PAGE, 4 * PAGE));
    for (first, pages) in [(2, 4), (1, 2), (5, 2), (3, 1), (0, 10), (9, 2), (1, 0)] {
        assert!(!free.give_back(RESERVED_BYTES + first * PAGE, pages * PAGE), "{first} {pages}");
    }
    assert!(!free.give_back(0, PAGE));
    assert!(!free.give_back(RESERVED_BYTES + 1, PAGE));
    assert!(!free.give_back(u64::MAX - PAGE + 1, PAGE));
    assert_eq!(free.free_bytes, 4 * PAGE);
    assert!(free.give_back(RESERVED_BYTES, 2 * PAGE));
    assert_eq!(free.by_offset.len(), 1);
}

proptest! {
    /// Compares with a bitmap of used blocks: no block is allocated twice or lost, and the fit is the best one.
    #[test]
    fn agrees_with_a_bitmap(steps in prop::collection::vec((any::<bool>(), 1..20_u64, any::<prop::sample::Index>()), 1..200)) {
        let blocks = 400;
        let mut free = Free { file_len: RESERVED_BYTES + blocks * PAGE, slot_bytes: 3 * PAGE, ..Free::default() };
        free.insert(RESERVED_BYTES, blocks * PAGE);
        let mut used = vec![false; blocks as usize];
        let mut held: Vec<(u64, u64)> = Vec::new();
        for (take, len, which) in steps {
            if take {
                let holes = holes(&used);
                let best = holes.iter().filter(|(_, free)| *free >= len).map(|&(at, free)| (free, at)).min();
                let got = free.take(len * PAGE).map(|offset| (offset - RESERVED_BYTES) / PAGE);
                prop_assert_eq!(got, best.map(|(_, at)| at));
                if let Some(at) = got {
                    used[at as usize..(at + len) as usize].fill(true);
                    held.push((at, len));
                }
            } else if !held.is_empty() {
                let (at, len) = held.swap_remove(which.index(held.len()));
                prop_assert!(free.give_back(RESERVED_BYTES + at * PAGE, len * PAGE));
                used[at as usize..(at + len) as usize].fill(false);
            }
            let expected: Vec<(u64, u64)> =
                holes(&used).into_iter().map(|(at, len)| (RESERVED_BYTES + at * PAGE, len * PAGE)).collect();
            prop_assert_eq!(free.by_offset.iter().map(|(&at, &len)| (at, len)).collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(free.by_len.len(), expected.len());
            prop_assert_eq!(free.free_bytes, expected.iter().map(|(_, len)| len).sum::<u64>());
            prop_assert_eq!(free.slots, expected.iter().map(|(_, len)| len / (3 * PAGE)).sum::<u64>());
        }
    }
}

/// First block and number of blocks of every hole.
fn holes(used: &[bool]) -> Vec<(u64, u64)> {
    let mut holes: Vec<(u64, u64)> = Vec::new();
    for (at, _) in used.iter().enumerate().filter(|(_, used)| !**used) {
        match holes.last_mut() {
            Some((start, len)) if *start + *len == at as u64 => *len += 1,
            _ => holes.push((at as u64, 1)),
        }
    }
    holes
}

#[test]
fn files_grow_by_a_part_of_their_length() {
    const MIB: u64 = 1 << 20;
    let lens = [0, 10 * MIB + 100, 100 * MIB, 400 * MIB, 4000 * MIB].map(growth_bytes);
    assert_eq!(lens, [4 * MIB, 5 * MIB, 50 * MIB, 64 * MIB, 125 * MIB]);
}

/// A small file has one free slot beside its data, until it accepts more rows with the whole reserve.
#[test]
fn small_files_have_one_free_slot() {
    let (medium, path, slot) = (device(0), Path::new("/db/data"), 80 * PAGE);
    let start = RESERVED_BYTES + PAGE;
    set_bytes(&medium, path, vec![0; start as usize]);
    let (enough, too_much) = (slot / 2 - 2 * PAGE, slot / 2 - PAGE);
    let open = || {
        let file = medium.open(path, OpenMode::ReadWrite).unwrap();
        let space = Space::new(file, vec![(RESERVED_BYTES, PAGE)], slot).unwrap();
        assert!(space.open_small(0) && space.remains_small(enough) && !space.remains_small(too_much));
        space
    };
    let space = open();
    space.make_small_room(enough).unwrap();
    assert_eq!((space.usage().1, space.dense_len()), (start + slot, start + slot));
    assert_eq!(space.allocate(10 * PAGE, Purpose::Checkpoint).unwrap(), start);
    assert_eq!(space.usage().1, start + 10 * PAGE + slot);
    space.free(start, 10 * PAGE);
    space.trim(Kept::Growth).unwrap();
    space.top_up().unwrap();
    assert_eq!(space.usage().1, start + slot);
    // More rows need the whole reserve.
    medium.set_capacity(Some(medium.used_bytes()));
    assert!(matches!(space.make_room(too_much), Err(Error::DiskFull { .. })));
    assert!(matches!(space.allocate(PAGE, Purpose::Load), Err(Error::DiskFull { .. })));
    assert!(space.is_small() && space.is_full() && space.make_small_room(enough).is_ok() && !space.is_full());
    // Flushes may use all of the slot.
    let settled = space.allocate(slot / 2, Purpose::Settle).unwrap();
    let run = space.allocate(slot / 2, Purpose::Checkpoint).unwrap();
    assert!(space.allocate(PAGE, Purpose::Checkpoint).is_err() && space.is_small());
    space.top_up().unwrap();
    assert!(space.is_small() && space.make_small_room(0).is_err());
    // Without the reserve, a file with a little more remains small when it is opened.
    assert!(space.open_small(PAGE / 2) && !space.open_small(slot));
    space.free(run, slot / 2);
    // A shorter range is enough for fewer rows.
    assert!(space.make_small_room(enough / 8).is_err());
    space.free(settled, slot / 2);
    let short = space.allocate(slot / 2, Purpose::Checkpoint).unwrap();
    assert!(space.make_small_room(0).is_err());
    space.free(short, slot / 2 - 2 * PAGE);
    space.make_small_room(enough / 8).unwrap();
    assert!(space.make_small_room(enough).is_err());
    space.free(short + slot / 2 - 2 * PAGE, 2 * PAGE);
    // With space, a file that has more data gets the whole reserve.
    medium.set_capacity(None);
    let reserved = |space: &Space| {
        let (used, len) = space.usage();
        !space.is_small() && len - used >= RESERVE_SLOTS_MIN * slot
    };
    space.top_up().unwrap();
    assert!(reserved(&space));
    drop(space);
    let space = open();
    space.make_room(too_much).unwrap();
    assert!(reserved(&space));
    let space = open();
    space.allocate(PAGE, Purpose::Load).unwrap();
    assert!(reserved(&space));
}
