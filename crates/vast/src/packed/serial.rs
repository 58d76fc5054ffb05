//! A column's serialised form: its length, and headers, residuals and summaries as they are.

use bytes::Bytes;

use super::aggregate::{GROUP, SUMMARY_BYTES};
use super::{BLOCK, Header, PADDING, Packed, WIDTH_MAX};
use crate::error::Error;
use crate::key::Key;
use crate::serial::{Kind, Reader, Writer};
use crate::simd::Instructions;

impl<V: Key> Packed<V> {
    /// The column in serialised form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(Kind::Packed, V::TAG);
        self.write(&mut writer);
        writer.finish()
    }

    /// The column of a serialised form, which it uses where it lies.
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
            return Err(Error::Damaged("a column has not as many headers as blocks"));
        }
        let room = residuals.len().checked_sub(PADDING).ok_or(Error::Damaged("a column has no room for residuals"))?;
        let summarised = (length.div_ceil(GROUP) + 1).checked_mul(SUMMARY_BYTES);
        if !summaries.is_empty() && Some(summaries.len()) != summarised {
            return Err(Error::Damaged("a column has not as many summaries as it should"));
        }
        for header in headers.chunks_exact(Header::bytes::<V>()) {
            // SAFETY: as many bytes.
            let header = unsafe { Header::read::<V>(header.as_ptr()) };
            let width = header.width as u32;
            let end = header.offset as u64 * 16 + 16 * width as u64;
            if width > WIDTH_MAX && width != 64 || end > room as u64 {
                return Err(Error::Damaged("a block's residuals are not in the column"));
            }
            if !(-63..=63).contains(&header.exponent) {
                return Err(Error::Damaged("a block's line is too steep"));
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
