//! Backups are complete, consistent and verified copies, made beside writers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arrow_array::{ArrayRef, BinaryViewArray};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_device::{Buffer, Device, OpenMode};
use keyaki_primitives::Random;
use keyaki_store::key_value::KeyValue;
use keyaki_store::{BackupMode, Direction, Error, KeyCodec, Options, Schema, Store, TreeId, WriteBatch};

const TREE: TreeId = TreeId::new(2);
const DATABASE: &str = "/db";
const COPY: &str = "/copy";

fn options() -> Options {
    Options { buffer_bytes: 40_000, page_bytes: 4096, leaf_bytes: 32_768, fan_out: 4, ..Options::default() }
}

fn open(simulated: &Simulated, directory: &str) -> (Store, KeyValue) {
    let store = Store::open(simulated.device(), Path::new(directory), options()).unwrap();
    let tree = KeyValue::open(&store, TREE).unwrap();
    (store, tree)
}

fn simulated() -> Simulated {
    Simulated::new(SimulatedOptions { seed: 3, ..Default::default() })
}

/// 100 bytes that cannot be compressed.
fn value(key: u32) -> Vec<u8> {
    let mut random = Random::new(key.into());
    (0..100).map(|_| random.below(256) as u8).collect()
}

fn insert(tree: &KeyValue, keys: std::ops::Range<u32>) {
    keys.for_each(|key| tree.insert(&key.to_be_bytes(), &value(key)).unwrap());
}

/// Inserts the keys in a range in one commit, and claims that they are new.
fn insert_new(store: &Store, keys: std::ops::Range<u32>) {
    let (codec, mut batch) = (KeyCodec::new(&Schema::key_value()), WriteBatch::new());
    for key in keys {
        let mut encoded = Vec::new();
        let column: ArrayRef = Arc::new(BinaryViewArray::from_iter_values([key.to_be_bytes()]));
        codec.encode(&[column], 0, &mut encoded);
        batch.insert_new_raw(TREE, &encoded, &value(key));
    }
    store.commit(batch).unwrap();
}

/// The number of keys, which must be consecutive from 0.
fn keys(tree: &KeyValue) -> u32 {
    let rows = tree.range(.., Direction::Ascending).unwrap().map(Result::unwrap);
    let mut count = 0_u32;
    for row in rows {
        assert_eq!(row, (count.to_be_bytes().to_vec(), value(count)));
        count += 1;
    }
    count
}

#[test]
fn a_backup_has_the_commits_before_it_and_can_be_written() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    insert(&tree, 0..3000);
    let backup =
        store.backup(Path::new(COPY), BackupMode::Full, &|_, _| true, &|| true).unwrap().expect("a complete backup");
    assert!(backup.bytes > 100_000 && backup.sequence >= 3000, "{backup:?}");
    insert(&tree, 3000..4000);
    for round in 0..2 {
        let (copy, copied) = open(&simulated, COPY);
        assert_eq!(keys(&copied), 3000 + round * 500);
        assert!(copy.check(|_| true, &|_, _| true).unwrap().damage.is_empty());
        insert(&copied, 3000 + round * 500..3500 + round * 500);
    }
    simulated.crash();
    drop((store, tree));
    assert_eq!(keys(&open(&simulated, COPY).1), 4000);
    assert_eq!(keys(&open(&simulated, DATABASE).1), 4000);
}

#[test]
fn a_backup_beside_a_writer_has_a_prefix_of_its_commits() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    insert(&tree, 0..500);
    let (stop, next) = (AtomicBool::new(false), AtomicU32::new(500));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let key = next.load(Ordering::SeqCst);
                insert(&tree, key..key + 1);
                next.store(key + 1, Ordering::SeqCst);
            }
        });
        for number in 0..5 {
            let directory = format!("{COPY}{number}");
            let before = next.load(Ordering::SeqCst);
            store
                .backup(Path::new(&directory), BackupMode::Full, &|_, _| true, &|| true)
                .unwrap()
                .expect("a complete backup");
            let after = next.load(Ordering::SeqCst) + 1;
            let copied = keys(&open(&simulated, &directory).1);
            assert!((before..=after).contains(&copied), "{copied} of {before} to {after} keys");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The counts of rows are those of the copied commits, although others follow while the copy is made.
#[test]
fn a_backup_counts_its_own_rows() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    insert_new(&store, 0..1000);
    drop((store, tree));
    // The checkpoint shares its counts with the trees after opening.
    let (store, tree) = open(&simulated, DATABASE);
    let is_first = AtomicBool::new(true);
    let beside = |_, _| {
        if is_first.swap(false, Ordering::Relaxed) {
            insert_new(&store, 1000..1500);
        }
        true
    };
    store.backup(Path::new(COPY), BackupMode::Full, &beside, &|| true).unwrap().expect("a complete backup");
    let (copy, copied) = open(&simulated, COPY);
    let live = copy.snapshot().tree(TREE).unwrap().live_rows();
    assert_eq!(live, Some(1000));
    assert_eq!((keys(&copied), keys(&tree)), (1000, 1500));
}

#[test]
fn damage_ends_a_backup() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    insert(&tree, 0..1000);
    store.checkpoint().unwrap();
    let path = Path::new("/db/data");
    let file = simulated.open(path, OpenMode::Read).unwrap();
    let mut bytes = Buffer::zeroed(file.len().unwrap() as usize / 4096 * 4096);
    file.read_at(0, &mut bytes).unwrap();
    let mut refused = 0;
    // Not all of these blocks are in use.
    for at in (65_536..bytes.len()).step_by(4096) {
        simulated.flip_bit(path, at as u64 + 100, 3).unwrap();
        match store.backup(Path::new(COPY), BackupMode::Full, &|_, _| true, &|| true) {
            Err(Error::Corrupt { offset: Some(_), .. }) => refused += 1,
            Ok(Some(_)) => simulated.remove(Path::new("/copy/data")).unwrap(),
            other => panic!("{other:?}"),
        }
        assert!(!simulated.exists(Path::new("/copy/data")).unwrap());
        assert!(!simulated.exists(Path::new("/copy/data.new")).unwrap());
        simulated.flip_bit(path, at as u64 + 100, 3).unwrap();
    }
    assert!(refused > 20, "{refused} blocks");
    assert_eq!(keys(&tree), 1000);
}

#[test]
fn a_backup_can_be_ended_and_needs_an_empty_directory() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    insert(&tree, 0..1000);
    assert_eq!(store.backup(Path::new(COPY), BackupMode::Full, &|_, _| false, &|| true).unwrap(), None);
    assert_eq!(store.backup(Path::new(COPY), BackupMode::Full, &|_, _| true, &|| false).unwrap(), None);
    assert_eq!(simulated.list(Path::new(COPY)).unwrap(), Vec::<String>::new());
    // Two copies to one directory, and a directory with a log.
    let inner = |_: u64, _: u64| {
        let second = store.backup(Path::new(COPY), BackupMode::Full, &|_, _| true, &|| true);
        assert!(matches!(second, Err(Error::Locked { .. })), "{second:?}");
        false
    };
    assert_eq!(store.backup(Path::new(COPY), BackupMode::Full, &inner, &|| true).unwrap(), None);
    simulated.create_dir(Path::new("/logs")).unwrap();
    simulated.open(Path::new("/logs/log-0000000000000000"), OpenMode::CreateNew).unwrap();
    let error = store.backup(Path::new("/logs"), BackupMode::Full, &|_, _| true, &|| true).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    for taken in [DATABASE, COPY] {
        if taken == COPY {
            store.backup(Path::new(COPY), BackupMode::Full, &|_, _| true, &|| true).unwrap();
        }
        let error = store.backup(Path::new(taken), BackupMode::Full, &|_, _| true, &|| true).unwrap_err();
        assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    }
    assert_eq!(keys(&tree), 1000);
}

#[test]
fn a_backup_does_not_lie_within_a_database() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    let (_other, _) = open(&simulated, "/other");
    insert(&tree, 0..100);
    simulated.create_dir(Path::new("/db/below")).unwrap();
    for inside in ["/db/copy", "/db/below/copy", "/other/copy"] {
        let error = store.backup(Path::new(inside), BackupMode::Full, &|_, _| true, &|| true).unwrap_err();
        assert!(matches!(error, Error::NotADatabase { .. }) && error.to_string().contains("lies within"), "{error}");
        assert!(!simulated.exists(Path::new(inside)).unwrap());
    }
    assert!(store.backup(Path::new("/database"), BackupMode::Full, &|_, _| true, &|| true).unwrap().is_some());
}

#[test]
fn a_full_disk_ends_a_backup() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    insert(&tree, 0..2000);
    store.checkpoint().unwrap();
    simulated.set_capacity(Some(simulated.used_bytes() + 100_000));
    let error = store.backup(Path::new(COPY), BackupMode::Full, &|_, _| true, &|| true).unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. } | Error::Device(_)), "{error}");
    simulated.set_capacity(None);
    insert(&tree, 2000..2100);
    assert!(store.backup(Path::new(COPY), BackupMode::Full, &|_, _| true, &|| true).unwrap().is_some());
    assert_eq!(keys(&open(&simulated, COPY).1), 2100);
}

/// Updates the copy.
fn update(store: &Store) -> keyaki_store::Result<Option<keyaki_store::Backup>> {
    store.backup(Path::new(COPY), BackupMode::Incremental, &|_, _| true, &|| true)
}

#[test]
fn an_incremental_backup_writes_the_changed_extents() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    insert(&tree, 0..3000);
    let first = update(&store).unwrap().expect("a complete backup");
    assert_eq!(first.kept_bytes, 0, "{first:?}");
    let again = update(&store).unwrap().expect("a complete backup");
    assert_eq!((again.bytes, again.kept_bytes), (0, first.bytes), "nothing has changed");
    // Keys at the end leave most leaves as they are.
    let mut end = 3000;
    for round in 0..8 {
        insert(&tree, end..end + 200);
        end += 200;
        let next = update(&store).unwrap().expect("a complete backup");
        assert!(next.bytes > 0 && next.kept_bytes > first.bytes / 2, "{next:?} in round {round}");
        // Vacuum moves extents to places that the copy uses for others.
        if round == 3 {
            (0..1500_u32).for_each(|key| tree.insert(&key.to_be_bytes(), b"short").unwrap());
            (0..1500).for_each(|key| tree.insert(&key_bytes(key), &value(key)).unwrap());
            store.vacuum(|tree| tree == TREE, &|_, _| true).unwrap();
        }
        let copy = format!("/opened{round}");
        copy_files(&simulated, Path::new(COPY), Path::new(&copy));
        let (opened, rows) = open(&simulated, &copy);
        assert!(opened.check(|_| true, &|_, _| true).unwrap().damage.is_empty());
        assert_eq!(keys(&rows), end);
    }
    assert_eq!(keys(&tree), end);
}

fn key_bytes(key: u32) -> [u8; 4] {
    key.to_be_bytes()
}

/// Copies the data file of a closed database, so that the original has no log.
fn copy_files(simulated: &Simulated, from: &Path, to: &Path) {
    simulated.create_dir(to).unwrap();
    let (from, to) = (from.join("data"), to.join("data"));
    let (from, to) =
        (simulated.open(&from, OpenMode::Read).unwrap(), simulated.open(&to, OpenMode::CreateNew).unwrap());
    let mut bytes = Buffer::zeroed(from.len().unwrap() as usize);
    from.read_at(0, &mut bytes).unwrap();
    to.write_at(0, &bytes).unwrap();
    to.sync_data().unwrap();
}

fn remove_files(simulated: &Simulated, dir: &Path) {
    simulated.list(dir).unwrap().iter().for_each(|name| simulated.remove(&dir.join(name)).unwrap());
}

/// The power fails after each operation of an update: the copy has the state before or after it, or no data file.
#[test]
fn interrupted_incremental_backups_leave_no_wrong_copy() {
    let (mut before, mut after, mut none) = (0, 0, 0);
    for operation in 1.. {
        let simulated = simulated();
        let (store, tree) = open(&simulated, DATABASE);
        insert(&tree, 0..600);
        update(&store).unwrap().expect("a complete backup");
        (0..300).for_each(|key| tree.delete(&key_bytes(key)).unwrap());
        store.vacuum(|tree| tree == TREE, &|_, _| true).unwrap();
        insert(&tree, 0..300);
        insert(&tree, 600..2000);
        store.checkpoint().unwrap();
        simulated.crash_after_operations(operation);
        let updated = update(&store);
        let is_complete = updated.as_ref().is_ok_and(Option::is_some);
        drop((store, tree));
        simulated.crash();
        if !simulated.exists(&Path::new(COPY).join("data")).unwrap() {
            none += 1;
        } else {
            let (copy, rows) = open(&simulated, COPY);
            assert!(copy.check(|_| true, &|_, _| true).unwrap().damage.is_empty());
            match keys(&rows) {
                600 => before += 1,
                2000 => after += 1,
                other => panic!("{other} keys after operation {operation}"),
            }
        }
        if is_complete {
            break;
        }
    }
    assert!(before > 3 && after > 0 && none > 3, "{before} before, {after} after, {none} without a copy");
}

#[test]
fn an_incremental_backup_updates_only_copies_that_were_not_opened() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    insert(&tree, 0..500);
    update(&store).unwrap().expect("a complete backup");
    // Ended while nothing is replaced: the copy remains.
    insert(&tree, 500..600);
    let ended = store.backup(Path::new(COPY), BackupMode::Incremental, &|_, _| false, &|| true).unwrap();
    assert_eq!(ended, None);
    let (copy, rows) = open(&simulated, COPY);
    assert_eq!(keys(&rows), 500);
    let error = update(&store).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    insert(&rows, 500..501);
    drop((copy, rows));
    let error = update(&store).unwrap_err().to_string();
    assert!(error.contains("that was changed"), "{error}");
    // A damaged page of the copy that is not needed any more, and one whose index page differs.
    remove_files(&simulated, Path::new(COPY));
    let all = update(&store).unwrap().expect("a complete backup");
    let path = Path::new("/copy/data");
    for at in (65_536..simulated.open(path, OpenMode::Read).unwrap().len().unwrap()).step_by(4096) {
        simulated.flip_bit(path, at + 100, 3).unwrap();
    }
    match update(&store) {
        // All index pages differ, unless the node table is damaged, too.
        Ok(written) => assert_eq!(written.expect("a complete backup").bytes, all.bytes),
        Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
    }
    assert_eq!(keys(&tree), 600);
}

#[test]
fn an_incremental_backup_keeps_a_copy_that_it_must_not_replace() {
    let simulated = simulated();
    let (other, rows) = open(&simulated, "/other");
    insert(&rows, 0..2000);
    update(&other).unwrap().expect("a complete backup");
    let (store, tree) = open(&simulated, DATABASE);
    insert(&tree, 0..2500);
    let error = update(&store).unwrap_err().to_string();
    assert!(error.contains("a copy of another database"), "{error}");
    // Damage of the database itself, whose pages the copy has.
    other.checkpoint().unwrap();
    let path = Path::new("/other/data");
    let len = simulated.open(path, OpenMode::Read).unwrap().len().unwrap();
    let mut refused = 0;
    for at in (65_536..len).step_by(4096) {
        simulated.flip_bit(path, at + 100, 3).unwrap();
        match update(&other) {
            Err(Error::Corrupt { .. }) => refused += 1,
            Ok(Some(updated)) => assert_eq!(updated.bytes, 0, "an intact page was written again"),
            found => panic!("{found:?}"),
        }
        simulated.flip_bit(path, at + 100, 3).unwrap();
    }
    assert!(refused > 3, "{refused} index pages");
    drop((other, rows));
    // An older state of the same database.
    let (copy, copied) = open(&simulated, COPY);
    assert_eq!(keys(&copied), 2000);
    drop((copy, copied));
}

/// A full disk, a cancellation and a read error before anything is replaced leave the earlier copy as it was.
#[test]
fn failed_incremental_backups_leave_the_earlier_copy() {
    let simulated = simulated();
    let (store, tree) = open(&simulated, DATABASE);
    insert(&tree, 0..1000);
    update(&store).unwrap().expect("a complete backup");
    let data = Path::new("/copy/data");
    let len = || simulated.open(data, OpenMode::Read).unwrap().len().unwrap();
    let before = len();
    (0..1000).for_each(|key| tree.insert(&key_bytes(key), &value(key + 1_000_000)).unwrap());
    store.vacuum(|tree| tree == TREE, &|_, _| true).unwrap();
    (0..1000).for_each(|key| tree.insert(&key_bytes(key), &value(key)).unwrap());
    insert(&tree, 1000..4000);
    store.checkpoint().unwrap();
    for calls in 0..20 {
        let left = AtomicU32::new(calls);
        let progress =
            |_, _| left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        let ended = store.backup(Path::new(COPY), BackupMode::Incremental, &progress, &|| true).unwrap();
        assert_eq!((ended, len()), (None, before), "after {calls} calls");
    }
    let ended = store.backup(Path::new(COPY), BackupMode::Incremental, &|_, _| true, &|| false).unwrap();
    assert_eq!((ended, len()), (None, before));
    simulated.set_capacity(Some(simulated.used_bytes() + 20_000));
    let error = update(&store).unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. } | Error::Device(_)), "{error}");
    assert_eq!(len(), before);
    simulated.set_capacity(None);
    copy_files(&simulated, Path::new(COPY), Path::new("/unchanged"));
    assert_eq!(keys(&open(&simulated, "/unchanged").1), 1000);
    update(&store).unwrap().expect("a complete backup");
    assert_eq!(keys(&open(&simulated, COPY).1), 4000);
}
