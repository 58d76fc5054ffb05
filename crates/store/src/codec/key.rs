//! Order-preserving encoding of key columns: comparing encodings as bytes compares keys column by column.
//!
//! Per column: a marker (0 null, 1 value) if it is nullable; then the value: integers big-endian with the sign bit flipped;
//! floats with the sign bit flipped, or all bits if negative; text and bytes with 0xff after each zero byte and two zero
//! bytes at the end.

use arrow_array::ArrayRef;

use super::ColumnBuilder;
use super::scalar::{Scalar, fixed_len, scalar_at};
use crate::{Column, ColumnType, Error, Result, Schema};

/// Encodes and decodes the key columns of one schema. The encoding of the first n columns is a prefix of the encoding of
/// more columns, and no column's encoding is a proper prefix of another value's encoding of that column.
#[derive(Debug, Clone)]
pub struct KeyCodec {
    schema: Schema,
}

impl KeyCodec {
    pub fn new(schema: &Schema) -> Self {
        KeyCodec { schema: schema.clone() }
    }

    /// Appends the encoding of row `row` of the first `columns.len()` key columns to `out`. The arrays must have the
    /// key columns' Arrow types; fewer columns than the key has give a prefix.
    pub fn encode(&self, columns: &[ArrayRef], row: usize, out: &mut Vec<u8>) {
        debug_assert!(columns.len() <= self.schema.key_columns(), "more columns than the key has");
        for (column, array) in self.schema.columns().iter().zip(columns) {
            encode_scalar(column, scalar_at(array, column.ty, row), out);
        }
    }

    /// Decodes key column `column` of `key` and appends it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `key` is not an encoding of this key.
    pub fn append_to(&self, key: &[u8], column: usize, builder: &mut ColumnBuilder) -> Result<()> {
        let mut rest = key;
        for skipped in &self.schema.columns()[..column] {
            rest = skip(skipped, rest).ok_or_else(invalid)?;
        }
        append_value(&self.schema.columns()[column], rest, builder)
    }
}

fn invalid() -> Error {
    Error::Invalid("not a key of this tree".into())
}

pub(crate) fn encode_scalar(column: &Column, value: Scalar<'_>, out: &mut Vec<u8>) {
    if column.nullable {
        out.push(u8::from(value != Scalar::Null));
    }
    match value {
        Scalar::Null => {}
        Scalar::Word(word) => {
            let len = fixed_len(column.ty).unwrap_or(8);
            let ordered = order_word(column.ty, word);
            out.extend_from_slice(&ordered.to_be_bytes()[8 - len..]);
        }
        Scalar::Wide(wide) => out.extend_from_slice(&(wide as u128 ^ 1 << 127).to_be_bytes()),
        Scalar::Bytes(bytes) => {
            let mut rest = bytes;
            while let Some(zero) = rest.iter().position(|&byte| byte == 0) {
                out.extend_from_slice(&rest[..=zero]);
                out.push(0xff);
                rest = &rest[zero + 1..];
            }
            out.extend_from_slice(rest);
            out.extend_from_slice(&[0, 0]);
        }
    }
}

/// The low bytes of the result, big-endian, sort as the values do. Its own inverse but for negative floats.
fn order_word(ty: ColumnType, word: i64) -> u64 {
    let bits = fixed_len(ty).unwrap_or(8) * 8;
    let sign = 1u64 << (bits - 1);
    let word = word as u64;
    match ty {
        ColumnType::Boolean => word,
        ColumnType::Float32 | ColumnType::Float64 if word & sign != 0 => !word,
        _ => word ^ sign,
    }
}

/// Decodes a fixed-length value (without marker) from the front of `bytes`.
pub(crate) fn decode_word(ty: ColumnType, bytes: &[u8]) -> Option<i64> {
    let len = fixed_len(ty).filter(|len| *len <= 8)?;
    let mut word = [0; 8];
    word[8 - len..].copy_from_slice(bytes.get(..len)?);
    let ordered = u64::from_be_bytes(word);
    let bits = len * 8;
    let sign = 1u64 << (bits - 1);
    let word = match ty {
        ColumnType::Boolean => ordered,
        ColumnType::Float32 | ColumnType::Float64 if ordered & sign == 0 => !ordered,
        _ => ordered ^ sign,
    };
    // Sign extension from the type's length.
    Some((word << (64 - bits)) as i64 >> (64 - bits))
}

/// What follows the first column of `key`.
fn skip<'a>(column: &Column, key: &'a [u8]) -> Option<&'a [u8]> {
    let rest = match (column.nullable, key) {
        (false, key) => key,
        (true, [0, rest @ ..]) => return Some(rest),
        (true, [1, rest @ ..]) => rest,
        _ => return None,
    };
    skip_value(column.ty, rest)
}

fn skip_value(ty: ColumnType, rest: &[u8]) -> Option<&[u8]> {
    match fixed_len(ty) {
        Some(len) => rest.get(len..),
        None => {
            let mut at = 0;
            loop {
                at += rest.get(at..)?.iter().position(|&byte| byte == 0)? + 1;
                match rest.get(at)? {
                    0 => return rest.get(at + 1..),
                    0xff => at += 1,
                    _ => return None,
                }
            }
        }
    }
}

fn append_value(column: &Column, key: &[u8], builder: &mut ColumnBuilder) -> Result<()> {
    let rest = match (column.nullable, key) {
        (false, key) => key,
        (true, [0, ..]) => return builder.append_scalar(Scalar::Null),
        (true, [1, rest @ ..]) => rest,
        _ => return Err(invalid()),
    };
    match column.ty {
        ColumnType::Decimal { .. } => {
            let bytes = rest.first_chunk::<16>().ok_or_else(invalid)?;
            builder.append_scalar(Scalar::Wide((u128::from_be_bytes(*bytes) ^ 1 << 127) as i128))
        }
        ColumnType::Text | ColumnType::Bytes => {
            let after = skip_value(column.ty, rest).ok_or_else(invalid)?;
            let escaped = &rest[..rest.len() - after.len() - 2];
            if !escaped.contains(&0) {
                return builder.append_scalar(Scalar::Bytes(escaped));
            }
            let mut value = Vec::with_capacity(escaped.len());
            let mut bytes = escaped.iter();
            while let Some(&byte) = bytes.next() {
                value.push(byte);
                if byte == 0 {
                    bytes.next();
                }
            }
            builder.append_scalar(Scalar::Bytes(&value))
        }
        ty => builder.append_scalar(Scalar::Word(decode_word(ty, rest).ok_or_else(invalid)?)),
    }
}
