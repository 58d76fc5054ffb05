//! The requests of a ring: their slots, their entries, and the handling of completions.
//!
//! A slot is free, waiting for an entry (listed in `unqueued`), or in the ring. A request that moved only a part of its
//! bytes, or met a transient error, goes back to `unqueued` for the rest.
//!
//! Invariants: a slot in the ring has exactly one entry there. The user data of the entry name the slot and its
//! generation, which grows whenever the slot becomes free, so a stale completion is detected. A request leaves its slot
//! only when the kernel has completed its entry.

use std::io;
use std::os::fd::RawFd;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{cqueue, opcode};
use rustix::io::Errno;

use super::ring::Ring;
use crate::interface::{Completion, ErrorKind, Op, Request, Result, check_range};
use crate::memory::{Arena, BLOCK, Buffer};
use crate::os::OsFile;

/// Maximum bytes of one entry; longer requests take several entries, one after another.
const ENTRY_BYTES_MAX: usize = 1 << 30;
/// Successive transient errors (EINTR, EAGAIN) after which a request fails.
const RETRIES_MAX: u32 = 1000;

const _: () = assert!(ENTRY_BYTES_MAX.is_multiple_of(BLOCK));

/// Slots for requests in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots in use that have no entry in the ring.
    unqueued: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    /// How often the slot became free, modulo 2^32.
    generation: u32,
    started: Option<Started>,
}

/// A request in a slot.
#[derive(Debug)]
struct Started {
    request: Request,
    fd: RawFd,
    /// Bytes transferred so far; a multiple of [`BLOCK`].
    done: usize,
    /// Transient errors since the last progress.
    retries: u32,
}

/// The state of a request after one of its entries has completed.
enum Progress {
    /// The request is complete.
    Done(Result<(), ErrorKind>),
    /// The request needs another entry.
    Continue,
}

impl InFlight {
    pub(super) fn new(depth: usize) -> Self {
        assert!(depth < u32::MAX as usize);
        let slots = (0..depth).map(|_| Slot::default()).collect();
        InFlight { slots, free: (0..depth as u32).rev().collect(), unqueued: Vec::new() }
    }

    /// Slots in use.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All slots.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Marks every request as without an entry, after the ring was replaced.
    ///
    /// # Safety
    /// The kernel works on none of the requests, and completions of the old ring are never passed to
    /// [`InFlight::finish`].
    pub(super) unsafe fn forget_entries(&mut self) {
        let in_use = |&index: &u32| self.slots[index as usize].started.is_some();
        self.unqueued = (0..self.slots.len() as u32).filter(in_use).collect();
        assert_eq!(self.unqueued.len(), self.len());
    }

    /// True if a slot is free.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Slots in use that have no entry in the ring.
    pub(super) fn unqueued(&self) -> usize {
        self.unqueued.len()
    }

    /// Puts a request into a free slot, for [`InFlight::feed`]. An invalid or empty request comes back as completed.
    ///
    /// # Panics
    /// If no slot is free (see [`InFlight::has_room`]).
    pub(super) fn start(&mut self, request: Request) -> Option<Completion> {
        let fd = match check(&request) {
            Ok(fd) => fd,
            Err(error) => return Some(request.into_completion(Err(error))),
        };
        if matches!(&request.op, Op::Read(buffer) | Op::Write(buffer) if buffer.is_empty()) {
            return Some(request.into_completion(Ok(())));
        }
        let Some(index) = self.free.pop() else { unreachable!("the caller checks `has_room`") };
        let slot = &mut self.slots[index as usize];
        assert!(slot.started.is_none(), "a free slot is in use");
        slot.started = Some(Started { request, fd, done: 0, retries: 0 });
        self.unqueued.push(index);
        None
    }

    /// Pushes entries for all requests that have none, as far as the ring has room.
    ///
    /// # Safety
    /// The caller keeps `self` alive (or leaks it) until the completions of all entries have been passed to
    /// [`InFlight::finish`]. `ring` is the only ring of `self`, or [`InFlight::forget_entries`] was called since.
    pub(super) unsafe fn feed(&mut self, ring: &mut Ring, arena: &Arena) {
        while let Some(&index) = self.unqueued.last() {
            let slot = &mut self.slots[index as usize];
            let Some(started) = &mut slot.started else { unreachable!("an unqueued slot is in use") };
            let entry = started.entry(ring, arena).user_data(user_data(index, slot.generation));
            // SAFETY: the slot owns the buffer and, through the file, the descriptor. It is emptied only by `finish`
            // with the entry's completion; by the caller's promise it lives until then.
            if !unsafe { ring.push(&entry) } {
                return;
            }
            self.unqueued.pop();
        }
    }

    /// Handles the completion of an entry. Returns the request's completion, or `None` if the request needs another
    /// entry.
    ///
    /// # Safety
    /// `entry` was taken from the completion queue of the ring that [`InFlight::feed`] pushes to, and is passed once.
    ///
    /// # Panics
    /// If the entry does not name a slot in use and its generation.
    pub(super) unsafe fn finish(&mut self, entry: &cqueue::Entry) -> Option<Completion> {
        let index = entry.user_data() as u32;
        let slot = &mut self.slots[index as usize];
        assert_eq!(entry.user_data(), user_data(index, slot.generation), "a completion of an earlier request");
        let Some(started) = &mut slot.started else { unreachable!("a completion for a free slot") };
        match started.advance(entry.result()) {
            Progress::Continue => {
                self.unqueued.push(index);
                None
            }
            Progress::Done(result) => {
                let request = slot.started.take()?.request;
                slot.generation = slot.generation.wrapping_add(1);
                self.free.push(index);
                assert!(self.free.len() <= self.slots.len());
                let result = result.map_err(|kind| request.error(kind));
                Some(request.into_completion(result))
            }
        }
    }
}

impl Started {
    /// The entry for the remaining bytes of the request.
    fn entry(&mut self, ring: &mut Ring, arena: &Arena) -> Entry {
        let fd = Fd(self.fd);
        let offset = self.request.offset + self.done as u64;
        match &mut self.request.op {
            Op::Read(buffer) => {
                let fixed = fixed_index(ring, arena, buffer);
                let (start, len) = remaining(buffer, self.done);
                match fixed {
                    Some(index) => opcode::ReadFixed::new(fd, start, len, index).offset(offset).build(),
                    None => opcode::Read::new(fd, start, len).offset(offset).build(),
                }
            }
            Op::Write(buffer) => {
                let fixed = fixed_index(ring, arena, buffer);
                let (start, len) = remaining(buffer, self.done);
                match fixed {
                    Some(index) => opcode::WriteFixed::new(fd, start, len, index).offset(offset).build(),
                    None => opcode::Write::new(fd, start, len).offset(offset).build(),
                }
            }
            Op::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        }
    }

    /// Accounts for a completed entry; `result` is the number of bytes, or a negative error number.
    fn advance(&mut self, result: i32) -> Progress {
        let Ok(moved) = usize::try_from(result) else {
            return self.retry_or_fail(io::Error::from_raw_os_error(result.saturating_neg()));
        };
        let (total, short) = match &self.request.op {
            Op::Read(buffer) => (buffer.len(), ErrorKind::EndOfFile),
            Op::Write(buffer) => (buffer.len(), ErrorKind::NoSpace),
            Op::Sync => return Progress::Done(Ok(())),
        };
        assert!(moved <= total - self.done, "the kernel transferred more bytes than requested");
        // Whole blocks only: direct I/O cannot continue from inside a block, and stops there only at the end of the
        // file or of the space.
        let blocks = moved / BLOCK * BLOCK;
        self.done += blocks;
        self.retries = 0;
        if self.done == total {
            Progress::Done(Ok(()))
        } else if blocks == 0 {
            Progress::Done(Err(short))
        } else {
            Progress::Continue
        }
    }

    fn retry_or_fail(&mut self, error: io::Error) -> Progress {
        let transient = matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::AGAIN));
        self.retries += 1;
        if transient && self.retries < RETRIES_MAX { Progress::Continue } else { Progress::Done(Err(error.into())) }
    }
}

/// The user data of a slot's entry. Never `u64::MAX`, because indexes are below it.
fn user_data(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

/// The index of the registered buffer that contains `buffer`; `None` if there is none.
fn fixed_index(ring: &mut Ring, arena: &Arena, buffer: &Buffer) -> Option<u16> {
    let segment = arena.segment_of(buffer.slot()?)?;
    ring.register(segment).then_some(segment.number())
}

/// Address and length of the bytes of `buffer` that the next entry transfers.
fn remaining(buffer: &mut Buffer, done: usize) -> (*mut u8, u32) {
    let bytes = &mut buffer[done..];
    assert!(bytes.as_ptr().addr().is_multiple_of(BLOCK) && bytes.len().is_multiple_of(BLOCK));
    (bytes.as_mut_ptr(), bytes.len().min(ENTRY_BYTES_MAX) as u32)
}

/// Checks a request; the descriptor of its file.
fn check(request: &Request) -> Result<RawFd> {
    let Some(file) = request.file.as_any().downcast_ref::<OsFile>() else {
        return Err(request.error(ErrorKind::ForeignFile));
    };
    if !matches!(request.op, Op::Sync) {
        let (operation, len) = request.op.describe();
        check_range(request.file.path(), operation, request.offset, len as u64)?;
    }
    Ok(file.raw_fd())
}
