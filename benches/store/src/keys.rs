//! Keys and values of the workloads: the same in every run, computed from a number or from a key.

use keyaki_primitives::Random;

pub const KEY_BYTES: usize = 16;
pub const VALUE_BYTES: usize = 100;
/// Bytes of a key and its value.
pub const ROW_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;

pub type Key = [u8; KEY_BYTES];
pub type Value = [u8; VALUE_BYTES];
pub type Row = (Key, Value);

/// Separates the numbers of absent keys from those of present keys.
const ABSENT: u64 = 1 << 63;

/// The random key of a number. Different numbers have different keys.
pub fn key(number: u64) -> Key {
    let mut random = Random::new(number);
    let mut key = [0; KEY_BYTES];
    // The first number of a generator is a bijection of its seed.
    key[..8].copy_from_slice(&random.next_u64().to_be_bytes());
    key[8..].copy_from_slice(&random.next_u64().to_be_bytes());
    key
}

/// A random key that is never inserted.
pub fn absent_key(number: u64) -> Key {
    key(ABSENT | number)
}

/// The incompressible value of a key.
pub fn value(key: &Key) -> Value {
    let mut random = Random::new(seed(key));
    let mut value = [0; VALUE_BYTES];
    for chunk in value.chunks_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
    }
    value
}

/// The first eight bytes of the value of a key: quicker to compute, for checks of long scans.
pub fn value_head(key: &Key) -> [u8; 8] {
    Random::new(seed(key)).next_u64().to_le_bytes()
}

/// The row of a number.
pub fn row(number: u64) -> Row {
    let key = key(number);
    (key, value(&key))
}

fn seed(key: &Key) -> u64 {
    u64::from_le_bytes(*key.last_chunk().expect("keys are longer than 8 bytes"))
}

/// The value after an upsert with `operand`: its first eight bytes are a counter.
pub fn add(old: Option<&[u8]>, operand: u64) -> Vec<u8> {
    let mut value = old.map_or_else(|| vec![0; VALUE_BYTES], <[u8]>::to_vec);
    if let Some(head) = value.first_chunk_mut::<8>() {
        *head = u64::from_le_bytes(*head).wrapping_add(operand).to_le_bytes();
    }
    value
}

/// The operand in a merge message or upsert message.
pub fn operand(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_distinct_and_reproducible() {
        let keys: HashSet<Key> = (0..10_000).map(key).chain((0..10_000).map(absent_key)).collect();
        assert_eq!(keys.len(), 20_000);
        assert_eq!(key(7), key(7));
    }

    #[test]
    fn keys_are_uniform() {
        let below = (0..10_000).filter(|&number| key(number)[0] < 64).count();
        assert!((2_300..2_700).contains(&below), "{below} of 10,000 keys are in the first quarter");
    }

    #[test]
    fn values_depend_on_the_key() {
        let (key, value) = row(3);
        assert_eq!(value[..8], value_head(&key));
        assert_ne!(value, super::value(&super::key(4)));
    }

    #[test]
    fn upserts_add_to_the_first_bytes() {
        let (key, value) = row(5);
        let added = add(Some(&add(Some(&value), 2)), 3);
        let head = u64::from_le_bytes(value_head(&key)).wrapping_add(5);
        assert_eq!(added[..8], head.to_le_bytes());
        assert_eq!(added[8..], value[8..]);
        assert_eq!(operand(&9_u64.to_le_bytes()), 9);
        assert_eq!(add(None, 1).len(), VALUE_BYTES);
    }
}
