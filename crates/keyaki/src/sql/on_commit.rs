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

/// Empties and drops the tables of the session after a transaction. A failure is logged: the transaction has been
/// committed.
pub(crate) async fn apply(session: &SqlSession) {
    if !session.has_on_commit.load(Ordering::Relaxed) || session.transaction.is_open() {
        return;
    }
    if let Err(error) = Box::pin(end(session)).await {
        tracing::warn!(%error, "could not apply ON COMMIT to the temporary tables of a session");
    }
}

async fn end(session: &SqlSession) -> Result<()> {
    let Some(schema) = session.path().temporary().cloned() else { return Ok(()) };
    let (catalog, snapshot) = session.engine.moment();
    let mut dropped = Vec::new();
    let mut emptied = Vec::new();
    for table in tables(&catalog, &schema) {
        match table.def.on_commit {
            Some(OnCommit::Drop) => dropped.push(full_sql(&table.def.name)),
            Some(OnCommit::DeleteRows) if snapshot.tree(table.def.tree)?.live_rows() != Some(0) => emptied.push(table),
            _ => {}
        }
    }
    if !dropped.is_empty() {
        run(session, &format!("DROP TABLE {} CASCADE", dropped.join(", "))).await?;
    }
    let has_keys = |table: &&Arc<Table>| {
        !table.def.foreign_keys.is_empty() || catalog.referencing(&table.def.name).next().is_some()
    };
    let (together, alone): (Vec<_>, Vec<_>) = emptied.into_iter().partition(has_keys);
    if !together.is_empty() {
        let names: Vec<String> = together.iter().map(|table| full_sql(&table.def.name)).collect();
        run(session, &format!("TRUNCATE {}", names.join(", "))).await?;
    }
    for table in alone {
        run(session, &format!("DELETE FROM {}", full_sql(&table.def.name))).await?;
    }
    Ok(())
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
