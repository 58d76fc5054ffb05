//! The encoding of a schema, in the log and in the node table.
//!
//! ```text
//! key columns: u15, sampled: u1, column count: u16, columns: name length: u32, name, type code (3 bytes), nullable: u8
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
        out.extend_from_slice(&column.ty.code());
        out.push(u8::from(column.nullable));
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
