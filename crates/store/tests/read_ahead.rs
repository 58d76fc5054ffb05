//! Scans advise their source of pages once each, before they request them.

mod common;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use common::key_value_rows;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{
    BlockingPages, Direction, KeyRange, Options, Page, PageRef, PageSource, Priority, Result, Schema, Store, TreeId,
    WriteBatch,
};
use parking_lot::Mutex;

const TREE: TreeId = TreeId::new(1);

/// Records the offsets of pages in the order of advice, and checks requests against it.
struct Recording {
    pages: BlockingPages,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    advised: Vec<u64>,
    first: HashSet<u64>,
    /// Data pages in the order of requests.
    requested: Vec<u64>,
}

impl PageSource for Recording {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        if priority != Priority::Index {
            self.seen.lock().requested.push(page.offset);
        }
        self.pages.page(page, schema, priority).await
    }

    fn prefetch(&self, pages: &[PageRef], _: &Arc<Schema>) {
        self.seen.lock().advised.extend(pages.iter().map(|page| page.offset));
    }

    fn prefetch_first(&self, pages: &[PageRef], _: &Arc<Schema>) {
        self.seen.lock().first.extend(pages.iter().map(|page| page.offset));
    }

    fn read_ahead_bytes(&self) -> usize {
        1 << 20
    }
}

/// What a scan of at most `rows_max` rows has advised and requested, and its number of rows.
fn scan(store: &Store, direction: Direction, rows_max: usize) -> (Seen, usize) {
    let source = Recording { pages: store.blocking(), seen: Mutex::default() };
    let view = store.snapshot().tree(TREE).unwrap();
    let mut cursor = view.cursor(&source, KeyRange::all(), direction);
    let mut rows = 0;
    while rows < rows_max {
        let next = std::pin::pin!(cursor.next()).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(chunk) = next else { panic!("blocking pages never suspend") };
        let Some(chunk) = chunk.unwrap() else { break };
        rows += chunk.rows();
    }
    drop(cursor);
    (source.seen.into_inner(), rows)
}

#[test]
fn pages_are_advised_once_and_before_they_are_requested() {
    for value_bytes in [20_u64, 100, 1500] {
        let options = Options {
            buffer_bytes: 200_000,
            cache_bytes: 8 << 20,
            page_bytes: 4096,
            leaf_bytes: 512 << 10,
            fan_out: 4,
            node_buffer_bytes: 1 << 20,
            ..Options::default()
        };
        let device = Simulated::new(SimulatedOptions { seed: 1, ..Default::default() });
        let store = Store::open(device.device(), Path::new("/db"), options).unwrap();
        let map = KeyValue::open(&store, TREE).unwrap();
        let mut random = Random::new(2);
        let mut value = || (0..value_bytes).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
        let rows = 3_000_000 / (value_bytes + 20);
        let loaded: Vec<_> = (0..rows).map(|number| ((8 * number).to_be_bytes(), value())).collect();
        let mut writer = store.bulk_writer(TREE, &Schema::key_value());
        writer.push(&key_value_rows(loaded.iter().map(|(key, value)| (&key[..], &value[..])))).unwrap();
        store.install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
        for number in 0..rows / 8 {
            let mut batch = KeyValueBatch::default();
            batch.insert(&map, &(64 * number + 1).to_be_bytes(), &value());
            map.commit(batch).unwrap();
        }
        store.checkpoint().unwrap();
        let all = (rows + rows / 8) as usize;
        // The first scan reads the index pages.
        assert_eq!(scan(&store, Direction::Ascending, all + 1).1, all);
        for direction in [Direction::Ascending, Direction::Descending] {
            let (seen, found) = scan(&store, direction, all + 1);
            assert_eq!(found, all);
            let known: HashSet<u64> = seen.advised.iter().copied().collect();
            // A page of a run that has keys of two leaves is advised for both.
            let twice = seen.advised.len() - known.len();
            assert!(twice < 60, "{twice} of {} pages were advised twice", known.len());
            let unadvised =
                seen.requested.iter().filter(|page| !known.contains(page) && !seen.first.contains(page)).count();
            assert_eq!(unadvised, 0, "of {} pages, values of {value_bytes} bytes", seen.requested.len());
        }
        let (few, many) = (scan(&store, Direction::Ascending, 30).0, scan(&store, Direction::Ascending, all + 1).0);
        assert!(few.advised.len() < many.advised.len(), "{} pages", few.advised.len());
    }
}
