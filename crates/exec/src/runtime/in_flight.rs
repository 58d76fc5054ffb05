//! Page reads under way, by offset: tasks that need one page share one read, on whatever workers they run.
//!
//! A read is *registered* here from the moment somebody asks for it until its page is in the cache. The order at the end
//! is: page into the cache, out of the table, waiters woken. So whoever finds a page neither in the cache nor in the
//! table may start a read; at worst (both looked up just around the end of another read) a page is read twice.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use keyaki_store::{Error, Page, PageRef, Priority, Result, Schema};
use parking_lot::Mutex;

use crate::query::Query;

const SHARDS: usize = 64;

/// One page that is being read, or about to be.
#[derive(Debug)]
pub(crate) struct PageRead {
    pub page: PageRef,
    pub schema: Arc<Schema>,
    pub priority: Priority,
    /// Who asked first; pins the views (see [`Query`]).
    pub owner: Arc<Query>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Waiting(Vec<Waker>),
    Done(Result<Arc<Page>>),
    /// Dropped before it reached the device, because its owner was stopped. Waiters of other queries ask again.
    Abandoned,
}

/// How a read ended, for a waiter.
#[derive(Debug)]
pub(crate) enum Outcome {
    Page(Result<Arc<Page>>),
    AskAgain,
}

impl PageRead {
    pub fn is_done(&self) -> bool {
        !matches!(*self.state.lock(), State::Waiting(_))
    }

    /// Resolves when the read has ended. The waiter's own query is not looked at.
    pub fn wait(self: &Arc<Self>) -> Waiter {
        Waiter { read: self.clone(), slot: None }
    }

    fn end(&self, state: State) {
        let before = std::mem::replace(&mut *self.state.lock(), state);
        if let State::Waiting(wakers) = before {
            for waker in wakers {
                waker.wake();
            }
        }
    }
}

/// A waiter's place among the wakers of a read.
#[derive(Debug)]
pub(crate) struct Waiter {
    read: Arc<PageRead>,
    slot: Option<usize>,
}

impl Future for Waiter {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.get_mut();
        match &mut *this.read.state.lock() {
            State::Done(result) => Poll::Ready(Outcome::Page(result.clone())),
            State::Abandoned => Poll::Ready(Outcome::AskAgain),
            State::Waiting(wakers) => {
                match this.slot {
                    // Wakers are only ever added while the state is `Waiting`, so the slot is still this waiter's.
                    Some(slot) => wakers[slot].clone_from(context.waker()),
                    None => {
                        this.slot = Some(wakers.len());
                        wakers.push(context.waker().clone());
                    }
                }
                Poll::Pending
            }
        }
    }
}

/// Offsets are multiples of 4096: one multiplication spreads them well enough.
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

pub(crate) type OffsetMap<K, V> = HashMap<K, V, BuildHasherDefault<OffsetHasher>>;

type Shard = Mutex<OffsetMap<u64, Arc<PageRead>>>;

/// The error for a page reference that cannot be right: what it was read from is damaged.
pub(crate) fn corrupt_reference(path: &Path, page: PageRef, detail: String) -> Error {
    Error::Corrupt { path: path.to_path_buf(), what: "page reference", offset: Some(page.offset), detail }
}

/// All reads under way of one executor.
#[derive(Debug)]
pub(crate) struct Table {
    shards: Box<[Shard]>,
    /// The data file, for errors.
    path: PathBuf,
}

impl Table {
    pub fn new(path: &Path) -> Self {
        Table { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), path: path.to_path_buf() }
    }

    fn shard(&self, offset: u64) -> &Shard {
        let mut hasher = OffsetHasher::default();
        hasher.write_u64(offset);
        &self.shards[(hasher.finish() >> 16) as usize % SHARDS]
    }

    /// The read of `page` under way, or a new one that the caller has to start (`true`).
    ///
    /// # Errors
    /// [`Error::Corrupt`] if another page is being read at the same offset: one of the two references is wrong.
    pub fn join(
        &self,
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
        owner: &Arc<Query>,
    ) -> Result<(Arc<PageRead>, bool)> {
        match self.shard(page.offset).lock().entry(page.offset) {
            Entry::Occupied(entry) if entry.get().page == page => Ok((entry.get().clone(), false)),
            Entry::Occupied(entry) => {
                let detail = format!("{page:?} is requested while {:?} is being read", entry.get().page);
                Err(corrupt_reference(&self.path, page, detail))
            }
            Entry::Vacant(entry) => {
                let read = PageRead {
                    page,
                    schema: schema.clone(),
                    priority,
                    owner: owner.clone(),
                    state: Mutex::new(State::Waiting(Vec::new())),
                };
                Ok((entry.insert(Arc::new(read)).clone(), true))
            }
        }
    }

    /// Ends a read, after its page (if any) was put into the cache.
    pub fn finish(&self, read: &PageRead, result: Result<Arc<Page>>) {
        self.shard(read.page.offset).lock().remove(&read.page.offset);
        read.end(State::Done(result));
    }

    /// Drops a read that has not been handed to the device.
    pub fn abandon(&self, read: &PageRead) {
        self.shard(read.page.offset).lock().remove(&read.page.offset);
        read.end(State::Abandoned);
    }

    /// Ends every read with `error`.
    pub fn fail_all(&self, error: &Error) {
        for shard in &self.shards {
            let reads: Vec<_> = shard.lock().drain().map(|(_, read)| read).collect();
            for read in reads {
                read.end(State::Done(Err(error.clone())));
            }
        }
    }
}
