//! Bit packing: unsigned integers of a fixed width without gaps, least significant bit first.
//!
//! Value `i` of width `w` occupies the bits `i * w .. (i + 1) * w` of the packed bytes, where bit `b` is bit `b % 8` of
//! byte `b / 8`. One unaligned load reads any value. Eight consecutive values start and end on byte boundaries, so
//! ranges are unpacked in blocks of eight, with shifts that are constants of the width.
//!
//! Readers load up to [`SLACK`] bytes behind the packed bytes, which the owner of the bytes must provide.

/// Number of bytes that must follow packed data in memory. Their values are ignored.
pub(crate) const SLACK: usize = 16;

/// Number of bits needed for values up to `max`.
pub(crate) fn width_of(max: u64) -> u32 {
    64 - max.leading_zeros()
}

/// Number of bytes that `count` values of `width` bits occupy.
pub(crate) fn packed_len(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

fn mask(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Appends `values`, none of which needs more than `width` bits, to `out`.
pub(crate) fn pack(values: impl Iterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    if width == 0 {
        return;
    }
    let mut word = 0u64;
    let mut filled = 0;
    for value in values {
        word |= value << filled;
        filled += width;
        if filled >= 64 {
            out.extend_from_slice(&word.to_le_bytes());
            filled -= 64;
            // Carries the remaining bits of `value` over. If none remain, the shift by `width` could be 64, which
            // overflows.
            word = if filled == 0 { 0 } else { value >> (width - filled) };
        }
    }
    out.extend_from_slice(&word.to_le_bytes()[..filled.div_ceil(8) as usize]);
}

/// Returns value `i` of the values of `width` bits packed at `bytes[start..]`, or 0 if it is out of bounds.
#[inline]
pub(crate) fn get(bytes: &[u8], start: usize, width: u32, i: usize) -> u64 {
    let bit = i * width as usize;
    let at = start + bit / 8;
    let shift = bit % 8;
    if width <= 56 {
        let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else { return 0 };
        u64::from_le_bytes(*word) >> shift & mask(width)
    } else {
        let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else { return 0 };
        (u128::from_le_bytes(*word) >> shift) as u64 & mask(width)
    }
}

/// Fills `out` with consecutive values, starting with value `first`. Values that are out of bounds keep their content.
pub(crate) fn unpack(bytes: &[u8], start: usize, width: u32, first: usize, out: &mut [u64]) {
    let head = (first.wrapping_neg() % 8).min(out.len());
    for (k, value) in out[..head].iter_mut().enumerate() {
        *value = get(bytes, start, width, first + k);
    }
    let first = first + head;
    let out = &mut out[head..];
    let whole = out.len() / 8 * 8;
    let blocks = bytes.get(start + first / 8 * width as usize..).unwrap_or_default();
    unpack_blocks(width, blocks, &mut out[..whole]);
    for (k, value) in out[whole..].iter_mut().enumerate() {
        *value = get(bytes, start, width, first + whole + k);
    }
}

/// Unpacks whole blocks of eight values of `W` bits.
fn unpack_eights<const W: usize>(bytes: &[u8], out: &mut [u64]) {
    let mut at = 0;
    for eight in out.as_chunks_mut::<8>().0 {
        let Some(block) = bytes.get(at..at + W + SLACK) else { return };
        for (k, value) in eight.iter_mut().enumerate() {
            let (byte, shift) = (k * W / 8, k * W % 8);
            // `byte + 16 <= W + SLACK`, so both loads are in bounds and the compiler drops the checks.
            *value = if W <= 56 {
                block[byte..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word) >> shift)
            } else {
                block[byte..].first_chunk().map_or(0, |word| (u128::from_le_bytes(*word) >> shift) as u64)
            } & mask(W as u32);
        }
        at += W;
    }
}

macro_rules! by_width {
    ($width:expr, $bytes:expr, $out:expr, $($w:literal)*) => {
        match $width {
            $($w => unpack_eights::<$w>($bytes, $out),)*
            _ => unpack_eights::<64>($bytes, $out),
        }
    };
}

fn unpack_blocks(width: u32, bytes: &[u8], out: &mut [u64]) {
    by_width!(width, bytes, out,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unpacking_inverts_packing(
            width in 0u32..=64,
            values in prop::collection::vec(any::<u64>(), 0..100),
            first in 0usize..100,
            before in 0usize..9,
        ) {
            let values: Vec<u64> = values.iter().map(|v| v & mask(width)).collect();
            let mut bytes = vec![0xa5; before];
            pack(values.iter().copied(), width, &mut bytes);
            prop_assert_eq!(bytes.len(), before + packed_len(values.len(), width));
            bytes.extend([0x5a; SLACK]);
            for (i, &value) in values.iter().enumerate() {
                prop_assert_eq!(get(&bytes, before, width, i), value);
            }
            let first = first.min(values.len());
            let mut out = vec![7; values.len() - first];
            unpack(&bytes, before, width, first, &mut out);
            prop_assert_eq!(&out[..], &values[first..]);
        }
    }
}
