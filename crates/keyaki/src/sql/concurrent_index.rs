//! CREATE INDEX CONCURRENTLY.
//!
//! The statement has several commits: the registration of the build, those of [`ConcurrentBuild`], and that of the
//! definition. It holds the writer lock during the first and the last one. Only the last one is its decision to commit: a
//! statement that fails or is cancelled before abandons its build ([`RunningBuild`]).
//!
//! If the table gets other columns or other trees in the meantime (ALTER TABLE, TRUNCATE), the build begins again.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::CreateIndex;
use keyaki_store::{Snapshot, WriteBatch};

use super::expressions;
use super::index::{NewIndex, define, method, put_definition};
use super::transaction::check_outside;
use crate::base::interrupt::{Execution, Interrupts};
use crate::catalog::{Catalog, IndexBuild, IndexDef, IndexMethod, Table};
use crate::engine::RunningBuild;
use crate::sql::{Outcome, SqlSession};
use crate::write::{ConcurrentBuild, wait_for_locators};
use crate::{Error, Result};

/// A build in the catalog.
struct Registered {
    build: IndexBuild,
    running: RunningBuild,
    index: NewIndex,
    /// Includes the registration. All later commits write to the change log.
    snapshot: Snapshot,
}

pub(super) async fn create(session: &SqlSession, execution: &Execution<'_>, create: &CreateIndex) -> Result<Outcome> {
    check_outside(session, "CREATE INDEX CONCURRENTLY")?;
    let method = method(create)?;
    if method.is_in_memory() {
        let problem =
            format!("CREATE INDEX CONCURRENTLY … USING {method} (omit CONCURRENTLY, or create it USING betree)");
        return Err(Error::Unsupported(problem));
    }
    session.engine.check_read_write("CREATE INDEX CONCURRENTLY")?;
    loop {
        session.remove_ended().await;
        let Some(registered) = register(session, create).await? else { break };
        let built = build(session, execution, registered).await;
        if built.is_err() {
            // The build of this statement.
            session.remove_ended().await;
        }
        if built? {
            break;
        }
    }
    Ok(Outcome::done("CREATE INDEX"))
}

/// Creates the trees of the index and of its change log, and publishes the change log. Returns `None` if the index exists
/// and the statement says IF NOT EXISTS.
async fn register(session: &SqlSession, create: &CreateIndex) -> Result<Option<Registered>> {
    let engine = &session.engine;
    // The registration does not decide for the statement.
    let interrupts = Arc::new(Interrupts::default());
    let registration = Execution::new(&interrupts, interrupts.start());
    let writer = engine.own_writer(registration.decision()).await;
    let (catalog, _) = engine.latest(&writer);
    let Some(index) = define(session, &catalog, create)? else { return Ok(None) };
    let NewIndex { old, table, position } = &index;
    let IndexDef { name, tree, .. } = &table.def.indexes[*position];
    let build = IndexBuild::new(old, name.clone(), *tree, engine.store.new_tree_id());
    let mut batch = WriteBatch::new();
    build.create(&mut batch, old, &table.index_schemas[*position])?;
    let mut def = old.def.clone();
    def.building.push(build.clone());
    let mut changed = Catalog::clone(&catalog);
    changed.tables.insert(def.name.clone(), Arc::new(Table::new(def, old.statistics.clone())?));
    let running = engine.index_builds.begin(build.clone());
    engine.commit_catalog(&writer, batch, changed).await?;
    let (_, snapshot) = engine.latest(&writer);
    Ok(Some(Registered { build, running, index, snapshot }))
}

/// Builds a registered index and publishes it. Returns false if the build has to begin again.
async fn build(session: &SqlSession, execution: &Execution<'_>, registered: Registered) -> Result<bool> {
    let (engine, decision) = (&session.engine, execution.decision());
    let Registered { build, running, index: NewIndex { table, position, .. }, snapshot } = registered;
    let progress = session.progress.lock().clone();
    let index = table.def.indexes[position].clone();
    let mut building = ConcurrentBuild::new(engine, decision, progress, (table, position), build.clone(), snapshot)?;
    building.load().await?;
    if !building.catch_up().await? {
        return Ok(false);
    }
    // A transaction that the session has begun in the meantime is not that of the statement.
    let writer = engine.own_writer(decision).await;
    let (catalog, newest) = engine.latest(&writer);
    let Some(current) = building.current(&catalog) else { return Ok(false) };
    building.complete(&writer, newest).await?;
    let is_vast = index.method == IndexMethod::Vast;
    let mut def = current.def.clone();
    def.building.retain(|other| *other != build);
    def.indexes.push(index);
    let table = Arc::new(Table::new(def, current.statistics.clone())?);
    expressions::compiled(session, &table)?;
    let mut batch = WriteBatch::new();
    build.end(&mut batch)?;
    put_definition(&mut batch, &table, table.def.indexes.len() - 1)?;
    let mut changed = Catalog::clone(&catalog);
    changed.tables.insert(table.def.name.clone(), table);
    engine.commit_catalog(&writer, batch, changed).await?;
    running.end();
    drop(writer);
    if is_vast {
        wait_for_locators(engine, decision).await?;
    }
    Ok(true)
}
