//! Reading little-endian numbers and byte strings, with errors instead of panics.

use crate::base::{Error, Result};

/// A position in bytes that may be damaged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// Bytes at the beginning.
    len: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, len: bytes.len() }
    }
    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.len - self.bytes.len()
    }
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) =
            self.bytes.split_at_checked(len).ok_or_else(|| Error::Invalid("unexpected end of a record".into()))?;
        self.bytes = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.bytes(N)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// A byte string with its length (u32) before it.
    pub fn string(&mut self) -> Result<&'a [u8]> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }
    /// A count of things of at least `size` bytes each: never more than can follow, so that memory may be reserved.
    pub fn count(&mut self, size: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > self.bytes.len() / size.max(1) {
            return Err(Error::Invalid(format!("a count of {count} is more than can follow")));
        }
        Ok(count)
    }
}
