//! New names of tables, views, sequences and schemas: the catalog contains a name in its own definition and in those of
//! the objects that use it.
//!
//! | definition | names |
//! |---|---|
//! | table | its own, those of the sequences of identity columns, referenced tables, sequences in defaults |
//! | view | its own, relations and sequences in the query |
//! | sequence | its own |

use std::sync::Arc;

use keyaki_store::WriteBatch;

use super::qualify;
use crate::Result;
use crate::catalog::{Catalog, DocumentKind, RelationName, Table, ViewDef, put, remove};

/// The new name of a relation; `None` if it stays.
pub(super) type NewName<'a> = dyn Fn(&RelationName) -> Option<RelationName> + Sync + 'a;

/// Renames relations in all definitions. Columns of views keep their names: a renamed table gets its old name as an alias.
///
/// # Errors
/// `Syntax` for a damaged definition.
pub(super) fn apply(changed: &mut Catalog, batch: &mut WriteBatch, new: &NewName<'_>) -> Result<()> {
    let old = changed.clone();
    for table in old.tables.values() {
        rename_in_table(&old, changed, batch, table, new)?;
    }
    for view in old.views.values() {
        let mut renamed = ViewDef::clone(view);
        rename(&mut renamed.name, new);
        let query = super::parse_query(&view.sql)?;
        let mut with_names = query.clone();
        qualify::renamed(&mut *with_names, &old, new)?;
        if with_names != query {
            renamed.sql = with_names.to_string();
        }
        if renamed != **view {
            remove(batch, DocumentKind::View, &view.name)?;
            changed.views.remove(&view.name);
            put(batch, DocumentKind::View, &renamed.name, &renamed)?;
            changed.views.insert(renamed.name.clone(), Arc::new(renamed));
        }
    }
    for (name, sequence) in &old.sequences {
        if let Some(new) = new(name) {
            remove(batch, DocumentKind::Sequence, name)?;
            changed.sequences.remove(name);
            let mut renamed = (**sequence).clone();
            renamed.name = new;
            put(batch, DocumentKind::Sequence, &renamed.name, &renamed)?;
            changed.sequences.insert(renamed.name.clone(), Arc::new(renamed));
        }
    }
    Ok(())
}

fn rename(name: &mut RelationName, new: &NewName<'_>) {
    if let Some(new) = new(name) {
        *name = new;
    }
}

fn rename_in_table(
    old: &Catalog,
    changed: &mut Catalog,
    batch: &mut WriteBatch,
    table: &Table,
    new: &NewName<'_>,
) -> Result<()> {
    let mut def = table.def.clone();
    rename(&mut def.name, new);
    def.foreign_keys.iter_mut().for_each(|key| rename(&mut key.references, new));
    for column in &mut def.columns {
        if let Some(identity) = &mut column.identity {
            rename(&mut identity.sequence.name, new);
        }
        if let Some(sql) = &mut column.default {
            let expr = super::parse_expr(sql)?;
            let mut with_names = expr.clone();
            qualify::renamed(&mut with_names, old, new)?;
            if with_names != expr {
                *sql = with_names.to_string();
            }
        }
    }
    if def == table.def {
        return Ok(());
    }
    if def.name != table.def.name {
        changed.tables.remove(&table.def.name);
        remove(batch, DocumentKind::Table, &table.def.name)?;
        remove(batch, DocumentKind::Statistics, &table.def.name)?;
        if let Some(statistics) = &table.statistics {
            put(batch, DocumentKind::Statistics, &def.name, &**statistics)?;
        }
    }
    put(batch, DocumentKind::Table, &def.name, &def)?;
    changed.tables.insert(def.name.clone(), Arc::new(Table::new(def, table.statistics.clone())?));
    Ok(())
}
