//! Order-preserving encoding of key columns: comparing encodings as bytes compares keys column by column.
//!
//! A key is the concatenation of its columns' encodings:
//!
//! | part | bytes |
//! |---|---|
//! | marker, of nullable columns only | `00` null (nothing follows), `01` a value follows |
//! | boolean | `00`, `01` |
//! | integer, date, time, timestamp | big endian in the type's own width, sign bit flipped |
//! | decimal | 16 bytes, big endian, sign bit flipped |
//! | UUID | its 16 bytes |
//! | float | big endian IEEE bits; sign bit flipped if it is clear, else all bits flipped (IEEE total order) |
//! | text, bytes | every `00` as `00 ff`, then `00 00` |
//!
//! No encoding of a value is a proper prefix of the encoding of another value of the column. The end of each column is
//! therefore known, and the encoding of leading columns is a prefix of whole keys. Each value has exactly one encoding,
//! and decoding restores it bit by bit.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;

use super::ColumnBuilder;
use super::page::key_hash;
use super::scalar::{Scalar, Values, fixed_len};
use crate::base::{Column, ColumnType, Error, Result, Schema};

/// Encodes and decodes the key columns of one schema. Comparing encodings as bytes compares keys. The encoding of the
/// first n columns is a prefix of the encoding of the whole key.
#[derive(Debug, Clone)]
pub struct KeyCodec {
    columns: Arc<[Column]>,
}

impl KeyCodec {
    /// The codec for the key columns of `schema`.
    pub fn new(schema: &Schema) -> Self {
        KeyCodec { columns: schema.columns()[..schema.key_columns()].into() }
    }

    /// Checks that the arrays have the Arrow types of the key columns, and no nulls in columns that are not nullable.
    ///
    /// # Errors
    /// [`Error::ColumnType`], [`Error::NullValue`].
    pub fn check(&self, columns: &[ArrayRef]) -> Result<()> {
        self.columns.iter().zip(columns).try_for_each(|(column, array)| column.check(array))
    }

    /// Appends the encoding of row `row` of the first `columns.len()` key columns to `out`. Fewer arrays than key
    /// columns give a prefix of the key, further arrays are ignored. A null in a column that is not nullable appends
    /// nothing, which makes the key invalid (see [`KeyCodec::check`]).
    ///
    /// # Panics
    /// If an array does not have the Arrow type of its column.
    pub fn encode(&self, columns: &[ArrayRef], row: usize, out: &mut Vec<u8>) {
        for (column, array) in self.columns.iter().zip(columns) {
            put_key(column, Values::new(array, column.ty).get(row), out);
        }
    }

    /// Returns an encoder for many rows of the same arrays; see [`KeyCodec::encode`].
    ///
    /// # Panics
    /// If an array does not have the Arrow type of its column.
    pub fn encoder<'a>(&'a self, columns: &'a [ArrayRef]) -> KeyEncoder<'a> {
        let values = |(column, array): (&'a Column, &'a ArrayRef)| (column, Values::new(array, column.ty));
        KeyEncoder { columns: self.columns.iter().zip(columns).map(values).collect() }
    }

    /// Encodes the rows `rows`. Returns the concatenated encodings and `rows.len() + 1` offsets: the start of each
    /// encoding, then the end of the last one.
    ///
    /// # Panics
    /// As [`KeyCodec::encode`].
    pub fn encode_batch(&self, columns: &[ArrayRef], rows: Range<usize>) -> (Vec<u8>, Vec<usize>) {
        let encoder = self.encoder(columns);
        let mut out = Vec::with_capacity(rows.len() * self.len_estimate(columns));
        let mut offsets = Vec::with_capacity(rows.len() + 1);
        offsets.push(0);
        for row in rows {
            encoder.encode(row, &mut out);
            offsets.push(out.len());
        }
        (out, offsets)
    }

    /// Appends the hash of the encoded key of each of the rows, for filters.
    ///
    /// # Panics
    /// As [`KeyCodec::encode`].
    pub(crate) fn hashes(&self, columns: &[ArrayRef], rows: Range<usize>, hashes: &mut Vec<u64>) {
        let (encoder, mut key) = (self.encoder(columns), Vec::new());
        hashes.extend(rows.map(|row| {
            key.clear();
            encoder.encode(row, &mut key);
            key_hash(&key)
        }));
    }

    fn len_estimate(&self, columns: &[ArrayRef]) -> usize {
        let len = |(column, _): (&Column, &ArrayRef)| fixed_len(column.ty).unwrap_or(24) + usize::from(column.nullable);
        self.columns.iter().zip(columns).map(len).sum()
    }

    /// Checks that `key` is the encoding of a key.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] if it is not.
    pub fn check_encoded(&self, key: &[u8]) -> Result<()> {
        let mut rest = key;
        for column in &*self.columns {
            let value = take_key(column, &mut rest).ok_or_else(|| invalid(key))?;
            if column.ty == ColumnType::Text && !value.is_text() {
                return Err(invalid(key));
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(invalid(key)) }
    }

    /// Length of the encoding of the first `columns` columns at the front of `key`, which may be a part of a key; `None`
    /// if it ends before.
    pub fn prefix_len(&self, key: &[u8], columns: usize) -> Option<usize> {
        let mut rest = key;
        for column in &self.columns[..columns] {
            skip_key(column, &mut rest)?;
        }
        Some(key.len() - rest.len())
    }

    /// Decodes key column `column` of `key` and appends it.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] if `key` is not the encoding of a key. Columns behind the decoded one are not checked.
    pub fn append_to(&self, key: &[u8], column: usize, builder: &mut ColumnBuilder) -> Result<()> {
        self.append_columns(key, &[column], std::slice::from_mut(builder))
    }

    /// Decodes key column `column` of each of `keys` and appends it.
    ///
    /// # Errors
    /// As [`KeyCodec::append_to`]. The values of earlier keys stay appended.
    pub(crate) fn append_rows<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        column: usize,
        builder: &mut ColumnBuilder,
    ) -> Result<()> {
        let (before, wanted) = (&self.columns[..column], &self.columns[column]);
        // The offset of the column, if it is the same in all keys.
        let fixed = |column: &Column| fixed_len(column.ty).filter(|_| !column.nullable);
        let start = before.iter().map(fixed).sum::<Option<usize>>();
        if let (Some(start), Some(len @ 1..=8)) = (start, fixed(wanted)) {
            return append_words(keys, start..start + len, wanted.ty, builder);
        }
        for key in keys {
            let mut rest = key;
            match start {
                Some(start) => rest = key.get(start..).ok_or_else(|| invalid(key))?,
                None => {
                    for column in before {
                        skip_key(column, &mut rest).ok_or_else(|| invalid(key))?;
                    }
                }
            }
            let value = take_key(wanted, &mut rest).ok_or_else(|| invalid(key))?;
            value.append_to(builder).ok_or_else(|| invalid(key))?;
        }
        Ok(())
    }

    /// Decodes the key columns `columns` (ascending) of `key` and appends each to its builder.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] if `key` is not the encoding of a key. Columns behind the last decoded one are not
    /// checked. The lengths of the builders may then differ by one.
    ///
    /// # Panics
    /// If `columns` does not ascend, or contains a column that is not part of the key.
    pub fn append_columns(&self, key: &[u8], columns: &[usize], builders: &mut [ColumnBuilder]) -> Result<()> {
        let mut rest = key;
        let mut decoded = 0;
        for (&wanted, builder) in columns.iter().zip(builders) {
            assert!(wanted >= decoded && wanted < self.columns.len(), "key columns {columns:?} are not ascending");
            for column in &self.columns[decoded..wanted] {
                take_key(column, &mut rest).ok_or_else(|| invalid(key))?;
            }
            let value = take_key(&self.columns[wanted], &mut rest).ok_or_else(|| invalid(key))?;
            decoded = wanted + 1;
            value.append_to(builder).ok_or_else(|| invalid(key))?;
        }
        if decoded == self.columns.len() && !rest.is_empty() {
            return Err(invalid(key));
        }
        Ok(())
    }
}

/// Encodes the keys of many rows of the same arrays; made by [`KeyCodec::encoder`].
#[derive(Debug)]
pub struct KeyEncoder<'a> {
    columns: Vec<(&'a Column, Values<'a>)>,
}

impl KeyEncoder<'_> {
    /// Appends the encoding of row `row` to `out`.
    ///
    /// # Panics
    /// If `row` is out of bounds.
    pub fn encode(&self, row: usize, out: &mut Vec<u8>) {
        for (column, values) in &self.columns {
            put_key(column, values.get(row), out);
        }
    }
}

pub(crate) fn invalid(key: &[u8]) -> Error {
    Error::InvalidKey { len: key.len(), start: key[..key.len().min(64)].to_vec() }
}

/// Appends the encoding of `value`, which must have the type of the column. A null in a column that is not nullable
/// appends nothing.
pub(crate) fn put_key(column: &Column, value: Scalar<'_>, out: &mut Vec<u8>) {
    if column.nullable {
        out.push(u8::from(value != Scalar::Null));
    }
    match value {
        Scalar::Null => (),
        Scalar::Word(word) => {
            let ordered = ordered_word(column.ty, word);
            match fixed_len(column.ty) {
                Some(1) => out.push(ordered as u8),
                Some(2) => out.extend_from_slice(&(ordered as u16).to_be_bytes()),
                Some(4) => out.extend_from_slice(&(ordered as u32).to_be_bytes()),
                _ => out.extend_from_slice(&ordered.to_be_bytes()),
            }
        }
        Scalar::Wide(wide) => out.extend_from_slice(&ordered_wide(wide).to_be_bytes()),
        Scalar::Bytes(head, tail) => put_bytes_key([head, tail], out),
    }
}

/// Encodes a non-null value of a text or bytes column, which is the concatenation of `parts`.
pub(super) fn put_bytes_key(parts: [&[u8]; 2], out: &mut Vec<u8>) {
    parts.into_iter().for_each(|part| put_escaped(part, out));
    out.extend_from_slice(&[0, 0]);
}

fn put_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        if has_zero(u64::from_ne_bytes(*word)) {
            let (mut escaped, mut len) = ([0xff; 16], 0);
            for &byte in word {
                escaped[len & 15] = byte;
                len += 1 + usize::from(byte == 0);
            }
            out.extend_from_slice(&escaped[..len]);
        } else {
            out.extend_from_slice(word);
        }
    }
    for &byte in rest {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
}

/// True if one of the bytes is zero.
fn has_zero(word: u64) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = LOW << 7;
    // The subtraction sets the high bit of a zero byte. Bytes that had it before do not count.
    word.wrapping_sub(LOW) & !word & HIGH != 0
}

/// Maps a word to an unsigned number of the type's width with the same order as the values.
pub(crate) fn ordered_word(ty: ColumnType, word: i64) -> u64 {
    match ty {
        ColumnType::Boolean => (word & 1) as u64,
        ColumnType::Int8 => u64::from(word as u8 ^ 1 << 7),
        ColumnType::Int16 => u64::from(word as u16 ^ 1 << 15),
        ColumnType::Int32 | ColumnType::Date => u64::from(word as u32 ^ 1 << 31),
        ColumnType::Float32 => {
            let bits = word as u32;
            u64::from(if bits >> 31 == 0 { bits ^ 1 << 31 } else { !bits })
        }
        ColumnType::Float64 => {
            let bits = word as u64;
            if bits >> 63 == 0 { bits ^ 1 << 63 } else { !bits }
        }
        _ => word as u64 ^ 1 << 63,
    }
}

/// The inverse of [`ordered_word`].
pub(crate) fn word_of_ordered(ty: ColumnType, ordered: u64) -> i64 {
    match ty {
        ColumnType::Boolean => ordered as i64,
        ColumnType::Int8 => (ordered as u8 ^ 1 << 7) as i8 as i64,
        ColumnType::Int16 => (ordered as u16 ^ 1 << 15) as i16 as i64,
        ColumnType::Int32 | ColumnType::Date => (ordered as u32 ^ 1 << 31) as i32 as i64,
        ColumnType::Float32 => {
            let ordered = ordered as u32;
            (if ordered >> 31 == 1 { ordered ^ 1 << 31 } else { !ordered }) as i32 as i64
        }
        ColumnType::Float64 => (if ordered >> 63 == 1 { ordered ^ 1 << 63 } else { !ordered }) as i64,
        _ => (ordered ^ 1 << 63) as i64,
    }
}

/// Maps a decimal to an unsigned number with the same order.
pub(crate) fn ordered_wide(wide: i128) -> u128 {
    wide as u128 ^ 1 << 127
}

/// A decoded value.
enum Decoded<'a> {
    Scalar(Scalar<'static>),
    Bytes(Cow<'a, [u8]>),
}

impl Decoded<'_> {
    /// Returns false for bytes that are not valid UTF-8.
    fn is_text(&self) -> bool {
        match self {
            Decoded::Scalar(_) => true,
            Decoded::Bytes(bytes) => std::str::from_utf8(bytes).is_ok(),
        }
    }

    /// Appends the value. Returns `None` and appends nothing if the builder is of text and the value is not valid
    /// UTF-8.
    fn append_to(&self, builder: &mut ColumnBuilder) -> Option<()> {
        let value = match self {
            Decoded::Scalar(scalar) => *scalar,
            Decoded::Bytes(bytes) => {
                if builder.column_type() == ColumnType::Text && !self.is_text() {
                    return None;
                }
                Scalar::Bytes(bytes, &[])
            }
        };
        // SAFETY: text is checked above to be valid UTF-8.
        unsafe { builder.push(value) };
        Some(())
    }
}

/// Splits the encoding of a value of `column` off the front of `rest` and decodes it; `None` if it is invalid.
fn take_key<'a>(column: &Column, rest: &mut &'a [u8]) -> Option<Decoded<'a>> {
    if column.nullable {
        match rest.split_off_first()? {
            0 => return Some(Decoded::Scalar(Scalar::Null)),
            1 => (),
            _ => return None,
        }
    }
    let Some(len) = fixed_len(column.ty) else {
        return take_escaped(rest).map(Decoded::Bytes);
    };
    let bytes = rest.split_off(..len)?;
    if let Some(wide) = bytes.first_chunk::<16>() {
        return Some(Decoded::Scalar(Scalar::Wide((u128::from_be_bytes(*wide) ^ 1 << 127) as i128)));
    }
    let ordered = ordered_number(bytes);
    match column.ty {
        ColumnType::Boolean if ordered > 1 => None,
        ty => Some(Decoded::Scalar(Scalar::Word(word_of_ordered(ty, ordered)))),
    }
}

/// The big-endian number of up to eight bytes.
#[inline]
fn ordered_number(bytes: &[u8]) -> u64 {
    if let Ok(bytes) = bytes.try_into() {
        u64::from_be_bytes(bytes)
    } else if let Ok(bytes) = bytes.try_into() {
        u64::from(u32::from_be_bytes(bytes))
    } else {
        bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

/// Appends the values of a fixed-length column of type `ty` that has the same byte range in all keys.
fn append_words<'k>(
    keys: impl Iterator<Item = &'k [u8]>,
    place: Range<usize>,
    ty: ColumnType,
    builder: &mut ColumnBuilder,
) -> Result<()> {
    for key in keys {
        let bytes = key.get(place.clone()).ok_or_else(|| invalid(key))?;
        let ordered = ordered_number(bytes);
        if ty == ColumnType::Boolean && ordered > 1 {
            return Err(invalid(key));
        }
        // SAFETY: the value is a number, not text.
        unsafe { builder.push(Scalar::Word(word_of_ordered(ty, ordered))) };
    }
    Ok(())
}

/// Skips the encoding of a value of `column` at the front of `rest`; `None` if it is invalid.
fn skip_key(column: &Column, rest: &mut &[u8]) -> Option<()> {
    match fixed_len(column.ty) {
        Some(len) if !column.nullable => rest.split_off(..len).map(drop),
        _ => take_key(column, rest).map(drop),
    }
}

/// Splits escaped bytes and their terminator off the front of `rest` and returns them unescaped; `None` if they are
/// invalid.
pub(crate) fn take_escaped<'a>(rest: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let mut plain = Cow::Borrowed(&rest[..0]);
    loop {
        let zero = rest.iter().position(|&byte| byte == 0)?;
        let (part, follows) = (&rest[..zero], *rest.get(zero + 1)?);
        *rest = &rest[zero + 2..];
        if plain.is_empty() && follows == 0 {
            return Some(Cow::Borrowed(part));
        }
        plain.to_mut().extend_from_slice(part);
        match follows {
            0 => return Some(plain),
            0xff => plain.to_mut().push(0),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use keyaki_primitives::Random;

    use super::*;

    #[test]
    fn zeros_are_escaped() {
        let mut random = Random::new(5);
        for len in (0..40).chain([1000]) {
            for limit in [2, 3, 200, 256] {
                let bytes: Vec<u8> = (0..len).map(|_| random.below(limit) as u8).collect();
                let expected: Vec<u8> =
                    bytes.iter().flat_map(|&byte| if byte == 0 { vec![0, 0xff] } else { vec![byte] }).collect();
                let mut escaped = Vec::new();
                put_escaped(&bytes, &mut escaped);
                assert_eq!(escaped, expected, "{bytes:?}");
                escaped.extend_from_slice(&[0, 0]);
                assert_eq!(take_escaped(&mut &escaped[..]).unwrap(), bytes);
            }
        }
    }
}
