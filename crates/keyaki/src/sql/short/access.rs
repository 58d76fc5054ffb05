//! Access by key: rows of one table found by key, from cached pages, on the calling thread.
//!
//! A [`Access`] is made from the conjuncts `column = constant` of a statement. Its candidates are the trees of the table
//! whose leading key columns these conjuncts fix. At execution, the values of the parameters give a key or a prefix of
//! keys; the candidate with the fewest estimated rows is read. If an index lacks columns, each of its entries starts a
//! lookup in the table.

use std::ops::Bound;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat_batches;
use futures::StreamExt;
use keyaki_exec::{Driver, ExecutionMode, Executor, Join, KeyPart, Pipeline, Scan, Step};
use keyaki_store::{
    ColumnBuilder, Direction, Error as StoreError, KeyRange, Page, PageRef, PageSource, Priority, Schema, Store,
    TreeId, TreeView, block_on,
};

use crate::catalog::Table;
use crate::engine::{Moment, Unusable};
use crate::{Error, Result};

/// Maximum number of rows that a statement reads on the short path.
const ROWS_MAX: usize = 512;
/// Memory of the executor's pipeline for the rows of one statement.
const PIPELINE_BYTES: usize = 16 << 20;
/// Capacity of the arrays for the rows found.
const ROWS_EXPECTED: usize = 8;

/// The value that a key column must equal.
#[derive(Debug, Clone)]
pub(super) enum KeySource {
    /// The parameter with this index.
    Parameter(usize),
    /// An array of one value of the column's type.
    Constant(ArrayRef),
}

/// The condition `column = source`. `column` is a table column; `None` is the hidden rowid.
#[derive(Debug, Clone)]
pub(super) struct Equality {
    pub column: Option<usize>,
    pub source: KeySource,
}

/// Access to the rows of a table by key.
#[derive(Debug)]
pub(super) struct Access {
    table: Arc<Table>,
    /// The table columns to read; `None` is the hidden rowid.
    columns: Vec<Option<usize>>,
    candidates: Vec<Candidate>,
}

/// A tree whose leading key columns are fixed.
#[derive(Debug)]
struct Candidate {
    tree: TreeId,
    /// The leading key columns that are fixed, as table columns; `None` is the hidden rowid.
    fixed: Vec<Option<usize>>,
    /// Their values.
    key: Vec<KeySource>,
    /// `key` has all columns of the tree's key: there is at most one row.
    whole_key: bool,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// The tree has all columns; their positions in it.
    Covering(Vec<usize>),
    /// The positions of the columns of the table's key in the tree of an index.
    Lookup(Vec<usize>),
}

/// The result of an access.
#[derive(Debug)]
pub(super) enum Found {
    /// One array for each column of the access, and the number of rows.
    Rows(Vec<ArrayRef>, usize),
    /// A page is not cached: the executor has to read the rows.
    NotCached(Box<Uncached>),
    /// There are too many rows: the long path has to read them.
    Refused,
}

/// A query of the executor that reads the same rows.
#[derive(Debug)]
pub(super) enum Uncached {
    Scan(Scan),
    Pipeline(Pipeline),
}

impl Access {
    /// An access to `columns` of the rows that satisfy `equalities`; `None` if these fix no leading key column of a
    /// usable tree.
    pub fn new(
        table: &Arc<Table>,
        columns: Vec<Option<usize>>,
        equalities: &[Equality],
        unusable: &Unusable,
    ) -> Option<Access> {
        let def = &table.def;
        let own_key: Vec<Option<usize>> = table.table_columns()[..table.schema.key_columns()].to_vec();
        let mut candidates = Vec::new();
        for index in std::iter::once(None).chain((0..def.indexes.len()).map(Some)) {
            let (tree, tree_columns, schema): (_, _, &Schema) = match index {
                None => (def.tree, table.table_columns(), &table.schema),
                Some(i) => (def.indexes[i].tree, table.index_columns(i), &table.index_schemas[i]),
            };
            if unusable.contains_key(&tree) {
                continue;
            }
            let key = fixed_columns(&tree_columns[..schema.key_columns()], equalities);
            if key.is_empty() {
                continue;
            }
            let places = |wanted: &[Option<usize>]| -> Option<Vec<usize>> {
                wanted.iter().map(|column| tree_columns.iter().position(|c| c == column)).collect()
            };
            let source = match (places(&columns), index) {
                (Some(places), _) => Source::Covering(places),
                // The tree of an index has all columns of the table's key.
                (None, Some(_)) => Source::Lookup(places(&own_key)?),
                (None, None) => return None,
            };
            let whole_key = key.len() == schema.key_columns();
            let fixed = tree_columns[..key.len()].to_vec();
            candidates.push(Candidate { tree, fixed, key, whole_key, source });
        }
        // A whole key of the table itself needs no comparison with others.
        if let Some(i) = candidates.iter().position(|c| c.whole_key && matches!(c.source, Source::Covering(_))) {
            candidates = vec![candidates.swap_remove(i)];
        }
        (!candidates.is_empty()).then(|| Access { table: table.clone(), columns, candidates })
    }

    /// True if every row that the access returns satisfies the equality of this column.
    pub fn answers(&self, column: Option<usize>) -> bool {
        self.candidates.iter().all(|candidate| candidate.fixed.contains(&column))
    }

    /// Reads the rows as of `moment`. `parameters` has an array of one value, of the type that the plan assumes, for
    /// each parameter.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn read(&self, store: &Store, moment: &mut Moment, parameters: &[ArrayRef]) -> Result<Found> {
        for candidate in &self.candidates {
            moment.prepare(candidate.tree)?;
            if matches!(candidate.source, Source::Lookup(_)) {
                moment.prepare(self.table.def.tree)?;
            }
        }
        let view_of = |tree: TreeId| moment.view(tree).ok_or_else(|| mismatch("trees"));
        let mut best: Option<(f64, &Candidate, &TreeView, Vec<u8>)> = None;
        for candidate in &self.candidates {
            let view = view_of(candidate.tree)?;
            let Some(key) = candidate.bind(view, parameters) else {
                // A comparison with null is never true.
                return Ok(Found::Rows(self.builders().iter_mut().map(ColumnBuilder::finish).collect(), 0));
            };
            // The only candidate needs no estimate.
            let rows = match candidate.whole_key || self.candidates.len() == 1 {
                true => 1.0,
                false => view.estimate(&KeyRange::prefix(key.clone())).rows,
            };
            if best.as_ref().is_none_or(|(least, ..)| rows < *least) {
                best = Some((rows, candidate, view, key));
            }
        }
        let Some((rows, candidate, view, key)) = best else { return Ok(Found::Refused) };
        if rows > ROWS_MAX as f64 {
            return Ok(Found::Refused);
        }
        let range = match candidate.whole_key {
            true => KeyRange { start: Bound::Included(key.clone()), end: Bound::Included(key) },
            false => KeyRange::prefix(key),
        };
        let pages = CachedPages { store };
        let found = match &candidate.source {
            Source::Covering(places) => {
                let mut builders = self.builders();
                collect(view, &pages, &range, places, &mut builders, ROWS_MAX).map(|rows| Some((builders, rows)))
            }
            Source::Lookup(places) => self.look_up(view, view_of(self.table.def.tree)?, &pages, &range, places),
        };
        match found {
            Ok(Some((mut builders, rows))) if rows <= ROWS_MAX => {
                Ok(Found::Rows(builders.iter_mut().map(ColumnBuilder::finish).collect(), rows))
            }
            Ok(_) => Ok(Found::Refused),
            Err(error) if is_not_cached(&error) => Ok(match &candidate.source {
                Source::Covering(places) => Found::NotCached(Box::new(Uncached::Scan(Scan {
                    view: view.clone(),
                    ranges: vec![range],
                    direction: Direction::Ascending,
                    columns: places.clone(),
                    filter: None,
                    limit: Some(ROWS_MAX as u64 + 1),
                    batch_rows: ROWS_MAX + 1,
                }))),
                Source::Lookup(places) => {
                    let driver =
                        Driver { view: view.clone(), ranges: vec![range], columns: places.clone(), filter: None };
                    let columns = self.table_places();
                    let step = Step {
                        view: view_of(self.table.def.tree)?.clone(),
                        key: (0..places.len()).map(KeyPart::Column).collect(),
                        join: Join::Inner,
                        filter: None,
                        keep: Some((places.len()..places.len() + columns.len()).collect()),
                        columns,
                    };
                    Found::NotCached(Box::new(Uncached::Pipeline(Pipeline {
                        driver,
                        steps: vec![step],
                        mode: ExecutionMode::OutOfOrder,
                        batch_rows: ROWS_MAX + 1,
                        memory_bytes: PIPELINE_BYTES,
                    })))
                }
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the rows of [`Found::NotCached`]; `None` if there are too many.
    ///
    /// # Errors
    /// Errors of the executor.
    pub async fn read_uncached(&self, executor: &Executor, query: Uncached) -> Result<Option<(Vec<ArrayRef>, usize)>> {
        let mut rows = match query {
            Uncached::Scan(scan) => executor.scan(scan, ExecutionMode::OutOfOrder),
            Uncached::Pipeline(pipeline) => executor.pipeline(pipeline),
        };
        let (mut batches, mut len) = (Vec::new(), 0);
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            len += batch.num_rows();
            if len > ROWS_MAX {
                return Ok(None);
            }
            batches.push(batch);
        }
        let columns = match batches.as_slice() {
            [] => self.builders().iter_mut().map(ColumnBuilder::finish).collect(),
            [batch] => batch.columns().to_vec(),
            [first, ..] => concat_batches(&first.schema(), &batches)?.columns().to_vec(),
        };
        Ok(Some((columns, len)))
    }

    fn builders(&self) -> Vec<ColumnBuilder> {
        let ty = |column: &Option<usize>| match column {
            Some(column) => self.table.def.columns[*column].ty.column,
            None => keyaki_store::ColumnType::Int64,
        };
        self.columns.iter().map(|column| ColumnBuilder::new(ty(column), ROWS_EXPECTED)).collect()
    }

    /// Positions of the columns in the table's tree, which has all of them.
    fn table_places(&self) -> Vec<usize> {
        let tree_columns = self.table.table_columns();
        let place = |column: &Option<usize>| tree_columns.iter().position(|c| c == column).unwrap_or(usize::MAX);
        self.columns.iter().map(place).collect()
    }

    /// Reads index entries and the rows of the table that they refer to; `None` if there are too many.
    fn look_up(
        &self,
        index: &TreeView,
        table: &TreeView,
        pages: &CachedPages<'_>,
        range: &KeyRange,
        key_places: &[usize],
    ) -> std::result::Result<Option<(Vec<ColumnBuilder>, usize)>, StoreError> {
        let key_column = |&place: &usize| ColumnBuilder::new(index.schema().columns()[place].ty, ROWS_EXPECTED);
        let mut keys: Vec<ColumnBuilder> = key_places.iter().map(key_column).collect();
        let entries = collect(index, pages, range, key_places, &mut keys, ROWS_MAX)?;
        if entries > ROWS_MAX {
            return Ok(None);
        }
        let keys: Vec<ArrayRef> = keys.iter_mut().map(ColumnBuilder::finish).collect();
        let places = self.table_places();
        let mut builders = self.builders();
        let (mut rows, mut key) = (0, Vec::new());
        for entry in 0..entries {
            key.clear();
            table.key_codec().encode(&keys, entry, &mut key);
            let point = KeyRange { start: Bound::Included(key.clone()), end: Bound::Included(key.clone()) };
            rows += collect(table, pages, &point, &places, &mut builders, 1)?;
        }
        Ok(Some((builders, rows)))
    }
}

impl Candidate {
    /// The encoded key; `None` if a value of the key is null.
    fn bind(&self, view: &TreeView, parameters: &[ArrayRef]) -> Option<Vec<u8>> {
        let mut arrays = Vec::with_capacity(self.key.len());
        for source in &self.key {
            let array = match source {
                KeySource::Parameter(parameter) => &parameters[*parameter],
                KeySource::Constant(array) => array,
            };
            if array.is_null(0) {
                return None;
            }
            arrays.push(array.clone());
        }
        let mut key = Vec::with_capacity(32);
        view.key_codec().encode(&arrays, 0, &mut key);
        Some(key)
    }
}

/// The sources of the leading key columns that equalities fix.
fn fixed_columns(key: &[Option<usize>], equalities: &[Equality]) -> Vec<KeySource> {
    let source = |column: &Option<usize>| equalities.iter().find(|e| e.column == *column).map(|e| e.source.clone());
    key.iter().map_while(source).collect()
}

/// Appends the columns at `places` of the rows in `range`. Returns their number; stops after more than `rows_max`.
fn collect(
    view: &TreeView,
    pages: &CachedPages<'_>,
    range: &KeyRange,
    places: &[usize],
    builders: &mut [ColumnBuilder],
    rows_max: usize,
) -> std::result::Result<usize, StoreError> {
    let mut cursor = view.cursor(pages, range.clone(), Direction::Ascending);
    let mut rows = 0;
    while let Some(chunk) = block_on(cursor.next())? {
        rows += chunk.rows();
        if rows > rows_max {
            break;
        }
        chunk.append_to(places, builders)?;
    }
    Ok(rows)
}

/// A source of cached pages, which fails on a cache miss.
struct CachedPages<'a> {
    store: &'a Store,
}

/// The error of a cache miss.
#[derive(Debug, thiserror::Error)]
#[error("page is not cached")]
struct NotCached;

fn is_not_cached(error: &StoreError) -> bool {
    matches!(error, StoreError::PageSource(cause) if cause.is::<NotCached>())
}

impl PageSource for CachedPages<'_> {
    async fn page(&self, page: PageRef, _: &Arc<Schema>, _: Priority) -> std::result::Result<Arc<Page>, StoreError> {
        self.store.cache().get(page.offset).ok_or_else(|| StoreError::PageSource(Arc::new(NotCached)))
    }

    fn prefetch(&self, _: &[PageRef], _: &Arc<Schema>) {}
}

/// The error for arrays that do not match the plan.
pub(super) fn mismatch(what: &str) -> Error {
    Error::Internal(format!("a plan of the short path does not match its {what}"))
}
