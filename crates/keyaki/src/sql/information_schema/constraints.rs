//! The views of constraints: `table_constraints`, `key_column_usage`, `referential_constraints`, `check_constraints` and
//! `constraint_column_usage`. NOT NULL is an attribute of the column.

use arrow::array::RecordBatch;
use datafusion::error::Result;

use super::{Rows, Source};
use crate::catalog::{Catalog, CheckDef, ConstraintTiming, ForeignKeyDef, RelationName, Table, TableDef};
use crate::engine::CATALOG_NAME;
use crate::sql::ddl::checks;

/// A PRIMARY KEY, or a unique index on columns.
struct Key {
    name: String,
    /// Indices into the columns of the table, in key order.
    columns: Vec<usize>,
    kind: KeyKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Primary,
    Unique,
    /// CREATE UNIQUE INDEX: not a constraint, but a foreign key may refer to it.
    Index,
}

/// The keys of a table that foreign keys may refer to.
fn keys(def: &TableDef) -> impl Iterator<Item = Key> + '_ {
    let primary = (!def.hidden_rowid).then(|| Key {
        name: def.primary_key_name(),
        columns: def.primary_key.clone(),
        kind: KeyKind::Primary,
    });
    let indexes = def.indexes.iter().filter(|index| index.is_key()).filter_map(|index| {
        let kind = if index.constraint { KeyKind::Unique } else { KeyKind::Index };
        Some(Key { name: index.name.clone(), columns: index.plain_columns()?, kind })
    });
    primary.into_iter().chain(indexes)
}

/// The keys that are constraints.
fn constraints(def: &TableDef) -> impl Iterator<Item = Key> + '_ {
    keys(def).filter(|key| key.kind != KeyKind::Index)
}

/// The key that a foreign key refers to, and the table that has it.
fn referenced<'c>(catalog: &'c Catalog, key: &ForeignKeyDef) -> Option<(&'c TableDef, Key)> {
    let def = &catalog.tables.get(&key.references)?.def;
    let is_referenced = |column: &usize| key.referenced.contains(&def.columns[*column].name);
    let found = keys(def).find(|of| of.columns.len() == key.referenced.len() && of.columns.iter().all(is_referenced));
    Some((def, found?))
}

pub(super) fn of_tables(source: &Source<'_>) -> Result<RecordBatch> {
    let names = [
        "constraint_catalog",
        "constraint_schema",
        "constraint_name",
        "table_catalog",
        "table_schema",
        "table_name",
        "constraint_type",
        "is_deferrable",
        "initially_deferred",
        "enforced",
        "nulls_distinct",
    ];
    let mut view = Rows::new(names, &[]);
    for table in source.tables() {
        let def = &table.def;
        let RelationName { schema, name } = &def.name;
        let mut add = |constraint: &str, kind: &str, timing: ConstraintTiming| {
            view.rows.push([
                CATALOG_NAME.into(),
                (**schema).into(),
                constraint.into(),
                CATALOG_NAME.into(),
                (**schema).into(),
                name.as_str().into(),
                kind.into(),
                (timing != ConstraintTiming::NotDeferrable).into(),
                (timing == ConstraintTiming::Deferred).into(),
                true.into(),
                (kind == "UNIQUE").then_some("YES").into(),
            ]);
        };
        for key in constraints(def) {
            let kind = if key.kind == KeyKind::Primary { "PRIMARY KEY" } else { "UNIQUE" };
            add(&key.name, kind, ConstraintTiming::NotDeferrable);
        }
        for key in &def.foreign_keys {
            add(&key.name, "FOREIGN KEY", key.timing);
        }
        for check in &def.checks {
            add(&check.name, "CHECK", ConstraintTiming::NotDeferrable);
        }
    }
    view.batch()
}

pub(super) fn key_columns(source: &Source<'_>) -> Result<RecordBatch> {
    let names = [
        "constraint_catalog",
        "constraint_schema",
        "constraint_name",
        "table_catalog",
        "table_schema",
        "table_name",
        "column_name",
        "ordinal_position",
        "position_in_unique_constraint",
    ];
    let mut view = Rows::new(names, &["ordinal_position", "position_in_unique_constraint"]);
    for table in source.tables() {
        let def = &table.def;
        let mut add = |constraint: &str, columns: &[usize], of_unique: &dyn Fn(usize) -> Option<i32>| {
            let RelationName { schema, name } = &def.name;
            for (i, column) in columns.iter().enumerate() {
                view.rows.push([
                    CATALOG_NAME.into(),
                    (**schema).into(),
                    constraint.into(),
                    CATALOG_NAME.into(),
                    (**schema).into(),
                    name.as_str().into(),
                    def.columns[*column].name.as_str().into(),
                    position(i).into(),
                    of_unique(i).into(),
                ]);
            }
        };
        for key in constraints(def) {
            add(&key.name, &key.columns, &|_| None);
        }
        for key in &def.foreign_keys {
            let referenced = referenced(source.catalog, key);
            add(&key.name, &key.columns, &|i| {
                let (def, of) = referenced.as_ref()?;
                position(of.columns.iter().position(|column| def.columns[*column].name == key.referenced[i])?)
            });
        }
    }
    view.batch()
}

/// Positions in the views count from 1.
fn position(i: usize) -> Option<i32> {
    i32::try_from(i + 1).ok()
}

pub(super) fn references(source: &Source<'_>) -> Result<RecordBatch> {
    let names = [
        "constraint_catalog",
        "constraint_schema",
        "constraint_name",
        "unique_constraint_catalog",
        "unique_constraint_schema",
        "unique_constraint_name",
        "match_option",
        "update_rule",
        "delete_rule",
    ];
    let mut view = Rows::new(names, &[]);
    for (table, key) in source.tables().flat_map(|table| table.def.foreign_keys.iter().map(move |key| (table, key))) {
        // PostgreSQL shows no name for an index without a constraint.
        let unique = referenced(source.catalog, key).filter(|(_, of)| of.kind != KeyKind::Index);
        view.rows.push([
            CATALOG_NAME.into(),
            (*table.def.name.schema).into(),
            key.name.as_str().into(),
            unique.as_ref().map(|_| CATALOG_NAME).into(),
            unique.as_ref().map(|(def, _)| &*def.name.schema).into(),
            unique.map(|(_, of)| of.name).into(),
            "NONE".into(),
            key.on_update.to_string().into(),
            key.on_delete.to_string().into(),
        ]);
    }
    view.batch()
}

fn all_checks<'s>(source: &'s Source<'_>) -> impl Iterator<Item = (&'s Table, &'s CheckDef)> {
    source.tables().flat_map(|table| table.def.checks.iter().map(move |check| (&**table, check)))
}

pub(super) fn checks(source: &Source<'_>) -> Result<RecordBatch> {
    let mut view = Rows::new(["constraint_catalog", "constraint_schema", "constraint_name", "check_clause"], &[]);
    for (table, check) in all_checks(source) {
        view.rows.push([
            CATALOG_NAME.into(),
            (*table.def.name.schema).into(),
            check.name.as_str().into(),
            check.sql.as_str().into(),
        ]);
    }
    view.batch()
}

/// The columns of keys and checks, and the referenced columns of foreign keys.
///
/// # Errors
/// If the text of a check is damaged.
pub(super) fn columns_constrained(source: &Source<'_>) -> Result<RecordBatch> {
    let names = [
        "table_catalog",
        "table_schema",
        "table_name",
        "column_name",
        "constraint_catalog",
        "constraint_schema",
        "constraint_name",
    ];
    let mut view = Rows::new(names, &[]);
    let mut add = |def: &TableDef, columns: &[usize], schema: &str, constraint: &str| {
        for column in columns {
            view.rows.push([
                CATALOG_NAME.into(),
                (*def.name.schema).into(),
                def.name.name.as_str().into(),
                def.columns[*column].name.as_str().into(),
                CATALOG_NAME.into(),
                schema.into(),
                constraint.into(),
            ]);
        }
    };
    for table in source.tables() {
        let (def, schema) = (&table.def, &*table.def.name.schema);
        for key in constraints(def) {
            add(def, &key.columns, schema, &key.name);
        }
        for key in &def.foreign_keys {
            if let Some((referenced, of)) = referenced(source.catalog, key) {
                add(referenced, &of.columns, schema, &key.name);
            }
        }
    }
    for (table, check) in all_checks(source) {
        let columns = checks::columns_of(&table.def, &crate::sql::parse_expr(&check.sql)?);
        add(&table.def, &columns, &table.def.name.schema, &check.name);
    }
    view.batch()
}
