//! Stores that are open read-only, beside one that writes.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::key_value_rows;
use keyaki_device::Device;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch, KeyValueSnapshot};
use keyaki_store::{BackupMode, Direction, Error, Options, Schema, Store, TreeId, WriteBatch};

const TREE: TreeId = TreeId::new(2);
const OTHER: TreeId = TreeId::new(3);
const DATABASE: &str = "/db";

/// Keys that every commit of [`write_round`] overwrites.
const KEYS: u32 = 400;

fn options() -> Options {
    Options { buffer_bytes: 40_000, page_bytes: 4096, leaf_bytes: 32_768, fan_out: 4, ..Options::default() }
}

fn simulated() -> Simulated {
    Simulated::new(SimulatedOptions { seed: 5, ..Default::default() })
}

/// Buffers so large that nothing is flushed but by checkpoints that a test makes.
fn quiet_options() -> Options {
    Options { buffer_bytes: 64 << 20, ..options() }
}

fn open(simulated: &Simulated) -> (Store, KeyValue) {
    let store = Store::open(simulated.device(), Path::new(DATABASE), options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    (store, tree)
}

fn open_reader(simulated: &Simulated) -> Store {
    Store::open_read_only(simulated.device(), Path::new(DATABASE), options()).unwrap()
}

/// Rows of 100 bytes that cannot be compressed.
fn value(round: u32, key: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(round) << 32 | u64::from(key));
    let mut bytes = round.to_be_bytes().to_vec();
    bytes.extend((0..96).map(|_| random.below(256) as u8));
    bytes
}

/// Writes all keys in one commit.
fn write_round(tree: &KeyValue, round: u32) {
    let mut batch = KeyValueBatch::default();
    (0..KEYS).for_each(|key| batch.insert(tree, &key.to_be_bytes(), &value(round, key)));
    tree.commit(batch).unwrap();
}

/// The round that a snapshot sees, in all keys, or 0 if there are none.
fn round_of(rows: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> u32 {
    let rows: Vec<(Vec<u8>, Vec<u8>)> = rows.collect();
    let Some((_, first)) = rows.first() else { return 0 };
    let round = u32::from_be_bytes(first[..4].try_into().unwrap());
    assert_eq!(rows.len(), KEYS as usize, "round {round}");
    for (at, (key, found)) in rows.iter().enumerate() {
        assert_eq!(*key, (at as u32).to_be_bytes());
        assert_eq!(*found, value(round, at as u32), "key {at} in round {round}");
    }
    round
}

/// As [`round_of`], for all rows of a snapshot.
fn round_at(snapshot: &KeyValueSnapshot) -> u32 {
    round_of(snapshot.range(.., Direction::Ascending).map(Result::unwrap))
}

fn round(store: &Store) -> u32 {
    match KeyValue::open(store, TREE) {
        Ok(tree) => round_of(tree.range(.., Direction::Ascending).unwrap().map(Result::unwrap)),
        Err(Error::ReadOnly) => 0,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn readers_follow_commits_checkpoints_and_definitions() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    let reader = open_reader(&simulated);
    assert!(reader.is_read_only() && !store.is_read_only());
    assert_eq!(round(&reader), 0);
    for number in 1..=12 {
        write_round(&tree, number);
        if number % 3 == 0 {
            store.checkpoint().unwrap();
        }
        assert!(round(&reader) < number, "without a refresh, a reader sees the old state");
        let refreshed = reader.refresh(&|_| ()).unwrap();
        assert!(refreshed.may_have_changed(TREE));
        assert_eq!(round(&reader), number);
        assert_eq!(round(&open_reader(&simulated)), number);
        assert!(reader.refresh(&|_| ()).unwrap().trees.is_empty(), "no commit has followed");
    }
    let other = KeyValue::open(&store, OTHER).unwrap();
    other.insert(b"a", b"1").unwrap();
    assert!(matches!(reader.snapshot().tree(OTHER), Err(Error::TreeNotFound(OTHER))));
    let refreshed = reader.refresh(&|_| ()).unwrap();
    assert!(refreshed.may_have_changed(OTHER) && !refreshed.trees.contains(&TREE));
    assert_eq!(KeyValue::open(&reader, OTHER).unwrap().get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    let before = reader.snapshot();
    let mut batch = WriteBatch::new();
    batch.drop_tree(OTHER);
    store.commit(batch).unwrap();
    reader.refresh(&|_| ()).unwrap();
    assert!(matches!(reader.snapshot().tree(OTHER), Err(Error::TreeNotFound(OTHER))));
    assert!(before.tree(OTHER).is_ok(), "a snapshot keeps its trees");
}

#[test]
fn readers_see_loads_only_with_their_checkpoint() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    write_round(&tree, 1);
    let reader = open_reader(&simulated);
    let mut writer = store.bulk_writer(TREE, &Schema::key_value());
    let rows: Vec<(Vec<u8>, Vec<u8>)> = (0..KEYS).map(|key| (key.to_be_bytes().to_vec(), value(2, key))).collect();
    writer.push(&key_value_rows(rows.iter().map(|(key, value)| (&key[..], &value[..])))).unwrap();
    reader.refresh(&|_| ()).unwrap();
    assert_eq!(round(&reader), 1);
    store.install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
    reader.refresh(&|_| ()).unwrap();
    assert_eq!(round(&reader), 2);
    write_round(&tree, 3);
    reader.refresh(&|_| ()).unwrap();
    assert_eq!(round(&reader), 3);
}

#[test]
fn nothing_can_be_written() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    write_round(&tree, 1);
    let reader = open_reader(&simulated);
    let read = KeyValue::open(&reader, TREE).unwrap();
    assert!(matches!(read.insert(b"x", b"y"), Err(Error::ReadOnly)));
    assert!(matches!(KeyValue::open(&reader, OTHER), Err(Error::ReadOnly)));
    assert!(matches!(reader.checkpoint(), Err(Error::ReadOnly)));
    let copied = reader.backup(Path::new("/copy"), BackupMode::Full, &|_, _| true, &|| true);
    assert!(matches!(copied, Err(Error::ReadOnly)));
    let mut writer = reader.bulk_writer(TREE, &Schema::key_value());
    let key = 1_u32.to_be_bytes();
    writer.push(&key_value_rows([(&key[..], &key[..])].into_iter())).unwrap();
    assert!(matches!(writer.finish(), Err(Error::ReadOnly)));
    let mut transaction = reader.begin();
    let mut batch = WriteBatch::new();
    batch.drop_tree(TREE);
    transaction.write(batch).unwrap();
    assert!(matches!(transaction.commit(), Err(Error::ReadOnly)));
    assert_eq!(round(&reader), 1);
    write_round(&tree, 2);
    reader.refresh(&|_| ()).unwrap();
    assert_eq!(round(&reader), 2);
    drop((reader, read));
    drop((store, tree));
    assert_eq!(round(&open(&simulated).0), 2);
}

/// A snapshot reads its own pages, although the writer has replaced all of them several times.
#[test]
fn pinned_checkpoints_are_not_overwritten() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    write_round(&tree, 1);
    store.checkpoint().unwrap();
    let reader = open_reader(&simulated);
    let old = KeyValue::open(&reader, TREE).unwrap().snapshot().unwrap();
    let rows = |snapshot: &KeyValueSnapshot| {
        reader.drop_caches();
        round_at(snapshot)
    };
    for number in 2..20 {
        write_round(&tree, number);
        store.checkpoint().unwrap();
        if number % 2 == 0 {
            reader.refresh(&|_| ()).unwrap();
            assert_eq!(round(&reader), number);
        }
        assert_eq!(rows(&old), 1);
    }
    store.vacuum(|tree| tree == TREE, &|_, _| true).unwrap();
    assert_eq!(rows(&old), 1);
    let used = store.stats().data_bytes_used;
    drop(old);
    reader.refresh(&|_| ()).unwrap();
    write_round(&tree, 20);
    store.checkpoint().unwrap();
    write_round(&tree, 21);
    store.checkpoint().unwrap();
    let freed = store.stats().data_bytes_used;
    assert!(freed < used, "{freed} of {used} bytes in use after the snapshot has ended");
}

/// The process that opens the database again has no reference to the pages that a reader uses.
#[test]
fn pins_outlive_the_writer() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    write_round(&tree, 1);
    // The checkpoint with which the database is opened again shares the extents of this tree with the pinned one.
    write_round(&KeyValue::open(&store, OTHER).unwrap(), 1);
    store.checkpoint().unwrap();
    let reader = open_reader(&simulated);
    let old = [TREE, OTHER].map(|tree| KeyValue::open(&reader, tree).unwrap().snapshot().unwrap());
    write_round(&tree, 2);
    store.checkpoint().unwrap();
    write_round(&tree, 3);
    drop((tree, store));
    let (store, tree) = open(&simulated);
    let mut batch = WriteBatch::new();
    batch.drop_tree(OTHER);
    store.commit(batch).unwrap();
    for number in 4..16 {
        write_round(&tree, number);
        store.checkpoint().unwrap();
        reader.drop_caches();
        for old in &old {
            assert_eq!(round_at(old), 1);
        }
        reader.refresh(&|_| ()).unwrap();
        assert_eq!(round(&reader), number);
    }
    let used = store.stats().data_bytes_used;
    drop(old);
    for number in 16..18 {
        write_round(&tree, number);
        store.checkpoint().unwrap();
        reader.refresh(&|_| ()).unwrap();
    }
    let freed = store.stats().data_bytes_used;
    assert!(freed < used, "{freed} of {used} bytes in use after the reader has gone on");
}

#[test]
fn readers_replay_the_log_of_a_crashed_process_and_write_nothing() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    write_round(&tree, 1);
    store.checkpoint().unwrap();
    write_round(&tree, 2);
    write_round(&tree, 3);
    simulated.crash();
    drop((tree, store));
    let writes = simulated.writes();
    let reader = open_reader(&simulated);
    assert_eq!(round(&reader), 3);
    assert_eq!(simulated.writes(), writes);
    // The recovering process continues the same log.
    let (store, tree) = open(&simulated);
    reader.refresh(&|_| ()).unwrap();
    assert_eq!(round(&reader), 3);
    write_round(&tree, 4);
    reader.refresh(&|_| ()).unwrap();
    assert_eq!(round(&reader), 4);
    drop((tree, store));
    reader.refresh(&|_| ()).unwrap();
    assert_eq!(round(&reader), 4);
}

#[test]
fn missing_records_are_reported() {
    let simulated = simulated();
    let store = Store::open(simulated.device(), Path::new(DATABASE), quiet_options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    write_round(&tree, 1);
    store.checkpoint().unwrap();
    for number in 2..6 {
        write_round(&tree, number);
    }
    simulated.crash();
    drop((tree, store));
    let device = simulated.device();
    let segments = device.list(Path::new(DATABASE)).unwrap().into_iter().filter(|name| name.starts_with("log-"));
    let segment = Path::new(DATABASE).join(segments.min().unwrap());
    // The second group of the segment: the first one with records.
    simulated.flip_bit(&segment, 4096 + 200, 3).unwrap();
    let opened = Store::open_read_only(simulated.device(), Path::new(DATABASE), options());
    assert!(matches!(&opened, Err(Error::Corrupt { what: "log", .. })), "{:?}", opened.err());
    device.remove(&segment).unwrap();
    let opened = Store::open_read_only(simulated.device(), Path::new(DATABASE), options());
    assert!(matches!(&opened, Err(Error::Corrupt { what: "log", .. })), "{:?}", opened.err());
    let none = Store::open_read_only(simulated.device(), Path::new("/none"), options());
    assert!(matches!(none, Err(Error::DatabaseNotFound { .. })));
}

/// An error of a read during a refresh leaves the old state, and loses no commit for later refreshes.
#[test]
fn failed_refreshes_are_repeated() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    write_round(&tree, 1);
    let reader = open_reader(&simulated);
    let data = Path::new(DATABASE).join("data");
    for number in 2..6 {
        write_round(&tree, number);
        if number % 2 == 0 {
            store.checkpoint().unwrap();
        }
        // The superblock is read after the records of the log, five times if it seems damaged.
        simulated.fail_next_reads(&data, 0..1, 5).unwrap();
        assert!(matches!(reader.refresh(&|_| ()), Err(Error::Device(_))));
        assert_eq!(round(&reader), number - 1);
        reader.refresh(&|_| ()).unwrap();
        assert_eq!(round(&reader), number);
    }
}

#[test]
fn copies_that_are_read_are_not_updated() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    write_round(&tree, 1);
    let copy = Path::new("/copy");
    let backup = |mode| store.backup(copy, mode, &|_, _| true, &|| true);
    backup(BackupMode::Full).unwrap().expect("a complete backup");
    let reader = Store::open_read_only(simulated.device(), copy, options()).unwrap();
    write_round(&tree, 2);
    let refused = backup(BackupMode::Incremental);
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    assert_eq!(round(&reader), 1);
    drop(reader);
    backup(BackupMode::Incremental).unwrap().expect("a complete backup");
    let reader = Store::open_read_only(simulated.device(), copy, options()).unwrap();
    assert_eq!(round(&reader), 2);
}

/// A reader that opens the copy after the backup has looked for readers is found before it is overwritten.
#[test]
fn copies_that_are_read_meanwhile_are_not_updated() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    write_round(&tree, 1);
    let copy = Path::new("/copy");
    store.backup(copy, BackupMode::Full, &|_, _| true, &|| true).unwrap().expect("a complete backup");
    write_round(&tree, 2);
    store.vacuum(|_| true, &|_, _| true).unwrap();
    let reader = parking_lot::Mutex::new(None);
    let publish = || {
        *reader.lock() = Some(Store::open_read_only(simulated.device(), copy, options()).unwrap());
        true
    };
    let refused = store.backup(copy, BackupMode::Incremental, &|_, _| true, &publish);
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    let reader = reader.into_inner().unwrap();
    reader.refresh(&|_| ()).unwrap();
    assert_eq!(round(&reader), 1);
    drop(reader);
    store.backup(copy, BackupMode::Incremental, &|_, _| true, &|| true).unwrap().expect("a complete backup");
    assert_eq!(round(&Store::open_read_only(simulated.device(), copy, options()).unwrap()), 2);
}

/// A database whose process was killed while a reader used its checkpoint: the marks are those of another process.
#[test]
fn pins_outlive_a_killed_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let device: Arc<dyn Device> = keyaki_device::open_default().unwrap();
    let store = Store::open(device.clone(), &path, quiet_options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    write_round(&tree, 1);
    store.checkpoint().unwrap();
    let reader = Store::open_read_only(device.clone(), &path, options()).unwrap();
    let old = KeyValue::open(&reader, TREE).unwrap().snapshot().unwrap();
    write_round(&tree, 2);
    store.checkpoint().unwrap();
    write_round(&tree, 3);
    // What the process leaves behind is copied back over its files when it has ended.
    let saved = tempfile::tempdir().unwrap();
    let copy = |from: &Path, to: &Path| {
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if name != "data" && !name.starts_with("log-") {
                continue;
            }
            let bytes = std::fs::read(entry.path()).unwrap();
            // In place: the reader has the files open.
            let file =
                std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(to.join(entry.file_name()));
            let file = file.unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
        }
    };
    copy(&path, saved.path());
    drop((tree, store));
    for entry in std::fs::read_dir(&path).unwrap().map(Result::unwrap) {
        if entry.file_name().to_str().unwrap().starts_with("log-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    copy(saved.path(), &path);
    let store = Store::open(device, &path, options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    assert_eq!(round(&store), 3);
    for number in 4..10 {
        write_round(&tree, number);
        store.checkpoint().unwrap();
        reader.drop_caches();
        assert_eq!(round_at(&old), 1);
        reader.refresh(&|_| ()).unwrap();
        assert_eq!(round(&reader), number);
    }
}

/// On a full disk, the pages of a reader are not freed. Writers get errors, and go on once the reader has ended.
#[test]
fn readers_on_a_full_disk() {
    let simulated = simulated();
    let (store, tree) = open(&simulated);
    write_round(&tree, 1);
    store.checkpoint().unwrap();
    let reader = open_reader(&simulated);
    let old = KeyValue::open(&reader, TREE).unwrap().snapshot().unwrap();
    simulated.set_capacity(Some(simulated.used_bytes() + (1 << 20)));
    let (mut full, mut kept) = (0, Vec::new());
    for number in 2..200 {
        let mut batch = KeyValueBatch::default();
        (0..KEYS).for_each(|key| batch.insert(&tree, &key.to_be_bytes(), &value(number, key)));
        let committed = tree.commit(batch).and_then(|()| store.checkpoint());
        match committed {
            Ok(()) => {}
            Err(Error::DiskFull { .. }) => full += 1,
            Err(error) => panic!("{error}"),
        }
        reader.refresh(&|_| ()).unwrap();
        assert!(round(&reader) <= number);
        kept.push(KeyValue::open(&reader, TREE).unwrap().snapshot().unwrap());
        reader.drop_caches();
        assert_eq!(round_at(&old), 1);
    }
    assert!(full > 0, "the disk is never full");
    drop((old, kept, reader));
    // Commits alone find the space that the reader has kept.
    write_round(&tree, 1000);
    assert_eq!(round(&store), 1000);
}

/// Readers beside writers see prefixes of the commits, with all that were acknowledged before their refresh.
#[test]
fn readers_see_prefixes() {
    for seed in 0..4 {
        let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
        let (store, tree) = open(&simulated);
        let (acknowledged, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|number| {
                    let (simulated, acknowledged, stop) = (&simulated, &acknowledged, &stop);
                    scope.spawn(move || {
                        let mut random = Random::new(seed * 10 + number);
                        let (mut reader, mut seen) = (open_reader(simulated), 0);
                        let mut kept = Vec::new();
                        while !stop.load(Ordering::SeqCst) {
                            if random.below(20) == 0 {
                                kept.clear();
                                reader = open_reader(simulated);
                            }
                            // The mutex of the simulated device is unfair.
                            std::thread::sleep(Duration::from_millis(1));
                            let before = acknowledged.load(Ordering::SeqCst);
                            reader.refresh(&|_| ()).unwrap();
                            let Ok(tree) = KeyValue::open(&reader, TREE) else { continue };
                            let snapshot = tree.snapshot().unwrap();
                            let found = round_at(&snapshot);
                            assert!(found >= before.max(seen), "round {found}, expected {before} and {seen}");
                            seen = found;
                            if random.below(4) == 0 {
                                kept.push((snapshot, found));
                            }
                            if kept.len() > 3 {
                                reader.drop_caches();
                                let (snapshot, round) = kept.remove(random.below(kept.len() as u64) as usize);
                                let again = round_at(&snapshot);
                                assert_eq!(again, round);
                            }
                        }
                    })
                })
                .collect();
            let mut random = Random::new(seed);
            let (mut store, mut tree) = (store, tree);
            for number in 1..150 {
                if random.below(8) == 0 {
                    let mut writer = store.bulk_writer(TREE, &Schema::key_value());
                    let rows: Vec<(Vec<u8>, Vec<u8>)> =
                        (0..KEYS).map(|key| (key.to_be_bytes().to_vec(), value(number, key))).collect();
                    writer.push(&key_value_rows(rows.iter().map(|(key, value)| (&key[..], &value[..])))).unwrap();
                    store.install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
                } else {
                    write_round(&tree, number);
                }
                acknowledged.store(number, Ordering::SeqCst);
                match random.below(12) {
                    0 => store.checkpoint().unwrap(),
                    1 => drop(store.vacuum(|tree| tree == TREE, &|_, _| true).unwrap()),
                    2 => {
                        drop((tree, store));
                        (store, tree) = open(&simulated);
                    }
                    _ => {}
                }
            }
            stop.store(true, Ordering::SeqCst);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}

/// The files of the operating system, in place of the simulated ones.
#[test]
fn readers_on_the_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let device: Arc<dyn Device> = keyaki_device::open_default().unwrap();
    let store = Store::open(device.clone(), &path, options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    let reader = Store::open_read_only(device.clone(), &path, options()).unwrap();
    for number in 1..10 {
        write_round(&tree, number);
        if number % 3 == 0 {
            store.checkpoint().unwrap();
        }
        reader.refresh(&|_| ()).unwrap();
        assert_eq!(round(&reader), number);
    }
    let locked = Store::open(device.clone(), &path, options()).unwrap_err();
    let Error::Locked { holder, .. } = &locked else { panic!("{locked}") };
    if let Some(holder) = holder {
        assert!(locked.to_string().contains(&format!("is locked: process {} (", std::process::id())), "{holder}");
    }
    drop((tree, store));
    let reader = Store::open_read_only(device, &path, options()).unwrap();
    assert_eq!(round(&reader), 9);
}
