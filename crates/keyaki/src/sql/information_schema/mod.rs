//! The information schema: the definitions as tables of the SQL standard, as one statement sees them.
//!
//! | module | contents |
//! |---|---|
//! | [`columns`] | `columns`, with PostgreSQL's names of types |
//! | [`constraints`] | `table_constraints`, `key_column_usage` and others about constraints |
//! | [`privileges`] | `table_privileges`, `column_privileges` and others about privileges and roles |
//! | here | `tables`, `views`, `schemata`, `sequences`; DataFusion supplies `df_settings`, `routines` and `parameters` |
//!
//! The views have the columns of PostgreSQL 15 that can have values here. The system views of Keyaki are not listed.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;

use super::names::SearchPath;
use crate::catalog::{Authority, Catalog, PUBLIC, RelationName, Table};
use crate::engine::CATALOG_NAME;

mod columns;
mod constraints;
mod privileges;

/// Name of the schema.
pub(super) const NAME: &str = "information_schema";

/// Names of the views that need the plans of views.
const COLUMNS: &str = "columns";
const COLUMN_PRIVILEGES: &str = "column_privileges";

/// Names of the views of this module.
pub(super) const NAMES: &[&str] = &[
    "applicable_roles",
    "check_constraints",
    COLUMN_PRIVILEGES,
    COLUMNS,
    "constraint_column_usage",
    "enabled_roles",
    "key_column_usage",
    "referential_constraints",
    "role_table_grants",
    "schemata",
    "sequences",
    "table_constraints",
    "table_privileges",
    "tables",
    "views",
];

/// The contents of the views.
pub(super) struct Source<'s> {
    pub catalog: &'s Catalog,
    /// What the statement may do.
    pub authority: &'s Authority,
    /// The schema of the session's temporary objects. Those of others are not shown.
    pub temporary: Option<&'s Arc<str>>,
    /// The plan of a view, for [`COLUMNS`]. A view without a plan has no columns.
    pub plan: &'s dyn Fn(&RelationName) -> Option<LogicalPlan>,
}

impl Source<'_> {
    fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.catalog.tables.values().filter(|table| self.is_shown(&table.def.name))
    }

    fn is_shown(&self, name: &RelationName) -> bool {
        is_shown(name, self.temporary)
    }
}

/// True if a relation is not temporary, or belongs to the session whose temporary schema is `temporary`.
pub(super) fn is_shown(name: &RelationName, temporary: Option<&Arc<str>>) -> bool {
    !name.is_temporary() || temporary == Some(&name.schema)
}

/// True for the views that show the columns of all views.
pub(super) fn needs_plans(name: &RelationName) -> bool {
    *name.schema == *NAME && [COLUMNS, COLUMN_PRIVILEGES].contains(&name.name.as_str())
}

/// The views that the information schema shows to a session.
pub(super) fn shown_views<'c>(catalog: &'c Catalog, path: &'c SearchPath) -> impl Iterator<Item = &'c RelationName> {
    catalog.views.keys().filter(|name| is_shown(name, path.temporary()))
}

/// The rows of a view; `None` for other names than [`NAMES`].
///
/// # Errors
/// Errors of expressions that the catalog stores.
pub(super) fn view(source: &Source<'_>, name: &str) -> Result<Option<RecordBatch>> {
    let rows = match name {
        "applicable_roles" => privileges::applicable_roles(source),
        "check_constraints" => constraints::checks(source),
        COLUMN_PRIVILEGES => privileges::of_columns(source),
        COLUMNS => columns::rows(source),
        "constraint_column_usage" => constraints::columns_constrained(source),
        "enabled_roles" => privileges::enabled_roles(source),
        "key_column_usage" => constraints::key_columns(source),
        "referential_constraints" => constraints::references(source),
        "role_table_grants" => privileges::of_tables(source, false),
        "schemata" => schemata(source),
        "sequences" => sequences(source),
        "table_constraints" => constraints::of_tables(source),
        "table_privileges" => privileges::of_tables(source, true),
        "tables" => tables(source),
        "views" => views(source),
        _ => return Ok(None),
    };
    rows.map(Some)
}

/// A value of a view.
enum Cell {
    Text(Option<String>),
    Number(Option<i32>),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::Text(Some(text.into()))
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::Text(Some(text))
    }
}

impl From<Option<String>> for Cell {
    fn from(text: Option<String>) -> Self {
        Cell::Text(text)
    }
}

impl From<Option<&str>> for Cell {
    fn from(text: Option<&str>) -> Self {
        Cell::Text(text.map(String::from))
    }
}

impl From<i32> for Cell {
    fn from(number: i32) -> Self {
        Cell::Number(Some(number))
    }
}

impl From<Option<i32>> for Cell {
    fn from(number: Option<i32>) -> Self {
        Cell::Number(number)
    }
}

/// YES or NO.
impl From<bool> for Cell {
    fn from(holds: bool) -> Self {
        Cell::from(if holds { "YES" } else { "NO" })
    }
}

/// The rows of a view with `N` columns.
struct Rows<const N: usize> {
    names: [&'static str; N],
    /// The columns that have numbers. The others have texts.
    numbers: &'static [&'static str],
    rows: Vec<[Cell; N]>,
}

impl<const N: usize> Rows<N> {
    fn new(names: [&'static str; N], numbers: &'static [&'static str]) -> Self {
        assert!(numbers.iter().all(|number| names.contains(number)));
        Rows { names, numbers, rows: Vec::new() }
    }

    /// # Panics
    /// If a value has another type than its column.
    fn batch(self) -> Result<RecordBatch> {
        let is_number = |name: &&str| self.numbers.contains(name);
        let field = |name: &&'static str| {
            Field::new(*name, if is_number(name) { DataType::Int32 } else { DataType::Utf8 }, true)
        };
        let column = |(i, name)| -> ArrayRef {
            let cells = self.rows.iter().map(|row| &row[i]);
            match is_number(name) {
                true => Arc::new(Int32Array::from_iter(cells.map(|cell| match cell {
                    Cell::Number(number) => *number,
                    Cell::Text(text) => unreachable!("text {text:?} in a column of numbers, {name}"),
                }))),
                false => Arc::new(StringArray::from_iter(cells.map(|cell| match cell {
                    Cell::Text(text) => text.as_deref(),
                    Cell::Number(number) => unreachable!("number {number:?} in a column of texts, {name}"),
                }))),
            }
        };
        let schema = Schema::new(self.names.iter().map(field).collect::<Vec<_>>());
        Ok(RecordBatch::try_new(Arc::new(schema), self.names.iter().enumerate().map(column).collect())?)
    }
}

fn tables(source: &Source<'_>) -> Result<RecordBatch> {
    let names = ["table_catalog", "table_schema", "table_name", "table_type", "is_insertable_into"];
    let mut view = Rows::new(names, &[]);
    let mut add = |name: &RelationName, kind: &str, is_table: bool| {
        let RelationName { schema, name } = name;
        view.rows.push([CATALOG_NAME.into(), (**schema).into(), name.as_str().into(), kind.into(), is_table.into()]);
    };
    for table in source.tables() {
        let name = &table.def.name;
        add(name, if name.is_temporary() { "LOCAL TEMPORARY" } else { "BASE TABLE" }, true);
    }
    for name in source.catalog.views.keys().filter(|name| source.is_shown(name)) {
        add(name, "VIEW", false);
    }
    for name in NAMES {
        add(&RelationName::new(NAME, *name), "VIEW", false);
    }
    view.batch()
}

fn views(source: &Source<'_>) -> Result<RecordBatch> {
    let names = [
        "table_catalog",
        "table_schema",
        "table_name",
        "view_definition",
        "check_option",
        "is_updatable",
        "is_insertable_into",
    ];
    let mut view = Rows::new(names, &[]);
    for (name, def) in source.catalog.views.iter().filter(|(name, _)| source.is_shown(name)) {
        let RelationName { schema, name } = name;
        view.rows.push([
            CATALOG_NAME.into(),
            (**schema).into(),
            name.as_str().into(),
            def.sql.as_str().into(),
            "NONE".into(),
            false.into(),
            false.into(),
        ]);
    }
    view.batch()
}

fn schemata(source: &Source<'_>) -> Result<RecordBatch> {
    let mut view = Rows::new(["catalog_name", "schema_name", "schema_owner"], &[]);
    let others = source.catalog.schemas.iter().map(String::as_str);
    let temporary = source.temporary.map(|name| &**name);
    for name in std::iter::once(PUBLIC).chain(others).chain(temporary).chain(std::iter::once(NAME)) {
        view.rows.push([CATALOG_NAME.into(), name.into(), None::<&str>.into()]);
    }
    view.batch()
}

/// The sequences of CREATE SEQUENCE. Identity columns describe their own.
fn sequences(source: &Source<'_>) -> Result<RecordBatch> {
    let names = [
        "sequence_catalog",
        "sequence_schema",
        "sequence_name",
        "data_type",
        "numeric_precision",
        "numeric_precision_radix",
        "numeric_scale",
        "start_value",
        "minimum_value",
        "maximum_value",
        "increment",
        "cycle_option",
    ];
    let mut view = Rows::new(names, &["numeric_precision", "numeric_precision_radix", "numeric_scale"]);
    for def in source.catalog.sequences.values().filter(|def| source.is_shown(&def.name)) {
        let RelationName { schema, name } = &def.name;
        let facts = columns::Facts::of(def.ty.into());
        view.rows.push([
            CATALOG_NAME.into(),
            (**schema).into(),
            name.as_str().into(),
            facts.name.into(),
            facts.precision.into(),
            facts.radix.into(),
            facts.scale.into(),
            def.start.to_string().into(),
            def.min.to_string().into(),
            def.max.to_string().into(),
            def.increment.to_string().into(),
            def.cycles.into(),
        ]);
    }
    view.batch()
}
