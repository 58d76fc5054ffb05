//! DROP TABLE and DROP INDEX: remove definitions and trees of all named objects in one batch, all of them or none. With
//! CASCADE, foreign keys, views and defaults that depend on them are dropped, too.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::ObjectName;
use keyaki_store::WriteBatch;

use super::foreign_keys;
use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, DocumentKind, RelationName, Table, put, remove_table};
use crate::sql::state::StatementState;
use crate::sql::{Outcome, SqlSession, access, notices, sequences, views};
use crate::{Error, ObjectKind, Result};

pub(crate) async fn drop_table(
    session: &SqlSession,
    execution: &Execution<'_>,
    names: &[ObjectName],
    if_exists: bool,
    cascades: bool,
) -> Result<Outcome> {
    let engine = &session.engine;
    let writer = session.writer(execution, "DROP TABLE").await?;
    let (catalog, snapshot) = engine.latest(&writer);
    let mut changed = Catalog::clone(&catalog);
    let mut batch = WriteBatch::new();
    let mut dropped = Vec::new();
    for name in names {
        let name = session.relation(&catalog, name)?;
        access::removal(session, &catalog, &name)?;
        match remove_from(&mut changed, &mut batch, &name)? {
            true => {}
            false if changed.views.contains_key(&name) => {
                return Err(Error::WrongObjectType {
                    name: name.to_string(),
                    found: ObjectKind::View,
                    expected: ObjectKind::Table,
                    hint: Some("use DROP VIEW"),
                });
            }
            false if if_exists => notices::missing(session, "table", &name.to_string()),
            false => return Err(Error::NotFound { kind: ObjectKind::Table, name: name.to_string() }),
        }
        dropped.push(name);
    }
    for name in &dropped {
        let Some(table) = catalog.tables.get(name) else { continue };
        let action = format!("drop table \"{name}\"");
        let cascades = if cascades { Ok(()) } else { Err(action.as_str()) };
        sequences::without_users_of(&mut changed, &mut batch, &table.def, cascades)?;
    }
    let state = StatementState::new(session, catalog.clone(), snapshot)?;
    if cascades {
        let named = dropped.clone();
        drop_dependents(&state, dropped, &mut changed, &mut batch)?;
        notices::cascaded(session, &catalog, &changed, &named);
    } else {
        for name in &dropped {
            foreign_keys::check_unreferenced(&changed, name, &[], &format!("drop table \"{name}\""))?;
        }
        views::check_unused(&state, &dropped)?;
    }
    if !batch.is_empty() {
        engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done("DROP TABLE"))
}

/// Removes a table from a catalog. Returns false if it does not exist.
///
/// # Errors
/// None is expected.
pub(crate) fn remove_from(changed: &mut Catalog, batch: &mut WriteBatch, name: &RelationName) -> Result<bool> {
    let Some(table) = changed.tables.remove(name) else { return Ok(false) };
    remove_table(batch, &table.def, true)?;
    Ok(true)
}

/// Drops the foreign keys that refer to dropped tables, and the views that use dropped tables or views.
///
/// # Errors
/// None is expected.
pub(crate) fn drop_dependents(
    state: &StatementState,
    dropped: Vec<RelationName>,
    changed: &mut Catalog,
    batch: &mut WriteBatch,
) -> Result<()> {
    for name in &dropped {
        foreign_keys::change_references(changed, batch, name, |_, keys| {
            keys.retain(|key| key.references != *name);
        })?;
    }
    views::drop_users(state, dropped, changed, batch)
}

pub(crate) async fn drop_index(
    session: &SqlSession,
    execution: &Execution<'_>,
    names: &[ObjectName],
    if_exists: bool,
    cascades: bool,
) -> Result<Outcome> {
    let engine = &session.engine;
    let writer = session.writer(execution, "DROP INDEX").await?;
    let (catalog, _) = engine.latest(&writer);
    let mut changed = Catalog::clone(&catalog);
    let mut batch = WriteBatch::new();
    for name in names {
        let name = session.relation(&catalog, name)?;
        match changed.index(&name).map(|(table, position)| (table.clone(), position)) {
            Some((table, position)) => {
                access::removal(session, &catalog, &table.def.name)?;
                let mut def = table.def.clone();
                let index = def.indexes.remove(position);
                batch.drop_tree(index.tree);
                let table = Table::new(def, table.statistics.clone())?;
                let action = format!("drop index \"{name}\"");
                let table = foreign_keys::check_referenced(&mut changed, &mut batch, table, cascades, &action)?;
                put(&mut batch, DocumentKind::Table, &table.def.name, &table.def)?;
                changed.tables.insert(table.def.name.clone(), Arc::new(table));
            }
            None if if_exists => notices::missing(session, "index", &name.to_string()),
            None => return Err(Error::NotFound { kind: ObjectKind::Index, name: name.to_string() }),
        }
    }
    if !batch.is_empty() {
        engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done("DROP INDEX"))
}
