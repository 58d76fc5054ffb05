//! The bytes of objects and manifests. `docs/format.md` describes them.

mod frame;
mod manifest;
mod varint;

pub(crate) use frame::{FRAME_BYTES, ObjectId, encode_object, frame_count, stored_bytes, stored_range, verify_frame};
pub(crate) use manifest::{BLOCK_BYTES, DataRange, Manifest, ObjectEntry, Problem, RESERVED_BYTES};
