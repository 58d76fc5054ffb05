//! A worker's queue on a simulated device: requests in flight in virtual time.
//!
//! Requests are applied by the [world](super::world) when the clock reaches their completion time. A wait moves the
//! clock itself, or sleeps until another thread does.
//!
//! Invariant: `started` requests are in the world's events or among the queue's completions, and `started <= depth`.

use std::collections::VecDeque;
use std::sync::Arc;

use keyaki_primitives::sync::MutexGuard;

use super::Shared;
use super::handles::SimulatedFile;
use super::world::{Activity, GRACE, World};
use crate::interface::{Completion, Error, ErrorKind, Op, Operation, Queue, Request, Result, Wait, Waker};
use crate::memory::Buffer;

/// A queue of a simulated device.
#[derive(Debug)]
pub(super) struct SimulatedQueue {
    shared: Arc<Shared>,
    /// The queue's number in the world.
    number: u64,
    /// The generation of the machine in which the queue was created.
    generation: u64,
    depth: usize,
    /// Pushed and not started.
    pending: VecDeque<Request>,
    /// Started and not collected.
    started: usize,
}

#[derive(Debug)]
struct SimulatedWaker {
    shared: Arc<Shared>,
    number: u64,
}

impl Waker for SimulatedWaker {
    fn wake(&self) {
        if let Some(queue) = self.shared.world.lock().queues.get_mut(&self.number) {
            queue.notified = true;
            if matches!(queue.activity, Activity::Waiting { .. }) {
                queue.activity = Activity::Running;
            }
        }
        self.shared.changed.notify_all();
    }
}

impl SimulatedQueue {
    pub(super) fn new(shared: Arc<Shared>, depth: usize) -> Self {
        let mut world = shared.world.lock();
        let (number, generation) = (world.add_queue(), world.generation);
        drop(world);
        SimulatedQueue { shared, number, generation, depth: depth.max(1), pending: VecDeque::new(), started: 0 }
    }

    /// Starts as many pending requests as the depth allows.
    fn start(&mut self, world: &mut World) {
        while self.started < self.depth
            && let Some(request) = self.pending.pop_front()
        {
            self.started += 1;
            if let Some(completion) = start_one(world, self.number, self.generation, &self.shared, request)
                && let Some(queue) = world.queues.get_mut(&self.number)
            {
                queue.completed.push_back(completion);
            }
        }
    }

    /// Records the activity of the calling thread, which uses this queue.
    fn set_activity(&self, world: &mut World, activity: Activity) {
        if let Some(queue) = world.queues.get_mut(&self.number) {
            queue.activity = activity;
            queue.thread = Some(std::thread::current().id());
        }
    }

    /// Waits for a completion, a wake-up or the deadline (in virtual time).
    fn wait(&self, world: &mut MutexGuard<'_, World>, deadline_ns: Option<u64>) {
        loop {
            let now_ns = world.now_ns;
            let Some(queue) = world.queues.get_mut(&self.number) else { return };
            if !queue.completed.is_empty() || deadline_ns.is_some_and(|deadline| now_ns >= deadline) {
                return;
            }
            if std::mem::take(&mut queue.notified) {
                return;
            }
            if self.started == 0 && world.check(self.generation).is_err() {
                return;
            }
            self.set_activity(world, Activity::Waiting { deadline_ns });
            if others_run(world) {
                self.wait_for_others(world);
            } else if let Some(next_ns) = world.next_event_ns() {
                world.advance(next_ns);
                self.shared.changed.notify_all();
            } else {
                // No event is due: only another thread can end this wait.
                self.shared.changed.wait(world);
            }
        }
    }

    /// Gives running threads [`GRACE`] of real time to make their next call, and marks the others as absent.
    fn wait_for_others(&self, world: &mut MutexGuard<'_, World>) {
        if self.shared.changed.wait_for(world, GRACE).timed_out() {
            for queue in world.queues.values_mut().filter(|queue| queue.activity == Activity::Running) {
                queue.activity = Activity::Absent;
            }
        }
    }
}

/// True if another thread that uses a queue computes.
fn others_run(world: &World) -> bool {
    let me = std::thread::current().id();
    world.queues.values().any(|queue| queue.activity == Activity::Running && queue.thread != Some(me))
}

/// Starts a request; an invalid one comes back as completed.
fn start_one(
    world: &mut World,
    queue: u64,
    generation: u64,
    shared: &Arc<Shared>,
    request: Request,
) -> Option<Completion> {
    let check = || {
        let file = request.file.as_any().downcast_ref::<SimulatedFile>();
        let Some(file) = file.filter(|file| Arc::ptr_eq(&file.shared, shared)) else {
            return Err(request.error(ErrorKind::ForeignFile));
        };
        if !matches!(request.op, Op::Sync) {
            let (operation, len) = request.op.describe();
            file.check_request(operation, request.offset, len as u64)?;
        }
        let checked = world.check(file.generation).and_then(|()| world.check(generation));
        checked.map_err(|kind| request.error(kind))?;
        Ok(file.inode.clone())
    };
    match check() {
        Ok(inode) => {
            world.start(queue, request, inode);
            None
        }
        Err(error) => Some(request.into_completion(Err(error))),
    }
}

impl Queue for SimulatedQueue {
    fn buffer(&mut self, len: usize) -> Buffer {
        Buffer::zeroed(len)
    }

    fn push(&mut self, request: Request) {
        self.pending.push_back(request);
    }

    fn submit(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let mut world = shared.world.lock();
        self.set_activity(&mut world, Activity::Running);
        self.start(&mut world);
        Ok(())
    }

    fn complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<usize> {
        let shared = self.shared.clone();
        let mut world = shared.world.lock();
        self.start(&mut world);
        // Apply the requests that take no time.
        let now_ns = world.now_ns;
        world.advance(now_ns);
        if let Wait::Until(timeout) = wait {
            let after = |timeout: std::time::Duration| {
                now_ns.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
            };
            self.wait(&mut world, timeout.map(after));
        }
        self.set_activity(&mut world, Activity::Running);
        let before = out.len();
        if let Some(queue) = world.queues.get_mut(&self.number) {
            out.extend(queue.completed.drain(..));
        }
        let count = out.len() - before;
        assert!(count <= self.started, "more completions than requests in flight");
        self.started -= count;
        if count == 0 && world.check(self.generation).is_err() {
            return Err(Error::without_path(Operation::Complete, ErrorKind::PowerLost));
        }
        self.start(&mut world);
        Ok(count)
    }

    fn in_flight(&self) -> usize {
        self.pending.len() + self.started
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::new(SimulatedWaker { shared: self.shared.clone(), number: self.number })
    }
}

impl Drop for SimulatedQueue {
    /// Waits in virtual time for the started requests, as the real devices do.
    fn drop(&mut self) {
        let mut world = self.shared.world.lock();
        world.remove_queue(self.number);
        drop(world);
        self.shared.changed.notify_all();
    }
}
