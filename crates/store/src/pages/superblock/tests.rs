use std::path::Path;
use std::sync::Arc;

use keyaki_device::simulated::Simulated;
use keyaki_device::{Device, File, OpenMode};
use keyaki_primitives::Random;

use super::*;
use crate::log::tests::{bytes, device, set_bytes};

fn path() -> &'static Path {
    Path::new("/db/data")
}

fn sample(generation: u64) -> Superblock {
    Superblock {
        generation,
        sequence: generation * 10,
        log: LogPosition { segment: generation, offset: 4096 },
        node_table_offset: RESERVED_BYTES,
        node_table_len: 1234,
        node_table_hash: 0x0123_4567_89ab_cdef,
        page_bytes: 8192,
        database_id: 77,
    }
}

fn open(medium: &Simulated) -> Arc<dyn File> {
    medium.open(path(), OpenMode::ReadWrite).unwrap()
}

fn new_file(seed: u64) -> Simulated {
    let medium = device(seed);
    set_bytes(&medium, path(), vec![0; 2 * RESERVED_BYTES as usize]);
    medium
}

fn written(seed: u64) -> Simulated {
    let medium = new_file(seed);
    sample(6).write(&*open(&medium)).unwrap();
    sample(7).write(&*open(&medium)).unwrap();
    medium
}

#[test]
fn the_newest_is_read() {
    let medium = new_file(0);
    for generation in 0..5 {
        sample(generation).write(&*open(&medium)).unwrap();
        assert_eq!(Superblock::read(&*open(&medium)).unwrap(), sample(generation));
    }
}

#[test]
fn a_crash_leaves_the_old_or_the_new_one() {
    for seed in 0..500 {
        let medium = new_file(seed);
        let first = seed / 5 % 2;
        sample(first).write(&*open(&medium)).unwrap();
        medium.crash_after_operations(seed % 5);
        let finished = sample(first + 1).write(&*open(&medium)).is_ok();
        medium.crash();
        let found = Superblock::read(&*open(&medium)).unwrap();
        assert!(found == sample(first + 1) || (!finished && found == sample(first)));
    }
}

#[test]
fn opening_finishes_an_interrupted_write() {
    let mut random = Random::new(2);
    for seed in 0..500 {
        let medium = written(seed);
        medium.crash_after_operations(seed % 4);
        let _ = sample(8).write(&*open(&medium));
        medium.crash();
        let found = loop {
            let found = Superblock::read(&*open(&medium)).unwrap();
            medium.crash_after_operations(random.below(4));
            if found.mirror(&*open(&medium)).is_ok() {
                break found;
            }
            medium.crash();
        };
        medium.crash();
        medium.flip_bit(path(), SLOT_OFFSETS[random.below(2) as usize] + 50, 0).unwrap();
        assert_eq!(Superblock::read(&*open(&medium)).unwrap(), found);
    }
    assert!(sample(6).mirror(&*open(&written(0))).is_err());
}

#[test]
fn a_damaged_slot_does_not_bring_the_old_superblock_back() {
    for slot in 0..2 {
        for at in (0..80).chain(4090..BLOCK as u64) {
            let medium = written(0);
            medium.flip_bit(path(), SLOT_OFFSETS[slot] + at, 6).unwrap();
            assert_eq!(Superblock::read(&*open(&medium)).unwrap(), sample(7));
            medium.flip_bit(path(), SLOT_OFFSETS[slot ^ 1] + at, 6).unwrap();
            let error = Superblock::read(&*open(&medium)).unwrap_err();
            assert!(if at < 8 {
                matches!(error, Error::NotADatabase { .. })
            } else {
                matches!(error, Error::Corrupt { .. })
            });
        }
    }
}

#[test]
fn foreign_files_and_versions_are_errors() {
    for bytes in [vec![], vec![1; 100], vec![0; 4096], b"SQLite format 3\0".repeat(10_000)] {
        let medium = device(0);
        set_bytes(&medium, path(), bytes);
        let error = Superblock::read(&*open(&medium)).unwrap_err();
        assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    }
    let medium = written(0);
    let mut bytes = bytes(&medium, path());
    for slot in SLOT_OFFSETS {
        let slot = &mut bytes[slot as usize..slot as usize + BLOCK];
        slot[8] = 77;
        let crc = crc32c::crc32c(&slot[..CRC_AT]);
        slot[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }
    set_bytes(&medium, path(), bytes);
    let error = Superblock::read(&*open(&medium)).unwrap_err();
    assert!(matches!(error, Error::FormatVersion { found: 77, supported: FORMAT_VERSION, .. }), "{error}");
}

#[test]
fn hostile_bytes_are_errors() {
    let mut random = Random::new(3);
    for _ in 0..500 {
        let medium = written(0);
        let len = random.below(2 * RESERVED_BYTES) as usize;
        let mut bytes = bytes(&medium, path())[..len].to_vec();
        // Damaged bytes, in part of the cases with correct checksums.
        for slot in SLOT_OFFSETS {
            let Some(slot) = bytes.get_mut(slot as usize..slot as usize + BLOCK) else { continue };
            for _ in 0..random.below(4) {
                slot[12 + random.below(70) as usize] = random.next_u64() as u8;
            }
            if random.one_in(2) {
                let crc = crc32c::crc32c(&slot[..CRC_AT]);
                slot[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
            }
        }
        set_bytes(&medium, path(), bytes);
        if let Ok(found) = Superblock::read(&*open(&medium)) {
            assert!(found.node_table_offset + found.node_table_len <= len as u64);
            assert!(found.page_bytes > 0 && found.page_bytes.is_multiple_of(4096));
        }
    }
}
