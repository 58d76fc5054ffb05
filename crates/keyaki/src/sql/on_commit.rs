//! ON COMMIT of temporary tables: DELETE ROWS and DROP.
//!
//! The end of each transaction of the session, open or implicit, empties or drops these tables, in a commit of its own:
//! other sessions do not use them, and the next process that opens the database removes them. The rows are deleted one by
//! one where possible. TRUNCATE would change the catalog, and plans of all sessions depend on its version.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::sql::sqlparser::ast::{ObjectType, Statement as Sql};

use super::names::full_sql;
use super::{Parsed, SqlSession, ddl, dml, split};
use crate::base::interrupt::{Execution, Interrupts};
use crate::catalog::{Catalog, OnCommit, RelationName, Table};
use crate::{Error, Result};

/// Empties and drops the tables of the session after a transaction. Failures are logged: the transaction has been
/// committed. The next call tries again.
pub(crate) async fn apply(session: &SqlSession) {
    if !session.has_on_commit.load(Ordering::Relaxed) || session.transaction.is_open() {
        return;
    }
    let Some(schema) = session.path().temporary().cloned() else { return };
    let schemas = &session.engine.temporary;
    if !schemas.take_change(&schema) {
        return;
    }
    // Boxed, because the futures of statements contain this one.
    if let Err(error) = Box::pin(end(session, &schema)).await {
        tracing::warn!(%error, "could not apply ON COMMIT to the temporary tables of a session");
        schemas.note_change(&schema);
    }
}

/// Executes all statements, also after one has failed.
///
/// # Errors
/// The first error.
async fn end(session: &SqlSession, schema: &Arc<str>) -> Result<()> {
    let mut result = Ok(());
    for sql in statements(session, schema)? {
        result = result.and(run(session, &sql).await);
    }
    // The statements themselves are no changes.
    session.engine.temporary.take_change(schema);
    result
}

/// The statements that drop and empty the tables of a schema.
///
/// # Errors
/// `TreeNotFound`, which is not expected.
fn statements(session: &SqlSession, schema: &Arc<str>) -> Result<Vec<String>> {
    let (catalog, snapshot) = session.engine.moment();
    let (mut dropped, mut together, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for table in tables(&catalog, schema) {
        let name = full_sql(&table.def.name);
        let has_keys = || !table.def.foreign_keys.is_empty() || catalog.referencing(&table.def.name).next().is_some();
        match table.def.on_commit {
            Some(OnCommit::Drop) => dropped.push(name),
            Some(OnCommit::DeleteRows) if snapshot.tree(table.def.tree)?.live_rows() != Some(0) => {
                if has_keys() { &mut together } else { &mut alone }.push(name);
            }
            _ => {}
        }
    }
    let mut statements = Vec::new();
    if !dropped.is_empty() {
        statements.push(format!("DROP TABLE {} CASCADE", dropped.join(", ")));
    }
    // CASCADE includes the tables that refer to these and are empty. They have ON COMMIT as well.
    if !together.is_empty() {
        statements.push(format!("TRUNCATE {} CASCADE", together.join(", ")));
    }
    statements.extend(alone.iter().map(|name| format!("DELETE FROM {name}")));
    Ok(statements)
}

/// The tables of a schema.
fn tables<'a>(catalog: &'a Catalog, schema: &Arc<str>) -> impl Iterator<Item = &'a Arc<Table>> {
    let first = RelationName::new(schema.clone(), "");
    let tables = catalog.tables.range((Bound::Included(first), Bound::Unbounded));
    let schema = schema.clone();
    tables.take_while(move |(name, _)| name.schema == schema).map(|(_, table)| table)
}

/// Executes a statement that the statement of the user, which has ended, cannot cancel.
async fn run(session: &SqlSession, sql: &str) -> Result<()> {
    let interrupts = Arc::new(Interrupts::default());
    let execution = Execution::new(&interrupts, interrupts.start());
    let Parsed::Sql(statement) = super::parse(&split::single(sql)?)? else {
        return Err(Error::Internal(format!("not a statement of sqlparser: {sql}")));
    };
    let outcome = match *statement {
        Sql::Delete(delete) => dml::delete::run(session, &execution, delete).await,
        Sql::Truncate(truncate) => ddl::truncate(session, &execution, truncate).await,
        Sql::Drop { object_type: ObjectType::Table, names, cascade, .. } => {
            ddl::drop_table(session, &execution, &names, true, cascade).await
        }
        _ => Err(Error::Internal(format!("not a statement of ON COMMIT: {sql}"))),
    };
    outcome.map(|_| ())
}
