//! Reading little-endian numbers and byte strings, with errors instead of panics.

/// Why bytes cannot be decoded, and where. In a write batch it becomes [`Error::InvalidBatch`](crate::Error::InvalidBatch),
/// in a file [`Error::Corrupt`](crate::Error::Corrupt).
#[derive(Debug)]
pub(crate) struct Malformed {
    /// Bytes before the place.
    pub position: usize,
    pub detail: String,
}

type Result<T> = std::result::Result<T, Malformed>;

/// A position in bytes that may be damaged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// Position of the end of `bytes`.
    end: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, end: bytes.len() }
    }
    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.end - self.bytes.len()
    }
    /// The error for what was read last.
    pub fn malformed(&self, detail: impl Into<String>) -> Malformed {
        Malformed { position: self.position(), detail: detail.into() }
    }
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.bytes.split_at_checked(len) else {
            return Err(self.malformed(format!("{len} bytes expected, {} left", self.bytes.len())));
        };
        self.bytes = rest;
        Ok(head)
    }
    /// A reader of the next `len` bytes alone, which are skipped here. Its positions go on from this one's.
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
    /// A byte string with its length (u32) before it.
    pub fn string(&mut self) -> Result<&'a [u8]> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }
    /// A count of things of at least `size` bytes each: never more than can follow, so that memory may be reserved.
    pub fn count(&mut self, size: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > self.bytes.len() / size.max(1) {
            let detail = format!("{count} items of at least {size} bytes expected, {} bytes left", self.bytes.len());
            return Err(self.malformed(detail));
        }
        Ok(count)
    }
}
