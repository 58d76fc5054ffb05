//! A filter over the keys of an extent. It rules out most absent keys without reading a data page.
//!
//! A split-block Bloom filter (Putze, Sanders and Singler; as in Parquet): blocks of 256 bits, each eight words of 32. The
//! hash's high half chooses the block, its low half one bit in each of the block's words, so that a query touches one
//! cache line. With sixteen bits a key about one absent key in a thousand passes. A lookup probes the filter of every run
//! on its path, and each false positive costs a read.

/// Length of a block in bytes. Filters begin at multiples of it, so that no block straddles a cache line.
pub(super) const BLOCK_BYTES: usize = 32;
const BITS_PER_KEY: usize = 16;

/// Odd multipliers that derive eight hashes from one (those of Parquet).
const SALTS: [u32; 8] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

/// The hash of an encoded key.
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Number of blocks of a filter for `keys` keys.
pub(super) fn block_count(keys: usize) -> usize {
    (keys * BITS_PER_KEY).div_ceil(BLOCK_BYTES * 8)
}

/// The index of the block of a hash, below `blocks`.
pub(super) fn block_of(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

/// The bit that a hash sets in each of the eight words of its block.
fn masks(hash: u64) -> [u32; 8] {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

/// Adds a key to `filter`, whose length is a multiple of [`BLOCK_BYTES`].
pub(super) fn insert(filter: &mut [u8], hash: u64) {
    let blocks = filter.as_chunks_mut::<BLOCK_BYTES>().0;
    let count = blocks.len();
    if let Some(block) = blocks.get_mut(block_of(hash, count)) {
        for (word, mask) in block.as_chunks_mut::<4>().0.iter_mut().zip(masks(hash)) {
            *word = (u32::from_le_bytes(*word) | mask).to_le_bytes();
        }
    }
}

/// Returns false only if the key was not added. An empty filter returns true.
pub(super) fn contains(filter: &[u8], hash: u64) -> bool {
    let blocks = filter.as_chunks::<BLOCK_BYTES>().0;
    let Some(block) = blocks.get(block_of(hash, blocks.len())) else { return true };
    let words = block.as_chunks::<4>().0.iter().zip(masks(hash));
    words.fold(true, |all, (word, mask)| all & (u32::from_le_bytes(*word) & mask != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_rule_out_most_absent_keys() {
        let hash = |i: u32| key_hash(&i.to_be_bytes());
        for keys in [1, 100, 20_000] {
            let mut filter = vec![0; block_count(keys) * BLOCK_BYTES];
            (0..keys as u32).for_each(|i| insert(&mut filter, hash(i)));
            assert!((0..keys as u32).all(|i| contains(&filter, hash(i))));
            let passed = (1 << 30..(1 << 30) + 100_000).filter(|&i| contains(&filter, hash(i))).count();
            assert!(passed < 250, "{passed} of 100,000 absent keys pass a filter of {keys}");
        }
        assert!(contains(&[], hash(1)));
    }
}
