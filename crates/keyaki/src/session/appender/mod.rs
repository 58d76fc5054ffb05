//! Appends rows to a table in bulk.
//!
//! Rows are collected in Arrow builders of the table's column types ([`builder`]). A full chunk is inserted by one commit
//! ([`chunk`]).
//!
//! A row that does not fit into the builders is refused at once. Its columns before the wrong one are already in the
//! builders then: such rows are completed with nulls, and dropped when the builders are emptied.

mod builder;
mod chunk;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter;
use arrow::datatypes::{Field, Schema, SchemaRef};

use self::builder::ColumnBuilder;
use super::connection::Shared;
use super::params::Params;
use crate::base::value::ValueRef;
use crate::catalog::RelationName;
use crate::sql::access;
use crate::{Error, Result};

/// Rows of a chunk.
const CHUNK_ROWS: usize = 32_768;
/// Bytes of values after which a chunk with fewer rows is complete.
const CHUNK_BYTES: usize = 16 << 20;

/// Appends rows to a table, much faster than INSERT.
///
/// The appender inserts its rows in chunks of up to 32,768 rows or about 16 MiB. Each chunk is a transaction: all its
/// rows become visible together. [`Appender::flush`] inserts the rows so far, [`Appender::finish`] the last ones. Rows in
/// the order of the primary key are fastest. All constraints are enforced.
///
/// *Errors.* A row whose values do not fit is refused and not appended; the appender can be used further. If a chunk
/// violates a constraint, all its rows are discarded and the error names one of them, counted from 1 over all rows of the
/// appender. Chunks that were inserted before remain. [`Appender::inserted`] counts the inserted rows.
///
/// *Drop.* Dropping an appender flushes it, except during a panic. Errors are only logged then: call
/// [`Appender::finish`].
///
/// ```
/// # fn main() -> keyaki::Result<()> {
/// let connection = keyaki::Connection::open_temporary()?;
/// connection.execute("CREATE TABLE event (id BIGINT PRIMARY KEY, kind TEXT NOT NULL, weight DOUBLE PRECISION)", ())?;
/// let mut events = connection.appender("event")?;
/// for id in 0..100_000 {
///     events.append_row((id, "click", id as f64 / 2.0))?;
/// }
/// assert_eq!(events.finish()?, 100_000);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Appender {
    shared: Arc<Shared>,
    table: RelationName,
    columns: Vec<ColumnBuilder>,
    /// Schema of the batches that the builders make.
    schema: SchemaRef,
    /// Rows in the builders, refused ones included.
    rows: usize,
    /// Positions of refused rows in the builders, ascending.
    refused: Vec<usize>,
    /// Approximate bytes of the values in the builders.
    bytes: usize,
    /// Full batches of the next chunk, and the number of their rows.
    chunk: Vec<RecordBatch>,
    chunk_rows: usize,
    /// Rows of all chunks so far, including those of the current chunk and of failed chunks.
    received: u64,
    inserted: u64,
}

impl Appender {
    pub(super) fn new(shared: &Arc<Shared>, table: &str, columns: Option<&[&str]>) -> Result<Appender> {
        let (catalog, _) = shared.session.sql.moment()?;
        let table = catalog.table(&shared.session.sql.named(&catalog, table)?)?;
        access::insertion(&shared.session.sql, &catalog, table)?;
        let positions = match columns {
            None => table.given_columns(),
            Some(names) => names.iter().map(|name| table.column(name)).collect::<Result<Vec<_>>>()?,
        };
        if let Some(second) = (1..positions.len()).find(|&i| positions[..i].contains(&positions[i])) {
            return Err(Error::DuplicateColumn(table.def.columns[positions[second]].name.clone()));
        }
        chunk::check_missing(table, &positions)?;
        let zone = shared.session.sql.zone();
        let builder = |&column: &usize| ColumnBuilder::new(&table.def.name, &table.def.columns[column], zone);
        let columns: Vec<ColumnBuilder> = positions.iter().map(builder).collect();
        let field = |column: &ColumnBuilder| Field::new(&column.def.name, column.def.ty.column.arrow(), true);
        Ok(Appender {
            shared: shared.clone(),
            table: table.def.name.clone(),
            schema: Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>())),
            columns,
            rows: 0,
            refused: Vec::new(),
            bytes: 0,
            chunk: Vec::new(),
            chunk_rows: 0,
            received: 0,
            inserted: 0,
        })
    }

    /// Appends a row: one value for each column of the appender. Values are converted as by INSERT.
    ///
    /// # Errors
    /// `Import` with the row for a value that does not fit its column; `InvalidStatement` for a wrong number of values;
    /// the row is then not appended. Errors of [`Appender::flush`] if the row completes a chunk.
    pub fn append_row(&mut self, values: impl Params) -> Result<()> {
        values.with_values(|values| self.append_values(values))?;
        if self.chunk_rows + self.rows - self.refused.len() >= CHUNK_ROWS || self.bytes >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn append_values(&mut self, values: &[ValueRef<'_>]) -> Result<()> {
        if values.len() != self.columns.len() {
            return Err(Error::InvalidStatement(format!(
                "an appended row of table \"{}\" has {} columns, but {} values were given",
                self.table,
                self.columns.len(),
                values.len()
            )));
        }
        let mut refusal = None;
        for (place, (column, value)) in self.columns.iter_mut().zip(values).enumerate() {
            match column.push(*value) {
                Ok(bytes) => self.bytes += bytes,
                Err(error) => {
                    refusal = Some((place, error));
                    break;
                }
            }
        }
        self.rows += 1;
        let Some((place, error)) = refusal else {
            self.received += 1;
            return Ok(());
        };
        self.columns[place..].iter_mut().for_each(ColumnBuilder::push_null);
        self.refused.push(self.rows - 1);
        Err(Error::Import { path: None, row: Some(self.received + 1), column: None, source: Box::new(error) })
    }

    /// Appends the rows of an Arrow batch. Its columns are matched by name with those of the appender, and converted as by
    /// INSERT; missing columns get their defaults.
    ///
    /// # Errors
    /// Errors of [`Appender::flush`] for each chunk that the batch completes; the rows behind a failed chunk are then not
    /// appended.
    pub fn append_batch(&mut self, batch: &RecordBatch) -> Result<()> {
        self.seal()?;
        let row_bytes = batch.get_array_memory_size() / batch.num_rows().max(1);
        let chunk_rows = (CHUNK_BYTES / row_bytes.max(1)).clamp(1, CHUNK_ROWS);
        let mut start = 0;
        while start < batch.num_rows() {
            let rows = chunk_rows.saturating_sub(self.chunk_rows).clamp(1, batch.num_rows() - start);
            self.chunk.push(batch.slice(start, rows));
            self.chunk_rows += rows;
            self.received += rows as u64;
            start += rows;
            if self.chunk_rows >= chunk_rows {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Inserts all rows appended so far.
    ///
    /// # Errors
    /// `Import` with the row: `Constraint`, errors of converted values. `NotFound` and `UndefinedColumn` if the table has
    /// changed; errors of the commit; `Cancelled`. The rows since the last flush are then discarded.
    pub fn flush(&mut self) -> Result<()> {
        self.seal()?;
        let chunk = std::mem::take(&mut self.chunk);
        let rows = std::mem::take(&mut self.chunk_rows) as u64;
        if rows == 0 {
            return Ok(());
        }
        let shared = &self.shared;
        let names: Vec<&str> = self.columns.iter().map(|column| column.def.name.as_str()).collect();
        let (session, execution) = (&shared.session.sql, shared.session.execution());
        let work = chunk::insert(session, &execution, &self.table, &names, chunk, self.received - rows);
        self.inserted += shared.run(shared.session.run(&execution, work))?;
        Ok(())
    }

    /// Inserts all rows appended so far and ends the appender. Returns the number of rows that it has inserted.
    ///
    /// # Errors
    /// As [`Appender::flush`].
    pub fn finish(mut self) -> Result<u64> {
        self.flush()?;
        Ok(self.inserted)
    }

    /// Number of rows inserted so far. Rows since the last flush do not count.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Empties the builders into a batch of the chunk.
    fn seal(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let refused = std::mem::take(&mut self.refused);
        self.bytes = 0;
        if rows == 0 {
            return Ok(());
        }
        let mut columns: Vec<ArrayRef> = self.columns.iter_mut().map(ColumnBuilder::finish).collect::<Result<_>>()?;
        if !refused.is_empty() {
            let mut kept = vec![true; rows];
            refused.iter().for_each(|&row| kept[row] = false);
            let kept = BooleanArray::from(kept);
            columns = columns.iter().map(|column| filter(column, &kept)).collect::<std::result::Result<_, _>>()?;
        }
        assert!(
            columns.iter().all(|column| column.len() == rows - refused.len()),
            "each row has a value for each column"
        );
        if refused.len() < rows {
            self.chunk.push(RecordBatch::try_new(self.schema.clone(), columns)?);
            self.chunk_rows += rows - refused.len();
        }
        Ok(())
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.flush() {
            tracing::warn!(%error, table = %self.table, "appended rows were lost");
        }
    }
}
