//! Caches of frames: in memory, and in a directory that processes share.

mod disk;
mod memory;

use bytes::Bytes;

use crate::format::{FRAME_BYTES, ObjectId};
pub use disk::DiskCacheOptions;
pub(crate) use disk::{DiskCache, QueuedFrame};
pub(crate) use memory::MemoryCache;

/// A frame of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FrameId {
    pub object: ObjectId,
    pub number: u64,
}

/// A frame with its checksum, as in the object, that was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame(Bytes);

impl Frame {
    /// A frame whose checksum is right; `None` otherwise.
    pub fn verified(id: FrameId, bytes: Bytes) -> Option<Frame> {
        crate::format::verify_frame(id.object, id.number, &bytes)?;
        Some(Frame(bytes))
    }

    pub fn payload(&self) -> &[u8] {
        &self.0[..self.0.len() - 8]
    }

    /// The payload and the checksum.
    pub fn stored(&self) -> &[u8] {
        &self.0
    }

    /// A copy with memory of its own: a cached frame must not keep a longer body.
    pub fn unshared(&self) -> Frame {
        Frame(Bytes::copy_from_slice(&self.0))
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Longest frame in bytes.
    pub const BYTES_MAX: usize = FRAME_BYTES as usize + 8;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::encode_object;

    /// The frame of an object of 4096 equal bytes.
    pub fn frame(number: u8) -> (FrameId, Frame) {
        let payload = vec![number; 4096];
        let object = ObjectId::of(&payload, 0);
        let id = FrameId { object, number: 0 };
        (id, Frame::verified(id, encode_object(object, &payload).into()).unwrap())
    }
}
