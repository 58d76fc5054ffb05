//! A compressed column of integers with random access: the sorted keys, or the row reference of each key.
//!
//! Values are in blocks of 128. A block stores a straight line (with slope 0 it is a frame of reference) and the
//! residual of each value above the line, bit-packed in as few bits as the largest residual needs.
//!
//! ```text
//! header   [base: 4 or 8 bytes][offset of the residuals / 16: u32][slope: i16][exponent: i8][width: u8]
//! value    base + (slope * i  <<exponent, or >>-exponent) + residual i        (modulo the size of a value)
//! ```
//!
//! A block's residuals of `width` bits take 16 · `width` bytes. Eight of them take a whole number of bytes, so that the
//! same shuffle of bytes unpacks every group of eight. Residuals of more than 56 bits are stored as whole values of 64.
//! If aggregates are wanted, there is a summary for every 1024 values: the sum of all values before them, and their
//! minimum and maximum.
//!
//! Invariant: each header's residuals are within the column, followed by [`PADDING`] readable bytes.

mod aggregate;
mod fit;
mod serial;

pub use aggregate::Aggregate;
pub(crate) use fit::pack;

use bytes::Bytes;
use keyaki_primitives::{AlignedMemory, prefetch};

use crate::error::Error;
use crate::header::Header;
use crate::key::Key;
use crate::memory::read;
use crate::simd::{Instructions, Simd, dispatch};
use crate::sorted::Sorted;

/// Number of values of a block.
pub(crate) const BLOCK: usize = 128;
/// Readable bytes without meaning after the residuals.
pub(crate) const PADDING: usize = 64;
/// Bits of the longest packed residuals. Longer ones are stored as whole values.
pub(crate) const WIDTH_MAX: u32 = 56;

const _: () = assert!(BLOCK.is_multiple_of(8) && aggregate::GROUP.is_multiple_of(BLOCK));
const _: () = assert!(WIDTH_MAX + 7 < u64::BITS, "a residual is within the eight bytes from its first byte on");

/// A compressed column. A clone shares the memory.
#[derive(Clone, Debug)]
pub struct Packed<V: Key> {
    length: usize,
    headers: Bytes,
    residuals: Bytes,
    /// Empty, or one summary for each 1024 values and one for the end.
    summaries: Bytes,
    instructions: Instructions,
    _values: std::marker::PhantomData<V>,
}

impl<V: Key> Packed<V> {
    /// Compresses values. With `summaries`, aggregates over ranges read only a part of the values.
    ///
    /// # Errors
    /// If the residuals exceed 64 GiB.
    pub fn new(values: &[V], summaries: bool) -> Result<Self, Error> {
        let mut packer = Packer::new(summaries);
        packer.push(values)?;
        packer.finish()
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Size of the column in bytes.
    pub fn bytes(&self) -> usize {
        self.headers.len() + self.residuals.len() + self.summaries.len()
    }

    /// Selects the instruction set that unpacks values.
    pub fn with_instructions(mut self, instructions: Instructions) -> Self {
        self.instructions = instructions;
        self
    }

    /// The value of a row.
    ///
    /// # Panics
    /// If `row` is not below the length.
    #[inline]
    pub fn get(&self, row: usize) -> V {
        assert!(row < self.length, "row {row} is out of range, the column has {} rows", self.length);
        // SAFETY: the row is below the length.
        V::from_ordered(unsafe { self.ordered(row) })
    }

    /// The value of a row as an unsigned number.
    ///
    /// # Safety
    /// `row` is below the length.
    #[inline(always)]
    pub(crate) unsafe fn ordered(&self, row: usize) -> u64 {
        // SAFETY: every value has a header, and the residuals of every header are within the column, followed by
        // padding.
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
    /// The column has this block.
    #[inline(always)]
    unsafe fn header(&self, block: usize) -> Header {
        // SAFETY: the caller's promise.
        unsafe { Header::read::<V>(self.headers.as_ptr().add(block * Header::bytes::<V>())) }
    }

    /// Prefetches the header of a row's block.
    #[inline(always)]
    pub(crate) fn prefetch_header(&self, row: usize) {
        prefetch(self.headers.as_ptr().wrapping_add(row / BLOCK * Header::bytes::<V>()));
    }

    /// Prefetches a row's residual, whose address is in the header.
    #[inline(always)]
    pub(crate) fn prefetch_residual(&self, row: usize) {
        if row < self.length {
            // SAFETY: every value has a header.
            let header = unsafe { self.header(row / BLOCK) };
            let at = header.offset as usize * 16 + row % BLOCK * header.width as usize / 8;
            prefetch(self.residuals.as_ptr().wrapping_add(at));
        }
    }

    /// Unpacks a block as unsigned numbers. Elements after the column's last value have no meaning.
    ///
    /// # Panics
    /// If the column does not have this block.
    pub(crate) fn unpack(&self, block: usize, values: &mut [u64; BLOCK]) {
        assert!(block < self.length.div_ceil(BLOCK), "block {block} of a column with {} rows", self.length);
        dispatch!(self.instructions, S, fn run[V: Key](column: &Packed<V>, block: usize, values: &mut [u64; BLOCK]) {
            // SAFETY: the processor has `S`, and the column has the block.
            unsafe { column.unpack_groups::<S>(block, 0, values) }
        }, (self, block, values))
    }

    /// Unpacks groups of eight values of a block, from group `first` on.
    ///
    /// # Safety
    /// The processor has `S`. The column has the block. `values` has a multiple of eight elements, and the block has so
    /// many from group `first` on.
    #[inline(always)]
    pub(crate) unsafe fn unpack_groups<S: Simd>(&self, block: usize, first: usize, values: &mut [u64]) {
        // SAFETY: the residuals of every header are within the column, followed by padding.
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

    /// Calls `each` with the values of the rows `from..to` in order, up to 128 at a time.
    ///
    /// # Panics
    /// If `to` exceeds the length.
    pub fn scan(&self, from: usize, to: usize, mut each: impl FnMut(&[V])) {
        assert!(to <= self.length, "row {to} is out of range, the column has {} rows", self.length);
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

/// Compresses a stream of values with all processors. The memory that it needs in addition to the result is bounded.
#[derive(Debug)]
pub struct Packer<V: Key> {
    length: usize,
    /// Values of a chunk that is not complete.
    open: Vec<V>,
    headers: Vec<u8>,
    residuals: Vec<u8>,
    summaries: Option<aggregate::Summaries>,
}

/// Number of values that all processors together compress at a time.
const CHUNK: usize = 1 << 18;

impl<V: Key> Packer<V> {
    /// A packer without values. With `summaries`, aggregates over ranges read only a part of the values.
    pub fn new(summaries: bool) -> Self {
        let summaries = summaries.then(aggregate::Summaries::default);
        Packer { length: 0, open: Vec::new(), headers: Vec::new(), residuals: Vec::new(), summaries }
    }

    /// Appends values.
    ///
    /// # Errors
    /// If the residuals exceed 64 GiB.
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
        // Each task packs 64 blocks. Their residuals are concatenated afterwards.
        let parts: Vec<(Vec<Header>, Vec<u8>)> = values.par_chunks(64 * BLOCK).map(pack).collect();
        for (headers, residuals) in parts {
            let offset = u32::try_from(self.residuals.len() / 16)
                .map_err(|_| Error::Plan("the residuals of a packed column exceed 64 GiB"))?;
            for mut header in headers {
                header.offset = header
                    .offset
                    .checked_add(offset)
                    .ok_or(Error::Plan("the residuals of a packed column exceed 64 GiB"))?;
                header.write::<V>(&mut self.headers);
            }
            self.residuals.extend_from_slice(&residuals);
        }
        self.length += values.len();
        Ok(())
    }

    /// Completes the column.
    ///
    /// # Errors
    /// If the residuals exceed 64 GiB.
    pub fn finish(mut self) -> Result<Packed<V>, Error> {
        let rest = std::mem::take(&mut self.open);
        self.pack(&rest)?;
        assert_eq!(self.headers.len(), self.length.div_ceil(BLOCK) * Header::bytes::<V>(), "one header for each block");
        assert!(self.residuals.len().is_multiple_of(16), "the residuals of a block are a multiple of 16 bytes");
        let bytes = |from: Vec<u8>, padding: usize| {
            let mut memory = AlignedMemory::zeroed(from.len() + padding);
            memory[..from.len()].copy_from_slice(&from);
            Bytes::from_owner(memory)
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
