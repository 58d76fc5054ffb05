//! A checked reader of little-endian numbers and byte strings.
//!
//! Damaged input gives a [`Malformed`] error with its position, never a panic. No length or count read from the input
//! is trusted before it was compared with the bytes that remain.

/// A decoding error and its position. In a write batch it becomes [`Error::InvalidBatch`](crate::Error::InvalidBatch),
/// in a file [`Error::Corrupt`](crate::Error::Corrupt).
#[derive(Debug)]
pub(crate) struct Malformed {
    /// Offset of the error in the bytes of the outermost [`Reader`].
    pub position: usize,
    pub detail: String,
}

type Result<T> = std::result::Result<T, Malformed>;

/// A read position in bytes that may be damaged. Every read advances it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// Position of the end of `bytes`. For a section it counts from the start of the outermost reader.
    end: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, end: bytes.len() }
    }
    /// Number of bytes read so far. A section counts from the start of the outermost reader.
    pub fn position(&self) -> usize {
        self.end - self.bytes.len()
    }
    /// An error at the current position.
    pub fn malformed(&self, detail: impl Into<String>) -> Malformed {
        Malformed { position: self.position(), detail: detail.into() }
    }
    /// Number of bytes that remain.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.bytes.split_at_checked(len) else {
            return Err(self.malformed(format!("expected {len} bytes, {} remain", self.bytes.len())));
        };
        self.bytes = rest;
        Ok(head)
    }
    /// Splits off a reader of the next `len` bytes, which this reader skips. Positions in the section continue those of
    /// this reader.
    pub fn section(&mut self, len: usize) -> Result<Reader<'a>> {
        let bytes = self.bytes(len)?;
        Ok(Reader { bytes, end: self.position() })
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
    /// A byte string that is preceded by its length (u32).
    pub fn string(&mut self) -> Result<&'a [u8]> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }
    /// A count (u32) of items of at least `size` bytes each. Counts that the remaining bytes cannot hold are rejected,
    /// so callers may reserve memory for the items.
    pub fn count(&mut self, size: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > self.bytes.len() / size.max(1) {
            let detail = format!("expected {count} items of at least {size} bytes, {} bytes remain", self.bytes.len());
            return Err(self.malformed(detail));
        }
        Ok(count)
    }
}
