//! A worker's queue over the [pool](super::Pool).
//!
//! Up to `depth` requests are with the pool; the rest waits here. The pool's threads put completions into the queue's
//! [`Inbox`], which is also what the worker sleeps on and what its [`Waker`] rings.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::{Job, Pool};
use crate::arena::Arena;
use crate::{Buffer, Completion, Queue, Request, Result, Wait, Waker};

#[derive(Debug)]
pub(crate) struct ThreadsQueue {
    pool: Arc<Pool>,
    inbox: Arc<Inbox>,
    backlog: VecDeque<Request>,
    /// Requests with the pool, or completed and not yet collected.
    started: usize,
    depth: usize,
    arena: Arena,
}

/// What has completed, and whether somebody wants the worker to wake up.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    completed: Vec<Completion>,
    notified: bool,
    waiting: bool,
}

impl Inbox {
    pub(super) fn put(&self, completion: Completion) {
        let mut state = self.state.lock();
        state.completed.push(completion);
        self.ring(&state);
    }

    fn ring(&self, state: &State) {
        if state.waiting {
            self.changed.notify_one();
        }
    }

    /// Moves what has completed to `out`, waiting as `wait` says; returns how many.
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
        self.ring(&state);
    }
}

impl ThreadsQueue {
    pub(crate) fn new(pool: Arc<Pool>, depth: usize) -> Self {
        ThreadsQueue {
            pool,
            inbox: Arc::default(),
            backlog: VecDeque::new(),
            started: 0,
            depth: depth.max(1),
            arena: Arena::new(depth),
        }
    }

    fn start(&mut self) {
        while self.started < self.depth
            && let Some(request) = self.backlog.pop_front()
        {
            self.started += 1;
            self.pool.start(Job { request, inbox: self.inbox.clone() });
        }
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
        let count = self.inbox.take(wait, out);
        self.started -= count;
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
    /// Waits for what has been started, so that no request runs on behind the owner's back.
    fn drop(&mut self) {
        self.backlog.clear();
        let mut completed = Vec::new();
        while self.started > 0 {
            self.started -= self.inbox.take(Wait::Until(None), &mut completed);
        }
    }
}
