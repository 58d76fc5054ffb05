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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use arrow_array::{ArrayRef, BinaryViewArray};
    use keyaki_device::simulated::{FaultKind, Model, Simulated, SimulatedOptions};

    use super::*;
    use crate::base::{Options, Schema, TreeId};
    use crate::codec::Codecs;
    use crate::engine::Store;
    use crate::pages::ExtentWriter;

    /// Extents of 64 KiB, written behind to an empty store.
    fn written(store: &Store, behind: &Arc<WriteBehind>, count: usize) -> Result<Vec<Arc<Extent>>> {
        let codecs = Arc::new(Codecs::new(Schema::key_value()));
        let writer = ExtentWriter::new(TreeId::new(2), &codecs, store.files(), 4096, 64 << 10);
        let mut writer = writer.with_behind(Some(behind));
        let keys = (0..count as u32 * 64).map(u32::to_be_bytes);
        let keys: ArrayRef = Arc::new(BinaryViewArray::from_iter_values(keys));
        let mut random = keyaki_primitives::Random::new(1);
        let mut value = || (0..125).flat_map(|_| random.next_u64().to_le_bytes()).collect::<Vec<u8>>();
        let values: ArrayRef = Arc::new(BinaryViewArray::from_iter_values((0..keys.len()).map(|_| value())));
        writer.write(&[keys, values], None, 0, true)?;
        writer.finish()
    }

    fn open(simulated: &Simulated) -> Store {
        Store::open(simulated.device(), Path::new("/db"), Options::default()).unwrap()
    }

    #[test]
    fn extents_are_read_after_they_are_written() {
        let simulated = Simulated::new(SimulatedOptions::default());
        let store = open(&simulated);
        simulated.set_model(Model::disk());
        let behind = WriteBehind::new(store.files());
        let extents = written(&store, &behind, 100).unwrap();
        assert!(extents.len() > 50 && !behind.writes.lock().in_flight.is_empty());
        for extent in extents.iter().rev() {
            let index = store.files().read_index(extent, &Arc::new(Schema::key_value())).unwrap();
            assert_eq!(index.rows(), extent.meta.pages as usize);
        }
        behind.finish().unwrap();
        assert!(behind.writes.lock().in_flight.is_empty());
    }

    #[test]
    fn a_failed_write_fails_all_that_follows() {
        for kind in [FaultKind::Eio, FaultKind::NoSpace] {
            let simulated = Simulated::new(SimulatedOptions::default());
            let store = open(&simulated);
            let behind = WriteBehind::new(store.files());
            let first = written(&store, &behind, 1).unwrap();
            behind.finish().unwrap();
            simulated.fail_after(0, kind);
            let second = written(&store, &behind, 1).and_then(|_| behind.finish());
            let is_expected = match kind {
                FaultKind::Eio => matches!(second, Err(Error::Device(_))),
                _ => matches!(second, Err(Error::DiskFull { .. })),
            };
            assert!(is_expected, "{second:?}");
            // Writes after an I/O error may be lost; a full disk changes nothing.
            assert_eq!(store.files().check_writable().is_ok(), kind == FaultKind::NoSpace);
            assert!(behind.finish().is_err() && written(&store, &behind, 1).is_err());
            assert!(first[0].wait_until_written().is_err());
        }
    }

    #[test]
    fn space_is_not_used_again_while_it_is_written() {
        let simulated = Simulated::new(SimulatedOptions::default());
        let store = open(&simulated);
        let used = store.files().space.usage().0;
        simulated.set_model(Model::disk());
        let behind = WriteBehind::new(store.files());
        drop(written(&store, &behind, 3).unwrap());
        assert!(store.files().space.usage().0 > used);
        behind.finish().unwrap();
        assert_eq!(store.files().space.usage().0, used);
    }

    #[test]
    fn dropping_waits_for_the_writes() {
        let simulated = Simulated::new(SimulatedOptions::default());
        let store = open(&simulated);
        simulated.set_model(Model::disk());
        let (before, behind) = (simulated.writes(), WriteBehind::new(store.files()));
        let extents = written(&store, &behind, 3).unwrap();
        drop(behind);
        assert_eq!(simulated.writes() - before, extents.len() as u64);
        assert!(extents.iter().all(|extent| extent.wait_until_written().is_ok()));
    }
}
