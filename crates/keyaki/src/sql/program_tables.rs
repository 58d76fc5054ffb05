//! Tables of the program: Arrow batches under names that the database does not have.
//!
//! A session can have a source of such tables. Planning a statement looks up names of the schema `public` there that are neither
//! relations of the database nor of the statement. Names in stored definitions never mean tables of the program.
//!
//! A scan converts the columns that it reads to the types of columns, with the rules of assignments.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::StreamExt;

use crate::catalog::ColumnDef;
use crate::catalog::types::from_arrow;
use crate::values::zone::Zone;
use crate::write::assign::assign;
use crate::{Error, Result};

/// Maximum rows of the batches that a scan returns.
const BATCH_ROWS: usize = 8192;

/// A table of the program: rows in Arrow batches with the same schema.
#[derive(Debug, Clone)]
pub struct ProgramTable {
    schema: SchemaRef,
    batches: Arc<[RecordBatch]>,
}

impl ProgramTable {
    /// A table with the rows of batches, in their order. Copies no values.
    ///
    /// # Errors
    /// `DatatypeMismatch` if a batch has another schema. Metadata are not compared.
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<ProgramTable> {
        for batch in &batches {
            let types = |schema: &Schema| schema.fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>();
            if types(&batch.schema()) != types(&schema) {
                return Err(Error::DatatypeMismatch(format!(
                    "a batch has the columns {:?}, its table {:?}",
                    types(&batch.schema()),
                    types(&schema)
                )));
            }
        }
        Ok(ProgramTable { schema, batches: batches.into() })
    }
}

/// Finds a table by its name.
type Find = dyn Fn(&str) -> Result<Option<ProgramTable>> + Send + Sync;

/// The source of a session's tables of the program.
#[derive(Clone)]
pub(crate) struct ProgramTables(Arc<Find>);

impl ProgramTables {
    pub fn new(find: impl Fn(&str) -> Result<Option<ProgramTable>> + Send + Sync + 'static) -> ProgramTables {
        ProgramTables(Arc::new(find))
    }

    /// The table with a name, for scans in a time zone.
    ///
    /// # Errors
    /// Errors of the source; `Context` with the column for types that columns cannot have; `DuplicateColumn`.
    pub(super) fn provider(&self, name: &str, zone: Zone) -> Result<Option<Provider>> {
        let Some(ProgramTable { schema, batches }) = (self.0)(name)? else { return Ok(None) };
        let mut columns = Vec::<ColumnDef>::with_capacity(schema.fields().len());
        for field in schema.fields() {
            if columns.iter().any(|column| column.name == *field.name()) {
                return Err(Error::DuplicateColumn(field.name().clone()));
            }
            let within = |error: Error| error.within(format!("column \"{}\" of \"{name}\"", field.name()));
            columns.push(ColumnDef::new(field.name(), from_arrow(field.data_type()).map_err(within)?));
        }
        let field = |column: &ColumnDef| Field::new(&column.name, column.ty.column.arrow(), true);
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        Ok(Some(Provider { name: name.into(), columns, schema, batches, zone }))
    }
}

impl fmt::Debug for ProgramTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgramTables")
    }
}

/// The source of a statement, and whether the statement has used it.
#[derive(Debug)]
pub(super) struct OfStatement {
    source: Option<ProgramTables>,
    is_used: AtomicBool,
}

impl OfStatement {
    pub fn new(source: Option<ProgramTables>) -> OfStatement {
        OfStatement { source, is_used: AtomicBool::new(false) }
    }

    /// See [`ProgramTables::provider`].
    ///
    /// # Errors
    /// As [`ProgramTables::provider`].
    pub fn provider(&self, name: &str, zone: Zone) -> Result<Option<Provider>> {
        let Some(source) = &self.source else { return Ok(None) };
        let found = source.provider(name, zone)?;
        if found.is_some() {
            self.is_used.store(true, Ordering::Relaxed);
        }
        Ok(found)
    }

    /// True if the statement reads a table of the program: its description must not be kept.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }
}

/// A table of the program as a table of a statement.
#[derive(Debug)]
pub(super) struct Provider {
    name: String,
    /// The columns as those of a table.
    columns: Vec<ColumnDef>,
    schema: SchemaRef,
    batches: Arc<[RecordBatch]>,
    zone: Zone,
}

#[async_trait]
impl TableProvider for Provider {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
        let all = || (0..self.columns.len()).collect();
        let places: Vec<usize> = projection.cloned().unwrap_or_else(all);
        let schema = Arc::new(self.schema.project(&places)?);
        let columns = places.iter().map(|&place| (place, self.columns[place].clone())).collect();
        let (name, batches) = (self.name.clone(), self.batches.clone());
        let rows = Scan(Arc::new(Conversion { name, columns, schema: schema.clone(), batches, zone: self.zone }));
        // One partition keeps the order of the rows.
        let plan = StreamingTableExec::try_new(schema, vec![Arc::new(rows)], None, [], false, limit)?;
        Ok(Arc::new(plan))
    }
}

/// The conversion of some columns.
#[derive(Debug)]
struct Conversion {
    name: String,
    /// The columns, with their places in the batches.
    columns: Vec<(usize, ColumnDef)>,
    schema: SchemaRef,
    batches: Arc<[RecordBatch]>,
    zone: Zone,
}

impl Conversion {
    /// The values of the columns in a batch.
    ///
    /// # Errors
    /// Errors of assignments.
    fn converted(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let values = self.columns.iter().map(|(place, column)| {
            let converted = assign(batch.column(*place), &self.name, column, self.zone);
            converted.map_err(|error| error.within(format!("column \"{}\"", column.name)))
        });
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), values.collect::<Result<_>>()?, &options)?)
    }
}

/// A scan, which converts one batch after another.
#[derive(Debug)]
struct Scan(Arc<Conversion>);

impl PartitionStream for Scan {
    fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let conversion = self.0.clone();
        let parts = |batch: &RecordBatch| (0..batch.num_rows()).step_by(BATCH_ROWS).count();
        let places: Vec<(usize, usize)> = conversion
            .batches
            .iter()
            .enumerate()
            .flat_map(|(place, batch)| (0..parts(batch)).map(move |part| (place, part * BATCH_ROWS)))
            .collect();
        let schema = conversion.schema.clone();
        let batches = futures::stream::iter(places).map(move |(place, from)| {
            let batch = &conversion.batches[place];
            let part = batch.slice(from, BATCH_ROWS.min(batch.num_rows() - from));
            Ok(conversion.converted(&part)?)
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }
}
