//! The queue of a worker: its reads are planned in batches, and wait for their frames as tasks.
//!
//! *Invariant.* `started` requests are with the tasks or in the inbox, and `started <= depth`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use keyaki_device::{Buffer, Completion, Error, ErrorKind, Op, Operation, Queue, Request, Result, Wait, Waker};
use parking_lot::{Condvar, Mutex};

use super::fetch::{Fetcher, Planned};
use super::file::{VersionFile, failed, read_only};

#[derive(Debug)]
pub(super) struct VersionQueue {
    inbox: Arc<Inbox>,
    /// Pushed and not started.
    backlog: VecDeque<Request>,
    started: usize,
    depth: usize,
}

/// Completions and wake-ups for a worker.
#[derive(Debug, Default)]
struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct InboxState {
    completed: Vec<Completion>,
    /// A wake-up is pending.
    is_woken: bool,
}

impl Inbox {
    fn put(&self, completion: Completion) {
        self.state.lock().completed.push(completion);
        self.changed.notify_one();
    }

    /// Moves completions to `out`, waiting as `wait` says. Returns their number.
    fn take(&self, wait: Wait, out: &mut Vec<Completion>) -> usize {
        let mut state = self.state.lock();
        if let Wait::Until(timeout) = wait {
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            while state.completed.is_empty() && !std::mem::take(&mut state.is_woken) {
                match deadline {
                    Some(deadline) if self.changed.wait_until(&mut state, deadline).timed_out() => break,
                    Some(_) => {}
                    None => self.changed.wait(&mut state),
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
        self.state.lock().is_woken = true;
        self.changed.notify_one();
    }
}

/// A read that was started. Dropping it without a result completes it with an error: its task ended early.
#[derive(Debug)]
struct Read {
    inbox: Arc<Inbox>,
    request: Option<Started>,
}

#[derive(Debug)]
struct Started {
    file: Arc<dyn keyaki_device::File>,
    offset: u64,
    buffer: Buffer,
    tag: u64,
}

impl Read {
    /// Copies the frames and completes the read.
    fn finish(mut self, fetcher: &Fetcher, planned: crate::Result<Planned>) {
        let Some(Started { file, offset, mut buffer, tag }) = self.request.take() else { return };
        let result = planned.map(|planned| fetcher.copy(&planned, &mut buffer));
        let result = result.map_err(|error| failed(file.path(), offset, buffer.len(), error));
        // Before the completion is visible: its receiver may then hold the last reference.
        drop(file);
        self.inbox.put(Completion { tag, buffer: Some(buffer), result });
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        let Some(Started { file, offset, buffer, tag }) = self.request.take() else { return };
        let result = Err(failed(file.path(), offset, buffer.len(), crate::Error::Cancelled));
        self.inbox.put(Completion { tag, buffer: Some(buffer), result });
    }
}

impl VersionQueue {
    pub fn new(depth: usize) -> Self {
        VersionQueue { inbox: Arc::default(), backlog: VecDeque::new(), started: 0, depth: depth.max(1) }
    }

    /// Starts requests of the backlog as far as the depth allows, those of one version together.
    fn start(&mut self) {
        let count = self.backlog.len().min(self.depth - self.started);
        if count == 0 {
            return;
        }
        self.started += count;
        let mut batches: Vec<(Arc<Fetcher>, Vec<Read>)> = Vec::new();
        for Request { file, offset, op, tag } in self.backlog.drain(..count) {
            let version = file.as_any().downcast_ref::<VersionFile>();
            let (buffer, error) = match (op, version) {
                (Op::Read(buffer), Some(version)) => match version.check_read(offset, buffer.len()) {
                    Ok(()) => {
                        let (fetcher, inbox) = (version.fetcher.clone(), self.inbox.clone());
                        let read = Read { inbox, request: Some(Started { file, offset, buffer, tag }) };
                        match batches.iter_mut().find(|(of, _)| Arc::ptr_eq(of, &fetcher)) {
                            Some((_, reads)) => reads.push(read),
                            None => batches.push((fetcher, vec![read])),
                        }
                        continue;
                    }
                    Err(error) => (Some(buffer), error),
                },
                (Op::Read(buffer), None) => {
                    let (path, len) = (file.path(), buffer.len() as u64);
                    let error = Error::in_range(Operation::Read, path, offset, len, ErrorKind::ForeignFile);
                    (Some(buffer), error)
                }
                (Op::Write(buffer), _) => (Some(buffer), read_only(Operation::Write, file.path())),
                (Op::Sync, _) => (None, read_only(Operation::Sync, file.path())),
            };
            self.inbox.put(Completion { tag, buffer, result: Err(error) });
        }
        batches.into_iter().for_each(|(fetcher, reads)| start_reads(&fetcher, reads));
    }

    fn collect(&mut self, wait: Wait, out: &mut Vec<Completion>) -> usize {
        let count = self.inbox.take(wait, out);
        assert!(count <= self.started, "more completions than requests in flight");
        self.started -= count;
        count
    }
}

fn start_reads(fetcher: &Arc<Fetcher>, reads: Vec<Read>) {
    let range = |read: &Read| match &read.request {
        Some(started) => started.offset..started.offset + started.buffer.len() as u64,
        None => 0..0,
    };
    let ranges: Vec<_> = reads.iter().map(range).collect();
    for (read, planned) in reads.into_iter().zip(fetcher.plan(&ranges)) {
        if planned.is_ready() {
            read.finish(fetcher, Ok(planned));
        } else {
            let of_task = fetcher.clone();
            fetcher.remote().handle().spawn(async move {
                let planned = planned.wait().await;
                read.finish(&of_task, planned);
            });
        }
    }
}

impl Queue for VersionQueue {
    fn buffer(&mut self, len: usize) -> Buffer {
        Buffer::zeroed(len)
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

impl Drop for VersionQueue {
    /// Waits for the started requests, as the interface promises.
    fn drop(&mut self) {
        self.backlog.clear();
        let mut completed = Vec::new();
        while self.started > 0 {
            self.collect(Wait::Until(None), &mut completed);
        }
    }
}
