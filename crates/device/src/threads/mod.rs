//! Requests carried out by a pool of threads with blocking calls: works everywhere.
//!
//! One pool serves all queues of a device. It starts a thread whenever jobs outnumber idle threads, up to
//! [`THREADS_MAX`]; the threads end when the device and its queues are gone.

mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};

use queue::Inbox;
pub(crate) use queue::ThreadsQueue;

use crate::{Completion, Op, Request};

/// Blocking calls at the same time at the most.
const THREADS_MAX: usize = 64;

/// One request and where its completion goes.
#[derive(Debug)]
pub(crate) struct Job {
    request: Request,
    inbox: Arc<Inbox>,
}

#[derive(Debug)]
pub(crate) struct Pool {
    jobs: Sender<Job>,
    /// Kept for starting threads (and so that sending never fails).
    receiver: Receiver<Job>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    threads: AtomicUsize,
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
            // The pool holds a receiver itself; should that change, doing the job here is still right.
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
        // No sender goes along: the channel closes with the pool, and that ends the thread.
        let receiver = self.receiver.clone();
        let counts = self.counts.clone();
        let thread = std::thread::Builder::new().name("keyaki-io".into()).stack_size(128 << 10);
        if let Err(error) = thread.spawn(move || serve(&receiver, &counts)) {
            let left = self.counts.threads.fetch_sub(1, Ordering::Relaxed) - 1;
            tracing::warn!(%error, threads = left, "cannot start another I/O thread");
            if left == 0 {
                // Nobody would ever do the jobs: do them here.
                self.receiver.try_iter().for_each(run);
            }
        }
    }
}

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
    // The file is let go before its completion is seen, so that whoever waits for that can close it.
    drop(file);
    inbox.put(Completion { tag, buffer, result });
}
