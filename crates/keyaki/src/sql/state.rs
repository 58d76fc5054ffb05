//! The context of one statement: a snapshot, the catalog as of the snapshot, and DataFusion's state over both.
//!
//! DataFusion's state is built once for each session and cloned for each statement. A change of the session's options,
//! of DataFusion's settings or of the calibration rebuilds it. Views are planned before the statements that use them:
//! `plan` finds the views of a statement, plans each of them recursively, and registers their plans as tables of the
//! statement.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::catalog::information_schema::InformationSchemaProvider;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProviderList, SchemaProvider, TableFunction, TableProvider,
};
use datafusion::common::TableReference;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::{MemTable, ViewTable};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::execute_stream;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{ObjectName, Query, Statement as SqlStatement};
use futures::future::BoxFuture;
use keyaki_device::calibrate::Calibration;
use keyaki_store::Snapshot;
use parking_lot::{Mutex, RwLock};

use super::attached::{self, Part};
use super::channels::Outbox;
use super::files::Files;
use super::program_tables::OfStatement;
use crate::base::notices::{Notices, Severity};
use crate::base::tree::{PlanTree, Tree};
use crate::catalog::{Authority, Catalog, PUBLIC, Privileges, RelationName, Table};
use crate::engine::{CATALOG_NAME, Engine};
use crate::plan::{register, share_with_queries};
use crate::sql::names::{SearchPath, relation_name};
use crate::sql::{
    SqlSession, access, casts, columns, constants, file_tables, information_schema, interval_literals, literal_row,
    pg_catalog, qualify, quantified, roles, row_values, schemas, sequences, synonyms, using, with_queries, zones,
};
use crate::table::cost::Machine;
use crate::table::{AssumedTrees, KeyakiTable, PlanContext};
use crate::values::zone::Zone;
use crate::{Error, ObjectKind, Result, SessionOptions};

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
    /// The table functions of `state`, for the information schema.
    table_functions: Arc<HashMap<String, Arc<TableFunction>>>,
}

/// The cached state of the session; rebuilt if it was invalidated or if the calibration has changed.
fn planning(session: &SqlSession) -> Result<Planning> {
    let distribution = session.distribution.clone();
    let calibration =
        distribution.as_ref().map_or_else(|| session.engine.calibration(), |shared| shared.calibration.clone());
    let mut cached = session.planning.lock();
    if let Some(planning) = cached.as_ref()
        && Arc::ptr_eq(&planning.context.calibration, &calibration)
    {
        return Ok(planning.clone());
    }
    let context = PlanContext { distribution, ..context(session, calibration) };
    let base = session.engine.base_state.clone();
    let mut config = super::settings::apply_overrides(session, base.config().clone())?;
    if let Some(shared) = &context.distribution {
        config = super::cluster::configured(config, shared);
    }
    let builder = SessionStateBuilder::new_from_existing(base).with_config(config);
    let builder = sequences::registered(register(builder, context.clone(), session.zone()));
    let state = builder.build();
    let table_functions = Arc::new(state.table_functions().clone());
    let planning = Planning { state, context, table_functions };
    Ok(cached.insert(planning).clone())
}

fn context(session: &SqlSession, calibration: Arc<Calibration>) -> PlanContext {
    let context = context_of_definitions(&session.engine);
    PlanContext { calibration, options: session.options(), last_stats: session.last_stats.clone(), ..context }
}

/// A context with the default options of sessions.
fn context_of_definitions(engine: &Engine) -> PlanContext {
    PlanContext {
        executor: engine.executor.clone(),
        calibration: engine.calibration(),
        options: SessionOptions::default(),
        last_stats: Arc::default(),
        cache: engine.cache.clone(),
        unusable: engine.unusable(),
        omits_memory_indexes: engine.is_read_only(),
        assumed: Arc::default(),
        distribution: None,
        is_attached: false,
        pipeline_memory_bytes: engine.query_memory_bytes / PIPELINE_SHARE,
    }
}

/// A state for expressions in definitions, which do not depend on the settings of a session.
pub(super) fn state_of_definitions(engine: &Engine, zone: Zone) -> SessionState {
    let builder = SessionStateBuilder::new_from_existing(engine.base_state.clone());
    sequences::registered(register(builder, context_of_definitions(engine), zone)).build()
}

/// The database as one statement sees it.
pub(crate) struct StatementState {
    pub catalog: Arc<Catalog>,
    /// The catalog in which queries look up names: with the relations of attached databases.
    names: Arc<Catalog>,
    pub snapshot: Snapshot,
    pub state: SessionState,
    /// The time zone of the session.
    pub zone: Zone,
    /// The search path of the session.
    pub path: Arc<SearchPath>,
    /// What the statement may do.
    pub authority: Authority,
    /// The files that the statement may read.
    files: Files,
    program_tables: OfStatement,
    /// Receives notices of reading files.
    notices: Option<Arc<Notices>>,
    tables: Arc<StatementTables>,
    views_begun: Mutex<HashSet<RelationName>>,
    /// The statement calls functions that do more than return a value.
    acts: AtomicBool,
    /// Number of WITH queries and calls of functions in FROM with internal names.
    named: AtomicUsize,
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
        StatementState::assuming(session, catalog, snapshot, Arc::default())
    }

    /// As [`StatementState::new`], with indexes of the catalog that do not exist. Plans with them cannot be executed.
    ///
    /// # Errors
    /// As [`StatementState::new`].
    pub fn assuming(
        session: &SqlSession,
        catalog: Arc<Catalog>,
        snapshot: Snapshot,
        assumed: Arc<AssumedTrees>,
    ) -> Result<Self> {
        let Planning { context, mut state, table_functions } = planning(session)?;
        let context = PlanContext { assumed, ..context };
        let (zone, path) = (session.zone(), session.path());
        let authority = session.authority(&catalog)?;
        let (names, attached) = {
            let mut attachments = session.attachments.lock();
            let of_session = |engine: &Engine| PlanContext {
                options: context.options.clone(),
                last_stats: context.last_stats.clone(),
                is_attached: true,
                ..context_of_definitions(engine)
            };
            match attachments.is_empty() {
                true => (catalog.clone(), Vec::new()),
                false => attachments.catalog(&catalog, of_session)?,
            }
        };
        let tables = Arc::new(StatementTables {
            engine: session.engine.clone(),
            catalog: names.clone(),
            snapshot: snapshot.clone(),
            context,
            attached,
            uses_attached: AtomicBool::new(false),
            temporary: path.temporary().cloned(),
            table_functions,
            user: session.acting().map(|acting| acting.session_user().into()),
            authority: authority.clone(),
            pg_catalog: Arc::new(pg_catalog::Source::new(
                session,
                catalog.clone(),
                snapshot.clone(),
                authority.clone(),
            )),
            extra: RwLock::default(),
        });
        let catalogs = MemoryCatalogProviderList::new();
        catalogs.register_catalog(CATALOG_NAME.into(), Arc::new(StatementCatalog(tables.clone())));
        state.register_catalog_list(Arc::new(catalogs) as Arc<dyn CatalogProviderList>);
        state.mark_start_execution();
        sequences::register_for(&mut state, session, &catalog)?;
        schemas::register_for(&mut state, &catalog, &path)?;
        roles::acting::register_for(&mut state, session.acting().as_deref())?;
        pg_catalog::register_for(&mut state, tables.pg_catalog.clone())?;
        let (views_begun, named) = (Mutex::default(), AtomicUsize::default());
        let files = session.files();
        let program_tables = OfStatement::new(session.program_tables.lock().clone());
        let notices = super::notices::receiver(session, Severity::Notice).cloned();
        let acts = AtomicBool::new(false);
        Ok(StatementState {
            catalog,
            names,
            snapshot,
            state,
            zone,
            path,
            authority,
            files,
            program_tables,
            notices,
            tables,
            views_begun,
            acts,
            named,
        })
    }

    /// The same statement over another snapshot: `now()` stays.
    ///
    /// # Errors
    /// As [`StatementState::new`].
    pub fn at(&self, session: &SqlSession, catalog: Arc<Catalog>, snapshot: Snapshot) -> Result<Self> {
        let mut other = StatementState::new(session, catalog, snapshot)?;
        other.state.execution_props_mut().query_execution_start_time =
            self.state.execution_props().query_execution_start_time;
        sequences::keep_permitted(&self.state, &other.state);
        Ok(other)
    }

    /// The messages of the planned statement, apart from those of the session; `None` if it calls no function that sends any.
    pub fn outbox(&self) -> Option<Arc<Outbox>> {
        let acts = self.acts.load(Ordering::Relaxed);
        acts.then(|| self.tables.pg_catalog.outbox.get_or_init(Arc::default).clone())
    }

    /// The machine of the cost model.
    pub fn machine(&self) -> Machine {
        self.tables.context.machine()
    }

    /// Registers an additional table, visible only to this statement. `name` is a view or starts with a reserved
    /// prefix.
    pub fn add_table(&self, name: RelationName, table: Arc<dyn TableProvider>) {
        self.tables.extra.write().insert(name, table);
    }

    /// Registers the tables of the program among relations that a statement names.
    fn add_program_tables(&self, named: &[RelationName]) -> Result<()> {
        for relation in named {
            let is_known = |schema: &StatementSchema| schema.table_exist(&relation.name);
            let public = StatementSchema { name: PUBLIC.into(), tables: self.tables.clone() };
            if !relation.is_public() || self.catalog.has_relation(relation) || is_known(&public) {
                continue;
            }
            if let Some(table) = self.program_tables.provider(&relation.name, self.zone)? {
                self.add_table(relation.clone(), Arc::new(table));
            }
        }
        Ok(())
    }

    /// True if the plan reads a table of the program or of an attached database, which may be another one at the next
    /// execution.
    pub fn is_momentary(&self) -> bool {
        self.program_tables.is_used() || self.tables.uses_attached.load(Ordering::Relaxed)
    }

    /// True if a relation belongs to an attached database.
    pub fn is_attached(&self, name: &RelationName) -> bool {
        self.tables.part(&name.schema).is_some()
    }

    /// Name of a relation that the statement names.
    ///
    /// # Errors
    /// As [`relation_name`].
    pub fn relation(&self, name: &ObjectName) -> Result<RelationName> {
        relation_name(name, &self.catalog, &self.path)
    }

    /// A table that the statement names.
    ///
    /// # Errors
    /// As [`StatementState::relation`] and [`Catalog::table`].
    pub fn table(&self, name: &ObjectName) -> Result<Arc<Table>> {
        Ok(self.catalog.table(&self.relation(name)?)?.clone())
    }

    /// DataFusion's table provider of a table as of the statement's snapshot.
    pub fn provider(&self, table: &Arc<Table>) -> KeyakiTable {
        self.tables.provider(table)
    }

    /// Plans a query that the database adds itself, such as that of a foreign key: no privileges are checked for the relations
    /// that it names.
    ///
    /// # Errors
    /// As [`StatementState::plan`].
    pub async fn plan_own_query(&self, query: Query) -> Result<LogicalPlan> {
        let statement = SqlStatement::Query(Box::new(query));
        super::strict::check(&statement)?;
        self.plan_at_depth(statement, &self.path, &Authority::All, true, 0).await
    }

    pub async fn plan_query(&self, query: Query) -> Result<LogicalPlan> {
        self.plan(SqlStatement::Query(Box::new(query))).await
    }

    /// A plan after the analyzer's rules, with the types of its result.
    ///
    /// # Errors
    /// Errors of types.
    pub fn analyzed(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        Ok(self.state.analyzer().execute_and_check(plan, self.state.config_options(), |_, _| {})?)
    }

    /// Plans a statement of DataFusion, after all views that it uses.
    ///
    /// # Errors
    /// `Unsupported` for clauses that DataFusion would ignore, `TooComplex` for views nested too deeply, errors of
    /// DataFusion's planner.
    pub async fn plan(&self, statement: SqlStatement) -> Result<LogicalPlan> {
        super::strict::check(&statement)?;
        self.plan_at_depth(statement, &self.path, &self.authority, true, 0).await
    }

    /// Plans a query that the catalog stores: its names do not depend on the search path of the session. No privileges are
    /// checked for the relations that it names.
    ///
    /// # Errors
    /// As [`StatementState::plan`].
    pub async fn plan_stored(&self, sql: &str) -> Result<LogicalPlan> {
        self.plan_stored_as(sql, &Authority::All).await
    }

    /// As [`StatementState::plan_stored`], with the privileges of `authority`.
    ///
    /// # Errors
    /// As [`StatementState::plan`].
    pub async fn plan_stored_as(&self, sql: &str, authority: &Authority) -> Result<LogicalPlan> {
        let statement = SqlStatement::Query(super::parse_query(sql)?);
        super::strict::check(&statement)?;
        self.plan_at_depth(statement, &SearchPath::default(), authority, false, 0).await
    }

    /// Plans a statement whose names are found along `path`. `is_result`: its columns are shown under their names.
    fn plan_at_depth<'a>(
        &'a self,
        mut statement: SqlStatement,
        path: &'a SearchPath,
        authority: &'a Authority,
        is_result: bool,
        depth: usize,
    ) -> BoxFuture<'a, Result<LogicalPlan>> {
        Box::pin(async move {
            attached::replace(&mut statement, &self.tables.attached);
            with_queries::gathered(&mut statement)?;
            super::shadowed::rename(&mut statement);
            super::recursion::limited(&mut statement)?;
            columns::name(&mut statement);
            if pg_catalog::replace(&mut statement)? {
                self.acts.store(true, Ordering::Relaxed);
            }
            synonyms::replace(&mut statement)?;
            super::windows::inline(&mut statement)?;
            super::grouping_sets::combine(&mut statement)?;
            row_values::compare(&mut statement)?;
            super::table_functions::to_subqueries(&mut statement)?;
            qualify::planned(&mut statement, &self.names, path)?;
            using::as_conditions(&mut statement, &self.names, is_result)?;
            constants::typed(&mut statement);
            casts::distinguish(&mut statement);
            zones::as_calls(&mut statement)?;
            interval_literals::read(&mut statement)?;
            quantified::as_calls(&mut statement)?;
            let materialized = with_queries::materialized(&statement);
            let casting = super::recursion::casting(&statement);
            let files = file_tables::take(&mut statement, self.tables.extra.read().len())?;
            if !files.is_empty() && !authority.is_all() {
                return Err(Error::InsufficientPrivilege("must be superuser to read files".into()));
            }
            for table in &files {
                let (state, files, zone, notices) = (&self.state, &self.files, self.zone, self.notices.clone());
                let reading = file_tables::Reading { state, files, zone, notices };
                let provider = file_tables::provider(table, &reading).await?;
                self.add_table(RelationName::public(&table.name), provider);
            }
            let statement = DfStatement::Statement(Box::new(statement));
            let named = self.relations_named(&statement)?;
            if is_result && depth == 0 {
                self.add_program_tables(&named)?;
            }
            for relation in &named {
                if self.is_attached(relation) && !authority.is_all() {
                    let what = "must be superuser to read attached databases";
                    return Err(Error::InsufficientPrivilege(what.into()));
                }
                access::relation(authority, &self.names, relation, Privileges::SELECT)?;
                self.plan_view(relation, depth).await?;
            }
            if named.iter().any(|name| information_schema::needs_plans(name) || pg_catalog::needs_plans(name)) {
                for shown in information_schema::shown_views(&self.catalog, path) {
                    // Columns of views that use this one, or that cannot be planned any more, are not shown.
                    let _ = self.plan_view(shown, depth).await;
                }
            }
            let plan = self.state.statement_to_plan(statement).await;
            let plan = plan.map_err(|error| columns::ambiguous(error.into()))?;
            let next = || self.named.fetch_add(1, Ordering::Relaxed) + 1;
            let plan = share_with_queries(plan, &materialized, &next)?;
            let plan = super::ordered::aggregates(plan)?;
            check_aggregates(&plan)?;
            super::recursion::check_types(&plan, &casting)?;
            super::recursion::check_aggregates(&plan)?;
            Ok(super::documents::kept(super::series::distinguish(plan, &next)?)?)
        })
    }

    /// Names of the tables and views that a statement uses directly; without a schema, those of `public`. A query of the
    /// information schema or of `pg_catalog` uses all views that it shows.
    pub fn relations_used(&self, statement: &DfStatement) -> Result<Vec<RelationName>> {
        let mut used = self.relations_named(statement)?;
        let is_of_system = |name: &RelationName| [information_schema::NAME, pg_catalog::NAME].contains(&&*name.schema);
        if used.iter().any(is_of_system) {
            used.retain(|name| !is_of_system(name));
            used.extend(information_schema::shown_views(&self.catalog, &self.path).cloned());
        }
        Ok(used)
    }

    /// Names of the tables and views that a statement names; without a schema, those of `public`.
    pub fn relations_named(&self, statement: &DfStatement) -> Result<Vec<RelationName>> {
        Ok(self.state.resolve_table_references(statement)?.iter().filter_map(own_name).collect())
    }

    async fn plan_view(&self, name: &RelationName, depth: usize) -> Result<()> {
        // A view over the information schema uses all views, itself included: each view is planned once.
        if self.tables.extra.read().contains_key(name) || !self.views_begun.lock().insert(name.clone()) {
            return Ok(());
        }
        let Some(view) = self.names.views.get(name) else { return Ok(()) };
        if depth >= VIEW_DEPTH_MAX {
            return Err(Error::TooComplex(format!(
                "view \"{name}\" is nested too deeply: more than {VIEW_DEPTH_MAX} views use one another"
            )));
        }
        let query = super::parse_query(&view.sql)?;
        let failed = |error: Error| error.within(format!("view \"{name}\""));
        let path = SearchPath::default();
        // The query of a view is executed with the privileges of its owner.
        let owner = match &view.access.owner {
            None => Authority::All,
            Some(owner) => {
                let missing = || Error::NotFound { kind: ObjectKind::Role, name: owner.clone() };
                let own = Authority::of(&self.catalog, owner).ok_or_else(missing)?;
                match self.authority.newest_catalog() {
                    Some(newest) => own.limited(Authority::of(&newest, owner).ok_or_else(missing)?, newest),
                    None => own,
                }
            }
        };
        let query = SqlStatement::Query(query);
        let plan = self.plan_at_depth(query, &path, &owner, false, depth + 1).await.map_err(failed)?;
        self.add_table(name.clone(), Arc::new(ViewTable::new(plan, Some(view.sql.clone()))));
        Ok(())
    }

    /// Creates the physical plan and its output stream. Execution starts when the stream is first polled.
    pub async fn run(&self, plan: &LogicalPlan) -> Result<SendableRecordBatchStream> {
        let rows: SendableRecordBatchStream = match literal_row::of(plan)? {
            Some(row) => Box::pin(MemoryStream::try_new(vec![row.clone()], row.schema(), None)?),
            None => execute_stream(self.state.create_physical_plan(plan).await?, self.state.task_ctx())?,
        };
        Ok(columns::rows_of(rows, plan, self.zone))
    }
}

/// # Errors
/// `Unsupported` for an aggregate in a subquery over columns of an outer query only: in SQL, it is one of the outer query.
fn check_aggregates(plan: &LogicalPlan) -> Result<()> {
    let mut found = None;
    plan.apply_with_subqueries_dyn(&mut |node| {
        let LogicalPlan::Aggregate(aggregate) = node else { return Ok(TreeNodeRecursion::Continue) };
        for expr in &aggregate.aggr_expr {
            let (mut outer, mut own) = (false, false);
            expr.apply_dyn(&mut |expr| {
                outer |= matches!(expr, Expr::OuterReferenceColumn(..));
                own |= matches!(expr, Expr::Column(_));
                Ok(TreeNodeRecursion::Continue)
            })?;
            if outer && !own {
                found = Some(expr.human_display().to_string());
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    match found {
        Some(aggregate) => Err(Error::Unsupported(format!(
            "aggregate {aggregate} of columns of an outer query (compute it there, and use its column)"
        ))),
        None => Ok(()),
    }
}

/// The name of a reference to a relation of this database.
fn own_name(reference: &TableReference) -> Option<RelationName> {
    let is_ours = reference.catalog().is_none_or(|name| name == CATALOG_NAME);
    is_ours.then(|| RelationName::new(reference.schema().unwrap_or(PUBLIC), reference.table()))
}

/// The relations of one statement. Table providers are created when DataFusion resolves their names.
#[derive(Debug)]
struct StatementTables {
    engine: Arc<Engine>,
    catalog: Arc<Catalog>,
    snapshot: Snapshot,
    context: PlanContext,
    /// The attached databases.
    attached: Vec<Part>,
    /// The plan reads a table of one of them.
    uses_attached: AtomicBool,
    /// The schema of the session's temporary objects.
    temporary: Option<Arc<str>>,
    table_functions: Arc<HashMap<String, Arc<TableFunction>>>,
    /// The session user; `None` for a session without a role.
    user: Option<Arc<str>>,
    authority: Authority,
    pg_catalog: Arc<pg_catalog::Source>,
    /// Planned views, and tables visible only to this statement.
    extra: RwLock<HashMap<RelationName, Arc<dyn TableProvider>>>,
}

/// The schemas of one statement.
#[derive(Debug)]
struct StatementCatalog(Arc<StatementTables>);

impl CatalogProvider for StatementCatalog {
    fn schema_names(&self) -> Vec<String> {
        let temporary = self.0.temporary.iter().map(|name| name.to_string());
        std::iter::once(PUBLIC.into()).chain(self.0.catalog.schemas.iter().cloned()).chain(temporary).collect()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        if name == information_schema::NAME {
            // Settings and functions depend on no catalog.
            let others = InformationSchemaProvider::new(Arc::new(MemoryCatalogProviderList::new()))
                .with_table_functions(HashMap::clone(&self.0.table_functions));
            return Some(Arc::new(InformationSchema { tables: self.0.clone(), others }));
        }
        if name == pg_catalog::NAME {
            return Some(Arc::new(PgCatalog(self.0.clone())));
        }
        let schema = || StatementSchema { name: name.into(), tables: self.0.clone() };
        self.0.catalog.has_schema(name).then(|| Arc::new(schema()) as Arc<dyn SchemaProvider>)
    }
}

/// A schema of one statement. The system views belong to `public`.
#[derive(Debug)]
struct StatementSchema {
    name: Arc<str>,
    tables: Arc<StatementTables>,
}

/// The information schema of one statement.
#[derive(Debug)]
struct InformationSchema {
    tables: Arc<StatementTables>,
    /// DataFusion's views of settings and functions.
    others: InformationSchemaProvider,
}

#[async_trait]
impl SchemaProvider for InformationSchema {
    fn table_names(&self) -> Vec<String> {
        let own = information_schema::NAMES.iter().map(|name| name.to_string());
        let others = self.others.table_names().into_iter();
        own.chain(others.filter(|name| !information_schema::NAMES.contains(&name.as_str()))).collect()
    }

    async fn table(&self, name: &str) -> datafusion::error::Result<Option<Arc<dyn TableProvider>>> {
        let StatementTables { catalog, temporary, extra, .. } = &*self.tables;
        let rows = {
            let plan = |name: &RelationName| Some(extra.read().get(name)?.get_logical_plan()?.into_owned());
            let authority = &self.tables.pg_catalog.authority;
            let source = information_schema::Source { catalog, authority, temporary: temporary.as_ref(), plan: &plan };
            information_schema::view(&source, name)?
        };
        match rows {
            Some(rows) => Ok(Some(Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?))),
            None => self.others.table(name).await,
        }
    }

    fn table_exist(&self, name: &str) -> bool {
        information_schema::NAMES.contains(&name) || self.others.table_exist(name)
    }
}

/// The schema `pg_catalog` of one statement.
#[derive(Debug)]
struct PgCatalog(Arc<StatementTables>);

#[async_trait]
impl SchemaProvider for PgCatalog {
    fn table_names(&self) -> Vec<String> {
        pg_catalog::names().map(Into::into).collect()
    }

    async fn table(&self, name: &str) -> datafusion::error::Result<Option<Arc<dyn TableProvider>>> {
        let StatementTables { pg_catalog: source, extra, .. } = &*self.0;
        let plan = |name: &RelationName| Some(extra.read().get(name)?.get_logical_plan()?.into_owned());
        let Some(rows) = pg_catalog::view(source, name, &plan)? else { return Ok(None) };
        Ok(Some(Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?)))
    }

    fn table_exist(&self, name: &str) -> bool {
        pg_catalog::exists(name)
    }
}

impl StatementTables {
    /// The attached database that has a schema.
    fn part(&self, schema: &str) -> Option<&Part> {
        self.attached.iter().find(|part| part.has_schema(schema))
    }

    /// The provider of a table, after the expressions that queries use have been compiled.
    fn provider(&self, table: &Arc<Table>) -> KeyakiTable {
        let (engine, snapshot, context) = match self.part(&table.def.name.schema) {
            Some(part) => {
                self.uses_attached.store(true, Ordering::Relaxed);
                (&part.engine, &part.snapshot, &part.context)
            }
            None => (&self.engine, &self.snapshot, &self.context),
        };
        if (table.has_generated() || table.has_computed_index()) && table.compiled().is_none() {
            // Without its expressions, a query reads the columns that they use, and no partial index or index of expressions.
            let _ = super::expressions::compile(engine, table);
        }
        KeyakiTable::new(table.clone(), snapshot.clone(), context.clone())
    }
}

#[async_trait]
impl SchemaProvider for StatementSchema {
    fn table_names(&self) -> Vec<String> {
        let catalog = &self.tables.catalog;
        let names = catalog.tables.keys().chain(catalog.views.keys());
        names.filter(|name| name.schema == self.name).map(|name| name.name.clone()).collect()
    }
    async fn table(&self, name: &str) -> datafusion::error::Result<Option<Arc<dyn TableProvider>>> {
        let StatementTables { engine, catalog, snapshot, extra, user, authority, .. } = &*self.tables;
        let name = RelationName::new(self.name.clone(), name);
        if let Some(table) = extra.read().get(&name) {
            return Ok(Some(table.clone()));
        }
        let Some(table) = catalog.tables.get(&name) else {
            return match name.is_public() {
                true => {
                    let user = if authority.is_all() { None } else { Some(user.as_deref()) };
                    super::system::view(engine, catalog, snapshot, &self.tables.attached, &name, user, authority)
                }
                false => Ok(None),
            };
        };
        Ok(Some(Arc::new(self.tables.provider(table))))
    }
    fn table_exist(&self, name: &str) -> bool {
        let name = RelationName::new(self.name.clone(), name);
        self.tables.catalog.tables.contains_key(&name)
            || self.tables.extra.read().contains_key(&name)
            || (name.is_public() && super::system::NAMES.contains(&&*name))
    }
}
