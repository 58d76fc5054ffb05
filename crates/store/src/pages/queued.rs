//! Pages for one caller that keeps many reads in flight: it polls its futures, and waits for the device when none of
//! them can proceed.
//!
//! ```text
//! page()      cached? -> read ahead? -> registered in `under_way`, added to the backlog, suspended
//! prefetch()  kept as advice, in reading order
//! block_on()  polls; when the future is pending: backlog -> device (neighbouring pages in one read) -> cache -> wake
//! ```
//!
//! *Read-ahead.* Advised pages are read once a page is missing: first [`AHEAD_BYTES_MIN`], later as many bytes as have been
//! used, up to the budget of the source, so that short ranges read little more than they need and long ones reach the
//! bandwidth of the device. Pages that the cache answers cost nothing.
//!
//! *Invariants.* Pages enter the cache only inside of [`QueuedPages::block_on`], whose future references their extents.
//! A page of `under_way` is in one of the backlog, the retries and the reads in flight. `ahead_bytes` is the sum of the
//! bytes counted in `ahead`, and exceeds the window by a single page at most.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use keyaki_device::{Buffer, Completion, Op, Queue, Request, Wait};
use keyaki_primitives::sync::Mutex;

use crate::base::{Error, Result, Schema};
use crate::codec::{Page, PageRef};
use crate::pages::{Files, PageSource, Priority};

/// Reads in flight for one caller.
pub(crate) const READS_MAX: usize = 64;
/// Maximum length in bytes of a read of neighbouring pages. A longer page is read alone.
const READ_BYTES_MAX: usize = 256 << 10;
/// Bytes of the first pages that are read ahead.
const AHEAD_BYTES_MIN: usize = 64 << 10;
/// Queues kept for later callers, with their buffers.
const IDLE_MAX: usize = 4;

/// A page source for [`QueuedPages::block_on`].
#[derive(Debug)]
pub(crate) struct QueuedPages {
    files: Arc<Files>,
    read_ahead_bytes: usize,
    reads: Mutex<Reads>,
}

/// The state of the reads. Only the thread in a call of the source locks it.
struct Reads {
    queue: Option<Box<dyn Queue>>,
    /// Pages being read, or about to be, by offset.
    under_way: HashMap<u64, Arc<PageRead>>,
    /// The pages of `under_way` that are not handed to the device yet.
    backlog: BTreeMap<u64, Arc<PageRead>>,
    /// Pages of reads that have failed together, to be read one by one.
    retries: Vec<Arc<PageRead>>,
    /// By tag.
    in_flight: HashMap<u64, Vec<Arc<PageRead>>>,
    next_tag: u64,
    completions: Vec<Completion>,
    /// Pages read ahead or about to be, and not yet requested.
    /// With the bytes of the window that they use.
    ahead: HashMap<u64, (Arc<PageRead>, usize)>,
    ahead_bytes: usize,
    /// Bytes of pages that were read ahead and requested later.
    used_bytes: u64,
    /// The current limit of `ahead_bytes`.
    window_bytes: usize,
    /// Pages advised, in reading order. Those that are not in `waiting` have been requested since.
    advised: VecDeque<PageRef>,
    waiting: HashMap<u64, Arc<Schema>>,
}

/// The read of one page.
#[derive(Debug)]
struct PageRead {
    page: PageRef,
    schema: Arc<Schema>,
    priority: Priority,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// With the wakers of the futures that wait.
    Pending(Vec<Waker>),
    Done(Result<Arc<Page>>),
}

impl PageRead {
    fn poll(&self, context: &Context<'_>) -> Poll<Result<Arc<Page>>> {
        match &mut *self.state.lock() {
            State::Done(result) => Poll::Ready(result.clone()),
            State::Pending(wakers) => {
                if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                    wakers.push(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    fn finish(&self, result: Result<Arc<Page>>) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Done(result));
        if let State::Pending(wakers) = before {
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl QueuedPages {
    /// A source that reads ahead at most `read_ahead_bytes` bytes, or one page; 0 disables read-ahead.
    pub fn new(files: Arc<Files>, read_ahead_bytes: usize) -> Self {
        let reads = Reads {
            queue: None,
            under_way: HashMap::new(),
            backlog: BTreeMap::new(),
            retries: Vec::new(),
            in_flight: HashMap::new(),
            next_tag: 0,
            completions: Vec::new(),
            ahead: HashMap::new(),
            ahead_bytes: 0,
            used_bytes: 0,
            window_bytes: AHEAD_BYTES_MIN.min(read_ahead_bytes),
            advised: VecDeque::new(),
            waiting: HashMap::new(),
        };
        QueuedPages { files, read_ahead_bytes, reads: Mutex::new(reads) }
    }

    /// Runs a future that gets its pages from this source only. Blocks while none of them has arrived.
    ///
    /// # Panics
    /// If the future waits for anything else.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let mut reads = self.reads.lock();
            match polled {
                Poll::Ready(value) => {
                    // The device works on the read-ahead while the caller works on the value.
                    reads.start(&self.files);
                    return value;
                }
                Poll::Pending => reads.wait(&self.files),
            }
        }
    }

    /// The outcome of the read of a page, which is begun if there is none.
    fn poll_read(
        &self,
        joined: &mut Option<Arc<PageRead>>,
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
        context: &Context<'_>,
    ) -> Poll<Result<Arc<Page>>> {
        if joined.is_none() {
            let mut reads = self.reads.lock();
            let ahead = reads.take_ahead(page);
            if ahead.is_some() {
                reads.used_bytes += u64::from(page.len);
                let used = usize::try_from(reads.used_bytes).unwrap_or(usize::MAX);
                reads.window_bytes = used.max(AHEAD_BYTES_MIN).min(self.read_ahead_bytes);
                self.fill(&mut reads);
            }
            // A failed read-ahead is not final.
            *joined = ahead.filter(|read| !matches!(&*read.state.lock(), State::Done(Err(_))));
            if joined.is_none() {
                if let Some(found) = self.files.cache.get(page.offset) {
                    return Poll::Ready(Ok(found));
                }
                if let Err(error) = self.files.check_open() {
                    return Poll::Ready(Err(error));
                }
                *joined = Some(reads.begin(&self.files, page, schema, priority));
                self.fill(&mut reads);
            }
        }
        joined.as_ref().map_or(Poll::Pending, |read| read.poll(context))
    }

    /// Begins to read advised pages, if less than half of the window is used. Whole batches make long reads.
    fn fill(&self, reads: &mut Reads) {
        if reads.ahead_bytes > reads.window_bytes / 2 {
            return;
        }
        while let Some(&page) = reads.advised.front() {
            if let Some(schema) = reads.waiting.get(&page.offset).cloned()
                && self.files.cache.peek(page.offset).is_none()
            {
                let len = page.len as usize;
                if reads.ahead_bytes > 0 && reads.ahead_bytes + len > reads.window_bytes {
                    return;
                }
                self.read_ahead(reads, page, &schema, len);
            }
            reads.waiting.remove(&page.offset);
            reads.advised.pop_front();
        }
    }

    /// Begins to read a page, of which `counted` bytes use the window.
    fn read_ahead(&self, reads: &mut Reads, page: PageRef, schema: &Arc<Schema>, counted: usize) {
        if !reads.ahead.contains_key(&page.offset) {
            let read = reads.begin(&self.files, page, schema, Priority::Scan);
            reads.ahead.insert(page.offset, (read, counted));
            reads.ahead_bytes += counted;
        }
    }
}

impl Reads {
    /// The read of a page under way, or a new one.
    fn begin(&mut self, files: &Files, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Arc<PageRead> {
        let state = match self.under_way.get(&page.offset) {
            Some(read) if read.page == page => return read.clone(),
            Some(read) => State::Done(Err(files.corrupt_reference(page, read.page))),
            None => State::Pending(Vec::new()),
        };
        let is_new = matches!(state, State::Pending(_));
        let read = Arc::new(PageRead { page, schema: schema.clone(), priority, state: Mutex::new(state) });
        if is_new {
            self.under_way.insert(page.offset, read.clone());
            self.backlog.insert(page.offset, read.clone());
        }
        read
    }

    /// Takes the read ahead of a requested page, and its advice.
    fn take_ahead(&mut self, page: PageRef) -> Option<Arc<PageRead>> {
        self.waiting.remove(&page.offset);
        while let Some(next) = self.advised.front()
            && !self.waiting.contains_key(&next.offset)
        {
            self.advised.pop_front();
        }
        let (read, counted) = self.ahead.remove(&page.offset)?;
        self.ahead_bytes -= counted;
        Some(read).filter(|read| read.page == page)
    }

    /// Hands the backlog to the device.
    fn start(&mut self, files: &Files) {
        if self.backlog.is_empty() && self.retries.is_empty() {
            return;
        }
        if let Err(error) = self.try_start(files) {
            self.fail(&error);
        }
    }

    fn try_start(&mut self, files: &Files) -> Result<()> {
        let queue = match &mut self.queue {
            Some(queue) => queue,
            None => self.queue.insert(files.queues.take(files)?),
        };
        while self.in_flight.len() < READS_MAX {
            let pages = match self.retries.pop() {
                Some(page) => vec![page],
                None => neighbours(&mut self.backlog),
            };
            let (Some(first), Some(last)) = (pages.first(), pages.last()) else { break };
            let offset = first.page.offset;
            let len = last.page.offset + u64::from(last.page.len) - offset;
            let op = Op::Read(queue.buffer(len as usize));
            queue.push(Request { file: files.data.clone(), offset, op, tag: self.next_tag });
            self.in_flight.insert(self.next_tag, pages);
            self.next_tag += 1;
        }
        Ok(queue.submit()?)
    }

    /// Starts the backlog and waits until a read has ended.
    fn wait(&mut self, files: &Files) {
        self.start(files);
        let Some(queue) = &mut self.queue else { return };
        assert!(!self.in_flight.is_empty(), "a future waits for something else than pages");
        let mut completions = std::mem::take(&mut self.completions);
        let outcome = queue.complete(Wait::Until(None), &mut completions);
        let open = files.check_open();
        for Completion { tag, buffer, result } in completions.drain(..) {
            let Some(pages) = self.in_flight.remove(&tag) else { continue };
            match (open.clone().and(result.map_err(Error::from)), buffer) {
                (Ok(()), Some(buffer)) => self.admit(files, &pages, &buffer),
                // An unreadable page fails only its own readers.
                (Err(Error::Device(_)), _) if pages.len() > 1 => self.retries.extend(pages),
                (Err(error), _) => pages.iter().for_each(|page| self.finish(page, Err(error.clone()))),
                (Ok(()), None) => unreachable!("a completed read has a buffer"),
            }
        }
        self.completions = completions;
        if let Err(error) = outcome {
            self.fail(&error.into());
        }
    }

    fn admit(&mut self, files: &Files, pages: &[Arc<PageRead>], buffer: &Buffer) {
        let mut start = 0;
        for read in pages {
            let end = start + read.page.len as usize;
            let page = files.admit(&buffer[start..end], read.page, &read.schema, read.priority, None);
            self.finish(read, page);
            start = end;
        }
    }

    fn finish(&mut self, read: &Arc<PageRead>, result: Result<Arc<Page>>) {
        self.under_way.remove(&read.page.offset);
        read.finish(result);
    }

    /// Ends all reads after a failure of the queue, which is given up.
    fn fail(&mut self, error: &Error) {
        self.queue = None;
        self.in_flight.clear();
        self.backlog.clear();
        self.retries.clear();
        for (_, read) in std::mem::take(&mut self.under_way) {
            read.finish(Err(error.clone()));
        }
    }
}

/// Takes the first pages of the backlog that make one read.
fn neighbours(backlog: &mut BTreeMap<u64, Arc<PageRead>>) -> Vec<Arc<PageRead>> {
    let Some((start, first)) = backlog.pop_first() else { return Vec::new() };
    let mut end = start + u64::from(first.page.len);
    let mut pages = vec![first];
    while let Entry::Occupied(next) = backlog.entry(end)
        && (end - start) as usize + next.get().page.len as usize <= READ_BYTES_MAX
    {
        let next = next.remove();
        end += u64::from(next.page.len);
        pages.push(next);
    }
    pages
}

impl PageSource for QueuedPages {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        let mut joined = None;
        let read = poll_fn(|context| self.poll_read(&mut joined, page, schema, priority, context)).await?;
        let is_ahead = joined.is_some_and(|read| read.priority == Priority::Scan);
        if priority == Priority::Index && is_ahead && !self.files.cache.is_pinned(page.offset) {
            // It was read ahead.
            self.files.cache.insert(page.offset, read.clone(), priority);
        }
        Ok(read)
    }

    fn prefetch(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        if self.read_ahead_bytes == 0 {
            return;
        }
        let mut reads = self.reads.lock();
        for page in pages {
            if !reads.ahead.contains_key(&page.offset) && reads.waiting.insert(page.offset, schema.clone()).is_none() {
                reads.advised.push_back(*page);
            }
        }
    }

    /// These pages are read with the next request, beside the window.
    fn prefetch_first(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        if self.read_ahead_bytes == 0 {
            return;
        }
        let mut reads = self.reads.lock();
        for &page in pages {
            if self.files.cache.peek(page.offset).is_none() {
                self.read_ahead(&mut reads, page, schema, 0);
            }
        }
    }

    fn read_ahead_bytes(&self) -> usize {
        self.read_ahead_bytes
    }
}

impl Drop for QueuedPages {
    /// Waits for the reads in flight. Their pages are not used.
    fn drop(&mut self) {
        let Some(mut queue) = self.reads.get_mut().queue.take() else { return };
        let mut completions = Vec::new();
        while queue.in_flight() > 0 {
            if queue.complete(Wait::Until(None), &mut completions).is_err() {
                return;
            }
        }
        self.files.queues.give_back(queue, &self.files);
    }
}

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Reads { under_way, in_flight, ahead_bytes, window_bytes, .. } = self;
        f.debug_struct("Reads")
            .field("under_way", &under_way.len())
            .field("in_flight", &in_flight.len())
            .field("ahead_bytes", ahead_bytes)
            .field("window_bytes", window_bytes)
            .finish_non_exhaustive()
    }
}

/// Queues of the device that no source uses at the moment. Creating a queue takes longer than a read.
#[derive(Default)]
pub(crate) struct IdleQueues(Mutex<Vec<Box<dyn Queue>>>);

impl IdleQueues {
    /// A queue with room for [`READS_MAX`] requests.
    pub fn take(&self, files: &Files) -> Result<Box<dyn Queue>> {
        match self.0.lock().pop() {
            Some(queue) => Ok(queue),
            None => Ok(files.device.movable_queue(READS_MAX)?),
        }
    }

    /// Keeps a queue without requests in flight.
    pub fn give_back(&self, queue: Box<dyn Queue>, files: &Files) {
        let mut idle = self.0.lock();
        if idle.len() < IDLE_MAX && files.check_open().is_ok() {
            idle.push(queue);
        }
    }

    /// Drops all queues.
    pub fn clear(&self) {
        let idle = std::mem::take(&mut *self.0.lock());
        drop(idle);
    }
}

impl std::fmt::Debug for IdleQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("IdleQueues").field(&self.0.lock().len()).finish()
    }
}
