//! The portable device: a pool of threads carries out requests as blocking calls.
//!
//! One pool serves all queues of a device. It starts a thread whenever jobs outnumber idle threads, up to
//! [`THREADS_MAX`]. The threads end after the device and all its queues have been dropped.
//!
//! Invariant: every job's completion reaches its queue's inbox, also when no thread can be started.

mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};

use crate::interface::{Completion, Op, Queue, Request, Result};
use crate::os::Backend;

use queue::{Inbox, ThreadsQueue};

/// Maximum number of threads, so of concurrent blocking calls.
const THREADS_MAX: usize = 64;

/// A request and the inbox for its completion.
#[derive(Debug)]
pub(crate) struct Job {
    request: Request,
    inbox: Arc<Inbox>,
}

/// The threads of a device and their job queue.
#[derive(Debug)]
pub(crate) struct Pool {
    jobs: Sender<Job>,
    /// Cloned for each new thread. While it exists, sending never fails.
    receiver: Receiver<Job>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Threads that run or are being started.
    threads: AtomicUsize,
    /// Threads that wait for a job.
    idle: AtomicUsize,
}

impl Pool {
    pub(crate) fn new() -> Self {
        let (jobs, receiver) = crossbeam_channel::unbounded();
        Pool { jobs, receiver, counts: Arc::default() }
    }

    /// Queues a job; never blocks.
    fn start(&self, job: Job) {
        if let Err(returned) = self.jobs.send(job) {
            // Unreachable, because the pool holds a receiver. Running the job here would be correct too.
            run(returned.into_inner());
            return;
        }
        let threads = self.counts.threads.load(Ordering::Relaxed);
        if threads < THREADS_MAX && self.jobs.len() > self.counts.idle.load(Ordering::Relaxed) {
            self.add_thread();
        }
    }

    fn add_thread(&self) {
        if self.counts.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            self.counts.threads.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        // The thread gets no sender: dropping the pool closes the channel, which ends the thread.
        let receiver = self.receiver.clone();
        let counts = self.counts.clone();
        let thread = std::thread::Builder::new().name("keyaki-io".into()).stack_size(128 << 10);
        if let Err(error) = thread.spawn(move || serve(&receiver, &counts)) {
            let left = self.counts.threads.fetch_sub(1, Ordering::Relaxed) - 1;
            tracing::warn!(%error, threads = left, "could not start an I/O thread");
            if left == 0 {
                // No thread would ever run the jobs.
                self.receiver.try_iter().for_each(run);
            }
        }
    }
}

impl Backend for Arc<Pool> {
    const NAME: &'static str = "threads";

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(ThreadsQueue::new(self.clone(), depth)))
    }
}

/// Runs jobs until the pool has been dropped.
fn serve(jobs: &Receiver<Job>, counts: &Counts) {
    loop {
        counts.idle.fetch_add(1, Ordering::Relaxed);
        let job = jobs.recv();
        counts.idle.fetch_sub(1, Ordering::Relaxed);
        match job {
            Ok(job) => run(job),
            Err(_) => return,
        }
    }
}

/// Carries out a request with blocking calls.
fn run(job: Job) {
    let Job { request: Request { file, offset, op, tag }, inbox } = job;
    let (buffer, result) = match op {
        Op::Read(mut buffer) => {
            let result = file.read_at(offset, &mut buffer);
            (Some(buffer), result)
        }
        Op::Write(buffer) => {
            let result = file.write_at(offset, &buffer);
            (Some(buffer), result)
        }
        Op::Sync => (None, file.sync_data()),
    };
    // Drop the file before the completion is visible: its receiver may then hold the last reference.
    drop(file);
    inbox.put(Completion { tag, buffer, result });
}
