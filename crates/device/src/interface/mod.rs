//! The interface that every device implements: devices, files and queues as traits, requests, and errors.
//!
//! Nothing in this folder does I/O.

mod device;
mod error;
mod queue;
mod request;

pub use device::{Device, File, Lock, OpenMode};
pub use error::{ByteRange, CalibrationError, Error, ErrorKind, Operation, Result};
pub use queue::{Completion, Op, Queue, Request, Wait, Waker};
pub(crate) use request::{check_aligned_range, check_range};
