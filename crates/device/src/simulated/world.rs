//! The state of a simulated device, behind one lock: clock, files, requests in flight, faults.
//!
//! Time is virtual. A blocking call moves the clock to its own end. Waiting on a queue moves it to the next completion
//! or deadline of any queue. When the clock moves, the requests that complete on the way take effect in order of their
//! completion times (ties: in order of submission), and their completions go to their queues.
//!
//! With several threads the clock must not run ahead of threads that compute. It therefore only jumps when every other
//! thread that uses a queue waits too. A thread that makes no call for [`GRACE`] of real time, because it may wait for
//! something else, counts as absent until it uses its queue again.
//!
//! Invariants: the clock never runs backwards. No event and no deadline of a waiting queue lies before the clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use keyaki_primitives::Random;
use parking_lot::Mutex;

use super::faults::{FaultKind, Faults};
use super::inode::{CrashPolicy, Inode, Space};
use super::namespace::{InodeRef, Namespace, Node, normal};
use super::{Model, SimulatedOptions};
use crate::interface::{Completion, ErrorKind, Op, Request};
use crate::memory::BLOCK;
use crate::model::Service;

/// Real time that a jump of the clock waits for threads that neither wait nor call.
pub(super) const GRACE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct World {
    /// The virtual clock.
    pub(super) now_ns: u64,
    service: Service,
    pub(super) namespace: Namespace,
    inodes: Vec<Weak<Mutex<Inode>>>,
    inodes_made: u64,
    pub(super) space: Arc<Space>,
    pub(super) faults: Faults,
    /// Locked paths, with the number of each lock.
    locks: BTreeMap<PathBuf, u64>,
    /// Marks of files by the number of their guard.
    marks: BTreeMap<u64, (PathBuf, u64)>,
    /// Number of locks and marks made.
    locks_made: u64,
    /// Number of restarts. Handles of earlier generations are invalid.
    pub(super) generation: u64,
    /// The power is off.
    down: bool,
    crash_random: Random,
    /// Requests in flight, by completion time and submission number.
    events: BTreeMap<(u64, u64), Event>,
    submissions: u64,
    pub(super) queues: BTreeMap<u64, QueueState>,
    queues_made: u64,
}

/// A request in flight.
#[derive(Debug)]
struct Event {
    queue: u64,
    request: Request,
    inode: InodeRef,
    /// The last change that a sync covers; 0 for reads and writes.
    covers: u64,
}

/// The shared part of a queue.
#[derive(Debug, Default)]
pub(super) struct QueueState {
    pub(super) completed: VecDeque<Completion>,
    /// A wake-up is pending.
    pub(super) notified: bool,
    pub(super) activity: Activity,
    /// The thread that used the queue last.
    pub(super) thread: Option<ThreadId>,
}

/// The activity of a queue's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Activity {
    /// The thread computes: the clock waits for it.
    Running,
    /// The thread is in [`crate::Queue::complete`], until this time at the latest.
    Waiting { deadline_ns: Option<u64> },
    /// The thread has made no call for [`GRACE`], or never: the clock does not wait for it.
    #[default]
    Absent,
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
            marks: BTreeMap::new(),
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

    /// Fails if the power is off, or the machine was restarted since the given generation.
    pub(super) fn check(&self, generation: u64) -> Result<(), ErrorKind> {
        if self.down || generation != self.generation { Err(ErrorKind::PowerLost) } else { Ok(()) }
    }

    /// Counts an operation. True: the power fails during it, and is off now.
    pub(super) fn operation_crashes(&mut self) -> bool {
        let crashes = self.faults.operation();
        self.down |= crashes;
        crashes
    }

    pub(super) fn new_inode(&mut self) -> InodeRef {
        let inode = Inode::new(self.inodes_made, self.space.clone());
        self.adopt(inode)
    }

    /// Creates a durable file with these contents, replacing an existing one.
    pub(super) fn import(&mut self, path: &Path, bytes: impl io::Read) -> Result<(), ErrorKind> {
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

    /// Advances the clock by the time of a blocking call of `bytes` at `offset`.
    pub(super) fn spend(&mut self, inode: &InodeRef, offset: u64, bytes: u64) {
        let end_ns = self.service.completion_ns(self.now_ns, device_address(inode, offset), bytes);
        self.advance(end_ns);
    }

    /// Applies a write, or its planned fault.
    pub(super) fn write(&mut self, inode: &InodeRef, offset: u64, bytes: &[u8]) -> Result<(), ErrorKind> {
        let mut inode = inode.lock();
        match self.faults.write() {
            None => inode.write(offset, bytes),
            Some(FaultKind::Eio) => Err(ErrorKind::Injected),
            Some(FaultKind::NoSpace) => Err(ErrorKind::NoSpace),
            Some(FaultKind::Lose) => Ok(()),
            Some(FaultKind::Misdirect { blocks }) => {
                let elsewhere = offset.saturating_add_signed(blocks.saturating_mul(BLOCK as i64));
                inode.write(elsewhere.min(i64::MAX as u64 / 2 / BLOCK as u64 * BLOCK as u64), bytes)
            }
            Some(FaultKind::Crash) => {
                self.down = true;
                // The write is unsynced: the crash decides how much of it survives.
                inode.write(offset, bytes)?;
                Err(ErrorKind::PowerLost)
            }
        }
    }

    /// Completes a sync that began when `covers` was the last change.
    pub(super) fn sync(&mut self, inode: &InodeRef, covers: u64) -> Result<(), ErrorKind> {
        if self.operation_crashes() {
            return Err(ErrorKind::PowerLost);
        }
        if let Some(error) = self.faults.sync() {
            inode.lock().abandon(covers);
            return Err(error);
        }
        if !self.faults.lying_syncs {
            inode.lock().sync(covers);
        }
        Ok(())
    }

    /// Starts a request of a queue now.
    pub(super) fn start(&mut self, queue: u64, request: Request, inode: InodeRef) {
        let (bytes, covers) = match &request.op {
            Op::Read(buffer) | Op::Write(buffer) => (buffer.len() as u64, 0),
            Op::Sync => (0, inode.lock().last_change()),
        };
        let end_ns = self.service.completion_ns(self.now_ns, device_address(&inode, request.offset), bytes);
        assert!(end_ns >= self.now_ns, "a request completes before it starts");
        self.submissions += 1;
        self.events.insert((end_ns, self.submissions), Event { queue, request, inode, covers });
    }

    /// Moves the clock forward to `to_ns`. Requests that complete until then take effect.
    pub(super) fn advance(&mut self, to_ns: u64) {
        assert!(to_ns >= self.now_ns, "virtual time runs backwards");
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= to_ns
        {
            let ((at_ns, _), event) = entry.remove_entry();
            assert!(at_ns >= self.now_ns, "an event lies in the past");
            self.now_ns = at_ns;
            self.finish(event);
        }
        self.now_ns = to_ns;
        for queue in self.queues.values_mut() {
            if let Activity::Waiting { deadline_ns: Some(deadline_ns) } = queue.activity
                && deadline_ns <= self.now_ns
            {
                queue.activity = Activity::Running;
            }
        }
    }

    /// Applies a request and delivers its completion.
    fn finish(&mut self, event: Event) {
        let Event { queue, mut request, inode, covers } = event;
        let offset = request.offset;
        let result = match &mut request.op {
            // The power failed during the request. A write may leave traces; without space it leaves none.
            Op::Write(buffer) if self.down => {
                let _ = inode.lock().write(offset, buffer);
                Err(ErrorKind::PowerLost)
            }
            _ if self.down => Err(ErrorKind::PowerLost),
            Op::Read(buffer) => inode.lock().read(offset, buffer),
            Op::Write(buffer) => self.write(&inode, offset, buffer),
            Op::Sync => self.sync(&inode, covers),
        };
        let result = result.map_err(|kind| request.error(kind));
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.completed.push_back(request.into_completion(result));
            if matches!(queue.activity, Activity::Waiting { .. }) {
                queue.activity = Activity::Running;
            }
        }
    }

    /// The time of the next completion or deadline; `None` if there is neither.
    pub(super) fn next_event_ns(&self) -> Option<u64> {
        let completion = self.events.first_key_value().map(|(key, _)| key.0);
        let deadline = self.queues.values().filter_map(|queue| match queue.activity {
            Activity::Waiting { deadline_ns } => deadline_ns,
            _ => None,
        });
        completion.into_iter().chain(deadline).min()
    }

    /// Registers a queue; its number.
    pub(super) fn add_queue(&mut self) -> u64 {
        self.queues_made += 1;
        self.queues.insert(self.queues_made, QueueState::default());
        self.queues_made
    }

    /// Removes a queue after advancing the clock to the completion of its last request.
    pub(super) fn remove_queue(&mut self, number: u64) {
        let last_ns = self.events.iter().filter(|(_, event)| event.queue == number).map(|(key, _)| key.0).max();
        self.advance(last_ns.unwrap_or(self.now_ns));
        self.queues.remove(&number);
    }

    pub(super) fn is_down(&self) -> bool {
        self.down
    }

    /// Takes the lock of `path`, creating the file if missing. Returns the lock's number.
    pub(super) fn lock(&mut self, path: &Path) -> Result<u64, ErrorKind> {
        match self.namespace.file(path) {
            Err(ErrorKind::NotFound) => {
                let inode = self.new_inode();
                self.namespace.create(path, Node::File(inode))?;
            }
            result => drop(result?),
        }
        self.lock_existing(path)
    }

    /// Takes the lock of the file at `path`. Returns the lock's number.
    pub(super) fn lock_existing(&mut self, path: &Path) -> Result<u64, ErrorKind> {
        self.namespace.file(path)?;
        let path = normal(path);
        if self.locks.contains_key(&path) {
            return Err(ErrorKind::Locked { holder: None });
        }
        self.locks_made += 1;
        self.locks.insert(path, self.locks_made);
        Ok(self.locks_made)
    }

    /// Marks the file at `path` with `mark`. Returns the number of the guard.
    pub(super) fn mark(&mut self, path: &Path, mark: u64) -> Result<u64, ErrorKind> {
        self.namespace.file(path)?;
        self.locks_made += 1;
        self.marks.insert(self.locks_made, (normal(path), mark));
        Ok(self.locks_made)
    }

    /// The marks of the file at `path`.
    pub(super) fn marks(&self, path: &Path) -> Result<Vec<u64>, ErrorKind> {
        self.namespace.file(path)?;
        let path = normal(path);
        let marks: BTreeSet<u64> = self.marks.values().filter(|mark| mark.0 == path).map(|mark| mark.1).collect();
        Ok(marks.into_iter().collect())
    }

    /// Releases a lock or mark, unless a restart has released it before.
    pub(super) fn unlock(&mut self, number: u64) {
        self.locks.retain(|_, held| *held != number);
        self.marks.remove(&number);
    }

    /// Cuts the power if it is on, decides which unsynced changes survive, and restarts.
    pub(super) fn crash(&mut self) {
        self.down = true;
        for (_, event) in std::mem::take(&mut self.events) {
            self.finish(event);
        }
        let random = &mut self.crash_random;
        let policy = match random.below(8) {
            0 => CrashPolicy::KeepAll,
            1 => CrashPolicy::LoseAll,
            _ => CrashPolicy::PerChange,
        };
        self.namespace.crash(policy, random);
        self.inodes.retain(|inode| match inode.upgrade() {
            Some(inode) => {
                inode.lock().crash(policy, random);
                true
            }
            None => false,
        });
        self.faults.clear();
        self.locks.clear();
        self.marks.clear();
        self.generation += 1;
        self.down = false;
    }

    /// Clears planned faults and unreadable ranges.
    pub(super) fn heal(&mut self) {
        self.faults.clear();
        self.inodes.iter().filter_map(Weak::upgrade).for_each(|inode| inode.lock().heal());
    }
}

/// The position of a byte on the simulated medium: files are 2^44 bytes apart.
fn device_address(inode: &InodeRef, offset: u64) -> u64 {
    (inode.lock().number << 44).wrapping_add(offset)
}
