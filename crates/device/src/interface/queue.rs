//! The interface of queues: requests in flight, completions, wake-ups.
//!
//! A request owns its buffer while it is in flight and returns it with the completion. The memory is therefore never
//! freed or reused while the kernel may access it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::{File, Result};
use crate::memory::Buffer;

/// A request to a queue.
#[derive(Debug)]
pub struct Request {
    /// The file, opened by the queue's device.
    pub file: Arc<dyn File>,
    /// First byte: a multiple of [`BLOCK`](crate::BLOCK).
    pub offset: u64,
    /// The operation, with its buffer.
    pub op: Op,
    /// Returned with the completion; the queue does not interpret it.
    pub tag: u64,
}

/// The operation of a [`Request`].
#[derive(Debug)]
pub enum Op {
    /// Fills the whole buffer.
    Read(Buffer),
    /// Writes the whole buffer.
    Write(Buffer),
    /// `fdatasync` of the file; the offset is ignored. Covers the writes that completed before it was pushed.
    Sync,
}

/// A completed request.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The request's buffer (`None` for [`Op::Sync`]). Its contents are unspecified if a read failed.
    pub buffer: Option<Buffer>,
    /// The outcome of the operation.
    pub result: Result<()>,
}

/// How long [`Queue::complete`] waits when nothing has completed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until a completion, a wake-up by the queue's [`Waker`], or the end of the time-out (`None`: no time-out). A
    /// wake-up is consumed by the wait that it ends without a completion; if there are completions too, it stays
    /// pending for the next wait.
    Until(Option<Duration>),
}

/// A worker's queue of requests in flight. It is not shared between threads, but may be moved to its worker.
///
/// Dropping a queue waits for the requests that have been started and drops the others.
pub trait Queue: Send {
    /// A buffer of `len` bytes with unspecified contents, registered with the kernel if one is free. It may be used
    /// with any queue, kept, and dropped on any thread.
    ///
    /// # Panics
    /// If `len` is not a multiple of [`BLOCK`](crate::BLOCK).
    fn buffer(&mut self, len: usize) -> Buffer;

    /// Adds a request to the next batch. Never blocks: requests beyond the queue's depth wait inside the queue.
    fn push(&mut self, request: Request);

    /// Starts the pushed requests, as many as the depth allows, in one system call where possible.
    ///
    /// # Errors
    /// If the operating system does not accept the batch. The requests stay in the queue.
    fn submit(&mut self) -> Result<()>;

    /// Submits pushed requests, waits as `wait` says, and appends completions to `out`. Returns their number.
    ///
    /// # Errors
    /// If submitting or waiting fails and nothing has completed. A request that fails is a completion, not an error.
    fn complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<usize>;

    /// Number of requests that were pushed and are not yet in `out` of [`Queue::complete`].
    fn in_flight(&self) -> usize;

    /// A handle with which other threads wake the worker. It may outlive the queue.
    fn waker(&self) -> Arc<dyn Waker>;
}

/// Wakes a worker from [`Queue::complete`].
pub trait Waker: Send + Sync + Debug {
    /// Ends the current wait of the queue, or the next one if the worker is not waiting. Repeated calls before that
    /// wait count as one.
    fn wake(&self);
}
