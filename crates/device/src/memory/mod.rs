//! Memory for I/O: block-aligned buffers, on the heap or in arenas of huge pages.

mod arena;
mod buffer;

#[cfg(unix)]
pub(crate) use arena::Arena;
#[cfg(target_os = "linux")]
pub(crate) use arena::{SEGMENT_BYTES, SEGMENTS_MAX, Segment};
pub use buffer::{BLOCK, Buffer};
