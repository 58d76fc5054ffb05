//! The encoding of a schema, in the log and in the node table.
//!
//! ```text
//! key columns: u15, sampled: u1, column count: u16, columns:
//!   name length: u32, name, type code (3 bytes), flags: u8 (1 nullable, 2 has a missing value; of
//!   the first column: 4 pages are not compressed, 8 compressed with Zstandard),
//!   with flag 2: length: u32, missing value
//! ```
//!
//! Numbers are little endian.

use super::missing::{is_missing_value, missing_limit};
use crate::base::{Column, ColumnType, Compression, KEY_COLUMNS_MAX, Malformed, Reader, Schema};

/// Maximum number of columns of a tree. A run page stores two more columns and counts them all in two bytes.
pub(crate) const COLUMNS_MAX: usize = u16::MAX as usize - 2;

/// Bit of the number of key columns that is set for a sampled tree.
const SAMPLED: u16 = 1 << 15;
const _: () = assert!(KEY_COLUMNS_MAX < SAMPLED as usize);

/// Flags of a column.
const NULLABLE: u8 = 1;
const HAS_MISSING_VALUE: u8 = 2;
/// Flags of the first column.
const NOT_COMPRESSED: u8 = 4;
const ZSTD: u8 = 8;

/// Appends the encoding of a schema.
pub(crate) fn encode_schema(schema: &Schema, out: &mut Vec<u8>) {
    let sampled = if schema.is_sampled() { SAMPLED } else { 0 };
    out.extend_from_slice(&(schema.key_columns() as u16 | sampled).to_le_bytes());
    out.extend_from_slice(&(schema.columns().len() as u16).to_le_bytes());
    for (i, column) in schema.columns().iter().enumerate() {
        out.extend_from_slice(&(column.name.len() as u32).to_le_bytes());
        out.extend_from_slice(column.name.as_bytes());
        out.extend_from_slice(&column.ty.code());
        let (nullable, missing) = (if column.nullable { NULLABLE } else { 0 }, schema.missing(i));
        let compression = match schema.compression() {
            Compression::None if i == 0 => NOT_COMPRESSED,
            Compression::Zstd if i == 0 => ZSTD,
            _ => 0,
        };
        out.push(nullable | compression | if missing.is_some() { HAS_MISSING_VALUE } else { 0 });
        if let Some(value) = missing {
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            out.extend_from_slice(value);
        }
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
    let mut compression = Compression::default();
    let (mut columns, mut missing) = (Vec::with_capacity(count.min(1024)), Vec::new());
    for i in 0..count {
        let name = String::from_utf8(reader.string()?.to_vec())
            .map_err(|_| reader.malformed("column name is not valid UTF-8"))?;
        let code = [reader.u8()?, reader.u8()?, reader.u8()?];
        let Some(ty) = ColumnType::of_code(code) else {
            let [number, precision, scale] = code;
            return Err(reader.malformed(format!("unknown column type {number} ({precision}, {})", scale as i8)));
        };
        if i < key_columns && ty.is_list() {
            return Err(reader.malformed("key column of lists"));
        }
        let flags = reader.u8()?;
        match flags & !(NULLABLE | HAS_MISSING_VALUE) {
            0 => {}
            NOT_COMPRESSED if i == 0 => compression = Compression::None,
            ZSTD if i == 0 => compression = Compression::Zstd,
            _ => return Err(reader.malformed(format!("unknown flags {flags} of a column"))),
        }
        if flags & HAS_MISSING_VALUE != 0 {
            let value = reader.string()?;
            if i < key_columns || !is_missing_value(value, ty) {
                let len = value.len();
                let limit = missing_limit(ty);
                return Err(reader.malformed(format!("invalid missing value of {len} bytes (at most {limit})")));
            }
            missing.push((i, value.into()));
        }
        columns.push(Column { name, ty, nullable: flags & NULLABLE != 0 });
    }
    let schema = Schema::new(columns, key_columns).compressed(compression).with_encoded_missing(missing);
    Ok(if is_sampled { schema.sampled() } else { schema })
}
