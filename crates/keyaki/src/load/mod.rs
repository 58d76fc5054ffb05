//! Bulk loads.

mod memory;
mod merge;
mod sort;
mod spill;

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;

use crate::database::{Catalog, Table, Writer};
use crate::{Error, Result, Session};
use std::path::PathBuf;
use std::sync::Arc;

/// Where rows come from, for messages: knows the file and the row in it of row `n` of the stream.
pub(crate) trait Origin: std::fmt::Debug + Send + Sync {
    /// File and row (from 1) of a row of the stream (from 0); none if it is not from a file.
    fn locate(&self, row: u64) -> Option<(PathBuf, u64)>;
}

/// Rows that are not from a file.
#[derive(Debug)]
pub(crate) struct NoOrigin;

impl Origin for NoOrigin {
    fn locate(&self, _: u64) -> Option<(PathBuf, u64)> {
        None
    }
}

/// Adds all rows of `rows` (the table's columns in table order, with exactly their Arrow types) to the table, or none.
/// Checks NOT NULL, lengths, primary key and unique indexes. Installs by [`crate::Database::install`].
pub(crate) async fn insert_stream(
    _session: &Session,
    _writer: &Writer,
    _table: &Arc<Table>,
    _rows: SendableRecordBatchStream,
    _origin: Arc<dyn Origin>,
) -> Result<u64> {
    Err(Error::Unsupported("bulk loads".into()))
}

/// Writes the tree of a new index (`index`: its place in `table.def.indexes` and `table.index_schemas`; `table` is the
/// definition with the index, which the catalog does not yet show) from the rows of the table, and installs it together
/// with `batch` (which creates the tree and stores the definition) and `catalog` (which shows it) by
/// [`crate::Database::install`].
pub(crate) async fn build_index(
    _session: &Session,
    _writer: &Writer,
    _table: &Arc<Table>,
    _index: usize,
    _batch: keyaki_store::WriteBatch,
    _catalog: Catalog,
) -> Result<()> {
    Err(Error::Unsupported("bulk loads".into()))
}

fn arrow_error(error: ArrowError) -> Error {
    Error::DataFusion(DataFusionError::from(error))
}
