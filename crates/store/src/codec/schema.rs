//! The encoding of a schema, in the log and in the node table.
//!
//! ```text
//! key columns: u15, sampled: u1, column count: u16, columns: name length: u32, name, type: u8, precision: u8, scale: u8, nullable: u8
//! ```
//!
//! Numbers are little endian.

use crate::base::{Column, ColumnType, KEY_COLUMNS_MAX, Malformed, Reader, Schema};

/// Maximum number of columns of a tree. A run page stores two more columns and counts them all in two bytes.
pub(crate) const COLUMNS_MAX: usize = u16::MAX as usize - 2;

/// Bit of the number of key columns that is set for a sampled tree.
const SAMPLED: u16 = 1 << 15;
const _: () = assert!(KEY_COLUMNS_MAX < SAMPLED as usize);

/// Appends the encoding of a schema.
pub(crate) fn encode_schema(schema: &Schema, out: &mut Vec<u8>) {
    let sampled = if schema.is_sampled() { SAMPLED } else { 0 };
    out.extend_from_slice(&(schema.key_columns() as u16 | sampled).to_le_bytes());
    out.extend_from_slice(&(schema.columns().len() as u16).to_le_bytes());
    for column in schema.columns() {
        out.extend_from_slice(&(column.name.len() as u32).to_le_bytes());
        out.extend_from_slice(column.name.as_bytes());
        let (tag, precision, scale) = match column.ty {
            ColumnType::Boolean => (1, 0, 0),
            ColumnType::Int8 => (2, 0, 0),
            ColumnType::Int16 => (3, 0, 0),
            ColumnType::Int32 => (4, 0, 0),
            ColumnType::Int64 => (5, 0, 0),
            ColumnType::Float32 => (6, 0, 0),
            ColumnType::Float64 => (7, 0, 0),
            ColumnType::Decimal { precision, scale } => (8, precision, scale as u8),
            ColumnType::Text => (9, 0, 0),
            ColumnType::Bytes => (10, 0, 0),
            ColumnType::Date => (11, 0, 0),
            ColumnType::Timestamp { utc: false } => (12, 0, 0),
            ColumnType::Timestamp { utc: true } => (13, 0, 0),
            ColumnType::Time => (14, 0, 0),
            ColumnType::Uuid => (15, 0, 0),
            ColumnType::Interval => (16, 0, 0),
        };
        out.extend_from_slice(&[tag, precision, scale, u8::from(column.nullable)]);
    }
}

/// Decodes a schema.
///
/// # Errors
/// [`Malformed`] if the bytes are not the encoding of a schema.
pub(crate) fn decode_schema(reader: &mut Reader<'_>) -> Result<Schema, Malformed> {
    let key_columns = reader.u16()?;
    let (key_columns, is_sampled) = (usize::from(key_columns & !SAMPLED), key_columns & SAMPLED != 0);
    let count = usize::from(reader.u16()?);
    if key_columns == 0 || key_columns > count || count > COLUMNS_MAX {
        return Err(reader.malformed(format!("{key_columns} key columns of {count} columns (at most {COLUMNS_MAX})")));
    }
    let mut columns = Vec::with_capacity(count.min(1024));
    for _ in 0..count {
        let name = String::from_utf8(reader.string()?.to_vec())
            .map_err(|_| reader.malformed("column name is not valid UTF-8"))?;
        let ty = match (reader.u8()?, reader.u8()?, reader.u8()? as i8) {
            (1, 0, 0) => ColumnType::Boolean,
            (2, 0, 0) => ColumnType::Int8,
            (3, 0, 0) => ColumnType::Int16,
            (4, 0, 0) => ColumnType::Int32,
            (5, 0, 0) => ColumnType::Int64,
            (6, 0, 0) => ColumnType::Float32,
            (7, 0, 0) => ColumnType::Float64,
            (8, precision @ 1..=38, scale) if scale >= -38 && i16::from(scale) <= i16::from(precision) => {
                ColumnType::Decimal { precision, scale }
            }
            (9, 0, 0) => ColumnType::Text,
            (10, 0, 0) => ColumnType::Bytes,
            (11, 0, 0) => ColumnType::Date,
            (12, 0, 0) => ColumnType::Timestamp { utc: false },
            (13, 0, 0) => ColumnType::Timestamp { utc: true },
            (14, 0, 0) => ColumnType::Time,
            (15, 0, 0) => ColumnType::Uuid,
            (16, 0, 0) => ColumnType::Interval,
            (tag, precision, scale) => {
                return Err(reader.malformed(format!("unknown column type {tag} ({precision}, {scale})")));
            }
        };
        let nullable = match reader.u8()? {
            0 => false,
            1 => true,
            other => return Err(reader.malformed(format!("invalid nullable flag {other}, expected 0 or 1"))),
        };
        columns.push(Column { name, ty, nullable });
    }
    let schema = Schema::new(columns, key_columns);
    Ok(if is_sampled { schema.sampled() } else { schema })
}
