//! Creates tables.

use std::sync::Arc;

use keyaki_store::WriteBatch;

use super::WriteStatement;
use crate::Result;
use crate::catalog::{Catalog, DocumentKind, Table, put_new};

/// Commits `batch`, which creates the trees and the definition of `table`, and publishes the catalog with the table.
pub(crate) async fn commit_table(
    statement: &WriteStatement,
    catalog: &Catalog,
    table: Arc<Table>,
    batch: WriteBatch,
) -> Result<()> {
    let mut changed = catalog.clone();
    changed.tables.insert(table.def.name.clone(), table);
    statement.engine.commit_catalog(&statement.writer, batch, changed).await
}

/// Adds a new table's trees and definition to `batch`.
pub(crate) fn create_trees(batch: &mut WriteBatch, table: &Table) -> Result<()> {
    batch.create_tree(table.def.tree, &table.schema);
    for (index, schema) in table.def.indexes.iter().zip(&table.index_schemas) {
        batch.create_tree(index.tree, schema);
    }
    put_new(batch, DocumentKind::Table, &table.def.name, &table.def)
}
