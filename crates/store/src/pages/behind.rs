//! Writes of extents that a flush does not wait for: it computes the next extents while the device writes the last ones.
//!
//! ```text
//! begin()     extent, buffer ──> queue of the device; waits only while too many bytes are in flight
//! wait_for()  before the pages of an extent are read
//! finish()    before the extents become part of a published tree
//! ```
//!
//! *Invariants.* An extent is referenced while it is being written, so that its space is not used again. After a failed
//! write, all calls return its error. Dropping the value waits for the writes in flight.

use std::collections::HashMap;
use std::sync::Arc;

use keyaki_device::{Buffer, Completion, Op, Queue, Request, Wait};
use keyaki_primitives::sync::Mutex;

use crate::base::{Error, Result};
use crate::pages::{Extent, Files};

/// Maximum bytes in flight, unless a single extent is longer.
const BYTES_MAX: u64 = 4 << 20;

/// The writes of a flush.
#[derive(Debug)]
pub(crate) struct WriteBehind {
    files: Arc<Files>,
    writes: Mutex<Writes>,
}

#[derive(Default)]
struct Writes {
    queue: Option<Box<dyn Queue>>,
    /// By offset, which is also the tag of the request.
    in_flight: HashMap<u64, Arc<Extent>>,
    /// The sum of the lengths of the extents in flight.
    bytes: u64,
    completions: Vec<Completion>,
    failed: Option<Error>,
}

impl WriteBehind {
    pub fn new(files: &Arc<Files>) -> Arc<WriteBehind> {
        Arc::new(WriteBehind { files: files.clone(), writes: Mutex::default() })
    }

    /// Begins to write an extent, whose bytes are in `buffer`.
    ///
    /// # Errors
    /// The error of an earlier write; [`Error::Closed`], [`Error::Poisoned`]; device errors.
    pub fn begin(&self, extent: Arc<Extent>, buffer: Buffer) -> Result<()> {
        let (offset, len) = (extent.meta.offset, extent.meta.len);
        assert_eq!(len, buffer.len() as u64, "the buffer has the bytes of the extent at {offset}");
        self.files.check_writable()?;
        let mut writes = self.writes.lock();
        while writes.bytes + len > BYTES_MAX && !writes.in_flight.is_empty() {
            writes.wait(&self.files);
        }
        writes.check()?;
        let queue = match &mut writes.queue {
            Some(queue) => queue,
            None => writes.queue.insert(self.files.queues.take(&self.files)?),
        };
        queue.push(Request { file: self.files.data.clone(), offset, op: Op::Write(buffer), tag: offset });
        let submitted = queue.submit();
        let before = writes.in_flight.insert(offset, extent);
        assert!(before.is_none(), "two extents at {offset} are in flight");
        writes.bytes += len;
        if let Err(error) = submitted {
            writes.give_up(&self.files, error);
        }
        writes.check()
    }

    /// Waits until the extent at `offset` is written, if its write was begun.
    ///
    /// # Errors
    /// The error of a failed write, also of another extent.
    pub fn wait_for(&self, offset: u64) -> Result<()> {
        let mut writes = self.writes.lock();
        while writes.in_flight.contains_key(&offset) {
            writes.wait(&self.files);
        }
        writes.check()
    }

    /// Number of writes in flight.
    #[cfg(test)]
    pub fn in_flight(&self) -> usize {
        self.writes.lock().in_flight.len()
    }

    /// Waits until all extents are written.
    ///
    /// # Errors
    /// The error of a failed write.
    pub fn finish(&self) -> Result<()> {
        let mut writes = self.writes.lock();
        while !writes.in_flight.is_empty() {
            writes.wait(&self.files);
        }
        if let Some(queue) = writes.queue.take() {
            self.files.queues.give_back(queue, &self.files);
        }
        writes.check()
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        // The extents of a failed flush are not used.
        let _ = self.finish();
    }
}

impl Writes {
    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until a write has ended.
    fn wait(&mut self, files: &Files) {
        let Some(queue) = &mut self.queue else { unreachable!("writes in flight have a queue") };
        let mut completions = std::mem::take(&mut self.completions);
        let outcome = queue.complete(Wait::Until(None), &mut completions);
        for Completion { tag, result, .. } in completions.drain(..) {
            let Some(extent) = self.in_flight.remove(&tag) else { continue };
            self.bytes -= extent.meta.len;
            if let Err(error) = result {
                self.fail(files, error);
            }
        }
        self.completions = completions;
        if let Err(error) = outcome {
            self.give_up(files, error);
        }
    }

    /// Ends all writes after a failure of the queue.
    fn give_up(&mut self, files: &Files, error: keyaki_device::Error) {
        self.fail(files, error);
        // Waits for the requests that have been started.
        self.queue = None;
        self.in_flight.clear();
        self.bytes = 0;
    }

    /// Records a failure. As for other writes, a device error disables all further writes of the data file.
    fn fail(&mut self, files: &Files, error: keyaki_device::Error) {
        let error = Error::from(error);
        if let Error::Device(error) = &error {
            files.poison(&error.to_string());
        }
        self.failed.get_or_insert(error);
    }
}

impl std::fmt::Debug for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Writes { in_flight, bytes, failed, .. } = self;
        let in_flight = &in_flight.len();
        f.debug_struct("Writes").field("in_flight", in_flight).field("bytes", bytes).field("failed", failed).finish()
    }
}
