//! PostgreSQL's names of Arrow types, for error messages.

use arrow::datatypes::{DataType, Field};

use super::json_fields::json_type;
use super::uuids::is_uuid;

/// PostgreSQL's name of the type of a column of a result.
pub fn field_type_name(field: &Field) -> String {
    match json_type(field) {
        Some(json) if type_name(field.data_type()).ends_with("[]") => format!("{}[]", json.name()),
        Some(json) => json.name().into(),
        None => type_name(field.data_type()),
    }
}

/// PostgreSQL's name of an Arrow type. Types without a counterpart in PostgreSQL keep a name of their own.
pub(crate) fn type_name(ty: &DataType) -> String {
    use DataType as T;
    match ty {
        T::Null => "unknown".into(),
        T::Boolean => "boolean".into(),
        T::Int8 => "tinyint".into(),
        T::Int16 => "smallint".into(),
        T::Int32 => "integer".into(),
        T::Int64 => "bigint".into(),
        T::UInt8 => "unsigned tinyint".into(),
        T::UInt16 => "unsigned smallint".into(),
        T::UInt32 => "unsigned integer".into(),
        T::UInt64 => "unsigned bigint".into(),
        T::Float16 | T::Float32 => "real".into(),
        T::Float64 => "double precision".into(),
        T::Decimal32(precision, scale)
        | T::Decimal64(precision, scale)
        | T::Decimal128(precision, scale)
        | T::Decimal256(precision, scale) => format!("numeric({precision},{scale})"),
        T::Utf8 | T::LargeUtf8 | T::Utf8View => "text".into(),
        ty if is_uuid(ty) => "uuid".into(),
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => "bytea".into(),
        T::Date32 | T::Date64 => "date".into(),
        T::Time32(_) | T::Time64(_) => "time".into(),
        T::Timestamp(_, None) => "timestamp".into(),
        T::Timestamp(_, Some(_)) => "timestamp with time zone".into(),
        T::Interval(_) | T::Duration(_) => "interval".into(),
        T::Dictionary(_, value) => type_name(value),
        T::List(field)
        | T::LargeList(field)
        | T::ListView(field)
        | T::LargeListView(field)
        | T::FixedSizeList(field, _) => format!("{}[]", type_name(field.data_type())),
        T::Struct(_) => "record".into(),
        T::RunEndEncoded(_, values) => type_name(values.data_type()),
        T::Map(entries, _) => match entries.data_type() {
            T::Struct(fields) if fields.len() == 2 => {
                format!("map({}, {})", type_name(fields[0].data_type()), type_name(fields[1].data_type()))
            }
            _ => "map".into(),
        },
        T::Union(..) => "union".into(),
    }
}
