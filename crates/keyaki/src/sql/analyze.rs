//! ANALYZE: collects and stores the statistics of one table or of all tables.
//!
//! The statement holds the writer lock and stores all statistics in one commit.

use datafusion::sql::sqlparser::ast::ObjectName;

use super::transaction::check_outside;
use super::{Outcome, SqlSession, access};
use crate::Result;
use crate::base::interrupt::Execution;
use crate::catalog::RelationName;
use crate::write::statistics::analyze;

/// Executes ANALYZE for `table`, or for all tables if it is `None`.
pub(crate) async fn run(
    session: &SqlSession,
    execution: &Execution<'_>,
    table: Option<&ObjectName>,
) -> Result<Outcome> {
    check_outside(session, "ANALYZE")?;
    let writer = session.writer(execution, "ANALYZE").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let names: Vec<RelationName> = match table {
        Some(name) => {
            let name = &catalog.table(&session.relation(&catalog, name)?)?.def.name;
            access::owner(session, &catalog, name)?;
            vec![name.clone()]
        }
        None => {
            let authority = session.authority(&catalog)?;
            let owned = catalog.tables.values().filter(|table| authority.owns(&table.def.access));
            owned.map(|table| table.def.name.clone()).collect()
        }
    };
    analyze(&session.write(writer), &names).await?;
    Ok(Outcome::done("ANALYZE"))
}
