//! The result of a statement.

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::memory::MemoryStream;

use crate::Result;

/// The result of a statement.
pub enum Outcome {
    /// Result of a query. Execution starts when the stream is first polled. Dropping the stream cancels the query.
    Rows(SendableRecordBatchStream),
    /// Completion of a statement that returns no rows.
    Done {
        /// Command tag: `"CREATE TABLE"`, `"INSERT"`, `"COPY"` …
        tag: String,
        /// Rows inserted, updated, deleted or copied; `None` for other statements.
        rows: Option<u64>,
    },
}

impl Outcome {
    pub(crate) fn done(tag: &str) -> Outcome {
        Outcome::Done { tag: tag.into(), rows: None }
    }
    pub(crate) fn rows(tag: &str, rows: u64) -> Outcome {
        Outcome::Done { tag: tag.into(), rows: Some(rows) }
    }

    /// The rows of columns with these names.
    ///
    /// # Errors
    /// If the columns differ in length.
    pub(crate) fn of_columns<'a>(columns: impl IntoIterator<Item = (&'a str, ArrayRef)>) -> Result<Outcome> {
        let columns = columns.into_iter().map(|(name, values)| (name, values, true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns)?;
        let schema = batch.schema();
        Ok(Outcome::Rows(Box::pin(MemoryStream::try_new(vec![batch], schema, None)?)))
    }

    /// Collects all rows; returns no batches for `Done`.
    ///
    /// # Errors
    /// Errors of the query's execution, for example `OutOfMemory`, `Io` or `DivisionByZero`.
    pub async fn collect(self) -> Result<Vec<RecordBatch>> {
        match self {
            Outcome::Rows(stream) => Ok(datafusion::physical_plan::common::collect(stream).await?),
            Outcome::Done { .. } => Ok(Vec::new()),
        }
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Rows(stream) => f.debug_tuple("Rows").field(&stream.schema()).finish(),
            Outcome::Done { tag, rows } => f.debug_struct("Done").field("tag", tag).field("rows", rows).finish(),
        }
    }
}
