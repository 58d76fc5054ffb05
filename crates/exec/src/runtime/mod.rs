//! The runtime: pinned worker threads that run tasks and keep the device busy.
//!
//! ```text
//!            spawn, wake                page requests of tasks
//!   task  ───────────────▶  task queue ──────────────────────▶ backlog ──▶ device queue
//!    ▲                      (one a worker;                     (one a worker, ordered      │
//!    │                       idle workers steal)                by offset, coalesced)      │
//!    └──────────── woken by ◀── page into the cache, out of the table ◀────────────────────┘
//! ```
//!
//! A worker works in *turns*: some task polls, then one exchange with the device (hand over the pages asked for, take
//! what has come back, without waiting), and so on. When no task is ready it flushes the rows its pipelines hold back,
//! then steals, then sleeps in the device queue, where completions and other threads wake it.
//!
//! No wake-up is lost: whoever makes work available elsewhere than in a running worker's own queue does so first and looks
//! for a sleeper second; a worker announces its sleep first and looks for work second (all sequentially consistent); and
//! a wake-up of a device queue that is not yet waiting makes its next wait return at once.
//!
//! Workers end when the last handle of the executor is dropped, after all tasks have ended (their queries are stopped by
//! then) and all reads have come back.

mod in_flight;
mod reads;
mod worker;

use std::cell::{OnceCell, RefCell};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use async_task::Runnable;
use crossbeam_deque::{Injector, Stealer};
use futures::FutureExt;
use keyaki_llc::{Governor, WorkClass};
use keyaki_store::Store;
use parking_lot::Mutex;

use crate::query::Query;
use crate::{CacheUse, Error, ExecutorOptions, MemoryTrace, Result};

pub(crate) use in_flight::{OffsetMap, Outcome, PageRead, Table, corrupt_reference};

/// Rows that a pipeline holds back on a worker in order to work on many at a time.
pub(crate) trait Buffered: Send + Sync {
    /// Works on rows held back for `worker`, unless it is better to wait for more. Returns whether some are left.
    fn flush(self: Arc<Self>, worker: usize, urgency: Urgency) -> bool;
}

/// Why a worker flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Nothing else to do, though the device has as much to do as it can: rows may as well wait.
    Saturated,
    /// Nothing else to do, and the device could do more.
    Idle,
    /// Nothing in flight at all, or rows have been held back long enough.
    Starved,
}

/// A query that can be told that the executor has failed.
pub(crate) trait Fallible: Send + Sync {
    fn fail(&self, error: Error);
}

pub(crate) struct Runtime {
    pub store: Store,
    pub options: ExecutorOptions,
    pub table: Table,
    injector: Injector<Runnable>,
    stealers: Vec<Stealer<Runnable>>,
    /// Reads asked for by threads that are no workers.
    requests: Mutex<Vec<Arc<PageRead>>>,
    request_count: AtomicUsize,
    beds: Vec<Bed>,
    sleepers: AtomicUsize,
    tasks: AtomicUsize,
    closing: AtomicBool,
    /// A worker has panicked outside of any task.
    broken: AtomicBool,
    queries: Mutex<Vec<Weak<dyn Fallible>>>,
    /// Where accesses to memory are recorded, while …
    trace: Mutex<Option<Arc<MemoryTrace>>>,
    /// … they are.
    tracing: AtomicBool,
}

/// Where a worker sleeps.
struct Bed {
    asleep: AtomicBool,
    waker: Arc<dyn keyaki_device::Waker>,
}

/// What a worker thread keeps at hand for the tasks it runs.
struct Local {
    runtime: *const Runtime,
    worker: usize,
    tasks: crossbeam_deque::Worker<Runnable>,
    requests: RefCell<Vec<Arc<PageRead>>>,
    /// Pipelines with rows held back on this worker.
    buffered: RefCell<Vec<Arc<dyn Buffered>>>,
    announced: RefCell<Announced>,
}

/// What a worker has told a governor.
#[derive(Default)]
struct Announced {
    to: Option<(Governor, keyaki_llc::Worker)>,
    class: Option<WorkClass>,
}

impl Announced {
    /// Cheap if nothing changes. What is of no class does not end the class of the work before: it may be part of it.
    fn tell(&mut self, cache: &CacheUse) {
        if !self.to.as_ref().is_some_and(|(governor, _)| governor.is(&cache.governor)) {
            (self.to, self.class) = (Some((cache.governor.clone(), cache.governor.register())), None);
        }
        if self.class != Some(cache.class)
            && let Some((_, worker)) = &self.to
        {
            worker.switch(Some(cache.class));
            self.class = Some(cache.class);
        }
    }

    fn idle(&mut self) {
        if self.class.take().is_some()
            && let Some((_, worker)) = &self.to
        {
            worker.switch(None);
        }
    }
}

thread_local! {
    static LOCAL: OnceCell<Rc<Local>> = const { OnceCell::new() };
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("options", &self.options)
            .field("tasks", &self.tasks)
            .field("sleepers", &self.sleepers)
            .finish_non_exhaustive()
    }
}

/// Starts the workers.
pub(crate) fn start(store: Store, options: ExecutorOptions) -> Result<(Arc<Runtime>, Vec<JoinHandle<()>>)> {
    let deques: Vec<_> = (0..options.workers).map(|_| crossbeam_deque::Worker::new_fifo()).collect();
    let mut queues = Vec::with_capacity(options.workers);
    for _ in 0..options.workers {
        queues.push(store.device().queue(options.queue_depth)?);
    }
    let runtime = Arc::new(Runtime {
        table: Table::new(store.data_file().path()),
        store,
        injector: Injector::new(),
        stealers: deques.iter().map(|deque| deque.stealer()).collect(),
        requests: Mutex::default(),
        request_count: AtomicUsize::new(0),
        beds: queues.iter().map(|queue| Bed { asleep: AtomicBool::new(false), waker: queue.waker() }).collect(),
        sleepers: AtomicUsize::new(0),
        tasks: AtomicUsize::new(0),
        closing: AtomicBool::new(false),
        broken: AtomicBool::new(false),
        queries: Mutex::default(),
        trace: Mutex::default(),
        tracing: AtomicBool::new(false),
        options,
    });
    let mut threads = Vec::with_capacity(queues.len());
    for (index, (deque, queue)) in deques.into_iter().zip(queues).enumerate() {
        let worker_runtime = runtime.clone();
        let thread = std::thread::Builder::new()
            .name(format!("keyaki-worker-{index}"))
            .spawn(move || worker::main(worker_runtime, index, deque, queue));
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                runtime.close(threads);
                return Err(no_thread("keyaki-worker", error));
            }
        }
    }
    Ok((runtime, threads))
}

impl Runtime {
    /// Runs `future` on the workers. It must not panic: whoever spawns it catches panics and tells its query.
    pub fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        self.tasks.fetch_add(1, Ordering::SeqCst);
        let (live, runtime) = (LiveTask(self.clone()), self.clone());
        let task = async move {
            let _live = live;
            if AssertUnwindSafe(future).catch_unwind().await.is_err() {
                tracing::error!("a task panicked and its query was not told");
            }
        };
        let (runnable, handle) = async_task::spawn(task, move |runnable| runtime.schedule(runnable));
        handle.detach();
        runnable.schedule();
    }

    fn schedule(&self, runnable: Runnable) {
        if self.broken.load(Ordering::SeqCst) {
            return; // dropping it ends the task
        }
        let mut runnable = Some(runnable);
        let _ = self.with_local(|local| {
            if let Some(runnable) = runnable.take() {
                local.tasks.push(runnable);
            }
        });
        if let Some(runnable) = runnable {
            self.injector.push(runnable);
            self.wake_one();
        }
    }

    /// Asks a worker to read pages (those that [`Table::join`] told the caller to start).
    pub fn request(&self, reads: impl IntoIterator<Item = Arc<PageRead>>) {
        let mut reads = reads.into_iter().peekable();
        let _ = self.with_local(|local| local.requests.borrow_mut().extend(reads.by_ref()));
        if reads.peek().is_some() {
            let mut requests = self.requests.lock();
            let before = requests.len();
            requests.extend(reads);
            self.request_count.fetch_add(requests.len() - before, Ordering::SeqCst);
            drop(requests);
            if self.broken.load(Ordering::SeqCst) {
                self.table.fail_all(&broken_error());
            }
            self.wake_one();
        }
    }

    /// The number of the worker that runs the caller, if one of this runtime does.
    pub fn worker(&self) -> Option<usize> {
        self.with_local(|local| local.worker)
    }

    /// Records accesses to memory from now on, or no longer.
    pub fn set_trace(&self, trace: Option<Arc<MemoryTrace>>) {
        self.tracing.store(trace.is_some(), Ordering::SeqCst);
        *self.trace.lock() = trace;
    }

    /// Where accesses to memory are recorded now.
    #[inline]
    pub fn trace(&self) -> Option<Arc<MemoryTrace>> {
        if self.tracing.load(Ordering::Relaxed) { self.trace.lock().clone() } else { None }
    }

    /// The current worker works for this query now.
    pub fn announce(&self, query: &Query) {
        if let Some(cache) = &query.cache {
            let _ = self.with_local(|local| local.announced.borrow_mut().tell(cache));
        }
    }

    /// Has the current worker flush `pipeline` when it finds time.
    pub fn hold_back(&self, pipeline: Arc<dyn Buffered>) {
        let _ = self.with_local(|local| {
            let mut buffered = local.buffered.borrow_mut();
            if !buffered.last().is_some_and(|last| Arc::ptr_eq(last, &pipeline)) {
                buffered.push(pipeline);
            }
        });
    }

    /// Registers a query that waits for tasks. Fails it at once if the workers are gone.
    pub fn register(&self, query: Weak<dyn Fallible>) {
        let mut queries = self.queries.lock();
        queries.retain(|query| query.strong_count() > 0);
        queries.push(query.clone());
        drop(queries);
        if let (true, Some(query)) = (self.broken.load(Ordering::SeqCst), query.upgrade()) {
            query.fail(Error::WorkerGone);
        }
    }

    /// Tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.tasks.load(Ordering::SeqCst)
    }

    fn with_local<T>(&self, f: impl FnOnce(&Local) -> T) -> Option<T> {
        LOCAL
            .try_with(|local| local.get().filter(|local| std::ptr::eq(local.runtime, self)).map(|local| f(local)))
            .ok()?
    }

    fn wake_one(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        for bed in &self.beds {
            if bed.asleep.swap(false, Ordering::SeqCst) {
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
                bed.waker.wake();
                return;
            }
        }
    }

    fn wake_all(&self) {
        for bed in &self.beds {
            bed.waker.wake();
        }
    }

    fn may_end(&self) -> bool {
        self.broken.load(Ordering::SeqCst) || self.closing.load(Ordering::SeqCst) && self.task_count() == 0
    }

    /// Ends the workers and waits for them.
    pub fn close(&self, threads: Vec<JoinHandle<()>>) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake_all();
        for thread in threads {
            // The last handle may be dropped by a task; its worker cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a worker of the executor panicked");
            }
        }
    }

    /// A worker has panicked: everything that relies on workers fails.
    fn break_down(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.table.fail_all(&broken_error());
        let queries = std::mem::take(&mut *self.queries.lock());
        for query in queries.iter().filter_map(Weak::upgrade) {
            query.fail(Error::WorkerGone);
        }
        while !matches!(self.injector.steal(), crossbeam_deque::Steal::Empty) {}
        self.wake_all();
    }
}

/// The error for a thread that the operating system did not start.
pub(crate) fn no_thread(thread: &'static str, error: std::io::Error) -> Error {
    Error::Store(keyaki_store::Error::StartThread { thread, source: Arc::new(error) })
}

fn broken_error() -> keyaki_store::Error {
    Error::WorkerGone.of_page_source()
}

/// Counts a task for as long as it lives.
struct LiveTask(Arc<Runtime>);

impl Drop for LiveTask {
    fn drop(&mut self) {
        let last = self.0.tasks.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.0.closing.load(Ordering::SeqCst) {
            self.0.wake_all();
        }
    }
}
