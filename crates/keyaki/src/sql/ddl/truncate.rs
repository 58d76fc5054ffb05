//! TRUNCATE: new empty trees replace those of the tables, in constant time. Open snapshots keep the rows. With CASCADE, the
//! tables that refer to these by foreign keys are emptied, too.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{CascadeOption, Truncate, TruncateIdentityOption, TruncateTableTarget};
use keyaki_store::WriteBatch;

use super::foreign_keys;
use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, Privileges, RelationName, Table};
use crate::sql::{Outcome, SqlSession, access, notices};
use crate::write::rebuild::empty;
use crate::{Error, Result};

pub(crate) async fn truncate(session: &SqlSession, execution: &Execution<'_>, truncate: Truncate) -> Result<Outcome> {
    let Truncate { table_names, partitions, table: _, if_exists, identity, cascade, on_cluster } = truncate;
    if partitions.is_some() || on_cluster.is_some() {
        return Err(Error::Unsupported("PARTITION and ON CLUSTER in TRUNCATE".into()));
    }
    let writer = session.writer(execution, "TRUNCATE TABLE").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let mut tables: Vec<Arc<Table>> = Vec::new();
    for TruncateTableTarget { name, .. } in &table_names {
        let name = session.relation(&catalog, name)?;
        if if_exists && !catalog.tables.contains_key(&name) && !catalog.views.contains_key(&name) {
            notices::missing(session, "relation", &name.to_string());
            continue;
        }
        let table = catalog.table(&name)?;
        if !tables.iter().any(|other| Arc::ptr_eq(other, table)) {
            tables.push(table.clone());
        }
    }
    if cascade == Some(CascadeOption::Cascade) {
        let mut next = 0;
        while let Some(table) = tables.get(next).cloned() {
            for (other, _) in catalog.referencing(&table.def.name) {
                if !tables.iter().any(|known| Arc::ptr_eq(known, other)) {
                    tables.push(other.clone());
                }
            }
            next += 1;
        }
    }
    let names: Vec<RelationName> = tables.iter().map(|table| table.def.name.clone()).collect();
    for name in &names {
        foreign_keys::check_unreferenced(&catalog, name, &names, &format!("truncate table \"{name}\""))?;
    }
    for name in &names {
        access::relation(&session.authority(&catalog)?, &catalog, name, Privileges::TRUNCATE)?;
    }
    let restarts = identity == Some(TruncateIdentityOption::Restart);
    for identity in tables.iter().flat_map(|table| &table.def.columns).filter_map(|column| column.identity.as_ref()) {
        if restarts {
            // As ALTER SEQUENCE … RESTART.
            access::owner(session, &catalog, &identity.sequence.name)?;
        }
    }
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    for table in tables {
        empty(&session.engine, &mut changed, &mut batch, &table, restarts)?;
    }
    if !batch.is_empty() {
        session.engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done("TRUNCATE TABLE"))
}
