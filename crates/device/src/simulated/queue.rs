//! A worker's queue on a simulated device: requests in flight in virtual time.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::Shared;
use super::handles::SimulatedFile;
use super::world::{Activity, GRACE, World, is_down};
use crate::{Buffer, Completion, Error, Op, Queue, Request, Result, Wait, Waker};

#[derive(Debug)]
pub(super) struct SimulatedQueue {
    shared: Arc<Shared>,
    number: u64,
    generation: u64,
    depth: usize,
    pending: VecDeque<Request>,
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
            if let Err(completion) = start_one(world, self.number, self.generation, &self.shared, request)
                && let Some(queue) = world.queues.get_mut(&self.number)
            {
                queue.completed.push_back(completion);
            }
        }
    }

    /// Notes that the calling thread is at work on this queue.
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
                // Nothing will ever happen here unless somebody else makes it.
                self.shared.changed.wait(world);
            }
        }
    }

    /// Gives running threads some real time to come to their next call; those that do not are no longer waited for.
    fn wait_for_others(&self, world: &mut MutexGuard<'_, World>) {
        if self.shared.changed.wait_for(world, GRACE).timed_out() {
            for queue in world.queues.values_mut().filter(|queue| queue.activity == Activity::Running) {
                queue.activity = Activity::Absent;
            }
        }
    }

    fn after_crash(&self, operation: &'static str) -> Error {
        Error::on_path(operation, std::path::Path::new("simulated queue"), is_down())
    }
}

/// Whether another thread is computing.
fn others_run(world: &World) -> bool {
    let me = std::thread::current().id();
    world.queues.values().any(|queue| queue.activity == Activity::Running && queue.thread != Some(me))
}

fn start_one(
    world: &mut World,
    queue: u64,
    generation: u64,
    shared: &Arc<Shared>,
    request: Request,
) -> std::result::Result<(), Completion> {
    let (operation, len) = request.op.describe();
    let check = || {
        let path = request.file.path();
        let file = request.file.as_any().downcast_ref::<SimulatedFile>();
        let Some(file) = file.filter(|file| Arc::ptr_eq(&file.shared, shared)) else {
            let why = "the file belongs to another device";
            return Err(Error::invalid(operation, path, request.offset, len as u64, why));
        };
        if !matches!(request.op, Op::Sync) {
            file.check_request(operation, request.offset, len)?;
        }
        world
            .check(file.generation)
            .and_then(|()| world.check(generation))
            .map_err(|error| Error::new(operation, path, request.offset, len as u64, error))?;
        Ok(file.inode.clone())
    };
    match check() {
        Ok(inode) => {
            world.start(queue, request, inode);
            Ok(())
        }
        Err(error) => Err(request.into_completion(Err(error))),
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
        // What takes no time is there at once.
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
        self.started -= count;
        if count == 0 && world.check(self.generation).is_err() {
            return Err(self.after_crash("complete"));
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
    /// Waits (in virtual time) for what was started, as the real devices do.
    fn drop(&mut self) {
        let mut world = self.shared.world.lock();
        world.remove_queue(self.number);
        drop(world);
        self.shared.changed.notify_all();
    }
}
