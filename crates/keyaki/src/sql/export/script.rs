//! The scripts of an export.
//!
//! CREATE TABLE chooses the names of the sequences of identity columns. Where it chooses another name than the exported
//! database has, ALTER SEQUENCE follows at once. Renaming a sequence changes the defaults that use it. Tables with such
//! defaults therefore come last.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::Statement;
use keyaki_store::Snapshot;

use super::access;
use crate::Result;
use crate::catalog::{Catalog, RelationName, SequenceDef, SequencePosition, Table, TableDef, ViewDef, positions_at};
use crate::sql::names::{full_sql, quoted, shown_sql};
use crate::sql::state::StatementState;
use crate::sql::{SqlSession, parse_expr, parse_query, sequences, show};

#[derive(Debug)]
pub(super) struct Scripts {
    /// Statements to execute before the rows are loaded.
    pub schema: String,
    /// Statements to execute afterwards.
    pub finish: String,
    /// Statements that create the roles; `None` if there are none.
    pub roles: Option<String>,
}

/// The scripts of all objects that are not temporary.
///
/// # Errors
/// Those of planning a view that has become invalid, because its definition would fail in another database, too.
pub(super) async fn scripts(
    session: &SqlSession,
    catalog: &Arc<Catalog>,
    snapshot: &Snapshot,
    has_passwords: bool,
) -> Result<Scripts> {
    let mut tables: Vec<&TableDef> = catalog.tables.values().map(|table| &table.def).collect();
    tables.retain(|def| !def.name.is_temporary());
    let views = views(session, catalog, snapshot).await?;
    let finish = [
        tables.iter().flat_map(|def| indexes(def)).collect(),
        tables.iter().flat_map(|def| show::foreign_keys(def)).collect(),
        views.iter().map(|view| show::create_view(view)).collect(),
        comments(catalog, &tables, &views),
        positions(session, catalog, snapshot)?,
        access::privileges(catalog),
    ];
    let roles = (!catalog.roles.is_empty()).then(|| text("before", &[access::roles(catalog, has_passwords)]));
    let schema = [
        catalog.schemas.iter().map(|name| format!("CREATE SCHEMA {}", quoted(name))).collect(),
        lasting_sequences(catalog).map(sequences::create_sql).collect(),
        create_tables(catalog, tables)?,
    ];
    Ok(Scripts { schema: text("before", &schema), finish: text("after", &finish), roles })
}

/// The text of a script: groups of statements.
fn text(moment: &str, groups: &[Vec<String>]) -> String {
    let mut text = format!("-- Objects that are created {moment} the rows are loaded.\n");
    for group in groups.iter().filter(|group| !group.is_empty()) {
        text.push('\n');
        group.iter().for_each(|statement| text.push_str(&format!("{statement};\n")));
    }
    text
}

/// The sequences of CREATE SEQUENCE.
fn lasting_sequences(catalog: &Catalog) -> impl Iterator<Item = &SequenceDef> {
    catalog.sequences.values().map(|def| &**def).filter(|def| !def.name.is_temporary())
}

/// CREATE TABLE statements, with the names of sequences.
fn create_tables(catalog: &Catalog, mut tables: Vec<&TableDef>) -> Result<Vec<String>> {
    let mut created = Catalog::default();
    for def in lasting_sequences(catalog) {
        created.sequences.insert(def.name.clone(), Arc::new(def.clone()));
    }
    let mut late = BTreeSet::new();
    for def in &tables {
        if uses_sequence(def)? {
            late.insert(def.name.clone());
        }
    }
    tables.sort_by_key(|def| late.contains(&def.name));
    let mut statements = Vec::new();
    for def in tables {
        statements.push(show::create_table_without_references(def));
        let mut bare = def.clone();
        bare.indexes.retain(|index| index.constraint);
        statements.extend(rename_identities(&bare, &created));
        created.tables.insert(def.name.clone(), Arc::new(Table::new(bare, None)?));
    }
    Ok(statements)
}

/// True if the default of a column calls a function with the name of a sequence.
fn uses_sequence(def: &TableDef) -> Result<bool> {
    for default in def.columns.iter().filter_map(|column| column.default.as_ref()) {
        if sequences::calls_sequence(&parse_expr(default)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// ALTER SEQUENCE statements for the sequences of identity columns that get other names from CREATE TABLE in the
/// catalog `created`.
fn rename_identities(def: &TableDef, created: &Catalog) -> Vec<String> {
    let mut chosen = def.clone();
    for column in &mut chosen.columns {
        if let Some(identity) = &mut column.identity {
            identity.sequence.name = sequences::identity_name(&def.name, &column.name);
        }
    }
    sequences::name_identities(&mut chosen, created);
    let names = |def: &TableDef| -> Vec<RelationName> {
        let identities = def.columns.iter().filter_map(|column| column.identity.as_ref());
        identities.map(|identity| identity.sequence.name.clone()).collect()
    };
    let mut open: Vec<(RelationName, RelationName)> = names(&chosen).into_iter().zip(names(def)).collect();
    open.retain(|(old, new)| old != new);
    let rename = |old: &RelationName, new: &RelationName| {
        format!("ALTER SEQUENCE {} RENAME TO {}", shown_sql(old), quoted(&new.name))
    };
    let mut statements = Vec::new();
    while let Some((first, _)) = open.first() {
        let is_free = |name: &RelationName| open.iter().all(|(old, _)| old != name);
        match open.iter().position(|(_, new)| is_free(new)) {
            Some(place) => {
                let (old, new) = open.remove(place);
                statements.push(rename(&old, &new));
            }
            // The sequences exchange their names.
            None => {
                let taken = |name: &RelationName| created.has_relation(name) || *name == def.name || !is_free(name);
                let numbered = (1_u32..).map(|n| first.sibling(format!("{}_{n}", first.name)));
                let Some(other) = numbered.into_iter().find(|name| !taken(name)) else { break };
                statements.push(rename(first, &other));
                open[0].0 = other;
            }
        }
    }
    statements
}

/// CREATE INDEX statements. UNIQUE constraints belong to the table.
fn indexes(def: &TableDef) -> Vec<String> {
    let indexes = def.indexes.iter().filter(|index| !index.constraint);
    indexes.map(|index| show::create_index(def, index)).collect()
}

/// The views in an order in which a view follows all views that it uses.
async fn views(session: &SqlSession, catalog: &Arc<Catalog>, snapshot: &Snapshot) -> Result<Vec<Arc<ViewDef>>> {
    let state = StatementState::new(session, catalog.clone(), snapshot.clone())?;
    let mut open = Vec::new();
    for view in catalog.views.values().filter(|view| !view.name.is_temporary()) {
        let invalid = |error: crate::Error| error.within(format!("view \"{}\"", view.name));
        state.plan_stored(&view.sql).await.map_err(invalid)?;
        let query = DfStatement::Statement(Box::new(Statement::Query(parse_query(&view.sql)?)));
        open.push((view.clone(), state.relations_named(&query)?));
    }
    let mut ordered = Vec::new();
    while !open.is_empty() {
        let waiting: BTreeSet<RelationName> = open.iter().map(|(view, _)| view.name.clone()).collect();
        let is_ready = |(_, used): &(_, Vec<RelationName>)| used.iter().all(|name| !waiting.contains(name));
        let (ready, others): (Vec<_>, Vec<_>) = open.into_iter().partition(is_ready);
        // No view uses itself: there is always one that is ready.
        let (next, others) = if ready.is_empty() { (others, Vec::new()) } else { (ready, others) };
        ordered.extend(next.into_iter().map(|(view, _)| view));
        open = others;
    }
    Ok(ordered)
}

fn comments(catalog: &Catalog, tables: &[&TableDef], views: &[Arc<ViewDef>]) -> Vec<String> {
    let mut comments = show::schema_comments(catalog);
    comments.extend(lasting_sequences(catalog).filter_map(show::sequence_comment));
    comments.extend(tables.iter().flat_map(|def| show::table_comments(def)));
    comments.extend(views.iter().filter_map(|view| show::view_comment(view)));
    comments
}

/// Calls of `setval` for all sequences that do not begin at their start.
fn positions(session: &SqlSession, catalog: &Catalog, snapshot: &Snapshot) -> Result<Vec<String>> {
    let stored = positions_at(&session.engine.store, snapshot)?;
    let lasting = catalog.sequences().map(|(def, _)| def).filter(|def| !def.name.is_temporary());
    let position = |def: &SequenceDef| {
        let position = session.engine.sequences.position_of(def, stored.get(&def.id).copied());
        let (value, is_taken) = setting(def, position)?;
        let name = full_sql(&def.name).replace('\'', "''");
        Some(format!("SELECT setval('{name}', {value}, {is_taken})"))
    };
    Ok(lasting.filter_map(position).collect())
}

/// The arguments of `setval` that lead to a position; `None` for that of a new sequence.
fn setting(def: &SequenceDef, position: SequencePosition) -> Option<(i64, bool)> {
    let is_within = |value: &i64| (def.min..=def.max).contains(value);
    let end = if def.increment > 0 { def.max } else { def.min };
    match (position.last.filter(is_within), position.next.and_then(|next| def.within(next))) {
        (None, Some(next)) if next == def.start => None,
        (Some(last), _) => Some((last, true)),
        (None, Some(next)) => Some((next, false)),
        (None, None) => Some((end, true)),
    }
}
