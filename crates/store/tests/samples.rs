//! Samples of trees compared with a model: a sample has exactly the rows whose keys are selected, as of the last flush, after
//! bulk loads, inserts, row upserts, deletes, further columns, reopenings and crashes. Sketches count the distinct values.

#[path = "hostile/image.rs"]
#[allow(dead_code, reason = "other tests use the rest of the module")]
mod image;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringViewArray};
use image::Image;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::{
    Column, ColumnChange, ColumnType, Direction, Durability, KeyRange, Options, Sample, Schema, Store, TreeId,
    WriteBatch, block_on,
};
use xxhash_rust::xxh3::xxh3_64;

const TREE: TreeId = TreeId::new(20);
/// Trees with fewer rows have no sample.
const ROWS_MIN: usize = 16 << 10;

/// The columns: key, group, name; then a flag that is added later.
fn schema(columns: usize) -> Schema {
    let column = |name: &str, ty, nullable| Column { name: name.into(), ty, nullable };
    let all = [
        column("key", ColumnType::Int64, false),
        column("group", ColumnType::Int32, true),
        column("name", ColumnType::Text, true),
        column("flag", ColumnType::Int32, true),
    ];
    Schema::new(all[..columns].to_vec(), 1).sampled()
}

type Row = (Option<i32>, Option<String>, Option<i32>);
type Model = BTreeMap<i64, Row>;

fn batch<'r>(rows: impl Iterator<Item = (&'r i64, &'r Row)> + Clone, columns: usize) -> RecordBatch {
    let all: [ArrayRef; 4] = [
        Arc::new(Int64Array::from_iter_values(rows.clone().map(|(key, _)| *key))),
        Arc::new(rows.clone().map(|(_, row)| row.0).collect::<Int32Array>()),
        Arc::new(rows.clone().map(|(_, row)| row.1.clone()).collect::<StringViewArray>()),
        Arc::new(rows.map(|(_, row)| row.2).collect::<Int32Array>()),
    ];
    RecordBatch::try_new(schema(columns).arrow().clone(), all[..columns].to_vec()).unwrap()
}

fn row(columns: usize, random: &mut Random) -> Row {
    let group = (random.below(5) > 0).then(|| random.below(300) as i32);
    let name = (random.below(3) > 0).then(|| format!("a name of some length, {}", random.below(1 << 40)));
    (group, name, (columns == 4).then(|| random.below(7) as i32))
}

struct Tree {
    simulated: Simulated,
    /// Closed during a reopening only.
    open: Option<Store>,
    columns: usize,
    model: Model,
    random: Random,
    /// Changes are committed by transactions that spill.
    spills: bool,
}

fn options() -> Options {
    Options { buffer_bytes: 64 << 20, durability: Durability::Full, leaf_bytes: 256 << 10, ..Options::default() }
}

impl Tree {
    fn new(seed: u64) -> Tree {
        let simulated = Simulated::new(SimulatedOptions { seed, ..SimulatedOptions::default() });
        let store = Store::open(simulated.device(), Path::new("/db"), options()).unwrap();
        let mut create = WriteBatch::new();
        create.create_tree(TREE, &schema(3));
        store.commit(create).unwrap();
        Tree { simulated, open: Some(store), columns: 3, model: Model::new(), random: Random::new(seed), spills: false }
    }

    fn commit(&self, batch: WriteBatch) {
        if !self.spills {
            self.store().commit(batch).unwrap();
            return;
        }
        let mut transaction = self.store().begin();
        transaction.write(batch).unwrap();
        transaction.spill(&[]).unwrap();
        transaction.commit().unwrap().unwrap().wait().unwrap();
    }

    fn insert(&mut self, keys: impl Iterator<Item = i64>) {
        let rows: Model = keys.map(|key| (key, row(self.columns, &mut self.random))).collect();
        let mut write = WriteBatch::new();
        write.insert(TREE, &schema(self.columns), &batch(rows.iter(), self.columns)).unwrap();
        self.commit(write);
        self.model.extend(rows);
    }

    fn load(&mut self, keys: impl Iterator<Item = i64>) {
        let rows: Model = keys.map(|key| (key, row(self.columns, &mut self.random))).collect();
        let schema = schema(self.columns);
        let mut writer = self.store().bulk_writer(TREE, &schema);
        let all = batch(rows.iter(), self.columns);
        (0..all.num_rows())
            .step_by(1000)
            .for_each(|at| writer.push(&all.slice(at, 1000.min(all.num_rows() - at))).unwrap());
        self.store().install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
        self.model.extend(rows);
    }

    fn delete(&mut self, keys: impl Iterator<Item = i64>) {
        let keys: Vec<i64> = keys.collect();
        let nothing = (None, None, None);
        let mut write = WriteBatch::new();
        let rows = batch(keys.iter().map(|key| (key, &nothing)), self.columns);
        write.delete(TREE, &schema(self.columns), &rows).unwrap();
        self.commit(write);
        keys.iter().for_each(|key| drop(self.model.remove(key)));
    }

    /// Sets the group of rows, without reading them.
    fn upsert(&mut self, keys: impl Iterator<Item = i64>) {
        let rows: Model = keys.map(|key| (key, row(self.columns, &mut self.random))).collect();
        let mut changes = vec![ColumnChange::Keep; self.columns - 1];
        changes[0] = ColumnChange::Set;
        let (schema, all) = (schema(self.columns), batch(rows.iter(), self.columns));
        let mut write = WriteBatch::new();
        write.upsert_rows(TREE, &schema, all.columns(), &changes, None).unwrap();
        self.commit(write);
        for (key, new) in rows {
            match self.model.get_mut(&key) {
                Some(old) => old.0 = new.0,
                None => drop(self.model.insert(key, new)),
            }
        }
    }

    fn store(&self) -> &Store {
        self.open.as_ref().unwrap()
    }

    fn reopen(&mut self, crash: bool) {
        self.open = None;
        if crash {
            self.simulated.crash();
        }
        self.open = Some(Store::open(self.simulated.device(), Path::new("/db"), options()).unwrap());
    }

    fn keys(&mut self, count: usize, below: i64) -> HashSet<i64> {
        (0..count).map(|_| self.random.below(below as u64) as i64).collect()
    }

    fn sample(&self) -> Option<Sample> {
        self.store().snapshot().tree(TREE).unwrap().sample().unwrap()
    }

    /// Flushes, and compares the sample with the model. Returns its number of rows.
    fn check(&self) -> usize {
        self.store().checkpoint().unwrap();
        let sample = self.sample().expect("a sample");
        assert!((sample.of_rows as f64 / self.model.len() as f64 - 1.0).abs() < 0.2, "{}", sample.of_rows);
        let view = self.store().snapshot().tree(TREE).unwrap();
        let zeros = |columns: &[ArrayRef]| {
            let encoder = view.key_codec().encoder(&columns[..1]);
            let hash = |row| {
                let mut key = Vec::new();
                encoder.encode(row, &mut key);
                xxh3_64(&key).leading_zeros()
            };
            (0..columns[0].len()).map(hash).collect::<Vec<u32>>()
        };
        let level = zeros(sample.rows.columns()).into_iter().min().unwrap_or(64);
        let all = batch(self.model.iter(), self.columns);
        let selected = zeros(all.columns()).into_iter().zip(&self.model).filter(|(zeros, _)| *zeros >= level);
        let expected = batch(selected.map(|(_, row)| row), self.columns);
        assert_eq!(sample.rows.num_rows(), expected.num_rows(), "level {level}");
        assert!(sample.rows == expected, "a row of the sample differs from that of the tree");
        expected.num_rows()
    }

    /// Checks the numbers of distinct values, if no value has been removed.
    fn check_distinct(&self) {
        let sample = self.sample().expect("a sample");
        let all = batch(self.model.iter(), self.columns);
        let names: HashSet<&str> = all.column(2).as_string_view().iter().flatten().collect();
        let groups: HashSet<i32> = all.column(1).as_primitive::<Int32Type>().iter().flatten().collect();
        let expected = [self.model.len(), groups.len(), names.len()];
        for (found, expected) in sample.distinct.iter().zip(expected) {
            assert!((found / expected as f64 - 1.0).abs() < 0.06, "{found} of {expected}");
        }
    }
}

#[test]
fn small_trees_and_those_with_other_schemas_have_no_sample() {
    let mut tree = Tree::new(1);
    tree.insert(0..2000);
    assert!(tree.sample().is_none());
    tree.load(2000..ROWS_MIN as i64);
    assert!(tree.sample().is_none());
    let other = Schema::new(schema(3).columns().to_vec(), 1);
    let mut writer = tree.store().bulk_writer(TreeId::new(21), &other);
    let mut create = WriteBatch::new();
    create.create_tree(TreeId::new(21), &other);
    let rows: Model = (0..40_000).map(|key| (key, (None, None, None))).collect();
    writer.push(&batch(rows.iter(), 3)).unwrap();
    tree.store().install(create, vec![(TreeId::new(21), writer.finish().unwrap())]).unwrap();
    assert!(tree.store().snapshot().tree(TreeId::new(21)).unwrap().sample().unwrap().is_none());
}

#[test]
fn inserts_and_loads_are_sampled() {
    for seed in 0..4 {
        let mut tree = Tree::new(seed);
        match seed % 2 {
            0 => tree.insert((0..30_000).map(|i| i * 7)),
            _ => tree.load((0..30_000).map(|i| i * 7)),
        }
        let first = tree.check();
        assert!((4000..=ROWS_MIN).contains(&first), "{first}");
        tree.check_distinct();
        // The rows in buffers are not in the sample yet.
        let before = tree.sample().unwrap().rows;
        tree.insert((0..40_000).map(|i| i * 7 + 1));
        assert_eq!(tree.sample().unwrap().rows, before);
        tree.check();
        tree.load((0..40_000).map(|i| i * 7 + 2));
        let all = tree.check();
        assert!((4000..=2 * ROWS_MIN).contains(&all), "{all}");
        tree.check_distinct();
        let before = tree.sample().unwrap();
        tree.reopen(false);
        let after = tree.sample().unwrap();
        assert_eq!((before.rows, before.distinct, before.counted), (after.rows, after.distinct, after.counted));
        tree.check();
    }
}

#[test]
fn the_first_flush_of_a_tree_may_be_large() {
    let mut tree = Tree::new(5);
    for part in 0..11 {
        tree.insert(part * 100_000..(part + 1) * 100_000);
    }
    let sampled = tree.check();
    assert!((4000..=ROWS_MIN).contains(&sampled), "{sampled}");
    tree.check_distinct();
    assert_eq!(tree.sample().unwrap().missed, 0);
    // The sketches do not have the values of upserts.
    tree.upsert(1_000_000..1_020_000);
    tree.check();
    assert_eq!(tree.sample().unwrap().missed, 20_000);
}

#[test]
fn spilled_messages_are_sampled() {
    let mut tree = Tree::new(6);
    let rows: Model = (0..300_000).map(|key| (key, row(3, &mut tree.random))).collect();
    let mut transaction = tree.store().begin();
    for part in 0..15 {
        let mut write = WriteBatch::new();
        let part = rows.range(part * 20_000..(part + 1) * 20_000);
        write.insert_new(TREE, &schema(3), &batch(part, 3)).unwrap();
        transaction.write(write).unwrap();
        transaction.spill(&[]).unwrap();
    }
    assert!(transaction.bytes() < 32 << 20, "{}", transaction.bytes());
    transaction.commit().unwrap().unwrap().wait().unwrap();
    tree.model = rows;
    let sampled = tree.check();
    assert!((4000..=ROWS_MIN).contains(&sampled), "{sampled}");
    tree.check_distinct();
    assert_eq!(tree.sample().unwrap().counted, 300_000);
    // Most rows are deleted, and some of the others are changed.
    tree.spills = true;
    tree.delete(10_000..280_000);
    tree.upsert(0..10_000);
    tree.check();
}

#[test]
fn changes_of_all_kinds_are_applied_to_samples() {
    for seed in 10..14 {
        let mut tree = Tree::new(seed);
        tree.load(0..25_000);
        tree.spills = seed % 2 == 1;
        for step in 0..24 {
            let keys = tree.keys(3000, 60_000);
            match tree.random.below(6) {
                0 => tree.insert(keys.into_iter()),
                1 => tree.delete(keys.into_iter().filter(|key| key % 2 == 0)),
                2 | 3 => tree.upsert(keys.into_iter()),
                4 => tree.load(keys.into_iter().filter(|key| key % 3 == 0)),
                _ => tree.reopen(false),
            }
            if step == 12 {
                let mut extend = WriteBatch::new();
                extend.extend_tree(TREE, &schema(4));
                tree.store().commit(extend).unwrap();
                tree.columns = 4;
            }
            if step % 3 == 0 {
                tree.check();
            }
        }
    }
}

#[test]
fn samples_are_built_again_after_many_changes() {
    let mut tree = Tree::new(30);
    tree.load(0..400_000);
    let sampled = tree.check();
    // A tenth remains, with too few rows in the sample.
    for part in 0..9 {
        tree.delete(part * 40_000..(part + 1) * 40_000);
        tree.store().checkpoint().unwrap();
    }
    tree.delete(360_000..380_000);
    assert!(tree.check() > sampled / 8);
    // All groups are replaced several times: the sketch of the first values is given up.
    for _ in 0..6 {
        tree.insert(380_000..400_000);
        tree.store().checkpoint().unwrap();
    }
    let sample = tree.sample().unwrap();
    assert!(sample.counted < 200_000, "{}", sample.counted);
    assert!(sample.distinct[2] < 100_000.0, "{}", sample.distinct[2]);
    tree.delete(380_000..399_000);
    tree.store().checkpoint().unwrap();
    assert!(tree.sample().is_none(), "a small tree again");
}

#[test]
fn samples_of_long_rows_are_limited() {
    let mut tree = Tree::new(40);
    let random = &mut tree.random;
    let mut text = || (0..120).map(|_| format!("{:x}", random.next_u64())).collect::<String>();
    let rows: Model = (0..20_000).map(|key| (key, (None, Some(text()), None))).collect();
    for part in 0..20 {
        let mut write = WriteBatch::new();
        let part = rows.range(part * 1000..(part + 1) * 1000);
        write.insert(TREE, &schema(3), &batch(part, 3)).unwrap();
        tree.store().commit(write).unwrap();
    }
    tree.model = rows;
    let sampled = tree.check();
    assert!((100..8000).contains(&sampled), "{sampled}");
}

#[test]
fn samples_survive_crashes() {
    for seed in 50..54 {
        let mut tree = Tree::new(seed);
        tree.load(0..20_000);
        for _ in 0..4 {
            let keys = tree.keys(3000, 40_000);
            tree.upsert(keys.into_iter());
            if tree.random.below(2) == 0 {
                tree.store().checkpoint().unwrap();
            }
            tree.reopen(true);
            tree.check();
        }
    }
}

/// The number of rows of a tree, or the first error of reading it.
fn count(store: &Store) -> Result<usize, keyaki_store::Error> {
    let view = store.snapshot().tree(TREE)?;
    let pages = store.blocking();
    let mut cursor = view.cursor(&pages, KeyRange::all(), Direction::Ascending);
    let mut rows = 0;
    while let Some(chunk) = block_on(cursor.next())? {
        rows += chunk.to_arrays(&[0, 1, 2])?[0].len();
    }
    Ok(rows)
}

#[test]
fn a_damaged_sample_does_not_affect_the_tree() {
    let mut tree = Tree::new(60);
    tree.load(0..20_000);
    tree.open = None;
    let mut sound = Image::take(&*tree.simulated.device());
    let blocks = sound.data().len() / 4096;
    let mut given_up = 0;
    for _ in 0..60 {
        let mut damaged = sound.clone();
        let at = 4096 * (16 + tree.random.below(blocks as u64 - 16) as usize) + tree.random.below(4096) as usize;
        damaged.data()[at] ^= 0x10;
        tree.simulated = damaged.device();
        let Ok(store) = Store::open(tree.simulated.device(), Path::new("/db"), options()) else { continue };
        // The damage is in the sample, or in no page that is in use.
        if count(&store).is_err() {
            continue;
        }
        tree.open = Some(store);
        assert!(tree.store().snapshot().tree(TREE).unwrap().unsampled_changes().is_some());
        let keys = tree.keys(3000, 20_000);
        tree.insert(keys.into_iter());
        tree.store().checkpoint().unwrap();
        assert_eq!(count(tree.store()).unwrap(), 20_000);
        given_up += usize::from(tree.sample().is_none());
        // A tree of this size gets a new sample.
        tree.insert(30_000..30_001);
        tree.store().checkpoint().unwrap();
        assert!(tree.sample().is_some());
        tree.reopen(false);
        tree.delete(30_000..30_001);
    }
    assert!(given_up > 3, "{given_up}");
}
