//! A filter over key hashes: a split-block Bloom filter. Each key sets eight bits, one in each 32-bit word of one 32-byte
//! block, so that a lookup touches one cache line. About ten bits a key give 1 % false positives.

const BLOCK_BYTES: usize = 32;
const BITS_PER_KEY: usize = 10;

/// Odd constants that spread a hash over the eight words.
const SALTS: [u32; 8] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

/// Bytes of a filter over `keys` keys.
pub(super) fn filter_len(keys: usize) -> usize {
    (keys * BITS_PER_KEY).div_ceil(8 * BLOCK_BYTES) * BLOCK_BYTES
}

/// Adds a key's hash to a filter (not empty).
pub(super) fn insert(filter: &mut [u8], hash: u64) {
    let block = block_of(filter.len(), hash);
    for (word, mask) in masks(hash).into_iter().enumerate() {
        let at = block + 4 * word;
        for (byte, bits) in filter[at..at + 4].iter_mut().zip(mask.to_le_bytes()) {
            *byte |= bits;
        }
    }
}

/// False if no key with this hash was added.
pub(super) fn contains(filter: &[u8], hash: u64) -> bool {
    let block = block_of(filter.len(), hash);
    masks(hash).into_iter().enumerate().all(|(word, mask)| {
        let at = block + 4 * word;
        filter.get(at..).and_then(|rest| rest.first_chunk()).is_none_or(|found| u32::from_le_bytes(*found) & mask != 0)
    })
}

fn block_of(filter_len: usize, hash: u64) -> usize {
    let blocks = (filter_len / BLOCK_BYTES) as u64;
    (((hash >> 32) * blocks) >> 32) as usize * BLOCK_BYTES
}

fn masks(hash: u64) -> [u32; 8] {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_found_and_little_else() {
        let hash = |i: u64| xxhash_rust::xxh3::xxh3_64(&i.to_le_bytes());
        for keys in [1u64, 10, 10_000] {
            let mut filter = vec![0; filter_len(keys as usize)];
            (0..keys).for_each(|i| insert(&mut filter, hash(i)));
            assert!((0..keys).all(|i| contains(&filter, hash(i))));
            let found = (keys..keys + 10_000).filter(|&i| contains(&filter, hash(i))).count();
            assert!(found < 400, "{found} of 10,000 false positives with {keys} keys");
        }
    }
}
