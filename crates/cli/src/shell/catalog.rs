//! The commands that list objects of the database.

use keyaki::{Database, TableInfo};

use super::complete::{PUBLIC, quoted};
use super::server::{OF_USERS, rows, text};
use crate::failure::{Failure, Result};
use crate::output::statements::text_literal;
use crate::output::table_on;
use crate::run::Runner;
use crate::similar::similar;
use crate::terminal;

pub fn tables(runner: &mut Runner, pattern: Option<&str>) -> Result<()> {
    let mut listed = comfy_table::Table::new();
    listed.load_preset(comfy_table::presets::NOTHING).set_header(["table", "rows", "bytes"]);
    for table in runner.session()?.database().tables() {
        let name = shown(&table.schema, table.name);
        if pattern.is_none_or(|pattern| like(pattern, &name)) {
            let (rows, bytes) = if table.is_view {
                ("view".into(), String::new())
            } else {
                (format!("~{}", terminal::thousands(table.rows.round().max(0.0) as u64)), terminal::bytes(table.bytes))
            };
            listed.add_row([name, rows, bytes]);
        }
    }
    show_list(runner, listed, &[1, 2])
}

pub async fn indexes(runner: &mut Runner, table: Option<&str>) -> Result<()> {
    let mut listed = comfy_table::Table::new();
    listed.load_preset(comfy_table::presets::NOTHING).set_header([
        "index",
        "table",
        "method",
        "columns",
        "include",
        "",
        "bytes",
        "in memory",
    ]);
    for index in runner.session()?.database().indexes() {
        let of = shown(&index.schema, index.table.clone());
        if table.is_none_or(|table| table == of) {
            let unique = if index.unique { "unique" } else { "" };
            let bytes = terminal::bytes(index.bytes);
            let memory = Some(index.memory_bytes()).filter(|&bytes| bytes > 0).map(terminal::bytes);
            let (columns, include) = (index.columns.join(", "), index.include.join(", "));
            let method = index.method.to_string();
            let memory = memory.unwrap_or_default();
            let name = shown(&index.schema, index.name);
            listed.add_row([name, of, method, columns, include, unique.into(), bytes, memory]);
        }
    }
    if let (Some(table), true) = (table, listed.is_empty())
        && !runner.session()?.database().tables().iter().any(|info| shown(&info.schema, info.name.clone()) == table)
    {
        return Err(missing(runner, "table", table).await);
    }
    show_list(runner, listed, &[6, 7])
}

/// The error for a table that does not exist, with the name of one that does.
pub(super) async fn missing(runner: &mut Runner, kind: &str, name: &str) -> Failure {
    let sql = format!(
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND {OF_USERS}"
    );
    // In a failed transaction, the query fails, too.
    let found = rows(runner, &sql).await.unwrap_or_default();
    let names: Vec<String> = found.iter().map(|row| shown(text(row, 0), text(row, 1).into())).collect();
    let hint = similar(name, names.iter().map(String::as_str));
    let hint = hint.map(|hint| format!(": did you mean {hint}?")).unwrap_or_default();
    Failure::message(format!("{kind} \"{name}\" does not exist{hint} (.tables lists the tables and views)"))
}

/// A name with its schema, unless that is `public`.
pub(super) fn shown(schema: &str, name: String) -> String {
    if schema == PUBLIC { name } else { format!("{schema}.{name}") }
}

pub(super) fn show_list(runner: &mut Runner, mut listed: comfy_table::Table, numbers: &[usize]) -> Result<()> {
    if listed.is_empty() {
        return Ok(());
    }
    for &number in numbers {
        if let Some(column) = listed.column_mut(number) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    runner.show(&format!("{}\n", listed.trim_fmt()))
}

/// The statement that creates a table or view; those for its indexes and comments.
fn definition_parts(database: &Database, info: &TableInfo) -> (String, String) {
    let create = format!("{};\n", info.sql.trim_end().trim_end_matches(';'));
    let mut rest = String::new();
    let indexes = database.indexes();
    for index in indexes.iter().filter(|index| (&index.schema, &index.table) == (&info.schema, &info.name)) {
        rest.push_str(&format!("{};\n", index.sql.trim_end().trim_end_matches(';')));
    }
    info.comments.iter().for_each(|comment| rest.push_str(&format!("{comment};\n")));
    (create, rest)
}

/// The statement that creates a table, and the statements to execute after its rows are inserted.
pub fn definition(database: &Database, info: &TableInfo) -> (String, String) {
    let (create, mut rest) = definition_parts(database, info);
    info.foreign_keys.iter().for_each(|key| rest.push_str(&format!("{key};\n")));
    (create, rest)
}

/// The schemas of temporary objects begin with this prefix.
const TEMPORARY_PREFIX: &str = "pg_temp_";

pub async fn schema(runner: &mut Runner, table: Option<&str>) -> Result<()> {
    let database = runner.session()?.database().clone();
    // Scripts do not create temporary objects.
    let wanted = |name: &str| table.map_or(!name.starts_with(TEMPORARY_PREFIX), |table| table == name);
    let (mut text, mut last) = (String::new(), String::new());
    let mut found = false;
    if table.is_none() {
        database.schemas().iter().for_each(|name| text.push_str(&format!("CREATE SCHEMA {};\n", quoted(name))));
        database.schema_comments().iter().for_each(|comment| text.push_str(&format!("{comment};\n")));
    }
    // The defaults of tables use them.
    for sequence in database.sequences() {
        if !wanted(&shown(&sequence.schema, sequence.name)) {
            continue;
        }
        found = true;
        for statement in std::iter::once(sequence.sql).chain(sequence.comment) {
            text.push_str(&format!("{statement};\n"));
        }
    }
    for info in database.tables() {
        if !wanted(&shown(&info.schema, info.name.clone())) {
            continue;
        }
        found = true;
        let (create, rest) = definition_parts(&database, &info);
        text.push_str(&create);
        text.push_str(&rest);
        info.foreign_keys.iter().for_each(|key| last.push_str(&format!("{key};\n")));
    }
    match table {
        Some(table) if !found => Err(missing(runner, "table", table).await),
        _ => runner.show(&(text + &last)),
    }
}

pub fn databases(runner: &mut Runner) -> Result<()> {
    let database = runner.session()?.database().clone();
    let stats = database.store().stats();
    runner.say(&format!(
        "{}  {} ({} in use), {} cached",
        database.path().display(),
        terminal::bytes(stats.data_file_bytes),
        terminal::bytes(stats.data_bytes_used),
        terminal::bytes(stats.cache_bytes),
    ))
}

/// The views, with their definitions.
///
/// # Errors
/// Errors of the server and of the output.
pub async fn views(runner: &mut Runner, pattern: Option<&str>) -> Result<()> {
    let sql = format!(
        "SELECT n.nspname::text, c.relname::text, pg_catalog.pg_get_viewdef(c.oid)::text \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind = 'v' AND {OF_USERS} ORDER BY n.nspname <> 'public', 1, 2"
    );
    let mut listed = comfy_table::Table::new();
    listed.load_preset(comfy_table::presets::NOTHING).set_header(["view", "definition"]);
    for row in rows(runner, &sql).await? {
        let name = shown(text(&row, 0), text(&row, 1).into());
        if pattern.is_none_or(|pattern| like(pattern, &name)) {
            listed.add_row([name, text(&row, 2).trim().into()]);
        }
    }
    show_list(runner, listed, &[])
}

/// The schemas.
///
/// # Errors
/// As [`views`].
pub async fn schemas(runner: &mut Runner) -> Result<()> {
    let sql = format!("SELECT n.nspname::text AS schema FROM pg_catalog.pg_namespace n WHERE {OF_USERS} ORDER BY 1");
    show_rows(runner, &sql).await
}

/// The roles and their rights.
///
/// # Errors
/// As [`views`].
pub async fn roles(runner: &mut Runner) -> Result<()> {
    let sql = "SELECT r.rolname::text AS role, r.rolsuper AS superuser, r.rolcanlogin AS login, \
                      r.rolcreaterole AS creates_roles, r.rolconnlimit AS connections \
               FROM pg_catalog.pg_roles r WHERE r.rolname NOT LIKE 'pg\\_%' ORDER BY 1";
    show_rows(runner, sql).await
}

/// Runs a query and shows its rows as a boxed table.
async fn show_rows(runner: &mut Runner, sql: &str) -> Result<()> {
    let batches = runner.collect(sql).await?;
    let text = table_on(&batches, runner.screen())?;
    runner.show(&text)
}

/// The columns, indexes and constraints of a table or view.
///
/// # Errors
/// If it does not exist; as [`views`].
pub async fn describe(runner: &mut Runner, name: &str) -> Result<()> {
    let (schema, table) = name.split_once('.').unwrap_or((PUBLIC, name));
    let relation = format!("n.nspname = {} AND c.relname = {}", text_literal(schema), text_literal(table));
    let of_class = "pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace";
    let columns = format!(
        "SELECT a.attname::text AS \"column\", pg_catalog.format_type(a.atttypid, a.atttypmod)::text AS type, \
                CASE WHEN a.attnotnull THEN 'not null' ELSE '' END AS nullable, \
                CASE WHEN a.attidentity = 'a' THEN 'generated always as identity' \
                     WHEN a.attidentity = 'd' THEN 'generated by default as identity' \
                     WHEN a.attgenerated = 's' \
                     THEN 'generated always as (' || pg_catalog.pg_get_expr(d.adbin, d.adrelid)::text || ') stored' \
                     ELSE coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid)::text, '') END AS \"default\" \
         FROM {of_class} JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
              LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum \
         WHERE {relation} AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped \
         ORDER BY a.attnum"
    );
    let columns = runner.collect(&columns).await?;
    if columns.iter().all(|batch| batch.num_rows() == 0) {
        return Err(missing(runner, "table or view", name).await);
    }
    let mut shown = table_on(&columns, runner.screen())?;
    let indexes = format!(
        "SELECT pg_catalog.pg_get_indexdef(x.indexrelid)::text FROM {of_class} \
              JOIN pg_catalog.pg_index x ON x.indrelid = c.oid WHERE {relation} ORDER BY 1"
    );
    let constraints = format!(
        "SELECT k.conname::text, pg_catalog.pg_get_constraintdef(k.oid)::text \
         FROM {of_class} JOIN pg_catalog.pg_constraint k ON k.conrelid = c.oid \
         WHERE {relation} AND k.contype IN ('p', 'u', 'c', 'f', 'x') ORDER BY k.contype <> 'p', 1"
    );
    for (title, sql) in [("Indexes", indexes), ("Constraints", constraints)] {
        let found = rows(runner, &sql).await?;
        if !found.is_empty() {
            shown.push_str(&format!("{title}:\n"));
        }
        for row in found {
            let parts: Vec<&str> = row.iter().flatten().map(String::as_str).collect();
            shown.push_str(&format!("  {}\n", parts.join(" ")));
        }
    }
    runner.show(&shown)
}

/// SQL's LIKE, ignoring case.
pub(super) fn like(pattern: &str, text: &str) -> bool {
    fn matches(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('%', rest)), _) => (0..=text.len()).any(|skip| matches(rest, &text[skip..])),
            (Some(('_', pattern)), Some((_, text))) => matches(pattern, text),
            (Some((a, pattern)), Some((b, text))) if a == b => matches(pattern, text),
            _ => false,
        }
    }
    let chars = |text: &str| text.to_lowercase().chars().collect::<Vec<_>>();
    matches(&chars(pattern), &chars(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(like("o%", "orders") && like("%DER%", "orders") && like("_rders", "orders") && like("%", ""));
        assert!(!like("o", "orders") && !like("_", ""));
    }
}
