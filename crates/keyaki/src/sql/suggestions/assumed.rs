//! Trees of indexes that do not exist, from a sample of the rows of their table.
//!
//! The sample is all rows of a small table, the sample that the store keeps of a large one, or else stretches of consecutive
//! rows. The size of the tree has the share of the table's size that its columns have in the width of a row.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Scan};
use keyaki_store::{CachedShare, KeyCodec, KeyRange, RangeEstimate, TreeId, TreeView};

use crate::catalog::{Catalog, IndexDef, RelationName, Table};
use crate::engine::Engine;
use crate::plan::IndexCandidate;
use crate::sql::ddl;
use crate::table::AssumedTree;
use crate::{Error, Result};

/// A table with at most this many rows is read completely.
const WHOLE_ROWS: f64 = 20_000.0;
/// Stretches of a larger table, and the rows of each.
const STRETCHES: usize = 64;
const STRETCH_ROWS: u64 = 256;
const BATCH_ROWS: usize = 8192;
/// Assumed width of a column without statistics, in bytes.
const WIDTH: f64 = 8.0;
/// Size of a page of a table without pages.
const PAGE_BYTES: f64 = 8192.0;

/// Rows of a table, and figures of its tree.
pub(super) struct Sample {
    /// Arrays of the columns of the table's tree.
    columns: HashMap<usize, ArrayRef>,
    rows: usize,
    total: RangeEstimate,
    cached: CachedShare,
    page_cache_budget: usize,
}

impl Sample {
    /// Reads the sample.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn read(engine: &Engine, table: &Arc<Table>, view: TreeView) -> Result<Sample> {
        let total = view.estimate(&KeyRange::all());
        let kept = match total.rows <= WHOLE_ROWS {
            true => None,
            false => kept(&view).await?,
        };
        // Arrays cannot be keys.
        let columns = table.schema.columns().iter().enumerate();
        let places: Vec<usize> = columns.filter(|(_, column)| !column.ty.is_list()).map(|(place, _)| place).collect();
        let batch = match kept {
            Some(rows) => rows.project(&places)?,
            None if total.rows <= WHOLE_ROWS => rows(engine, &view, KeyRange::all(), None, &places).await?,
            None => {
                let ranges = view.split(&KeyRange::all(), STRETCHES);
                let limit = (WHOLE_ROWS as u64 / ranges.len().max(1) as u64).max(STRETCH_ROWS);
                let mut stretches = Vec::with_capacity(ranges.len());
                for range in ranges {
                    stretches.push(rows(engine, &view, range, Some(limit), &places).await?);
                }
                let Some(first) = stretches.first() else {
                    return Err(Error::Internal("a table without a range of keys".into()));
                };
                concat_batches(&first.schema(), &stretches)?
            }
        };
        let columns = places.into_iter().zip(batch.columns().iter().cloned()).collect();
        // Reading the rows has changed the page cache.
        let (cached, page_cache_budget) = (view.cached_share(), view.page_cache_budget());
        Ok(Sample { columns, rows: batch.num_rows(), total, cached, page_cache_budget })
    }
}

/// The sample of the store, if there is one and it is not damaged.
async fn kept(view: &TreeView) -> Result<Option<RecordBatch>> {
    let view = view.clone();
    match tokio::task::spawn_blocking(move || view.sample()).await.map_err(|error| Error::task(&error))? {
        Err(keyaki_store::Error::Corrupt { .. }) => Ok(None),
        sample => Ok(sample?.map(|sample| sample.rows)),
    }
}

/// Columns of the rows of a range, at most `limit`.
async fn rows(
    engine: &Engine,
    view: &TreeView,
    range: KeyRange,
    limit: Option<u64>,
    places: &[usize],
) -> Result<RecordBatch> {
    let scan = Scan { ranges: vec![range], limit, ..Scan::whole(view.clone(), places.to_vec(), BATCH_ROWS) };
    let schema = Arc::new(view.schema().arrow().project(places)?);
    let mut rows = engine.executor.scan(scan, ExecutionMode::OutOfOrder);
    let mut batches = Vec::new();
    while let Some(batch) = rows.next().await {
        batches.push(RecordBatch::try_new(schema.clone(), batch?.columns().to_vec())?);
    }
    Ok(concat_batches(&schema, &batches)?)
}

/// An index that does not exist.
pub(super) struct AssumedIndex {
    pub table: RelationName,
    pub def: IndexDef,
    pub tree: Arc<AssumedTree>,
    /// Estimated size on disk in bytes, also of rows that are still in buffers.
    pub bytes: u64,
}

impl AssumedIndex {
    /// `tree` is the id of no tree in `catalog`.
    ///
    /// # Errors
    /// `Unsupported` for columns that cannot be keys.
    pub fn new(catalog: &Catalog, tree: TreeId, candidate: &IndexCandidate, sample: &Sample) -> Result<AssumedIndex> {
        let IndexCandidate { table, keys, include } = candidate;
        let name = ddl::free_index_name(catalog, &table.def, keys, "idx");
        let index = IndexDef::unique(name, tree, keys.clone());
        let index = IndexDef { unique: false, include: include.clone(), ..index };
        let mut def = table.def.clone();
        def.indexes.push(index.clone());
        let place = def.indexes.len() - 1;
        let with = Table::new(def, table.statistics.clone())?;
        let schema = with.index_schemas[place].clone();
        let columns = with.index_columns(place);
        let key = columns[..schema.key_columns()].iter().map(|column| {
            let place = column.map_or(0, |column| table.tree_column[column]);
            sample.columns.get(&place).cloned().ok_or_else(|| Error::Unsupported("a key of this type".into()))
        });
        let key = key.collect::<Result<Vec<ArrayRef>>>()?;
        let (bytes, ends) = KeyCodec::new(&schema).encode_batch(&key, 0..sample.rows);
        let mut keys: Vec<Vec<u8>> = ends.windows(2).map(|ends| bytes[ends[0]..ends[1]].to_vec()).collect();
        keys.sort_unstable();
        let (total, bytes) = size(table, &columns, sample.total);
        let tree = AssumedTree {
            id: index.tree,
            schema,
            keys,
            total,
            cached: sample.cached,
            page_cache_budget: sample.page_cache_budget,
        };
        Ok(AssumedIndex { table: table.def.name.clone(), def: index, tree: Arc::new(tree), bytes })
    }

    /// True if both have the same keys, or the same name, so that at most one of them can exist.
    pub fn excludes(&self, other: &AssumedIndex) -> bool {
        let has_same_keys = self.table == other.table && self.def.keys == other.def.keys;
        has_same_keys || (self.table.schema == other.table.schema && self.def.name == other.def.name)
    }
}

/// The size of a tree with some columns of a table of size `total`, as the planner sees it now, and once all rows are on
/// disk, in bytes.
fn size(table: &Table, columns: &[Option<usize>], total: RangeEstimate) -> (RangeEstimate, u64) {
    let statistics = table.statistics.as_ref();
    let width = |column: Option<usize>| {
        let known = column.and_then(|column| statistics?.columns.get(column));
        known.map_or(WIDTH, |column| column.width.max(1.0))
    };
    let all: f64 = table.table_columns().into_iter().map(width).sum();
    let own: f64 = columns.iter().copied().map(width).sum();
    let bytes = total.bytes * (own / all.max(1.0)).min(1.0);
    let page_bytes = if total.pages > 0.0 { total.bytes / total.pages } else { PAGE_BYTES };
    let size = RangeEstimate { rows: total.rows, pages: (bytes / page_bytes).ceil(), bytes };
    (size, bytes.max(total.rows * own) as u64)
}
