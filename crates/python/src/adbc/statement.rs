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

use super::connection::{Session, quoted};
use super::{Reader, failed, reader, state, text, unknown};

/// The table whose rows a statement of CREATE TABLE AS reads: it has the columns of a stream.
const INGESTED: &str = "__ingested";

/// A statement.
pub struct AdbcStatement {
    session: Arc<Session>,
    sql: Option<String>,
    prepared: Option<Arc<keyaki::Statement>>,
    /// The rows of parameters, or those to ingest.
    bound: Option<Reader>,
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
        AdbcStatement { session, sql: None, prepared: None, bound: None, ingest }
    }

    fn sql(&self) -> Result<&str> {
        self.sql.as_deref().ok_or_else(|| state("the statement has no text"))
    }

    fn prepared(&mut self) -> Result<Arc<keyaki::Statement>> {
        if let Some(prepared) = &self.prepared {
            return Ok(prepared.clone());
        }
        // Statements that cannot run in a transaction are prepared without one.
        let prepared =
            self.session.run("", |connection| connection.prepare(self.sql.as_deref().unwrap_or_default()))?;
        Ok(self.prepared.insert(Arc::new(prepared)).clone())
    }

    /// The rows of parameters; `None` if nothing is bound.
    fn parameters(&mut self) -> Result<Option<Vec<Vec<Value>>>> {
        let Some(bound) = self.bound.take() else { return Ok(None) };
        let mut rows = Vec::new();
        for batch in bound {
            rows.extend(Value::rows_of(&batch?).map_err(failed)?);
        }
        Ok(Some(rows))
    }

    /// Loads the bound rows into the target table. Returns their number.
    fn ingest(&mut self, table: &str) -> Result<i64> {
        let bound = self.bound.take().ok_or_else(|| state("no rows are bound: bind the rows to ingest"))?;
        let schema = self.ingest.schema.clone().filter(|schema| !schema.is_empty());
        if self.ingest.is_temporary && schema.is_some() {
            return Err(Error::with_message_and_status("a temporary table has no schema", Status::InvalidArguments));
        }
        let name =
            schema.as_ref().map_or_else(|| quoted(table), |schema| format!("{}.{}", quoted(schema), quoted(table)));
        let (mode, kind) = (self.ingest.mode, if self.ingest.is_temporary { "TEMPORARY TABLE" } else { "TABLE" });
        let columns = bound.schema();
        // As for INSERT: a transaction begins without autocommit.
        self.session.run("INSERT", |connection| {
            if mode == IngestMode::Replace {
                connection.execute(&format!("DROP TABLE IF EXISTS {name}"), ())?;
            }
            if mode != IngestMode::Append {
                let condition = if mode == IngestMode::CreateAppend { "IF NOT EXISTS " } else { "" };
                let empty = ProgramTable::new(columns, Vec::new())?;
                connection.session().set_program_tables(move |name| Ok((name == INGESTED).then(|| empty.clone())));
                let create = format!("CREATE {kind} {condition}{name} AS SELECT * FROM {INGESTED}");
                let created = connection.execute(&create, ());
                connection.session().set_program_tables(|_| Ok(None));
                created?;
            }
            // A name without a schema is that of the catalog.
            let target = if schema.is_some() { &name } else { table };
            let loaded = connection.load(target, bound.map(|batch| batch.map_err(keyaki::Error::from)))?;
            Ok(i64::try_from(loaded).unwrap_or(i64::MAX))
        })
    }
}

impl Statement for AdbcStatement {
    fn bind(&mut self, batch: RecordBatch) -> Result<()> {
        let schema = batch.schema();
        self.bound = Some(Box::new(RecordBatchIterator::new([Ok(batch)], schema)));
        Ok(())
    }

    fn bind_stream(&mut self, reader: Box<dyn RecordBatchReader + Send>) -> Result<()> {
        self.bound = Some(reader);
        Ok(())
    }

    fn execute(&mut self) -> Result<Reader> {
        if let Some(table) = self.ingest.table.clone() {
            self.ingest(&table)?;
            return Ok(reader(Arc::new(Schema::empty()), Vec::new()));
        }
        let parameters = self.parameters()?;
        let sql = self.sql()?.to_string();
        let Some(mut parameters) = parameters.map(VecDeque::from) else {
            let prepared = self.prepared.clone();
            let rows = self.session.run(&sql, |connection| match prepared {
                Some(prepared) => prepared.query_arrow(()),
                None => connection.query_arrow(&sql, ()),
            })?;
            return Ok(Box::new(Results::new(rows, None, VecDeque::new())?));
        };
        let statement = self.prepared()?;
        let Some(first) = parameters.pop_front() else {
            return Ok(reader(statement.schema().cloned().unwrap_or_else(|| Arc::new(Schema::empty())), Vec::new()));
        };
        let rows = self.session.run(&sql, |_| statement.query_arrow(&first))?;
        Ok(Box::new(Results::new(rows, Some(statement), parameters)?))
    }

    fn execute_update(&mut self) -> Result<Option<i64>> {
        if let Some(table) = self.ingest.table.clone() {
            return self.ingest(&table).map(Some);
        }
        let parameters = self.parameters()?;
        let sql = self.sql()?.to_string();
        let statement = self.prepared()?;
        let changed = self.session.run(&sql, |_| match &parameters {
            None => statement.execute(()),
            Some(rows) => rows.iter().map(|row| statement.execute(row)).sum(),
        })?;
        // The number of rows of a query is unknown before they are read.
        Ok(statement.columns().is_empty().then(|| i64::try_from(changed).unwrap_or(i64::MAX)))
    }

    fn execute_schema(&mut self) -> Result<Schema> {
        self.sql()?;
        Ok(self.prepared()?.schema().map_or_else(Schema::empty, |schema| Schema::clone(schema)))
    }

    fn execute_partitions(&mut self) -> Result<PartitionedResult> {
        Err(Error::with_message_and_status("results have no partitions", Status::NotImplemented))
    }

    fn get_parameter_schema(&self) -> Result<Schema> {
        let prepared = self.prepared.as_ref().ok_or_else(|| state("prepare the statement first"))?;
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
        (self.prepared, self.ingest.table) = (None, None);
        Ok(())
    }

    fn set_substrait_plan(&mut self, _plan: impl AsRef<[u8]>) -> Result<()> {
        Err(Error::with_message_and_status("plans of Substrait (use SQL)", Status::NotImplemented))
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
                // Those of an earlier table.
                (self.ingest.schema, self.ingest.is_temporary) = (None, false);
                (self.sql, self.prepared) = (None, None);
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
    schema: SchemaRef,
    /// The first batch, which was read with the statement.
    first: Option<RecordBatch>,
    rows: ArrowRows,
    statement: Option<Arc<keyaki::Statement>>,
    parameters: VecDeque<Vec<Value>>,
}

impl Results {
    /// # Errors
    /// Errors of the first rows are errors of the statement, with a SQLSTATE.
    fn new(
        mut rows: ArrowRows,
        statement: Option<Arc<keyaki::Statement>>,
        parameters: VecDeque<Vec<Value>>,
    ) -> Result<Results> {
        let first = rows.next().transpose().map_err(failed)?;
        Ok(Results { schema: rows.schema(), first, rows, statement, parameters })
    }
}

impl Iterator for Results {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        loop {
            match self.rows.next() {
                Some(Ok(batch)) => return Some(Ok(batch)),
                Some(Err(error)) => return Some(Err(external(&error))),
                None => {}
            }
            let (statement, parameters) = (self.statement.as_ref()?, self.parameters.pop_front()?);
            match statement.query_arrow(&parameters) {
                Ok(rows) if rows.schema() == self.schema => self.rows = rows,
                Ok(_) => {
                    self.parameters.clear();
                    let message = "the types of the result depend on the parameters";
                    return Some(Err(ArrowError::SchemaError(message.into())));
                }
                Err(error) => {
                    self.parameters.clear();
                    return Some(Err(external(&error)));
                }
            }
        }
    }
}

/// An error as a text in C, which ends at the first zero byte.
fn external(error: &keyaki::Error) -> ArrowError {
    ArrowError::ExternalError(error.to_string().replace('\0', "\u{fffd}").into())
}

impl RecordBatchReader for Results {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
