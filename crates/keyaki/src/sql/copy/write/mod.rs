//! Writers of files.

mod parquet;
mod text;

use std::fs::File;
use std::path::Path;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};

use super::options::{CopyOptions, Format};
use crate::{Error, Result};

/// A file being written.
pub(super) trait Sink {
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;
    /// Writes what is left and gives the file back.
    fn finish(self: Box<Self>) -> Result<File>;
}

/// `path`: what the file will be called, which tells the format.
pub(super) fn open(path: &Path, file: File, options: &CopyOptions, schema: &SchemaRef) -> Result<Box<dyn Sink>> {
    let (format, dialect) = options.resolve(path, true)?;
    Ok(match format {
        Format::Parquet => Box::new(parquet::ParquetSink::new(file, options, schema)?),
        Format::Json => Box::new(text::TextSink::json(file, schema)?),
        Format::Csv => Box::new(text::TextSink::delimited(file, schema, dialect, options.header.unwrap_or(true))?),
        Format::Tbl => Box::new(text::TextSink::delimited(file, schema, dialect, false)?),
    })
}

/// The type of a table column that can hold values of a query's column; none if there is none.
fn column_type(ty: &DataType) -> Option<DataType> {
    Some(match ty {
        DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Decimal128(_, 0..)
        | DataType::Utf8View
        | DataType::BinaryView
        | DataType::Date32
        | DataType::Timestamp(TimeUnit::Microsecond, None) => ty.clone(),
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => DataType::Int64,
        DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Float16 => DataType::Float32,
        DataType::Decimal32(precision, scale @ 0..) | DataType::Decimal64(precision, scale @ 0..) => {
            DataType::Decimal128(*precision, *scale)
        }
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => DataType::BinaryView,
        DataType::Date64 => DataType::Date32,
        DataType::Timestamp(_, None) => DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Timestamp(_, Some(_)) => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
        DataType::Dictionary(_, values) => return column_type(values),
        // NULL without a type, times of the day, intervals: as text.
        DataType::Null | DataType::Time32(_) | DataType::Time64(_) | DataType::Interval(_) | DataType::Duration(_) => {
            DataType::Utf8View
        }
        _ => return None,
    })
}

/// A column as one of [`column_type`].
fn convert(column: &ArrayRef, name: &str) -> Result<ArrayRef> {
    match column_type(column.data_type()) {
        Some(ty) if ty == *column.data_type() => Ok(column.clone()),
        Some(ty) => Ok(cast(column, &ty)?),
        None => Err(unsupported(name, column.data_type())),
    }
}

fn unsupported(column: &str, ty: &DataType) -> Error {
    Error::Unsupported(format!("column \"{column}\" of type {} in COPY TO", crate::base::type_name(ty)))
}
