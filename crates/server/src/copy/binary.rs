//! The binary format: a header, rows of values with their lengths, and an end mark.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryViewBuilder, BooleanBuilder, Date32Builder, Float64Builder, Int64Builder, StringViewBuilder,
    TimestampMicrosecondBuilder,
};
use bytes::Buf;
use keyaki::Value;

use super::SIGNATURE;
use crate::failure::{Failure, Result};
use crate::types::Oid;
use crate::values::{Format, parameters};

/// The signature, flags, and the length of an extension.
const HEADER: usize = SIGNATURE.len() + 8;
/// The end mark: a row with this number of values.
const END: i16 = -1;

/// A row, or what is in its place.
#[derive(Debug, PartialEq, Eq)]
pub enum Row {
    /// The row ends at this position.
    Complete(usize),
    /// The bytes end within the row.
    Incomplete,
    /// The end mark.
    End,
}

fn malformed(problem: &str) -> Failure {
    Failure::sql("22P04", problem)
}

/// The length of the header; `None` if there are too few bytes.
///
/// # Errors
/// 22P04 for other formats.
pub fn header(bytes: &[u8]) -> Result<Option<usize>> {
    if bytes.len() < HEADER {
        return match SIGNATURE.starts_with(&bytes[..bytes.len().min(SIGNATURE.len())]) {
            true => Ok(None),
            false => Err(malformed("COPY file signature not recognized")),
        };
    }
    let Some(mut rest) = bytes.strip_prefix(SIGNATURE) else {
        return Err(malformed("COPY file signature not recognized"));
    };
    let (flags, extension) = (rest.get_u32(), rest.get_u32() as usize);
    // The upper half is of flags that readers must know.
    if flags >> 16 != 0 {
        return Err(malformed("unrecognized critical flags in COPY file header"));
    }
    Ok((rest.len() >= extension).then_some(HEADER + extension))
}

/// Reads the row at the beginning of `bytes` into columns of these types.
///
/// # Errors
/// 22P04 for malformed rows; errors of values.
pub fn row(bytes: &[u8], oids: &[Oid], values: &mut Vec<Value>) -> Result<Row> {
    values.clear();
    let mut rest = bytes;
    if rest.len() < 2 {
        return Ok(Row::Incomplete);
    }
    let count = rest.get_i16();
    if count == END {
        return Ok(Row::End);
    }
    if usize::try_from(count) != Ok(oids.len()) {
        return Err(malformed(&format!("row field count is {count}, expected {}", oids.len())));
    }
    for (index, oid) in oids.iter().enumerate() {
        if rest.len() < 4 {
            return Ok(Row::Incomplete);
        }
        let len = rest.get_i32();
        let value = match usize::try_from(len) {
            Ok(len) if rest.len() < len => return Ok(Row::Incomplete),
            Ok(len) => {
                let (value, after) = rest.split_at(len);
                rest = after;
                Some(value)
            }
            Err(_) if len == -1 => None,
            Err(_) => return Err(malformed("invalid field size")),
        };
        values.push(parameters::value(value, *oid, Format::Binary, index + 1)?);
    }
    Ok(Row::Complete(bytes.len() - rest.len()))
}

/// A column of values of one type. Types without a builder of their own become texts, which are converted to the type of the
/// table's column.
pub enum Builder {
    Booleans(BooleanBuilder),
    Integers(Int64Builder),
    Floats(Float64Builder),
    Dates(Date32Builder),
    Timestamps(TimestampMicrosecondBuilder),
    Instants(TimestampMicrosecondBuilder),
    Bytes(BinaryViewBuilder),
    Texts(StringViewBuilder),
}

impl Builder {
    /// An empty column.
    pub fn new(oid: Oid) -> Builder {
        match oid {
            Oid::BOOL => Builder::Booleans(BooleanBuilder::new()),
            Oid::INT2 | Oid::INT4 | Oid::INT8 => Builder::Integers(Int64Builder::new()),
            Oid::FLOAT4 | Oid::FLOAT8 => Builder::Floats(Float64Builder::new()),
            Oid::DATE => Builder::Dates(Date32Builder::new()),
            Oid::TIMESTAMP => Builder::Timestamps(TimestampMicrosecondBuilder::new()),
            Oid::TIMESTAMPTZ => Builder::Instants(TimestampMicrosecondBuilder::new().with_timezone("+00:00")),
            Oid::BYTEA => Builder::Bytes(BinaryViewBuilder::new()),
            _ => Builder::Texts(StringViewBuilder::new()),
        }
    }

    /// Appends a value of the type.
    ///
    /// # Errors
    /// None but for bugs.
    pub fn push(&mut self, value: &Value) -> Result<()> {
        match (self, value) {
            (Builder::Booleans(values), Value::Boolean(value)) => values.append_value(*value),
            (Builder::Integers(values), Value::Integer(value)) => values.append_value(*value),
            (Builder::Floats(values), Value::Float(value)) => values.append_value(*value),
            (Builder::Dates(values), Value::Date(days)) => values.append_value(*days),
            (Builder::Timestamps(values), Value::Timestamp(micros)) => values.append_value(*micros),
            (Builder::Instants(values), Value::TimestampTz(micros)) => values.append_value(*micros),
            (Builder::Bytes(values), Value::Bytes(bytes)) => values.append_value(bytes),
            (Builder::Texts(values), Value::Null) => values.append_null(),
            (Builder::Texts(values), Value::Text(text)) => values.append_value(text),
            (Builder::Texts(values), value) => values.append_value(value.to_string()),
            (Builder::Booleans(values), Value::Null) => values.append_null(),
            (Builder::Integers(values), Value::Null) => values.append_null(),
            (Builder::Floats(values), Value::Null) => values.append_null(),
            (Builder::Dates(values), Value::Null) => values.append_null(),
            (Builder::Timestamps(values) | Builder::Instants(values), Value::Null) => values.append_null(),
            (Builder::Bytes(values), Value::Null) => values.append_null(),
            _ => return Err(malformed("incorrect binary data format")),
        }
        Ok(())
    }

    /// The values.
    pub fn finish(&mut self) -> ArrayRef {
        match self {
            Builder::Booleans(values) => Arc::new(values.finish()),
            Builder::Integers(values) => Arc::new(values.finish()),
            Builder::Floats(values) => Arc::new(values.finish()),
            Builder::Dates(values) => Arc::new(values.finish()),
            Builder::Timestamps(values) | Builder::Instants(values) => Arc::new(values.finish()),
            Builder::Bytes(values) => Arc::new(values.finish()),
            Builder::Texts(values) => Arc::new(values.finish()),
        }
    }
}
