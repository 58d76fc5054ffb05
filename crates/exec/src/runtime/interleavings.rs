//! The table of reads in flight under shuttle: tasks request the same pages, and readers end the reads with an error,
//! drop them, or fail all of them. Reads that succeed are covered by the tests of the executor.
//!
//! A waiter that is not resumed is a deadlock, which shuttle reports. A read that ends twice panics.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::sync::thread::{spawn, yield_now};
use keyaki_primitives::sync::{Limits, Mutex, explore};
use keyaki_store::{Options, PageRef, Priority, Schema, Store, TreeId};

use super::{InFlightTable, PageRead, ReadOutcome};
use crate::base::Error;
use crate::query::{Query, Stats};

const PAGES: [PageRef; 2] = [page(4096), page(8192)];

const fn page(offset: u64) -> PageRef {
    PageRef { offset, len: 4096, checksum: 0, tree: TreeId::new(20) }
}

struct Model {
    table: InFlightTable,
    store: Store,
    schema: Arc<Schema>,
    query: Arc<Query>,
    /// Registered reads that no reader has taken.
    requests: Mutex<Vec<Arc<PageRead>>>,
    /// By page: a read is registered and has not ended.
    is_reading: [AtomicBool; 2],
    /// The wakers of all waiters that did not find the end of their read.
    wakers: Mutex<Vec<Arc<CountingWaker>>>,
    /// Reads registered and reads ended.
    registered: AtomicUsize,
    ended: AtomicUsize,
}

/// How a reader ends a read.
#[derive(Debug, Clone, Copy)]
enum End {
    Fail,
    Abandon,
}

impl Model {
    fn new() -> Model {
        let device = Simulated::new(SimulatedOptions::default()).device();
        let store = Store::open(device, "/db".as_ref(), Options::default()).unwrap();
        Model {
            table: InFlightTable::new(),
            store,
            schema: Arc::new(Schema::key_value()),
            query: Arc::new(Query::new(Stats::default(), Vec::new(), None)),
            requests: Mutex::default(),
            is_reading: [AtomicBool::new(false), AtomicBool::new(false)],
            wakers: Mutex::default(),
            registered: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        }
    }

    /// A task: requests a page until a read of it ends with an outcome other than a retry.
    fn request(&self, index: usize) {
        shuttle::future::block_on(async {
            loop {
                let (table, store, page) = (&self.table, &self.store, PAGES[index]);
                let joined = table.join(store, page, &self.schema, Priority::Scan, None, &self.query);
                let (read, is_new) = joined.unwrap();
                if is_new {
                    let is_second = self.is_reading[index].swap(true, Ordering::SeqCst);
                    assert!(!is_second, "two reads of page {index} at a time");
                    self.registered.fetch_add(1, Ordering::SeqCst);
                    self.requests.lock().push(read.clone());
                }
                let outcome = self.wait(&read).await;
                assert!(read.is_done());
                match outcome {
                    ReadOutcome::Page(result) => {
                        assert!(result.is_err());
                        return;
                    }
                    ReadOutcome::Retry => {}
                }
            }
        });
    }

    /// Waits for the end of a read. Each waiter has a waker of its own: shuttle's would also count the waits for locks.
    async fn wait(&self, read: &Arc<PageRead>) -> ReadOutcome {
        let mut waiter = read.wait();
        let (mut waker, mut is_kept) = (None, false);
        poll_fn(|context| {
            let waker = waker.get_or_insert_with(|| {
                Arc::new(CountingWaker { inner: context.waker().clone(), calls: AtomicUsize::new(0) })
            });
            let polled = Pin::new(&mut waiter).poll(&mut Context::from_waker(&Waker::from(waker.clone())));
            if polled.is_pending() && !std::mem::replace(&mut is_kept, true) {
                self.wakers.lock().push(waker.clone());
            }
            polled
        })
        .await
    }

    /// Checks that every waiter was resumed once.
    fn check(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        let calls = wakers.iter().map(|waker| waker.calls.load(Ordering::SeqCst));
        assert!(calls.clone().all(|calls| calls == 1), "waiters were resumed {:?} times", calls.collect::<Vec<_>>());
    }

    /// A reader: ends reads as long as tasks wait, the first ones as `ends` says, the others with an error.
    fn read(&self, ends: &[End], tasks: &AtomicUsize) {
        let mut ends = ends.iter();
        while tasks.load(Ordering::SeqCst) > 0 {
            let taken = self.requests.lock().pop();
            let Some(read) = taken else {
                yield_now();
                continue;
            };
            self.end(&read);
            match ends.next().unwrap_or(&End::Fail) {
                End::Fail => self.table.finish(&read, Err(Error::ExecutorStopped.into_store_error())),
                End::Abandon => self.table.abandon(&read),
            }
            assert!(read.is_done());
        }
    }

    /// Records that a read is about to leave the table.
    fn end(&self, read: &PageRead) {
        let index = PAGES.iter().position(|page| *page == read.page).unwrap();
        let was_reading = self.is_reading[index].swap(false, Ordering::SeqCst);
        assert!(was_reading, "a read of page {index} ended twice");
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that counts its calls.
struct CountingWaker {
    inner: Waker,
    calls: AtomicUsize,
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.inner.wake_by_ref();
    }
}

/// Runs a task for each page number in `pages`, and a reader for each list of ends.
fn run(schedules: usize, pages: &'static [usize], readers: &'static [&'static [End]]) {
    explore(Limits::schedules(schedules), move || {
        let (model, tasks) = (Arc::new(Model::new()), Arc::new(AtomicUsize::new(pages.len())));
        let mut threads = Vec::new();
        for &index in pages {
            let (model, tasks) = (model.clone(), tasks.clone());
            threads.push(spawn(move || {
                model.request(index);
                tasks.fetch_sub(1, Ordering::SeqCst);
            }));
        }
        for &ends in readers {
            let (model, tasks) = (model.clone(), tasks.clone());
            threads.push(spawn(move || model.read(ends, &tasks)));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(model.registered.load(Ordering::SeqCst), model.ended.load(Ordering::SeqCst));
        model.check();
    });
}

#[test]
fn tasks_share_a_read() {
    run(500, &[0, 0, 0], &[&[]]);
}

#[test]
fn tasks_share_reads_of_two_readers() {
    run(500, &[0, 1, 0, 1], &[&[], &[]]);
}

#[test]
fn dropped_reads_are_requested_again() {
    run(500, &[0, 0, 1], &[&[End::Abandon, End::Fail, End::Abandon]]);
}

/// The executor stops while readers end reads: each read ends once, whichever thread ends it.
#[test]
fn all_reads_fail_beside_readers() {
    explore(Limits::schedules(500), || {
        let model = Arc::new(Model::new());
        let mut threads = Vec::new();
        for index in [0, 0, 1] {
            let model = model.clone();
            threads.push(spawn(move || {
                let (read, is_new) = model
                    .table
                    .join(&model.store, PAGES[index], &model.schema, Priority::Scan, None, &model.query)
                    .unwrap();
                if is_new {
                    model.requests.lock().push(read.clone());
                }
                let outcome = shuttle::future::block_on(model.wait(&read));
                assert!(matches!(outcome, ReadOutcome::Page(Err(_))));
            }));
        }
        let reader = model.clone();
        threads.push(spawn(move || {
            let error = Error::ExecutorStopped.into_store_error();
            for _ in 0..2 {
                let taken = reader.requests.lock().pop();
                if let Some(read) = taken {
                    reader.table.finish(&read, Err(error.clone()));
                }
            }
        }));
        let stopper = model.clone();
        threads.push(spawn(move || {
            // As `Runtime::request` after the stop: reads registered later fail, too.
            while Arc::strong_count(&stopper) > 2 {
                stopper.table.fail_all(&Error::ExecutorStopped.into_store_error());
                yield_now();
            }
        }));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        model.check();
    });
}
