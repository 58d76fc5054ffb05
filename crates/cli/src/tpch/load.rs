//! Generated rows straight into a table.

use datafusion::error::DataFusionError;
use keyaki::Session;

use super::Table;
use super::generate::Rows;
use crate::failure::Result;

/// Fills `table` (all of its columns, or those given, which the table must have in this order).
pub async fn generated(session: &Session, table: Table, columns: Option<&[&str]>, scale: f64) -> Result<u64> {
    let schema = table.schema();
    let indices: Vec<usize> = match columns {
        None => (0..schema.fields().len()).collect(),
        Some(names) => names.iter().map(|name| schema.index_of(name)).collect::<std::result::Result<_, _>>()?,
    };
    let batches = Rows::new(table, scale, threads()).map(move |batch| {
        batch.and_then(|batch| batch.project(&indices)).map_err(|error| DataFusionError::from(error).into())
    });
    Ok(session.load_iter(table.name(), batches).await?)
}

pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
