//! The frames of reads: from memory, from a request under way, from disk, or from the store.
//!
//! The reads of a batch are planned together. Frames that are missing are sorted by object and number, and runs of
//! them become requests: frames between two missing ones are read too if there are at most [`GAP_FRAMES`] of them,
//! since their transfer takes less time than a request. A request has at most [`RUN_FRAMES_MAX`] frames, or a third
//! of a longer read: the node table of a large database takes three requests. Reads of the node table bring all of its
//! object, which has what is read next.
//!
//! *Invariant.* A frame that was verified is in memory before it ceases to be under way. Both change under one lock,
//! so reads of one frame share a request unless the memory has lost it since.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::{FutureExt, Shared, join_all};
use parking_lot::Mutex;

use super::map::{DataMap, Place};
use crate::cache::{DiskCache, Frame, FrameId, MemoryCache, QueuedFrame};
use crate::error::{Error, Result};
use crate::format::{FRAME_BYTES, ObjectEntry, frame_count, stored_range};
use crate::remote::{Counter, Remote, RequestStats};
use crate::repository::Names;

/// Frames between two missing ones that are read with them, at most.
const GAP_FRAMES: u64 = 4;
/// Frames of a request, at most, except for those of long reads: 4 MiB.
const RUN_FRAMES_MAX: u64 = 64;
/// Requests of a long read.
const REQUESTS_PER_READ: u64 = 3;
/// Frames that a thread looks up on disk.
const LOOKUP_FRAMES: usize = 32;

/// Counters of a device for a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// The requests of the repository's handles, with those of other devices.
    pub requests: RequestStats,
    /// Frames of 64 KiB that were found in memory.
    pub memory_hits: u64,
    /// Frames that a request under way has brought.
    pub shared: u64,
    /// Frames that were found on disk.
    pub disk_hits: u64,
    /// Frames that were not written to disk, because too many waited to be written.
    pub disk_skipped: u64,
    /// Frames that were requested from the store, with those between wanted ones.
    pub fetched: u64,
    /// Ranges of objects that were requested, each by one request and its retries.
    pub ranges: u64,
    /// Bytes of frames in memory.
    pub memory_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    memory_hits: Counter,
    shared: Counter,
    disk_hits: Counter,
    fetched: Counter,
    ranges: Counter,
}

/// The index of an object, and the number of a frame.
type Key = (u32, u64);
/// A frame that is under way.
type Awaited = Shared<oneshot::Receiver<Result<Frame>>>;
/// Missing frames with the places where readers wait for them.
type Missing = BTreeMap<Key, Option<oneshot::Sender<Result<Frame>>>>;

#[derive(Debug)]
pub(crate) struct Fetcher {
    remote: Arc<Remote>,
    names: Names,
    map: DataMap,
    memory: MemoryCache,
    disk: Option<Arc<DiskCache>>,
    under_way: Mutex<HashMap<Key, Awaited>>,
    counters: Counters,
}

/// A read that was planned.
#[derive(Debug)]
pub(crate) struct Planned(Vec<PlannedPart>);

#[derive(Debug)]
struct PlannedPart {
    len: usize,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Zeros,
    Superblock(usize),
    /// With the first byte in the payload.
    Ready(Frame, usize),
    Awaited(Awaited, usize),
}

impl Fetcher {
    pub fn new(
        remote: Arc<Remote>,
        names: Names,
        map: DataMap,
        memory: MemoryCache,
        disk: Option<Arc<DiskCache>>,
    ) -> Fetcher {
        let (under_way, counters) = Default::default();
        Fetcher { remote, names, map, memory, disk, under_way, counters }
    }

    pub fn map(&self) -> &DataMap {
        &self.map
    }

    pub fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    pub fn stats(&self) -> ReadStats {
        ReadStats {
            requests: self.remote.counters.snapshot(),
            memory_hits: self.counters.memory_hits.get(),
            shared: self.counters.shared.get(),
            disk_hits: self.counters.disk_hits.get(),
            disk_skipped: self.disk.as_ref().map_or(0, |disk| disk.skipped()),
            fetched: self.counters.fetched.get(),
            ranges: self.counters.ranges.get(),
            memory_bytes: self.memory.bytes() as u64,
        }
    }

    /// Plans reads of ranges within the data file, and begins to fetch their frames.
    pub fn plan(self: &Arc<Self>, ranges: &[Range<u64>]) -> Vec<Planned> {
        let (mut missing, mut longest) = (Missing::new(), 0);
        let planned = {
            let mut under_way = self.under_way.lock();
            ranges.iter().map(|range| self.plan_one(range, &mut under_way, &mut missing, &mut longest)).collect()
        };
        if !missing.is_empty() {
            let run_max = RUN_FRAMES_MAX.max(longest.div_ceil(REQUESTS_PER_READ));
            self.remote.handle().spawn(self.clone().fetch(missing, run_max));
        }
        planned
    }

    fn plan_one(
        &self,
        range: &Range<u64>,
        under_way: &mut HashMap<Key, Awaited>,
        missing: &mut Missing,
        longest: &mut u64,
    ) -> Planned {
        let (mut parts, mut new) = (Vec::new(), 0);
        let mut reads_table = false;
        for (len, place) in self.map.places(range.clone()) {
            let (object, mut at) = match place {
                Place::Zeros => {
                    parts.push(PlannedPart { len, source: Source::Zeros });
                    continue;
                }
                Place::Superblock(from) => {
                    parts.push(PlannedPart { len, source: Source::Superblock(from) });
                    continue;
                }
                Place::Object(object, start) => (object, start),
            };
            let end = at + len as u64;
            reads_table |= at == 0 && self.map.first_object == Some(object);
            while at < end {
                let (frame, from) = (at / FRAME_BYTES, at % FRAME_BYTES);
                let len = (FRAME_BYTES - from).min(end - at);
                let source = self.source((object, frame), from as usize, under_way, missing, &mut new);
                parts.push(PlannedPart { len: len as usize, source });
                at += len;
            }
        }
        if let Some(object) = self.map.first_object.filter(|_| reads_table && new > 0) {
            for frame in 0..frame_count(self.map.objects[object as usize].payload_bytes) {
                let key = (object, frame);
                if !under_way.contains_key(&key) && self.memory.get(self.id(key)).is_none() {
                    drop(begin(key, under_way, missing));
                    new += 1;
                }
            }
        }
        *longest = new.max(*longest);
        Planned(parts)
    }

    fn source(
        &self,
        key: Key,
        from: usize,
        under_way: &mut HashMap<Key, Awaited>,
        missing: &mut Missing,
        new: &mut u64,
    ) -> Source {
        // A task that ended early leaves its frames.
        let is_lost = |awaited: &&Awaited| matches!(awaited.peek(), Some(Err(oneshot::Canceled)));
        if let Some(awaited) = under_way.get(&key).filter(|awaited| !is_lost(awaited)) {
            self.counters.shared.add(1);
            return Source::Awaited(awaited.clone(), from);
        }
        if let Some(frame) = self.memory.get(self.id(key)) {
            self.counters.memory_hits.add(1);
            return Source::Ready(frame, from);
        }
        *new += 1;
        Source::Awaited(begin(key, under_way, missing), from)
    }

    fn object(&self, key: Key) -> &ObjectEntry {
        &self.map.objects[key.0 as usize]
    }

    fn id(&self, key: Key) -> FrameId {
        FrameId { object: self.object(key).id, number: key.1 }
    }

    /// Brings missing frames.
    async fn fetch(self: Arc<Self>, mut missing: Missing, run_max: u64) {
        if let Some(disk) = &self.disk {
            let keys: Vec<Key> = missing.keys().copied().collect();
            let lookups = keys.chunks(LOOKUP_FRAMES).map(|keys| {
                let (disk, ids) = (disk.clone(), keys.iter().map(|&key| (key, self.id(key))).collect::<Vec<_>>());
                let look_up = move || -> Vec<(Key, Frame)> {
                    ids.into_iter().filter_map(|(key, id)| Some((key, disk.get(id)?))).collect()
                };
                self.remote.handle().spawn_blocking(look_up)
            });
            for found in join_all(lookups).await {
                // A panic of a lookup is a miss.
                for (key, frame) in found.unwrap_or_default() {
                    self.counters.disk_hits.add(1);
                    self.finish(key, missing.remove(&key).flatten(), Ok(frame));
                }
            }
        }
        for run in runs(missing, run_max) {
            self.remote.handle().spawn(self.clone().fetch_run(run));
        }
    }

    /// Requests a run of frames of one object. Those between the wanted ones have no readers.
    async fn fetch_run(self: Arc<Self>, run: Missing) {
        let (Some((&first, _)), Some((&last, _))) = (run.first_key_value(), run.last_key_value()) else { return };
        let fetched = self.request(first, last.1).await;
        match fetched {
            Ok(frames) => self.finish_run(first, frames, run).await,
            // Only the readers of the damaged frames get the error.
            Err(Error::Damaged { .. }) if first != last => {
                let this = &self;
                let singles = run.into_iter().filter(|(_, sender)| sender.is_some()).map(|(key, sender)| async move {
                    match this.request(key, key.1).await {
                        Ok(frames) => this.finish_run(key, frames, Missing::from([(key, sender)])).await,
                        Err(error) => this.finish(key, sender, Err(error)),
                    }
                });
                join_all(singles).await;
            }
            Err(error) => run.into_iter().for_each(|(key, sender)| self.finish(key, sender, Err(error.clone()))),
        }
    }

    /// Requests the frames of an object from `first` on to the number `last`.
    async fn request(&self, first: Key, last: u64) -> Result<Vec<Frame>> {
        let ObjectEntry { id, payload_bytes } = *self.object(first);
        let numbers = first.1..last + 1;
        assert!(numbers.end <= frame_count(payload_bytes), "object {id} has no frame {last}");
        let (path, range) = (self.names.object(id), stored_range(numbers.clone(), payload_bytes));
        self.counters.fetched.add(numbers.end - numbers.start);
        self.counters.ranges.add(1);
        let is_single = numbers.end - numbers.start == 1;
        let split = |body: Bytes| {
            let frame = |number: u64| {
                let place = stored_range(number..number + 1, payload_bytes);
                let bytes = body.slice((place.start - range.start) as usize..(place.end - range.start) as usize);
                let frame = Frame::verified(FrameId { object: id, number }, bytes);
                let frame = frame.ok_or_else(|| format!("checksum mismatch in frame {number}"))?;
                Ok(if is_single { frame } else { frame.unshared() })
            };
            numbers.clone().map(frame).collect()
        };
        self.remote.read(&path, Some(range.clone()), split).await
    }

    /// Passes the frames from `first` on to their readers and to the caches.
    async fn finish_run(&self, first: Key, frames: Vec<Frame>, mut run: Missing) {
        let mut kept = Vec::new();
        for (number, frame) in (first.1..).zip(frames) {
            let key = (first.0, number);
            if let Some(disk) = &self.disk {
                kept.extend(disk.enqueue(self.id(key), &frame));
            }
            self.finish(key, run.remove(&key).flatten(), Ok(frame));
        }
        if !kept.is_empty() {
            let write = move || kept.into_iter().for_each(QueuedFrame::write);
            // An error is a panic: the frames are not on disk.
            let _ = self.remote.handle().spawn_blocking(write).await;
        }
    }

    /// Ends the way of a frame.
    fn finish(&self, key: Key, reader: Option<oneshot::Sender<Result<Frame>>>, result: Result<Frame>) {
        {
            let mut under_way = self.under_way.lock();
            if let Ok(frame) = &result {
                self.memory.insert(self.id(key), frame.clone());
            }
            if reader.is_some() {
                under_way.remove(&key);
            }
        }
        if let Some(reader) = reader {
            // The readers may have given up.
            let _ = reader.send(result);
        }
    }

    /// Copies a read whose frames are there into a buffer of its length.
    pub fn copy(&self, planned: &Planned, out: &mut [u8]) {
        let mut rest = out;
        for PlannedPart { len, source } in &planned.0 {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(*len);
            match source {
                Source::Zeros => part.fill(0),
                Source::Superblock(from) => part.copy_from_slice(&self.map.superblock()[*from..from + len]),
                Source::Ready(frame, from) => part.copy_from_slice(&frame.payload()[*from..from + len]),
                Source::Awaited(..) => unreachable!("a frame was not waited for"),
            }
            rest = behind;
        }
        assert!(rest.is_empty(), "a read has as many bytes as its buffer");
    }
}

impl Planned {
    /// Waits for the frames.
    ///
    /// # Errors
    /// Those of requests.
    pub async fn wait(mut self) -> Result<Planned> {
        for part in &mut self.0 {
            if let Source::Awaited(awaited, from) = &part.source {
                let frame = awaited.clone().await.unwrap_or(Err(Error::Cancelled))?;
                part.source = Source::Ready(frame, *from);
            }
        }
        Ok(self)
    }

    /// True if all frames are there.
    pub fn is_ready(&self) -> bool {
        self.0.iter().all(|part| !matches!(part.source, Source::Awaited(..)))
    }
}

/// Adds a frame to the missing ones that are under way.
fn begin(key: Key, under_way: &mut HashMap<Key, Awaited>, missing: &mut Missing) -> Awaited {
    let (sender, receiver) = oneshot::channel();
    let awaited = receiver.shared();
    under_way.insert(key, awaited.clone());
    missing.insert(key, Some(sender));
    awaited
}

/// Splits missing frames into runs of one object each, which include short gaps.
fn runs(missing: Missing, run_max: u64) -> Vec<Missing> {
    let mut runs: Vec<Missing> = Vec::new();
    for (key, sender) in missing {
        let continues = |run: &Missing| {
            let (first, last) = (run.first_key_value()?.0, run.last_key_value()?.0);
            let is_near = last.0 == key.0 && key.1 - last.1 <= GAP_FRAMES + 1 && key.1 - first.1 < run_max;
            is_near.then_some(())
        };
        match runs.last_mut().filter(|run| continues(run).is_some()) {
            Some(run) => _ = run.insert(key, sender),
            None => runs.push(Missing::from([(key, sender)])),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::path::Path;

    use super::*;
    use crate::cache::DiskCacheOptions;
    use crate::format::{BLOCK_BYTES, DataRange, Manifest, ObjectId, RESERVED_BYTES, encode_object};
    use crate::random::unique_random;
    use crate::remote::RequestOptions;

    /// The fetcher of a version whose data file is `payload`, behind the superblocks.
    fn fetcher(payload: &[u8], disk: Arc<DiskCache>) -> Arc<Fetcher> {
        let remote = Arc::new(Remote::new(Arc::new(InMemory::new()), RequestOptions::default()).unwrap());
        let (id, payload_bytes, names) =
            (ObjectId::of(payload, 1), payload.len() as u64, Names::new(Path::from("shop")));
        let (of_task, path, object) = (remote.clone(), names.object(id), encode_object(id, payload).into());
        remote.run(async move { of_task.write(&path, object).await }).unwrap();
        let range = DataRange { offset: RESERVED_BYTES, len: payload_bytes, object: 0, start: 0, identity: 0 };
        let mut map = DataMap::new(Manifest {
            number: 1,
            published_us: 0,
            nonce: 0,
            database_id: 0,
            sequence: 0,
            data_bytes: RESERVED_BYTES + payload_bytes,
            superblock: vec![0; BLOCK_BYTES as usize],
            objects: vec![ObjectEntry { id, payload_bytes }],
            ranges: vec![range],
        });
        // The object has no node table.
        map.first_object = None;
        Arc::new(Fetcher::new(remote, names, map, MemoryCache::new(0), Some(disk)))
    }

    #[test]
    fn readers_and_memory_do_not_depend_on_a_slow_disk() {
        let directory = tempfile::tempdir().unwrap();
        let options = DiskCacheOptions { directory: directory.path().into(), bytes_max: 64 << 20 };
        let disk = Arc::new(DiskCache::open(&options, unique_random()).unwrap().with_queue(40 * (FRAME_BYTES + 8)));
        let payload: Vec<u8> = (0..100 * FRAME_BYTES).map(|at| (at / FRAME_BYTES + at % 251) as u8).collect();
        let fetcher = fetcher(&payload, disk.clone());
        let read_all = || {
            for start in (0..100 * FRAME_BYTES).step_by(FRAME_BYTES as usize * 10) {
                let range = RESERVED_BYTES + start..RESERVED_BYTES + start + FRAME_BYTES * 10;
                let planned = fetcher.plan(std::slice::from_ref(&range)).pop().unwrap();
                let planned = fetcher.remote().run(planned.wait()).unwrap();
                let mut out = vec![0; FRAME_BYTES as usize * 10];
                fetcher.copy(&planned, &mut out);
                assert!(out[..] == payload[start as usize..][..out.len()]);
            }
        };
        let stalled = disk.stall();
        read_all();
        let stats = fetcher.stats();
        assert_eq!((stats.fetched, stats.disk_skipped, stats.disk_hits), (100, 60, 0));
        drop(stalled);
        // The written frames are read from disk as soon as they are there.
        while fetcher.stats().disk_hits < 40 {
            read_all();
        }
    }

    #[test]
    fn near_frames_are_one_run() {
        let missing = |keys: &[Key]| keys.iter().map(|&key| (key, None)).collect::<Missing>();
        let found = |keys: &[Key], run_max| {
            let bounds = |run: &Missing| Some((*run.first_key_value()?.0, run.last_key_value()?.0.1));
            runs(missing(keys), run_max).iter().filter_map(bounds).collect::<Vec<_>>()
        };
        assert_eq!(found(&[], 64), []);
        assert_eq!(found(&[(0, 1), (0, 2), (0, 7), (0, 13), (1, 14)], 64), [((0, 1), 7), ((0, 13), 13), ((1, 14), 14)]);
        assert_eq!(found(&[(0, 1), (0, 2), (0, 3), (0, 4)], 2), [((0, 1), 2), ((0, 3), 4)]);
    }
}
