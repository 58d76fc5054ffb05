//! One io_uring instance: its set-up, its registered buffers, and the system call that submits and waits.
//!
//! [`probe`] finds the best set-up that the kernel supports. A [`Setup::Deferred`] ring is created disabled; the first
//! thread that claims it enables it and is its only user from then on.
//!
//! Invariant: `pushed` counts all entries ever pushed. The kernel takes entries in order, so the entries still queued
//! are the last ones pushed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread::ThreadId;
use std::time::Duration;

use io_uring::opcode::PollAdd;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring};
use rustix::io::Errno;

use crate::interface::ErrorKind;
use crate::memory::{SEGMENT_BYTES, SEGMENTS_MAX, Segment};

/// Maximum entries of a submission queue (the kernel's limit).
const ENTRIES_MAX: usize = 32768;

// `Ring::registered` has a bit for each segment.
const _: () = assert!(SEGMENTS_MAX <= u32::BITS as usize);

/// An io_uring instance.
pub(super) struct Ring {
    uring: IoUring,
    setup: Setup,
    /// The thread that enabled the ring, for [`Setup::Deferred`]: the only one that may use it.
    owner: Option<ThreadId>,
    /// Arena segments registered with this ring, one bit each.
    registered: u32,
    /// The kernel has not yet refused to register a buffer.
    registering: bool,
    /// Entries pushed since the ring was made.
    pushed: u64,
    /// The value of `pushed` after the last [`Ring::push_poll`], whose entry is not a request.
    poll_at: Option<u64>,
}

/// How long [`Ring::enter`] blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    No,
    UntilCompletion,
    AtMost(Duration),
}

/// The set-up of a ring, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setup {
    /// SINGLE_ISSUER and DEFER_TASKRUN (Linux 6.1): completions are processed when the owner enters the ring.
    Deferred,
    /// COOP_TASKRUN (Linux 5.19): completions are processed at the owner's next system call.
    Cooperative,
    /// Completions interrupt the owner.
    Plain,
}

impl Setup {
    /// This set-up, or the best one whose rings any thread may use.
    pub(super) fn without_owner(self) -> Setup {
        if self == Setup::Deferred { Setup::Cooperative } else { self }
    }
}

/// The best set-up that the kernel supports.
///
/// # Errors
/// If the kernel does not permit io_uring, or is older than Linux 5.13.
pub(crate) fn probe() -> Result<Setup, ErrorKind> {
    for setup in [Setup::Deferred, Setup::Cooperative, Setup::Plain] {
        match Ring::new(1, setup) {
            Ok(ring) if ring.is_new_enough() => return Ok(setup),
            Ok(_) => break,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ErrorKind::KernelTooOld)
}

/// The depth that a ring grants when `depth` is requested.
pub(super) fn depth_granted(depth: usize) -> usize {
    depth.clamp(1, ENTRIES_MAX - 1)
}

impl Ring {
    /// A ring with room for the granted depth and the waker's poll.
    pub(super) fn new(depth: usize, setup: Setup) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.dontfork();
        match setup {
            Setup::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_r_disabled();
                builder.setup_taskrun_flag().setup_submit_all();
            }
            Setup::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
            }
            Setup::Plain => {}
        }
        let entries = (depth_granted(depth) + 1).next_power_of_two() as u32;
        let uring = builder.build(entries)?;
        let registering = uring.submitter().register_buffers_sparse(SEGMENTS_MAX as u32).is_ok();
        Ok(Ring { uring, setup, owner: None, registered: 0, registering, pushed: 0, poll_at: None })
    }

    fn is_new_enough(&self) -> bool {
        let parameters = self.uring.params();
        parameters.is_feature_ext_arg() && parameters.is_feature_nodrop() && parameters.is_feature_resource_tagging()
    }

    /// A new ring with the same set-up.
    pub(super) fn renewed(&self, depth: usize) -> io::Result<Self> {
        Ring::new(depth, self.setup)
    }

    /// True if the calling thread may use the ring. The first caller becomes its owner.
    pub(super) fn claim(&mut self) -> io::Result<bool> {
        if self.setup != Setup::Deferred {
            return Ok(true);
        }
        let caller = std::thread::current().id();
        if self.owner.is_none() {
            self.uring.submitter().register_enable_rings()?;
            self.owner = Some(caller);
        }
        Ok(self.owner == Some(caller))
    }

    /// Registers an arena segment, under its number; true if requests may use it as a fixed buffer.
    pub(super) fn register(&mut self, segment: Segment<'_>) -> bool {
        let bit = 1_u32 << segment.number();
        if self.registered & bit != 0 {
            return true;
        }
        if !self.registering {
            return false;
        }
        let iovec = Iovec { start: segment.start().as_ptr(), len: SEGMENT_BYTES };
        // SAFETY: `Iovec` has the layout of `struct iovec`, and `segment` proves that the range is memory. The kernel
        // pins its pages, so the registration stays valid even after the mapping is gone.
        let result = unsafe {
            let iovecs = std::slice::from_raw_parts((&raw const iovec).cast(), 1);
            self.uring.submitter().register_buffers_update(u32::from(segment.number()), iovecs, None)
        };
        match result {
            Ok(()) => self.registered |= bit,
            Err(error) => {
                // Usually RLIMIT_MEMLOCK. Unregistered buffers work too, with more CPU time per request.
                tracing::debug!(%error, "could not register I/O buffers");
                self.registering = false;
            }
        }
        self.registered & bit != 0
    }

    /// Adds a request's entry for the next [`Ring::enter`]; false if there is no room.
    ///
    /// # Safety
    /// The memory and the descriptor that the entry names stay valid until its completion is taken from the ring.
    pub(super) unsafe fn push(&mut self, entry: &Entry) -> bool {
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.uring.submission().push(entry) }.is_ok();
        self.pushed += u64::from(pushed);
        pushed
    }

    /// Adds a multishot poll for input on `fd`; false if there is no room.
    pub(super) fn push_poll(&mut self, fd: BorrowedFd<'_>, user_data: u64) -> bool {
        const READABLE: u32 = 1;
        let poll = PollAdd::new(Fd(fd.as_raw_fd()), READABLE).multi(true).build().user_data(user_data);
        // SAFETY: a poll names no memory. The kernel holds the file once it has taken the entry; a descriptor that is
        // closed before gives an error.
        let pushed = unsafe { self.push(&poll) };
        if pushed {
            self.poll_at = Some(self.pushed);
        }
        pushed
    }

    /// Entries not yet taken by the kernel.
    pub(super) fn queued(&mut self) -> usize {
        self.uring.submission().len()
    }

    /// Entries of requests not yet taken by the kernel.
    pub(super) fn queued_requests(&mut self) -> usize {
        let queued = self.queued();
        assert!(queued as u64 <= self.pushed);
        let taken = self.pushed - queued as u64;
        queued - usize::from(self.poll_at.is_some_and(|at| at > taken))
    }

    /// True if entering without blocking would submit or process something.
    pub(super) fn has_work(&mut self) -> bool {
        let submission = self.uring.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    /// Submits all queued entries and waits as `block` says. Interruptions, time-outs and transient shortages are not
    /// errors: the caller checks for completions and decides.
    pub(super) fn enter(&mut self, block: Block) -> io::Result<()> {
        let queued = self.queued();
        self.call(queued, block)
    }

    /// Waits for a completion without submitting anything.
    pub(super) fn wait_only(&mut self) -> io::Result<()> {
        self.call(0, Block::UntilCompletion)
    }

    fn call(&mut self, submit: usize, block: Block) -> io::Result<()> {
        let flags = (EnterFlags::GETEVENTS | EnterFlags::EXT_ARG).bits();
        let want = u32::from(block != Block::No);
        let timespec;
        let mut arguments = SubmitArgs::new();
        if let Block::AtMost(timeout) = block {
            timespec = Timespec::from(timeout);
            arguments = arguments.timespec(&timespec);
        }
        // SAFETY: with EXT_ARG the argument is a `SubmitArgs`, which lives through the call, as does its timespec.
        let result = unsafe { self.uring.submitter().enter(submit as u32, want, flags, Some(&arguments)) };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::TIME) => Ok(()),
                Some(Errno::AGAIN | Errno::BUSY) => {
                    std::thread::yield_now();
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// The completions that have arrived. Each is yielded once.
    pub(super) fn completions(&mut self) -> io_uring::CompletionQueue<'_> {
        self.uring.completion()
    }
}

/// `struct iovec` of the C library, which the register call takes.
#[repr(C)]
struct Iovec {
    start: *const u8,
    len: usize,
}
