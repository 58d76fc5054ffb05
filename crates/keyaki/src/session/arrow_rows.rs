//! Results as Arrow batches.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::rows::Batches;
use crate::Result;

/// The result of a query as Arrow batches, produced while they are read. Dropping it cancels the query. Ends after the
/// first error.
///
/// ```
/// # fn main() -> keyaki::Result<()> {
/// # let connection = keyaki::Connection::open_temporary()?;
/// let batches = connection.query_arrow("SELECT value FROM generate_series(1, 100000)", ())?;
/// assert_eq!(batches.schema().field(0).name(), "value");
/// let mut rows = 0;
/// for batch in batches {
///     rows += batch?.num_rows();
/// }
/// assert_eq!(rows, 100_000);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ArrowRows {
    batches: Batches,
}

impl ArrowRows {
    pub(super) fn new(batches: Batches) -> ArrowRows {
        ArrowRows { batches }
    }

    /// Schema of all batches. A statement that returns no rows has an empty schema.
    pub fn schema(&self) -> SchemaRef {
        self.batches.schema.clone()
    }
}

impl Iterator for ArrowRows {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        self.batches.next().transpose()
    }
}
