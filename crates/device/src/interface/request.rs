//! Helpers for requests that all queues share.

use std::path::Path;

use super::{Completion, Error, ErrorKind, Op, Operation, Request, Result};
use crate::memory::{BLOCK, Buffer};

impl Op {
    /// The operation for errors, and its length in bytes.
    pub(crate) fn describe(&self) -> (Operation, usize) {
        match self {
            Op::Read(buffer) => (Operation::Read, buffer.len()),
            Op::Write(buffer) => (Operation::Write, buffer.len()),
            Op::Sync => (Operation::Sync, 0),
        }
    }

    /// The operation's buffer; none for a sync.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Op::Read(buffer) | Op::Write(buffer) => Some(buffer),
            Op::Sync => None,
        }
    }
}

impl Request {
    /// The error for this request: a read or write names its range, a sync only its file.
    pub(crate) fn error(&self, kind: impl Into<ErrorKind>) -> Error {
        let path = self.file.path();
        match self.op.describe() {
            (Operation::Sync, _) => Error::new(Operation::Sync, path, kind),
            (operation, len) => Error::in_range(operation, path, self.offset, len as u64, kind),
        }
    }

    /// Completes the request: its buffer goes back with the result.
    pub(crate) fn into_completion(self, result: Result<()>) -> Completion {
        Completion { tag: self.tag, buffer: self.op.into_buffer(), result }
    }
}

/// Checks that the offset is block-aligned and the end is representable as a file offset.
pub(crate) fn check_range(path: &Path, operation: Operation, offset: u64, len: u64) -> Result<()> {
    let kind = if !offset.is_multiple_of(BLOCK as u64) {
        ErrorKind::UnalignedOffset
    } else if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        ErrorKind::OutOfRange
    } else {
        return Ok(());
    };
    Err(Error::in_range(operation, path, offset, len, kind))
}

/// As [`check_range`], for calls whose length must be block-aligned too.
pub(crate) fn check_aligned_range(path: &Path, operation: Operation, offset: u64, len: u64) -> Result<()> {
    check_range(path, operation, offset, len)?;
    if !len.is_multiple_of(BLOCK as u64) {
        return Err(Error::in_range(operation, path, offset, len, ErrorKind::UnalignedLength));
    }
    Ok(())
}
