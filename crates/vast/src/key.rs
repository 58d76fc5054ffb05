//! The integer types of keys, and their mapping to unsigned numbers of the same order.
//!
//! Inside the tree all keys are unsigned: the sign bit of a signed key is flipped, which preserves the order. Dates and
//! timestamps are keys as the integers in which they are stored.

use std::fmt::Debug;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for i32 {}
    impl Sealed for u64 {}
    impl Sealed for i64 {}
}

/// The type of a key: `u32`, `i32`, `u64` or `i64`.
pub trait Key: sealed::Sealed + Copy + Ord + Debug + Default + Send + Sync + 'static {
    /// Size of a key in bytes.
    const BYTES: usize;
    /// The bits to flip between a key and its unsigned number.
    #[doc(hidden)]
    const FLIP: u64;
    /// Identifies the type in serialised forms.
    #[doc(hidden)]
    const TAG: u8;
    /// The largest unsigned number.
    #[doc(hidden)]
    const LAST: u64;

    /// The unsigned number of the key. It has the same order as the key.
    #[doc(hidden)]
    fn ordered(self) -> u64;

    /// The key of an unsigned number. Only the low `BYTES` bytes are used.
    #[doc(hidden)]
    fn from_ordered(bits: u64) -> Self;
}

macro_rules! key {
    ($key:ty, $unsigned:ty, $flip:expr, $tag:expr) => {
        impl Key for $key {
            const BYTES: usize = size_of::<$key>();
            const FLIP: u64 = $flip;
            const TAG: u8 = $tag;
            const LAST: u64 = <$unsigned>::MAX as u64;

            #[inline(always)]
            fn ordered(self) -> u64 {
                (self as $unsigned as u64) ^ $flip
            }

            #[inline(always)]
            fn from_ordered(bits: u64) -> Self {
                (bits ^ $flip) as $unsigned as $key
            }
        }
    };
}

key!(u32, u32, 0, 1);
key!(i32, u32, 1 << 31, 2);
key!(u64, u64, 0, 3);
key!(i64, u64, 1 << 63, 4);

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered_as_keys<K: Key>(keys: &[K]) {
        for pair in keys.windows(2) {
            assert!(pair[0] < pair[1] && pair[0].ordered() < pair[1].ordered());
        }
        assert!(keys.iter().all(|&key| K::from_ordered(key.ordered()) == key && key.ordered() <= K::LAST));
    }

    #[test]
    fn the_order_is_kept() {
        ordered_as_keys(&[0u32, 1, 1 << 31, u32::MAX]);
        ordered_as_keys(&[i32::MIN, -1, 0, 1, i32::MAX]);
        ordered_as_keys(&[0u64, 1, 1 << 63, u64::MAX]);
        ordered_as_keys(&[i64::MIN, -1, 0, 1, i64::MAX]);
    }
}
