//! The reads of one worker: from the page requests of its tasks to the device and back.
//!
//! Requests wait in a backlog ordered by offset. Whenever the device has fewer reads in flight than the queue depth, a
//! sweep over the backlog in ascending offsets (wrapping around) starts more, and neighbouring pages become one read. The
//! longer the backlog, the more sequential the access.
//!
//! A read of several pages that fails is repeated page by page, so that an unreadable page fails only its own waiters.
//!
//! Invariants: each page is in exactly one of the backlog, the retries and the reads in flight; at most `queue_depth` reads
//! are in flight; the pages of one read are in ascending order and do not overlap.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use keyaki_device::{Buffer, Completion, ErrorKind, Op, Operation, Queue, Request, Wait};
use keyaki_primitives::sync::thread::sleep;
use keyaki_store::Error;

use super::Runtime;
use super::in_flight::{OffsetMap, PageRead};

/// Pause after the device queue has failed: the failure is unlikely to clear immediately.
const QUEUE_FAILURE_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct WorkerReads {
    runtime: Arc<Runtime>,
    queue: Box<dyn Queue>,
    /// Requested pages by offset.
    backlog: BTreeMap<u64, Arc<PageRead>>,
    /// Offset at which the sweep over the backlog continues.
    sweep: u64,
    /// Pages of failed reads, to be read one by one before the backlog.
    retries: VecDeque<Arc<PageRead>>,
    /// Reads handed to the device, by tag.
    in_flight: OffsetMap<u64, DeviceRead>,
    next_tag: u64,
    completions: Vec<Completion>,
}

/// A read handed to the device: pages in ascending order of offsets, possibly with gaps between them.
struct DeviceRead {
    offset: u64,
    len: usize,
    pages: Vec<Arc<PageRead>>,
}

impl WorkerReads {
    pub fn new(runtime: Arc<Runtime>, queue: Box<dyn Queue>) -> Self {
        WorkerReads {
            runtime,
            queue,
            backlog: BTreeMap::new(),
            sweep: 0,
            retries: VecDeque::new(),
            in_flight: OffsetMap::default(),
            next_tag: 0,
            completions: Vec::new(),
        }
    }

    /// Adds registered reads to the backlog.
    pub fn request(&mut self, reads: impl Iterator<Item = Arc<PageRead>>) {
        for read in reads {
            let offset = read.page.offset;
            let replaced = self.backlog.insert(offset, read);
            // The in-flight table holds one read per offset, until it is cleared because the executor has stopped.
            assert!(replaced.is_none() || self.runtime.is_stopped(), "two reads at offset {offset} in the backlog");
        }
    }

    /// No read is in flight or waiting.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.backlog.is_empty() && self.retries.is_empty()
    }

    /// The device has, or is about to have, as many reads in flight as the queue depth allows.
    pub fn is_saturated(&self) -> bool {
        self.in_flight.len() + self.backlog.len() >= self.runtime.options.queue_depth
    }

    /// Submits the reads started, and processes completions. If there are none, it waits for one as `wait` demands.
    pub fn exchange(&mut self, wait: Wait) {
        if self.in_flight.is_empty() && wait == Wait::No {
            return;
        }
        let mut completions = std::mem::take(&mut self.completions);
        let outcome = self.queue.complete(wait, &mut completions);
        if !completions.is_empty() {
            let now_ns = self.runtime.store.device().now_ns();
            for completion in completions.drain(..) {
                self.complete_read(completion, now_ns);
            }
            self.dispatch();
        }
        self.completions = completions;
        if let Err(error) = outcome {
            tracing::error!(%error, "device queue of a worker failed");
            self.fail_all(Error::from(error));
            sleep(QUEUE_FAILURE_PAUSE);
        }
    }

    /// Starts reads from the backlog, up to the queue depth. Requests of stopped queries are dropped; waiters of other
    /// queries are woken to request the page again.
    pub fn dispatch(&mut self) {
        while self.in_flight.len() < self.runtime.options.queue_depth {
            let pages = match self.retries.pop_front() {
                Some(read) => vec![read],
                None => match self.next_run() {
                    Some(pages) => pages,
                    None => break,
                },
            };
            self.start(pages);
        }
    }

    /// The next pages of the sweep that make one read.
    fn next_run(&mut self) -> Option<Vec<Arc<PageRead>>> {
        let (gap, max) = (self.runtime.options.coalesce_gap_bytes, self.runtime.options.coalesce_max_bytes);
        let first = loop {
            let offset = *self.backlog.range(self.sweep..).next().or_else(|| self.backlog.iter().next())?.0;
            let read = self.backlog.remove(&offset)?;
            if !read.owner.is_stopped() {
                break read;
            }
            self.runtime.in_flight.abandon(&read);
        };
        let start = first.page.offset;
        let mut end = start + u64::from(first.page.len);
        let mut pages = vec![first];
        while let Some((&offset, read)) = self.backlog.range(end..).next() {
            let next_end = offset + u64::from(read.page.len);
            if offset - end > gap as u64 || next_end - start > max as u64 || read.owner.is_stopped() {
                break;
            }
            pages.extend(self.backlog.remove(&offset));
            end = next_end;
        }
        self.sweep = end;
        Some(pages)
    }

    fn start(&mut self, pages: Vec<Arc<PageRead>>) {
        let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return };
        let offset = first.page.offset;
        let len = (last.page.offset + u64::from(last.page.len) - offset) as usize;
        first.owner.stats.read_started(len as u64);
        for page in &pages {
            page.owner.stats.pages_read(1);
        }
        let buffer = self.queue.buffer(len);
        let tag = self.next_tag;
        self.next_tag += 1;
        let replaced = self.in_flight.insert(tag, DeviceRead { offset, len, pages });
        assert!(replaced.is_none(), "tag {tag} is used twice");
        assert!(self.in_flight.len() <= self.runtime.options.queue_depth, "more reads in flight than the queue depth");
        let file = self.runtime.store.data_file().clone();
        self.queue.push(Request { file, offset, op: Op::Read(buffer), tag });
    }

    fn complete_read(&mut self, completion: Completion, now_ns: u64) {
        // Reads given up after a failure of the queue have no entry.
        let Some(read) = self.in_flight.remove(&completion.tag) else { return };
        if let Some(first) = read.pages.first() {
            first.owner.stats.read_completed(now_ns);
        }
        match (completion.result, completion.buffer) {
            (Ok(()), Some(buffer)) if buffer.len() >= read.len => self.admit(&read, &buffer),
            (Ok(()), _) => {
                let path = self.runtime.store.data_file().path();
                let (operation, len) = (Operation::Read, read.len as u64);
                let error = keyaki_device::Error::in_range(operation, path, read.offset, len, ErrorKind::EndOfFile);
                self.fail(&read, &Error::from(error));
            }
            (Err(_), _) if read.pages.len() > 1 => self.retries.extend(read.pages),
            (Err(error), _) => self.fail(&read, &Error::from(error)),
        }
    }

    /// Checks the pages of a read, puts them into the cache and wakes their waiters.
    fn admit(&self, read: &DeviceRead, buffer: &Buffer) {
        if let Some(first) = read.pages.first() {
            self.runtime.announce(&first.owner);
        }
        for page_read in &read.pages {
            let start = (page_read.page.offset - read.offset) as usize;
            let bytes = &buffer[start..start + page_read.page.len as usize];
            let PageRead { page, schema, priority, projection, .. } = &**page_read;
            let page = self.runtime.store.admit(bytes, *page, schema, *priority, projection.as_ref());
            self.runtime.in_flight.finish(page_read, page);
        }
    }

    fn fail(&self, read: &DeviceRead, error: &Error) {
        for page_read in &read.pages {
            self.runtime.in_flight.finish(page_read, Err(error.clone()));
        }
    }

    /// Ends everything in flight and in the backlog with an error.
    fn fail_all(&mut self, error: Error) {
        for (_, read) in std::mem::take(&mut self.in_flight) {
            self.fail(&read, &error);
        }
        let waiting = std::mem::take(&mut self.backlog).into_values().chain(self.retries.drain(..));
        for page_read in waiting {
            self.runtime.in_flight.finish(&page_read, Err(error.clone()));
        }
    }
}
