//! RENAME of tables, columns, constraints and indexes: changes of the definition only. The trees have no names, and the
//! names of their columns are not used.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{
    AlterIndexOperation, AlterTableOperation, Expr, ObjectName, RenameTableNameKind, VisitorMut,
};
use keyaki_store::WriteBatch;

use super::foreign_keys;
use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, DocumentKind, ForeignKeyDef, Table, TableDef, put, remove};
use crate::sql::names::{ident, new_name, new_sibling, plain_ident};
use crate::sql::state::StatementState;
use crate::sql::visit::walk_mut;
use crate::sql::{Outcome, SqlSession, access, parse_expr, views};
use crate::write::WriteStatement;
use crate::{Error, ObjectKind, Result};

pub(super) fn is_rename(operation: &AlterTableOperation) -> bool {
    use AlterTableOperation as Operation;
    matches!(
        operation,
        Operation::RenameTable { .. } | Operation::RenameColumn { .. } | Operation::RenameConstraint { .. }
    )
}

/// Renames a table, a column or a constraint.
///
/// # Errors
/// `DependentObject` if a view uses the table under its old name, or the column; `AlreadyExists`, `ColumnExists`,
/// `UndefinedColumn`, `NotFound`, `InvalidName`, `ReservedName`.
pub(super) async fn table(
    session: &SqlSession,
    statement: &WriteStatement,
    state: &StatementState,
    table: &Arc<Table>,
    operation: &AlterTableOperation,
) -> Result<()> {
    let mut def = table.def.clone();
    let old_name = def.name.clone();
    let action = match operation {
        AlterTableOperation::RenameTable { table_name } => {
            let (RenameTableNameKind::As(name) | RenameTableNameKind::To(name)) = table_name;
            let name = new_sibling(name, &old_name)?;
            access::creation(session, &state.catalog, &name)?;
            state.catalog.check_free(&name)?;
            if !def.hidden_rowid {
                def.primary_key_name = Some(def.primary_key_name());
            }
            def.name = name;
            format!("rename table \"{old_name}\"")
        }
        AlterTableOperation::RenameColumn { old_column_name, new_column_name } => {
            let (old, new) = (plain_ident(old_column_name), new_name(new_column_name)?);
            column(&mut def, table.column(&old)?, new)?;
            format!("rename column \"{old}\" of table \"{old_name}\"")
        }
        AlterTableOperation::RenameConstraint { old_name, new_name: name } => {
            constraint(&state.catalog, &mut def, &plain_ident(old_name), new_name(name)?)?;
            format!("rename constraint \"{old_name}\"")
        }
        other => return Err(Error::Unsupported(format!("ALTER TABLE … {other}"))),
    };
    let mut changed = Catalog::clone(&state.catalog);
    let mut batch = WriteBatch::new();
    let (table_name, column_names) = (def.name.clone(), column_names(&table.def, &def));
    let rename = |key: &mut ForeignKeyDef| {
        key.references.clone_from(&table_name);
        key.referenced.iter_mut().for_each(|column| column.clone_from(&column_names[column]));
    };
    def.foreign_keys.iter_mut().filter(|key| key.references == old_name).for_each(rename);
    foreign_keys::change_references(&mut changed, &mut batch, &old_name, |_, keys| {
        keys.iter_mut().filter(|key| key.references == old_name).for_each(rename);
    })?;
    let renamed = Arc::new(Table::new(def, table.statistics.clone())?);
    if renamed.def.name != old_name {
        changed.tables.remove(&old_name);
        remove(&mut batch, DocumentKind::Table, &old_name)?;
        remove(&mut batch, DocumentKind::Statistics, &old_name)?;
        if let Some(statistics) = &renamed.statistics {
            put(&mut batch, DocumentKind::Statistics, &renamed.def.name, &**statistics)?;
        }
    }
    put(&mut batch, DocumentKind::Table, &renamed.def.name, &renamed.def)?;
    changed.tables.insert(renamed.def.name.clone(), renamed);
    if let Some(dependent) = views::affected(session, state, &changed, &old_name, false).await?.into_iter().next() {
        return Err(Error::DependentObject { action, dependent: dependent.to_string() });
    }
    statement.engine.commit_catalog(&statement.writer, batch, changed).await
}

/// The new name of each column.
fn column_names(old: &TableDef, new: &TableDef) -> HashMap<String, String> {
    old.columns.iter().zip(&new.columns).map(|(old, new)| (old.name.clone(), new.name.clone())).collect()
}

/// Renames a column, also in CHECK conditions, generated columns, and expressions and predicates of indexes.
fn column(def: &mut TableDef, position: usize, new: String) -> Result<()> {
    if def.columns.iter().any(|column| column.name == new) {
        return Err(Error::ColumnExists { column: new, relation: def.name.to_string() });
    }
    let old = std::mem::replace(&mut def.columns[position].name, new.clone());
    let generated = def.columns.iter_mut().filter_map(|column| column.generated.as_mut());
    let of_indexes = def.indexes.iter_mut().flat_map(|index| index.texts_mut());
    for sql in def.checks.iter_mut().map(|check| &mut check.sql).chain(generated).chain(of_indexes) {
        let mut expr = parse_expr(sql)?;
        let _ = walk_mut(&mut expr, &mut RenameColumn { old: &old, new: &new });
        *sql = expr.to_string();
    }
    Ok(())
}

struct RenameColumn<'a> {
    old: &'a str,
    new: &'a str,
}

impl VisitorMut for RenameColumn<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(ident) = expr
            && plain_ident(ident) == self.old
        {
            *ident = self::ident(self.new);
        }
        ControlFlow::Continue(())
    }
}

/// Renames a constraint. That of UNIQUE is an index.
fn constraint(catalog: &Catalog, def: &mut TableDef, old: &str, new: String) -> Result<()> {
    if !def.has_constraint(old) {
        return Err(no_constraint(old, &def.name));
    }
    if def.has_constraint(&new) {
        return Err(Error::AlreadyExists { kind: ObjectKind::Constraint, name: new });
    }
    if !def.hidden_rowid && def.primary_key_name() == old {
        def.primary_key_name = Some(new);
    } else if let Some(index) = def.indexes.iter_mut().find(|index| index.constraint && index.name == old) {
        catalog.check_free(&def.name.sibling(new.clone()))?;
        index.name = new;
    } else if let Some(check) = def.checks.iter_mut().find(|check| check.name == old) {
        check.name = new;
    } else if let Some(key) = def.foreign_keys.iter_mut().find(|key| key.name == old) {
        key.name = new;
    }
    Ok(())
}

/// The error for a constraint that a table does not have.
pub(super) fn no_constraint(name: &str, table: &str) -> Error {
    Error::UndefinedConstraint { constraint: name.into(), relation: table.into() }
}

/// ALTER INDEX … RENAME TO.
pub(crate) async fn alter_index(
    session: &SqlSession,
    execution: &Execution<'_>,
    name: &ObjectName,
    operation: &AlterIndexOperation,
) -> Result<Outcome> {
    let AlterIndexOperation::RenameIndex { index_name } = operation;
    let writer = session.writer(execution, "ALTER INDEX").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let old = session.relation(&catalog, name)?;
    let Some((table, position)) = catalog.index(&old) else {
        return Err(Error::NotFound { kind: ObjectKind::Index, name: old.to_string() });
    };
    access::owner(session, &catalog, &table.def.name)?;
    let new = new_sibling(index_name, &old)?;
    access::creation(session, &catalog, &new)?;
    catalog.check_free(&new)?;
    let mut def = table.def.clone();
    if def.indexes[position].constraint && def.has_constraint(&new) {
        return Err(Error::AlreadyExists { kind: ObjectKind::Constraint, name: new.name });
    }
    def.indexes[position].name = new.name;
    let mut batch = WriteBatch::new();
    put(&mut batch, DocumentKind::Table, &def.name, &def)?;
    let mut changed = Catalog::clone(&catalog);
    changed.tables.insert(def.name.clone(), Arc::new(Table::new(def, table.statistics.clone())?));
    session.engine.commit_catalog(&writer, batch, changed).await?;
    Ok(Outcome::done("ALTER INDEX"))
}
