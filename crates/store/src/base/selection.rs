//! The choice of the keys of a sample: by their hash, so that each message of a key meets the same decision.

use xxhash_rust::xxh3::xxh3_64;

/// The hash that decides whether a sample has a key.
#[inline]
pub(crate) fn selection_hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// True if a sample of this level has the keys with a [`selection_hash`].
#[inline]
pub(crate) fn is_selected_hash(hash: u64, level: u32) -> bool {
    hash.leading_zeros() >= level
}

/// True if a sample of this level has a key: one of 2^level.
#[inline]
pub(crate) fn is_selected(key: &[u8], level: u32) -> bool {
    level == 0 || is_selected_hash(selection_hash(key), level)
}
