//! Keys: the types that can be keys, and the cursor by which a descent reads a key slice by slice.

/// Length of the longest key in bytes. Operations on single keys panic for a longer key; bulk operations return an
/// error.
pub const KEY_BYTES_MAX: usize = 64 << 20;

/// A type that can be used as a key: byte strings as they are, integers and tuples of integers in an encoding of the
/// same order.
///
/// Encoding allocates nothing. [`FixedKey::decode`] reverses it.
pub trait AsKey {
    /// Calls `use_key` with the key's bytes.
    fn with_key<R>(&self, use_key: impl FnOnce(&[u8]) -> R) -> R;
}

macro_rules! bytes {
    ($(($($generics:tt)*) $key:ty),* $(,)?) => {$(
        impl<$($generics)*> AsKey for $key {
            #[inline]
            fn with_key<R>(&self, use_key: impl FnOnce(&[u8]) -> R) -> R {
                use_key(AsRef::<[u8]>::as_ref(self))
            }
        }
    )*};
}

bytes!(() [u8], (const N: usize) [u8; N], () Vec<u8>, () Box<[u8]>, () std::sync::Arc<[u8]>, () str, () String);

impl<K: AsKey + ?Sized> AsKey for &K {
    #[inline]
    fn with_key<R>(&self, use_key: impl FnOnce(&[u8]) -> R) -> R {
        (**self).with_key(use_key)
    }
}

/// A type with an order-preserving encoding of fixed length.
pub trait FixedKey: Sized {
    /// Bytes of the encoding.
    const BYTES: usize;

    /// Writes the encoding into `bytes`.
    ///
    /// # Panics
    /// If `bytes` does not have [`BYTES`](Self::BYTES) bytes.
    fn encode(&self, bytes: &mut [u8]);

    /// The value of an encoding; `None` if `bytes` has another length.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

macro_rules! integers {
    ($($key:ty, $flip:expr;)*) => {$(
        impl FixedKey for $key {
            const BYTES: usize = size_of::<$key>();

            #[inline]
            fn encode(&self, bytes: &mut [u8]) {
                // The sign bit is flipped, so that negative numbers come first.
                bytes.copy_from_slice(&(self ^ $flip).to_be_bytes());
            }

            #[inline]
            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(<$key>::from_be_bytes(bytes.try_into().ok()?) ^ $flip)
            }
        }

        impl AsKey for $key {
            #[inline]
            fn with_key<R>(&self, use_key: impl FnOnce(&[u8]) -> R) -> R {
                use_key(&(self ^ $flip).to_be_bytes())
            }
        }
    )*};
}

integers! {
    u8, 0; u16, 0; u32, 0; u64, 0; u128, 0;
    i8, i8::MIN; i16, i16::MIN; i32, i32::MIN; i64, i64::MIN; i128, i128::MIN;
}

/// Length of the longest encoding of a tuple, four numbers of 16 bytes.
const TUPLE_BYTES: usize = 64;

macro_rules! tuples {
    ($(($($name:ident $index:tt),*)),*) => {$(
        impl<$($name: FixedKey),*> FixedKey for ($($name,)*) {
            const BYTES: usize = 0 $(+ $name::BYTES)*;

            fn encode(&self, bytes: &mut [u8]) {
                let mut at = 0;
                $(
                    self.$index.encode(&mut bytes[at..at + $name::BYTES]);
                    at += $name::BYTES;
                )*
                assert_eq!(at, bytes.len(), "the length of the encoding");
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                if bytes.len() != Self::BYTES {
                    return None;
                }
                let mut rest = bytes;
                Some(($({
                    let (part, others) = rest.split_at($name::BYTES);
                    rest = others;
                    let _ = rest;
                    $name::decode(part)?
                },)*))
            }
        }

        impl<$($name: FixedKey),*> AsKey for ($($name,)*) {
            #[inline]
            fn with_key<R>(&self, use_key: impl FnOnce(&[u8]) -> R) -> R {
                const { assert!(<Self as FixedKey>::BYTES <= TUPLE_BYTES, "the tuple is too long for a key") }
                let mut bytes = [0; TUPLE_BYTES];
                let encoded = &mut bytes[..<Self as FixedKey>::BYTES];
                self.encode(encoded);
                use_key(encoded)
            }
        }
    )*};
}

tuples!((A 0), (A 0, B 1), (A 0, B 1, C 2), (A 0, B 1, C 2, D 3));

/// A key in one layer: the layer's slice of the key, and its continuation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'k> {
    bytes: &'k [u8],
    /// Offset of the layer's slice in the key: a multiple of 8, at most the key's length.
    offset: usize,
}

impl<'k> Cursor<'k> {
    #[inline]
    pub fn new(bytes: &'k [u8]) -> Self {
        Cursor { bytes, offset: 0 }
    }

    /// The key in a given layer. The key is at least as long as the slices of the layers above.
    pub fn at_layer(bytes: &'k [u8], layer: usize) -> Self {
        debug_assert!(8 * layer <= bytes.len());
        Cursor { bytes, offset: 8 * layer }
    }

    pub fn bytes(&self) -> &'k [u8] {
        self.bytes
    }

    pub fn layer(&self) -> usize {
        self.offset / 8
    }

    /// The key's eight bytes in this layer as a number of the same order, padded with zeros after the key's end.
    #[inline]
    pub fn slice(&self) -> u64 {
        slice_at(self.bytes, self.offset)
    }

    /// Number of bytes of the key from this layer on.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// The number of the key's bytes in this layer, 0 to 8, if it ends in the layer; 9 if it continues.
    #[inline]
    pub fn rank(&self) -> u8 {
        self.remaining().min(9) as u8
    }

    /// The bytes after the slice of a key that continues.
    #[inline]
    pub fn suffix(&self) -> &'k [u8] {
        &self.bytes[self.offset + 8..]
    }

    /// Moves to the next layer of a key that continues.
    #[inline]
    pub fn advance(&mut self) {
        debug_assert!(self.remaining() > 8);
        self.offset += 8;
    }
}

/// The number of slices that two keys share and after which both continue: the layers that they run through together.
#[inline]
pub(crate) fn shared_layers(one: &[u8], other: &[u8]) -> usize {
    let limit = one.len().min(other.len()).saturating_sub(1) / 8;
    if limit == 0 || one.first_chunk::<8>() != other.first_chunk::<8>() {
        return 0;
    }
    1 + (1..limit).take_while(|layer| one[8 * layer..][..8] == other[8 * layer..][..8]).count()
}

/// Up to eight bytes from `offset` (at most the length) on, as a number of the same order, padded with zeros.
#[inline]
pub(crate) fn slice_at(bytes: &[u8], offset: usize) -> u64 {
    let rest = &bytes[offset..];
    if let Some(eight) = rest.first_chunk::<8>() {
        u64::from_be_bytes(*eight)
    } else if rest.is_empty() {
        0
    } else if let Some(last) = bytes.last_chunk::<8>() {
        u64::from_be_bytes(*last) << (64 - 8 * rest.len())
    } else {
        let mut padded = [0; 8];
        padded[..rest.len()].copy_from_slice(rest);
        u64::from_be_bytes(padded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(key: &impl AsKey) -> Vec<u8> {
        key.with_key(<[u8]>::to_vec)
    }

    #[test]
    fn slices() {
        let key: Vec<u8> = (1..=19).collect();
        for length in 0..key.len() {
            for offset in 0..=length {
                let mut expected = [0; 8];
                let end = length.min(offset + 8);
                expected[..end - offset].copy_from_slice(&key[offset..end]);
                assert_eq!(slice_at(&key[..length], offset), u64::from_be_bytes(expected));
            }
        }
    }

    #[test]
    fn numbers_sort_as_their_bytes() {
        let numbers = [i64::MIN, -300, -1, 0, 1, 255, 256, i64::MAX];
        for a in numbers {
            assert_eq!(i64::decode(&encode(&a)), Some(a));
            for b in numbers {
                assert_eq!(a.cmp(&b), encode(&a).cmp(&encode(&b)));
                for (c, d) in [(1u32, 2u32), (2, 1), (7, 7)] {
                    assert_eq!((a, c).cmp(&(b, d)), encode(&(a, c)).cmp(&encode(&(b, d))));
                }
            }
            assert_eq!(<(i64, u16)>::decode(&encode(&(a, 9u16))), Some((a, 9)));
        }
        assert_eq!(u64::decode(&[1, 2]), None);
        assert_eq!(<(u8, u8)>::decode(&[1]), None);
    }
}
