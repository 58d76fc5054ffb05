//! `information_schema.columns`.

use arrow::array::RecordBatch;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use keyaki_store::ColumnType;

use super::{Rows, Source};
use crate::base::type_name;
use crate::catalog::{ColumnDef, IdentityDef, RelationName, SqlType, types};
use crate::engine::CATALOG_NAME;
use crate::sql::documents;

/// Microseconds.
const TIME_DIGITS: i32 = 6;

/// The description of a type.
pub(super) struct Facts {
    /// PostgreSQL's name, without arguments: `character varying`. `ARRAY` for arrays.
    pub name: String,
    /// PostgreSQL's internal name: `varchar`, `_int4` for arrays of integers.
    udt: String,
    characters: Option<i32>,
    /// Number of digits to the base `radix`.
    pub precision: Option<i32>,
    pub radix: Option<i32>,
    pub scale: Option<i32>,
    /// Digits of a fraction of a second.
    time_digits: Option<i32>,
}

impl Facts {
    fn new(name: &str, udt: &str) -> Facts {
        let (name, udt) = (name.into(), udt.into());
        Facts { name, udt, characters: None, precision: None, radix: None, scale: None, time_digits: None }
    }

    fn binary(name: &str, udt: &str, bits: i32, is_integer: bool) -> Facts {
        let scale = is_integer.then_some(0);
        Facts { precision: Some(bits), radix: Some(2), scale, ..Facts::new(name, udt) }
    }

    fn time(name: &str, udt: &str, digits: i32) -> Facts {
        Facts { time_digits: Some(digits), ..Facts::new(name, udt) }
    }

    pub fn of(ty: SqlType) -> Facts {
        match ty.column {
            ColumnType::List(list) => {
                let innermost = SqlType { column: list.innermost(), ..ty };
                Facts::new("ARRAY", &format!("_{}", Facts::of(innermost).udt))
            }
            ColumnType::Boolean => Facts::new("boolean", "bool"),
            ColumnType::Int8 => Facts::binary("tinyint", "int1", 8, true),
            ColumnType::Int16 => Facts::binary("smallint", "int2", 16, true),
            ColumnType::Int32 => Facts::binary("integer", "int4", 32, true),
            ColumnType::Int64 => Facts::binary("bigint", "int8", 64, true),
            ColumnType::Float32 => Facts::binary("real", "float4", 24, false),
            ColumnType::Float64 => Facts::binary("double precision", "float8", 53, false),
            ColumnType::Decimal { precision, scale } => Facts {
                precision: Some(precision.into()),
                radix: Some(10),
                scale: Some(scale.into()),
                ..Facts::new("numeric", "numeric")
            },
            ColumnType::Text => match (ty.json, ty.max_chars) {
                (Some(json), _) => Facts::new(json.name(), json.name()),
                (None, Some(characters)) => {
                    Facts { characters: i32::try_from(characters).ok(), ..Facts::new("character varying", "varchar") }
                }
                (None, None) => Facts::new("text", "text"),
            },
            ColumnType::Bytes => Facts::new("bytea", "bytea"),
            ColumnType::Date => Facts::time("date", "date", 0),
            ColumnType::Timestamp { utc: false } => {
                Facts::time("timestamp without time zone", "timestamp", TIME_DIGITS)
            }
            ColumnType::Timestamp { utc: true } => Facts::time("timestamp with time zone", "timestamptz", TIME_DIGITS),
            ColumnType::Time => Facts::time("time without time zone", "time", TIME_DIGITS),
            ColumnType::Uuid => Facts::new("uuid", "uuid"),
            ColumnType::Interval => Facts::time("interval", "interval", TIME_DIGITS),
        }
    }
}

const NAMES: [&str; 26] = [
    "table_catalog",
    "table_schema",
    "table_name",
    "column_name",
    "ordinal_position",
    "column_default",
    "is_nullable",
    "data_type",
    "character_maximum_length",
    "numeric_precision",
    "numeric_precision_radix",
    "numeric_scale",
    "datetime_precision",
    "udt_catalog",
    "udt_schema",
    "udt_name",
    "is_identity",
    "identity_generation",
    "identity_start",
    "identity_increment",
    "identity_maximum",
    "identity_minimum",
    "identity_cycle",
    "is_generated",
    "generation_expression",
    "is_updatable",
];

const NUMBERS: &[&str] = &[
    "ordinal_position",
    "character_maximum_length",
    "numeric_precision",
    "numeric_precision_radix",
    "numeric_scale",
    "datetime_precision",
];

/// The columns of tables and views, and those of the information schema itself.
pub(super) fn rows(source: &Source<'_>) -> Result<RecordBatch> {
    let mut view = Rows::new(NAMES, NUMBERS);
    for table in source.tables() {
        for (i, column) in table.def.columns.iter().enumerate() {
            push(&mut view, &table.def.name, i, column, Facts::of(column.ty), true);
        }
    }
    for name in source.catalog.views.keys() {
        let Some(plan) = (source.plan)(name).filter(|_| source.is_shown(name)) else { continue };
        for (i, (column, facts)) in columns_of(&plan).into_iter().enumerate() {
            push(&mut view, name, i, &column, facts, false);
        }
    }
    view.batch()
}

/// The columns of a view, and their types.
fn columns_of(plan: &LogicalPlan) -> Vec<(ColumnDef, Facts)> {
    let fields = plan.schema().fields().iter().zip(documents::columns(plan));
    fields
        .map(|(field, json)| {
            let ty = types::from_arrow(field.data_type());
            let other = || {
                let name = type_name(field.data_type());
                Facts::new(&name, &name)
            };
            let facts = ty.as_ref().map_or_else(|_| other(), |ty| Facts::of(SqlType { json, ..(*ty).into() }));
            // The definition carries the name and whether nulls may occur; the type is that of `facts`.
            let ty = SqlType::from(ty.unwrap_or(ColumnType::Text));
            let column = ColumnDef { nullable: field.is_nullable(), ..ColumnDef::new(field.name(), ty) };
            (column, facts)
        })
        .collect()
}

fn push(
    view: &mut Rows<26>,
    relation: &RelationName,
    position: usize,
    column: &ColumnDef,
    facts: Facts,
    is_updatable: bool,
) {
    let identity = column.identity.as_ref();
    let of_identity = |of: &dyn Fn(&IdentityDef) -> String| identity.map(of);
    let RelationName { schema, name } = relation;
    view.rows.push([
        CATALOG_NAME.into(),
        (**schema).into(),
        name.as_str().into(),
        column.name.as_str().into(),
        i32::try_from(position + 1).ok().into(),
        column.default.as_deref().into(),
        column.nullable.into(),
        facts.name.into(),
        facts.characters.into(),
        facts.precision.into(),
        facts.radix.into(),
        facts.scale.into(),
        facts.time_digits.into(),
        CATALOG_NAME.into(),
        "pg_catalog".into(),
        facts.udt.into(),
        identity.is_some().into(),
        of_identity(&|identity| if identity.always { "ALWAYS" } else { "BY DEFAULT" }.into()).into(),
        of_identity(&|identity| identity.sequence.start.to_string()).into(),
        of_identity(&|identity| identity.sequence.increment.to_string()).into(),
        of_identity(&|identity| identity.sequence.max.to_string()).into(),
        of_identity(&|identity| identity.sequence.min.to_string()).into(),
        identity.is_some_and(|identity| identity.sequence.cycles).into(),
        if column.generated.is_some() { "ALWAYS" } else { "NEVER" }.into(),
        column.generated.as_deref().into(),
        is_updatable.into(),
    ]);
}
