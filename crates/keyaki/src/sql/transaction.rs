//! BEGIN, COMMIT, ROLLBACK, savepoints, SET TRANSACTION and SET CONSTRAINTS.
//!
//! As in PostgreSQL, an error makes the transaction fail: only ROLLBACK, and ROLLBACK TO a savepoint, are possible then,
//! and COMMIT rolls back. BEGIN IMMEDIATE and BEGIN EXCLUSIVE, as in SQLite, keep other writers waiting to the end.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{
    BeginTransactionKind, ObjectName, Statement as Sql, TransactionAccessMode, TransactionIsolationLevel,
    TransactionMode, TransactionModifier,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;

use super::dml::foreign_keys;
use super::names::plain_ident;
use super::{Outcome, SqlSession, cursors, local};
use crate::base::interrupt::{Decision, Execution};
use crate::base::options::Isolation;
use crate::base::syntax;
use crate::catalog::{Catalog, ConstraintTiming};
use crate::engine::transaction::{Characteristics, Committed, TransactionStatus};
use crate::write::deferred::ConstraintName;
use crate::write::statistics;
use crate::{Error, ObjectKind, Result};

/// True for statements that control transactions.
pub(super) fn is_control(statement: &Sql) -> bool {
    matches!(
        statement,
        Sql::StartTransaction { .. }
            | Sql::Commit { .. }
            | Sql::Rollback { .. }
            | Sql::Savepoint { .. }
            | Sql::ReleaseSavepoint { .. }
    )
}

/// Executes a statement that controls transactions.
///
/// # Errors
/// `FailedTransaction` unless the statement ends the transaction or makes it continue; errors of the commit.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, statement: Sql) -> Result<Outcome> {
    if !is_allowed_after_failure(&statement) {
        session.transaction.check()?;
    }
    let slot = &session.transaction;
    match statement {
        Sql::StartTransaction { modes, begin, modifier, statements, exception, has_end_keyword, transaction: _ } => {
            if !statements.is_empty() || exception.is_some() || has_end_keyword {
                return Err(Error::Unsupported("blocks of statements between BEGIN and END".into()));
            }
            let immediate = match modifier {
                None | Some(TransactionModifier::Deferred) => false,
                Some(TransactionModifier::Immediate | TransactionModifier::Exclusive) => true,
                Some(other) => return Err(Error::Unsupported(format!("BEGIN {other}"))),
            };
            let mut characteristics = session.characteristics();
            apply(&mut characteristics, &modes)?;
            session.remove_ended().await;
            if !slot.is_open() {
                session.deferred.clear();
            }
            slot.begin(&session.engine, &session.interrupts, characteristics, immediate).await?;
            Ok(Outcome::done(if begin { "BEGIN" } else { "START TRANSACTION" }))
        }
        Sql::Commit { chain, modifier: None, end: _ } => {
            execution.set_ending();
            commit(session, execution, chain).await
        }
        Sql::Rollback { chain, savepoint: None } => {
            execution.set_ending();
            let ended = slot.roll_back().await.ok_or_else(none_in_progress)?;
            rolled_back(session);
            if chain {
                slot.begin(&session.engine, &session.interrupts, chained(session, ended), false).await?;
            }
            Ok(Outcome::done("ROLLBACK"))
        }
        Sql::Rollback { chain: false, savepoint: Some(name) } => {
            let name = plain_ident(&name);
            slot.roll_back_to(&name).await?;
            session.deferred.roll_back_to(&name);
            session.cursors.roll_back_to(&name);
            session.channels.roll_back_to(&name);
            session.advisory_locks.roll_back_to(&name);
            local::roll_back_to(session, &name);
            Ok(Outcome::done("ROLLBACK"))
        }
        Sql::Savepoint { name } => {
            let name = plain_ident(&name);
            slot.save(&session.engine, name.clone()).await?;
            session.cursors.save(&name);
            session.channels.save(&name);
            session.advisory_locks.save(&name);
            local::save(session, &name);
            session.deferred.save(name);
            Ok(Outcome::done("SAVEPOINT"))
        }
        Sql::ReleaseSavepoint { name } => {
            let name = plain_ident(&name);
            slot.release(&name).await?;
            session.deferred.release(&name);
            session.cursors.release(&name);
            session.channels.release(&name);
            session.advisory_locks.release(&name);
            local::release(session, &name);
            Ok(Outcome::done("RELEASE"))
        }
        other => Err(Error::Unsupported(other.to_string())),
    }
}

/// Parses BEGIN with SQLite's DEFERRED, IMMEDIATE or EXCLUSIVE.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Sql> {
    parser.expect_keyword(Keyword::BEGIN).map_err(syntax)?;
    let kinds = [Keyword::DEFERRED, Keyword::IMMEDIATE, Keyword::EXCLUSIVE];
    let modifier = match parser.expect_one_of_keywords(&kinds).map_err(syntax)? {
        Keyword::DEFERRED => TransactionModifier::Deferred,
        Keyword::EXCLUSIVE => TransactionModifier::Exclusive,
        _ => TransactionModifier::Immediate,
    };
    let transaction = parser.parse_keyword(Keyword::TRANSACTION).then_some(BeginTransactionKind::Transaction);
    Ok(Sql::StartTransaction {
        modes: Vec::new(),
        begin: true,
        transaction,
        modifier: Some(modifier),
        statements: Vec::new(),
        exception: None,
        has_end_keyword: false,
    })
}

/// True for statements that end a failed transaction or make it continue.
pub(super) fn is_allowed_after_failure(statement: &Sql) -> bool {
    matches!(statement, Sql::Commit { .. } | Sql::Rollback { .. })
}

async fn commit(session: &SqlSession, execution: &Execution<'_>, chain: bool) -> Result<Outcome> {
    let slot = &session.transaction;
    let characteristics = slot.characteristics().ok_or_else(none_in_progress)?;
    let decision = execution.decision();
    if slot.status() == TransactionStatus::Open && session.deferred.has_checks() {
        // From now on, no interrupt ends the statement before the transaction.
        let verified = match decision.commit() {
            Ok(()) => foreign_keys::verify_deferred(session, execution, None).await,
            cancelled => cancelled,
        };
        if let Err(error) = verified {
            roll_back(session).await;
            return Err(error);
        }
    }
    if session.cursors.may_have_any()
        && slot.status() == TransactionStatus::Open
        && let Err(error) = Box::pin(cursors::hold(session)).await
    {
        roll_back(session).await;
        return Err(error);
    }
    session.deferred.clear();
    let number = slot.number();
    let committed = slot.commit(&session.engine, decision).await.inspect_err(|_| rolled_back(session))?;
    let tag = if committed.is_some() { "COMMIT" } else { "ROLLBACK" };
    match committed {
        Some(committed) => {
            local::commit(session);
            cursors::keep(session, number);
            // Sessions that wait for its advisory locks see the commit.
            finish(session, decision, committed).await?;
            session.channels.publish();
            session.advisory_locks.end_transaction();
        }
        None => rolled_back(session),
    }
    if chain {
        super::on_commit::apply(session).await;
        slot.begin(&session.engine, &session.interrupts, chained(session, characteristics), false).await?;
    }
    Ok(Outcome::done(tag))
}

/// Rolls back the transaction that cannot be committed.
async fn roll_back(session: &SqlSession) {
    session.transaction.roll_back().await;
    rolled_back(session);
}

/// Ends the state of a transaction that was rolled back.
fn rolled_back(session: &SqlSession) {
    session.deferred.clear();
    session.channels.discard();
    local::roll_back(session);
    session.advisory_locks.end_transaction();
}

/// The characteristics of a transaction that follows one with these, with the timeout of the session.
fn chained(session: &SqlSession, ended: Characteristics) -> Characteristics {
    Characteristics { timeout: session.characteristics().timeout, ..ended }
}

/// Waits until a committed transaction is durable, and counts its changes.
///
/// # Errors
/// Errors of the log.
pub(super) async fn finish(session: &SqlSession, decision: &Arc<Decision>, committed: Committed) -> Result<()> {
    // A transaction that has read only may have seen commits that are not durable, but no transaction sees those.
    if let Some(submitted) = committed.submitted {
        match session.waits_inline() {
            true => submitted.wait()?,
            false => submitted.committed().await?,
        };
    }
    for (table, rows, grown) in committed.changed {
        if table.add_changed_rows(rows, grown) {
            Box::pin(statistics::sample_or_warn(&session.engine, decision, &table)).await;
        }
    }
    Ok(())
}

fn none_in_progress() -> Error {
    Error::NoActiveTransaction("there is no transaction in progress".into())
}

/// SET TRANSACTION, for the open transaction, and SET SESSION CHARACTERISTICS, for those begun later.
pub(super) fn set(session: &SqlSession, modes: &[TransactionMode], for_session: bool) -> Result<Outcome> {
    if for_session {
        let mut characteristics = session.characteristics();
        apply(&mut characteristics, modes)?;
        let mut options = session.options.lock();
        (options.isolation, options.is_read_only) = (characteristics.isolation, characteristics.is_read_only);
        return Ok(Outcome::done("SET"));
    }
    apply(&mut session.characteristics(), modes)?;
    let is_open = session.transaction.set(|characteristics| {
        // The modes were checked above.
        let _ = apply(characteristics, modes);
    })?;
    match is_open {
        true => Ok(Outcome::done("SET")),
        false => Err(Error::NoActiveTransaction("SET TRANSACTION can only be used in transaction blocks".into())),
    }
}

/// SET CONSTRAINTS.
#[derive(Debug)]
pub(super) struct SetConstraints {
    /// `None` for ALL.
    names: Option<Vec<ObjectName>>,
    is_deferred: bool,
}

/// Parses SET CONSTRAINTS.
pub(super) fn parse_constraints(parser: &mut Parser<'_>) -> Result<SetConstraints> {
    parser.expect_keyword(Keyword::SET).map_err(syntax)?;
    // The caller has seen CONSTRAINTS, which is no keyword of the parser.
    parser.next_token();
    let names = match parser.parse_keyword(Keyword::ALL) {
        true => None,
        false => Some(parser.parse_comma_separated(|parser| parser.parse_object_name(false)).map_err(syntax)?),
    };
    let times = [Keyword::DEFERRED, Keyword::IMMEDIATE];
    let is_deferred = parser.expect_one_of_keywords(&times).map_err(syntax)? == Keyword::DEFERRED;
    Ok(SetConstraints { names, is_deferred })
}

/// Executes SET CONSTRAINTS. IMMEDIATE makes the checks that the transaction has deferred. Outside of a transaction, it has no
/// effect.
///
/// # Errors
/// `NotFound`, `InvalidDefinition` for a constraint that is not deferrable; as [`foreign_keys::verify_deferred`].
pub(super) async fn set_constraints(
    session: &SqlSession,
    execution: &Execution<'_>,
    SetConstraints { names, is_deferred }: SetConstraints,
) -> Result<Outcome> {
    let (catalog, _) = session.moment()?;
    let found = names.iter().flatten().map(|name| deferrable(session, &catalog, name));
    let found = found.collect::<Result<Vec<_>>>()?.concat();
    let constraints = names.is_some().then_some(found);
    if session.transaction.is_open() {
        if !is_deferred {
            foreign_keys::verify_deferred(session, execution, constraints.as_deref()).await?;
        }
        session.deferred.set(constraints, is_deferred);
    }
    Ok(Outcome::done("SET CONSTRAINTS"))
}

/// The constraints with a name, which tables of one schema may share.
fn deferrable(session: &SqlSession, catalog: &Catalog, name: &ObjectName) -> Result<Vec<ConstraintName>> {
    let unknown = || Error::NotFound { kind: ObjectKind::Constraint, name: name.to_string() };
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident().map(plain_ident)).collect();
    let (schema, name) = match parts.as_slice() {
        [name] => (None, name),
        [schema, name] => (Some(schema.as_str()), name),
        _ => return Err(unknown()),
    };
    let path = session.path();
    let of_schema = |schema: &str| {
        let tables = catalog.tables.values().filter(|table| *table.def.name.schema == *schema);
        let keys = tables.flat_map(|table| table.def.foreign_keys.iter().map(|key| (table.def.name.clone(), key)));
        keys.filter(|(_, key)| key.name == *name).collect::<Vec<_>>()
    };
    let found = match schema {
        Some(schema) => of_schema(schema),
        None => {
            let mut schemas = path.temporary().map(|schema| &**schema).into_iter().chain(path.schemas(catalog));
            schemas.find_map(|schema| Some(of_schema(schema)).filter(|keys| !keys.is_empty())).unwrap_or_default()
        }
    };
    if found.is_empty() {
        return Err(unknown());
    }
    if found.iter().any(|(_, key)| key.timing == ConstraintTiming::NotDeferrable) {
        let problem = format!("constraint \"{name}\" is not deferrable");
        return Err(Error::InvalidDefinition { kind: ObjectKind::Constraint, problem });
    }
    Ok(found.into_iter().map(|(table, key)| (table, key.name.clone())).collect())
}

/// Applies modes to characteristics.
fn apply(characteristics: &mut Characteristics, modes: &[TransactionMode]) -> Result<()> {
    for mode in modes {
        match mode {
            TransactionMode::AccessMode(mode) => {
                characteristics.is_read_only = *mode == TransactionAccessMode::ReadOnly;
            }
            TransactionMode::IsolationLevel(level) => {
                characteristics.isolation = match level {
                    // As in PostgreSQL: no transaction sees uncommitted changes of others.
                    TransactionIsolationLevel::ReadUncommitted | TransactionIsolationLevel::ReadCommitted => {
                        Isolation::ReadCommitted
                    }
                    TransactionIsolationLevel::RepeatableRead | TransactionIsolationLevel::Snapshot => {
                        Isolation::RepeatableRead
                    }
                    TransactionIsolationLevel::Serializable => Isolation::Serializable,
                };
            }
        }
    }
    Ok(())
}

/// Refuses a statement that cannot run in a transaction.
///
/// # Errors
/// `ActiveTransaction`.
pub(super) fn check_outside(session: &SqlSession, statement: &str) -> Result<()> {
    match session.transaction.status() {
        TransactionStatus::Idle => Ok(()),
        _ => Err(Error::ActiveTransaction(format!("{statement} cannot run inside a transaction block"))),
    }
}
