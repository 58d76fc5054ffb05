//! Formats of COPY TO, behind the trait [`Sink`].

mod compressed;
mod parquet;
mod text;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, TimeUnit};

pub(super) use compressed::TextFile;
pub(super) use parquet::ParquetSink;
pub(super) use text::{TextEncoder, TextSink};

use super::output::Target;
use crate::base::arrays::{element_type, is_list, list_of};
use crate::base::intervals::{INTERVAL, is_interval};
use crate::base::uuids::is_uuid;
use crate::values::cast::cast;
use crate::values::zone::Zone;
use crate::{Error, Result};

/// Rows of a query in the form that a sink takes.
pub(super) trait Part: Send + 'static {
    fn rows(&self) -> u64;
}

impl Part for RecordBatch {
    fn rows(&self) -> u64 {
        self.num_rows() as u64
    }
}

/// Writes rows to a file.
pub(super) trait Sink {
    type Part: Part;
    /// Writes rows, or buffers them.
    fn write(&mut self, part: &Self::Part) -> Result<()>;
    /// Writes buffered rows and the end of the format, and returns the target, not yet synced.
    fn finish(self) -> Result<Target>;
}

/// The type of a table column that can hold the values of a query's column of type `ty`; `None` if there is none.
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
        ty if is_uuid(ty) => ty.clone(),
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time64(TimeUnit::Microsecond),
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => DataType::BinaryView,
        DataType::Date64 => DataType::Date32,
        DataType::Timestamp(_, None) => DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Timestamp(_, Some(_)) => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
        DataType::Dictionary(_, values) => return column_type(values),
        DataType::Interval(_) | DataType::Duration(_) => INTERVAL,
        ty if is_list(ty) => list_of(column_type(element_type(ty)?)?),
        // Untyped NULL is written as text.
        DataType::Null => DataType::Utf8View,
        _ => return None,
    })
}

/// Casts a column to its [`column_type`].
pub(super) fn convert(column: &ArrayRef, name: &str) -> Result<ArrayRef> {
    match column_type(column.data_type()) {
        Some(ty) if ty == *column.data_type() => Ok(column.clone()),
        Some(ty) if is_interval(&ty) || is_list(&ty) => cast(column, &ty, Zone::UTC),
        Some(ty) => Ok(arrow::compute::cast(column, &ty)?),
        None => Err(unsupported(name, column.data_type())),
    }
}

pub(super) fn unsupported(column: &str, ty: &DataType) -> Error {
    Error::Unsupported(format!("column \"{column}\" of type {} in COPY TO", crate::base::type_name(ty)))
}
