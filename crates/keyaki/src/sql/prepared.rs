//! Prepared statements: parsed once, described and compiled once per version of the catalog, executed many times.
//!
//! A query is executed on the short path if it has that form, else from its [`Template`]. All other statements replace the
//! parameters in the syntax tree, and are planned by each execution.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::sqlparser::ast::{Expr, ObjectNamePart, SetExpr, Statement as Sql, Value as SqlValue};
use parking_lot::Mutex;

use super::locking::LockingRead;
use super::names::SearchPath;
use super::roles::Acting;
use super::short::{ShortPlan, parameter_index};
use super::split::Statement;
use super::state::StatementState;
use super::template::Template;
use super::{
    Outcome, Parsed, SqlSession, advisory, columns, cursors, declared, dispatch, dml, documents, locking, named, names,
    parameters, queries, roles, run_parsed, transaction,
};
use crate::base::interrupt::Execution;
use crate::base::value::ValueRef;
use crate::catalog::Catalog;
use crate::engine::sessions::shown;
use crate::values::zone::Zone;
use crate::{Error, JsonType, PlanCacheMode, Result};

/// A statement that was parsed once.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub text: Box<str>,
    /// The text in `pg_stat_activity`.
    pub shown: Arc<str>,
    body: Body,
    /// Declared types of the leading parameters.
    declared: Vec<DataType>,
    parameters: usize,
    /// For each parameter: it is declared, or is the value of a column in VALUES or SET. Its value is converted by an
    /// assignment cast.
    assigned: Vec<bool>,
    description: Mutex<Option<Arc<Description>>>,
    /// The statement has queries with FOR UPDATE or FOR SHARE.
    is_locking: bool,
    /// The text may contain a password, and is not recorded.
    is_secret: bool,
    /// The cursor of FETCH.
    fetches: Option<String>,
}

#[derive(Debug)]
enum Body {
    Sql(Box<Sql>),
    /// A statement without parameters that sqlparser does not parse. It is parsed again at each execution.
    Own,
}

/// What a statement means under one version of the catalog, in one time zone and with one search path.
#[derive(Debug)]
pub(crate) struct Description {
    /// Version of the engine's catalog when the statement was planned; an older one than that of `catalog` if the
    /// catalog changed in between.
    version: u64,
    /// The time zone of the session that it was made for.
    zone: Zone,
    /// The search path of that session.
    path: Arc<SearchPath>,
    /// The roles of that session, which have the privileges that the statement needs.
    acting: Option<Arc<Acting>>,
    catalog: Arc<Catalog>,
    /// `None` for parameters whose type follows from their values only.
    pub parameters: Vec<Option<DataType>>,
    /// For each parameter, the type of documents that it has by a cast or as the value of a column.
    pub documents: Vec<Option<JsonType>>,
    /// The columns of the result; `None` for statements without rows, and for EXPLAIN and SHOW.
    pub columns: Option<SchemaRef>,
    short: Option<ShortPlan>,
    /// For queries that are not short.
    template: Option<Template>,
    /// The locking clauses of the query.
    locking: Option<locking::Clauses>,
    /// The statement reads tables of the program, which may be others at its next execution.
    is_momentary: bool,
}

impl Description {
    /// True if the statement has the form of the short path.
    pub fn is_short(&self) -> bool {
        self.short.is_some()
    }

    /// True if executions with values of the described types need no names resolved.
    #[cfg(test)]
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Executes the statement on the short path; `None` if the long path has to.
    ///
    /// # Errors
    /// Errors of the statement.
    pub async fn execute_short(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        values: &[ValueRef<'_>],
    ) -> Result<Option<Executed>> {
        let Some(short) = &self.short else { return Ok(None) };
        let executed = short.run(session, execution, &self.catalog, &self.parameters, values).await?;
        if executed.is_some() {
            session.short_statements.fetch_add(1, Ordering::Relaxed);
            session.engine.queries.clear(&session.last_stats);
        }
        Ok(executed)
    }

    /// Executes a query from its template; `None` if there is none that fits the values and the catalog.
    ///
    /// # Errors
    /// Errors of the query.
    async fn execute_template(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        values: &[ArrayRef],
    ) -> Result<Option<Outcome>> {
        let types = self.parameters.iter().map(Option::as_ref);
        let Some(template) = self.template.as_ref().filter(|_| types.eq(values.iter().map(|v| Some(v.data_type()))))
        else {
            return Ok(None);
        };
        if session.cluster.is_some() {
            // It plans the query from its text.
            return Ok(None);
        }
        session.transaction.check()?;
        if let Some(clauses) = &self.locking {
            let template = (template, &self.catalog);
            return Box::pin(locking::query_of_template(session, execution, clauses, template, values)).await;
        }
        let state = StatementState::reading(session)?;
        if !Arc::ptr_eq(&state.catalog, &self.catalog) {
            return Ok(None);
        }
        // Planning from the syntax tree reports an error in the terms of the statement.
        let Ok(plan) = template.bind(&state, values) else { return Ok(None) };
        let rows = state.run(&plan).await?;
        Ok(Some(Outcome::Rows(session.transaction.watch(&session.engine, rows))))
    }
}

/// The result of an execution.
#[derive(Debug)]
pub(crate) enum Executed {
    /// All rows of a query.
    Rows(RecordBatch),
    Outcome(Outcome),
}

impl Executed {
    /// The result as an outcome.
    pub fn into_outcome(self) -> Result<Outcome> {
        match self {
            Executed::Outcome(outcome) => Ok(outcome),
            Executed::Rows(batch) => {
                let schema = batch.schema();
                Ok(Outcome::Rows(Box::pin(MemoryStream::try_new(vec![batch], schema, None)?)))
            }
        }
    }
}

impl Prepared {
    /// True for EXECUTE.
    pub fn is_execute(&self) -> bool {
        matches!(&self.body, Body::Sql(sql) if matches!(**sql, Sql::Execute { .. }))
    }

    /// Parses a statement.
    ///
    /// # Errors
    /// `Syntax`.
    pub fn parse(statement: &Statement<'_>) -> Result<Prepared> {
        match super::parse(statement)? {
            Parsed::Sql(sql) => {
                let prepared = Prepared::of(statement.text, *sql, Vec::new())?;
                Ok(Prepared { is_secret: roles::has_secret(statement), ..prepared })
            }
            _ => Ok(Prepared {
                text: statement.text.into(),
                shown: shown(statement.text),
                body: Body::Own,
                declared: Vec::new(),
                parameters: 0,
                assigned: Vec::new(),
                description: Mutex::default(),
                is_locking: false,
                is_secret: roles::has_secret(statement),
                fetches: cursors::fetched_cursor(statement.text),
            }),
        }
    }

    /// A parsed statement; `declared` are the types of its leading parameters.
    ///
    /// # Errors
    /// `Syntax` for invalid parameters.
    pub fn of(text: &str, mut sql: Sql, declared: Vec<DataType>) -> Result<Prepared> {
        // Before values replace parameters: the names do not depend on the values.
        columns::name(&mut sql);
        advisory::type_parameters(&mut sql);
        let parameters = parameters::count(&sql)?.max(declared.len());
        let mut assigned = assigned_parameters(&sql, parameters);
        assigned[..declared.len()].fill(true);
        let is_locking = locking::is_locking(&sql);
        let body = Body::Sql(Box::new(sql));
        let description = Mutex::default();
        let (text, shown) = (text.into(), shown(text));
        let (is_secret, fetches) = (false, None);
        Ok(Prepared { text, shown, body, declared, parameters, assigned, description, is_locking, is_secret, fetches })
    }

    /// The statement with declared types, by OID, of the parameters that its description has no type for; `None` if it is the
    /// same.
    pub fn declared(&self, description: &Description, declared: &[u32]) -> Option<Prepared> {
        let Body::Sql(sql) = &self.body else { return None };
        let unknown = description.parameters.iter().zip(declared).enumerate().filter(|(_, (ty, _))| ty.is_none());
        let types = unknown.filter_map(|(index, (_, oid))| Some((index, declared::declared_type(*oid)?)));
        let types: Vec<_> = types.collect();
        if types.is_empty() {
            return None;
        }
        let mut sql = sql.clone();
        declared::cast(&mut sql, &types);
        Some(Prepared {
            text: self.text.clone(),
            shown: self.shown.clone(),
            body: Body::Sql(sql),
            declared: self.declared.clone(),
            parameters: self.parameters,
            assigned: self.assigned.clone(),
            description: Mutex::default(),
            is_locking: self.is_locking,
            is_secret: self.is_secret,
            fetches: self.fetches.clone(),
        })
    }

    /// True for queries that change nothing and lock no rows.
    pub fn is_query(&self) -> bool {
        !self.is_locking && matches!(&self.body, Body::Sql(sql) if matches!(**sql, Sql::Query(_)))
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// The description under the newest catalog.
    ///
    /// # Errors
    /// Errors of planning, for example `NotFound` and `UndefinedColumn`.
    pub async fn describe(&self, session: &SqlSession) -> Result<Arc<Description>> {
        if session.has_overrides() || self.is_indirect() {
            // Its plans are not those of other sessions. An indirect one is that of another object at any time.
            return Box::pin(self.described(session)).await.map(Arc::new);
        }
        if self.is_planned() && session.transaction.is_open() {
            return self.describe_in_transaction(session).await;
        }
        let version = session.engine.catalog_version();
        if let Some(known) = self.description.lock().as_ref()
            && known.version == version
            && known.zone == session.zone()
            && session.has_path(&known.path)
            && session.acts_as(&known.acting)
        {
            return Ok(known.clone());
        }
        let described = Arc::new(Box::pin(self.described(session)).await?);
        if !described.is_momentary {
            *self.description.lock() = Some(described.clone());
        }
        Ok(described)
    }

    /// The description under the catalog of the open transaction. Another one than the newest is not kept.
    async fn describe_in_transaction(&self, session: &SqlSession) -> Result<Arc<Description>> {
        let catalog = session.transaction.catalog(&session.engine)?;
        let zone = session.zone();
        let is_of = |known: &Arc<Description>| {
            known.zone == zone
                && session.has_path(&known.path)
                && session.acts_as(&known.acting)
                // Privileges may have been revoked since then.
                && (known.acting.is_none() || known.version == session.engine.catalog_version())
                && catalog.as_ref().is_some_and(|own| Arc::ptr_eq(own, &known.catalog))
        };
        if let Some(known) = self.description.lock().as_ref().filter(|known| is_of(known)) {
            return Ok(known.clone());
        }
        let described = Arc::new(Box::pin(self.described(session)).await?);
        if Arc::ptr_eq(&described.catalog, &session.engine.catalog.read()) && !described.is_momentary {
            *self.description.lock() = Some(described.clone());
        }
        Ok(described)
    }

    /// True for statements whose description depends on the catalog.
    fn is_planned(&self) -> bool {
        let Body::Sql(sql) = &self.body else { return false };
        let is_cursor = cursors::declared_query(sql).is_some();
        is_cursor || matches!(**sql, Sql::Query(_) | Sql::Insert(_) | Sql::Update(_) | Sql::Delete(_) | Sql::Merge(_))
    }

    /// True for EXECUTE and FETCH: their columns are those of a prepared statement and a cursor.
    fn is_indirect(&self) -> bool {
        match &self.body {
            Body::Sql(sql) => matches!(**sql, Sql::Execute { .. }),
            Body::Own => self.fetches.is_some(),
        }
    }

    /// The columns of EXECUTE and FETCH; `None` if the prepared statement or the cursor does not exist.
    async fn indirect_columns(&self, session: &SqlSession) -> Result<Option<SchemaRef>> {
        if let Some(cursor) = &self.fetches {
            return Ok(session.cursors.columns(cursor));
        }
        let Body::Sql(sql) = &self.body else { return Ok(None) };
        let Sql::Execute { name: Some(name), .. } = &**sql else { return Ok(None) };
        let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return Ok(None) };
        // Its execution reports that it is missing.
        let Ok(prepared) = named::find(session, &names::plain_ident(name)) else { return Ok(None) };
        // PREPARE does not prepare EXECUTE, but clients of a server do.
        if prepared.is_indirect() {
            return Ok(None);
        }
        Ok(Box::pin(prepared.describe(session)).await?.columns.clone())
    }

    async fn described(&self, session: &SqlSession) -> Result<Description> {
        let version = session.engine.catalog_version();
        let mut types: Vec<Option<DataType>> = self.declared.iter().cloned().map(Some).collect();
        types.resize(self.parameters, None);
        let sql = match &self.body {
            Body::Sql(sql) if self.is_planned() => sql,
            _ => {
                let columns = self.indirect_columns(session).await?;
                let (catalog, zone, path) = (session.engine.catalog.read().clone(), session.zone(), session.path());
                return Ok(Description {
                    version,
                    zone,
                    path,
                    acting: session.acting(),
                    catalog,
                    documents: vec![None; types.len()],
                    parameters: types,
                    columns,
                    short: None,
                    template: None,
                    locking: None,
                    is_momentary: false,
                });
            }
        };
        let locking = locking::of_query(sql)?;
        let planned = if self.is_locking { Cow::Owned(locking::without(sql)?) } else { Cow::Borrowed(&**sql) };
        // Queries within the statement are executed before it.
        let has_own_plan = !self.is_locking || (locking.is_some() && locking::is_outermost(sql));
        let sql = planned.as_ref();
        let acting = session.acting();
        let state = StatementState::reading(session)?;
        let (catalog, zone, path) = (state.catalog.clone(), state.zone, state.path.clone());
        let mut template = None;
        if let Some(query) = cursors::declared_query(sql) {
            match state.plan_query(query.clone()).await {
                Ok(plan) => add_types(&mut types, &plan),
                Err(error) if self.is_about_parameters(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let (columns, short) = match sql {
            Sql::Query(query)
                if !matches!(*query.body, SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_)) =>
            {
                match state.plan(sql.clone()).await {
                    Ok(plan) => {
                        add_types(&mut types, &plan);
                        parameters::add_cast_types(sql, &mut types);
                        let short = match &locking {
                            Some(clauses) => {
                                let read = LockingRead::compile(&plan, &state, clauses, &types);
                                read.map(|read| ShortPlan::Lock(Box::new(read)))
                            }
                            None => ShortPlan::of_query(&plan, &state, &types),
                        };
                        template = if short.is_none() && has_own_plan { Template::of(&plan) } else { None };
                        let schema = documents::typed(columns::shown_schema(plan.schema().inner()), &plan);
                        (Some(columns::in_zone(&schema, state.zone)), short)
                    }
                    Err(error) if self.is_about_parameters(&error) => (None, None),
                    Err(error) => return Err(error),
                }
            }
            Sql::Insert(insert) => {
                let short = dml::insert::describe(session, &state, insert, &mut types).await?;
                (dml::returned_columns(&state, sql).await?, short)
            }
            Sql::Update(update) => {
                let short = dml::update::describe(session, &state, update, &mut types).await?;
                (dml::returned_columns(&state, sql).await?, short)
            }
            Sql::Delete(delete) => {
                let short = dml::delete::describe(&state, delete, &mut types).await?;
                (dml::returned_columns(&state, sql).await?, short)
            }
            Sql::Merge(merge) => {
                dml::merge::describe(&state, merge, &mut types).await?;
                (dml::returned_columns(&state, sql).await?, None)
            }
            _ => (None, None),
        };
        parameters::add_cast_types(sql, &mut types);
        let short = short.filter(|_| has_own_plan);
        let documents = dml::document_parameters(&state, sql, types.len());
        let parameters = types;
        Ok(Description {
            version,
            zone,
            path,
            acting,
            catalog,
            parameters,
            documents,
            columns,
            short,
            template,
            locking,
            is_momentary: state.is_momentary(),
        })
    }

    /// True for errors that may disappear once the parameters have values.
    fn is_about_parameters(&self, error: &Error) -> bool {
        self.parameters > 0
            && !matches!(
                error.root(),
                Error::NotFound { .. }
                    | Error::UndefinedColumn { .. }
                    | Error::MissingFromEntry(_)
                    | Error::AmbiguousColumn(_)
                    | Error::AmbiguousTable(_)
                    | Error::Syntax { .. }
                    | Error::Unsupported(_)
                    | Error::InsufficientPrivilege(_)
            )
    }

    /// Executes the statement.
    ///
    /// # Errors
    /// `ParameterCount`; `Context` with the parameter for a value that cannot be converted to its type; errors of the
    /// statement.
    pub async fn execute(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        values: &[ValueRef<'_>],
    ) -> Result<Executed> {
        parameters::check_count(self.parameters, values.len())?;
        if let Body::Sql(sql) = &self.body
            && transaction::is_control(sql)
        {
            // Boxed, because the futures of the short path are small.
            return Box::pin(transaction::run(session, execution, (**sql).clone())).await.map(Executed::Outcome);
        }
        let description = self.describe(session).await?;
        let zone = session.zone();
        // An operand keeps its value: it is not rounded to the type of the other operand.
        let both = || values.iter().zip(&description.parameters).zip(&self.assigned);
        if session.uses_short_path()
            && both().all(|((value, ty), assigned)| *assigned || parameters::is_exact(*value, ty.as_ref(), zone))
            && let Some(executed) = description.execute_short(session, execution, values).await?
        {
            return Ok(executed);
        }
        let bind = |(i, value): (usize, &ValueRef<'_>)| {
            let ty = description.parameters[i].as_ref();
            match self.assigned[i] || parameters::is_exact(*value, ty, zone) {
                true => parameters::bind(i, *value, ty, zone),
                false => parameters::bind(i, *value, None, zone),
            }
        };
        let arrays = values.iter().enumerate().map(bind).collect::<Result<Vec<_>>>()?;
        // Boxed: the futures of the long path have tens of kilobytes, and a caller may move them.
        let work = Box::pin(async {
            if session.plan_cache() != PlanCacheMode::Off
                && let Some(outcome) = description.execute_template(session, execution, &arrays).await?
            {
                return Ok(outcome);
            }
            self.run_long(session, execution, &arrays).await
        });
        queries::recorded(session, execution, self.recorded_text(), work).await.map(Executed::Outcome)
    }

    /// Executes the statement on the long path, with values that were converted to the types of the description.
    ///
    /// # Errors
    /// Errors of the statement.
    pub async fn execute_long(
        &self,
        session: &SqlSession,
        execution: &Execution<'_>,
        values: &[ArrayRef],
    ) -> Result<Outcome> {
        let work = Box::pin(self.run_long(session, execution, values));
        queries::recorded(session, execution, self.recorded_text(), work).await
    }

    /// The text, if executions are recorded.
    fn recorded_text(&self) -> Option<&str> {
        let is_recorded = match &self.body {
            Body::Own => !self.is_secret,
            Body::Sql(sql) => !self.is_secret && queries::is_recorded(sql),
        };
        is_recorded.then_some(&self.text)
    }

    async fn run_long(&self, session: &SqlSession, execution: &Execution<'_>, values: &[ArrayRef]) -> Result<Outcome> {
        match &self.body {
            Body::Own => run_parsed(session, execution, super::parse(&super::split::single(&self.text)?)?).await,
            Body::Sql(sql) => {
                let mut sql = (**sql).clone();
                parameters::substitute(&mut sql, values)?;
                dispatch(session, execution, sql).await
            }
        }
    }
}

/// Adds the types that DataFusion has inferred.
pub(super) fn add_types(types: &mut [Option<DataType>], plan: &datafusion::logical_expr::LogicalPlan) {
    // A parameter with several types has none: it takes the type of its value.
    let Ok(inferred) = plan.get_parameter_types() else { return };
    for (id, ty) in inferred {
        if let Some(known) = parameter_index(&id).and_then(|index| types.get_mut(index))
            && known.is_none()
        {
            // The type of NULL: DataFusion has inferred none.
            *known = ty.filter(|ty| *ty != DataType::Null);
        }
    }
}

/// For each of `count` parameters: true if it is the whole value of a column in VALUES or SET.
fn assigned_parameters(sql: &Sql, count: usize) -> Vec<bool> {
    let mut assigned = vec![false; count];
    let mut mark = |expr: &Expr| {
        if let Some(parameter) = lone_parameter(expr) {
            assigned[parameter] = true;
        }
    };
    match sql {
        Sql::Insert(insert) => {
            if let Some(SetExpr::Values(values)) = insert.source.as_ref().map(|query| query.body.as_ref()) {
                values.rows.iter().flat_map(|row| row.content.iter()).for_each(&mut mark);
            }
        }
        Sql::Update(update) => update.assignments.iter().for_each(|assignment| mark(&assignment.value)),
        _ => {}
    }
    assigned
}

/// The index of the parameter that an expression consists of.
pub(super) fn lone_parameter(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Value(value) => match &value.value {
            SqlValue::Placeholder(id) => parameter_index(id),
            _ => None,
        },
        _ => None,
    }
}
