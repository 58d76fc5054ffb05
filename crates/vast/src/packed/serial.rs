//! The serialised form of a column: its length, and its headers, residuals and summaries as sections.

use bytes::Bytes;

use super::aggregate::{GROUP, SUMMARY_BYTES};
use super::{BLOCK, PADDING, Packed, WIDTH_MAX};
use crate::error::Error;
use crate::header::Header;
use crate::key::Key;
use crate::serial::{Kind, Reader, Writer};
use crate::simd::Instructions;

impl<V: Key> Packed<V> {
    /// Serialises the column.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(Kind::Packed, V::TAG);
        self.write(&mut writer);
        writer.finish()
    }

    /// Opens a serialised column, which is used in place.
    ///
    /// # Errors
    /// If the bytes are no valid serialised column of this type.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes, Kind::Packed, V::TAG)?;
        let column = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(column)
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.number(self.length as u64);
        writer.section(&self.headers);
        writer.section(&self.residuals);
        writer.section(&self.summaries);
    }

    pub(crate) fn read(reader: &mut Reader) -> Result<Self, Error> {
        let length = reader.size()?;
        let (headers, residuals, summaries) = (reader.section()?, reader.section()?, reader.section()?);
        if Some(headers.len()) != length.div_ceil(BLOCK).checked_mul(Header::bytes::<V>()) {
            return Err(Error::Damaged("number of headers differs from that of blocks"));
        }
        let room = residuals.len().checked_sub(PADDING).ok_or(Error::Damaged("residuals without padding"))?;
        let summarised = (length.div_ceil(GROUP) + 1).checked_mul(SUMMARY_BYTES);
        if !summaries.is_empty() && Some(summaries.len()) != summarised {
            return Err(Error::Damaged("wrong number of summaries"));
        }
        for header in headers.chunks_exact(Header::bytes::<V>()) {
            // SAFETY: the slice has the bytes of a header.
            let header = unsafe { Header::read::<V>(header.as_ptr()) };
            let width = header.width as u32;
            let end = header.offset as u64 * 16 + 16 * width as u64;
            if width > WIDTH_MAX && width != 64 || end > room as u64 {
                return Err(Error::Damaged("residuals of a block exceed the column"));
            }
            if !(-63..=63).contains(&header.exponent) {
                return Err(Error::Damaged("exponent of a block's line is out of range"));
            }
        }
        Ok(Packed {
            length,
            headers,
            residuals,
            summaries,
            instructions: Instructions::best(),
            _values: std::marker::PhantomData,
        })
    }
}
