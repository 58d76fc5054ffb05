//! FOREIGN KEY constraints of a definition, and definitions that they depend on.
//!
//! *Invariant.* The columns that a foreign key refers to exist, have comparable types, and are a key: those of the primary
//! key or of a unique index. A statement that would break this is refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{
    ConstraintCharacteristics, ConstraintReferenceMatchKind, DeferrableInitial, ForeignKeyConstraint, Ident,
    ReferentialAction as SqlAction,
};
use keyaki_store::{ColumnType, WriteBatch};

use super::{check_distinct, column_position};
use crate::catalog::{
    Catalog, ConstraintTiming, DocumentKind, ForeignKeyDef, OnCommit, Privileges, ReferentialAction, RelationName,
    Table, TableDef, put, types,
};
use crate::sql::access;
use crate::sql::names::{new_name, plain_ident};
use crate::sql::state::StatementState;
use crate::write::foreign_keys::are_key;
use crate::{Error, ObjectKind, Result};

/// Adds a constraint to a definition, which may refer to itself. Without a name, it gets a name as in PostgreSQL:
/// `TABLE_COLUMNS_fkey`, with a number appended if the name is taken.
///
/// # Errors
/// `Unsupported`, `UndefinedColumn`, `NotFound`, `InvalidForeignKey`, `DatatypeMismatch`, `AlreadyExists`.
pub(super) fn add(def: &mut TableDef, state: &StatementState, key: &ForeignKeyConstraint) -> Result<()> {
    let ForeignKeyConstraint {
        name,
        index_name,
        columns,
        foreign_table,
        referred_columns,
        on_delete,
        on_update,
        match_kind,
        characteristics,
    } = key;
    let refuse = |refused: bool, what: &str| match refused {
        true => Err(Error::Unsupported(format!("FOREIGN KEY … {what}"))),
        false => Ok(()),
    };
    refuse(index_name.is_some(), "with the name of an index")?;
    let is_simple = matches!(match_kind, None | Some(ConstraintReferenceMatchKind::Simple));
    refuse(!is_simple, "MATCH FULL and MATCH PARTIAL (use NOT NULL or CHECK)")?;
    let mut timing = ConstraintTiming::NotDeferrable;
    if let Some(ConstraintCharacteristics { deferrable, initially, enforced }) = characteristics {
        timing = match (deferrable, initially) {
            (Some(false), Some(DeferrableInitial::Deferred)) => {
                let problem = "a constraint that is INITIALLY DEFERRED must be DEFERRABLE".into();
                return Err(Error::InvalidDefinition { kind: ObjectKind::Constraint, problem });
            }
            (_, Some(DeferrableInitial::Deferred)) => ConstraintTiming::Deferred,
            (Some(true), _) => ConstraintTiming::Immediate,
            _ => ConstraintTiming::NotDeferrable,
        };
        refuse(*enforced == Some(false), "NOT ENFORCED")?;
    }
    let names: Vec<&str> = def.columns.iter().map(|column| column.name.as_str()).collect();
    let columns = columns.iter().map(|ident| column_position(ident, &names)).collect::<Result<Vec<_>>>()?;
    check_distinct(&columns, &names)?;
    let (own, references) = (def.name.clone(), state.relation(foreign_table)?);
    // A new table is not in the catalog yet.
    let is_first =
        || own.is_temporary() || state.path.current(&state.catalog).is_ok_and(|schema| *schema == *own.schema);
    let is_own = references == own || (foreign_table.0.len() == 1 && references.name == own.name && is_first());
    let (references, referenced_table) = match is_own {
        true => (own, Arc::new(Table::new(def.clone(), None)?)),
        false => {
            let table = state.catalog.table(&references)?.clone();
            access::relation(&state.authority, &state.catalog, &references, Privileges::REFERENCES)?;
            (references, table)
        }
    };
    if references.schema != def.name.schema && (references.is_temporary() || def.name.is_temporary()) {
        let kind = |name: &RelationName| if name.is_temporary() { "temporary" } else { "permanent" };
        let problem = format!(
            "a foreign key cannot connect the {} table \"{}\" and the {} table \"{references}\"",
            kind(&def.name),
            def.name,
            kind(&references)
        );
        return Err(Error::InvalidDefinition { kind: ObjectKind::Constraint, problem });
    }
    if referenced_table.def.on_commit == Some(OnCommit::DeleteRows) && def.on_commit.is_none() {
        let problem = format!(
            "a foreign key from table \"{}\", which keeps its rows, to table \"{references}\" with ON COMMIT DELETE ROWS",
            def.name
        );
        return Err(Error::Unsupported(problem));
    }
    let referenced = referenced_columns(&referenced_table, referred_columns, columns.len())?;
    let name = match name {
        Some(name) => new_name(name)?,
        None => free_name(def, &columns),
    };
    if def.has_constraint(&name) {
        return Err(Error::AlreadyExists { kind: ObjectKind::Constraint, name });
    }
    for (&column, &other) in columns.iter().zip(&referenced) {
        let (column, other) = (&def.columns[column], &referenced_table.def.columns[other]);
        if !is_comparable(column.ty.column, other.ty.column) {
            return Err(Error::DatatypeMismatch(format!(
                "foreign key constraint \"{name}\" cannot be implemented: key columns \"{}\" and \"{}\" are of incompatible \
                 types: {} and {}",
                column.name,
                other.name,
                types::sql_type_name(column.ty),
                types::sql_type_name(other.ty)
            )));
        }
    }
    let referenced = referenced.iter().map(|&column| referenced_table.def.columns[column].name.clone()).collect();
    let (on_delete, on_update) = (action(*on_delete), action(*on_update));
    check_actions(def, &columns, on_delete, on_update)?;
    def.foreign_keys.push(ForeignKeyDef { name, columns, references, referenced, on_delete, on_update, timing });
    Ok(())
}

/// Refuses actions that would change generated columns.
///
/// # Errors
/// `InvalidForeignKey`.
fn check_actions(
    def: &TableDef,
    columns: &[usize],
    on_delete: ReferentialAction,
    on_update: ReferentialAction,
) -> Result<()> {
    use ReferentialAction::{Cascade, NoAction, Restrict};
    let Some(&column) = columns.iter().find(|&&column| def.columns[column].generated.is_some()) else { return Ok(()) };
    let changes = match (on_delete, on_update) {
        (_, action @ (Cascade | ReferentialAction::SetNull | ReferentialAction::SetDefault)) => ("UPDATE", action),
        (action @ (ReferentialAction::SetNull | ReferentialAction::SetDefault), _) => ("DELETE", action),
        (Cascade | NoAction | Restrict, NoAction | Restrict) => return Ok(()),
    };
    let ((event, action), name) = (changes, &def.columns[column].name);
    Err(Error::InvalidForeignKey(format!("ON {event} {action} would change generated column \"{name}\"")))
}

/// The positions of the referenced columns: those given, or the primary key.
fn referenced_columns(table: &Table, given: &[Ident], count: usize) -> Result<Vec<usize>> {
    let def = &table.def;
    let columns = match given {
        [] if def.hidden_rowid => {
            return Err(Error::InvalidForeignKey(format!(
                "there is no primary key for referenced table \"{}\"",
                def.name
            )));
        }
        [] => def.primary_key.clone(),
        given => given.iter().map(|ident| table.column(&plain_ident(ident))).collect::<Result<Vec<_>>>()?,
    };
    if columns.len() != count {
        let problem = "number of referencing and referenced columns for foreign key disagree";
        return Err(Error::InvalidForeignKey(problem.into()));
    }
    match are_key(table, &columns) {
        true => Ok(columns),
        false => Err(Error::InvalidForeignKey(format!(
            "there is no unique constraint matching given keys for referenced table \"{}\"",
            def.name
        ))),
    }
}

fn action(action: Option<SqlAction>) -> ReferentialAction {
    match action {
        None | Some(SqlAction::NoAction) => ReferentialAction::NoAction,
        Some(SqlAction::Restrict) => ReferentialAction::Restrict,
        Some(SqlAction::Cascade) => ReferentialAction::Cascade,
        Some(SqlAction::SetNull) => ReferentialAction::SetNull,
        Some(SqlAction::SetDefault) => ReferentialAction::SetDefault,
    }
}

/// True if equal values of two types have the same key after a conversion that fails for all others.
fn is_comparable(a: ColumnType, b: ColumnType) -> bool {
    let is_integer = |ty| matches!(ty, ColumnType::Int8 | ColumnType::Int16 | ColumnType::Int32 | ColumnType::Int64);
    a == b || (is_integer(a) && is_integer(b))
}

fn free_name(def: &TableDef, columns: &[usize]) -> String {
    let names: Vec<&str> = columns.iter().map(|&column| def.columns[column].name.as_str()).collect();
    let base = format!("{}_{}_fkey", def.name.name, names.join("_"));
    let numbered = (1_u32..).map(|n| format!("{base}{n}"));
    std::iter::once(base.clone()).chain(numbered).find(|name| !def.has_constraint(name)).unwrap_or(base)
}

/// Checks that the foreign keys that refer to a changed table still can. If the change `cascades`, the others are dropped:
/// those of other tables in `catalog` and `batch`, its own in the table that is returned. `action` describes the change.
///
/// # Errors
/// `DependentConstraint`.
pub(super) fn check_referenced(
    catalog: &mut Catalog,
    batch: &mut WriteBatch,
    changed: Table,
    cascades: bool,
    action: &str,
) -> Result<Table> {
    let broken = broken(catalog, &changed);
    let Some((table, constraint)) = broken.first().cloned() else { return Ok(changed) };
    if !cascades {
        return Err(Error::DependentConstraint { action: action.into(), constraint, table: table.to_string() });
    }
    let drop = |table: &RelationName, keys: &mut Vec<ForeignKeyDef>| {
        keys.retain(|key| !broken.iter().any(|(of, name)| of == table && *name == key.name));
    };
    change_references(catalog, batch, &changed.def.name, drop)?;
    let mut def = changed.def.clone();
    drop(&changed.def.name, &mut def.foreign_keys);
    Table::new(def, changed.statistics.clone())
}

/// The foreign keys that can no longer refer to a changed table: for each the table that has it, and its name.
fn broken(catalog: &Catalog, changed: &Table) -> Vec<(RelationName, String)> {
    let name = &changed.def.name;
    let others = catalog.referencing(name).filter(|(other, _)| other.def.name != *name);
    let own = changed.def.foreign_keys.iter().filter(|key| key.references == *name);
    let all = others.map(|(other, key)| (&other.def, key)).chain(own.map(|key| (&changed.def, key)));
    let broken = all.filter(|(def, key)| {
        let columns = key.referenced.iter().map(|name| changed.column(name)).collect::<Result<Vec<_>>>();
        !columns.is_ok_and(|columns| {
            let pairs = columns.iter().zip(&key.columns);
            let mut types = pairs.map(|(&a, &b)| (changed.def.columns[a].ty.column, def.columns[b].ty.column));
            are_key(changed, &columns) && types.all(|(a, b)| is_comparable(a, b))
        })
    });
    broken.map(|(def, key)| (def.name.clone(), key.name.clone())).collect()
}

/// Checks that no table other than `among` refers to a table whose rows are removed without their being read.
///
/// # Errors
/// `DependentConstraint`.
pub(crate) fn check_unreferenced(
    catalog: &Catalog,
    table: &RelationName,
    among: &[RelationName],
    action: &str,
) -> Result<()> {
    match catalog.referencing(table).find(|(other, _)| other.def.name != *table && !among.contains(&other.def.name)) {
        None => Ok(()),
        Some((other, key)) => Err(Error::DependentConstraint {
            action: action.into(),
            constraint: key.name.clone(),
            table: other.def.name.to_string(),
        }),
    }
}

/// Changes the foreign keys of other tables that refer to a table: their new definitions go to `catalog` and `batch`.
/// `change` is called with the name of each such table and all its foreign keys.
pub(super) fn change_references(
    catalog: &mut Catalog,
    batch: &mut WriteBatch,
    table: &RelationName,
    change: impl Fn(&RelationName, &mut Vec<ForeignKeyDef>),
) -> Result<()> {
    let others = catalog.referencing(table).map(|(other, _)| other.def.name.clone());
    let others: BTreeSet<RelationName> = others.filter(|other| other != table).collect();
    for name in others {
        let other = catalog.table(&name)?.clone();
        let mut def = other.def.clone();
        change(&name, &mut def.foreign_keys);
        put(batch, DocumentKind::Table, &name, &def)?;
        catalog.tables.insert(name, Arc::new(Table::new(def, other.statistics.clone())?));
    }
    Ok(())
}
