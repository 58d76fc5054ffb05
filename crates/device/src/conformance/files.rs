//! Files, directories and locks: the blocking calls.

use super::{Place, assert_blocks};
use crate::{BLOCK, Buffer, OpenMode};

pub(crate) fn names_and_directories(place: &Place) {
    let device = &place.device;
    assert!(device.list(&place.dir).unwrap().is_empty());
    for name in ["b", "a", "c"] {
        device.open(&place.path(name), OpenMode::CreateNew).unwrap();
    }
    device.create_dir(&place.path("dir")).unwrap();
    assert!(device.create_dir(&place.path("dir")).unwrap_err().is_exists());
    assert!(device.create_dir(&place.path("no/where")).unwrap_err().is_not_found());
    assert_eq!(device.list(&place.dir).unwrap(), ["a", "b", "c", "dir"]);
    device.rename(&place.path("a"), &place.path("dir/z")).unwrap();
    device.rename(&place.path("b"), &place.path("c")).unwrap();
    assert_eq!(device.list(&place.dir).unwrap(), ["c", "dir"]);
    assert_eq!(device.list(&place.path("dir")).unwrap(), ["z"]);
    assert!(device.exists(&place.path("dir/z")).unwrap());
    assert!(device.exists(&place.path("dir")).unwrap());
    assert!(!device.exists(&place.path("a")).unwrap());
    assert!(device.remove(&place.path("dir")).is_err(), "it is not empty");
    device.remove(&place.path("dir/z")).unwrap();
    device.remove(&place.path("dir")).unwrap();
    assert!(device.remove(&place.path("dir")).unwrap_err().is_not_found());
    assert!(device.rename(&place.path("a"), &place.path("b")).unwrap_err().is_not_found());
    assert!(device.list(&place.path("dir")).unwrap_err().is_not_found());
    device.sync_dir(&place.dir).unwrap();
    assert!(device.sync_dir(&place.path("dir")).unwrap_err().is_not_found());
}

pub(crate) fn open_modes(place: &Place) {
    let device = &place.device;
    let path = place.path("file");
    assert!(device.open(&path, OpenMode::Read).unwrap_err().is_not_found());
    assert!(device.open(&path, OpenMode::ReadWrite).unwrap_err().is_not_found());
    let file = place.file("file", 2);
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
    assert!(device.open(&place.dir, OpenMode::Read).is_err(), "a directory is no file");
    // An open file outlives its name.
    device.remove(&path).unwrap();
    reader.read_at(0, &mut buffer).unwrap();
    assert_blocks(1, &buffer);
}

pub(crate) fn lengths(place: &Place) {
    let file = place.file("file", 0);
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
    assert_eq!(file.len().unwrap(), 22 * BLOCK as u64, "allocating inside changes nothing");
    file.truncate(21 * BLOCK as u64).unwrap();
    file.truncate(22 * BLOCK as u64).unwrap();
    file.read_at(20 * BLOCK as u64, &mut buffer).unwrap();
    assert!(buffer[..BLOCK].iter().all(|&byte| byte == 9));
    assert!(buffer[BLOCK..].iter().all(|&byte| byte == 0), "what was cut off does not come back");
    file.sync_data().unwrap();
}

pub(crate) fn locks(place: &Place) {
    let path = place.path("lock");
    let lock = place.device.lock(&path).unwrap();
    assert!(place.device.lock(&path).unwrap_err().is_locked());
    assert!(place.device.exists(&path).unwrap());
    let other = place.device.lock(&place.path("other")).unwrap();
    drop(lock);
    let _lock = place.device.lock(&path).unwrap();
    drop(other);
    assert!(place.device.lock(&place.path("no/where")).unwrap_err().is_not_found());
}

pub(crate) fn read_back(place: &Place) {
    let file = place.file("file", 600);
    for (first, blocks) in [(0, 1), (599, 1), (0, 600), (17, 300)] {
        let mut buffer = Buffer::zeroed(blocks * BLOCK);
        file.read_at(first * BLOCK as u64, &mut buffer).unwrap();
        assert_blocks(first, &buffer);
    }
}

pub(crate) fn errors(place: &Place) {
    let file = place.file("file", 3);
    let mut buffer = Buffer::zeroed(2 * BLOCK);
    let error = file.read_at(2 * BLOCK as u64, &mut buffer).unwrap_err();
    assert!(error.is_short(), "{error}");
    assert_eq!((error.operation, error.offset, error.len), ("read", 8192, 8192));
    assert!(file.read_at(100 * BLOCK as u64, &mut buffer).unwrap_err().is_short());
    assert!(file.read_at(512, &mut buffer).is_err());
    assert!(file.write_at(1, &buffer).is_err());
    assert!(file.read_at(u64::MAX - BLOCK as u64 + 1, &mut buffer).is_err());
    assert!(file.allocate(0, 100).is_err());
}
