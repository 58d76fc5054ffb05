//! A worker's queue over the [pool](super::Pool).
//!
//! At most `depth` requests are with the pool; further ones wait in the queue's backlog. The pool's threads put
//! completions into the queue's [`Inbox`]. The worker sleeps on the inbox, and its [`Waker`] is the inbox.
//!
//! Invariant: `started` requests are with the pool or in the inbox, and `started <= depth`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::{Job, Pool};
use crate::interface::{Completion, Queue, Request, Result, Wait, Waker};
use crate::memory::{Arena, Buffer};

/// A queue of the thread pool.
#[derive(Debug)]
pub(super) struct ThreadsQueue {
    pool: Arc<Pool>,
    inbox: Arc<Inbox>,
    /// Pushed and not started.
    backlog: VecDeque<Request>,
    /// Requests with the pool, or completed and not yet collected.
    started: usize,
    depth: usize,
    arena: Arena,
}

/// Completions and wake-ups for a worker.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct InboxState {
    completed: Vec<Completion>,
    /// A wake-up is pending.
    notified: bool,
    /// The worker sleeps, or is about to.
    waiting: bool,
}

impl Inbox {
    /// Delivers a completion.
    pub(super) fn put(&self, completion: Completion) {
        let mut state = self.state.lock();
        state.completed.push(completion);
        self.notify(&state);
    }

    /// Wakes the worker if it sleeps.
    fn notify(&self, state: &InboxState) {
        if state.waiting {
            self.changed.notify_one();
        }
    }

    /// Moves completions to `out`, waiting as `wait` says. Returns their number.
    fn take(&self, wait: Wait, out: &mut Vec<Completion>) -> usize {
        let mut state = self.state.lock();
        if let Wait::Until(timeout) = wait {
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            while state.completed.is_empty() && !std::mem::take(&mut state.notified) {
                state.waiting = true;
                let timed_out = match deadline {
                    Some(deadline) => self.changed.wait_until(&mut state, deadline).timed_out(),
                    None => {
                        self.changed.wait(&mut state);
                        false
                    }
                };
                state.waiting = false;
                if timed_out {
                    break;
                }
            }
        }
        let count = state.completed.len();
        out.append(&mut state.completed);
        count
    }
}

impl Waker for Inbox {
    fn wake(&self) {
        let mut state = self.state.lock();
        state.notified = true;
        self.notify(&state);
    }
}

impl ThreadsQueue {
    pub(super) fn new(pool: Arc<Pool>, depth: usize) -> Self {
        ThreadsQueue {
            pool,
            inbox: Arc::default(),
            backlog: VecDeque::new(),
            started: 0,
            depth: depth.max(1),
            arena: Arena::new(depth),
        }
    }

    /// Starts requests of the backlog as far as the depth allows.
    fn start(&mut self) {
        while self.started < self.depth
            && let Some(request) = self.backlog.pop_front()
        {
            self.started += 1;
            self.pool.start(Job { request, inbox: self.inbox.clone() });
        }
    }
}

impl ThreadsQueue {
    /// Moves completions from the inbox to `out`. Returns their number.
    fn collect(&mut self, wait: Wait, out: &mut Vec<Completion>) -> usize {
        let count = self.inbox.take(wait, out);
        assert!(count <= self.started, "more completions than requests in flight");
        self.started -= count;
        count
    }
}

impl Queue for ThreadsQueue {
    fn buffer(&mut self, len: usize) -> Buffer {
        Buffer::from_arena(&mut self.arena, len)
    }

    fn push(&mut self, request: Request) {
        self.backlog.push_back(request);
    }

    fn submit(&mut self) -> Result<()> {
        self.start();
        Ok(())
    }

    fn complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<usize> {
        self.start();
        let count = self.collect(wait, out);
        self.start();
        Ok(count)
    }

    fn in_flight(&self) -> usize {
        self.started + self.backlog.len()
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inbox.clone()
    }
}

impl Drop for ThreadsQueue {
    /// Waits for the started requests, so that none touches a file after the queue is gone.
    fn drop(&mut self) {
        self.backlog.clear();
        let mut completed = Vec::new();
        while self.started > 0 {
            self.collect(Wait::Until(None), &mut completed);
        }
    }
}
