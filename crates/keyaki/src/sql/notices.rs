//! The notices of statements, with the texts and SQLSTATEs of PostgreSQL.

use std::sync::Arc;

use super::SqlSession;
use crate::base::notices::{Notice, Notices, Severity};
use crate::catalog::{Catalog, RelationName};

/// Objects of a CASCADE that the detail of its notice lists. The rest is counted.
const LISTED_MAX: usize = 100;

/// Adds a notice, if `client_min_messages` permits it.
pub(crate) fn add(session: &SqlSession, severity: Severity, sqlstate: &'static str, message: impl Into<String>) {
    add_with_detail(session, severity, sqlstate, message.into(), None);
}

fn add_with_detail(
    session: &SqlSession,
    severity: Severity,
    sqlstate: &'static str,
    message: String,
    detail: Option<String>,
) {
    if let Some(notices) = receiver(session, severity) {
        notices.add(Notice { severity, sqlstate, message, detail });
    }
}

/// The notices of the session, if `client_min_messages` permits those of a severity.
pub(super) fn receiver(session: &SqlSession, severity: Severity) -> Option<&Arc<Notices>> {
    let settings = session.client_settings.lock();
    let least = settings.all().find(|(name, _)| *name == "client_min_messages");
    let reaches = least.is_none_or(|(_, least)| severity.reaches(&least.to_ascii_lowercase()));
    reaches.then_some(&session.notices)
}

/// A statement with IF NOT EXISTS does nothing, because a relation exists.
pub(super) fn relation_exists(session: &SqlSession, name: &RelationName) {
    add(session, Severity::Notice, "42P07", format!("relation \"{}\" already exists, skipping", name.name));
}

/// As [`relation_exists`], for a schema.
pub(super) fn schema_exists(session: &SqlSession, name: &str) {
    add(session, Severity::Notice, "42P06", format!("schema \"{name}\" already exists, skipping"));
}

/// As [`relation_exists`], for a column.
pub(super) fn column_exists(session: &SqlSession, column: &str, table: &RelationName) {
    let message = format!("column \"{column}\" of relation \"{}\" already exists, skipping", table.name);
    add(session, Severity::Notice, "42701", message);
}

/// A statement with IF EXISTS leaves out an object that does not exist.
pub(super) fn missing(session: &SqlSession, kind: &str, name: &str) {
    add(session, Severity::Notice, "00000", format!("{kind} \"{name}\" does not exist, skipping"));
}

/// As [`missing`], for a part of a table.
pub(super) fn missing_part(session: &SqlSession, kind: &str, name: &str, table: &RelationName) {
    let message = format!("{kind} \"{name}\" of relation \"{}\" does not exist, skipping", table.name);
    add(session, Severity::Notice, "00000", message);
}

/// The message of a statement that has left out rows of files.
pub(super) fn skipped_rows(count: u64) -> String {
    match count {
        1 => "1 row with errors was skipped".into(),
        count => format!("{count} rows with errors were skipped"),
    }
}

/// A statement has no effect outside of a transaction.
pub(super) fn outside_of_transactions(session: &SqlSession, statement: &str) {
    let message = format!("{statement} can only be used in transaction blocks");
    add(session, Severity::Warning, "25P01", message);
}

/// Lists what a DROP with CASCADE has removed besides the objects that it names.
pub(super) fn cascaded(session: &SqlSession, before: &Catalog, after: &Catalog, named: &[RelationName]) {
    let is_gone = |name: &&RelationName| !named.contains(name);
    let tables = before.tables.keys().filter(|name| !after.tables.contains_key(*name)).filter(is_gone);
    let views = before.views.keys().filter(|name| !after.views.contains_key(*name)).filter(is_gone);
    let sequences = before.sequences.keys().filter(|name| !after.sequences.contains_key(*name)).filter(is_gone);
    let mut removed: Vec<String> = tables.map(|name| format!("table {name}")).collect();
    removed.extend(views.map(|name| format!("view {name}")));
    removed.extend(sequences.map(|name| format!("sequence {name}")));
    for (name, table) in &before.tables {
        let Some(kept) = after.tables.get(name) else { continue };
        let keys = table.def.foreign_keys.iter();
        let gone = keys.filter(|key| !kept.def.foreign_keys.iter().any(|other| other.name == key.name));
        removed.extend(gone.map(|key| format!("constraint {} on table {name}", key.name)));
    }
    match removed.as_slice() {
        [] => {}
        [one] => add(session, Severity::Notice, "00000", format!("drop cascades to {one}")),
        several => {
            let listed = several.iter().take(LISTED_MAX).map(|name| format!("drop cascades to {name}"));
            let mut lines: Vec<String> = listed.collect();
            if several.len() > LISTED_MAX {
                lines.push(format!("and {} other objects", several.len() - LISTED_MAX));
            }
            let message = format!("drop cascades to {} other objects", several.len());
            add_with_detail(session, Severity::Notice, "00000", message, Some(lines.join("\n")));
        }
    }
}
