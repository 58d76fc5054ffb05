//! PostgreSQL's types of Arrow columns.
//!
//! | Arrow | PostgreSQL |
//! |---|---|
//! | integers | int2, int4, int8; oid for unsigned 32-bit integers, which only `pg_catalog` has, numeric for 64-bit ones |
//! | floats, decimals | float4, float8, numeric |
//! | texts, bytes, UUIDs | text, bytea, uuid; json and jsonb for texts whose field is marked ([`keyaki::json_type`]) |
//! | dates, times, timestamps, intervals | date, time, timestamp, timestamptz, interval |
//! | lists of these | arrays |
//! | large lists of int2 and oid, which only `pg_catalog` has | int2vector, oidvector |
//! | all others | text |

use arrow::datatypes::{DataType, Field};
use keyaki::JsonType;

/// A type of PostgreSQL, by its row in `pg_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oid(pub u32);

impl Oid {
    pub const UNSPECIFIED: Oid = Oid(0);
    pub const BOOL: Oid = Oid(16);
    pub const BYTEA: Oid = Oid(17);
    pub const CHAR: Oid = Oid(18);
    pub const NAME: Oid = Oid(19);
    pub const INT8: Oid = Oid(20);
    pub const INT2: Oid = Oid(21);
    pub const INT2VECTOR: Oid = Oid(22);
    pub const INT4: Oid = Oid(23);
    pub const TEXT: Oid = Oid(25);
    pub const OID: Oid = Oid(26);
    pub const OIDVECTOR: Oid = Oid(30);
    pub const JSON: Oid = Oid(114);
    pub const FLOAT4: Oid = Oid(700);
    pub const FLOAT8: Oid = Oid(701);
    pub const UNKNOWN: Oid = Oid(705);
    pub const BPCHAR: Oid = Oid(1042);
    pub const VARCHAR: Oid = Oid(1043);
    pub const DATE: Oid = Oid(1082);
    pub const TIME: Oid = Oid(1083);
    pub const TIMESTAMP: Oid = Oid(1114);
    pub const TIMESTAMPTZ: Oid = Oid(1184);
    pub const INTERVAL: Oid = Oid(1186);
    pub const NUMERIC: Oid = Oid(1700);
    pub const UUID: Oid = Oid(2950);
    pub const JSONB: Oid = Oid(3802);
}

/// Types with an array type: (element, array, name).
const ARRAYS: [(Oid, Oid); 20] = [
    (Oid::BOOL, Oid(1000)),
    (Oid::BYTEA, Oid(1001)),
    (Oid::INT2, Oid(1005)),
    (Oid::INT4, Oid(1007)),
    (Oid::TEXT, Oid(1009)),
    (Oid::BPCHAR, Oid(1014)),
    (Oid::VARCHAR, Oid(1015)),
    (Oid::INT8, Oid(1016)),
    (Oid::OID, Oid(1028)),
    (Oid::FLOAT4, Oid(1021)),
    (Oid::FLOAT8, Oid(1022)),
    (Oid::TIMESTAMP, Oid(1115)),
    (Oid::DATE, Oid(1182)),
    (Oid::TIME, Oid(1183)),
    (Oid::TIMESTAMPTZ, Oid(1185)),
    (Oid::INTERVAL, Oid(1187)),
    (Oid::NUMERIC, Oid(1231)),
    (Oid::UUID, Oid(2951)),
    (Oid::JSON, Oid(199)),
    (Oid::JSONB, Oid(3807)),
];

impl Oid {
    /// The type of arrays with elements of this type.
    fn array(self) -> Option<Oid> {
        ARRAYS.iter().find(|(element, _)| *element == self).map(|&(_, array)| array)
    }

    /// The type of the elements of an array type; `None` for other types.
    pub fn element(self) -> Option<Oid> {
        ARRAYS.iter().find(|(_, array)| *array == self).map(|&(element, _)| element)
    }

    /// The type whose values have the same representation in Arrow: documents are texts.
    pub fn representation(self) -> Oid {
        match (self, self.element()) {
            (Oid::JSON | Oid::JSONB, _) => Oid::TEXT,
            (_, Some(Oid::JSON | Oid::JSONB)) => Oid::TEXT.array().unwrap_or(self),
            (other, _) => other,
        }
    }

    /// Length of the values in bytes (`pg_type.typlen`); -1 if it varies.
    pub fn size(self) -> i16 {
        match self {
            Oid::BOOL | Oid::CHAR => 1,
            Oid::INT2 => 2,
            Oid::INT4 | Oid::OID | Oid::FLOAT4 | Oid::DATE => 4,
            Oid::INT8 | Oid::FLOAT8 | Oid::TIME | Oid::TIMESTAMP | Oid::TIMESTAMPTZ => 8,
            Oid::INTERVAL | Oid::UUID => 16,
            Oid::NAME => 64,
            _ => -1,
        }
    }
}

/// The type of a column of a result.
pub fn of_field(field: &Field) -> Oid {
    of_documents(field.data_type(), keyaki::json_type(field))
}

/// The type of values of an Arrow type, whose texts are documents of the type `json`.
pub fn of_documents(ty: &DataType, json: Option<JsonType>) -> Oid {
    let json = json.map(|json| match json {
        JsonType::Json => Oid::JSON,
        JsonType::Jsonb => Oid::JSONB,
    });
    match (json, oid(ty)) {
        (Some(json), Oid::TEXT) => json,
        (Some(json), ty) if ty.element() == Some(Oid::TEXT) => json.array().unwrap_or(ty),
        (_, ty) => ty,
    }
}

/// The type of the values of an Arrow type.
pub fn oid(ty: &DataType) -> Oid {
    match ty {
        DataType::Boolean => Oid::BOOL,
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => Oid::INT2,
        DataType::Int32 | DataType::UInt16 => Oid::INT4,
        DataType::Int64 => Oid::INT8,
        DataType::UInt32 => Oid::OID,
        DataType::Float16 | DataType::Float32 => Oid::FLOAT4,
        DataType::Float64 => Oid::FLOAT8,
        DataType::UInt64
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => Oid::NUMERIC,
        ty if is_uuid(ty) => Oid::UUID,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => Oid::BYTEA,
        DataType::Date32 | DataType::Date64 => Oid::DATE,
        DataType::Time32(_) | DataType::Time64(_) => Oid::TIME,
        DataType::Timestamp(_, None) => Oid::TIMESTAMP,
        DataType::Timestamp(_, Some(_)) => Oid::TIMESTAMPTZ,
        DataType::Interval(_) | DataType::Duration(_) => Oid::INTERVAL,
        DataType::Dictionary(_, values) => oid(values),
        DataType::RunEndEncoded(_, values) => oid(values.data_type()),
        DataType::LargeList(element) if *element.data_type() == DataType::Int16 => Oid::INT2VECTOR,
        DataType::LargeList(element) if *element.data_type() == DataType::UInt32 => Oid::OIDVECTOR,
        ty => match element(ty) {
            Some(element) => oid(innermost(element)).array().unwrap_or(Oid::TEXT),
            None => Oid::TEXT,
        },
    }
}

/// UUIDs are bytes of this length.
const UUID_BYTES: i32 = 16;

fn is_uuid(ty: &DataType) -> bool {
    *ty == DataType::FixedSizeBinary(UUID_BYTES)
}

/// The type of the elements of a list; `None` for other types.
pub fn element(ty: &DataType) -> Option<&DataType> {
    match ty {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _) => Some(field.data_type()),
        _ => None,
    }
}

fn innermost(ty: &DataType) -> &DataType {
    element(ty).map_or(ty, innermost)
}

/// Precision and scale of a numeric type, as `pg_attribute.atttypmod`; -1 for other types.
pub fn modifier(ty: &DataType) -> i32 {
    /// PostgreSQL adds the length of a header.
    const HEADER: i32 = 4;
    match innermost(ty) {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => ((i32::from(*precision) << 16) | i32::from(*scale)) + HEADER,
        DataType::Dictionary(_, values) => modifier(values),
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Field, TimeUnit};

    use super::*;

    #[test]
    fn types_of_columns() {
        let list = |element| DataType::List(Arc::new(Field::new_list_field(element, true)));
        for (ty, expected) in [
            (DataType::Int8, Oid::INT2),
            (DataType::UInt32, Oid::OID),
            (DataType::UInt64, Oid::NUMERIC),
            (DataType::Null, Oid::TEXT),
            (DataType::FixedSizeBinary(16), Oid::UUID),
            (DataType::FixedSizeBinary(8), Oid::BYTEA),
            (DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), Oid::TIMESTAMPTZ),
            (DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)), Oid::TEXT),
            (list(DataType::Int32), Oid(1007)),
            (list(list(DataType::Utf8)), Oid(1009)),
            (list(DataType::Null), Oid(1009)),
            (DataType::LargeList(Arc::new(Field::new_list_field(DataType::Int16, true))), Oid::INT2VECTOR),
        ] {
            assert_eq!(oid(&ty), expected, "{ty}");
        }
        assert_eq!(Oid(1007).element(), Some(Oid::INT4));
        assert_eq!(Oid::INT4.element(), None);
    }

    /// DECIMAL(12,2) has the modifier that PostgreSQL stores for numeric(12,2).
    #[test]
    fn modifiers_have_precision_and_scale() {
        assert_eq!(modifier(&DataType::Decimal128(12, 2)), 786_438);
        assert_eq!(modifier(&DataType::Int32), -1);
    }
}
