//! SQL types: names, and conversion to column types and Arrow types.
//!
//! Types print as PostgreSQL names (`BIGINT`, `VARCHAR(25)`, `DECIMAL(12,2)`, `TIMESTAMPTZ` …). The catalog stores the
//! same text.
//!
//! Invariants: [`parse_column_type`] is the inverse of [`column_type_name`]. A type that the store cannot represent
//! exactly is an error; precision and length limits are never dropped silently.

use std::fmt;

use datafusion::sql::sqlparser::ast::{
    ArrayElemTypeDef, CharacterLength, DataType as SqlDataType, ExactNumberInfo, ObjectName, TimezoneInfo,
};
use keyaki_store::{ColumnType, ListType};

use crate::base::arrays;
use crate::base::type_name;
use crate::base::uuids::is_uuid;
use crate::catalog::SqlType;
use crate::{Error, JsonType, Result};

/// Maximum precision of DECIMAL.
const DECIMAL_DIGITS_MAX: u64 = 38;
/// The type of DECIMAL without arguments.
const DECIMAL_DEFAULT: ColumnType = ColumnType::Decimal { precision: 38, scale: 10 };

/// Serialisation of [`keyaki_store::ColumnType`] as its SQL name.
pub mod column_type_text {
    use keyaki_store::ColumnType;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(ty: &ColumnType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::column_type_name(*ty))
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ColumnType, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse_column_type(&text).ok_or_else(|| D::Error::custom(format!("unknown column type {text:?}")))
    }
}

/// Serialisation of [`keyaki_store::TreeId`] as a number.
pub mod tree_number {
    use keyaki_store::TreeId;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(tree: &TreeId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(tree.get())
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TreeId, D::Error> {
        u32::deserialize(deserializer).map(TreeId::new)
    }
}

/// SQL name of a column type.
pub fn column_type_name(ty: ColumnType) -> String {
    match ty {
        ColumnType::Boolean => "BOOLEAN".into(),
        ColumnType::Int8 => "TINYINT".into(),
        ColumnType::Int16 => "SMALLINT".into(),
        ColumnType::Int32 => "INTEGER".into(),
        ColumnType::Int64 => "BIGINT".into(),
        ColumnType::Float32 => "REAL".into(),
        ColumnType::Float64 => "DOUBLE PRECISION".into(),
        ColumnType::Decimal { precision, scale } => format!("DECIMAL({precision},{scale})"),
        ColumnType::Text => "TEXT".into(),
        ColumnType::Bytes => "BYTEA".into(),
        ColumnType::Date => "DATE".into(),
        ColumnType::Timestamp { utc: false } => "TIMESTAMP".into(),
        ColumnType::Timestamp { utc: true } => "TIMESTAMPTZ".into(),
        ColumnType::Time => "TIME".into(),
        ColumnType::Uuid => "UUID".into(),
        ColumnType::Interval => "INTERVAL".into(),
        ColumnType::List(list) => format!("{}[]", column_type_name(list.element())),
    }
}

/// Inverse of [`column_type_name`]. Returns `None` for other texts.
fn parse_column_type(text: &str) -> Option<ColumnType> {
    Some(match text {
        "BOOLEAN" => ColumnType::Boolean,
        "TINYINT" => ColumnType::Int8,
        "SMALLINT" => ColumnType::Int16,
        "INTEGER" => ColumnType::Int32,
        "BIGINT" => ColumnType::Int64,
        "REAL" => ColumnType::Float32,
        "DOUBLE PRECISION" => ColumnType::Float64,
        "TEXT" => ColumnType::Text,
        "BYTEA" => ColumnType::Bytes,
        "DATE" => ColumnType::Date,
        "TIMESTAMP" => ColumnType::Timestamp { utc: false },
        "TIMESTAMPTZ" => ColumnType::Timestamp { utc: true },
        "TIME" => ColumnType::Time,
        "UUID" => ColumnType::Uuid,
        "INTERVAL" => ColumnType::Interval,
        _ if text.ends_with("[]") => {
            // The depth of the recursion is limited by the number of dimensions.
            let dimensions = text.bytes().rev().filter(|byte| *byte == b']').count();
            let element = text.strip_suffix("[]").filter(|_| dimensions <= usize::from(ListType::DIMENSIONS_MAX))?;
            ColumnType::List(ListType::of(parse_column_type(element)?)?)
        }
        _ => {
            let (precision, scale) = text.strip_prefix("DECIMAL(")?.strip_suffix(')')?.split_once(',')?;
            let (precision, scale) = (precision.parse().ok()?, scale.parse().ok()?);
            if !(1..=DECIMAL_DIGITS_MAX as u8).contains(&precision) || !(0..=precision as i8).contains(&scale) {
                return None;
            }
            ColumnType::Decimal { precision, scale }
        }
    })
}

impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ColumnType::List(list) = self.column {
            return write!(f, "{}[]", SqlType { column: list.element(), ..*self });
        }
        match (self.json, self.max_chars) {
            (Some(json), _) => f.write_str(&json.name().to_ascii_uppercase()),
            (None, Some(chars)) => write!(f, "VARCHAR({chars})"),
            (None, None) => f.write_str(&column_type_name(self.column)),
        }
    }
}

impl From<ColumnType> for SqlType {
    fn from(column: ColumnType) -> Self {
        SqlType { column, max_chars: None, json: None }
    }
}

/// Converts a type of CREATE TABLE.
///
/// # Errors
/// If the type or one of its arguments is not supported.
pub fn from_sql(ty: &SqlDataType) -> Result<SqlType> {
    use SqlDataType as T;
    let unsupported = || Error::Unsupported(format!("type {ty}"));
    let column = match ty {
        T::Boolean | T::Bool => ColumnType::Boolean,
        T::TinyInt(None) => ColumnType::Int8,
        T::SmallInt(None) | T::Int2(None) | T::Int16 => ColumnType::Int16,
        T::Int(None) | T::Integer(None) | T::Int4(None) | T::Int32 => ColumnType::Int32,
        T::BigInt(None) | T::Int8(None) | T::Int64 => ColumnType::Int64,
        T::Real | T::Float4 | T::Float32 => ColumnType::Float32,
        T::DoublePrecision | T::Float8 | T::Float64 | T::Double(ExactNumberInfo::None) => ColumnType::Float64,
        T::Float(ExactNumberInfo::None) => ColumnType::Float64,
        T::Float(ExactNumberInfo::Precision(bits @ 1..=53)) => {
            if *bits <= 24 {
                ColumnType::Float32
            } else {
                ColumnType::Float64
            }
        }
        T::Numeric(info) | T::Decimal(info) | T::Dec(info) => decimal(info)?,
        T::Text | T::String(None) | T::Clob(None) => ColumnType::Text,
        T::Varchar(length) | T::CharacterVarying(length) | T::CharVarying(length) => return text(length, None, ty),
        T::Char(length) | T::Character(length) => return text(length, Some(1), ty),
        T::Bytea | T::Blob(None) | T::Varbinary(None) => ColumnType::Bytes,
        T::Date | T::Date32 => ColumnType::Date,
        T::Time(None | Some(6), TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => ColumnType::Time,
        T::Uuid => ColumnType::Uuid,
        T::Interval { fields: None, precision: None | Some(6) } => ColumnType::Interval,
        T::Interval { .. } => return Err(interval_fields(ty)),
        T::JSON => return Ok(SqlType { json: Some(JsonType::Json), ..ColumnType::Text.into() }),
        T::JSONB => return Ok(SqlType { json: Some(JsonType::Jsonb), ..ColumnType::Text.into() }),
        T::Timestamp(None | Some(6), zone) => ColumnType::Timestamp {
            utc: match zone {
                TimezoneInfo::None | TimezoneInfo::WithoutTimeZone => false,
                TimezoneInfo::WithTimeZone | TimezoneInfo::Tz => true,
            },
        },
        T::TimestampNtz(None | Some(6)) | T::Datetime(None | Some(6)) => ColumnType::Timestamp { utc: false },
        T::Array(ArrayElemTypeDef::SquareBracket(element, _) | ArrayElemTypeDef::AngleBracket(element)) => {
            return array(from_sql(element)?);
        }
        T::Custom(name, arguments) if arguments.is_empty() => custom(name).ok_or_else(unsupported)?,
        _ => return Err(unsupported()),
    };
    Ok(column.into())
}

/// The type of arrays of elements of a type.
fn array(element: SqlType) -> Result<SqlType> {
    let list = ListType::of(element.column)
        .ok_or_else(|| Error::Unsupported(format!("arrays of more than {} dimensions", ListType::DIMENSIONS_MAX)))?;
    Ok(SqlType { column: ColumnType::List(list), ..element })
}

/// The error for INTERVAL with fields or another precision.
pub(crate) fn interval_fields(ty: &SqlDataType) -> Error {
    Error::Unsupported(format!("type {ty} (use INTERVAL, which has all fields and microseconds)"))
}

/// Types that the parser does not recognise and returns as user-defined types.
fn custom(name: &ObjectName) -> Option<ColumnType> {
    match name.to_string().to_ascii_lowercase().as_str() {
        "int1" => Some(ColumnType::Int8),
        "timestamptz" => Some(ColumnType::Timestamp { utc: true }),
        _ => None,
    }
}

/// DECIMAL with optional precision (1 to 38) and scale (0 to precision).
fn decimal(info: &ExactNumberInfo) -> Result<ColumnType> {
    let (precision, scale) = match *info {
        ExactNumberInfo::None => return Ok(DECIMAL_DEFAULT),
        ExactNumberInfo::Precision(precision) => (precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (precision, scale),
    };
    if !(1..=DECIMAL_DIGITS_MAX).contains(&precision) {
        return Err(Error::InvalidParameter {
            name: "NUMERIC precision".into(),
            value: precision.to_string(),
            expected: format!("1 to {DECIMAL_DIGITS_MAX}"),
        });
    }
    if scale < 0 || scale as u64 > precision {
        return Err(Error::InvalidParameter {
            name: "NUMERIC scale".into(),
            value: scale.to_string(),
            expected: format!("0 to {precision}"),
        });
    }
    Ok(ColumnType::Decimal { precision: precision as u8, scale: scale as i8 })
}

/// VARCHAR and CHAR with optional length; `default` applies without one.
fn text(length: &Option<CharacterLength>, default: Option<u32>, ty: &SqlDataType) -> Result<SqlType> {
    let max_chars = match length {
        None => default,
        Some(CharacterLength::Max) => None,
        Some(CharacterLength::IntegerLength { length, unit: None | Some(_) }) => match u32::try_from(*length) {
            Ok(chars @ 1..) => Some(chars),
            _ => {
                return Err(Error::InvalidParameter {
                    name: format!("length of {ty}"),
                    value: length.to_string(),
                    expected: format!("1 to {}", u32::MAX),
                });
            }
        },
    };
    Ok(SqlType { column: ColumnType::Text, max_chars, json: None })
}

/// The column type that holds values of an Arrow type without loss: for CREATE TABLE AS.
pub fn from_arrow(ty: &arrow::datatypes::DataType) -> Result<ColumnType> {
    use arrow::datatypes::DataType as T;
    Ok(match ty {
        T::Boolean => ColumnType::Boolean,
        T::Int8 => ColumnType::Int8,
        T::Int16 | T::UInt8 => ColumnType::Int16,
        T::Int32 | T::UInt16 => ColumnType::Int32,
        T::Int64 | T::UInt32 => ColumnType::Int64,
        // Writing a value above i64::MAX is an error.
        T::UInt64 => ColumnType::Int64,
        T::Float16 | T::Float32 => ColumnType::Float32,
        T::Float64 => ColumnType::Float64,
        T::Decimal32(precision, scale) | T::Decimal64(precision, scale) | T::Decimal128(precision, scale)
            if *scale >= 0 =>
        {
            ColumnType::Decimal { precision: *precision, scale: *scale }
        }
        T::Utf8 | T::LargeUtf8 | T::Utf8View => ColumnType::Text,
        ty if is_uuid(ty) => ColumnType::Uuid,
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => ColumnType::Bytes,
        T::Date32 => ColumnType::Date,
        T::Date64 => ColumnType::Timestamp { utc: false },
        T::Timestamp(_, zone) => ColumnType::Timestamp { utc: zone.is_some() },
        T::Time32(_) | T::Time64(_) => ColumnType::Time,
        T::Interval(_) | T::Duration(_) => ColumnType::Interval,
        T::Dictionary(_, value) => from_arrow(value)?,
        // A column with only nulls.
        T::Null => ColumnType::Text,
        other => {
            let unsupported = || Error::Unsupported(format!("column of type {}", type_name(other)));
            let element = from_arrow(arrays::element_type(other).ok_or_else(unsupported)?)?;
            ColumnType::List(ListType::of(element).ok_or_else(unsupported)?)
        }
    })
}

/// True for records and maps, and arrays of them, which columns hold as documents.
pub fn is_record(ty: &arrow::datatypes::DataType) -> bool {
    use arrow::datatypes::DataType as T;
    match ty {
        T::Struct(_) | T::Map(..) => true,
        ty => arrays::element_type(ty).is_some_and(is_record),
    }
}

/// PostgreSQL's name of a column's type, for messages.
pub(crate) fn sql_type_name(ty: SqlType) -> String {
    if let ColumnType::List(list) = ty.column {
        return format!("{}[]", sql_type_name(SqlType { column: list.element(), ..ty }));
    }
    match (ty.json, ty.max_chars) {
        (Some(json), _) => json.name().into(),
        (None, Some(chars)) => format!("character varying({chars})"),
        (None, None) => type_name(&ty.column.arrow()),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    fn parsed(sql: &str) -> Result<SqlType> {
        let ty = Parser::new(&PostgreSqlDialect {}).try_with_sql(sql).unwrap().parse_data_type().unwrap();
        from_sql(&ty)
    }

    #[test]
    fn type_names_round_trip() {
        let types = [
            ("bool", "BOOLEAN"),
            ("TINYINT", "TINYINT"),
            ("int2", "SMALLINT"),
            ("int", "INTEGER"),
            ("int8", "BIGINT"),
            ("float4", "REAL"),
            ("float(53)", "DOUBLE PRECISION"),
            ("FLOAT(24)", "REAL"),
            ("numeric", "DECIMAL(38,10)"),
            ("NUMERIC(5)", "DECIMAL(5,0)"),
            ("decimal(12,2)", "DECIMAL(12,2)"),
            ("string", "TEXT"),
            ("character varying(25)", "VARCHAR(25)"),
            ("char", "VARCHAR(1)"),
            ("varchar", "TEXT"),
            ("blob", "BYTEA"),
            ("date", "DATE"),
            ("timestamp without time zone", "TIMESTAMP"),
            ("timestamp with time zone", "TIMESTAMPTZ"),
            ("timestamptz", "TIMESTAMPTZ"),
            ("timestamp(6)", "TIMESTAMP"),
            ("time", "TIME"),
            ("time(6) without time zone", "TIME"),
            ("uuid", "UUID"),
            ("interval", "INTERVAL"),
            ("interval(6)", "INTERVAL"),
            ("json", "JSON"),
            ("jsonb", "JSONB"),
            ("int[]", "INTEGER[]"),
            ("integer[3][]", "INTEGER[][]"),
            ("text[]", "TEXT[]"),
            ("varchar(10)[]", "VARCHAR(10)[]"),
            ("jsonb[]", "JSONB[]"),
            ("numeric(5,2)[][][]", "DECIMAL(5,2)[][][]"),
        ];
        for (sql, name) in types {
            let ty = parsed(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
            assert_eq!(ty.to_string(), name, "{sql}");
            assert_eq!(parsed(name).unwrap(), ty, "{name}");
            let stored = serde_json::to_string(&ty).unwrap();
            assert_eq!(serde_json::from_str::<SqlType>(&stored).unwrap(), ty);
            let again = from_arrow(&ty.column.arrow()).unwrap();
            assert_eq!(again, ty.column, "{sql}");
        }
    }

    #[test]
    fn unsupported_types_are_errors() {
        for sql in [
            "int unsigned",
            "timetz",
            "time(3)",
            "interval(3)",
            "interval day to second",
            "int[][][][][][][][]",
            "mytype[]",
            "timestamp(3)",
            "decimal(39,0)",
            "decimal(5,6)",
            "decimal(5,-1)",
            "varchar(0)",
            "float(54)",
            "bit(3)",
            "mytype",
        ] {
            assert!(parsed(sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn damaged_names_are_errors() {
        for stored in ["\"INT\"", "\"DECIMAL(0,0)\"", "\"DECIMAL(300,0)\"", "\"DECIMAL(5,6)\"", "\"DECIMAL(5\"", "5"] {
            let stored = format!("{{\"column\":{stored},\"max_chars\":null}}");
            assert!(serde_json::from_str::<SqlType>(&stored).is_err(), "{stored}");
        }
    }
}
