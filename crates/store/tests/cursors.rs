//! Cursors whose calls are dropped at random await points, as by a cancelled query, and repeated: no row is lost or
//! returned twice, in both directions.

mod common;

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Bound;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arrow_array::cast::AsArray;
use common::key_value_rows;
use keyaki_device::Buffer;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{
    BlockingPages, Counter, Cursor, Direction, Error, Goal, KeyRange, LocatorOptions, Options, Page, PageRef,
    PageSource, Priority, Projection, Result, Schema, Store, TreeId, UpsertFunctions, WriteBatch,
};
use parking_lot::Mutex;

const TREE: TreeId = TreeId::new(1);
const APPEND: u32 = 1;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
/// Key and value; `None` for a value that was not read.
type Row = (Vec<u8>, Option<Vec<u8>>);

/// A page source that suspends and fails at random.
struct Unreliable {
    store: Store,
    pages: BlockingPages,
    random: Mutex<Random>,
    fails: bool,
    /// Pages of leaves have the columns of the key only.
    keys_only: bool,
}

/// A future that is pending at the first poll and ready at the second.
struct PendingOnce(bool);

impl Future for PendingOnce {
    type Output = ();
    fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl PageSource for Unreliable {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        let (waits, fails) = {
            let mut random = self.random.lock();
            (random.below(2), self.fails && random.below(4) == 0)
        };
        for _ in 0..waits {
            PendingOnce(false).await;
        }
        if fails {
            return Err(Error::PageSource(Arc::new(std::fmt::Error)));
        }
        self.pages.page(page, schema, priority).await
    }
    async fn leaf_page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        let whole = self.page(page, schema, priority).await?;
        if !self.keys_only {
            return Ok(whole);
        }
        let file = self.store.data_file();
        let mut bytes = Buffer::zeroed(page.len as usize);
        file.read_at(page.offset, &mut bytes)?;
        let keys = Arc::new(Projection::new(schema, []));
        Ok(Arc::new(Page::open_columns(&bytes, page, schema, &file.path().into(), Some(&keys))?))
    }
    fn prefetch(&self, _: &[PageRef], _: &Arc<Schema>) {}
}

/// The cursor's next chunk, after a random number of dropped or failed calls.
fn next(cursor: &mut Cursor<'_, &Unreliable>, random: &mut Random) -> Option<keyaki_store::Chunk> {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        let mut call = pin!(cursor.next());
        loop {
            match call.as_mut().poll(&mut context) {
                Poll::Ready(Ok(chunk)) => return chunk,
                Poll::Ready(Err(Error::PageSource(error))) if error.is::<std::fmt::Error>() => break,
                Poll::Ready(Err(error)) => panic!("{error}"),
                Poll::Pending if random.below(2) == 0 => break,
                Poll::Pending => {}
            }
        }
    }
}

fn rows(cursor: &mut Cursor<'_, &Unreliable>, random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    while let Some(chunk) = next(cursor, random) {
        let keys = chunk.to_arrays(&[0]).unwrap();
        let values = chunk.to_arrays(&[1]).ok();
        for row in 0..chunk.rows() {
            let value = values.as_ref().map(|values| values[0].as_binary_view().value(row).to_vec());
            rows.push((keys[0].as_binary_view().value(row).to_vec(), value));
        }
    }
    rows
}

/// The number of rows, with a random number of dropped or failed calls.
fn count(counter: &mut Counter<'_, &Unreliable>, random: &mut Random) -> u64 {
    let (mut context, mut rows) = (Context::from_waker(Waker::noop()), 0);
    'calls: loop {
        let mut call = pin!(counter.next());
        loop {
            match call.as_mut().poll(&mut context) {
                Poll::Ready(Ok(Some(more))) => {
                    rows += more;
                    continue 'calls;
                }
                Poll::Ready(Ok(None)) => return rows,
                Poll::Ready(Err(Error::PageSource(error))) if error.is::<std::fmt::Error>() => break,
                Poll::Ready(Err(error)) => panic!("{error}"),
                Poll::Pending if random.below(2) == 0 => break,
                Poll::Pending => {}
            }
        }
    }
}

/// A store with messages in buffers and in runs at several levels, and rows in leaves.
fn store(seed: u64, model: &mut Model) -> Store {
    let append = |old: Option<&[u8]>, operand: &[u8]| Ok(Some([old.unwrap_or_default(), operand].concat()));
    let options = Options {
        buffer_bytes: 20_000 + 80_000 * (seed as usize % 2),
        checkpoint_log_bytes: 1 << 30,
        page_bytes: 4096,
        leaf_bytes: 16_384,
        fan_out: 2 + seed as usize % 3,
        node_buffer_bytes: 40_000,
        runs_per_node: 4,
        upserts: Arc::new(UpsertFunctions::default().with(APPEND, append)),
        ..Options::default()
    };
    let device = Arc::new(Simulated::new(SimulatedOptions { seed, ..Default::default() }));
    let store = Store::open(device, Path::new("/db"), options).unwrap();
    let map = KeyValue::open(&store, TREE).unwrap();
    let mut random = Random::new(seed);
    for step in 0..120 {
        let mut batch = KeyValueBatch::default();
        for _ in 0..60 {
            let key = format!("key{:05}", random.below(4000)).into_bytes();
            match random.below(6) {
                0 => {
                    batch.delete(&map, &key);
                    model.remove(&key);
                }
                1 => {
                    let operand = [random.below(256) as u8];
                    batch.upsert(&map, &key, APPEND, &operand);
                    model.entry(key).or_default().extend(operand);
                }
                _ => {
                    let value = vec![random.below(256) as u8; random.below(80) as usize];
                    batch.insert(&map, &key, &value);
                    model.insert(key, value);
                }
            }
        }
        map.commit(batch).unwrap();
        if step == 60 {
            store.checkpoint().unwrap();
            let loaded: Model = (0..500).map(|i| (format!("key{:05}", i * 7).into_bytes(), vec![9; 30])).collect();
            let mut writer = store.bulk_writer(TREE, &Schema::key_value());
            writer.push(&key_value_rows(loaded.iter().map(|(key, value)| (&key[..], &value[..])))).unwrap();
            store.install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
            model.extend(loaded);
        }
    }
    store
}

fn encoded(bound: Bound<Vec<u8>>) -> Bound<Vec<u8>> {
    bound.map(|mut key| {
        key.extend([0, 0]);
        key
    })
}

fn bound(random: &mut Random) -> Bound<Vec<u8>> {
    let key = format!("key{:05}", random.below(4200)).into_bytes();
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn compare(seed: u64, fails: bool, keys_only: bool) {
    let mut model = Model::new();
    let store = store(seed, &mut model);
    let mut random = Random::new(seed + 1000);
    if seed.is_multiple_of(2) {
        let memory_bytes = seed.is_multiple_of(4).then_some(1 << 20);
        store.set_locator(TREE, LocatorOptions { goal: Goal::Smallest, memory_bytes }).unwrap();
        store.wait_for_locators();
    }
    let view = store.snapshot().tree(TREE).unwrap();
    let (pages, random_source) = (store.blocking(), Mutex::new(Random::new(seed + 2000)));
    let source = Unreliable { store: store.clone(), pages, random: random_source, fails, keys_only };
    for round in 0..30 {
        let (start, end) =
            if round == 0 { (Bound::Unbounded, Bound::Unbounded) } else { (bound(&mut random), bound(&mut random)) };
        let inside = |key: &Vec<u8>| {
            let above = match &start {
                Bound::Included(start) => key >= start,
                Bound::Excluded(start) => key > start,
                Bound::Unbounded => true,
            };
            let below = match &end {
                Bound::Included(end) => key <= end,
                Bound::Excluded(end) => key < end,
                Bound::Unbounded => true,
            };
            above && below
        };
        let mut expected: Vec<_> =
            model.iter().filter(|row| inside(row.0)).map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
        let range = KeyRange { start: encoded(start.clone()), end: encoded(end.clone()) };
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut cursor = view.cursor(&source, range.clone(), direction);
            let found = rows(&mut cursor, &mut random);
            let is_equal = |(found, expected): (&Row, &Row)| {
                let has_value = found.1 == expected.1 || keys_only && found.1.is_none();
                found.0 == expected.0 && has_value
            };
            assert!(
                found.len() == expected.len() && found.iter().zip(&expected).all(is_equal),
                "seed {seed}, {direction:?} {range:?}: {} rows, not {}",
                found.len(),
                expected.len()
            );
            expected.reverse();
        }
        let mut counter = view.counter(&source, range.clone());
        assert_eq!(count(&mut counter, &mut random), expected.len() as u64, "seed {seed}, rows in {range:?}");
        let key = format!("key{:05}", random.below(4200)).into_bytes();
        let mut point = key.clone();
        point.extend([0, 0]);
        let mut cursor = view.cursor(&source, KeyRange::point(point), Direction::Ascending);
        let found = rows(&mut cursor, &mut random);
        let value = found.first().and_then(|row| row.1.as_ref());
        assert!(value == model.get(&key) || keys_only && value.is_none(), "seed {seed}: {value:?}");
        assert_eq!(found.len(), usize::from(model.contains_key(&key)), "seed {seed}");
    }
}

fn seeds() -> u64 {
    std::env::var("KEYAKI_SEEDS").map_or(8, |text| text.parse().unwrap())
}

#[test]
fn dropped_calls_lose_nothing() {
    for seed in 0..seeds() {
        compare(seed, false, false);
    }
}

#[test]
fn calls_continue_after_a_failed_one() {
    for seed in seeds()..2 * seeds() {
        compare(seed, true, false);
    }
}

/// Upserts of rows whose other columns were not read find them.
#[test]
fn leaves_without_some_columns_have_all_rows() {
    for seed in 2 * seeds()..3 * seeds() {
        compare(seed, seed.is_multiple_of(2), true);
    }
}
