//! Tests of damaged files: damage to acknowledged records is an error, and no bytes make recovery panic or allocate
//! without bound.

use keyaki_device::simulated::FaultKind;
use keyaki_primitives::Random;

use super::*;
use crate::base::Error;
use crate::log::format::{GroupHeader, HEADER_BYTES};
use crate::log::segment::SEGMENT_BYTES;

/// A log of `count` commits, each a group of up to three blocks, over several segments. It is closed, or cut off by a
/// crash.
fn sample(count: u64, closed: bool) -> (Simulated, Records) {
    let medium = device(0);
    let (log, _) = open(&medium);
    let mut records = Records::new();
    for sequence in 1..=count {
        let len = (sequence * 977 % 9000) as usize;
        append(&log, sequence, len);
        log.commit(sequence).unwrap();
        records.push((sequence, payload(sequence, len)));
    }
    if !closed {
        log.poison("the process dies");
    }
    (medium, records)
}

fn recover(medium: &Simulated) -> Result<Records> {
    open_at(medium, LogPosition::default(), 1, Durability::Full).map(|(_, records)| records)
}

/// Recovers and checks that no acknowledged record is missing without an error. Returns true if damage was reported.
fn check(medium: &Simulated, expected: &Records, closed: bool, what: &str) -> bool {
    match recover(medium) {
        Ok(records) if records == *expected => false,
        // If the log was not closed, no later group proves that the newest one was durable.
        Ok(records) if !closed && records[..] == expected[..expected.len() - 1] => false,
        Ok(records) => panic!("{what}: {} of {} records without an error", records.len(), expected.len()),
        Err(Error::Corrupt { what: "log", .. }) => true,
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn every_flipped_bit_of_a_record_is_detected() {
    for closed in [true, false] {
        let (medium, expected) = sample(40, closed);
        let mut random = Random::new(1);
        let segments = segment_count(&medium);
        assert!(segments > 1);
        let mut noticed = 0;
        for segment in 0..segments {
            let sound = bytes(&medium, &path(segment));
            for block in 0..sound.len() / BLOCK {
                let range = if random.one_in(2) { HEADER_BYTES } else { BLOCK };
                let at = block * BLOCK + random.below(range as u64) as usize;
                let mut bytes = sound.clone();
                bytes[at] ^= 1 << random.below(8);
                let damaged = copy(&medium);
                set_bytes(&damaged, &path(segment), bytes);
                let what = format!("segment {segment}, byte {at}, closed {closed}");
                noticed += usize::from(check(&damaged, &expected, closed, &what));
            }
        }
        assert!(noticed >= 40, "{noticed}");
    }
}

#[test]
fn lost_blocks_misdirected_blocks_and_lost_ends_are_detected() {
    for closed in [true, false] {
        let (medium, expected) = sample(40, closed);
        let segments = segment_count(&medium);
        let mut noticed = 0;
        for segment in 0..segments {
            let sound = bytes(&medium, &path(segment));
            for block in 0..sound.len() / BLOCK {
                let at = block * BLOCK..(block + 1) * BLOCK;
                let mut zeroed = sound.clone();
                zeroed[at.clone()].fill(0);
                let mut misdirected = sound.clone();
                misdirected.copy_within(0..BLOCK, at.start);
                let cut = sound[..at.start].to_vec();
                for (what, bytes) in [("zeroed", zeroed), ("misdirected", misdirected), ("cut", cut)] {
                    // The loss of the end of a segment may be undetected only if it was empty.
                    if what == "cut" && segment + 1 == segments {
                        continue;
                    }
                    let damaged = copy(&medium);
                    set_bytes(&damaged, &path(segment), bytes);
                    let what = format!("segment {segment}, block {block} {what}, closed {closed}");
                    noticed += usize::from(check(&damaged, &expected, closed, &what));
                }
            }
        }
        assert!(noticed >= 100, "{noticed}");
    }
}

#[test]
fn junk_behind_the_end_is_truncated() {
    let (medium, mut expected) = sample(10, false);
    let mut random = Random::new(5);
    let mut bytes = bytes(&medium, &path(0));
    let end = (0..bytes.len() / BLOCK).rev().find(|block| bytes[block * BLOCK] != 0).unwrap() + 3;
    for byte in &mut bytes[end * BLOCK..] {
        *byte = random.next_u64() as u8;
    }
    set_bytes(&medium, &path(0), bytes);
    let (log, records) = open(&medium);
    assert_eq!(records, expected);
    append(&log, 11, 100);
    log.commit(11).unwrap();
    expected.push((11, payload(11, 100)));
    drop(log);
    assert_eq!(recover(&medium).unwrap(), expected);
}

#[test]
fn another_logs_groups_and_other_versions_are_refused() {
    let (medium, expected) = sample(3, true);
    let (other, _) = sample(3, true);
    let mut mixed = bytes(&medium, &path(0));
    let strange = bytes(&other, &path(0));
    mixed[BLOCK..2 * BLOCK].copy_from_slice(&strange[BLOCK..2 * BLOCK]);
    let damaged = copy(&medium);
    set_bytes(&damaged, &path(0), mixed);
    assert!(check(&damaged, &expected, true, "another log's group"));

    let mut newer = bytes(&medium, &path(0));
    newer[8] = 99;
    let crc = crc32c::crc32c(&newer[..68]);
    newer[68..72].copy_from_slice(&crc.to_le_bytes());
    set_bytes(&medium, &path(0), newer);
    assert!(matches!(recover(&medium), Err(Error::FormatVersion { found: 99, .. })));
}

#[test]
fn random_files_are_errors_or_empty_logs() {
    let mut random = Random::new(7);
    for _ in 0..300 {
        let medium = device(0);
        for segment in 0..random.below(3) {
            let len = random.below(3 * BLOCK as u64) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
            if random.one_in(2) && len > 8 {
                bytes[..8].copy_from_slice(b"KEYAKLOG");
            }
            set_bytes(&medium, &path(segment), bytes);
        }
        match recover(&medium) {
            Ok(records) => assert!(records.is_empty()),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
        let elsewhere = LogPosition { segment: random.below(3), offset: random.below(4) * BLOCK as u64 };
        if elsewhere != LogPosition::default() {
            assert!(open_at(&medium, elsewhere, 1, Durability::Full).is_err());
        }
    }
    for (segment, offset, first) in [(u64::MAX, 0, 1), (u64::MAX, u64::MAX - 4095, u64::MAX), (0, 0, u64::MAX)] {
        let medium = device(0);
        set_bytes(&medium, &path(segment), vec![0; BLOCK]);
        let result = open_at(&medium, LogPosition { segment, offset }, first, Durability::Full);
        assert!(result.is_err() || segment == 0);
    }
}

/// Headers with correct checksums and wrong contents.
#[test]
fn hostile_headers_are_errors() {
    let (medium, _) = sample(6, false);
    let sound = bytes(&medium, &path(0));
    let headers: Vec<usize> = (0..sound.len() / BLOCK)
        .map(|block| block * BLOCK)
        .filter(|&at| GroupHeader::decode(&sound[at..], 0, at as u64).is_ok())
        .collect();
    let mut random = Random::new(9);
    for _ in 0..2000 {
        let at = headers[random.below(headers.len() as u64) as usize];
        let mut bytes = sound.clone();
        let mut header = GroupHeader::decode(&bytes[at..], 0, at as u64).unwrap();
        let value = match random.below(4) {
            0 => u64::MAX - random.below(3),
            1 => 1 << random.below(64),
            2 => random.below(SEGMENT_BYTES),
            _ => random.below(8),
        };
        match random.below(6) {
            0 => header.count = value as u32,
            1 => header.body_len = value,
            2 => header.first_sequence = value,
            3 => header.synced_through = value,
            4 => header.segment = value,
            _ => header.offset = value,
        }
        let body = at + HEADER_BYTES;
        let body = bytes.get(body..body.saturating_add(header.body_len as usize)).unwrap_or(&[]);
        header.body_crc = crc32c::crc32c(body);
        header.encode(&mut bytes[at..]);
        let hostile = copy(&medium);
        set_bytes(&hostile, &path(0), bytes);
        match recover(&hostile) {
            Ok(records) => assert!(records.len() <= 6),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
    }
}

/// Writes that the medium confirms but loses or misplaces are detected once a later group exists.
#[test]
fn lost_and_misdirected_writes_are_detected() {
    let mut noticed = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let medium = device(seed);
        let (log, _) = open(&medium);
        let fault = match random.below(3) {
            0 => FaultKind::Lose,
            1 => FaultKind::Misdirect { blocks: 1 + random.below(9) as i64 },
            _ => FaultKind::Misdirect { blocks: -1 - random.below(9) as i64 },
        };
        medium.fail_after(random.below(40), fault);
        let mut expected = Records::new();
        for sequence in 1..=45 {
            let len = random.below(9000) as usize;
            append(&log, sequence, len);
            log.commit(sequence).unwrap();
            expected.push((sequence, payload(sequence, len)));
        }
        drop(log);
        noticed += usize::from(check(&medium, &expected, true, &format!("seed {seed}, {fault:?}")));
    }
    assert!(noticed > 200, "{noticed}");
}

#[test]
fn ignored_syncs_never_give_wrong_records() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let medium = device(seed);
        let (log, _) = open(&medium);
        let lies_from = random.below(40);
        let mut expected = Records::new();
        for sequence in 1..=45 {
            medium.set_lying_syncs(sequence > lies_from);
            let len = random.below(9000) as usize;
            append(&log, sequence, len);
            log.commit(sequence).unwrap();
            expected.push((sequence, payload(sequence, len)));
        }
        medium.crash();
        match recover(&medium) {
            Ok(records) => assert!(records.len() as u64 >= lies_from && records == expected[..records.len()]),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
    }
}

#[test]
fn an_unreadable_range_is_an_error_and_changes_nothing() {
    let (medium, expected) = sample(20, true);
    let len = bytes(&medium, &path(0)).len() as u64;
    for at in (0..len).step_by(BLOCK) {
        medium.fail_reads(&path(0), at..at + 1).unwrap();
        assert!(matches!(recover(&medium), Err(Error::Device(_))));
        medium.clear_faults();
    }
    assert_eq!(recover(&medium).unwrap(), expected);
}
