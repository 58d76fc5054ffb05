//! The commit of changed rows, with the actions of the foreign keys that refer to them.
//!
//! Most changes remove no key that rows refer to, and are committed as they are. For the others, the statement becomes
//! several changes ([`Parts`]): its own, and one for each action, whose rows are found by a join of the referencing table
//! with the removed keys. The changes of actions may have actions, too. At the end, every foreign key holds for all keys
//! that the changes have removed or refer to.
//!
//! | constraint | checked |
//! |---|---|
//! | RESTRICT | after the change that removes the key |
//! | NO ACTION, and references of new rows | at the end of the statement; if deferred, at the commit ([`verify_deferred`]) |

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{Field, Int64Type, Schema};
use datafusion::datasource::MemTable;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, Join, JoinConstraint, JoinOperator, ObjectName, TableAlias, TableFactor, Value,
};
use futures::future::{Either, ready};
use keyaki_store::Snapshot;

use super::conflict::ROW_NUMBER;
use super::delete::{needed, rows_of};
use super::update::old_and_new;
use super::{TargetTable, any_relation, defaults};
use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, ReferentialAction, RelationName};
use crate::engine::Writer;
use crate::engine::transaction::Parts;
use crate::sql::state::StatementState;
use crate::sql::{SqlSession, expressions, transaction};
use crate::write::apply::TableChange;
use crate::write::deferred::ConstraintName;
use crate::write::foreign_keys::{ForeignKey, KeyRows};
use crate::write::rows::TableRows;
use crate::write::{self, RowBuffer, WriteStatement};
use crate::{Error, Result};

/// The table of removed keys, the prefixes of its columns with old and new keys.
const KEYS: &str = "__keys";
const OLD: &str = "__old_";
const NEW: &str = "__to_";

/// At most this many keys are looked up one by one. More are joined with the referencing table.
const LOOKUPS_MAX: usize = 1000;

/// Checks and commits a change with all actions of foreign keys; in a transaction, adds it. Returns the number of rows that
/// the statement itself has changed. `catalog` and `snapshot` are the newest for `writer`.
///
/// # Errors
/// `StillReferenced`, and as [`write::commit`].
pub(crate) fn commit(
    session: &SqlSession,
    writer: Writer,
    catalog: &Arc<Catalog>,
    snapshot: Snapshot,
    change: TableChange,
) -> impl Future<Output = Result<u64>> {
    // An async function would hold the change twice, in statements whose futures callers may move.
    match referring(catalog, &change) {
        Ok(keys) if keys.is_empty() => Either::Left(write::commit(session.write(writer), snapshot, change)),
        Ok(keys) => {
            let commit = commit_referenced(session, writer, catalog, snapshot, change, keys);
            Either::Right(Either::Left(Box::pin(commit)))
        }
        Err(error) => Either::Right(Either::Right(ready(Err(error)))),
    }
}

/// The foreign keys whose referenced keys a change may remove.
fn referring(catalog: &Catalog, change: &TableChange) -> Result<Vec<ForeignKey>> {
    if change.old.len == 0 {
        return Ok(Vec::new());
    }
    let mut keys = Vec::new();
    for key in ForeignKey::referring_to(catalog, &change.table)? {
        if key.is_referenced_in(change.assigned.as_deref())? {
            keys.push(key);
        }
    }
    Ok(keys)
}

async fn commit_referenced(
    session: &SqlSession,
    writer: Writer,
    catalog: &Arc<Catalog>,
    snapshot: Snapshot,
    mut change: TableChange,
    keys: Vec<ForeignKey>,
) -> Result<u64> {
    change.drop_repeats()?;
    let statement = session.write(writer.clone());
    let mut is_referenced = false;
    for key in &keys {
        let removed = key.removed(&change)?;
        for removed in [&removed.deleted, &removed.updated] {
            key.lock_removed(&statement, removed)?;
            is_referenced |= find_reference(session, &statement, catalog, &snapshot, key, removed).await?.is_some();
        }
        if is_referenced {
            break;
        }
    }
    drop(statement);
    if !is_referenced {
        return write::commit(session.write(writer), snapshot, change).await;
    }
    let decision = writer.decision.clone();
    let mut actions = Actions {
        session,
        parts: session.engine.begin_parts(writer).await?,
        changes: VecDeque::new(),
        checks: Vec::new(),
    };
    let rows = actions.apply(change).await?;
    while let Some(action) = actions.changes.pop_front() {
        if let Some(change) = actions.change(&action).await? {
            actions.apply(change).await?;
        }
    }
    actions.verify().await?;
    let committed = actions.parts.commit(&session.engine).await?;
    transaction::finish(session, &decision, committed).await?;
    Ok(rows)
}

/// The first of some keys that a row refers to. In a transaction, others must not add rows that refer to them.
async fn find_reference(
    session: &SqlSession,
    statement: &WriteStatement,
    catalog: &Arc<Catalog>,
    snapshot: &Snapshot,
    key: &ForeignKey,
    keys: &KeyRows,
) -> Result<Option<usize>> {
    if keys.rows == 0 {
        return Ok(None);
    }
    if key.has_index() && keys.rows <= LOOKUPS_MAX {
        return key.first_referenced(statement, snapshot, keys);
    }
    key.depend_on_references(statement, keys)?;
    let state = StatementState::new(session, catalog.clone(), snapshot.clone())?;
    let mut numbers = keys.clone();
    numbers.columns.push(Arc::new(Int64Array::from_iter_values(0..keys.rows as i64)));
    let referencing = Referencing::new(&state, key, &numbers, None)?;
    let number = Expr::CompoundIdentifier(vec![ident(KEYS), ident(ROW_NUMBER)]);
    let mut query = referencing.target.select_joined(vec![number], vec![referencing.join])?;
    query.limit_clause = super::super::parse_query("SELECT 1 LIMIT 1")?.limit_clause;
    let plan = state.plan_own_query(query).await?;
    let found = RowBuffer::reserved(&session.engine, "FOREIGN KEY").collect(state.run(&plan).await?).await?;
    let first = found
        .batches
        .first()
        .and_then(|batch| batch.column(0).as_primitive_opt::<Int64Type>()?.values().first().copied());
    Ok(first.map(|row| row as usize))
}

/// The changes of a statement.
struct Actions<'s> {
    session: &'s SqlSession,
    parts: Parts,
    /// Actions that have not been taken yet, in order.
    changes: VecDeque<Action>,
    checks: Vec<Check>,
}

/// What happens to the rows that refer to removed keys.
struct Action {
    key: ForeignKey,
    old: KeyRows,
    kind: ActionKind,
}

enum ActionKind {
    Delete,
    SetNull,
    SetDefault,
    /// The new keys, parallel to the old ones.
    Update(KeyRows),
}

/// Keys that must exist at the end of the statement if rows refer to them.
struct Check {
    key: ForeignKey,
    keys: KeyRows,
    /// The keys were removed; else, rows that refer to them were added.
    are_removed: bool,
}

impl Actions<'_> {
    /// Makes a change, and adds its actions and checks.
    async fn apply(&mut self, mut change: TableChange) -> Result<u64> {
        change.drop_repeats()?;
        let statement = self.session.write(self.parts.writer().clone());
        let (catalog, snapshot) = statement.latest();
        for key in ForeignKey::of(&catalog, &change.table)? {
            if let Some(keys) = key.added(&change)? {
                self.checks.push(Check { key, keys, are_removed: false });
            }
        }
        let mut restricted = Vec::new();
        for key in referring(&catalog, &change)? {
            let removed = key.removed(&change)?;
            let (on_delete, on_update) = (key.def().on_delete, key.def().on_update);
            for (action, old, away, to) in [
                (on_delete, &removed.deleted, &removed.deleted, None),
                (on_update, &removed.updated, &removed.updated_away, Some(&removed.updated_to)),
            ] {
                let kind = match (action, to) {
                    _ if old.rows == 0 => continue,
                    (ReferentialAction::NoAction, _) => {
                        self.checks.push(Check { key: key.clone(), keys: away.clone(), are_removed: true });
                        continue;
                    }
                    (ReferentialAction::Restrict, _) => {
                        restricted.push((key.clone(), away.clone()));
                        continue;
                    }
                    (ReferentialAction::Cascade, None) => ActionKind::Delete,
                    (ReferentialAction::Cascade, Some(to)) => ActionKind::Update(to.clone()),
                    (ReferentialAction::SetNull, _) => ActionKind::SetNull,
                    (ReferentialAction::SetDefault, _) => ActionKind::SetDefault,
                };
                self.changes.push_back(Action { key: key.clone(), old: old.clone(), kind });
            }
        }
        let rows = write::add_part(&statement, snapshot, change).await?;
        for (key, keys) in restricted {
            let (catalog, snapshot) = statement.latest();
            if let Some(row) = find_reference(self.session, &statement, &catalog, &snapshot, &key, &keys).await? {
                return Err(key.referenced_error(&keys, row));
            }
        }
        Ok(rows)
    }

    /// The change of an action, for the rows that refer to its keys by now; `None` if there are none.
    async fn change(&self, action: &Action) -> Result<Option<TableChange>> {
        let session = self.session;
        let writer = self.parts.writer();
        let (catalog, snapshot) = session.engine.latest(writer);
        let state = StatementState::new(session, catalog, snapshot)?;
        let Action { key, old, kind } = action;
        // The definition does not change during the statement, but the table may have other statistics.
        let table = state.catalog.table(&key.referencing.def.name)?.clone();
        expressions::compiled(session, &table)?;
        key.depend_on_references(&session.write(writer.clone()), old)?;
        let columns = &key.def().columns;
        let new = match kind {
            ActionKind::Update(new) => Some(new),
            ActionKind::Delete | ActionKind::SetNull | ActionKind::SetDefault => None,
        };
        let Referencing { target, join } = Referencing::new(&state, key, old, new)?;
        let read = match kind {
            ActionKind::Delete => needed(&table)?,
            _ => (0..table.def.columns.len()).collect(),
        };
        let mut expressions: Vec<Expr> = read.iter().map(|&c| target.column(&table.def.columns[c].name)).collect();
        expressions.extend(target.rowid());
        for (place, &column) in columns.iter().enumerate() {
            match kind {
                ActionKind::Delete => {}
                ActionKind::SetNull => expressions.push(Expr::value(Value::Null)),
                ActionKind::SetDefault => expressions.push(defaults::sql(&table.def.columns[column])?),
                ActionKind::Update(_) => expressions.push(key_column(NEW, place)),
            }
        }
        let plan = state.plan_own_query(target.select_joined(expressions, vec![join])?).await?;
        let found = RowBuffer::reserved(&session.engine, "FOREIGN KEY").collect(state.run(&plan).await?).await?;
        if found.rows == 0 {
            return Ok(None);
        }
        if let ActionKind::Delete = kind {
            let old = found.batches.iter().map(|batch| rows_of(&table, &read, batch));
            let old = TableRows::concat(&old.collect::<Result<Vec<_>>>()?)?;
            return Ok(Some(TableChange::deletion(&table, old)));
        }
        let pairs = found.batches.iter().map(|batch| old_and_new(&table, columns, batch, session.zone()));
        let (old, new): (Vec<TableRows>, Vec<TableRows>) = pairs.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let (old, new) = (TableRows::concat(&old)?, TableRows::concat(&new)?);
        Ok(Some(TableChange::update(&table, old, new, columns.clone())))
    }

    /// Checks the foreign keys after all changes.
    ///
    /// # Errors
    /// `MissingReference`, `StillReferenced`.
    async fn verify(&mut self) -> Result<()> {
        let statement = self.session.write(self.parts.writer().clone());
        for Check { key, keys, are_removed } in std::mem::take(&mut self.checks) {
            let (catalog, snapshot) = statement.latest();
            let (of, at, looked_up, given) = (key.clone(), snapshot.clone(), statement.clone(), keys.clone());
            let work = move |_: &_| of.missing(&looked_up, &at, &given);
            let missing = statement.blocking(work).await?;
            let found = find_reference(self.session, &statement, &catalog, &snapshot, &key, &missing).await?;
            let Some(row) = found else { continue };
            match statement.deferred.as_ref().filter(|deferred| deferred.defers(&key)) {
                Some(deferred) => deferred.add(&key, missing, are_removed),
                None => return Err(violation(&key, &missing, row, are_removed)),
            }
        }
        Ok(())
    }
}

fn violation(key: &ForeignKey, missing: &KeyRows, row: usize, are_removed: bool) -> Error {
    match are_removed {
        true => key.referenced_error(missing, row),
        false => key.missing_error(missing, row),
    }
}

/// Makes the deferred checks of some constraints, or of all, in the open transaction.
///
/// # Errors
/// `MissingReference`, `StillReferenced`; `FailedTransaction`, `Cancelled`, errors of the store.
pub(crate) async fn verify_deferred(
    session: &SqlSession,
    execution: &Execution<'_>,
    constraints: Option<&[ConstraintName]>,
) -> Result<()> {
    let checks = session.deferred.checks(constraints);
    if checks.is_empty() {
        return Ok(());
    }
    let writer = session.writer(execution, "COMMIT").await?;
    let statement = session.write(writer);
    let (catalog, snapshot) = statement.latest();
    for check in checks {
        let key = check.key(&catalog)?;
        let (of, at, looked_up, keys) = (key.clone(), snapshot.clone(), statement.clone(), check.keys);
        let work = move |_: &_| of.missing(&looked_up, &at, &keys);
        let missing = statement.blocking(work).await?;
        let found = find_reference(session, &statement, &catalog, &snapshot, &key, &missing).await?;
        if let Some(row) = found {
            return Err(violation(&key, &missing, row, check.are_removed));
        }
    }
    Ok(())
}

/// The rows that refer to keys: the referencing table, joined with a table of these keys.
struct Referencing {
    target: TargetTable,
    join: Join,
}

impl Referencing {
    /// Registers the table of the keys with the statement. `keys` may have the number of each key as a last column.
    fn new(state: &StatementState, key: &ForeignKey, keys: &KeyRows, new: Option<&KeyRows>) -> Result<Referencing> {
        let table = state.catalog.table(&key.referencing.def.name)?.clone();
        register(state, key.def().columns.len(), keys, new)?;
        let target = TargetTable::of(state, &table, ident(&table.def.name))?;
        let equal = |(place, &column): (usize, &usize)| Expr::BinaryOp {
            left: Box::new(target.column(&table.def.columns[column].name)),
            op: BinaryOperator::Eq,
            right: Box::new(key_column(OLD, place)),
        };
        let and =
            |left, right| Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::And, right: Box::new(right) };
        let condition = key.def().columns.iter().enumerate().map(equal).reduce(and);
        let condition = condition.ok_or_else(|| Error::Internal("a foreign key has columns".into()))?;
        let relation = keys_relation()?;
        let join_operator = JoinOperator::Inner(JoinConstraint::On(condition));
        Ok(Referencing { target, join: Join { relation, global: false, join_operator } })
    }
}

/// The table of keys in a FROM list.
fn keys_relation() -> Result<TableFactor> {
    let mut relation = any_relation()?.relation;
    if let TableFactor::Table { name, alias, .. } = &mut relation {
        *name = ObjectName::from(vec![ident(KEYS)]);
        *alias = Some(TableAlias { explicit: true, name: ident(KEYS), columns: Vec::new(), at: None });
    }
    Ok(relation)
}

fn register(state: &StatementState, count: usize, keys: &KeyRows, new: Option<&KeyRows>) -> Result<()> {
    let name = |prefix: &str, place: usize| if place < count { format!("{prefix}{place}") } else { ROW_NUMBER.into() };
    let mut fields = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for (prefix, keys) in [(OLD, Some(keys)), (NEW, new)] {
        for (place, column) in keys.iter().flat_map(|keys| keys.columns.iter()).enumerate() {
            fields.push(Field::new(name(prefix, place), column.data_type().clone(), true));
            columns.push(column.clone());
        }
    }
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(schema.clone(), columns)?;
    state.add_table(RelationName::public(KEYS), Arc::new(MemTable::try_new(schema, vec![vec![batch]])?));
    Ok(())
}

fn key_column(prefix: &str, place: usize) -> Expr {
    Expr::CompoundIdentifier(vec![ident(KEYS), ident(&format!("{prefix}{place}"))])
}

fn ident(name: &str) -> Ident {
    Ident::with_quote('"', name)
}
