//! Renders definitions as statements that recreate the objects.
//!
//! CREATE TABLE omits UNIQUE and FOREIGN KEY constraints, unless it stands alone (SHOW CREATE). They are rendered as ALTER
//! TABLE, beside the other indexes and after all tables.

use std::fmt::Display;
use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::sqlparser::ast::{
    ObjectName, ObjectNamePart, ShowCreateObject, ShowStatementFilter, ShowStatementFilterPosition,
    ShowStatementInParentType, ShowStatementOptions, Statement, Value,
};

use super::information_schema;
use super::names::{quoted, shown_sql};
use crate::catalog::{
    Catalog, ConstraintTiming, ForeignKeyDef, IndexDef, IndexKey, IndexMethod, OnCommit, Privileges, ReferentialAction,
    SequenceDef, TableDef, ViewDef,
};
use crate::sql::{Outcome, SqlSession, access, sequences, storage};
use crate::{Error, ObjectKind, Result};

/// SHOW CREATE TABLE, SHOW CREATE VIEW: one row with the statements that recreate the object.
pub(crate) fn show_create(session: &SqlSession, kind: &ShowCreateObject, name: &ObjectName) -> Result<Outcome> {
    let (catalog, _) = session.moment()?;
    let name = session.relation(&catalog, name)?;
    access::relation_any(&session.authority(&catalog)?, &catalog, &name, Privileges::OF_TABLES)?;
    let definition = match (kind, catalog.tables.get(&name), catalog.views.get(&name)) {
        (ShowCreateObject::Table, Some(table), _) => table_script(&table.def),
        (ShowCreateObject::Table | ShowCreateObject::View, _, Some(view)) => view_script(view),
        (ShowCreateObject::View, Some(_), _) => {
            let (found, expected) = (ObjectKind::Table, ObjectKind::View);
            let name = name.to_string();
            return Err(Error::WrongObjectType { name, found, expected, hint: Some("use SHOW CREATE TABLE") });
        }
        (ShowCreateObject::Table | ShowCreateObject::View, ..) => {
            return Err(Error::NotFound { kind: ObjectKind::Relation, name: name.to_string() });
        }
        (other, ..) => return Err(Error::Unsupported(format!("SHOW CREATE {other}"))),
    };
    let field = |name: &str| Field::new(name, DataType::Utf8, false);
    let schema = Arc::new(Schema::new(vec![field("name"), field("definition")]));
    let column = |text: String| Arc::new(StringArray::from(vec![text]));
    let batch = RecordBatch::try_new(schema.clone(), vec![column(name.to_string()), column(definition)])?;
    Ok(Outcome::Rows(Box::pin(MemoryStream::try_new(vec![batch], schema, None)?)))
}

/// The query of SHOW TABLES: the tables and views of all schemas, or of one (`FROM schema`), whose names match a pattern
/// (`LIKE`).
///
/// # Errors
/// `Unsupported` for other clauses, `NotFound` for an unknown schema.
pub(super) fn tables(session: &SqlSession, options: &ShowStatementOptions) -> Result<Statement> {
    let ShowStatementOptions { show_in, starts_with, limit, limit_from, filter_position } = options;
    let unsupported = |clause: &dyn Display| Err(Error::Unsupported(format!("SHOW TABLES {clause}")));
    if starts_with.is_some() || limit.is_some() || limit_from.is_some() {
        return unsupported(&"with STARTS WITH or LIMIT (use information_schema.tables)");
    }
    let mut sql = format!(
        "SELECT table_catalog, table_schema, table_name, table_type FROM {0}.tables WHERE table_schema <> '{0}'",
        information_schema::NAME
    );
    if let Some(show_in) = show_in {
        match (&show_in.parent_type, show_in.parent_name.as_ref().map(|name| name.0.as_slice())) {
            (None | Some(ShowStatementInParentType::Schema), Some([ObjectNamePart::Identifier(schema)])) => {
                let schema = session.path().schema(schema);
                if !session.moment()?.0.has_schema(&schema) && schema != information_schema::NAME {
                    return Err(Error::NotFound { kind: ObjectKind::Schema, name: schema });
                }
                sql.push_str(&format!(" AND table_schema = {}", Value::SingleQuotedString(schema)));
            }
            _ => return unsupported(show_in),
        }
    }
    use ShowStatementFilterPosition::{Infix, Suffix};
    match filter_position {
        None => {}
        Some(Infix(filter) | Suffix(filter)) => match filter {
            ShowStatementFilter::Like(pattern) | ShowStatementFilter::NoKeyword(pattern) => {
                sql.push_str(&format!(" AND table_name LIKE {}", Value::SingleQuotedString(pattern.clone())));
            }
            ShowStatementFilter::ILike(pattern) => {
                sql.push_str(&format!(" AND table_name ILIKE {}", Value::SingleQuotedString(pattern.clone())));
            }
            ShowStatementFilter::Where(condition) => sql.push_str(&format!(" AND ({condition})")),
        },
    }
    sql.push_str(" ORDER BY table_schema, table_name");
    Ok(Statement::Query(super::parse_query(&sql)?))
}

/// All statements that recreate a table, each with a semicolon.
fn table_script(def: &TableDef) -> String {
    let unique = def.indexes.iter().filter(|index| index.constraint);
    let references =
        def.foreign_keys.iter().map(|key| format!("CONSTRAINT {} {}", quoted(&key.name), references(def, key)));
    let constraints = unique.map(|index| unique_constraint(def, index)).chain(references).collect();
    let indexes = def.indexes.iter().filter(|index| !index.constraint).map(|index| create_index(def, index));
    let statements = std::iter::once(create_table_with(def, constraints)).chain(indexes).chain(table_comments(def));
    statements.map(|sql| sql + ";").collect::<Vec<_>>().join("\n")
}

fn view_script(view: &ViewDef) -> String {
    let statements = std::iter::once(create_view(view)).chain(view_comment(view));
    statements.map(|sql| sql + ";").collect::<Vec<_>>().join("\n")
}

pub(crate) fn create_table(def: &TableDef) -> String {
    create_table_with(def, Vec::new())
}

/// CREATE TABLE with UNIQUE constraints, but without FOREIGN KEY constraints.
pub(crate) fn create_table_without_references(def: &TableDef) -> String {
    let unique = def.indexes.iter().filter(|index| index.constraint);
    create_table_with(def, unique.map(|index| unique_constraint(def, index)).collect())
}

/// CREATE TABLE with further items.
fn create_table_with(def: &TableDef, others: Vec<String>) -> String {
    let mut items: Vec<String> = Vec::new();
    let named_key = def.primary_key_name.as_ref().filter(|_| !def.hidden_rowid);
    for (i, column) in def.columns.iter().enumerate() {
        let mut item = format!("{} {}", quoted(&column.name), column.ty);
        if def.primary_key == [i] && named_key.is_none() {
            item.push_str(" PRIMARY KEY");
        } else if !column.nullable && !def.primary_key.contains(&i) {
            item.push_str(" NOT NULL");
        }
        if let Some(identity) = &column.identity {
            item.push(' ');
            item.push_str(&sequences::identity_sql(identity, column.ty.column));
        }
        if let Some(default) = &column.default {
            item.push_str(" DEFAULT ");
            item.push_str(default);
        }
        if let Some(sql) = &column.generated {
            item.push_str(&format!(" GENERATED ALWAYS AS ({sql}) STORED"));
        }
        items.push(item);
    }
    let key = column_list(def, &def.primary_key);
    match named_key {
        Some(name) => items.push(format!("CONSTRAINT {} PRIMARY KEY ({key})", quoted(name))),
        None if def.primary_key.len() > 1 => items.push(format!("PRIMARY KEY ({key})")),
        None => {}
    }
    items.extend(others);
    for check in &def.checks {
        items.push(format!("CONSTRAINT {} CHECK ({})", quoted(&check.name), check.sql));
    }
    let on_commit = match def.on_commit {
        Some(OnCommit::DeleteRows) => " ON COMMIT DELETE ROWS",
        Some(OnCommit::Drop) => " ON COMMIT DROP",
        None => "",
    };
    let with = storage::sql(def.compression).map(|parameter| format!(" WITH ({parameter})")).unwrap_or_default();
    format!("CREATE TABLE {} (\n    {}\n){with}{on_commit}", shown_sql(&def.name), items.join(",\n    "))
}

fn unique_constraint(table: &TableDef, index: &IndexDef) -> String {
    format!("CONSTRAINT {} UNIQUE ({})", quoted(&index.name), key_list(table, index))
}

/// FOREIGN KEY with columns and actions.
pub(crate) fn references(table: &TableDef, key: &ForeignKeyDef) -> String {
    let referenced: Vec<String> = key.referenced.iter().map(|column| quoted(column)).collect();
    let columns = column_list(table, &key.columns);
    let (table, actions) = (shown_sql(&key.references), clauses(key));
    format!("FOREIGN KEY ({columns}) REFERENCES {table} ({}){actions}", referenced.join(", "))
}

/// ON DELETE, ON UPDATE and DEFERRABLE of a foreign key, with a space before each; empty for the defaults.
pub(crate) fn clauses(key: &ForeignKeyDef) -> String {
    let actions = [("DELETE", key.on_delete), ("UPDATE", key.on_update)];
    let actions = actions.iter().filter(|(_, action)| *action != ReferentialAction::NoAction);
    let timing = match key.timing {
        ConstraintTiming::NotDeferrable => "",
        ConstraintTiming::Immediate => " DEFERRABLE",
        ConstraintTiming::Deferred => " DEFERRABLE INITIALLY DEFERRED",
    };
    actions.map(|(event, action)| format!(" ON {event} {action}")).chain([timing.to_string()]).collect()
}

/// ALTER TABLE statements that add the foreign keys of a table.
pub(crate) fn foreign_keys(def: &TableDef) -> Vec<String> {
    let add = |key: &ForeignKeyDef| {
        format!("ALTER TABLE {} ADD CONSTRAINT {} {}", shown_sql(&def.name), quoted(&key.name), references(def, key))
    };
    def.foreign_keys.iter().map(add).collect()
}

/// COMMENT ON statements for a table, its columns and its indexes.
pub(crate) fn table_comments(def: &TableDef) -> Vec<String> {
    let table = shown_sql(&def.name);
    let of_table = def.comment.iter().map(|text| comment("TABLE", &table, text));
    let columns = def.columns.iter().filter_map(|column| {
        Some(comment("COLUMN", &format!("{table}.{}", quoted(&column.name)), column.comment.as_ref()?))
    });
    let indexes = def.indexes.iter();
    let indexes = indexes.filter_map(|index| {
        Some(comment("INDEX", &shown_sql(&def.name.sibling(index.name.clone())), index.comment.as_ref()?))
    });
    let identities = def.columns.iter().filter_map(|column| sequence_comment(&column.identity.as_ref()?.sequence));
    of_table.chain(columns).chain(indexes).chain(identities).collect()
}

pub(crate) fn view_comment(view: &ViewDef) -> Option<String> {
    Some(comment("VIEW", &shown_sql(&view.name), view.comment.as_ref()?))
}

pub(crate) fn sequence_comment(sequence: &SequenceDef) -> Option<String> {
    Some(comment("SEQUENCE", &shown_sql(&sequence.name), sequence.comment.as_ref()?))
}

/// COMMENT ON statements for schemas.
pub(crate) fn schema_comments(catalog: &Catalog) -> Vec<String> {
    let comments = catalog.schema_comments.iter();
    comments.map(|(name, text)| comment("SCHEMA", &quoted(name), text)).collect()
}

fn comment(kind: &str, name: &str, text: &str) -> String {
    format!("COMMENT ON {kind} {name} IS '{}'", text.replace('\'', "''"))
}

pub(crate) fn create_index(table: &TableDef, index: &IndexDef) -> String {
    if index.constraint {
        return format!("ALTER TABLE {} ADD {}", shown_sql(&table.name), unique_constraint(table, index));
    }
    let unique = if index.unique { "UNIQUE " } else { "" };
    let columns = key_list(table, index);
    let using = match index.method {
        IndexMethod::Betree => String::new(),
        method => format!(" USING {method}"),
    };
    let mut sql =
        format!("CREATE {unique}INDEX {} ON {}{using} ({columns})", quoted(&index.name), shown_sql(&table.name));
    if !index.include.is_empty() {
        sql.push_str(&format!(" INCLUDE ({})", column_list(table, &index.include)));
    }
    sql.push_str(&storage::with(index));
    if let Some(predicate) = &index.predicate {
        sql.push_str(&format!(" WHERE {predicate}"));
    }
    sql
}

pub(crate) fn create_view(view: &ViewDef) -> String {
    format!("CREATE VIEW {} AS {}", shown_sql(&view.name), view.sql)
}

/// The keys of an index, expressions in parentheses.
pub(crate) fn key_list(def: &TableDef, index: &IndexDef) -> String {
    let key = |key: &IndexKey| match key {
        IndexKey::Column(column) => quoted(&def.columns[*column].name),
        IndexKey::Expression(expression) => format!("({})", expression.sql),
    };
    index.keys.iter().map(key).collect::<Vec<_>>().join(", ")
}

pub(crate) fn column_list(def: &TableDef, columns: &[usize]) -> String {
    columns.iter().map(|&c| quoted(&def.columns[c].name)).collect::<Vec<_>>().join(", ")
}
