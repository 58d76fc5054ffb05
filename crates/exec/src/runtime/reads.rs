//! One worker's reads: from the page requests of its tasks to the device and back.
//!
//! Requests wait in a backlog ordered by offset. Whenever the device has room, reads are made of it in a sweep of
//! ascending offsets (wrapping around), and neighbouring pages become one read. So the longer the backlog, the more
//! sequential the access: with many requests random reads turn into long ones by themselves.
//!
//! A read of several pages that fails is repeated page by page, so that an unreadable page fails only its own waiters.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use keyaki_device::{Buffer, Completion, Op, Queue, Request, Wait};
use keyaki_store::Error;

use super::Runtime;
use super::in_flight::{OffsetMap, PageRead};

pub(super) struct Reads {
    runtime: Arc<Runtime>,
    queue: Box<dyn Queue>,
    backlog: BTreeMap<u64, Arc<PageRead>>,
    /// Where the sweep over the backlog goes on.
    sweep: u64,
    /// Pages to be read on their own, before the backlog.
    singles: VecDeque<Arc<PageRead>>,
    /// Handed to the device, by tag.
    flights: OffsetMap<u64, Flight>,
    next_tag: u64,
    completions: Vec<Completion>,
}

/// A read handed to the device: pages in ascending order, possibly with gaps between.
struct Flight {
    offset: u64,
    len: usize,
    pages: Vec<Arc<PageRead>>,
}

impl Reads {
    pub fn new(runtime: Arc<Runtime>, queue: Box<dyn Queue>) -> Self {
        Reads {
            runtime,
            queue,
            backlog: BTreeMap::new(),
            sweep: 0,
            singles: VecDeque::new(),
            flights: OffsetMap::default(),
            next_tag: 0,
            completions: Vec::new(),
        }
    }

    /// Adds requests to the backlog.
    pub fn request(&mut self, reads: impl Iterator<Item = Arc<PageRead>>) {
        self.backlog.extend(reads.map(|read| (read.page.offset, read)));
    }

    /// Nothing is in flight or waiting to be.
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty() && self.backlog.is_empty() && self.singles.is_empty()
    }

    /// The device has as many reads as it may.
    pub fn is_saturated(&self) -> bool {
        self.flights.len() + self.backlog.len() >= self.runtime.options.queue_depth
    }

    /// Submits what was dispatched, and works off what has come back; waits if nothing has and `wait` says so.
    pub fn exchange(&mut self, wait: Wait) {
        if self.flights.is_empty() && wait == Wait::No {
            return;
        }
        let mut completions = std::mem::take(&mut self.completions);
        let outcome = self.queue.complete(wait, &mut completions);
        if !completions.is_empty() {
            let now_ns = self.runtime.store.device().now_ns();
            for completion in completions.drain(..) {
                self.land(completion, now_ns);
            }
            self.dispatch();
        }
        self.completions = completions;
        if let Err(error) = outcome {
            tracing::error!(%error, "the device queue of a worker failed");
            self.fail_all(Error::Device(error));
            // Whatever is the matter is not over at once; do not spin meanwhile.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Makes reads of the backlog, as many as the device has room for. Requests of stopped queries are dropped, which
    /// wakes whoever else waits for them.
    pub fn dispatch(&mut self) {
        while self.flights.len() < self.runtime.options.queue_depth {
            let pages = match self.singles.pop_front() {
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
            self.runtime.table.abandon(&read);
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
        self.flights.insert(tag, Flight { offset, len, pages });
        let file = self.runtime.store.data_file().clone();
        self.queue.push(Request { file, offset, op: Op::Read(buffer), tag });
    }

    fn land(&mut self, completion: Completion, now_ns: u64) {
        // Unknown tags: reads given up after the queue had failed.
        let Some(flight) = self.flights.remove(&completion.tag) else { return };
        if let Some(first) = flight.pages.first() {
            first.owner.stats.read_completed(now_ns);
        }
        match (completion.result, completion.buffer) {
            (Ok(()), Some(buffer)) if buffer.len() >= flight.len => self.admit(&flight, &buffer),
            (Ok(()), _) => {
                let path = self.runtime.store.data_file().path();
                let short = std::io::ErrorKind::UnexpectedEof.into();
                let error = keyaki_device::Error::new("read", path, flight.offset, flight.len as u64, short);
                self.fail(&flight, &Error::Device(error));
            }
            (Err(_), _) if flight.pages.len() > 1 => self.singles.extend(flight.pages),
            (Err(error), _) => self.fail(&flight, &Error::Device(error)),
        }
    }

    fn admit(&self, flight: &Flight, buffer: &Buffer) {
        if let Some(first) = flight.pages.first() {
            self.runtime.announce(&first.owner);
        }
        for read in &flight.pages {
            let start = (read.page.offset - flight.offset) as usize;
            let bytes = &buffer[start..start + read.page.len as usize];
            let page = self.runtime.store.admit(bytes, read.page, &read.schema, read.priority);
            self.runtime.table.finish(read, page);
        }
    }

    fn fail(&self, flight: &Flight, error: &Error) {
        for read in &flight.pages {
            self.runtime.table.finish(read, Err(error.clone()));
        }
    }

    /// Ends everything in flight and in the backlog with an error.
    pub fn fail_all(&mut self, error: Error) {
        for (_, flight) in std::mem::take(&mut self.flights) {
            self.fail(&flight, &error);
        }
        let waiting = std::mem::take(&mut self.backlog).into_values().chain(self.singles.drain(..));
        for read in waiting {
            self.runtime.table.finish(&read, Err(error.clone()));
        }
    }
}
