//! Descriptions of a database for the ADBC driver: its schemas, tables, columns and constraints, and the driver itself.
//!
//! The information schema has them. They become one row with nested lists: a database is one catalog.

use std::collections::HashSet;
use std::sync::Arc;

use adbc_core::error::Result;
use adbc_core::options::{InfoCode, ObjectDepth};
use adbc_core::schemas::{
    COLUMN_SCHEMA, CONSTRAINT_SCHEMA, GET_INFO_SCHEMA, GET_OBJECTS_SCHEMA, OBJECTS_DB_SCHEMA_SCHEMA, TABLE_SCHEMA,
    USAGE_SCHEMA,
};
use arrow::array::{
    Array, ArrayRef, BooleanArray, Int16Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
    StructArray, UInt32Array, UnionArray, new_empty_array, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, UnionFields};
use keyaki::{Connection, Optional};

use super::{Reader, reader};

/// The described part of a database. The names are patterns of LIKE.
pub struct Filter<'a> {
    pub catalog: Option<&'a str>,
    pub schema: Option<&'a str>,
    pub table: Option<&'a str>,
    pub types: Option<Vec<&'a str>>,
    pub column: Option<&'a str>,
}

struct SchemaEntry {
    name: String,
    tables: Vec<TableEntry>,
}

struct TableEntry {
    name: String,
    kind: String,
    columns: Vec<ColumnEntry>,
    constraints: Vec<ConstraintEntry>,
}

struct ColumnEntry {
    name: String,
    position: i32,
    type_name: String,
    size: Option<i32>,
    digits: Option<i16>,
    is_nullable: bool,
    default: Option<String>,
    is_identity: bool,
    is_generated: bool,
}

struct ConstraintEntry {
    name: String,
    kind: String,
    columns: Vec<String>,
    /// The referenced columns of a foreign key, as (schema, table, column).
    usage: Vec<(String, String, String)>,
}

/// The schemas of a database, with its tables down to a depth; no catalog if the filter excludes the database.
pub struct Objects {
    catalog: Option<String>,
    schemas: Vec<SchemaEntry>,
}

fn has(depth: ObjectDepth, other: ObjectDepth) -> bool {
    depth_of(depth) >= depth_of(other)
}

/// Reads the objects of a database down to a depth.
///
/// # Errors
/// Errors of queries.
pub fn all(connection: &Connection, depth: ObjectDepth, filter: &Filter<'_>) -> keyaki::Result<Objects> {
    let sql = "SELECT current_database() WHERE current_database() LIKE $1";
    let catalog = connection.query_row(sql, (filter.catalog.unwrap_or("%"),), |row| row.get(0)).optional()?;
    let mut found = Vec::new();
    if catalog.is_some() && has(depth, ObjectDepth::Schemas) {
        found = schemas(connection, filter)?;
    }
    for schema in found.iter_mut().filter(|_| has(depth, ObjectDepth::Tables)) {
        schema.tables = tables(connection, &schema.name, filter)?;
        for table in schema.tables.iter_mut().filter(|_| has(depth, ObjectDepth::Columns)) {
            table.columns = columns(connection, &schema.name, &table.name, filter)?;
            table.constraints = constraints(connection, &schema.name, &table.name)?;
        }
    }
    Ok(Objects { catalog, schemas: found })
}

/// Objects as the rows that ADBC defines.
///
/// # Errors
/// None is expected.
pub fn described(depth: ObjectDepth, Objects { catalog, schemas }: Objects) -> Result<Reader> {
    let with_tables = has(depth, ObjectDepth::Tables);
    let all_tables: Vec<&TableEntry> = schemas.iter().flat_map(|entry| &entry.tables).collect();
    let tables = table_array(&all_tables, has(depth, ObjectDepth::Columns))?;
    let names = StringArray::from_iter_values(schemas.iter().map(|entry| &entry.name));
    let lengths = schemas.iter().map(|entry| with_tables.then_some(entry.tables.len()));
    let of_schemas = structs(&OBJECTS_DB_SCHEMA_SCHEMA, vec![Arc::new(names), lists(tables, lengths)])?;
    let count = has(depth, ObjectDepth::Schemas).then_some(schemas.len());
    let of_catalogs = lists(of_schemas, catalog.iter().map(|_| count));
    let schema = GET_OBJECTS_SCHEMA.clone();
    let catalogs: StringArray = catalog.map(Some).into_iter().collect();
    let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(catalogs), of_catalogs])?;
    Ok(reader(schema, vec![batch]))
}

fn depth_of(depth: ObjectDepth) -> u8 {
    match depth {
        ObjectDepth::Catalogs => 0,
        ObjectDepth::Schemas => 1,
        ObjectDepth::Tables => 2,
        ObjectDepth::Columns | ObjectDepth::All => 3,
    }
}

fn schemas(connection: &Connection, filter: &Filter<'_>) -> keyaki::Result<Vec<SchemaEntry>> {
    let sql = "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE $1 ORDER BY 1";
    let entry = |row: &keyaki::Row<'_>| Ok(SchemaEntry { name: row.get(0)?, tables: Vec::new() });
    let found = connection.query_map(sql, (filter.schema.unwrap_or("%"),), entry)?;
    let mut found = found.collect::<keyaki::Result<Vec<_>>>()?;
    // Schemas of the system are described to programs that name them.
    if filter.schema.is_none_or(|pattern| pattern == "%") {
        found.retain(|entry| !["information_schema", "pg_catalog"].contains(&entry.name.as_str()));
    }
    Ok(found)
}

fn tables(connection: &Connection, schema: &str, filter: &Filter<'_>) -> keyaki::Result<Vec<TableEntry>> {
    let sql = "SELECT table_name, table_type FROM information_schema.tables \
               WHERE table_schema = $1 AND table_name LIKE $2 ORDER BY 1";
    let entry = |row: &keyaki::Row<'_>| {
        let (columns, constraints) = (Vec::new(), Vec::new());
        Ok(TableEntry { name: row.get(0)?, kind: row.get(1)?, columns, constraints })
    };
    let found = connection.query_map(sql, (schema, filter.table.unwrap_or("%")), entry)?;
    let mut found = found.collect::<keyaki::Result<Vec<_>>>()?;
    if let Some(types) = &filter.types {
        found.retain(|table| types.contains(&table.kind.as_str()));
    }
    Ok(found)
}

fn columns(
    connection: &Connection,
    schema: &str,
    table: &str,
    filter: &Filter<'_>,
) -> keyaki::Result<Vec<ColumnEntry>> {
    let sql = "SELECT column_name, ordinal_position, data_type, \
                      coalesce(numeric_precision, character_maximum_length), numeric_scale, is_nullable = 'YES', \
                      column_default, is_identity = 'YES', is_generated <> 'NEVER' \
               FROM information_schema.columns \
               WHERE table_schema = $1 AND table_name = $2 AND column_name LIKE $3 ORDER BY ordinal_position";
    let entry = |row: &keyaki::Row<'_>| {
        Ok(ColumnEntry {
            name: row.get(0)?,
            position: row.get(1)?,
            type_name: row.get(2)?,
            size: row.get::<_, Option<i64>>(3)?.and_then(|size| i32::try_from(size).ok()),
            digits: row.get::<_, Option<i64>>(4)?.and_then(|digits| i16::try_from(digits).ok()),
            is_nullable: row.get(5)?,
            default: row.get(6)?,
            is_identity: row.get::<_, Option<bool>>(7)?.unwrap_or(false),
            is_generated: row.get::<_, Option<bool>>(8)?.unwrap_or(false),
        })
    };
    connection.query_map(sql, (schema, table, filter.column.unwrap_or("%")), entry)?.collect()
}

fn constraints(connection: &Connection, schema: &str, table: &str) -> keyaki::Result<Vec<ConstraintEntry>> {
    let sql = "SELECT constraint_name, constraint_type FROM information_schema.table_constraints \
               WHERE table_schema = $1 AND table_name = $2 ORDER BY 1";
    let pairs = connection.query_map(sql, (schema, table), |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
    let mut entries = Vec::new();
    for pair in pairs {
        let (name, kind): (String, String) = pair?;
        let sql = "SELECT column_name FROM information_schema.key_column_usage \
                   WHERE table_schema = $1 AND table_name = $2 AND constraint_name = $3 ORDER BY ordinal_position";
        let columns = connection.query_map(sql, (schema, table, &*name), |row| row.get(0))?;
        let columns = columns.collect::<keyaki::Result<Vec<String>>>()?;
        let mut usage = Vec::new();
        if kind == "FOREIGN KEY" {
            let sql = "SELECT u.table_schema, u.table_name, u.column_name \
                       FROM information_schema.key_column_usage k \
                       JOIN information_schema.referential_constraints r \
                         ON r.constraint_schema = k.constraint_schema AND r.constraint_name = k.constraint_name \
                       JOIN information_schema.key_column_usage u \
                         ON u.constraint_schema = r.unique_constraint_schema \
                        AND u.constraint_name = r.unique_constraint_name \
                        AND u.ordinal_position = k.position_in_unique_constraint \
                       WHERE k.table_schema = $1 AND k.table_name = $2 AND k.constraint_name = $3 \
                       ORDER BY k.ordinal_position";
            let referenced = connection
                .query_map(sql, (schema, table, &*name), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            usage = referenced.collect::<keyaki::Result<_>>()?;
        }
        entries.push(ConstraintEntry { name, kind, columns, usage });
    }
    Ok(entries)
}

fn table_array(tables: &[&TableEntry], with_columns: bool) -> Result<StructArray> {
    let columns: Vec<&ColumnEntry> = tables.iter().flat_map(|table| &table.columns).collect();
    let constraints: Vec<&ConstraintEntry> = tables.iter().flat_map(|table| &table.constraints).collect();
    let of_columns = lists(column_array(&columns)?, tables.iter().map(|t| with_columns.then_some(t.columns.len())));
    let of_constraints =
        lists(constraint_array(&constraints)?, tables.iter().map(|t| with_columns.then_some(t.constraints.len())));
    let names = StringArray::from_iter_values(tables.iter().map(|table| &table.name));
    let kinds = StringArray::from_iter_values(tables.iter().map(|table| &table.kind));
    structs(&TABLE_SCHEMA, vec![Arc::new(names), Arc::new(kinds), of_columns, of_constraints])
}

fn column_array(columns: &[&ColumnEntry]) -> Result<StructArray> {
    let DataType::Struct(fields) = &*COLUMN_SCHEMA else {
        return Err(super::state("internal error: a schema of ADBC is no structure"));
    };
    let values = fields.iter().map(|field| -> ArrayRef {
        let each = columns.iter();
        match field.name().as_str() {
            "column_name" => Arc::new(StringArray::from_iter_values(each.map(|c| &c.name))),
            "ordinal_position" => Arc::new(Int32Array::from_iter_values(each.map(|c| c.position))),
            "xdbc_type_name" => Arc::new(StringArray::from_iter_values(each.map(|c| &c.type_name))),
            "xdbc_column_size" => Arc::new(Int32Array::from_iter(each.map(|c| c.size))),
            "xdbc_decimal_digits" => Arc::new(Int16Array::from_iter(each.map(|c| c.digits))),
            "xdbc_nullable" => Arc::new(Int16Array::from_iter_values(each.map(|c| c.is_nullable.into()))),
            "xdbc_column_def" => Arc::new(StringArray::from_iter(each.map(|c| c.default.as_deref()))),
            "xdbc_is_nullable" => {
                Arc::new(StringArray::from_iter_values(each.map(|c| if c.is_nullable { "YES" } else { "NO" })))
            }
            "xdbc_is_autoincrement" => Arc::new(BooleanArray::from_iter(each.map(|c| Some(c.is_identity)))),
            "xdbc_is_generatedcolumn" => Arc::new(BooleanArray::from_iter(each.map(|c| Some(c.is_generated)))),
            _ => new_null_array(field.data_type(), columns.len()),
        }
    });
    structs(&COLUMN_SCHEMA, values.collect())
}

fn constraint_array(constraints: &[&ConstraintEntry]) -> Result<StructArray> {
    let usage: Vec<_> = constraints.iter().flat_map(|constraint| &constraint.usage).collect();
    let nulls = new_null_array(&DataType::Utf8, usage.len());
    let schemas = StringArray::from_iter_values(usage.iter().map(|(schema, ..)| schema));
    let tables = StringArray::from_iter_values(usage.iter().map(|(_, table, _)| table));
    let columns = StringArray::from_iter_values(usage.iter().map(|(.., column)| column));
    let usage = structs(&USAGE_SCHEMA, vec![nulls, Arc::new(schemas), Arc::new(tables), Arc::new(columns)])?;
    let of_usage = lists(usage, constraints.iter().map(|c| (c.kind == "FOREIGN KEY").then_some(c.usage.len())));
    let columns = StringArray::from_iter(constraints.iter().flat_map(|constraint| &constraint.columns).map(Some));
    let of_columns = lists(columns, constraints.iter().map(|constraint| Some(constraint.columns.len())));
    let names = StringArray::from_iter_values(constraints.iter().map(|constraint| &constraint.name));
    let kinds = StringArray::from_iter_values(constraints.iter().map(|constraint| &constraint.kind));
    structs(&CONSTRAINT_SCHEMA, vec![Arc::new(names), Arc::new(kinds), of_columns, of_usage])
}

/// A structure of columns.
fn structs(ty: &DataType, columns: Vec<ArrayRef>) -> Result<StructArray> {
    let DataType::Struct(fields) = ty else {
        return Err(super::state("internal error: a schema of ADBC is no structure"));
    };
    Ok(StructArray::try_new(fields.clone(), columns, None)?)
}

/// Lists of successive values; `None` for a list that is NULL, which has no values.
fn lists(values: impl Array + 'static, lengths: impl Iterator<Item = Option<usize>>) -> ArrayRef {
    let lengths: Vec<Option<usize>> = lengths.collect();
    let offsets = OffsetBuffer::from_lengths(lengths.iter().map(|length| length.unwrap_or(0)));
    let nulls = NullBuffer::from_iter(lengths.iter().map(Option::is_some));
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    Arc::new(ListArray::new(field, offsets, Arc::new(values), Some(nulls)))
}

/// Names and versions of the database and the driver.
///
/// # Errors
/// None is expected.
pub fn info(codes: Option<&HashSet<InfoCode>>) -> Result<Reader> {
    let version = env!("CARGO_PKG_VERSION");
    let texts = [
        (InfoCode::VendorName, "Keyaki"),
        (InfoCode::VendorVersion, version),
        (InfoCode::DriverName, "ADBC Keyaki Driver"),
        (InfoCode::DriverVersion, version),
        (InfoCode::VendorArrowVersion, "59"),
        (InfoCode::DriverArrowVersion, "59"),
    ];
    let is_requested = |code: &InfoCode| codes.is_none_or(|codes| codes.contains(code));
    let texts: Vec<_> = texts.into_iter().filter(|(code, _)| is_requested(code)).collect();
    let flags: Vec<_> = [(InfoCode::VendorSql, true), (InfoCode::VendorSubstrait, false)]
        .into_iter()
        .filter(|(code, _)| is_requested(code))
        .collect();
    let numbers: Vec<_> =
        [(InfoCode::DriverAdbcVersion, 1_001_000_i64)].into_iter().filter(|(code, _)| is_requested(code)).collect();
    let names = texts.iter().map(|(code, _)| code).chain(flags.iter().map(|(code, _)| code));
    let names: Vec<u32> = names.chain(numbers.iter().map(|(code, _)| code)).map(u32::from).collect();
    // The alternatives of the union: text 0, flag 1, number 2, and others that no value has.
    let kinds = [(0_i8, texts.len()), (1, flags.len()), (2, numbers.len())];
    let type_ids: Vec<i8> = kinds.iter().flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count)).collect();
    let offsets: Vec<i32> = kinds.iter().flat_map(|(_, count)| 0..*count as i32).collect();
    let schema = GET_INFO_SCHEMA.clone();
    let DataType::Union(fields, _) = schema.field(1).data_type() else {
        return Err(super::state("internal error: a schema of ADBC is no union"));
    };
    let values = alternatives(
        fields,
        [
            Arc::new(StringArray::from_iter_values(texts.iter().map(|(_, text)| text))),
            Arc::new(BooleanArray::from_iter(flags.iter().map(|(_, flag)| Some(*flag)))),
            Arc::new(Int64Array::from_iter_values(numbers.iter().map(|(_, number)| *number))),
        ],
    );
    let union =
        UnionArray::try_new(fields.clone(), ScalarBuffer::from(type_ids), Some(ScalarBuffer::from(offsets)), values)?;
    let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(UInt32Array::from(names)), Arc::new(union)])?;
    Ok(reader(schema, vec![batch]))
}

/// The values of the alternatives of a union: the first ones, and no values for the others.
fn alternatives(fields: &UnionFields, first: [ArrayRef; 3]) -> Vec<ArrayRef> {
    let mut first = first.into_iter();
    fields.iter().map(|(_, field)| first.next().unwrap_or_else(|| new_empty_array(field.data_type()))).collect()
}
