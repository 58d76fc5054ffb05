//! Search in sorted keys by their first bytes.
//!
//! Keys are allocations of their own: a binary search over them waits for memory at each step. [`KeyHeads`] has eight bytes
//! of each key, behind the prefix that all keys share, in one array. They decide most searches.

use std::cmp::Ordering;

use crate::base::Key;
use crate::codec::head_of;

/// The heads of ascending keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyHeads {
    /// The first key.
    first: Option<Key>,
    /// Length in bytes of the common prefix of all keys.
    prefix: usize,
    /// The eight bytes behind the prefix as a big-endian number, padded with zeros.
    heads: Vec<u64>,
}

impl KeyHeads {
    /// The heads of `keys`, which ascend.
    pub fn new<'k>(keys: impl DoubleEndedIterator<Item = &'k [u8]> + Clone) -> KeyHeads {
        let (Some(first), Some(last)) = (keys.clone().next(), keys.clone().next_back()) else {
            return KeyHeads::default();
        };
        let prefix = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        KeyHeads { first: Some(first.into()), prefix, heads: keys.map(|key| head_of(&key[prefix..])).collect() }
    }

    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Number of keys that are not greater than `key`. `key_at` returns the key with a number.
    #[inline]
    pub fn count_to<'k>(&self, key: &[u8], key_at: impl Fn(usize) -> &'k [u8]) -> usize {
        let Some(first) = &self.first else { return 0 };
        let (prefix, len) = (&first[..self.prefix], self.prefix.min(key.len()));
        match key[..len].cmp(prefix) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.heads.len(),
            Ordering::Equal => {}
        }
        let head = head_of(&key[len..]);
        let mut start = self.heads.partition_point(|&other| other < head);
        let mut end = start + self.heads[start..].partition_point(|&other| other == head);
        while start < end {
            let middle = start + (end - start) / 2;
            if key_at(middle) <= key { start = middle + 1 } else { end = middle }
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_as_by_comparison() {
        let mut random = keyaki_primitives::Random::new(1);
        for round in 0..300 {
            // Few different bytes, and common prefixes that are shorter, as long as and longer than heads.
            let prefix = vec![b'p'; round % 12];
            let mut word = |len: u64| {
                let len = random.below(len) as usize;
                (0..len).map(|_| [0, 1, 0xff][random.below(3) as usize]).collect::<Vec<u8>>()
            };
            let mut keys: Vec<Vec<u8>> = (0..round % 40).map(|_| [prefix.clone(), word(12)].concat()).collect();
            keys.sort_unstable();
            keys.dedup();
            let heads = KeyHeads::new(keys.iter().map(Vec::as_slice));
            assert_eq!(heads.len(), keys.len());
            let others = (0..50).map(|_| [prefix.clone(), word(14)].concat()).collect::<Vec<_>>();
            let cut = [vec![], prefix[..prefix.len() / 2].to_vec(), vec![b'a'], vec![b'z'], vec![b'p'; 20]];
            for key in keys.iter().chain(&others).chain(&cut) {
                let expected = keys.iter().filter(|other| *other <= key).count();
                assert_eq!(heads.count_to(key, |at| &keys[at]), expected, "{key:?} in {keys:?}");
            }
        }
    }
}
