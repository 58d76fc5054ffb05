//! The result of a statement.

use datafusion::execution::SendableRecordBatchStream;

use crate::Result;

/// What a statement gave.
pub enum Outcome {
    /// Rows; nothing runs before the stream is polled, dropping it cancels.
    Rows(SendableRecordBatchStream),
    /// Done: what (`"CREATE TABLE"`, `"INSERT"`, `"COPY"` …), and how many rows it concerned.
    Done { tag: String, rows: Option<u64> },
}

impl Outcome {
    pub(crate) fn done(tag: &str) -> Outcome {
        Outcome::Done { tag: tag.into(), rows: None }
    }
    pub(crate) fn rows(tag: &str, rows: u64) -> Outcome {
        Outcome::Done { tag: tag.into(), rows: Some(rows) }
    }

    /// All rows (none for `Done`).
    pub async fn collect(self) -> Result<Vec<arrow::array::RecordBatch>> {
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
