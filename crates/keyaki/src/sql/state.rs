//! The context of one statement: a snapshot, the catalog as of the snapshot, and DataFusion's state over both.
//!
//! DataFusion's state is built once for each session and cloned for each statement. A change of the session's options,
//! of DataFusion's settings or of the calibration rebuilds it. Views are planned before the statements that use them:
//! `plan` finds the views of a statement, plans each of them recursively, and registers their plans as tables of the
//! statement.

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
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{Query, Statement as SqlStatement};
use futures::StreamExt;
use futures::future::BoxFuture;
use keyaki_device::calibrate::Calibration;
use keyaki_store::Snapshot;
use parking_lot::{Mutex, RwLock};

use crate::catalog::Catalog;
use crate::catalog::Table;
use crate::engine::{CATALOG_NAME, Engine, SCHEMA_NAME};
use crate::plan::register;
use crate::sql::{SqlSession, columns, constants, file_tables, sequences, zones};
use crate::table::KeyakiTable;
use crate::table::PlanContext;
use crate::values::zone::Zone;
use crate::{Error, Result};

/// Maximum nesting depth of views.
const VIEW_DEPTH_MAX: usize = 50;
/// An index pipeline may use this fraction of the query memory: one eighth.
const PIPELINE_SHARE: usize = 8;

/// DataFusion's state with the settings of a session and Keyaki's planner, but without tables. Cloning it is much
/// cheaper than building it.
#[derive(Debug, Clone)]
pub(crate) struct Planning {
    context: PlanContext,
    state: SessionState,
}

/// The cached state of the session; rebuilt if it was invalidated or if the calibration has changed.
fn planning(session: &SqlSession) -> Result<Planning> {
    let calibration = session.engine.calibration();
    let mut cached = session.planning.lock();
    if let Some(planning) = cached.as_ref()
        && Arc::ptr_eq(&planning.context.calibration, &calibration)
    {
        return Ok(planning.clone());
    }
    let context = context(session, calibration);
    let base = session.engine.base_state.clone();
    let config = super::settings::apply_overrides(session, base.config().clone())?;
    let builder = SessionStateBuilder::new_from_existing(base).with_config(config);
    let builder = sequences::registered(register(builder, context.clone(), session.zone()));
    let planning = Planning { state: builder.build(), context };
    Ok(cached.insert(planning).clone())
}

fn context(session: &SqlSession, calibration: Arc<Calibration>) -> PlanContext {
    let engine = &session.engine;
    PlanContext {
        executor: engine.executor.clone(),
        calibration,
        options: session.options(),
        last_stats: session.last_stats.clone(),
        cache: engine.cache.clone(),
        unusable: engine.unusable.clone(),
        pipeline_memory_bytes: engine.query_memory_bytes / PIPELINE_SHARE,
    }
}

/// A state for expressions in definitions, which do not depend on the settings of a session.
pub(super) fn state_of_definitions(session: &SqlSession, zone: Zone) -> SessionState {
    let builder = SessionStateBuilder::new_from_existing(session.engine.base_state.clone());
    sequences::registered(register(builder, context(session, session.engine.calibration()), zone)).build()
}

/// The database as one statement sees it.
pub(crate) struct StatementState {
    pub catalog: Arc<Catalog>,
    pub snapshot: Snapshot,
    pub context: PlanContext,
    pub state: SessionState,
    /// The time zone of the session.
    pub zone: Zone,
    schema: Arc<StatementSchema>,
    views_begun: Mutex<HashSet<String>>,
}

impl StatementState {
    /// A state for statements that do not write: over the snapshot of the open transaction, or the newest one.
    ///
    /// # Errors
    /// As [`SqlSession::moment`].
    pub fn reading(session: &SqlSession) -> Result<Self> {
        let (catalog, snapshot) = session.moment()?;
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
        sequences::register_for(&mut state, session, &catalog)?;
        let zone = session.zone();
        Ok(StatementState { catalog, snapshot, context, state, zone, schema, views_begun: Mutex::default() })
    }

    /// Registers an additional table, visible only to this statement. `name` is a view or starts with a reserved
    /// prefix.
    pub fn add_table(&self, name: &str, table: Arc<dyn TableProvider>) {
        self.schema.extra.write().insert(name.into(), table);
    }

    /// DataFusion's table provider of a table as of the statement's snapshot.
    pub fn provider(&self, table: &Arc<Table>) -> KeyakiTable {
        KeyakiTable::new(table.clone(), self.snapshot.clone(), self.context.clone())
    }

    pub async fn plan_query(&self, query: Query) -> Result<LogicalPlan> {
        self.plan(SqlStatement::Query(Box::new(query))).await
    }

    /// Plans a statement of DataFusion, after all views that it uses.
    ///
    /// # Errors
    /// `Unsupported` for clauses that DataFusion would ignore, `TooComplex` for views nested too deeply, errors of
    /// DataFusion's planner.
    pub async fn plan(&self, statement: SqlStatement) -> Result<LogicalPlan> {
        super::strict::check(&statement)?;
        self.plan_at_depth(statement, 0).await
    }

    fn plan_at_depth(&self, mut statement: SqlStatement, depth: usize) -> BoxFuture<'_, Result<LogicalPlan>> {
        Box::pin(async move {
            columns::name(&mut statement);
            constants::typed(&mut statement);
            zones::as_calls(&mut statement)?;
            let files = file_tables::take(&mut statement, self.schema.extra.read().len())?;
            for table in &files {
                self.add_table(&table.name, file_tables::provider(table, &self.state).await?);
            }
            let statement = DfStatement::Statement(Box::new(statement));
            for relation in self.relations_used(&statement)? {
                self.plan_view(&relation, depth).await?;
            }
            self.state.statement_to_plan(statement).await.map_err(|error| columns::ambiguous(error.into()))
        })
    }

    /// Names of the tables and views that a statement uses directly. A query of the information schema uses all views.
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
        // A view over the information schema uses all views, itself included: each view is planned once.
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

    /// Creates the physical plan and its output stream. Execution starts when the stream is first polled.
    pub async fn run(&self, plan: &LogicalPlan) -> Result<SendableRecordBatchStream> {
        self.context.last_stats.lock().clear();
        let plan = self.state.create_physical_plan(plan).await?;
        let rows = execute_stream(plan, self.state.task_ctx())?;
        let schema = columns::in_zone(&columns::shown_schema(&rows.schema()), self.zone);
        if Arc::ptr_eq(&schema, &rows.schema()) {
            return Ok(rows);
        }
        let named = schema.clone();
        let rows = rows.map(move |batch| columns::renamed(&batch?, &named));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// The table name of a reference to this database's schema.
fn own_name(reference: &TableReference) -> Option<&str> {
    let ours = reference.catalog().is_none_or(|name| name == CATALOG_NAME)
        && reference.schema().is_none_or(|name| name == SCHEMA_NAME);
    ours.then(|| reference.table())
}

/// Schema provider of one statement. Table providers are created when DataFusion resolves their names.
#[derive(Debug)]
struct StatementSchema {
    engine: Arc<Engine>,
    catalog: Arc<Catalog>,
    snapshot: Snapshot,
    context: PlanContext,
    /// Planned views, and tables visible only to this statement.
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
        let Some(table) = self.catalog.tables.get(name) else {
            return super::system::view(&self.engine, &self.catalog, &self.snapshot, name);
        };
        Ok(Some(Arc::new(KeyakiTable::new(table.clone(), self.snapshot.clone(), self.context.clone()))))
    }
    fn table_exist(&self, name: &str) -> bool {
        self.catalog.tables.contains_key(name)
            || self.extra.read().contains_key(name)
            || super::system::NAMES.contains(&name)
    }
}
