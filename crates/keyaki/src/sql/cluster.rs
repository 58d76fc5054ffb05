//! Queries that the workers of a cluster execute together over a published database.
//!
//! The coordinator and the workers open the same version of the database, and each of them plans the query from its text. So
//! operators, expressions and functions need no encoding: a [`RemoteQuery`] has what a plan depends on beside the database,
//! and [`plan`] makes the same plan of it on every machine. The [`Cluster`] divides the plan into stages and executes them.
//!
//! A query that depends on the session otherwise, or has operators that keep state in one process, is executed by the session:
//! [`Planned::obstacle`] is the reason.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use chrono::DateTime;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::SessionConfig;
use datafusion::sql::sqlparser::ast::Statement as Sql;
use futures::StreamExt;
use futures::future::BoxFuture;
use keyaki_device::calibrate::Calibration;
use keyaki_exec::ExecutorOptions;
use serde::{Deserialize, Serialize};

use super::names::SearchPath;
use super::pg_catalog::FUNCTION;
use super::state::StatementState;
use super::{FileAccess, Outcome, Parsed, PlanCache, SqlSession, columns, split};
use crate::base::tree::{PlanTree, Tree};
use crate::engine::Engine;
use crate::table::{Distribution, QuerySplit};
use crate::values::zone::Zone;
use crate::{Error, Result};

/// The smallest number of partitions of a plan on each machine: with one, scans would not be split.
const PARTITIONS_MIN: usize = 2;
/// The largest number of partitions of a plan on each machine.
const PARTITIONS_MAX: usize = 1024;
/// The largest number of workers.
pub const WORKERS_MAX: usize = 4096;
/// The largest number of rows of a batch.
const BATCH_ROWS_MAX: usize = 1 << 16;
/// Longer queries are not sent to workers.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Operators that machines may execute shares of: they keep no state outside of their streams, or state that the division into
/// stages knows of.
const DIVISIBLE: [&str; 28] = [
    "AggregateExec",
    "BoundedWindowAggExec",
    "CoalesceBatchesExec",
    "CoalescePartitionsExec",
    "CooperativeExec",
    "CrossJoinExec",
    "EmptyExec",
    "FilterExec",
    "FirstRowsExec",
    "GlobalLimitExec",
    "HashJoinExec",
    "IndexPipelineExec",
    "InterleaveExec",
    "KeyGroupsExec",
    "LocalLimitExec",
    "NestedLoopJoinExec",
    "PlaceholderRowExec",
    "ProjectionExec",
    "RepartitionExec",
    "ScanExec",
    "SortExec",
    "SortMergeJoinExec",
    "SortPreservingMergeExec",
    "SummaryExec",
    "UnconstantExec",
    "UnionExec",
    "WindowAggExec",
    "WindowExec",
];

/// A cluster of machines that execute queries of a session together.
pub trait Cluster: Debug + Send + Sync {
    /// Executes a query. Returns the rows ([`Planned::shown_by`]), or `None` if the session is to execute it.
    ///
    /// # Errors
    /// `Cluster` if workers cannot be reached or are of other versions; errors of planning.
    fn run<'a>(&'a self, query: &'a Arc<ClusterQuery>) -> BoxFuture<'a, Result<Option<SendableRecordBatchStream>>>;

    /// Explains a query. With `executes`, a query that is divided is executed, and the text has figures of its operators.
    ///
    /// # Errors
    /// As [`Cluster::run`]; errors of the execution.
    fn explain<'a>(&'a self, query: &'a Arc<ClusterQuery>, executes: bool) -> BoxFuture<'a, Result<Explained>>;
}

/// How a cluster executes a query.
#[derive(Debug)]
pub enum Explained {
    /// Its operators, with the stages into which they are divided.
    Stages(String),
    /// The session executes it, for this reason.
    Undivided(String),
}

/// What the plan of a query depends on, apart from the database. JSON by `serde`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RemoteQuery {
    /// The URL of the published database, with `@` and the number of the version.
    pub database: String,
    /// Number of workers among which scans and pipelines are split.
    pub workers: usize,
    text: String,
    /// Settings that differ from their defaults, in the order of SET.
    settings: Vec<(String, String)>,
    search_path: Vec<String>,
    zone: String,
    /// The time of `now()`, in nanoseconds since 1970.
    now_ns: Option<i64>,
    partitions: usize,
    batch_rows: usize,
    calibration: Calibration,
    executor: ExecutorSize,
    page_cache_bytes: usize,
    split: QuerySplit,
}

/// The options of an executor that costs depend on.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct ExecutorSize {
    workers: usize,
    queue_depth: usize,
    tasks_in_flight: usize,
    coalesce_max_bytes: usize,
}

/// A query that a cluster may execute.
#[derive(Debug)]
pub struct ClusterQuery {
    engine: Arc<Engine>,
    plans: Arc<PlanCache>,
    query: RemoteQuery,
}

impl ClusterQuery {
    /// Plans the query for a number of workers, at least 1.
    ///
    /// # Errors
    /// Errors of planning.
    pub async fn plan(&self, workers: usize, split: QuerySplit) -> Result<Planned> {
        plan(&self.engine, &self.plans, RemoteQuery { workers: workers.max(1), split, ..self.query.clone() }).await
    }
}

/// A leaf of a plan with some of its partitions, and with empty ones in place of `None`; `None` for operators that have one
/// partition always.
pub fn with_partitions(leaf: &Arc<dyn ExecutionPlan>, chosen: &[Option<usize>]) -> Option<Arc<dyn ExecutionPlan>> {
    crate::plan::with_partitions(leaf, chosen)
}

/// A planned query.
#[derive(Debug)]
pub struct Planned {
    /// What the plan depends on.
    pub query: RemoteQuery,
    /// The plan of a single machine.
    pub plan: Arc<dyn ExecutionPlan>,
    /// The state with which it was planned.
    pub state: SessionState,
    /// Why a single machine has to execute the query.
    pub obstacle: Option<String>,
    logical: LogicalPlan,
    zone: Zone,
}

impl Planned {
    /// A function that gives rows of the plan the names and types of the query's columns.
    pub fn shown_by(&self) -> impl FnOnce(SendableRecordBatchStream) -> SendableRecordBatchStream + use<> {
        let (logical, zone) = (self.logical.clone(), self.zone);
        move |rows| columns::rows_of(rows, &logical, zone)
    }
}

/// Sets the options of a plan that several machines execute.
pub(super) fn configured(config: SessionConfig, shared: &Distribution) -> SessionConfig {
    let mut config = config.with_target_partitions(shared.partitions).with_batch_size(shared.batch_rows);
    // The operator of scalar subqueries keeps their values in one process. Without it, they are joins.
    config.options_mut().optimizer.enable_physical_uncorrelated_scalar_subquery = false;
    config
}

/// Plans a query on one of the machines that execute it.
///
/// # Errors
/// Errors of planning.
pub(crate) async fn plan(engine: &Arc<Engine>, plans: &Arc<PlanCache>, query: RemoteQuery) -> Result<Planned> {
    let zone = Zone::of_label(&query.zone)?;
    let mut session = SqlSession::new(engine.clone(), plans.clone());
    session.distribution = Some(Arc::new(query.distribution()));
    // Neither a coordinator nor a worker reads files for it.
    *session.files.lock() = Arc::new(FileAccess::Within(Vec::new()));
    *session.zone.lock() = zone;
    *session.path.lock() = Arc::new(SearchPath::of_schemas(query.search_path.clone()));
    for (name, value) in &query.settings {
        super::settings::assign(&session, name, value)?;
    }
    let mut state = StatementState::reading(&session)?;
    state.state.execution_props_mut().query_execution_start_time = query.now_ns.map(DateTime::from_timestamp_nanos);
    let logical = state.plan(parse(&query.text)?).await?;
    let mut obstacle = (state.is_momentary() || state.outbox().is_some())
        .then(|| "it uses tables or functions of the session".to_string());
    obstacle = obstacle.or(of_expressions(&logical)?);
    let plan = state.state.create_physical_plan(&logical).await?;
    obstacle = obstacle.or(of_operators(&plan)?);
    Ok(Planned { query, plan, state: state.state, obstacle, logical, zone })
}

/// The obstacle that expressions of a query are: volatile functions, whose values may be one for all machines.
fn of_expressions(plan: &LogicalPlan) -> Result<Option<String>> {
    let mut found = None;
    plan.apply_with_subqueries_dyn(&mut |node| {
        node.apply_expressions_dyn(&mut |expr| {
            if expr.is_volatile() {
                found = Some(format!("{} is volatile", expr.human_display()));
            }
            let is_of_session =
                |expr: &Expr| matches!(expr, Expr::ScalarFunction(call) if call.func.name() == FUNCTION);
            if expr.exists_dyn(&mut |expr| Ok(is_of_session(expr)))? {
                found = Some("it calls functions of the session".into());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// The obstacle that operators of a plan are.
fn of_operators(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    let mut found = None;
    plan.apply_dyn(&mut |node| {
        // Sorts and limits have further names in parentheses.
        let kind = node.name().split('(').next().unwrap_or_default();
        if !DIVISIBLE.contains(&kind) {
            found = Some(format!("{} cannot be divided", node.name()));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// Parses the text of a query.
fn parse(text: &str) -> Result<Sql> {
    match super::parse(&split::single(text)?)? {
        Parsed::Sql(sql) if matches!(*sql, Sql::Query(_)) => Ok(*sql),
        _ => Err(Error::Internal("a cluster executes queries only".into())),
    }
}

impl RemoteQuery {
    fn distribution(&self) -> Distribution {
        let ExecutorSize { workers, queue_depth, tasks_in_flight, coalesce_max_bytes } = self.executor;
        let executor =
            ExecutorOptions { workers, queue_depth, tasks_in_flight, coalesce_max_bytes, ..ExecutorOptions::default() };
        Distribution {
            // A worker receives these from others.
            workers: self.workers.clamp(1, WORKERS_MAX),
            partitions: self.partitions.clamp(PARTITIONS_MIN, PARTITIONS_MAX),
            batch_rows: self.batch_rows.clamp(1, BATCH_ROWS_MAX),
            calibration: Arc::new(self.calibration.clone()),
            executor,
            page_cache_bytes: self.page_cache_bytes,
            split: self.split,
        }
    }

    /// A query of a session; `None` if it depends on more of the session than workers have.
    fn of(session: &SqlSession, statement: &Sql) -> Result<Option<RemoteQuery>> {
        let engine = &session.engine;
        let Some(database) = engine.version_url.clone() else { return Ok(None) };
        let path = session.path();
        let is_own = session.acting().is_some()
            || path.temporary().is_some()
            || !session.attachments.lock().is_empty()
            || session.program_tables.lock().is_some();
        let text = statement.to_string();
        // The text is what workers plan. It is that of this statement, or the session executes it.
        if is_own || text.len() > TEXT_BYTES_MAX || parse(&text).ok().as_ref() != Some(statement) {
            return Ok(None);
        }
        let options = session.options();
        let mut settings = session.overrides.lock().clone();
        settings.push(("keyaki.execution".into(), options.execution.to_string()));
        settings.push(("keyaki.join".into(), options.join.to_string()));
        let executor = engine.executor.options();
        let config = engine.base_state.config();
        Ok(Some(RemoteQuery {
            database,
            workers: 1,
            text,
            settings,
            search_path: path.schema_names().to_vec(),
            zone: session.zone().to_string(),
            now_ns: StatementState::reading(session)?
                .state
                .execution_props()
                .query_execution_start_time
                .and_then(|time| time.timestamp_nanos_opt()),
            partitions: config.target_partitions().max(PARTITIONS_MIN),
            batch_rows: config.batch_size(),
            calibration: Calibration::clone(&engine.calibration()),
            executor: ExecutorSize {
                workers: executor.workers,
                queue_depth: executor.queue_depth,
                tasks_in_flight: executor.tasks_in_flight,
                coalesce_max_bytes: executor.coalesce_max_bytes,
            },
            page_cache_bytes: engine.memory_bytes / 2,
            split: QuerySplit::default(),
        }))
    }
}

/// What the cluster of a session does with a statement.
pub(super) enum Answer {
    /// The session executes it.
    Nothing,
    /// The session explains it, and adds the reason why the cluster does not divide it.
    Note(String),
    Outcome(Outcome),
}

/// Executes or explains a query by the cluster of the session.
///
/// # Errors
/// As [`Cluster::run`].
pub(super) async fn query(session: &SqlSession, statement: &Sql) -> Result<Answer> {
    let Some(cluster) = session.cluster.clone() else { return Ok(Answer::Nothing) };
    if let Sql::Explain { statement: inner, analyze, .. } = statement {
        let Some(query) = of_session(session, inner)? else { return Ok(Answer::Nothing) };
        return Ok(match cluster.explain(&query, *analyze).await? {
            Explained::Stages(text) => Answer::Outcome(Outcome::Rows(plan_rows("stages", &text)?)),
            Explained::Undivided(reason) => Answer::Note(reason),
        });
    }
    let Some(query) = of_session(session, statement)? else { return Ok(Answer::Nothing) };
    Ok(cluster.run(&query).await?.map_or(Answer::Nothing, |rows| Answer::Outcome(Outcome::Rows(rows))))
}

/// The rows of EXPLAIN with the reason why a cluster does not divide the query.
///
/// # Errors
/// None: the columns have equal lengths.
pub(super) fn with_note(rows: SendableRecordBatchStream, note: &str) -> Result<SendableRecordBatchStream> {
    let schema = rows.schema();
    let note = plan_rows("cluster", &format!("not divided: {note}"))?;
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows.chain(note))))
}

/// A row of EXPLAIN.
fn plan_rows(kind: &str, text: &str) -> Result<SendableRecordBatchStream> {
    let texts = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("plan_type", texts(kind)), ("plan", texts(text))])?;
    let schema = batch.schema();
    Ok(Box::pin(MemoryStream::try_new(vec![batch], schema, None)?))
}

fn of_session(session: &SqlSession, statement: &Sql) -> Result<Option<Arc<ClusterQuery>>> {
    if !matches!(statement, Sql::Query(_)) {
        return Ok(None);
    }
    let query = RemoteQuery::of(session, statement)?;
    Ok(query
        .map(|query| Arc::new(ClusterQuery { engine: session.engine.clone(), plans: session.plans.clone(), query })))
}
