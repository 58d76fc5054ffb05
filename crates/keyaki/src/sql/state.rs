//! What the parts of one statement share: a snapshot, the catalog as of it, and DataFusion's state over both.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList, SchemaProvider,
    TableProvider,
};
use datafusion::common::TableReference;
use datafusion::datasource::ViewTable;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execute_stream;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{Query, Statement as SqlStatement};
use futures::future::BoxFuture;
use keyaki_store::Snapshot;
use parking_lot::{Mutex, RwLock};

use crate::catalog::Catalog;
use crate::catalog::Table;
use crate::engine::{CATALOG_NAME, Engine, SCHEMA_NAME};
use crate::plan::register;
use crate::sql::SqlSession;
use crate::table::KeyakiTable;
use crate::table::PlanContext;
use crate::{Error, Result};

/// Views that use views, at the most.
const VIEW_DEPTH_MAX: usize = 50;
/// Part of the query memory that one index pipeline may take.
const PIPELINE_SHARE: usize = 8;

/// DataFusion's state with the settings of a session and Keyaki's planning, but without tables. Copying it for a
/// statement is much cheaper than building it.
#[derive(Debug, Clone)]
pub(crate) struct Planning {
    context: PlanContext,
    state: SessionState,
}

/// What the session has built before, if nothing has changed since.
fn planning(session: &SqlSession) -> Result<Planning> {
    let calibration = session.engine.calibration();
    let mut cached = session.planning.lock();
    if let Some(planning) = cached.as_ref()
        && Arc::ptr_eq(&planning.context.calibration, &calibration)
    {
        return Ok(planning.clone());
    }
    let engine = &session.engine;
    let context = PlanContext {
        executor: engine.executor.clone(),
        calibration,
        options: session.options(),
        last_stats: session.last_stats.clone(),
        cache: engine.cache.clone(),
        unusable: engine.unusable.clone(),
        pipeline_memory_bytes: engine.query_memory_bytes / PIPELINE_SHARE,
    };
    let base = engine.base_state.clone();
    let config = super::settings::apply_overrides(session, base.config().clone())?;
    let builder = SessionStateBuilder::new_from_existing(base).with_config(config);
    let planning = Planning { state: register(builder, context.clone()).build(), context };
    Ok(cached.insert(planning).clone())
}

/// One statement's view of the database.
pub(crate) struct StatementState {
    pub catalog: Arc<Catalog>,
    pub snapshot: Snapshot,
    pub context: PlanContext,
    pub state: SessionState,
    schema: Arc<StatementSchema>,
    views_begun: Mutex<HashSet<String>>,
}

impl StatementState {
    /// For a statement that only reads.
    pub fn reading(session: &SqlSession) -> Result<Self> {
        let (catalog, snapshot) = session.engine.moment();
        StatementState::new(session, catalog, snapshot)
    }

    pub fn new(session: &SqlSession, catalog: Arc<Catalog>, snapshot: Snapshot) -> Result<Self> {
        let Planning { context, mut state } = planning(session)?;
        let schema = Arc::new(StatementSchema {
            engine: session.engine.clone(),
            catalog: catalog.clone(),
            snapshot: snapshot.clone(),
            context: context.clone(),
            extra: RwLock::default(),
        });
        let database = MemoryCatalogProvider::new();
        database.register_schema(SCHEMA_NAME, schema.clone())?;
        let catalogs = MemoryCatalogProviderList::new();
        catalogs.register_catalog(CATALOG_NAME.into(), Arc::new(database));
        state.register_catalog_list(Arc::new(catalogs) as Arc<dyn CatalogProviderList>);
        state.mark_start_execution();
        Ok(StatementState { catalog, snapshot, context, state, schema, views_begun: Mutex::default() })
    }

    /// Makes a further table known to the statement, under a name that no user can give one.
    pub fn add_table(&self, name: &str, table: Arc<dyn TableProvider>) {
        self.schema.extra.write().insert(name.into(), table);
    }

    /// The table as of this statement.
    pub fn provider(&self, table: &Arc<Table>) -> KeyakiTable {
        KeyakiTable::new(table.clone(), self.snapshot.clone(), self.context.clone())
    }

    pub async fn plan_query(&self, query: Query) -> Result<LogicalPlan> {
        self.plan(SqlStatement::Query(Box::new(query))).await
    }

    /// Plans a statement that DataFusion knows, with all views that it uses.
    pub async fn plan(&self, statement: SqlStatement) -> Result<LogicalPlan> {
        super::strict::check(&statement)?;
        self.plan_at_depth(statement, 0).await
    }

    fn plan_at_depth(&self, statement: SqlStatement, depth: usize) -> BoxFuture<'_, Result<LogicalPlan>> {
        Box::pin(async move {
            let statement = DfStatement::Statement(Box::new(statement));
            for relation in self.relations_used(&statement)? {
                self.plan_view(&relation, depth).await?;
            }
            Ok(self.state.statement_to_plan(statement).await?)
        })
    }

    /// Names of the tables and views that a statement uses directly; of all views, if it asks the information schema.
    pub fn relations_used(&self, statement: &DfStatement) -> Result<Vec<String>> {
        let mut used = Vec::new();
        for reference in self.state.resolve_table_references(statement)? {
            if reference.schema() == Some("information_schema") {
                used.extend(self.catalog.views.keys().cloned());
            } else if let Some(name) = own_name(&reference) {
                used.push(name.into());
            }
        }
        Ok(used)
    }

    async fn plan_view(&self, name: &str, depth: usize) -> Result<()> {
        // A view that asks the information schema does not wait for itself.
        if self.schema.extra.read().contains_key(name) || !self.views_begun.lock().insert(name.into()) {
            return Ok(());
        }
        let Some(view) = self.catalog.views.get(name) else { return Ok(()) };
        if depth >= VIEW_DEPTH_MAX {
            return Err(Error::TooComplex(format!(
                "view \"{name}\" is nested too deeply: more than {VIEW_DEPTH_MAX} views use one another"
            )));
        }
        let query = super::parse_query(&view.sql)?;
        let failed = |error: Error| error.within(format!("view \"{name}\""));
        let plan = self.plan_at_depth(SqlStatement::Query(query), depth + 1).await.map_err(failed)?;
        self.add_table(name, Arc::new(ViewTable::new(plan, Some(view.sql.clone()))));
        Ok(())
    }

    /// Starts a plan. Nothing runs before the stream is polled.
    pub async fn run(&self, plan: &LogicalPlan) -> Result<SendableRecordBatchStream> {
        self.context.last_stats.lock().clear();
        let plan = self.state.create_physical_plan(plan).await?;
        Ok(execute_stream(plan, self.state.task_ctx())?)
    }
}

/// The name of a relation, if the reference is to our schema.
fn own_name(reference: &TableReference) -> Option<&str> {
    let ours = reference.catalog().is_none_or(|name| name == CATALOG_NAME)
        && reference.schema().is_none_or(|name| name == SCHEMA_NAME);
    ours.then(|| reference.table())
}

/// Tables and views of a statement, made when they are asked for.
#[derive(Debug)]
struct StatementSchema {
    engine: Arc<Engine>,
    catalog: Arc<Catalog>,
    snapshot: Snapshot,
    context: PlanContext,
    /// Planned views, and tables that only this statement knows.
    extra: RwLock<HashMap<String, Arc<dyn TableProvider>>>,
}

#[async_trait]
impl SchemaProvider for StatementSchema {
    fn table_names(&self) -> Vec<String> {
        self.catalog.tables.keys().chain(self.catalog.views.keys()).cloned().collect()
    }
    async fn table(&self, name: &str) -> datafusion::error::Result<Option<Arc<dyn TableProvider>>> {
        if let Some(table) = self.extra.read().get(name) {
            return Ok(Some(table.clone()));
        }
        let Some(table) = self.catalog.tables.get(name) else { return super::system::view(&self.engine, name) };
        Ok(Some(Arc::new(KeyakiTable::new(table.clone(), self.snapshot.clone(), self.context.clone()))))
    }
    fn table_exist(&self, name: &str) -> bool {
        self.catalog.tables.contains_key(name)
            || self.extra.read().contains_key(name)
            || super::system::NAMES.contains(&name)
    }
}
