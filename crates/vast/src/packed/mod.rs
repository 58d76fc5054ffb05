//! A compressed column of integers with random access: the sorted keys, or the row reference beside each.
//!
//! Values are in blocks of 128. Of each block a straight line is kept (with slope 0 it is a frame of reference) and, bit-packed
//! in as few bits as the largest needs, by how much each value is above it.
//!
//! ```text
//! header   [base: 4 or 8 bytes][offset of the residuals / 16: u32][slope: i16][exponent: i8][width: u8]
//! value    base + (slope * i  <<exponent, or >>-exponent) + residual i        (modulo the size of a value)
//! ```
//!
//! A block's residuals of `width` bits take 16 · `width` bytes, and eight of them a whole number of bytes: so the same shuffle
//! of bytes unpacks every eight of a block. Residuals of more than 56 bits are kept as whole values of 64. Where aggregates are
//! wanted, a summary stands for every 1024 values: the sum of all before, the smallest and the greatest.

mod aggregate;
mod fit;
mod serial;

pub use aggregate::Aggregate;
pub(crate) use fit::pack;

use bytes::Bytes;

use crate::error::Error;
use crate::key::Key;
use crate::memory::{Buffer, prefetch, read};
use crate::simd::{Instructions, Simd, dispatch};
use crate::tree::Sorted;

/// Values of a block.
pub(crate) const BLOCK: usize = 128;
/// Bytes behind the residuals that can be read and mean nothing.
pub(crate) const PADDING: usize = 64;
/// The longest residuals; longer ones are whole values.
pub(crate) const WIDTH_MAX: u32 = 56;

/// A compressed column. Cloning it shares its memory.
#[derive(Clone, Debug)]
pub struct Packed<V: Key> {
    length: usize,
    headers: Bytes,
    residuals: Bytes,
    /// Empty, or one for each 1024 values and one for the end.
    summaries: Bytes,
    instructions: Instructions,
    _values: std::marker::PhantomData<V>,
}

/// A block's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub base: u64,
    pub offset: u32,
    pub slope: i16,
    pub exponent: i8,
    pub width: u8,
}

impl Header {
    pub const fn bytes<V: Key>() -> usize {
        V::BYTES + 8
    }

    /// # Safety
    /// As many bytes can be read.
    #[inline(always)]
    unsafe fn read<V: Key>(at: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Header {
                base: if V::BYTES == 4 { read::<u32>(at) as u64 } else { read::<u64>(at) },
                offset: read(at.add(V::BYTES)),
                slope: read(at.add(V::BYTES + 4)),
                exponent: read(at.add(V::BYTES + 6)),
                width: read(at.add(V::BYTES + 7)),
            }
        }
    }

    pub fn write<V: Key>(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.base.to_le_bytes()[..V::BYTES]);
        bytes.extend_from_slice(&self.offset.to_le_bytes());
        bytes.extend_from_slice(&self.slope.to_le_bytes());
        bytes.extend_from_slice(&[self.exponent as u8, self.width]);
    }

    /// What the line is at a value's place, less the base.
    #[inline(always)]
    pub fn line(&self, index: usize) -> u64 {
        let rise = self.slope as i64 * index as i64;
        let (left, right) = (self.exponent.max(0) as u32, (-self.exponent).max(0) as u32);
        ((rise << (left & 63)) >> (right & 63)) as u64
    }
}

impl<V: Key> Packed<V> {
    /// Compresses values. With `summaries` aggregates over ranges do not have to look at every value.
    pub fn new(values: &[V], summaries: bool) -> Result<Self, Error> {
        let mut packer = Packer::new(summaries);
        packer.push(values)?;
        packer.finish()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.headers.len() + self.residuals.len() + self.summaries.len()
    }

    /// The same column unpacked with other instructions.
    pub fn with_instructions(mut self, instructions: Instructions) -> Self {
        self.instructions = instructions;
        self
    }

    /// A value.
    ///
    /// # Panics
    /// When `row` is not below the length.
    #[inline]
    pub fn get(&self, row: usize) -> V {
        assert!(row < self.length, "row {row} of {}", self.length);
        // SAFETY: the row is below the length.
        V::from_ordered(unsafe { self.ordered(row) })
    }

    /// # Safety
    /// `row` is below the length.
    #[inline(always)]
    pub(crate) unsafe fn ordered(&self, row: usize) -> u64 {
        // SAFETY: there is a header for every value, and headers were checked to refer to residuals that are there, with
        // padding behind them.
        unsafe {
            let header = self.header(row / BLOCK);
            let index = row % BLOCK;
            let bit = index * header.width as usize;
            let start = self.residuals.as_ptr().add(header.offset as usize * 16);
            let mask = u64::MAX >> (64 - header.width as u32).min(63);
            let residual = if header.width == 0 { 0 } else { (read::<u64>(start.add(bit / 8)) >> (bit % 8)) & mask };
            header.base.wrapping_add(header.line(index)).wrapping_add(residual) & V::LAST
        }
    }

    /// # Safety
    /// There is such a block.
    #[inline(always)]
    unsafe fn header(&self, block: usize) -> Header {
        // SAFETY: the caller's promise.
        unsafe { Header::read::<V>(self.headers.as_ptr().add(block * Header::bytes::<V>())) }
    }

    /// Asks for a block's header.
    #[inline(always)]
    pub(crate) fn ask_header(&self, row: usize) {
        prefetch(self.headers.as_ptr().wrapping_add(row / BLOCK * Header::bytes::<V>()));
    }

    /// Asks for a row's residual, by its header.
    #[inline(always)]
    pub(crate) fn ask(&self, row: usize) {
        if row < self.length {
            // SAFETY: there is a header for every value.
            let header = unsafe { self.header(row / BLOCK) };
            let at = header.offset as usize * 16 + row % BLOCK * header.width as usize / 8;
            prefetch(self.residuals.as_ptr().wrapping_add(at));
        }
    }

    /// Unpacks a block, as numbers in order as unsigned. What is behind the last value means nothing.
    ///
    /// # Panics
    /// When there is no such block.
    pub(crate) fn unpack(&self, block: usize, values: &mut [u64; BLOCK]) {
        assert!(block < self.length.div_ceil(BLOCK));
        dispatch!(self.instructions, S, fn run[V: Key](column: &Packed<V>, block: usize, values: &mut [u64; BLOCK]) {
            // SAFETY: the processor has `S`; there is such a block.
            unsafe { column.unpack_groups::<S>(block, 0, values) }
        }, (self, block, values))
    }

    /// Unpacks groups of eight values of a block.
    ///
    /// # Safety
    /// The processor has `S`; there is such a block, and it has groups from `first` on for as many values.
    #[inline(always)]
    pub(crate) unsafe fn unpack_groups<S: Simd>(&self, block: usize, first: usize, values: &mut [u64]) {
        // SAFETY: headers were checked to refer to residuals that are there, with padding behind them.
        unsafe {
            let header = self.header(block);
            let start = self.residuals.as_ptr().add(header.offset as usize * 16);
            S::unpack(&header, start, first, values);
        }
        if V::BYTES == 4 {
            for value in values {
                *value &= V::LAST;
            }
        }
    }

    /// Calls `each` with values in order, some at a time, from row `from` to row `to`.
    ///
    /// # Panics
    /// When `to` is above the length.
    pub fn scan(&self, from: usize, to: usize, mut each: impl FnMut(&[V])) {
        assert!(to <= self.length, "row {to} of {}", self.length);
        let mut ordered = [0; BLOCK];
        let mut values = [V::default(); BLOCK];
        let mut row = from;
        while row < to {
            let block = row / BLOCK;
            self.unpack(block, &mut ordered);
            for (value, &ordered) in values.iter_mut().zip(&ordered) {
                *value = V::from_ordered(ordered);
            }
            let end = to.min((block + 1) * BLOCK);
            each(&values[row - block * BLOCK..end - block * BLOCK]);
            row = end;
        }
    }
}

impl<V: Key> Sorted<V> for Packed<V> {
    fn len(&self) -> usize {
        self.length
    }

    fn get(&self, row: usize) -> V {
        Packed::get(self, row)
    }
}

/// Compresses values as they come, with all processors; what it needs beside the result is bounded.
#[derive(Debug)]
pub struct Packer<V: Key> {
    length: usize,
    /// Values that are not yet a whole chunk.
    open: Vec<V>,
    headers: Vec<u8>,
    residuals: Vec<u8>,
    summaries: Option<aggregate::Summaries>,
}

/// Values compressed at a time, by all processors together.
const CHUNK: usize = 1 << 18;

impl<V: Key> Packer<V> {
    /// With `summaries` aggregates over ranges do not have to look at every value.
    pub fn new(summaries: bool) -> Self {
        let summaries = summaries.then(aggregate::Summaries::default);
        Packer { length: 0, open: Vec::new(), headers: Vec::new(), residuals: Vec::new(), summaries }
    }

    /// More values.
    pub fn push(&mut self, mut values: &[V]) -> Result<(), Error> {
        while self.open.len() + values.len() >= CHUNK {
            let (now, later) = values.split_at(CHUNK - self.open.len());
            values = later;
            if self.open.is_empty() {
                self.pack(now)?;
            } else {
                self.open.extend_from_slice(now);
                let full = std::mem::take(&mut self.open);
                self.pack(&full)?;
                self.open = full;
                self.open.clear();
            }
        }
        self.open.extend_from_slice(values);
        Ok(())
    }

    fn pack(&mut self, values: &[V]) -> Result<(), Error> {
        use rayon::prelude::*;
        if let Some(summaries) = &mut self.summaries {
            summaries.push(values);
        }
        // Some blocks for each processor's turn; their residuals are put one behind the other afterwards.
        let parts: Vec<(Vec<Header>, Vec<u8>)> = values.par_chunks(64 * BLOCK).map(pack).collect();
        for (headers, residuals) in parts {
            let offset = u32::try_from(self.residuals.len() / 16)
                .map_err(|_| Error::Plan("a packed column has more than 64 GiB"))?;
            for mut header in headers {
                header.offset =
                    header.offset.checked_add(offset).ok_or(Error::Plan("a packed column has more than 64 GiB"))?;
                header.write::<V>(&mut self.headers);
            }
            self.residuals.extend_from_slice(&residuals);
        }
        self.length += values.len();
        Ok(())
    }

    /// The column.
    pub fn finish(mut self) -> Result<Packed<V>, Error> {
        let rest = std::mem::take(&mut self.open);
        self.pack(&rest)?;
        let bytes = |from: Vec<u8>, padding: usize| {
            let mut buffer = Buffer::zeroed(from.len() + padding);
            buffer[..from.len()].copy_from_slice(&from);
            Bytes::from(buffer)
        };
        Ok(Packed {
            length: self.length,
            headers: bytes(self.headers, 0),
            residuals: bytes(self.residuals, PADDING),
            summaries: bytes(self.summaries.map(|summaries| summaries.finish()).unwrap_or_default(), 0),
            instructions: Instructions::best(),
            _values: std::marker::PhantomData,
        })
    }
}
