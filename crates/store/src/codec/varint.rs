//! Variable-length integers (LEB128) and a checked reader over bytes.

/// Appends `value`, seven bits a byte, least significant first.
pub(crate) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Number of bytes that [`put_varint`] appends for `value`.
pub(crate) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Maps signed numbers of small magnitude to small unsigned numbers.
pub(crate) fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads `bytes[at..end]` from front to back. Every method returns `None` if too few bytes remain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
    pub end: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0, end: bytes.len() }
    }

    /// Skips `len` bytes and returns their offset in `bytes`.
    pub(crate) fn skip(&mut self, len: usize) -> Option<usize> {
        let at = self.at;
        if len > self.end - at {
            return None;
        }
        self.at = at + len;
        Some(at)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let at = self.skip(1)?;
        self.bytes.get(at).copied()
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let first = self.u8()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn signed(&mut self) -> Option<i64> {
        self.varint().map(unzigzag)
    }

    /// A varint that is a length or count.
    pub(crate) fn len(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(value, &mut out);
                assert_eq!(out.len(), varint_len(value));
                assert_eq!(Reader::new(&out).varint(), Some(value));
                assert_eq!(Reader::new(&out[..out.len() - 1]).varint(), None);
                assert_eq!(unzigzag(zigzag(value as i64)), value as i64);
            }
        }
        assert_eq!(Reader::new(&[0xff; 12]).varint(), None);
    }
}
