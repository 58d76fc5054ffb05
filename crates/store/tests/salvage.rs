//! Salvage from a database in which each block is damaged once, alone: rows outside of the ranges that it reports are
//! exact.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BinaryViewArray, RecordBatch};
use common::{Call, Hooked};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_device::{BLOCK, Buffer, Device, OpenMode};
use keyaki_primitives::Random;
use keyaki_store::key_value::KeyValue;
use keyaki_store::{
    DamagedKeys, Durability, Error, KeyCodec, Options, Salvage, Schema, Store, TreeId, UpsertFunctions, WriteBatch,
};
use parking_lot::Mutex;

/// Rows are inserted, replaced and deleted.
const PLAIN: TreeId = TreeId::new(2);
/// Rows are also changed by upserts.
const UPSERTED: TreeId = TreeId::new(3);
const APPEND: u32 = 1;
const KEYS: u64 = 1200;
/// Upper bound on the number of rows of a page.
const PAGE_ROWS: usize = 200;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    let append = |old: Option<&[u8]>, operand: &[u8]| Ok(Some([old.unwrap_or_default(), operand].concat()));
    Options {
        buffer_bytes: 40_000,
        cache_bytes: 50_000,
        page_bytes: 4096,
        leaf_bytes: 32_768,
        fan_out: 4,
        node_buffer_bytes: 10_000,
        upserts: Arc::new(UpsertFunctions::default().with(APPEND, append)),
        ..Options::default()
    }
}

/// A database with all values that its rows have had.
struct Written {
    simulated: Simulated,
    rows: BTreeMap<TreeId, Rows>,
    history: BTreeMap<(TreeId, Vec<u8>), Vec<Vec<u8>>>,
}

impl Written {
    fn set(&mut self, tree: TreeId, key: &[u8], value: Option<Vec<u8>>) {
        let rows = self.rows.entry(tree).or_default();
        match value {
            Some(value) => {
                rows.insert(key.to_vec(), value.clone());
                self.history.entry((tree, key.to_vec())).or_default().push(value);
            }
            None => drop(rows.remove(key)),
        }
    }

    /// A closed database with messages in several levels.
    fn new() -> Written {
        let simulated = Simulated::new(SimulatedOptions { seed: 1, ..Default::default() });
        let mut written = Written { simulated, rows: BTreeMap::new(), history: BTreeMap::new() };
        let store = Store::open(written.simulated.device(), Path::new("/db"), options()).unwrap();
        let mut random = Random::new(5);
        for id in [PLAIN, UPSERTED] {
            let tree = KeyValue::open(&store, id).unwrap();
            for step in 0..3 * KEYS {
                let key = if step < KEYS { step * 599 % KEYS } else { random.below(KEYS) };
                let key = key.to_be_bytes();
                let value: Vec<u8> = (0..90).map(|_| random.below(256) as u8).collect();
                match random.below(10) {
                    0 if step >= KEYS => {
                        tree.delete(&key).unwrap();
                        written.set(id, &key, None);
                    }
                    1..=4 if id == UPSERTED => {
                        tree.upsert(&key, APPEND, &value[..8]).unwrap();
                        let old = written.rows.get(&id).and_then(|rows| rows.get(&key[..])).cloned();
                        written.set(id, &key, Some([old.unwrap_or_default(), value[..8].to_vec()].concat()));
                    }
                    _ => {
                        tree.insert(&key, &value).unwrap();
                        written.set(id, &key, Some(value));
                    }
                }
            }
        }
        store.checkpoint().unwrap();
        drop(store);
        written
    }

    fn contents(&self, name: &str) -> Buffer {
        contents(&self.simulated, name)
    }

    /// Damages a block, salvages, and repairs the block.
    fn with_damage<T>(
        &self,
        name: &str,
        offset: u64,
        is_readable: bool,
        work: impl FnOnce(Result<Salvage, Error>) -> T,
    ) -> T {
        let path = Path::new("/db").join(name);
        match is_readable {
            true => self.simulated.flip_bit(&path, offset + 77, 3).unwrap(),
            false => self.simulated.fail_reads(&path, offset..offset + BLOCK as u64).unwrap(),
        }
        let result = work(salvage(&self.simulated));
        match is_readable {
            true => self.simulated.flip_bit(&path, offset + 77, 3).unwrap(),
            false => self.simulated.clear_faults(),
        }
        result
    }

    /// Puts earlier contents of the data file at the place of each extent, one after another, and checks the rows. Returns
    /// the number of trees whose rows may be outdated.
    fn with_lost_writes(&self, before: &Buffer) -> usize {
        let after = self.contents("data");
        let is_page = |at: usize, kind: fn(u8) -> bool| after[at..].starts_with(b"KYPG") && kind(after[at + 24]);
        let file = self.simulated.open(Path::new("/db/data"), OpenMode::ReadWrite).unwrap();
        let put = |range: std::ops::Range<usize>, bytes: &[u8]| {
            let mut buffer = Buffer::zeroed(range.len());
            buffer.copy_from_slice(&bytes[range.clone()]);
            file.write_at(range.start as u64, &buffer).unwrap();
        };
        let mut noticed = 0;
        for index in (64 << 10..after.len()).step_by(BLOCK).filter(|&at| is_page(at, |kind| kind == 2)) {
            let blocks = (1..=index / BLOCK).take_while(|blocks| is_page(index - blocks * BLOCK, |kind| kind < 2));
            let len = u32::from_le_bytes(after[index + 20..index + 24].try_into().unwrap()) as usize;
            let extent = index - blocks.count() * BLOCK..index + len;
            if extent.end > before.len() || before[extent.clone()] == after[extent.clone()] {
                continue;
            }
            put(extent.clone(), before);
            let salvage = salvage(&self.simulated).unwrap();
            for tree in [PLAIN, UPSERTED] {
                let found = found(&salvage, tree);
                self.compare(tree, &found);
                noticed += usize::from(!found.outdated.is_empty());
            }
            drop(salvage);
            put(extent, &after);
        }
        noticed
    }

    /// Checks the rows of a tree. Returns the numbers of lost rows, and of rows that have another value or were
    /// deleted.
    fn compare(&self, tree: TreeId, found: &Found) -> (usize, usize) {
        let is_in = |ranges: &[DamagedKeys], key: &[u8]| {
            let key = encoded(key);
            ranges.iter().any(|keys| keys.low <= key && (key < keys.high || keys.includes_high && key == keys.high))
        };
        let (mut lost, mut other) = (0, 0);
        let expected = &self.rows[&tree];
        for (key, value) in expected {
            match found.rows.get(key) {
                Some(same) if same == value => {}
                Some(_) => {
                    assert!(is_in(&found.outdated, key), "{tree}: a wrong row {key:?}");
                    other += 1;
                }
                None => {
                    assert!(is_in(&found.lost, key) || is_in(&found.outdated, key), "{tree}: no row {key:?}");
                    lost += 1;
                }
            }
        }
        for (key, value) in &found.rows {
            if !expected.contains_key(key) {
                assert!(is_in(&found.outdated, key), "{tree}: a deleted row {key:?}");
                other += 1;
            }
            if tree == PLAIN {
                let history = &self.history[&(tree, key.clone())];
                assert!(history.contains(value), "{tree}: {key:?} has never had this value");
            }
        }
        (lost, other)
    }
}

/// The salvaged rows of a tree, and the reported ranges.
struct Found {
    rows: Rows,
    lost: Vec<DamagedKeys>,
    outdated: Vec<DamagedKeys>,
    damage: usize,
}

fn contents(simulated: &Simulated, name: &str) -> Buffer {
    let file = simulated.open(&Path::new("/db").join(name), OpenMode::Read).unwrap();
    let mut bytes = Buffer::zeroed(file.len().unwrap() as usize / BLOCK * BLOCK);
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn salvage(simulated: &Simulated) -> Result<Salvage, Error> {
    Salvage::open(&simulated.device(), Path::new("/db"), &options())
}

fn encoded(key: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    let column: ArrayRef = Arc::new(BinaryViewArray::from_iter_values([key]));
    KeyCodec::new(&Schema::key_value()).encode(&[column], 0, &mut encoded);
    encoded
}

fn found(salvage: &Salvage, tree: TreeId) -> Found {
    let surveyed = salvage.survey(tree, &|_, _| true).unwrap().unwrap();
    let (mut rows, mut reader) = (Rows::new(), surveyed.rows());
    while let Some(batch) = reader.next_batch().unwrap() {
        let [keys, values] = [0, 1].map(|column| batch.column(column).as_binary_view().clone());
        for row in 0..batch.num_rows() {
            let key = keys.value(row).to_vec();
            assert!(rows.last_key_value().is_none_or(|(last, _)| *last < key), "rows are in key order");
            rows.insert(key, values.value(row).to_vec());
        }
    }
    let (lost, outdated) = (surveyed.lost().to_vec(), surveyed.outdated().to_vec());
    Found { rows, lost, outdated, damage: surveyed.damage().len() }
}

#[test]
fn an_intact_database_loses_nothing() {
    let written = Written::new();
    let salvage = salvage(&written.simulated).unwrap();
    let state = salvage.state();
    assert!(state.damaged.is_empty() && state.log_problem.is_none() && state.is_locked, "{state:?}");
    assert_eq!(state.checkpoint.map(|(_, sequence)| sequence), Some(state.sequence));
    assert_eq!(salvage.trees().map(|(tree, _)| tree).collect::<Vec<_>>(), [PLAIN, UPSERTED]);
    for tree in [PLAIN, UPSERTED] {
        let found = found(&salvage, tree);
        assert!(found.lost.is_empty() && found.outdated.is_empty() && found.damage == 0);
        assert!(found.rows == written.rows[&tree]);
    }
}

#[test]
fn each_block_of_the_data_file_is_damaged_once() {
    let written = Written::new();
    let bytes = written.contents("data");
    // Blocks without contents are free.
    let used = (0..bytes.len()).step_by(BLOCK).filter(|&at| bytes[at..at + BLOCK].iter().any(|&byte| byte != 0));
    let used: Vec<usize> = used.collect();
    let node_table = node_table(&bytes);
    let is_readable = |at: usize| (at / BLOCK).is_multiple_of(2);
    let (mut failed, mut lost_in_all, mut other_in_all, mut indexes) = (0, 0, 0, 0);
    for &at in &used {
        let is_index = bytes[at..].starts_with(b"KYPG") && bytes[at + 24] == 2;
        written.with_damage("data", at as u64, is_readable(at), |salvage| {
            let salvage = match salvage {
                Ok(salvage) => salvage,
                Err(error) => {
                    assert!(node_table.contains(&(at as u64)), "block {at}: {error}");
                    failed += 1;
                    return;
                }
            };
            let state = salvage.state();
            assert_eq!(state.damaged.len(), usize::from(at == 0 || at == 32 << 10), "block {at}: {state:?}");
            assert!(state.log_problem.is_none());
            let (mut lost, mut other, mut damage) = (0, 0, 0);
            for tree in [PLAIN, UPSERTED] {
                let found = found(&salvage, tree);
                let (of_tree, others) = written.compare(tree, &found);
                (lost, other, damage) = (lost + of_tree, other + others, damage + found.damage);
                if is_index {
                    assert!(found.lost.is_empty(), "block {at}: the pages have all rows");
                    // Without its header, the write of the extent may have been lost.
                    assert!(found.outdated.is_empty() || !is_readable(at), "block {at}");
                }
            }
            assert!(damage <= 1 && lost <= PAGE_ROWS && other <= PAGE_ROWS, "block {at}: {lost} rows lost");
            assert!(!is_index || lost + other == 0, "block {at}");
            indexes += usize::from(is_index && damage == 1);
            (lost_in_all, other_in_all) = (lost_in_all + lost, other_in_all + other);
        });
    }
    assert!(used.len() > 100 && failed > 0 && indexes > 10, "{} blocks, {failed} failed, {indexes}", used.len());
    assert!(lost_in_all > 300 && other_in_all > 50, "{lost_in_all} rows lost, {other_in_all} outdated");
}

/// The offsets of the node table's blocks, according to the superblock.
fn node_table(bytes: &[u8]) -> std::ops::Range<u64> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    word(48)..word(48) + word(56)
}

#[test]
fn an_index_page_and_a_page_of_its_extent_are_damaged() {
    let written = Written::new();
    let bytes = written.contents("data");
    let mut checked = 0;
    for index in (0..bytes.len()).step_by(BLOCK) {
        if !bytes[index..].starts_with(b"KYPG") || bytes[index + 24] != 2 {
            continue;
        }
        let page = index - 3 * BLOCK;
        if !bytes[page..].starts_with(b"KYPG") || bytes[page + 24] == 2 {
            continue;
        }
        written.simulated.flip_bit(Path::new("/db/data"), page as u64 + 99, 1).unwrap();
        written.with_damage("data", index as u64, true, |salvage| {
            let salvage = salvage.unwrap();
            for tree in [PLAIN, UPSERTED] {
                let found = found(&salvage, tree);
                let (lost, other) = written.compare(tree, &found);
                assert!(lost <= PAGE_ROWS && other <= PAGE_ROWS, "{index}: {lost} rows lost, {other} outdated");
                checked += usize::from(!found.lost.is_empty() || !found.outdated.is_empty());
            }
        });
        written.simulated.flip_bit(Path::new("/db/data"), page as u64 + 99, 1).unwrap();
    }
    assert!(checked > 10, "{checked} extents");
}

/// The write of an extent is lost: its place has pages of an older extent of the tree, whose rows are not taken for new
/// ones.
#[test]
fn lost_writes_of_extents_are_noticed() {
    let mut written = Written::new();
    let mut noticed = 0;
    // Where extents lie depends on the order in which flushes end.
    for round in 0..20 {
        let before = written.contents("data");
        {
            let store = Store::open(written.simulated.device(), Path::new("/db"), options()).unwrap();
            for id in [PLAIN, UPSERTED] {
                let tree = KeyValue::open(&store, id).unwrap();
                for step in 0..KEYS {
                    let (key, value) = ((step * 599 % KEYS).to_be_bytes(), [[round; 8], step.to_be_bytes()].concat());
                    tree.insert(&key, &value.repeat(6)).unwrap();
                    written.set(id, &key, Some(value.repeat(6)));
                }
            }
            store.checkpoint().unwrap();
        }
        noticed += written.with_lost_writes(&before);
        if noticed > 5 {
            return;
        }
    }
    panic!("{noticed} extents");
}

#[test]
fn without_superblocks_there_is_nothing_to_salvage() {
    let written = Written::new();
    for slot in [0, 32 << 10] {
        written.simulated.flip_bit(Path::new("/db/data"), slot + 20, 0).unwrap();
    }
    let error = salvage(&written.simulated).unwrap_err();
    assert!(matches!(error, Error::Corrupt { what: "superblock", .. }), "{error}");
    written.simulated.remove(Path::new("/db/data")).unwrap();
    let error = salvage(&written.simulated).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    let missing = Salvage::open(&written.simulated.device(), Path::new("/none"), &options());
    assert!(matches!(missing, Err(Error::DatabaseNotFound { .. })));
}

#[test]
fn the_end_of_the_data_file_is_missing() {
    let written = Written::new();
    let bytes = written.contents("data");
    let node_table = node_table(&bytes);
    let file = written.simulated.open(Path::new("/db/data"), OpenMode::ReadWrite).unwrap();
    file.truncate(node_table.end.next_multiple_of(BLOCK as u64)).unwrap();
    let salvage = salvage(&written.simulated).unwrap();
    for tree in [PLAIN, UPSERTED] {
        written.compare(tree, &found(&salvage, tree));
    }
}

/// A database that has crashed: commits since the last checkpoint, if there was one, are in the log only. Returns the
/// rows after each commit.
fn crashed(has_checkpoint: bool) -> (Simulated, BTreeMap<u64, Rows>) {
    let simulated = Simulated::new(SimulatedOptions { seed: 3, ..Default::default() });
    let options = Options { buffer_bytes: 64 << 20, durability: Durability::Full, ..options() };
    let store = Store::open(simulated.device(), Path::new("/db"), options).unwrap();
    let tree = KeyValue::open(&store, PLAIN).unwrap();
    let (mut rows, mut states) = (Rows::new(), BTreeMap::new());
    let mut random = Random::new(9);
    for step in 0..60_u64 {
        if step == 20 && has_checkpoint {
            store.checkpoint().unwrap();
        }
        let key = random.below(30).to_be_bytes();
        let value: Vec<u8> = (0..300).map(|_| random.below(256) as u8).collect();
        tree.insert(&key, &value).unwrap();
        rows.insert(key.to_vec(), value);
        states.insert(store.snapshot().sequence(), rows.clone());
    }
    simulated.crash();
    drop((tree, store));
    (simulated, states)
}

/// The names of the segments of the log.
fn segments(simulated: &Simulated) -> Vec<String> {
    let mut names = simulated.list(Path::new("/db")).unwrap();
    names.retain(|name| name.starts_with("log-"));
    names
}

#[test]
fn the_intact_prefix_of_a_damaged_log_is_applied() {
    for has_checkpoint in [true, false] {
        let (simulated, states) = crashed(has_checkpoint);
        let newest = *states.last_key_value().unwrap().0;
        let mut shortened = 0;
        for name in segments(&simulated) {
            let path = Path::new("/db").join(&name);
            let bytes = contents(&simulated, &name);
            for at in (0..bytes.len()).step_by(BLOCK) {
                if bytes[at..at + BLOCK].iter().all(|&byte| byte == 0) {
                    continue;
                }
                let is_readable = !(at / BLOCK).is_multiple_of(3);
                match is_readable {
                    true => simulated.flip_bit(&path, at as u64 + 40, 3).unwrap(),
                    false => simulated.fail_reads(&path, at as u64..at as u64 + 1).unwrap(),
                }
                let salvage = salvage(&simulated).unwrap();
                let state = salvage.state();
                let rows = match salvage.trees().next() {
                    Some((tree, _)) => found(&salvage, tree).rows,
                    None => Rows::new(),
                };
                let expected = states.get(&state.sequence).cloned().unwrap_or_default();
                assert!(rows == expected, "{name} {at}: the state of commit {}", state.sequence);
                // Without a later group, a damaged one looks as if it was never acknowledged.
                match &state.log_problem {
                    Some(error) => {
                        assert!(matches!(error, Error::Corrupt { what: "log", .. } | Error::Device(_)), "{error}");
                        assert!(state.sequence <= newest && state.newest_known >= state.sequence, "{state:?}");
                        shortened += usize::from(state.sequence < newest);
                    }
                    None => assert!(newest - state.sequence <= 1, "{state:?}"),
                }
                match is_readable {
                    true => simulated.flip_bit(&path, at as u64 + 40, 3).unwrap(),
                    false => simulated.clear_faults(),
                }
            }
        }
        assert!(shortened > 30, "{shortened} blocks");
        let all = salvage(&simulated).unwrap();
        assert!(all.state().log_problem.is_none() && all.state().sequence == newest);
        assert!(found(&all, PLAIN).rows == states[&newest]);
    }
}

#[test]
fn a_missing_segment_ends_the_log() {
    let (simulated, states) = crashed(true);
    for name in segments(&simulated) {
        simulated.remove(&Path::new("/db").join(name)).unwrap();
    }
    let salvage = salvage(&simulated).unwrap();
    let state = salvage.state();
    assert!(state.log_problem.as_ref().unwrap().to_string().contains("the segment is missing"), "{state:?}");
    assert_eq!(state.checkpoint.map(|(_, sequence)| sequence), Some(state.sequence));
    assert!(found(&salvage, PLAIN).rows == states[&state.sequence]);
}

#[test]
fn a_log_from_the_beginning_suffices() {
    let (simulated, states) = crashed(false);
    let newest = states.last_key_value().unwrap();
    let node_table = node_table(&contents(&simulated, "data")).start;
    simulated.flip_bit(Path::new("/db/data"), node_table, 0).unwrap();
    for is_missing in [false, true] {
        if is_missing {
            simulated.remove(Path::new("/db/data")).unwrap();
        }
        let salvage = salvage(&simulated).unwrap();
        assert!(salvage.state().checkpoint.is_none() && salvage.state().damaged.len() == 1);
        assert_eq!(salvage.state().sequence, *newest.0);
        assert!(found(&salvage, PLAIN).rows == *newest.1);
    }
}

/// The log has no rows of a bulk load. If the checkpoint that has them is damaged, and the log before it is still there, the
/// loss is reported.
#[test]
fn loads_without_their_checkpoint_are_reported() {
    let simulated = Simulated::new(SimulatedOptions { seed: 4, ..Default::default() });
    let first = "log-0000000000000000";
    let saved: Arc<Mutex<Option<Buffer>>> = Arc::default();
    let device = Hooked::device(simulated.device(), {
        let (simulated, saved) = (simulated.clone(), saved.clone());
        move |call| {
            // The segment is complete before it is recycled.
            if !matches!(call, Call::Unlock) && simulated.exists(&Path::new("/db").join(first)).unwrap() {
                let (bytes, mut saved) = (contents(&simulated, first), saved.lock());
                let used = |bytes: &Buffer| bytes.iter().filter(|byte| **byte != 0).count();
                if saved.as_ref().is_none_or(|saved| used(saved) < used(&bytes)) {
                    *saved = Some(bytes);
                }
            }
        }
    });
    let options = Options { buffer_bytes: 64 << 20, ..options() };
    let store = Store::open(device, Path::new("/db"), options).unwrap();
    let tree = KeyValue::open(&store, PLAIN).unwrap();
    (0..10_u64).for_each(|key| tree.insert(&key.to_be_bytes(), b"inserted").unwrap());
    let mut writer = store.bulk_writer(PLAIN, &Schema::key_value());
    let column: ArrayRef = Arc::new(BinaryViewArray::from_iter_values((20..30_u64).map(u64::to_be_bytes)));
    let columns = vec![column.clone(), column];
    writer.push(&RecordBatch::try_new(Schema::key_value().arrow().clone(), columns).unwrap()).unwrap();
    store.install(WriteBatch::new(), vec![(PLAIN, writer.finish().unwrap())]).unwrap();
    drop((tree, store));
    let salvaged = salvage(&simulated).unwrap();
    assert!(salvaged.state().damaged.is_empty() && found(&salvaged, PLAIN).rows.len() == 20);
    drop(salvaged);
    let bytes = saved.lock().take().expect("the first segment");
    simulated.open(&Path::new("/db").join(first), OpenMode::CreateNew).unwrap().write_at(0, &bytes).unwrap();
    let node_table = node_table(&contents(&simulated, "data")).start;
    simulated.flip_bit(Path::new("/db/data"), node_table, 0).unwrap();
    let salvaged = salvage(&simulated).unwrap();
    let state = salvaged.state();
    assert!(state.checkpoint.is_none() && !state.damaged.is_empty() && state.empty_records > 0, "{state:?}");
    assert_eq!(found(&salvaged, PLAIN).rows.len(), 10);
}

#[test]
fn the_source_is_locked_and_not_written() {
    let written = Written::new();
    let before = written.contents("data");
    let writes = Arc::new(AtomicU64::new(0));
    let counted = writes.clone();
    let device = Hooked::device(written.simulated.device(), move |call| {
        if !matches!(call, Call::Read(_) | Call::Unlock) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let salvage = Salvage::open(&device, Path::new("/db"), &options()).unwrap();
    let locked = |error: Error| assert!(matches!(error, Error::Locked { .. }), "{error}");
    locked(Store::open(device.clone(), Path::new("/db"), options()).unwrap_err());
    locked(Salvage::open(&device, Path::new("/db"), &options()).unwrap_err());
    let names = written.simulated.list(Path::new("/db")).unwrap();
    found(&salvage, UPSERTED);
    drop(salvage);
    assert_eq!(writes.load(Ordering::Relaxed), 0);
    assert!(*written.contents("data") == *before && written.simulated.list(Path::new("/db")).unwrap() == names);
    written.simulated.remove(Path::new("/db/LOCK")).unwrap();
    let unlocked = Salvage::open(&device, Path::new("/db"), &options()).unwrap();
    assert!(!unlocked.state().is_locked && !written.simulated.exists(Path::new("/db/LOCK")).unwrap());
    let store = Store::open(device.clone(), Path::new("/db"), options()).unwrap();
    assert!(store.check(|_| true, &|_, _| true).unwrap().damage.is_empty());
}

#[test]
fn a_survey_can_be_ended() {
    let written = Written::new();
    let salvage = salvage(&written.simulated).unwrap();
    assert!(salvage.survey(PLAIN, &|_, _| false).unwrap().is_none());
    assert!(matches!(salvage.survey(TreeId::new(9), &|_, _| true), Err(Error::TreeNotFound(_))));
}
