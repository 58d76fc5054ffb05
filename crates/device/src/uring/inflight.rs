//! The requests that a ring has in hand: their slots, their entries, and what to do when they complete.

use std::io;
use std::os::fd::RawFd;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{cqueue, opcode};
use rustix::io::Errno;

use super::ring::Ring;
use crate::arena::Arena;
use crate::os::OsFile;
use crate::request::check_range;
use crate::{BLOCK, Buffer, Completion, Error, Op, Request};

/// Bytes of one kernel request at the most; longer ones go in several steps.
const STEP_MAX: usize = 1 << 30;
/// "Try again" answers in a row before a request fails.
const RETRIES_MAX: u32 = 1000;

/// Slots for requests in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    slots: Vec<Option<Started>>,
    free: Vec<u32>,
    /// Slots whose request has to be handed to the kernel (again).
    retry: Vec<u32>,
}

#[derive(Debug)]
struct Started {
    request: Request,
    fd: RawFd,
    /// Bytes moved so far; a multiple of [`BLOCK`].
    done: usize,
    retries: u32,
}

/// What a kernel answer means for its request.
enum Verdict {
    Done(Result<(), io::Error>),
    GoOn,
}

impl InFlight {
    pub(super) fn new(depth: usize) -> Self {
        InFlight { slots: (0..depth).map(|_| None).collect(), free: (0..depth as u32).rev().collect(), retry: vec![] }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// After the ring was replaced: everything started needs an entry in the new one.
    pub(super) fn forget_entries(&mut self) {
        self.retry = (0..self.slots.len() as u32).filter(|&index| self.slots[index as usize].is_some()).collect();
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Slots that have no entry in the ring.
    pub(super) fn waiting_for_retry(&self) -> usize {
        self.retry.len()
    }

    /// Takes in a request, to be given to the kernel by [`InFlight::feed`]; a request that makes no sense comes back as
    /// completed. There must be room.
    pub(super) fn start(&mut self, request: Request) -> Result<(), Completion> {
        let fd = match check(&request) {
            Ok(fd) => fd,
            Err(error) => return Err(request.into_completion(Err(error))),
        };
        if matches!(&request.op, Op::Read(buffer) | Op::Write(buffer) if buffer.is_empty()) {
            return Err(request.into_completion(Ok(())));
        }
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(Started { request, fd, done: 0, retries: 0 });
                self.retry.push(index);
                Ok(())
            }
            None => unreachable!("the queue asks for room first"),
        }
    }

    /// Puts entries for all started requests that have none into the ring.
    pub(super) fn feed(&mut self, ring: &mut Ring, arena: &Arena) {
        while let Some(&index) = self.retry.last() {
            let Some(started) = &mut self.slots[index as usize] else {
                unreachable!("a slot waiting for a retry is in use");
            };
            let entry = started.entry(ring, arena).user_data(u64::from(index));
            // SAFETY: the slot owns the buffer and (through the file) the descriptor, and is emptied only by `finish`
            // with the entry's completion, or leaked.
            if !unsafe { ring.push(&entry) } {
                return;
            }
            self.retry.pop();
        }
    }

    /// Handles the kernel's answer to a request; its completion, unless it has to go on.
    pub(super) fn finish(&mut self, answer: &cqueue::Entry) -> Option<Completion> {
        let index = answer.user_data() as u32;
        let slot = &mut self.slots[index as usize];
        let Some(started) = slot else { unreachable!("a completion belongs to a slot in use") };
        match started.judge(answer.result()) {
            Verdict::GoOn => {
                self.retry.push(index);
                None
            }
            Verdict::Done(result) => {
                let request = slot.take()?.request;
                self.free.push(index);
                let result = result.map_err(|error| {
                    let (operation, len) = request.op.describe();
                    Error::new(operation, request.file.path(), request.offset, len as u64, error)
                });
                Some(request.into_completion(result))
            }
        }
    }
}

impl Started {
    /// The entry for the rest of the request.
    fn entry(&mut self, ring: &mut Ring, arena: &Arena) -> Entry {
        let fd = Fd(self.fd);
        let offset = self.request.offset + self.done as u64;
        match &mut self.request.op {
            Op::Read(buffer) => {
                let fixed = fixed_index(ring, arena, buffer);
                let (start, len) = rest(buffer, self.done);
                match fixed {
                    Some(index) => opcode::ReadFixed::new(fd, start, len, index).offset(offset).build(),
                    None => opcode::Read::new(fd, start, len).offset(offset).build(),
                }
            }
            Op::Write(buffer) => {
                let fixed = fixed_index(ring, arena, buffer);
                let (start, len) = rest(buffer, self.done);
                match fixed {
                    Some(index) => opcode::WriteFixed::new(fd, start, len, index).offset(offset).build(),
                    None => opcode::Write::new(fd, start, len).offset(offset).build(),
                }
            }
            Op::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        }
    }

    fn judge(&mut self, answer: i32) -> Verdict {
        if answer < 0 {
            return self.judge_error(io::Error::from_raw_os_error(-answer));
        }
        let (total, short) = match &self.request.op {
            Op::Read(buffer) => (buffer.len(), io::ErrorKind::UnexpectedEof),
            Op::Write(buffer) => (buffer.len(), io::ErrorKind::StorageFull),
            Op::Sync => return Verdict::Done(Ok(())),
        };
        // Whole blocks only: direct I/O cannot go on from inside a block, and only the end of the file or of the space
        // makes it stop there.
        let progress = answer as usize / BLOCK * BLOCK;
        self.done += progress;
        self.retries = 0;
        if self.done == total {
            Verdict::Done(Ok(()))
        } else if progress == 0 {
            Verdict::Done(Err(short.into()))
        } else {
            Verdict::GoOn
        }
    }

    fn judge_error(&mut self, error: io::Error) -> Verdict {
        let again = matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::AGAIN));
        self.retries += 1;
        if again && self.retries < RETRIES_MAX { Verdict::GoOn } else { Verdict::Done(Err(error)) }
    }
}

/// The registered buffer that `buffer` lies in.
fn fixed_index(ring: &mut Ring, arena: &Arena, buffer: &Buffer) -> Option<u16> {
    let (segment, start) = arena.segment_of(buffer.slot()?)?;
    ring.register(segment, start.as_ptr()).then_some(segment)
}

/// Address and length of what is left of a buffer.
fn rest(buffer: &mut Buffer, done: usize) -> (*mut u8, u32) {
    let rest = &mut buffer[done..];
    (rest.as_mut_ptr(), rest.len().min(STEP_MAX) as u32)
}

fn check(request: &Request) -> crate::Result<RawFd> {
    let (operation, len) = request.op.describe();
    let path = request.file.path();
    let Some(file) = request.file.as_any().downcast_ref::<OsFile>() else {
        let why = "the file belongs to another device";
        return Err(Error::invalid(operation, path, request.offset, len as u64, why));
    };
    if !matches!(request.op, Op::Sync) {
        check_range(path, operation, request.offset, len)?;
    }
    Ok(file.raw_fd())
}
