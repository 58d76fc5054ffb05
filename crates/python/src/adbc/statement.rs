//! Statements of the ADBC driver: queries, changes, and the ingestion of Arrow streams.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use adbc_core::error::{Error, Result, Status};
use adbc_core::options::{IngestMode, OptionStatement, OptionValue};
use adbc_core::{CancelHandle, Optionable, PartitionedResult, Statement};
use arrow::array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use keyaki::{ArrowRows, ProgramTable, Value};

use super::connection::quoted;
use super::session::Session;
use super::{Reader, failed, reader, state, text, unknown};
use crate::shelves::Shelf;
use crate::source::Source;
use crate::{extensions, statements};

/// The empty table that CREATE TABLE AS reads: it has the columns of a stream. Tables of the database have no such names.
const INGESTED: &str = "keyaki_ingested";

/// A statement.
pub struct AdbcStatement {
    session: Arc<Session>,
    sql: Option<String>,
    prepared: Arc<Shelf<Arc<keyaki::Statement>>>,
    /// The rows of parameters, or those to ingest.
    bound: Option<Source>,
    ingest: Ingest,
}

/// Where the bound rows go.
#[derive(Debug)]
struct Ingest {
    table: Option<String>,
    schema: Option<String>,
    mode: IngestMode,
    is_temporary: bool,
}

impl AdbcStatement {
    /// A statement without a text.
    pub fn new(session: Arc<Session>) -> AdbcStatement {
        let ingest = Ingest { table: None, schema: None, mode: IngestMode::Create, is_temporary: false };
        let prepared = session.shelves().shelf();
        AdbcStatement { session, sql: None, prepared, bound: None, ingest }
    }

    fn sql(&self) -> Result<&str> {
        self.sql.as_deref().ok_or_else(|| state("the statement has no text"))
    }

    fn prepared(&self) -> Result<Arc<keyaki::Statement>> {
        if let Some(prepared) = &*self.prepared.lock() {
            return Ok(prepared.clone());
        }
        let sql = self.sql()?;
        let prepared = Arc::new(self.session.with(|connection| connection.prepare(sql))?);
        self.session.shelves().put(&self.prepared, Some(prepared.clone()));
        Ok(prepared)
    }

    /// The rows of parameters; `None` if nothing is bound.
    fn parameters(&mut self) -> Result<Option<VecDeque<Vec<Value>>>> {
        let Some(bound) = self.bound.take() else { return Ok(None) };
        let mut rows = VecDeque::new();
        for batch in bound {
            rows.extend(Value::rows_of(&batch?).map_err(failed)?);
        }
        Ok(Some(rows))
    }

    /// Executes the statement for each row of parameters. All executions take effect, or none. Returns the number of changed
    /// rows and the returned rows.
    fn execute_rows(&self, parameters: &VecDeque<Vec<Value>>) -> Result<(u64, Option<SchemaRef>, Vec<RecordBatch>)> {
        let statement = self.prepared()?;
        let returns_rows = !statement.columns().is_empty();
        let execute = || {
            let (mut changed, mut schema, mut batches) = (0, statement.schema().cloned(), Vec::new());
            for row in parameters {
                if !returns_rows {
                    changed += statement.execute(row)?;
                    continue;
                }
                let rows = statement.query_arrow(row)?;
                schema = Some(rows.schema());
                batches.extend(rows.collect::<keyaki::Result<Vec<_>>>()?);
            }
            Ok((changed, schema, batches))
        };
        match parameters.len() {
            1 => self.session.run(self.sql()?, |_| execute()),
            _ => self.session.atomically(|_| execute()),
        }
    }

    /// As [`AdbcStatement::load`], and forgets the schema of the table: a driver manager sets it for each ingestion.
    fn ingest(&mut self, table: &str) -> Result<i64> {
        let loaded = self.load(table);
        (self.ingest.schema, self.ingest.is_temporary) = (None, false);
        loaded
    }

    /// Loads the bound rows into the target table. Returns their number. The table is created and filled together or not at all.
    fn load(&mut self, table: &str) -> Result<i64> {
        let rows = self.bound.take().ok_or_else(|| state("no rows are bound: bind the rows to ingest"))?;
        let Ingest { schema, mode, is_temporary, .. } = &self.ingest;
        let (mode, is_temporary) = (*mode, *is_temporary);
        let schema = match schema.as_ref().filter(|schema| !schema.is_empty()) {
            Some(_) if is_temporary => {
                return Err(Error::with_message_and_status(
                    "a temporary table has no schema",
                    Status::InvalidArguments,
                ));
            }
            Some(schema) => Some(schema.clone()),
            None if is_temporary => Some("pg_temp".into()),
            // Rows are appended to the table that the search path finds.
            None if mode == IngestMode::Append => None,
            None => Some(self.session.one("SELECT current_schema()")?),
        };
        let name = schema.as_ref().map(|schema| format!("{}.{}", quoted(schema), quoted(table)));
        let (created, empty) =
            (if is_temporary { quoted(table) } else { name.clone().unwrap_or_default() }, rows.schema());
        let session = self.session.clone();
        let mut rows = rows;
        let rows = std::iter::from_fn(move || Some(session.help(|| rows.next())?.map_err(keyaki::Error::from)));
        let target = name.clone().unwrap_or_else(|| table.into());
        if mode == IngestMode::Append {
            let loaded = self.session.run("INSERT", |connection| connection.load(&target, rows))?;
            return Ok(i64::try_from(loaded).unwrap_or(i64::MAX));
        }
        let loaded = self.session.atomically(|connection| {
            let kind = if is_temporary { "TEMPORARY TABLE" } else { "TABLE" };
            let condition = if mode == IngestMode::CreateAppend { "IF NOT EXISTS " } else { "" };
            let empty = ProgramTable::new(empty, Vec::new())?;
            connection.session().set_program_tables(move |name| Ok((name == INGESTED).then(|| empty.clone())));
            let made = match mode {
                IngestMode::Replace => connection.execute(&format!("DROP TABLE IF EXISTS {target}"), ()).map(drop),
                _ => Ok(()),
            };
            let create = format!("CREATE {kind} {condition}{created} AS SELECT * FROM {INGESTED}");
            let made = made.and_then(|()| connection.execute(&create, ()).map(drop));
            connection.session().set_program_tables(|_| Ok(None));
            made?;
            connection.load(&target, rows)
        })?;
        Ok(i64::try_from(loaded).unwrap_or(i64::MAX))
    }
}

impl Statement for AdbcStatement {
    fn bind(&mut self, batch: RecordBatch) -> Result<()> {
        let schema = batch.schema();
        self.bind_stream(Box::new(RecordBatchIterator::new([Ok(batch)], schema)))
    }

    fn bind_stream(&mut self, reader: Box<dyn RecordBatchReader + Send>) -> Result<()> {
        self.bound = Some(Source::of_reader(reader));
        Ok(())
    }

    fn execute(&mut self) -> Result<Reader> {
        if let Some(table) = self.ingest.table.clone() {
            self.ingest(&table)?;
            return Ok(reader(Arc::new(Schema::empty()), Vec::new()));
        }
        let parameters = self.parameters()?;
        let sql = self.sql()?.to_string();
        let (statement, parameters) = match parameters {
            None => (self.prepared.lock().clone(), VecDeque::from([Vec::new()])),
            Some(rows) if rows.is_empty() || statements::begins_transaction(&sql) => {
                let (_, schema, batches) = self.execute_rows(&rows)?;
                let schema = extensions::schema(&schema.unwrap_or_else(|| Arc::new(Schema::empty())));
                let batches = batches.into_iter().map(|batch| extensions::batch(batch, &schema));
                let batches = batches.collect::<std::result::Result<_, _>>();
                return Ok(reader(schema.clone(), batches.map_err(|error| failed(error.into()))?));
            }
            Some(rows) => (Some(self.prepared()?), rows),
        };
        Ok(Box::new(Results::new(self.session.clone(), &sql, statement, parameters)?))
    }

    fn execute_update(&mut self) -> Result<Option<i64>> {
        if let Some(table) = self.ingest.table.clone() {
            return self.ingest(&table).map(Some);
        }
        let parameters = self.parameters()?;
        let sql = self.sql()?;
        if parameters.is_none() && keyaki::Session::split(sql).is_ok_and(|statements| statements.len() > 1) {
            self.session.run(sql, |connection| connection.execute_batch(sql))?;
            return Ok(None);
        }
        let (changed, schema, _) = self.execute_rows(&parameters.unwrap_or_else(|| VecDeque::from([Vec::new()])))?;
        // The rows of a query are not counted.
        Ok(schema.is_none_or(|schema| schema.fields().is_empty()).then(|| i64::try_from(changed).unwrap_or(i64::MAX)))
    }

    fn execute_schema(&mut self) -> Result<Schema> {
        self.sql()?;
        Ok(self.prepared()?.schema().map_or_else(Schema::empty, |schema| Schema::clone(&extensions::schema(schema))))
    }

    fn execute_partitions(&mut self) -> Result<PartitionedResult> {
        Err(Error::with_message_and_status("results have no partitions", Status::NotImplemented))
    }

    fn get_parameter_schema(&self) -> Result<Schema> {
        let prepared = self.prepared.lock().clone().ok_or_else(|| state("prepare the statement first"))?;
        let types = prepared.parameter_types().iter().enumerate();
        let field = |(place, ty): (usize, &Option<DataType>)| {
            // A parameter of any type.
            Field::new((place + 1).to_string(), ty.clone().unwrap_or(DataType::Null), true)
        };
        Ok(Schema::new(types.map(field).collect::<Vec<_>>()))
    }

    fn prepare(&mut self) -> Result<()> {
        self.sql()?;
        self.prepared().map(drop)
    }

    fn set_sql_query(&mut self, query: impl AsRef<str>) -> Result<()> {
        self.sql = Some(query.as_ref().into());
        (self.ingest.table, self.bound) = (None, None);
        let prepared = self.prepared.lock().take();
        drop(prepared);
        Ok(())
    }

    fn set_substrait_plan(&mut self, _plan: impl AsRef<[u8]>) -> Result<()> {
        Err(Error::with_message_and_status("Substrait plans are not supported (use SQL)", Status::NotImplemented))
    }

    fn get_cancel_handle(&self) -> Box<dyn CancelHandle> {
        self.session.cancel_handle()
    }
}

impl Optionable for AdbcStatement {
    type Option = OptionStatement;

    fn set_option(&mut self, key: OptionStatement, value: OptionValue) -> Result<()> {
        let name = key.as_ref();
        match &key {
            OptionStatement::TargetTable => {
                self.ingest.table = Some(text(name, &value)?);
                self.sql = None;
                let prepared = self.prepared.lock().take();
                drop(prepared);
            }
            OptionStatement::TargetDbSchema => self.ingest.schema = Some(text(name, &value)?),
            OptionStatement::IngestMode => self.ingest.mode = IngestMode::try_from(&value)?,
            OptionStatement::Temporary => self.ingest.is_temporary = bool::try_from(&value)?,
            OptionStatement::Incremental if !bool::try_from(&value)? => {}
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    fn get_option_string(&self, key: OptionStatement) -> Result<String> {
        let found = match &key {
            OptionStatement::TargetTable => self.ingest.table.clone(),
            OptionStatement::TargetDbSchema => self.ingest.schema.clone(),
            OptionStatement::IngestMode => Some(String::from(self.ingest.mode)),
            OptionStatement::Temporary => Some(self.ingest.is_temporary.to_string()),
            _ => None,
        };
        found.ok_or_else(|| unknown(key.as_ref()))
    }

    fn get_option_bytes(&self, key: OptionStatement) -> Result<Vec<u8>> {
        Err(unknown(key.as_ref()))
    }

    fn get_option_int(&self, key: OptionStatement) -> Result<i64> {
        Err(unknown(key.as_ref()))
    }

    fn get_option_double(&self, key: OptionStatement) -> Result<f64> {
        Err(unknown(key.as_ref()))
    }
}

impl fmt::Debug for AdbcStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdbcStatement").field("sql", &self.sql).field("ingest", &self.ingest).finish_non_exhaustive()
    }
}

/// The rows of a query, for one row of parameters after another.
struct Results {
    session: Arc<Session>,
    schema: SchemaRef,
    /// The schema with extension types.
    shown: SchemaRef,
    /// The first batch, which was read with the statement.
    first: Option<RecordBatch>,
    /// Empty at the end, and if the connection was closed.
    running: Arc<Shelf<Running>>,
    is_at_end: bool,
}

/// The query of [`Results`].
struct Running {
    rows: ArrowRows,
    statement: Option<Arc<keyaki::Statement>>,
    /// The rows of parameters of later executions.
    parameters: VecDeque<Vec<Value>>,
}

impl Running {
    fn next(&mut self, session: &Session, schema: &SchemaRef) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.rows.next().transpose().map_err(failed)? {
                return Ok(Some(batch));
            }
            let (Some(statement), Some(row)) = (&self.statement, self.parameters.pop_front()) else { return Ok(None) };
            self.rows = session.with(|_| statement.query_arrow(&row))?;
            if self.rows.schema() != *schema {
                return Err(state("the types of the result depend on the parameters"));
            }
        }
    }
}

impl Results {
    /// Executes a query for its first row of parameters.
    ///
    /// # Errors
    /// Errors of the first rows are errors of the statement, with a SQLSTATE.
    fn new(
        session: Arc<Session>,
        sql: &str,
        statement: Option<Arc<keyaki::Statement>>,
        mut parameters: VecDeque<Vec<Value>>,
    ) -> Result<Results> {
        let row = parameters.pop_front().unwrap_or_default();
        let (rows, first) = session.run(sql, |connection| {
            let mut rows = match &statement {
                Some(statement) => statement.query_arrow(&row)?,
                None => connection.query_arrow(sql, ())?,
            };
            let first = rows.next().transpose()?;
            Ok((rows, first))
        })?;
        let (schema, running) = (rows.schema(), session.shelves().shelf());
        let shown = extensions::schema(&schema);
        session.shelves().put(&running, Some(Running { rows, statement, parameters }));
        Ok(Results { session, schema, shown, first, running, is_at_end: false })
    }

    fn read(&mut self) -> Result<Option<RecordBatch>> {
        self.session.check()?;
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let running = self.running.lock().take();
        let mut running = running.ok_or_else(|| state("the connection is closed"))?;
        let batch = running.next(&self.session, &self.schema)?;
        if batch.is_some() {
            self.session.shelves().put(&self.running, Some(running));
        }
        Ok(batch)
    }
}

impl Iterator for Results {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_at_end {
            return None;
        }
        let read = self.read();
        self.is_at_end = !matches!(read, Ok(Some(_)));
        let batch = read.map_err(|error| ArrowError::ExternalError(error.message.into())).transpose()?;
        Some(batch.and_then(|batch| extensions::batch(batch, &self.shown)))
    }
}

impl RecordBatchReader for Results {
    fn schema(&self) -> SchemaRef {
        self.shown.clone()
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        // In a forked child, the threads that compute the rows do not exist.
        if !self.session.is_of_this_process() {
            std::mem::forget(self.running.lock().take());
        }
    }
}
