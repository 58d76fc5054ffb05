//! ANALYZE: collects and stores the statistics of one table or of all tables.
//!
//! The statement holds the writer lock and commits the statistics of each table separately.

use super::{Outcome, SqlSession};
use crate::Result;
use crate::write::statistics::refresh;

/// Executes ANALYZE for `table`, or for all tables if it is `None`.
pub(crate) async fn run(session: &SqlSession, table: Option<&str>) -> Result<Outcome> {
    let writer = session.engine.writer().await;
    let (catalog, _) = session.engine.latest(&writer);
    let names: Vec<String> = match table {
        Some(name) => vec![catalog.table(name)?.def.name.clone()],
        None => catalog.tables.keys().cloned().collect(),
    };
    for name in &names {
        refresh(&session.write(writer.clone()), name).await?;
    }
    Ok(Outcome::done("ANALYZE"))
}
