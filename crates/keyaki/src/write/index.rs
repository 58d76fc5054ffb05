//! Creates indexes. An empty table needs only the commit of the definition; the entries of existing rows are built by a
//! bulk load.

use std::sync::Arc;

use keyaki_store::{Direction, KeyRange, TreeView, WriteBatch, block_on};

use super::{WriteStatement, bulk};
use crate::catalog::{Catalog, IndexMethod, Table};
use crate::engine::Engine;
use crate::{Error, Result};

/// Creates an index. For a vast index, waits until its locator is built or the statement is interrupted.
///
/// `table` is the definition with the new index, which the catalog does not yet contain. `index` is its position in
/// `table.def.indexes` and `table.index_schemas`. `batch` creates the tree and stores the definition; `catalog`
/// contains it.
pub(crate) async fn create_index(
    statement: &WriteStatement,
    table: &Arc<Table>,
    index: usize,
    batch: WriteBatch,
    catalog: Catalog,
) -> Result<()> {
    let (_, snapshot) = statement.latest();
    if is_empty(&statement.engine, snapshot.tree(table.def.tree)?).await? {
        statement.engine.commit_catalog(&statement.writer, batch, catalog).await?;
    } else {
        bulk::build_index(statement, table, index, batch, catalog).await?;
    }
    if table.def.indexes[index].method == IndexMethod::Vast {
        let store = statement.engine.store.clone();
        let located = tokio::task::spawn_blocking(move || store.wait_for_locators());
        if let Some(Err(error)) = statement.writer.decision.unless_interrupted(located).await {
            return Err(Error::task(&error));
        }
    }
    Ok(())
}

/// True if a tree has no rows.
async fn is_empty(engine: &Engine, view: TreeView) -> Result<bool> {
    let store = engine.store.clone();
    let task = tokio::task::spawn_blocking(move || {
        let source = store.blocking();
        let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
        block_on(cursor.next()).map(|chunk| chunk.is_none())
    });
    Ok(task.await.map_err(|error| Error::task(&error))??)
}
