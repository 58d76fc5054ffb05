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
    Space::new(medium.open(path, OpenMode::ReadWrite).unwrap(), used)
}

#[test]
fn best_fit_with_the_lowest_offset() {
    let start = RESERVED_BYTES;
    let used = vec![(start + 3 * PAGE, PAGE), (start, PAGE), (start + 6 * PAGE, PAGE)];
    let medium = device(0);
    // Free: 2 pages at 1, 2 pages at 4, 3 pages at 7.
    let space = new_space(&medium, start + 10 * PAGE, used).unwrap();
    assert_eq!(space.usage(), (start + 3 * PAGE, start + 10 * PAGE));
    assert_eq!(space.allocate(2 * PAGE).unwrap(), start + PAGE);
    assert_eq!(space.allocate(PAGE).unwrap(), start + 4 * PAGE);
    assert_eq!(space.allocate(PAGE).unwrap(), start + 5 * PAGE);
    assert_eq!(space.allocate(3 * PAGE).unwrap(), start + 7 * PAGE);
    space.free(start + 4 * PAGE, PAGE);
    space.free(start + 6 * PAGE, PAGE);
    space.free(start + 5 * PAGE, PAGE);
    assert_eq!(space.allocate(3 * PAGE).unwrap(), start + 4 * PAGE);
    let panics = |len| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| space.allocate(len))).is_err();
    assert!(panics(100) && panics(0));
}

#[test]
#[should_panic(expected = "freed twice or never allocated")]
fn a_double_free_panics() {
    let space = new_space(&device(0), RESERVED_BYTES + 10 * PAGE, vec![]).unwrap();
    let offset = space.allocate(PAGE).unwrap();
    space.free(offset, PAGE);
    space.free(offset, PAGE);
}

#[test]
fn grows_in_smaller_steps_when_the_disk_is_nearly_full() {
    let medium = device(0);
    let space = new_space(&medium, RESERVED_BYTES, vec![]).unwrap();
    space.allocate(PAGE).unwrap();
    assert_eq!(space.usage().1, RESERVED_BYTES + GROWTH_BYTES_MIN);
    let large = space.allocate(2 * GROWTH_BYTES_MIN).unwrap();
    let end = space.usage().1;
    assert_eq!(large + 2 * GROWTH_BYTES_MIN, end);
    space.free(large, 2 * GROWTH_BYTES_MIN);
    space.trim().unwrap();
    assert_eq!(space.usage().1, large + GROWTH_BYTES_MIN);
    assert_eq!(medium.used_bytes(), space.usage().1);
    space.trim().unwrap();

    medium.set_capacity(Some(medium.used_bytes() + 10 * PAGE));
    let before = space.usage();
    assert!(space.allocate(GROWTH_BYTES_MIN + 11 * PAGE).is_err());
    assert_eq!(space.usage(), before);
    assert!(matches!(space.allocate(1 << 62), Err(Error::DiskFull { .. })));
    assert_eq!(space.allocate(GROWTH_BYTES_MIN + 10 * PAGE).unwrap(), large);
    assert!(space.allocate(PAGE).is_err());
    space.free(large, PAGE);
    assert_eq!(space.allocate(PAGE).unwrap(), large);
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
    let mut free = Free { file_len: RESERVED_BYTES + 10 * PAGE, ..Free::default() };
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
        let mut free = Free { file_len: RESERVED_BYTES + blocks * PAGE, ..Free::default() };
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
