//! Rows of a result: a stream of Arrow batches, read row by row.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;

use super::arrow_rows::ArrowRows;
use super::columns;
use super::connection::Shared;
use super::statement::{Column, described};
use crate::base::from_sql::FromSql;
use crate::base::interrupt::{Execution, Started};
use crate::base::type_name;
use crate::base::value::{ValueRef, value_at};
use crate::sql::Outcome;
use crate::sql::prepared::Executed;
use crate::{Error, Result};

/// The batches of a result, for [`Rows`] and [`ArrowRows`](super::ArrowRows).
pub(super) struct Batches {
    shared: Arc<Shared>,
    started: Started,
    pub schema: SchemaRef,
    /// `None` for statements that return rows.
    completion: Option<Completion>,
    /// A batch that was computed with the statement.
    first: Option<RecordBatch>,
    /// `None` at the end and after an error.
    stream: Option<SendableRecordBatchStream>,
}

impl Batches {
    pub fn new(shared: &Arc<Shared>, started: Started, executed: Executed) -> Batches {
        let shared = shared.clone();
        let mut completion = None;
        let (schema, first, stream) = match executed {
            Executed::Rows(batch) => (batch.schema(), Some(batch), None),
            Executed::Outcome(Outcome::Rows(stream)) => (stream.schema(), None, Some(stream)),
            Executed::Outcome(Outcome::Done { tag, rows }) => {
                completion = Some(Completion { tag, rows });
                (Arc::new(arrow::datatypes::Schema::empty()), None, None)
            }
        };
        Batches { shared, started, schema, completion, first, stream }
    }

    /// The next batch that has rows; `None` at the end. Blocks.
    ///
    /// # Errors
    /// Errors of the execution. The result then ends.
    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.first.take() {
            return Ok(Some(batch).filter(|batch| batch.num_rows() > 0));
        }
        while let Some(stream) = &mut self.stream {
            let next = async { stream.next().await.transpose().map_err(Error::from) };
            let execution = Execution::new(&self.shared.session.sql.interrupts, self.started);
            match self.shared.run(execution.run(next)) {
                Ok(Some(batch)) if batch.num_rows() == 0 => {}
                Ok(Some(batch)) => return Ok(Some(batch)),
                other => {
                    self.stream = None;
                    return other.map_err(|error| self.shared.session.sql.transaction.cause(error));
                }
            }
        }
        Ok(None)
    }
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// The completion of a statement that returns no rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Command tag: `"CREATE TABLE"`, `"INSERT"`, `"COPY"` …
    pub tag: String,
    /// Rows inserted, updated, deleted or copied; `None` for other statements.
    pub rows: Option<u64>,
}

/// The rows of a result, produced while they are read. Dropping it cancels the query.
///
/// ```
/// # fn main() -> keyaki::Result<()> {
/// # let connection = keyaki::Connection::open_temporary()?;
/// let mut rows = connection.query("SELECT value, value * value FROM generate_series(1, 3)", ())?;
/// while let Some(row) = rows.next()? {
///     println!("{} {}", row.get::<_, i64>(0)?, row.get::<_, i64>(1)?);
/// }
/// let squares = connection.query("SELECT value * value AS square FROM generate_series(1, 3)", ())?;
/// let squares: Vec<i64> = squares.mapped(|row| row.get("square")).collect::<keyaki::Result<_>>()?;
/// assert_eq!(squares, [1, 4, 9]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Rows {
    batches: Batches,
    /// The current batch.
    batch: Option<RecordBatch>,
    /// The columns of the current batch, converted to types of values.
    columns: Vec<ArrayRef>,
    /// Rows of the current batch.
    len: usize,
    /// Position of the next row in the current batch.
    next: usize,
}

impl Rows {
    pub(super) fn new(batches: Batches) -> Rows {
        Rows { batches, batch: None, columns: Vec::new(), len: 0, next: 0 }
    }

    /// The next row; `None` at the end. Blocks until the row is available.
    ///
    /// # Errors
    /// Errors of the execution, for example `DivisionByZero`; `Cancelled`. The result then ends.
    #[expect(clippy::should_implement_trait, reason = "a row borrows the batch, which an iterator's items cannot")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Row<'_>>> {
        if self.next == self.len && !self.advance()? {
            return Ok(None);
        }
        let position = self.next;
        self.next += 1;
        Ok(Some(Row { rows: self, position }))
    }

    /// Waits until [`Rows::next`] returns a row, or the end, without waiting. Returns the number of rows that it returns
    /// without waiting; 0 at the end.
    ///
    /// # Errors
    /// As [`Rows::next`].
    pub fn wait(&mut self) -> Result<usize> {
        if self.next == self.len {
            self.advance()?;
        }
        Ok(self.available())
    }

    /// Number of rows that [`Rows::next`] returns without waiting.
    pub fn available(&self) -> usize {
        self.len - self.next
    }

    /// The rows that were not read yet, as Arrow batches with the types of the query.
    pub fn into_arrow(mut self) -> ArrowRows {
        if let Some(batch) = self.batch.filter(|_| self.next < self.len) {
            self.batches.first = Some(batch.slice(self.next, self.len - self.next));
        }
        ArrowRows::new(self.batches)
    }

    /// The completion of the statement; `None` for a statement that returns rows.
    pub fn completion(&self) -> Option<&Completion> {
        self.batches.completion.as_ref()
    }

    /// Reads the next batch; false at the end.
    fn advance(&mut self) -> Result<bool> {
        (self.batch, self.len, self.next) = (None, 0, 0);
        let Some(batch) = self.batches.next()? else { return Ok(false) };
        let mut columns = batch.columns().to_vec();
        columns::convert(&mut columns)?;
        (self.columns, self.len, self.batch) = (columns, batch.num_rows(), Some(batch));
        Ok(true)
    }

    /// An iterator over the results of `map`. It ends after the first error.
    pub fn mapped<T, F: FnMut(&Row<'_>) -> Result<T>>(self, map: F) -> MappedRows<F> {
        MappedRows { rows: self, map, failed: false }
    }

    /// Arrow schema of the result. A statement that returns no rows has an empty schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.batches.schema
    }

    /// The columns of the result.
    pub fn columns(&self) -> Vec<Column> {
        described(self.schema())
    }

    /// Names of the columns.
    pub fn column_names(&self) -> Vec<&str> {
        self.schema().fields().iter().map(|field| field.name().as_str()).collect()
    }
}

/// An iterator over converted rows ([`Rows::mapped`]).
#[derive(Debug)]
pub struct MappedRows<F> {
    rows: Rows,
    map: F,
    failed: bool,
}

impl<T, F: FnMut(&Row<'_>) -> Result<T>> Iterator for MappedRows<F> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.failed {
            return None;
        }
        let item = match self.rows.next() {
            Ok(row) => (self.map)(&row?),
            Err(error) => Err(error),
        };
        self.failed = item.is_err();
        Some(item)
    }
}

/// One row of a result.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    rows: &'a Rows,
    position: usize,
}

impl<'a> Row<'a> {
    /// The value of a column, converted to a Rust type; see [`FromSql`] for the conversions. `index` is a position,
    /// counted from 0, or a name. Text and bytes can be borrowed: `row.get::<_, &str>(0)`.
    ///
    /// # Errors
    /// `UndefinedColumn`, `InvalidColumnReference`; within the column: `CannotCast` for a value of another type,
    /// `OutOfRange`, `UnexpectedNull` for NULL without `Option`.
    #[inline]
    pub fn get<I: RowIndex, T: FromSql<'a>>(&self, index: I) -> Result<T> {
        let column = index.position(self)?;
        self.value(column).and_then(T::from_sql).map_err(|error| self.in_column(column, error))
    }

    /// The value of a column as it is.
    ///
    /// # Errors
    /// `UndefinedColumn`, `InvalidColumnReference`.
    pub fn get_ref<I: RowIndex>(&self, index: I) -> Result<ValueRef<'a>> {
        self.value(index.position(self)?)
    }

    /// The values of all columns.
    ///
    /// # Errors
    /// None; see [`Row::get_ref`].
    pub fn values(&self) -> Result<Vec<ValueRef<'a>>> {
        (0..self.len()).map(|column| self.value(column)).collect()
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        self.rows.columns.len()
    }

    /// True for a row without columns.
    pub fn is_empty(&self) -> bool {
        self.rows.columns.is_empty()
    }

    /// Arrow schema of the result. It has the types of the query; [`Row::get`] converts types without a
    /// [`Value`](crate::Value) variant to a wider type or text.
    pub fn schema(&self) -> &'a SchemaRef {
        &self.rows.batches.schema
    }

    #[inline]
    fn value(&self, column: usize) -> Result<ValueRef<'a>> {
        let array = &self.rows.columns[column];
        value_at(array, self.position).ok_or_else(|| {
            Error::Internal(format!("a column of type {} was not converted", type_name(array.data_type())))
        })
    }

    #[cold]
    fn in_column(&self, column: usize, error: Error) -> Error {
        error.within(format!("column \"{}\"", self.schema().field(column).name()))
    }
}

/// The position or the name of a column.
pub trait RowIndex {
    /// The position, counted from 0.
    ///
    /// # Errors
    /// `UndefinedColumn`, `InvalidColumnReference`.
    fn position(&self, row: &Row<'_>) -> Result<usize>;
}

impl RowIndex for usize {
    #[inline]
    fn position(&self, row: &Row<'_>) -> Result<usize> {
        match *self < row.len() {
            true => Ok(*self),
            false => Err(Error::InvalidColumnReference(format!(
                "column position {self} is out of range: the result has {} columns",
                row.len()
            ))),
        }
    }
}

/// The first column with exactly this name, else the first one with this name in other case.
impl RowIndex for &str {
    fn position(&self, row: &Row<'_>) -> Result<usize> {
        let fields = row.schema().fields();
        let exact = fields.iter().position(|field| field.name() == self);
        let found = exact.or_else(|| fields.iter().position(|field| field.name().eq_ignore_ascii_case(self)));
        found.ok_or_else(|| Error::UndefinedColumn { column: (*self).into(), relation: None, similar: Vec::new() })
    }
}

/// Implements `TryFrom<&Row>` for tuples: one value for each column.
macro_rules! tuples {
    ($($name:ident $index:tt),+) => {
        impl<'a, $($name: FromSql<'a>),+> TryFrom<&Row<'a>> for ($($name,)+) {
            type Error = Error;
            fn try_from(row: &Row<'a>) -> Result<Self> {
                let expected = [$($index),+].len();
                if row.len() != expected {
                    return Err(Error::InvalidColumnReference(format!(
                        "the result has {} columns, not {expected}", row.len()
                    )));
                }
                Ok(($(row.get($index as usize)?,)+))
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

/// Turns the error of a query without rows into `None`.
///
/// ```
/// use keyaki::Optional;
///
/// # fn main() -> keyaki::Result<()> {
/// # let connection = keyaki::Connection::open_temporary()?;
/// let none = connection.query_row("SELECT 1 WHERE false", (), |row| row.get::<_, i64>(0)).optional()?;
/// assert_eq!(none, None);
/// # Ok(()) }
/// ```
pub trait Optional<T> {
    /// `Ok(None)` for [`Error::NoRows`].
    ///
    /// # Errors
    /// All other errors.
    fn optional(self) -> Result<Option<T>>;
}

impl<T> Optional<T> for Result<T> {
    fn optional(self) -> Result<Option<T>> {
        match self {
            Err(Error::NoRows) => Ok(None),
            other => other.map(Some),
        }
    }
}
