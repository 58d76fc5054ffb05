//! Unsigned numbers in LEB128, and a reader that checks every length.

/// Appends a number.
pub(super) fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads the fields of a byte string from left to right.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, position: 0 }
    }

    /// Offset of the next field.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Number of bytes that were not read.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next `len` bytes; `None` if there are fewer.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.position..self.position.checked_add(len)?)?;
        self.position += len;
        Some(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number that [`put`] has written.
    pub fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.array::<1>()?[0];
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back() {
        let numbers = [0, 1, 127, 128, 300, 1 << 31, u64::MAX - 1, u64::MAX];
        let mut bytes = Vec::new();
        numbers.iter().for_each(|&number| put(number, &mut bytes));
        let mut reader = Reader::new(&bytes);
        numbers.iter().for_each(|&number| assert_eq!(reader.varint(), Some(number)));
        assert_eq!((reader.remaining(), reader.varint()), (0, None));
    }

    #[test]
    fn numbers_that_are_too_long_or_cut_off_are_refused() {
        assert_eq!(Reader::new(&[0x80; 11]).varint(), None);
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).varint(), None);
        assert_eq!(Reader::new(&[0x80]).varint(), None);
        assert_eq!(Reader::new(&[1, 2]).bytes(3), None);
    }
}
