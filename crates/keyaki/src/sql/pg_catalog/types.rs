//! The types of PostgreSQL (`types.txt`), and those of columns.

use std::sync::LazyLock;

use keyaki_store::ColumnType;

use crate::catalog::{SqlType, types};
use crate::sql::split;

/// Modifiers of lengths and precisions have this added, the length of a header.
const HEADER: i32 = 4;

/// A row of `pg_type`.
#[derive(Debug)]
pub(super) struct Type {
    pub oid: u32,
    pub name: &'static str,
    /// Bytes of a value; -1 if they vary.
    pub bytes: i16,
    pub by_value: bool,
    /// `b` for base types, `p` for pseudo-types.
    pub kind: &'static str,
    pub category: &'static str,
    pub is_preferred: bool,
    /// The type of the elements of an array; 0 for others.
    pub element: u32,
    /// The type of arrays of this type; 0 if there is none.
    pub array: u32,
    /// Names of the functions that read and write texts, and read and write the binary format.
    pub functions: [&'static str; 4],
    pub alignment: &'static str,
    pub storage: &'static str,
    pub collation: u32,
}

static TYPES: LazyLock<Vec<Type>> = LazyLock::new(|| include_str!("types.txt").lines().filter_map(parse).collect());

fn parse(line: &'static str) -> Option<Type> {
    let parts: Vec<&str> = line.split('|').collect();
    let &[
        oid,
        name,
        bytes,
        by_value,
        kind,
        category,
        preferred,
        element,
        array,
        input,
        output,
        receive,
        send,
        ref others @ ..,
    ] = parts.as_slice()
    else {
        return None;
    };
    let &[alignment, storage, collation] = others else { return None };
    Some(Type {
        oid: oid.parse().ok()?,
        name,
        bytes: bytes.parse().ok()?,
        by_value: by_value == "t",
        kind,
        category,
        is_preferred: preferred == "t",
        element: element.parse().ok()?,
        array: array.parse().ok()?,
        functions: [input, output, receive, send],
        alignment,
        storage,
        collation: collation.parse().ok()?,
    })
}

/// All types, sorted by OID.
pub(super) fn all() -> &'static [Type] {
    &TYPES
}

/// The type with an OID.
pub(super) fn find(oid: u32) -> Option<&'static Type> {
    TYPES.iter().find(|ty| ty.oid == oid)
}

/// OID and modifier of a column's type.
pub(super) fn of_column(ty: SqlType) -> (u32, i32) {
    let (name, modifier) = match ty.column {
        ColumnType::List(list) => {
            let (element, modifier) = of_column(SqlType { column: list.innermost(), ..ty });
            return (find(element).map_or(0, |ty| ty.array), modifier);
        }
        ColumnType::Boolean => ("bool", -1),
        ColumnType::Int8 | ColumnType::Int16 => ("int2", -1),
        ColumnType::Int32 => ("int4", -1),
        ColumnType::Int64 => ("int8", -1),
        ColumnType::Float32 => ("float4", -1),
        ColumnType::Float64 => ("float8", -1),
        ColumnType::Decimal { precision, scale } => {
            ("numeric", ((i32::from(precision) << 16) | i32::from(scale)) + HEADER)
        }
        ColumnType::Text => match (ty.json, ty.max_chars.and_then(|chars| i32::try_from(chars).ok())) {
            (Some(json), _) => (json.name(), -1),
            (None, Some(chars)) => ("varchar", chars.saturating_add(HEADER)),
            (None, None) => ("text", -1),
        },
        ColumnType::Bytes => ("bytea", -1),
        ColumnType::Date => ("date", -1),
        ColumnType::Timestamp { utc: false } => ("timestamp", -1),
        ColumnType::Timestamp { utc: true } => ("timestamptz", -1),
        ColumnType::Time => ("time", -1),
        ColumnType::Uuid => ("uuid", -1),
        ColumnType::Interval => ("interval", -1),
    };
    (TYPES.iter().find(|ty| ty.name == name).map_or(0, |ty| ty.oid), modifier)
}

/// The SQL name of a type with a modifier, as `format_type` returns it.
pub(super) fn sql_name(oid: u32, modifier: Option<i32>) -> String {
    let Some(ty) = find(oid) else { return if oid == 0 { "-" } else { "???" }.into() };
    if ty.element != 0 && ty.name.starts_with('_') {
        return format!("{}[]", sql_name(ty.element, modifier));
    }
    let modifier = modifier.filter(|&modifier| modifier >= HEADER).map(|modifier| modifier - HEADER);
    match (ty.name, modifier) {
        ("varchar", Some(chars)) => return format!("character varying({chars})"),
        ("bpchar", Some(chars)) => return format!("character({chars})"),
        ("numeric", Some(digits)) => return format!("numeric({},{})", digits >> 16, digits & 0xffff),
        _ => {}
    }
    match ty.name {
        "bool" => "boolean",
        "int2" => "smallint",
        "int4" => "integer",
        "int8" => "bigint",
        "float4" => "real",
        "float8" => "double precision",
        "varchar" => "character varying",
        "bpchar" => "character",
        "char" => "\"char\"",
        "timestamp" => "timestamp without time zone",
        "timestamptz" => "timestamp with time zone",
        "time" => "time without time zone",
        "timetz" => "time with time zone",
        "any" => "\"any\"",
        name => name,
    }
    .into()
}

/// The OID of a type by its name in SQL or in `pg_type`.
pub(super) fn named(name: &str) -> Option<u32> {
    let name = name.trim().to_ascii_lowercase();
    let name = name.strip_prefix("pg_catalog.").unwrap_or(&name);
    let plain = name.trim_matches('"');
    if let Some(element) = name.strip_suffix("[]") {
        return find(named(element)?).map(|ty| ty.array).filter(|&oid| oid != 0);
    }
    let known = TYPES.iter().find(|ty| ty.name == plain || sql_name(ty.oid, None) == name);
    known.map(|ty| ty.oid).or_else(|| {
        let parsed = split::single(name).ok()?.parser().parse_data_type().ok()?;
        types::from_sql(&parsed).ok().map(|ty| of_column(ty).0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JsonType;

    #[test]
    fn names_of_types() {
        assert_eq!(all().len(), include_str!("types.txt").lines().count());
        assert!(all().is_sorted_by_key(|ty| ty.oid));
        for (oid, modifier, name) in [
            (23, None, "integer"),
            (1043, Some(14), "character varying(10)"),
            (1700, Some(((12 << 16) | 2) + 4), "numeric(12,2)"),
            (1700, Some(-1), "numeric"),
            (1007, None, "integer[]"),
            (18, None, "\"char\""),
            (0, None, "-"),
            (9, None, "???"),
        ] {
            assert_eq!(sql_name(oid, modifier), name);
        }
        assert_eq!(named("INT4"), Some(23));
        assert_eq!(named("pg_catalog.timestamptz"), Some(1184));
        assert_eq!(named("double precision[]"), Some(1022));
        assert_eq!(named("decimal(3, 1)"), Some(1700));
        assert_eq!(named("nothing"), None);
    }

    #[test]
    fn types_of_columns() {
        let decimal = SqlType::from(ColumnType::Decimal { precision: 12, scale: 2 });
        assert_eq!(of_column(decimal), (1700, 786_438));
        let text = SqlType { max_chars: Some(10), ..ColumnType::Text.into() };
        assert_eq!(of_column(text), (1043, 14));
        let documents = |json| SqlType { json: Some(json), ..ColumnType::Text.into() };
        assert_eq!(of_column(documents(JsonType::Json)), (114, -1));
        assert_eq!(of_column(documents(JsonType::Jsonb)), (3802, -1));
    }
}
