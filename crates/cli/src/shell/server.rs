//! The commands of the shell on a server, through `pg_catalog`.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use comfy_table::{Table, presets};

use super::catalog::{self, like, show_list, shown};
use super::complete::{Names, PUBLIC, quoted};
use super::lexer::{Kind, tokens};
use crate::connection::Connection;
use crate::failure::Result;
use crate::remote::plain;
use crate::run::Runner;
use crate::terminal;

/// Completion reads at most this many columns.
const NAMES_MAX: usize = 100_000;

/// The relations of users: a condition on `n`, of `pg_namespace`.
pub(super) const OF_USERS: &str = "n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') AND n.nspname NOT LIKE 'pg\\_temp\\_%' \
     AND n.nspname NOT LIKE 'pg\\_toast\\_%'";

/// A row of texts.
pub(super) type Row = Vec<Option<String>>;

/// Runs a command that lists objects.
///
/// # Errors
/// Errors of the server.
pub async fn list(runner: &mut Runner, command: &str, argument: Option<&str>) -> Result<()> {
    match command {
        ".tables" => tables(runner, argument).await,
        ".indexes" => indexes(runner, argument).await,
        ".schema" => schema(runner, argument).await,
        _ => match &runner.connection {
            Connection::Remote(remote) => {
                let description = plain(remote.description()).into_owned();
                runner.say(&description)
            }
            Connection::Embedded(_) => Ok(()),
        },
    }
}

/// The rows of a query all of whose columns are texts.
pub(super) async fn rows(runner: &mut Runner, sql: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let is_terminal = terminal::size().is_some();
    let shown = |text: &str| if is_terminal { plain(text).into_owned() } else { text.to_string() };
    for batch in runner.collect(sql).await? {
        // Embedded databases have other arrays of texts than servers.
        let columns = batch.columns().iter().map(|column| cast(column, &DataType::Utf8));
        let columns: Vec<ArrayRef> = columns.collect::<std::result::Result<_, _>>()?;
        let columns: Vec<&StringArray> = columns.iter().map(|column| column.as_string::<i32>()).collect();
        rows.extend((0..batch.num_rows()).map(|row| {
            columns.iter().map(|column| column.is_valid(row).then(|| shown(column.value(row)))).collect::<Row>()
        }));
    }
    Ok(rows)
}

/// A value of a row; the empty text for NULL.
pub(super) fn text(row: &[Option<String>], column: usize) -> &str {
    row.get(column).and_then(Option::as_deref).unwrap_or_default()
}

async fn tables(runner: &mut Runner, pattern: Option<&str>) -> Result<()> {
    let sql = format!(
        "SELECT n.nspname::text, c.relname::text, c.relkind::text, c.reltuples::bigint::text, \
                pg_catalog.pg_total_relation_size(c.oid)::text \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND {OF_USERS} ORDER BY n.nspname <> 'public', 1, 2"
    );
    let mut listed = Table::new();
    listed.load_preset(presets::NOTHING).set_header(["table", "rows", "bytes"]);
    for row in rows(runner, &sql).await? {
        let name = shown(text(&row, 0), text(&row, 1).into());
        if pattern.is_none_or(|pattern| like(pattern, &name)) {
            let (count, size) = match text(&row, 2) {
                "v" => ("view".into(), String::new()),
                _ => {
                    // -1 before the first statistics.
                    let count = text(&row, 3).parse::<u64>().map(terminal::thousands);
                    let size = text(&row, 4).parse().map(terminal::bytes).unwrap_or_default();
                    (count.map(|count| format!("~{count}")).unwrap_or_default(), size)
                }
            };
            listed.add_row([name, count, size]);
        }
    }
    show_list(runner, listed, &[1, 2])
}

async fn indexes(runner: &mut Runner, table: Option<&str>) -> Result<()> {
    let sql = format!(
        "SELECT n.nspname::text, i.relname::text, t.relname::text, pg_catalog.pg_get_indexdef(i.oid)::text, \
                x.indisunique::text, pg_catalog.pg_relation_size(i.oid)::text \
         FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid \
              JOIN pg_catalog.pg_class t ON t.oid = x.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace \
         WHERE {OF_USERS} ORDER BY n.nspname <> 'public', 1, 3, 2"
    );
    let mut listed = Table::new();
    listed.load_preset(presets::NOTHING).set_header(["index", "table", "method and columns", "", "bytes"]);
    for row in rows(runner, &sql).await? {
        let of = shown(text(&row, 0), text(&row, 2).into());
        if table.is_none_or(|table| table == of) {
            let definition = text(&row, 3);
            let method = definition.split_once(" USING ").map_or(definition, |(_, method)| method);
            let unique = if text(&row, 4).starts_with('t') { "unique" } else { "" };
            let size = text(&row, 5).parse().map(terminal::bytes).unwrap_or_default();
            let name = shown(text(&row, 0), text(&row, 1).into());
            listed.add_row([name, of, method.into(), unique.into(), size]);
        }
    }
    show_list(runner, listed, &[4])
}

/// A name with its schema, unless that is `public`, as written in SQL.
fn named(schema: &str, name: &str) -> String {
    if schema == PUBLIC { quoted(name) } else { format!("{}.{}", quoted(schema), quoted(name)) }
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The parts of CREATE TABLE, and the statements that follow.
#[derive(Default)]
struct Definition {
    parts: Vec<String>,
    after: Vec<String>,
}

async fn schema(runner: &mut Runner, table: Option<&str>) -> Result<()> {
    let wanted = |row: &Row| table.is_none_or(|table| table == shown(text(row, 0), text(row, 1).into()));
    let of_class = "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace";
    let (mut order, mut definitions) = (Vec::new(), HashMap::<String, Definition>::new());
    let columns = format!(
        "SELECT n.nspname::text, c.relname::text, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod)::text, \
                a.attnotnull::text, pg_catalog.pg_get_expr(d.adbin, d.adrelid)::text, a.attidentity::text, \
                a.attgenerated::text, pg_catalog.col_description(c.oid, a.attnum)::text \
         {of_class} JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
              LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum \
         WHERE c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped AND {OF_USERS} \
         ORDER BY n.nspname <> 'public', 1, 2, a.attnum"
    );
    for row in rows(runner, &columns).await?.iter().filter(|row| wanted(row)) {
        let name = named(text(row, 0), text(row, 1));
        let definition = definitions.entry(name.clone()).or_insert_with(|| {
            order.push(name.clone());
            Definition::default()
        });
        definition.parts.push(column(row));
        if let Some(Some(comment)) = row.get(8) {
            let column = quoted(text(row, 2));
            definition.after.push(format!("COMMENT ON COLUMN {name}.{column} IS {}", literal(comment)));
        }
    }
    let constraints = format!(
        "SELECT n.nspname::text, c.relname::text, k.conname::text, k.contype::text, \
                pg_catalog.pg_get_constraintdef(k.oid)::text \
         {of_class} JOIN pg_catalog.pg_constraint k ON k.conrelid = c.oid \
         WHERE k.contype IN ('p', 'u', 'c', 'f', 'x') AND {OF_USERS} ORDER BY 1, 2, k.contype <> 'p', 3"
    );
    let mut last = Vec::new();
    for row in rows(runner, &constraints).await? {
        let name = named(text(&row, 0), text(&row, 1));
        let Some(definition) = definitions.get_mut(&name) else { continue };
        let constraint = format!("CONSTRAINT {} {}", quoted(text(&row, 2)), text(&row, 4));
        match text(&row, 3) {
            // Tables may refer to each other.
            "f" => last.push(format!("ALTER TABLE {name} ADD {constraint}")),
            _ => definition.parts.push(constraint),
        }
    }
    let indexes = format!(
        "SELECT n.nspname::text, c.relname::text, pg_catalog.pg_get_indexdef(x.indexrelid)::text \
         {of_class} JOIN pg_catalog.pg_index x ON x.indrelid = c.oid \
              LEFT JOIN pg_catalog.pg_constraint k ON k.conindid = x.indexrelid AND k.contype IN ('p', 'u', 'x') \
         WHERE k.oid IS NULL AND {OF_USERS} ORDER BY 1, 2, 3"
    );
    for row in rows(runner, &indexes).await? {
        if let Some(definition) = definitions.get_mut(&named(text(&row, 0), text(&row, 1))) {
            definition.after.push(text(&row, 2).into());
        }
    }
    let mut statements = if table.is_none() { sequences(runner).await? } else { Vec::new() };
    for name in order {
        let Definition { parts, after } = definitions.remove(&name).unwrap_or_default();
        statements.push(format!("CREATE TABLE {name} (\n    {}\n)", parts.join(",\n    ")));
        statements.extend(after);
    }
    let views = format!(
        "SELECT n.nspname::text, c.relname::text, pg_catalog.pg_get_viewdef(c.oid)::text \
         {of_class} WHERE c.relkind = 'v' AND {OF_USERS} ORDER BY n.nspname <> 'public', 1, 2"
    );
    for row in rows(runner, &views).await?.iter().filter(|row| wanted(row)) {
        let query = text(row, 2).trim().trim_end_matches(';');
        statements.push(format!("CREATE VIEW {} AS {query}", named(text(row, 0), text(row, 1))));
    }
    match table {
        Some(table) if statements.is_empty() => Err(catalog::missing(runner, "table", table).await),
        _ => {
            let text: String = statements.iter().chain(&last).map(|statement| format!("{statement};\n")).collect();
            runner.show(&text)
        }
    }
}

/// The definitions of the sequences that are not those of identity columns.
async fn sequences(runner: &mut Runner) -> Result<Vec<String>> {
    let sql = format!(
        "SELECT n.nspname::text, c.relname::text, s.data_type::text, s.start_value::text, s.min_value::text, \
                s.max_value::text, s.increment_by::text, s.cycle::text \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
              JOIN pg_catalog.pg_sequences s ON s.schemaname = n.nspname AND s.sequencename = c.relname \
         WHERE c.relkind = 'S' AND {OF_USERS} AND c.oid NOT IN ( \
             SELECT d.objid FROM pg_catalog.pg_depend d WHERE d.deptype = 'i' AND d.objid IS NOT NULL) \
         ORDER BY n.nspname <> 'public', 1, 2"
    );
    let definition = |row: &Row| {
        let cycle = if text(row, 7).starts_with('t') { " CYCLE" } else { "" };
        format!(
            "CREATE SEQUENCE {} AS {} INCREMENT BY {} MINVALUE {} MAXVALUE {} START WITH {}{cycle}",
            named(text(row, 0), text(row, 1)),
            text(row, 2),
            text(row, 6),
            text(row, 4),
            text(row, 5),
            text(row, 3),
        )
    };
    Ok(rows(runner, &sql).await?.iter().map(definition).collect())
}

/// The definition of a column.
fn column(row: &[Option<String>]) -> String {
    let mut column = format!("{} {}", quoted(text(row, 2)), text(row, 3));
    match (text(row, 6), text(row, 7), text(row, 5)) {
        ("a", ..) => column.push_str(" GENERATED ALWAYS AS IDENTITY"),
        ("d", ..) => column.push_str(" GENERATED BY DEFAULT AS IDENTITY"),
        (_, "s", expression) => column.push_str(&format!(" GENERATED ALWAYS AS ({expression}) STORED")),
        (_, _, "") => {}
        (_, _, default) => column.push_str(&format!(" DEFAULT {default}")),
    }
    if text(row, 4).starts_with('t') {
        column.push_str(" NOT NULL");
    }
    column
}

/// Tables of the schema `public` and their columns, as of one moment.
#[derive(Debug, Default)]
pub struct Snapshot(Vec<(String, Vec<String>)>);

impl Names for Snapshot {
    fn tables(&self) -> Vec<String> {
        self.0.iter().map(|(table, _)| table.clone()).collect()
    }
    fn columns(&self, table: &str) -> Vec<String> {
        self.0.iter().find(|(known, _)| known == table).map(|(_, columns)| columns.clone()).unwrap_or_default()
    }
}

/// The names for completion.
///
/// # Errors
/// Errors of the server.
pub async fn names(runner: &mut Runner) -> Result<Snapshot> {
    let sql = format!(
        "SELECT c.relname::text, a.attname::text FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
         WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped \
         ORDER BY 1, a.attnum LIMIT {NAMES_MAX}"
    );
    let mut snapshot = Snapshot::default();
    for row in rows(runner, &sql).await? {
        let (table, column) = (text(&row, 0), text(&row, 1).to_string());
        match snapshot.0.last_mut().filter(|(known, _)| known == table) {
            Some((_, columns)) => columns.push(column),
            None => snapshot.0.push((table.into(), vec![column])),
        }
    }
    Ok(snapshot)
}

/// True if a statement in the text may create, change or drop a table.
pub fn defines(input: &str) -> bool {
    let words = tokens(input).into_iter().filter(|token| matches!(token.kind, Kind::Keyword | Kind::Identifier));
    let mut words = words.map(|token| token.text.to_ascii_lowercase());
    words.any(|word| matches!(word.as_str(), "create" | "alter" | "drop" | "rollback"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_of_columns() {
        let row = |values: &[&str]| -> Row {
            let texts = ["public", "t"].iter().chain(values);
            texts.map(|value| (*value != "NULL").then(|| value.to_string())).collect()
        };
        let shown = |values: &[&str]| column(&row(values));
        assert_eq!(
            shown(&["id", "bigint", "true", "NULL", "a", ""]),
            "id bigint GENERATED ALWAYS AS IDENTITY NOT NULL"
        );
        assert_eq!(shown(&["Odd Name", "text", "f", "'x'::text", "", ""]), "\"Odd Name\" text DEFAULT 'x'::text");
        assert_eq!(shown(&["g", "integer", "false", "a + 1", "", "s"]), "g integer GENERATED ALWAYS AS (a + 1) STORED");
    }

    #[test]
    fn definitions_change_names() {
        assert!(defines("CREATE TABLE t (a INT)") && defines("select 1; drop table t") && defines("ROLLBACK"));
        assert!(!defines("SELECT 'create'") && !defines("-- drop\nSELECT 1"));
    }
}
