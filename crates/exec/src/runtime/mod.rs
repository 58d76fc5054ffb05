//! The runtime: pinned worker threads that poll fibers and keep the device busy.
//!
//! A *fiber* is a future that runs the tasks of one pipeline, one after another, and is suspended while a page is read.
//!
//! ```text
//!            spawn, wake                  page requests
//!   fiber ───────────────▶  ready queue ─────────────────────▶ backlog ──▶ device queue
//!    ▲                      (one per worker;                   (one per worker, ordered    │
//!    │                       idle workers steal)                by offset, coalesced)      │
//!    └──────────── woken by ◀── page into the cache, read out of the in-flight table ◀─────┘
//! ```
//!
//! A worker works in *turns*: it polls a bounded number of fibers, then exchanges with the device (submits the requested
//! pages and takes completions, without waiting). When no fiber is ready, it flushes the rows that pipelines hold back on
//! this worker, then steals fibers, then sleeps in the device queue, where completions and other threads wake it.
//!
//! No wake-up is lost. A thread that makes work available outside a running worker's own queue does so first, and looks
//! for a sleeper second. A worker announces its sleep first, and looks for work second. Both use sequentially consistent
//! operations, and a wake-up of a device queue that is not waiting makes its next wait return immediately.
//!
//! Workers end when the last handle of the executor is dropped, after all fibers have ended (their queries are stopped by
//! then) and all reads have completed.
//!
//! Invariants: `sleepers` is at least the number of [`SleepState`]s that are asleep; `fibers` counts live fibers;
//! `request_count` is the length of `requests`. All three are asserted at each decrement.

mod in_flight;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod reads;
mod worker;

use std::cell::{OnceCell, RefCell};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use async_task::Runnable;
use crossbeam_deque::{Injector, Stealer};
use futures::FutureExt;
use keyaki_llc::{Governor, WorkClass};
use keyaki_primitives::sync::Mutex;
use keyaki_primitives::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use keyaki_primitives::sync::thread::{Builder, JoinHandle, current, thread_local};
use keyaki_store::Store;

use crate::base::{Error, ExecutorOptions, Result};
use crate::query::{CacheUse, MemoryTrace, Query};

pub(crate) use in_flight::{InFlightTable, OffsetMap, PageRead, ReadOutcome, corrupt_reference};

/// A pipeline that buffers rows per worker, in order to process many at a time.
pub(crate) trait BuffersRows: Send + Sync {
    /// Processes the rows buffered on `worker`, unless it is better to wait for more. Returns true if rows remain.
    fn flush(self: Arc<Self>, worker: usize, urgency: Urgency) -> bool;
}

/// The state of a worker that flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// No fiber is ready, and the device is busy up to its queue depth: rows may wait.
    Saturated,
    /// No fiber is ready, and the device could do more.
    Idle,
    /// No read is in flight, or rows have been buffered for long enough.
    Starved,
}

/// A query that ends with an error when the executor stops.
pub(crate) trait Fallible: Send + Sync {
    fn fail(&self, error: Error);
}

/// The state shared by the workers of one executor.
pub(crate) struct Runtime {
    pub store: Store,
    /// `workers` and `queue_depth` are at least 1.
    pub options: ExecutorOptions,
    pub in_flight: InFlightTable,
    /// Ready fibers scheduled by threads that are no workers.
    injector: Injector<Runnable>,
    /// Ready queues, by worker.
    stealers: Vec<Stealer<Runnable>>,
    /// Reads requested by threads that are no workers.
    requests: Mutex<Vec<Arc<PageRead>>>,
    request_count: AtomicUsize,
    /// By worker.
    sleep_states: Vec<SleepState>,
    sleepers: AtomicUsize,
    fibers: AtomicUsize,
    closing: AtomicBool,
    /// A worker has panicked outside of any fiber.
    stopped: AtomicBool,
    queries: Mutex<Vec<Weak<dyn Fallible>>>,
    /// Receives the memory accesses of new queries.
    trace: Mutex<Option<Arc<MemoryTrace>>>,
    /// `trace` is set; saves queries the lock.
    is_tracing: AtomicBool,
}

/// The sleep of one worker, and the means to end it.
struct SleepState {
    asleep: AtomicBool,
    waker: Arc<dyn keyaki_device::Waker>,
}

/// The state of a worker thread that fibers reach through [`CONTEXT`].
struct WorkerContext {
    /// Identifies the runtime; never dereferenced.
    runtime: *const Runtime,
    worker: usize,
    /// Fibers ready to be polled.
    ready: crossbeam_deque::Worker<Runnable>,
    requests: RefCell<Vec<Arc<PageRead>>>,
    /// Pipelines with rows buffered on this worker.
    buffered: RefCell<Vec<Arc<dyn BuffersRows>>>,
    announced: RefCell<AnnouncedClass>,
}

/// The class of work that a worker has announced to a governor.
#[derive(Default)]
struct AnnouncedClass {
    registered: Option<(Governor, keyaki_llc::Worker)>,
    class: Option<WorkClass>,
}

impl AnnouncedClass {
    /// Announces a class; cheap while it stays the same. Work without a class does not end the class of the work before
    /// it, because it may be part of that work.
    fn announce(&mut self, cache: &CacheUse) {
        if !self.registered.as_ref().is_some_and(|(governor, _)| governor.is(&cache.governor)) {
            self.registered = Some((cache.governor.clone(), cache.governor.register()));
            self.class = None;
        }
        if self.class != Some(cache.class)
            && let Some((_, worker)) = &self.registered
        {
            worker.switch(Some(cache.class));
            self.class = Some(cache.class);
        }
    }

    /// Announces that the worker sleeps.
    fn withdraw(&mut self) {
        if self.class.take().is_some()
            && let Some((_, worker)) = &self.registered
        {
            worker.switch(None);
        }
    }
}

thread_local! {
    /// Set on worker threads.
    static CONTEXT: OnceCell<Rc<WorkerContext>> = const { OnceCell::new() };
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("options", &self.options)
            .field("fibers", &self.fibers)
            .field("sleepers", &self.sleepers)
            .finish_non_exhaustive()
    }
}

/// Starts the workers.
pub(crate) fn start(store: Store, options: ExecutorOptions) -> Result<(Arc<Runtime>, Vec<JoinHandle<()>>)> {
    assert!(options.workers > 0 && options.queue_depth > 0, "an executor has workers and a queue depth");
    let deques: Vec<_> = (0..options.workers).map(|_| crossbeam_deque::Worker::new_fifo()).collect();
    let mut queues = Vec::with_capacity(options.workers);
    for _ in 0..options.workers {
        queues.push(store.device().queue(options.queue_depth)?);
    }
    let runtime = Arc::new(Runtime {
        store,
        in_flight: InFlightTable::new(),
        injector: Injector::new(),
        stealers: deques.iter().map(|deque| deque.stealer()).collect(),
        requests: Mutex::default(),
        request_count: AtomicUsize::new(0),
        sleep_states: queues
            .iter()
            .map(|queue| SleepState { asleep: AtomicBool::new(false), waker: queue.waker() })
            .collect(),
        sleepers: AtomicUsize::new(0),
        fibers: AtomicUsize::new(0),
        closing: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
        queries: Mutex::default(),
        trace: Mutex::default(),
        is_tracing: AtomicBool::new(false),
        options,
    });
    let mut threads = Vec::with_capacity(queues.len());
    for (index, (deque, queue)) in deques.into_iter().zip(queues).enumerate() {
        let (worker_runtime, name) = (runtime.clone(), format!("keyaki-worker-{index}"));
        let thread = Builder::new().name(name.clone()).spawn(move || worker::main(worker_runtime, index, deque, queue));
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                runtime.close(threads);
                return Err(Error::start_thread(&name, error));
            }
        }
    }
    Ok((runtime, threads))
}

impl Runtime {
    /// Runs a fiber on the workers. It catches the panics of its tasks and passes them to its query.
    pub fn spawn(self: &Arc<Self>, fiber: impl Future<Output = ()> + Send + 'static) {
        self.fibers.fetch_add(1, Ordering::SeqCst);
        let (live, runtime) = (LiveFiber(self.clone()), self.clone());
        let counted = async move {
            let _live = live;
            if AssertUnwindSafe(fiber).catch_unwind().await.is_err() {
                tracing::error!("a fiber panicked without notifying its query");
            }
        };
        let (runnable, handle) = async_task::spawn(counted, move |runnable| runtime.schedule(runnable));
        handle.detach();
        runnable.schedule();
    }

    fn schedule(&self, runnable: Runnable) {
        if self.is_stopped() {
            return; // Dropping the runnable ends the fiber.
        }
        let mut runnable = Some(runnable);
        let _ = self.with_context(|context| {
            if let Some(runnable) = runnable.take() {
                context.ready.push(runnable);
            }
        });
        if let Some(runnable) = runnable {
            self.injector.push(runnable);
            self.wake_one();
        }
    }

    /// Requests reads that [`InFlightTable::join`] has registered for the caller.
    pub fn request(&self, reads: impl IntoIterator<Item = Arc<PageRead>>) {
        let mut reads = reads.into_iter().peekable();
        let _ = self.with_context(|context| context.requests.borrow_mut().extend(reads.by_ref()));
        if reads.peek().is_some() {
            let mut requests = self.requests.lock();
            let before = requests.len();
            requests.extend(reads);
            self.request_count.fetch_add(requests.len() - before, Ordering::SeqCst);
            drop(requests);
            if self.is_stopped() {
                self.in_flight.fail_all(&Error::ExecutorStopped.into_store_error());
            }
            self.wake_one();
        }
    }

    /// Takes the requests of threads that are no workers.
    fn take_requests(&self) -> Vec<Arc<PageRead>> {
        if self.request_count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut requests = self.requests.lock();
        let before = self.request_count.fetch_sub(requests.len(), Ordering::SeqCst);
        // The count changes under the lock only.
        assert_eq!(before, requests.len(), "count of requests");
        std::mem::take(&mut *requests)
    }

    /// The number of the worker that runs the caller; `None` on other threads, including workers of other executors.
    pub fn worker(&self) -> Option<usize> {
        self.with_context(|context| context.worker)
    }

    /// Sets or ends the trace of new queries.
    pub fn set_trace(&self, trace: Option<Arc<MemoryTrace>>) {
        self.is_tracing.store(trace.is_some(), Ordering::SeqCst);
        *self.trace.lock() = trace;
    }

    /// The trace of new queries.
    #[inline]
    pub fn trace(&self) -> Option<Arc<MemoryTrace>> {
        if self.is_tracing.load(Ordering::Relaxed) { self.trace.lock().clone() } else { None }
    }

    /// Announces that the current worker works for this query from now on.
    pub fn announce(&self, query: &Query) {
        if let Some(cache) = &query.cache {
            let _ = self.with_context(|context| context.announced.borrow_mut().announce(cache));
        }
    }

    /// Makes the current worker flush `pipeline` when no fiber is ready.
    pub fn flush_later(&self, pipeline: Arc<dyn BuffersRows>) {
        let _ = self.with_context(|context| {
            let mut buffered = context.buffered.borrow_mut();
            if !buffered.last().is_some_and(|last| Arc::ptr_eq(last, &pipeline)) {
                buffered.push(pipeline);
            }
        });
    }

    /// Registers a query to be failed when the executor stops. Fails it immediately if the executor has stopped.
    pub fn register(&self, query: Weak<dyn Fallible>) {
        let mut queries = self.queries.lock();
        queries.retain(|query| query.strong_count() > 0);
        queries.push(query.clone());
        drop(queries);
        if let (true, Some(query)) = (self.is_stopped(), query.upgrade()) {
            query.fail(Error::ExecutorStopped);
        }
    }

    /// Fibers that have not ended.
    pub fn fiber_count(&self) -> usize {
        self.fibers.load(Ordering::SeqCst)
    }

    /// A worker has panicked outside of any fiber: no worker runs any more.
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn with_context<T>(&self, f: impl FnOnce(&WorkerContext) -> T) -> Option<T> {
        CONTEXT
            .try_with(|context| context.get().filter(|context| std::ptr::eq(context.runtime, self)).map(|own| f(own)))
            .ok()?
    }

    fn wake_one(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        for state in &self.sleep_states {
            if self.end_sleep(state) {
                state.waker.wake();
                return;
            }
        }
    }

    /// Marks a worker as awake. True if it was asleep.
    fn end_sleep(&self, state: &SleepState) -> bool {
        let was_asleep = state.asleep.swap(false, Ordering::SeqCst);
        if was_asleep {
            let before = self.sleepers.fetch_sub(1, Ordering::SeqCst);
            assert!(before > 0, "a worker was asleep that is not counted");
        }
        was_asleep
    }

    fn wake_all(&self) {
        for state in &self.sleep_states {
            state.waker.wake();
        }
    }

    /// Workers end as soon as they have no reads.
    fn may_end(&self) -> bool {
        self.is_stopped() || self.closing.load(Ordering::SeqCst) && self.fiber_count() == 0
    }

    /// Ends the workers and waits for them.
    pub fn close(&self, threads: Vec<JoinHandle<()>>) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake_all();
        for thread in threads {
            // A fiber may drop the last handle; its worker cannot join itself.
            if thread.thread().id() != current().id() && thread.join().is_err() {
                tracing::error!("worker thread of the executor panicked");
            }
        }
    }

    /// Fails all reads, queries and fibers after a worker has panicked.
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.in_flight.fail_all(&Error::ExecutorStopped.into_store_error());
        let queries = std::mem::take(&mut *self.queries.lock());
        for query in queries.iter().filter_map(Weak::upgrade) {
            query.fail(Error::ExecutorStopped);
        }
        while !matches!(self.injector.steal(), crossbeam_deque::Steal::Empty) {}
        self.wake_all();
    }
}

/// Counts a fiber as long as it lives.
struct LiveFiber(Arc<Runtime>);

impl Drop for LiveFiber {
    fn drop(&mut self) {
        let before = self.0.fibers.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a fiber ended that is not counted");
        if before == 1 && self.0.closing.load(Ordering::SeqCst) {
            self.0.wake_all();
        }
    }
}
