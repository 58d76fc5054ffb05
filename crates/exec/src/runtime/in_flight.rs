//! The in-flight table: page reads under way, by offset. Tasks that need the same page share one read, whichever workers
//! run them.
//!
//! A read is registered from its first request until its page is cached. It ends in this order: the page enters the
//! cache, the read leaves the table, its waiters wake. So a task that finds a page neither in the cache nor in the table
//! may start a read. At worst, if it looked up both around the end of another read, a page is read twice.
//!
//! Invariants:
//! - At most one read per offset is registered.
//! - A read is registered once. The thread that removes it from the table completes it, so it is completed once.
//! - A completed read has no waiters, and gets no new ones.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use keyaki_primitives::sync::Mutex;
use keyaki_store::{Error, Page, PageRef, Priority, Projection, Result, Schema, Store};

use crate::query::Query;

const SHARDS: usize = 64;

/// One page that is being read, or waits to be.
#[derive(Debug)]
pub(crate) struct PageRead {
    pub page: PageRef,
    pub schema: Arc<Schema>,
    pub priority: Priority,
    /// The columns that the page keeps; `None` if these are all.
    pub projection: Option<Arc<Projection>>,
    /// The query that requested the page first; pins the views (see [`Query`]).
    pub owner: Arc<Query>,
    state: Mutex<ReadState>,
}

#[derive(Debug)]
enum ReadState {
    /// With the wakers of the waiters.
    Pending(Vec<Waker>),
    Done(Result<Arc<Page>>),
    /// Dropped before it reached the device, because its owner was stopped. Waiters of other queries request it again.
    Abandoned,
}

/// The result of waiting for a read.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    /// The read completed or failed.
    Page(Result<Arc<Page>>),
    /// The read never started; the waiter requests the page again.
    Retry,
}

impl PageRead {
    pub fn is_done(&self) -> bool {
        !matches!(*self.state.lock(), ReadState::Pending(_))
    }

    /// Resolves when the read has ended, even if the waiter's query is stopped.
    pub fn wait(self: &Arc<Self>) -> ReadWaiter {
        ReadWaiter { read: self.clone(), waker_index: None }
    }

    /// Called once, by the thread that removed the read from the table.
    fn complete(&self, state: ReadState) {
        let before = std::mem::replace(&mut *self.state.lock(), state);
        let ReadState::Pending(wakers) = before else {
            panic!("the read at offset {} completed twice", self.page.offset);
        };
        for waker in wakers {
            waker.wake();
        }
    }
}

/// The future of a read's end.
#[derive(Debug)]
pub(crate) struct ReadWaiter {
    read: Arc<PageRead>,
    /// Index of this waiter's waker among those of the read.
    waker_index: Option<usize>,
}

impl Future for ReadWaiter {
    type Output = ReadOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ReadOutcome> {
        let this = self.get_mut();
        match &mut *this.read.state.lock() {
            ReadState::Done(result) => Poll::Ready(ReadOutcome::Page(result.clone())),
            ReadState::Abandoned => Poll::Ready(ReadOutcome::Retry),
            ReadState::Pending(wakers) => {
                match this.waker_index {
                    // While a read is pending, wakers are only added, so the index stays valid.
                    Some(index) => wakers[index].clone_from(context.waker()),
                    None => {
                        this.waker_index = Some(wakers.len());
                        wakers.push(context.waker().clone());
                    }
                }
                Poll::Pending
            }
        }
    }
}

/// A hasher for offsets. They are multiples of 4096: one multiplication spreads them well enough.
#[derive(Debug, Default)]
pub(crate) struct OffsetHasher(u64);

impl Hasher for OffsetHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// A map keyed by offset.
pub(crate) type OffsetMap<K, V> = HashMap<K, V, BuildHasherDefault<OffsetHasher>>;

type Shard = Mutex<OffsetMap<u64, Arc<PageRead>>>;

/// All reads under way of one executor.
#[derive(Debug)]
pub(crate) struct InFlightTable {
    shards: Box<[Shard]>,
}

impl InFlightTable {
    pub fn new() -> Self {
        InFlightTable { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, offset: u64) -> &Shard {
        let mut hasher = OffsetHasher::default();
        hasher.write_u64(offset);
        &self.shards[(hasher.finish() >> 16) as usize % SHARDS]
    }

    /// The read of `page` under way, or a new one (`true`), which the caller passes to `Runtime::request`. A read under way
    /// may be one of other columns.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if another page is being read at the same offset: one of the two references is damaged.
    pub fn join(
        &self,
        store: &Store,
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
        projection: Option<&Arc<Projection>>,
        owner: &Arc<Query>,
    ) -> Result<(Arc<PageRead>, bool)> {
        match self.shard(page.offset).lock().entry(page.offset) {
            Entry::Occupied(entry) if entry.get().page == page => Ok((entry.get().clone(), false)),
            Entry::Occupied(entry) => {
                let other = entry.get().page;
                let detail = format!(
                    "length {} and checksum {:#010x} contradict length {} and checksum {:#010x} of a read in flight",
                    page.len, page.checksum, other.len, other.checksum
                );
                Err(corrupt_reference(store, page, detail))
            }
            Entry::Vacant(entry) => {
                let read = PageRead {
                    page,
                    schema: schema.clone(),
                    priority,
                    projection: projection.cloned(),
                    owner: owner.clone(),
                    state: Mutex::new(ReadState::Pending(Vec::new())),
                };
                Ok((entry.insert(Arc::new(read)).clone(), true))
            }
        }
    }

    /// Ends a read, after its page (if any) has entered the cache.
    pub fn finish(&self, read: &Arc<PageRead>, result: Result<Arc<Page>>) {
        if self.remove(read) {
            read.complete(ReadState::Done(result));
        }
    }

    /// Drops a read that has not been handed to the device.
    pub fn abandon(&self, read: &Arc<PageRead>) {
        if self.remove(read) {
            read.complete(ReadState::Abandoned);
        }
    }

    /// Takes a read out of the table. False if [`InFlightTable::fail_all`] took it before.
    fn remove(&self, read: &Arc<PageRead>) -> bool {
        match self.shard(read.page.offset).lock().entry(read.page.offset) {
            Entry::Occupied(entry) if Arc::ptr_eq(entry.get(), read) => {
                entry.remove();
                true
            }
            _ => false,
        }
    }

    /// Ends every registered read with `error`, in flight or not: the executor has stopped.
    pub fn fail_all(&self, error: &Error) {
        for shard in &self.shards {
            let reads: Vec<_> = shard.lock().drain().map(|(_, read)| read).collect();
            for read in reads {
                read.complete(ReadState::Done(Err(error.clone())));
            }
        }
    }
}

/// The error for a page reference that cannot be right.
pub(crate) fn corrupt_reference(store: &Store, page: PageRef, detail: String) -> Error {
    Error::Corrupt {
        path: store.data_file().path().to_path_buf(),
        what: "page reference",
        offset: Some(page.offset),
        detail,
    }
}
