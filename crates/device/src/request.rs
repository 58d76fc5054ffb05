//! What every kind of queue needs to know about requests.

use std::path::Path;

use crate::{BLOCK, Completion, Error, Op, Request, Result};

impl Op {
    /// The operation's name in errors, and its length in bytes.
    pub(crate) fn describe(&self) -> (&'static str, usize) {
        match self {
            Op::Read(buffer) => ("read", buffer.len()),
            Op::Write(buffer) => ("write", buffer.len()),
            Op::Sync => ("sync", 0),
        }
    }
}

impl Request {
    /// Ends the request: its buffer goes back with the result.
    pub(crate) fn into_completion(self, result: Result<()>) -> Completion {
        let buffer = match self.op {
            Op::Read(buffer) | Op::Write(buffer) => Some(buffer),
            Op::Sync => None,
        };
        Completion { tag: self.tag, buffer, result }
    }
}

/// Offsets must be block-aligned, and ends representable as a file offset.
pub(crate) fn check_range(path: &Path, operation: &'static str, offset: u64, len: usize) -> Result<()> {
    let why = if !offset.is_multiple_of(BLOCK as u64) {
        "the offset is not block-aligned"
    } else if offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) {
        "the range ends beyond the largest file offset"
    } else {
        return Ok(());
    };
    Err(Error::invalid(operation, path, offset, len as u64, why))
}
