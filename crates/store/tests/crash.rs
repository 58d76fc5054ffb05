//! Power cuts, full disks, failing syncs and bit rot under a working store: no acknowledged commit is lost, no commit
//! is applied in part, and damage gives an error. A seed determines each run and is printed on failure.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryViewArray, RecordBatch};
use keyaki_device::simulated::{FaultKind, Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{Direction, Error, MergePolicy, Options, Result, Schema, Store, TreeId, WriteBatch};

const TREES: [TreeId; 2] = [TreeId::new(1), TreeId::new(2)];
/// A memory tree, rebuilt from the first tree after each opening; each commit writes to all trees.
const MEMORY_TREE: TreeId = TreeId::new(1 << 31 | 1);
const DIR: &str = "/db";
/// The policies of the openings of a database, repeated.
const POLICIES: [MergePolicy; 4] =
    [MergePolicy::Tiered, MergePolicy::Leveled, MergePolicy::Leveled, MergePolicy::Tiered];

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(merge_policy: MergePolicy) -> Options {
    Options {
        buffer_bytes: 6_000,
        checkpoint_log_bytes: 30_000,
        cache_bytes: 100_000,
        page_bytes: 4096,
        leaf_bytes: 8192,
        fan_out: 3,
        node_buffer_bytes: 10_000,
        runs_per_node: 3,
        merge_policy,
        ..Options::default()
    }
}

/// The rows of the trees after each step that was started. A step is one commit to all trees.
struct Workload {
    states: Vec<Model>,
    /// The last acknowledged step.
    acknowledged: usize,
    /// Number of openings, which determines the policy of the next one.
    openings: usize,
}

fn open(simulated: &Simulated) -> Result<(Store, Vec<KeyValue>)> {
    open_with(simulated, MergePolicy::Tiered)
}

fn open_with(simulated: &Simulated, merge_policy: MergePolicy) -> Result<(Store, Vec<KeyValue>)> {
    let store = Store::open(simulated.device(), Path::new(DIR), options(merge_policy))?;
    let maps = TREES.iter().map(|&tree| KeyValue::open(&store, tree)).collect::<Result<_>>()?;
    Ok((store, maps))
}

fn contents(map: &KeyValue) -> Model {
    map.range(.., Direction::Ascending).unwrap().map(|row| row.expect("the rows are readable after a crash")).collect()
}

/// Builds the memory tree from the rows of `map`.
fn build_in_memory(store: &Store, map: &KeyValue) -> Result<KeyValue> {
    let mut builder = store.memory_builder(MEMORY_TREE, &Schema::key_value());
    builder.push(&batch_of(&contents(map)))?;
    store.install_memory(vec![(MEMORY_TREE, builder.finish(1)?)])?;
    KeyValue::open(store, MEMORY_TREE)
}

impl Workload {
    fn new() -> Self {
        Workload { states: vec![Model::new()], acknowledged: 0, openings: 0 }
    }

    fn open(&mut self, simulated: &Simulated) -> Result<(Store, Vec<KeyValue>)> {
        self.openings += 1;
        open_with(simulated, POLICIES[(self.openings - 1) % POLICIES.len()])
    }

    /// Runs `steps` steps, or fewer if the device fails.
    fn run(&mut self, simulated: &Simulated, random: &mut Random, steps: u64) -> Result<()> {
        let (store, mut maps) = self.open(simulated)?;
        maps.push(build_in_memory(&store, &maps[0])?);
        for _ in 0..steps {
            let mut state = self.states.last().unwrap().clone();
            match random.below(20) {
                0 => {
                    store.checkpoint()?;
                    continue;
                }
                1 => {
                    store.vacuum(|_| true, &|_, _| true)?;
                    continue;
                }
                2 => {
                    let rows: Model = (0..random.below(60)).map(|_| row(random)).collect();
                    state.extend(rows.clone());
                    self.states.push(state);
                    install(&store, &rows)?;
                }
                _ => {
                    let mut batch = KeyValueBatch::default();
                    for _ in 0..1 + random.below(8) {
                        let (key, value) = row(random);
                        if random.below(4) == 0 {
                            maps.iter().for_each(|map| batch.delete(map, &key));
                            state.remove(&key);
                        } else {
                            maps.iter().for_each(|map| batch.insert(map, &key, &value));
                            state.insert(key, value);
                        }
                    }
                    self.states.push(state);
                    maps[0].commit(batch)?;
                }
            }
            self.acknowledged = self.states.len() - 1;
            let in_memory = maps.last().map(contents);
            assert!(in_memory.as_ref() == self.states.last(), "the memory tree has other rows");
        }
        Ok(())
    }

    /// Checks after a crash that the trees on disk have equal rows, those of the last acknowledged step or a later one.
    fn check(&mut self, simulated: &Simulated) {
        let (store, maps) = self.open(simulated).expect("the database opens after a crash");
        assert!(matches!(store.latest().tree(MEMORY_TREE), Err(Error::TreeNotFound(_))));
        let found = contents(&maps[0]);
        assert!(found == contents(&maps[1]), "the trees have different commits");
        let allowed = &self.states[self.acknowledged..];
        let at = allowed.iter().rposition(|state| *state == found);
        let at = at
            .unwrap_or_else(|| panic!("the {} rows found match no step since the last acknowledged one", found.len()));
        self.states.truncate(self.acknowledged + at + 1);
        self.acknowledged = self.states.len() - 1;
        drop((store, maps));
    }
}

fn row(random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let key = format!("key{:03}", random.below(400)).into_bytes();
    (key, vec![random.below(256) as u8; random.below(120) as usize])
}

fn batch_of(rows: &Model) -> RecordBatch {
    let column = |values: Vec<&Vec<u8>>| Arc::new(BinaryViewArray::from_iter_values(values)) as ArrayRef;
    let columns = vec![column(rows.keys().collect()), column(rows.values().collect())];
    RecordBatch::try_new(Schema::key_value().arrow().clone(), columns).unwrap()
}

fn install(store: &Store, rows: &Model) -> Result<()> {
    let (schema, batch) = (Schema::key_value(), batch_of(rows));
    let mut loaded = Vec::new();
    for tree in TREES {
        let mut writer = store.bulk_writer(tree, &schema);
        writer.push(&batch)?;
        loaded.push((tree, writer.finish()?));
    }
    if store.latest().tree(MEMORY_TREE).is_ok() {
        let mut builder = store.memory_builder(MEMORY_TREE, &schema);
        builder.push(&batch)?;
        loaded.push((MEMORY_TREE, builder.finish(2)?));
    }
    store.install(WriteBatch::new(), loaded)
}

/// Crashes three times, each time after a random number of operations, continues, and closes.
fn crashes(seed: u64) {
    let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
    let mut random = Random::new(seed);
    let mut workload = Workload::new();
    for _ in 0..3 {
        simulated.crash_after_operations(random.below(120));
        let outcome = workload.run(&simulated, &mut random, 60);
        if outcome.is_ok() {
            continue;
        }
        simulated.crash();
        workload.check(&simulated);
    }
    simulated.crash();
    workload.check(&simulated);
}

fn with_seed(seed: u64, run: fn(u64)) {
    if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
        eprintln!("failing seed: {seed}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn acknowledged_commits_survive_crashes() {
    let seeds = std::env::var("KEYAKI_SEEDS").map_or(400, |text| text.parse().unwrap());
    for seed in 0..seeds {
        with_seed(seed, crashes);
    }
}

/// A crash at each operation of one workload, under each policy.
#[test]
fn a_crash_at_every_operation() {
    let crash_at = |operation: u64, openings: usize| {
        let simulated = Simulated::new(SimulatedOptions { seed: operation, ..Default::default() });
        simulated.crash_after_operations(operation);
        let mut workload = Workload { openings, ..Workload::new() };
        let done = workload.run(&simulated, &mut Random::new(7), 40).is_ok();
        simulated.crash();
        workload.check(&simulated);
        done
    };
    for openings in [0, 2] {
        let operations = (0..).find(|&operation| crash_at(operation, openings)).unwrap();
        assert!(operations > 50, "only {operations} operations under {:?}", POLICIES[openings]);
    }
}

#[test]
fn a_full_disk_stops_writes_and_loses_nothing() {
    for seed in 0..60 {
        with_seed(seed, |seed| {
            let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
            let mut random = Random::new(seed);
            let mut workload = Workload::new();
            workload.run(&simulated, &mut random, 10).unwrap();
            simulated.set_capacity(Some(simulated.used_bytes() + random.below(200_000)));
            match workload.run(&simulated, &mut random, 300) {
                Err(Error::DiskFull { .. }) => {}
                Err(other) => panic!("unexpected error of a full disk: {other}"),
                Ok(()) => {}
            }
            // With free space, the database opens, has all acknowledged commits, and accepts writes.
            simulated.set_capacity(None);
            workload.check(&simulated);
            workload.run(&simulated, &mut random, 20).unwrap();
            workload.check(&simulated);
        });
    }
}

#[test]
fn a_failed_sync_poisons_the_store() {
    for (successes, without_space) in (8..30).flat_map(|successes| [(successes, false), (successes, true)]) {
        let simulated = Simulated::new(SimulatedOptions { seed: successes, ..Default::default() });
        match without_space {
            false => simulated.fail_sync(successes),
            true => simulated.fail_sync_without_space(successes),
        }
        let mut workload = Workload::new();
        let mut random = Random::new(successes);
        let failed = workload.run(&simulated, &mut random, 400).expect_err("no sync failed");
        assert!(!matches!(failed, Error::DiskFull { .. }), "sync {successes}: {failed}");
        simulated.clear_faults();
        simulated.crash();
        workload.check(&simulated);
    }
}

#[test]
fn failed_and_misdirected_writes_lose_no_acknowledged_commit() {
    for seed in 0..120 {
        with_seed(seed, |seed| {
            let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
            let mut random = Random::new(seed);
            let mut workload = Workload::new();
            simulated.fail_after(6 + random.below(60), FaultKind::Eio);
            if workload.run(&simulated, &mut random, 300).is_err() {
                simulated.clear_faults();
                simulated.crash();
                workload.check(&simulated);
            }
        });
    }
}

/// The superblock of a failed checkpoint may be on the medium: no later write may overwrite extents of either
/// checkpoint.
#[test]
fn after_a_failed_checkpoint_nothing_is_written() {
    for seed in 0..60 {
        with_seed(seed, |seed| {
            let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
            let (store, maps) = open(&simulated).unwrap();
            let mut random = Random::new(seed);
            let mut workload = Workload::new();
            let mut rows = |workload: &mut Workload| -> Model {
                let rows: Model = (0..200).map(|_| row(&mut random)).collect();
                let mut state = workload.states.last().unwrap().clone();
                state.extend(rows.clone());
                workload.states.push(state);
                rows
            };
            install(&store, &rows(&mut workload)).unwrap();
            workload.acknowledged = 1;
            simulated.fail_sync(seed / 2 % 12);
            loop {
                if install(&store, &rows(&mut workload)).is_err() {
                    break;
                }
                workload.acknowledged = workload.states.len() - 1;
            }
            simulated.clear_faults();
            let mut writer = store.bulk_writer(TREES[0], &Schema::key_value());
            let mut noise = Random::new(seed);
            let written = (0..40_u32).try_for_each(|i| {
                let column = |value: Vec<u8>| Arc::new(BinaryViewArray::from_iter_values([value])) as ArrayRef;
                let columns =
                    vec![column(i.to_be_bytes().to_vec()), column((0..4000).map(|_| noise.below(256) as u8).collect())];
                writer.push(&RecordBatch::try_new(Schema::key_value().arrow().clone(), columns).unwrap())
            });
            assert!(matches!(written, Err(Error::Poisoned { .. })), "a poisoned store accepted a write");
            assert!(matches!(maps[0].insert(b"a", b"b"), Err(Error::Poisoned { .. })));
            simulated.crash();
            drop((writer, store, maps));
            workload.check(&simulated);
        });
    }
}

/// Flipped bits in the data file: a read returns the rows written or `Corrupt`.
#[test]
fn bit_rot_is_never_returned_as_data() {
    let mut errors = 0;
    for seed in 0..150 {
        let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
        let mut random = Random::new(seed);
        let mut workload = Workload::new();
        workload.run(&simulated, &mut random, 60).unwrap();
        let data = Path::new("/db/data");
        let len = simulated.device().open(data, keyaki_device::OpenMode::Read).unwrap().len().unwrap();
        for _ in 0..20 {
            simulated.flip_bit(data, random.below(len.min(400_000)), random.below(8) as u8).unwrap();
        }
        let expected = workload.states.last().unwrap();
        let (_store, maps) = match open(&simulated) {
            Ok(opened) => opened,
            Err(Error::Corrupt { .. } | Error::NotADatabase { .. } | Error::FormatVersion { .. }) => {
                errors += 1;
                continue;
            }
            Err(other) => panic!("seed {seed}: {other}"),
        };
        for map in &maps {
            let found: Result<Model> = map.range(.., Direction::Ascending).unwrap().collect();
            match found {
                Ok(found) => assert!(found == *expected, "seed {seed}: damage was returned as data"),
                Err(Error::Corrupt { .. }) => errors += 1,
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
    }
    assert!(errors > 20, "only {errors} runs read the damage");
}

#[test]
fn a_database_is_open_once() {
    let simulated = Simulated::new(SimulatedOptions::default());
    let (store, maps) = open(&simulated).unwrap();
    assert!(matches!(open(&simulated), Err(Error::Locked { .. })));
    drop((store, maps));
    open(&simulated).unwrap();
}

#[test]
fn foreign_directories_are_left_alone() {
    let simulated = Simulated::new(SimulatedOptions::default());
    simulated.insert(Path::new("/db/holiday.jpg"), &b"not a database"[..]).unwrap();
    assert!(matches!(open(&simulated), Err(Error::NotADatabase { .. })));
    let simulated = Simulated::new(SimulatedOptions::default());
    simulated.insert(Path::new("/db/data"), &[b'x'; 200_000][..]).unwrap();
    assert!(matches!(open(&simulated), Err(Error::NotADatabase { .. })));
}
