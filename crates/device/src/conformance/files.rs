//! Tests of files, directories and locks: the blocking calls.

use super::{Fixture, assert_blocks};
use crate::interface::{ByteRange, ErrorKind, OpenMode, Operation, Result};
use crate::memory::{BLOCK, Buffer};

pub(crate) fn names_and_directories(fixture: &Fixture) {
    let device = &fixture.device;
    assert!(device.list(&fixture.dir).unwrap().is_empty());
    for name in ["b", "a", "c"] {
        device.open(&fixture.path(name), OpenMode::CreateNew).unwrap();
    }
    device.create_dir(&fixture.path("dir")).unwrap();
    assert!(device.create_dir(&fixture.path("dir")).unwrap_err().is_exists());
    assert!(device.create_dir(&fixture.path("no/where")).unwrap_err().is_not_found());
    assert_eq!(device.list(&fixture.dir).unwrap(), ["a", "b", "c", "dir"]);
    device.rename(&fixture.path("a"), &fixture.path("dir/z")).unwrap();
    device.rename(&fixture.path("b"), &fixture.path("c")).unwrap();
    assert_eq!(device.list(&fixture.dir).unwrap(), ["c", "dir"]);
    assert_eq!(device.list(&fixture.path("dir")).unwrap(), ["z"]);
    assert!(device.exists(&fixture.path("dir/z")).unwrap());
    assert!(device.exists(&fixture.path("dir")).unwrap());
    assert!(!device.exists(&fixture.path("a")).unwrap());
    assert!(device.remove(&fixture.path("dir")).is_err(), "the directory is not empty");
    device.remove(&fixture.path("dir/z")).unwrap();
    device.remove(&fixture.path("dir")).unwrap();
    assert!(device.remove(&fixture.path("dir")).unwrap_err().is_not_found());
    assert!(device.rename(&fixture.path("a"), &fixture.path("b")).unwrap_err().is_not_found());
    assert!(device.list(&fixture.path("dir")).unwrap_err().is_not_found());
    device.sync_dir(&fixture.dir).unwrap();
    assert!(device.sync_dir(&fixture.path("dir")).unwrap_err().is_not_found());
}

pub(crate) fn open_modes(fixture: &Fixture) {
    let device = &fixture.device;
    let path = fixture.path("file");
    assert!(device.open(&path, OpenMode::Read).unwrap_err().is_not_found());
    assert!(device.open(&path, OpenMode::ReadWrite).unwrap_err().is_not_found());
    let file = fixture.file("file", 2);
    assert_eq!(file.path(), path);
    assert!(device.open(&path, OpenMode::CreateNew).unwrap_err().is_exists());
    let mut buffer = Buffer::zeroed(BLOCK);
    let reader = device.open(&path, OpenMode::Read).unwrap();
    reader.read_at(BLOCK as u64, &mut buffer).unwrap();
    assert_blocks(1, &buffer);
    assert!(reader.write_at(0, &buffer).is_err());
    assert!(reader.truncate(0).is_err());
    let writer = device.open(&path, OpenMode::ReadWrite).unwrap();
    writer.write_at(0, &buffer).unwrap();
    file.read_at(0, &mut buffer).unwrap();
    assert_blocks(1, &buffer);
    assert!(device.open(&fixture.dir, OpenMode::Read).is_err(), "a directory is not a file");
    // An open file outlives its name.
    device.remove(&path).unwrap();
    reader.read_at(0, &mut buffer).unwrap();
    assert_blocks(1, &buffer);
}

pub(crate) fn lengths(fixture: &Fixture) {
    let file = fixture.file("file", 0);
    assert!(file.is_empty().unwrap());
    file.allocate(0, 10 * BLOCK as u64).unwrap();
    assert_eq!(file.len().unwrap(), 10 * BLOCK as u64);
    let mut buffer = Buffer::zeroed(2 * BLOCK);
    buffer.fill(9);
    file.read_at(8 * BLOCK as u64, &mut buffer).unwrap();
    assert!(buffer.iter().all(|&byte| byte == 0));
    buffer.fill(9);
    file.write_at(20 * BLOCK as u64, &buffer).unwrap();
    assert_eq!(file.len().unwrap(), 22 * BLOCK as u64);
    file.allocate(0, 4 * BLOCK as u64).unwrap();
    assert_eq!(file.len().unwrap(), 22 * BLOCK as u64, "allocating inside the file keeps its length");
    file.truncate(21 * BLOCK as u64).unwrap();
    file.truncate(22 * BLOCK as u64).unwrap();
    file.read_at(20 * BLOCK as u64, &mut buffer).unwrap();
    assert!(buffer[..BLOCK].iter().all(|&byte| byte == 9));
    assert!(buffer[BLOCK..].iter().all(|&byte| byte == 0), "truncated bytes read as zero");
    file.sync_data().unwrap();
}

pub(crate) fn locks(fixture: &Fixture) {
    let path = fixture.path("lock");
    assert!(fixture.device.lock_existing(&path).unwrap_err().is_not_found());
    let lock = fixture.device.lock(&path).unwrap();
    assert!(fixture.device.lock(&path).unwrap_err().is_locked());
    assert!(fixture.device.lock_existing(&path).unwrap_err().is_locked());
    assert!(fixture.device.exists(&path).unwrap());
    let other = fixture.device.lock(&fixture.path("other")).unwrap();
    drop(lock);
    let lock = fixture.device.lock_existing(&path).unwrap();
    assert!(fixture.device.lock(&path).unwrap_err().is_locked());
    drop(lock);
    let _lock = fixture.device.lock(&path).unwrap();
    drop(other);
    assert!(fixture.device.lock(&fixture.path("no/where")).unwrap_err().is_not_found());
}

pub(crate) fn marks(fixture: &Fixture) {
    let (device, path) = (&fixture.device, fixture.path("lock"));
    assert!(device.mark(&path, 7).unwrap_err().is_not_found());
    assert!(device.marks(&path).unwrap_err().is_not_found());
    let lock = device.lock(&path).unwrap();
    assert!(device.marks(&path).unwrap().is_empty());
    let largest = (1 << 62) - 1;
    let marks = [7, 0, largest, 7, 8].map(|number| device.mark(&path, number).unwrap());
    assert_eq!(device.marks(&path).unwrap(), [0, 7, 8, largest]);
    let [seven, zero, last, again, eight] = marks;
    drop((seven, zero));
    assert_eq!(device.marks(&path).unwrap(), [7, 8, largest]);
    drop(lock);
    assert_eq!(device.marks(&path).unwrap(), [7, 8, largest], "the lock is independent of the marks");
    let _lock = device.lock(&path).unwrap();
    drop((again, last, eight));
    assert!(device.marks(&path).unwrap().is_empty());
    let _other = device.open(&fixture.path("other"), OpenMode::CreateNew).unwrap();
    let _mark = device.mark(&fixture.path("other"), 1).unwrap();
    assert!(device.marks(&path).unwrap().is_empty());
}

pub(crate) fn read_back(fixture: &Fixture) {
    let file = fixture.file("file", 600);
    for (first, blocks) in [(0, 1), (599, 1), (0, 600), (17, 300)] {
        let mut buffer = Buffer::zeroed(blocks * BLOCK);
        file.read_at(first * BLOCK as u64, &mut buffer).unwrap();
        assert_blocks(first, &buffer);
    }
}

pub(crate) fn errors(fixture: &Fixture) {
    let file = fixture.file("file", 3);
    let mut buffer = Buffer::zeroed(2 * BLOCK);
    let error = file.read_at(2 * BLOCK as u64, &mut buffer).unwrap_err();
    assert!(error.is_end_of_file(), "{error}");
    assert_eq!(error.operation, Operation::Read);
    assert_eq!(error.path.as_deref(), Some(file.path()));
    assert_eq!(error.range, Some(ByteRange { offset: 8192, len: 8192 }));
    assert!(file.read_at(100 * BLOCK as u64, &mut buffer).unwrap_err().is_end_of_file());
    let kind = |result: Result<()>| result.unwrap_err().kind;
    assert!(matches!(kind(file.read_at(512, &mut buffer)), ErrorKind::UnalignedOffset));
    assert!(matches!(kind(file.write_at(1, &buffer)), ErrorKind::UnalignedOffset));
    let last = u64::MAX - BLOCK as u64 + 1;
    assert!(matches!(kind(file.read_at(last, &mut buffer)), ErrorKind::OutOfRange));
    assert!(matches!(kind(file.allocate(0, 100)), ErrorKind::UnalignedLength));
}
