//! Everything a simulated device knows, behind one lock: clock, files, requests in flight, faults.
//!
//! Time is virtual. A blocking call moves the clock to its own end; waiting on a queue moves it to the next completion or
//! deadline of any queue. Whenever the clock moves, the requests that complete on the way take effect, in order of their
//! completion times (ties: of their submission), and go to their queues.
//!
//! With several threads the clock must not run ahead of those that are computing, so it only jumps when every other
//! thread that uses a queue is waiting too. A thread that stays away longer than [`GRACE`] of real time (it may be waiting
//! for something else) is no longer waited for until it uses its queue again.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use keyaki_primitives::Random;
use parking_lot::Mutex;

use super::faults::{FaultKind, Faults};
use super::inode::{Inode, Mood, Space};
use super::model::Service;
use super::namespace::{InodeRef, Namespace, Node, normal};
use super::{Model, SimulatedOptions};
use crate::{BLOCK, Completion, Op, Request};

/// Real time that a jump of the clock waits for threads that are neither waiting nor calling.
pub(super) const GRACE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct World {
    pub(super) now_ns: u64,
    service: Service,
    pub(super) namespace: Namespace,
    inodes: Vec<Weak<Mutex<Inode>>>,
    inodes_made: u64,
    pub(super) space: Arc<Space>,
    pub(super) faults: Faults,
    /// Locked paths → the lock's number.
    locks: BTreeMap<PathBuf, u64>,
    locks_made: u64,
    /// Restarts so far: handles of earlier generations are dead.
    pub(super) generation: u64,
    down: bool,
    crash_random: Random,
    /// (completion time, submission number) → request.
    events: BTreeMap<(u64, u64), Event>,
    submissions: u64,
    pub(super) queues: BTreeMap<u64, QueueState>,
    queues_made: u64,
}

#[derive(Debug)]
struct Event {
    queue: u64,
    request: Request,
    inode: InodeRef,
    /// For a sync: the last change it covers.
    covers: u64,
}

/// What the world knows about a queue.
#[derive(Debug, Default)]
pub(super) struct QueueState {
    pub(super) completed: VecDeque<Completion>,
    pub(super) notified: bool,
    pub(super) activity: Activity,
    /// The thread that used it last.
    pub(super) thread: Option<ThreadId>,
}

/// What a queue's thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Activity {
    /// Computing: the clock waits for it.
    Running,
    /// In [`crate::Queue::complete`], until this time at the latest.
    Waiting { deadline_ns: Option<u64> },
    /// Not seen for long (or never): the clock does not wait for it.
    #[default]
    Absent,
}

pub(super) fn is_down() -> io::Error {
    io::Error::other("the simulated machine has lost power")
}

impl World {
    pub(super) fn new(options: &SimulatedOptions) -> Self {
        let mut seeds = Random::new(options.seed);
        World {
            now_ns: 0,
            service: Service::new(options.model, seeds.next_u64()),
            namespace: Namespace::default(),
            inodes: Vec::new(),
            inodes_made: 0,
            space: Arc::new(Space::new(options.capacity_bytes)),
            faults: Faults::default(),
            locks: BTreeMap::new(),
            locks_made: 0,
            generation: 0,
            down: false,
            crash_random: Random::new(seeds.next_u64()),
            events: BTreeMap::new(),
            submissions: 0,
            queues: BTreeMap::new(),
            queues_made: 0,
        }
    }

    pub(super) fn set_model(&mut self, model: Model) {
        self.service = Service::new(model, self.crash_random.next_u64());
    }

    /// Fails if the power is off, or was since the handle of that generation was made.
    pub(super) fn check(&self, generation: u64) -> io::Result<()> {
        if self.down || generation != self.generation { Err(is_down()) } else { Ok(()) }
    }

    /// Counts an operation; true: the power fails during it (and is off already).
    pub(super) fn operation_crashes(&mut self) -> bool {
        let crashes = self.faults.operation();
        self.down |= crashes;
        crashes
    }

    pub(super) fn new_inode(&mut self) -> InodeRef {
        let inode = Inode::new(self.inodes_made, self.space.clone());
        self.adopt(inode)
    }

    pub(super) fn import(&mut self, path: &Path, bytes: impl io::Read) -> io::Result<()> {
        let inode = Inode::with_contents(self.inodes_made, self.space.clone(), bytes)?;
        let inode = self.adopt(inode);
        self.namespace.insert_durable(path, Node::File(inode));
        Ok(())
    }

    fn adopt(&mut self, inode: Inode) -> InodeRef {
        let inode = Arc::new(Mutex::new(inode));
        self.inodes_made += 1;
        self.inodes.push(Arc::downgrade(&inode));
        inode
    }

    /// Lets a blocking call of `bytes` at `offset` take its time.
    pub(super) fn spend(&mut self, inode: &InodeRef, offset: u64, bytes: u64) {
        let place = place(inode, offset);
        let end_ns = self.service.completion_ns(self.now_ns, place, bytes);
        self.advance(end_ns);
    }

    /// A write takes effect, or meets its fault.
    pub(super) fn write(&mut self, inode: &InodeRef, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inode = inode.lock();
        match self.faults.write() {
            None => inode.write(offset, bytes),
            Some(FaultKind::Eio) => Err(io::Error::other("simulated write error")),
            Some(FaultKind::NoSpace) => Err(io::ErrorKind::StorageFull.into()),
            Some(FaultKind::Lose) => Ok(()),
            Some(FaultKind::Misdirect { blocks }) => {
                let elsewhere = offset.saturating_add_signed(blocks.saturating_mul(BLOCK as i64));
                inode.write(elsewhere.min(i64::MAX as u64 / 2 / BLOCK as u64 * BLOCK as u64), bytes)
            }
            Some(FaultKind::Crash) => {
                self.down = true;
                // On its way: the crash decides how much of it arrives.
                inode.write(offset, bytes)?;
                Err(is_down())
            }
        }
    }

    /// A sync that began when `covers` was the last change ends.
    pub(super) fn sync(&mut self, inode: &InodeRef, covers: u64) -> io::Result<()> {
        if self.operation_crashes() {
            return Err(is_down());
        }
        if self.faults.sync_fails() {
            inode.lock().abandon(covers);
            return Err(io::Error::other("simulated sync error"));
        }
        if !self.faults.lying_syncs {
            inode.lock().sync(covers);
        }
        Ok(())
    }

    /// Starts a queue's request now.
    pub(super) fn start(&mut self, queue: u64, request: Request, inode: InodeRef) {
        let (bytes, covers) = match &request.op {
            Op::Read(buffer) | Op::Write(buffer) => (buffer.len() as u64, 0),
            Op::Sync => (0, inode.lock().last_change()),
        };
        let end_ns = self.service.completion_ns(self.now_ns, place(&inode, request.offset), bytes);
        self.submissions += 1;
        self.events.insert((end_ns, self.submissions), Event { queue, request, inode, covers });
    }

    /// Moves the clock on to `to_ns`; what completes until then takes effect.
    pub(super) fn advance(&mut self, to_ns: u64) {
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= to_ns
        {
            let ((at_ns, _), event) = entry.remove_entry();
            self.now_ns = self.now_ns.max(at_ns);
            self.finish(event);
        }
        self.now_ns = self.now_ns.max(to_ns);
        for queue in self.queues.values_mut() {
            if let Activity::Waiting { deadline_ns: Some(deadline_ns) } = queue.activity
                && deadline_ns <= self.now_ns
            {
                queue.activity = Activity::Running;
            }
        }
    }

    fn finish(&mut self, event: Event) {
        let Event { queue, request, inode, covers } = event;
        let Request { file, offset, op, tag } = request;
        let fail = |operation, len: usize, error| crate::Error::new(operation, file.path(), offset, len as u64, error);
        let (buffer, result) = match op {
            _ if self.down => {
                // The power failed while this was under way.
                let result = Err(fail("complete", 0, is_down()));
                (self.abort(op, &inode, offset), result)
            }
            Op::Read(mut buffer) => {
                let result = inode.lock().read(offset, &mut buffer);
                let len = buffer.len();
                (Some(buffer), result.map_err(|error| fail("read", len, error)))
            }
            Op::Write(buffer) => {
                let result = self.write(&inode, offset, &buffer);
                let len = buffer.len();
                (Some(buffer), result.map_err(|error| fail("write", len, error)))
            }
            Op::Sync => (None, self.sync(&inode, covers).map_err(|error| fail("sync", 0, error))),
        };
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.completed.push_back(Completion { tag, buffer, result });
            if matches!(queue.activity, Activity::Waiting { .. }) {
                queue.activity = Activity::Running;
            }
        }
    }

    /// A request that the power failure interrupts: a write may still leave traces.
    fn abort(&mut self, op: Op, inode: &InodeRef, offset: u64) -> Option<crate::Buffer> {
        match op {
            Op::Read(buffer) => Some(buffer),
            Op::Write(buffer) => {
                // Without room nothing arrives, which is one of the outcomes anyway.
                let _ = inode.lock().write(offset, &buffer);
                Some(buffer)
            }
            Op::Sync => None,
        }
    }

    /// When the next thing happens that a waiting queue is interested in.
    pub(super) fn next_event_ns(&self) -> Option<u64> {
        let completion = self.events.first_key_value().map(|(key, _)| key.0);
        let deadline = self.queues.values().filter_map(|queue| match queue.activity {
            Activity::Waiting { deadline_ns } => deadline_ns,
            _ => None,
        });
        completion.into_iter().chain(deadline).min()
    }

    pub(super) fn add_queue(&mut self) -> u64 {
        self.queues_made += 1;
        self.queues.insert(self.queues_made, QueueState::default());
        self.queues_made
    }

    /// Forgets a queue after its last request has completed.
    pub(super) fn remove_queue(&mut self, number: u64) {
        let last_ns = self.events.iter().filter(|(_, event)| event.queue == number).map(|(key, _)| key.0).max();
        self.advance(last_ns.unwrap_or(self.now_ns));
        self.queues.remove(&number);
    }

    pub(super) fn is_down(&self) -> bool {
        self.down
    }

    /// Takes the lock of `path`; its number.
    pub(super) fn lock(&mut self, path: &Path) -> io::Result<u64> {
        match self.namespace.file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let inode = self.new_inode();
                self.namespace.create(path, Node::File(inode))?;
            }
            result => drop(result?),
        }
        let path = normal(path);
        if self.locks.contains_key(&path) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.locks_made += 1;
        self.locks.insert(path, self.locks_made);
        Ok(self.locks_made)
    }

    pub(super) fn unlock(&mut self, number: u64) {
        self.locks.retain(|_, held| *held != number);
    }

    /// Loses power (unless it is off already), decides what has survived, and starts again.
    pub(super) fn crash(&mut self) {
        self.down = true;
        for (_, event) in std::mem::take(&mut self.events) {
            self.finish(event);
        }
        let random = &mut self.crash_random;
        let mood = match random.below(8) {
            0 => Mood::KeepAll,
            1 => Mood::LoseAll,
            _ => Mood::PerChange,
        };
        self.namespace.crash(mood, random);
        self.inodes.retain(|inode| match inode.upgrade() {
            Some(inode) => {
                inode.lock().crash(mood, random);
                true
            }
            None => false,
        });
        self.faults.clear();
        self.locks.clear();
        self.generation += 1;
        self.down = false;
    }

    pub(super) fn heal(&mut self) {
        self.faults.clear();
        self.inodes.iter().filter_map(Weak::upgrade).for_each(|inode| inode.lock().heal());
    }
}

fn place(inode: &InodeRef, offset: u64) -> u64 {
    // Files lie far apart.
    (inode.lock().number << 44).wrapping_add(offset)
}
