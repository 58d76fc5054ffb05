//! Access by key: rows of one table found by key, from cached pages, on the calling thread.
//!
//! An [`Access`] is made from the conditions of a statement on single columns. Its candidates are the trees of the table
//! on whose leading key columns there are conditions ([`Key`]). If the statement needs only the first rows in an order,
//! trees in this order are candidates too: reading stops after these rows. At execution, the values of the parameters
//! give ranges of keys; the candidate with the fewest estimated rows is read. If an index lacks columns, each of its
//! entries starts a lookup in the table.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use futures::StreamExt;
use keyaki_exec::{Driver, DriverScan, ExecutionMode, Executor, Join, KeyPart, Pipeline, Scan, Step};
use keyaki_store::{
    ColumnBuilder, ColumnType, Direction, Error as StoreError, KeyRange, Schema, Store, TreeId, TreeView,
};

use super::keys::{Condition, Key, Values};
use super::order::First;
use super::pages::{CachedPages, collect, is_not_cached};
use super::steps::Rows;
use crate::catalog::Table;
use crate::engine::Moment;
use crate::{Error, Result};

/// Maximum number of rows that a statement reads on the short path.
pub(super) const ROWS_MAX: usize = 512;
/// Maximum number of key ranges that a lookup of several rows reads.
const RANGES_TRIED_MAX: usize = 4 * ROWS_MAX;
/// Maximum number of ranges that are estimated; they stand for the others.
const ESTIMATES_MAX: usize = 8;
/// Memory of the executor's pipeline for the rows of one statement.
const PIPELINE_BYTES: usize = 16 << 20;
/// Capacity of the arrays for the rows found.
const ROWS_EXPECTED: usize = 8;

/// Access to the rows of a table by key.
#[derive(Debug)]
pub(super) struct Access {
    table: Arc<Table>,
    /// The table columns to read; `None` is the hidden rowid.
    columns: Vec<Option<usize>>,
    candidates: Vec<Candidate>,
}

/// A tree with conditions on its leading key columns, or in the order of the statement.
#[derive(Debug)]
struct Candidate {
    tree: TreeId,
    key: Key,
    source: Source,
    stop: Option<Stop>,
}

#[derive(Debug)]
enum Source {
    /// The tree has all columns; their positions in it.
    Covering(Vec<usize>),
    /// The positions of the columns of the table's key in the tree of an index.
    Lookup(Vec<usize>),
}

/// The tree is in the order of the statement, which needs its first rows only.
#[derive(Debug, Clone, Copy)]
struct Stop {
    direction: Direction,
    /// Number of rows to read. More than the statement needs if not all rows satisfy its conditions.
    rows: usize,
}

/// The result of an access.
#[derive(Debug)]
pub(super) enum Found<T> {
    Rows(T),
    /// A page is not cached: the executor has to read the rows.
    NotCached(Box<Uncached>),
    /// There are too many rows: the long path has to read them.
    Refused,
}

impl<T> Found<T> {
    /// Converts the rows; `None` refuses them.
    pub fn try_map<U>(self, convert: impl FnOnce(T) -> Result<Option<U>>) -> Result<Found<U>> {
        Ok(match self {
            Found::Rows(rows) => convert(rows)?.map_or(Found::Refused, Found::Rows),
            Found::NotCached(query) => Found::NotCached(query),
            Found::Refused => Found::Refused,
        })
    }
}

/// Rows of the access.
#[derive(Debug)]
pub(super) struct Part {
    /// One array for each column of the access.
    pub columns: Vec<ArrayRef>,
    pub len: usize,
    /// False if there may be further rows, which are behind these in the order of the statement.
    pub complete: bool,
}

/// A query of the executor that reads the same rows.
#[derive(Debug)]
pub(super) struct Uncached {
    query: Query,
    rows_max: usize,
    stops: bool,
}

#[derive(Debug)]
enum Query {
    Scan(Scan),
    Pipeline(Pipeline),
}

/// The candidate to read, with its ranges of keys.
struct Chosen<'a> {
    candidate: &'a Candidate,
    view: &'a TreeView,
    ranges: Vec<KeyRange>,
    /// The table, for lookups of index entries.
    table: &'a TreeView,
}

impl Access {
    /// An access to `columns` of the rows that satisfy `conditions`; `None` if these are not on leading key columns of a
    /// usable tree: the table's, or that of an index for which `is_usable`. `first` are the rows that the statement needs, if
    /// it needs no others; `exact`: it has no other conditions.
    pub fn new(
        table: &Arc<Table>,
        columns: Vec<Option<usize>>,
        conditions: &[Condition],
        (first, exact): (Option<&First>, bool),
        is_usable: impl Fn(usize) -> bool,
    ) -> Option<Access> {
        let def = &table.def;
        let own_key: Vec<Option<usize>> = table.table_columns()[..table.schema.key_columns()].to_vec();
        let mut candidates = Vec::new();
        for index in std::iter::once(None).chain((0..def.indexes.len()).map(Some)) {
            let (tree, tree_columns, schema): (_, _, &Schema) = match index {
                None => (def.tree, table.table_columns(), &table.schema),
                Some(i) => (def.indexes[i].tree, table.index_columns(i), &table.index_schemas[i]),
            };
            if index.is_some_and(|index| !is_usable(index)) {
                continue;
            }
            let key = Key::new(schema, &tree_columns, conditions);
            let exact = exact && (0..conditions.len()).all(|condition| key.answers(condition));
            let stop = first.filter(|first| first.rows <= ROWS_MAX).and_then(|first| {
                let direction = first.direction(&key, schema, &tree_columns)?;
                Some(Stop { direction, rows: if exact { first.rows } else { ROWS_MAX } })
            });
            if key.is_empty() && (stop.is_none() || !exact) {
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
            let candidate = Candidate { tree, key, source, stop };
            let is_best = match candidate.source {
                Source::Covering(_) => candidate.key.is_one_row() || stop.is_some() && exact,
                Source::Lookup(_) => false,
            };
            candidates.push(candidate);
            // A row with a whole key, or the first rows of a tree, need no comparison with others.
            if is_best {
                candidates.drain(..candidates.len() - 1);
                break;
            }
        }
        (!candidates.is_empty()).then(|| Access { table: table.clone(), columns, candidates })
    }

    /// True if every row that the access returns satisfies the condition at this position.
    pub fn answers(&self, condition: usize) -> bool {
        self.candidates.iter().all(|candidate| candidate.key.answers(condition))
    }

    /// Reads the rows as of `moment`. `parameters` has an array of one value, of the type that the plan assumes, for
    /// each parameter.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn read(&self, store: &Store, moment: &mut Moment, parameters: &[ArrayRef]) -> Result<Found<Part>> {
        self.prepare(moment)?;
        let values = Values::of(parameters);
        let Some(chosen) = self.choose(moment, values)? else { return Ok(Found::Refused) };
        let mut builders = self.builders();
        let limits = chosen.candidate.limits();
        match self.collect(store, &chosen, limits, &mut builders) {
            Ok(len) => {
                let columns = builders.iter_mut().map(ColumnBuilder::finish).collect();
                Ok(part(columns, len, limits.1, chosen.candidate.stop.is_some()).map_or(Found::Refused, Found::Rows))
            }
            Err(error) if is_not_cached(&error) => Ok(self.uncached(chosen)),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the rows for each of the rows `outer`, on whose columns the keys depend. Returns also the position of the
    /// outer row for each row found.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn read_each(
        &self,
        store: &Store,
        moment: &mut Moment,
        parameters: &[ArrayRef],
        outer: &Rows,
    ) -> Result<Found<(Vec<ArrayRef>, Vec<u32>)>> {
        self.prepare(moment)?;
        let (mut builders, mut places) = (self.builders(), Vec::new());
        let values = |row| Values { parameters, columns: &outer.columns, row };
        if outer.len > 0 {
            let Some(mut chosen) = self.choose(moment, values(0))? else { return Ok(Found::Refused) };
            let Chosen { candidate, view, .. } = chosen;
            let mut tried = 0;
            for row in 0..outer.len {
                chosen.ranges = candidate.key.ranges(view.key_codec(), values(row));
                tried += chosen.ranges.len();
                // Lists give several ranges for each row.
                if tried + (outer.len - row - 1) * chosen.ranges.len() > RANGES_TRIED_MAX {
                    return Ok(Found::Refused);
                }
                let limits = (Direction::Ascending, ROWS_MAX + 1 - places.len());
                match self.collect(store, &chosen, limits, &mut builders) {
                    Ok(rows) => places.resize(places.len() + rows, row as u32),
                    Err(error) if is_not_cached(&error) => {
                        let rest = row..outer.len;
                        chosen.ranges = candidate.key.all_ranges(view.key_codec(), rest.map(values));
                        return Ok(self.uncached(chosen));
                    }
                    Err(error) => return Err(error.into()),
                }
                if places.len() > ROWS_MAX {
                    return Ok(Found::Refused);
                }
            }
        }
        Ok(Found::Rows((builders.iter_mut().map(ColumnBuilder::finish).collect(), places)))
    }

    /// True if every key of the access has at most one row.
    pub fn is_one_row(&self) -> bool {
        self.candidates.iter().all(|candidate| candidate.key.is_one_row())
    }

    /// Makes the trees available in `moment`.
    fn prepare(&self, moment: &mut Moment) -> Result<()> {
        for candidate in &self.candidates {
            moment.prepare(candidate.tree)?;
            if matches!(candidate.source, Source::Lookup(_)) {
                moment.prepare(self.table.def.tree)?;
            }
        }
        Ok(())
    }

    /// The candidate with the fewest estimated rows; `None` if there are too many.
    fn choose<'a>(&'a self, moment: &'a Moment, values: Values<'_>) -> Result<Option<Chosen<'a>>> {
        let mut best: Option<(f64, Chosen<'a>)> = None;
        for candidate in &self.candidates {
            let view = moment.view(candidate.tree).ok_or_else(|| mismatch("trees"))?;
            let ranges = candidate.key.ranges(view.key_codec(), values);
            // The only candidate needs no estimate.
            let rows = match self.candidates.len() == 1 {
                true => 0.0,
                false => candidate.estimate(view, &ranges),
            };
            if best.as_ref().is_none_or(|(least, _)| rows < *least) {
                let table = match &candidate.source {
                    Source::Covering(_) => view,
                    Source::Lookup(_) => moment.view(self.table.def.tree).ok_or_else(|| mismatch("trees"))?,
                };
                best = Some((rows, Chosen { candidate, view, ranges, table }));
            }
        }
        Ok(best.filter(|(rows, _)| *rows <= ROWS_MAX as f64).map(|(_, chosen)| chosen))
    }

    /// The query of the executor for rows that are not cached.
    fn uncached<T>(&self, chosen: Chosen<'_>) -> Found<T> {
        let Chosen { candidate, view, mut ranges, table } = chosen;
        let (direction, rows_max) = candidate.limits();
        let query = match &candidate.source {
            Source::Covering(places) => {
                if direction == Direction::Descending {
                    ranges.reverse();
                }
                Query::Scan(Scan {
                    view: view.clone(),
                    ranges,
                    direction,
                    columns: places.clone(),
                    filters: Vec::new(),
                    limit: Some(rows_max as u64),
                    batch_rows: rows_max.max(1),
                    // Lookups that find a page without some columns in the cache read it with all.
                    kept: (0..view.schema().columns().len()).collect(),
                })
            }
            // A pipeline has no order: it reads all rows.
            Source::Lookup(_) if candidate.stop.is_some() && rows_of(view, &ranges) > ROWS_MAX as f64 => {
                return Found::Refused;
            }
            Source::Lookup(places) => {
                let columns = self.table_places();
                let step = Step {
                    view: table.clone(),
                    key: (0..places.len()).map(KeyPart::Column).collect(),
                    join: Join::Inner,
                    filter: None,
                    keep: Some((places.len()..places.len() + columns.len()).collect()),
                    columns,
                };
                Query::Pipeline(Pipeline {
                    driver: Driver::Scan(DriverScan {
                        view: view.clone(),
                        ranges,
                        columns: places.clone(),
                        filter: None,
                    }),
                    steps: vec![step],
                    mode: ExecutionMode::OutOfOrder,
                    batch_rows: ROWS_MAX + 1,
                    memory_bytes: PIPELINE_BYTES,
                    whole_pages: true,
                })
            }
        };
        let (rows_max, stops) = match &query {
            Query::Scan(_) => (rows_max, candidate.stop.is_some()),
            Query::Pipeline(_) => (ROWS_MAX + 1, false),
        };
        Found::NotCached(Box::new(Uncached { query, rows_max, stops }))
    }

    /// Reads the rows of [`Found::NotCached`]; `None` if there are too many.
    ///
    /// # Errors
    /// Errors of the executor.
    pub async fn read_uncached(&self, executor: &Executor, uncached: Uncached) -> Result<Option<Part>> {
        let (rows_max, stops) = (uncached.rows_max, uncached.stops);
        let (batches, len) = uncached.read(executor).await?;
        if len > rows_max {
            return Ok(None);
        }
        let columns = match batches.as_slice() {
            [] => self.builders().iter_mut().map(ColumnBuilder::finish).collect(),
            [batch] => batch.columns().to_vec(),
            [first, ..] => concat_batches(&first.schema(), &batches)?.columns().to_vec(),
        };
        Ok(part(columns, len, rows_max, stops))
    }

    /// Appends the rows of the chosen ranges. Returns their number; ends after `rows_max`.
    ///
    /// # Errors
    /// The error of a cache miss, errors of the store.
    fn collect(
        &self,
        store: &Store,
        chosen: &Chosen<'_>,
        (direction, rows_max): (Direction, usize),
        builders: &mut [ColumnBuilder],
    ) -> std::result::Result<usize, StoreError> {
        let Chosen { candidate, view, ranges, table } = chosen;
        let pages = CachedPages { store };
        let key_places = match &candidate.source {
            Source::Covering(places) => {
                return collect(view, &pages, ranges, direction, places, builders, rows_max);
            }
            Source::Lookup(places) => places,
        };
        // Index entries, and the rows of the table that they refer to.
        let key_column = |&place: &usize| ColumnBuilder::new(view.schema().columns()[place].ty, ROWS_EXPECTED);
        let mut keys: Vec<ColumnBuilder> = key_places.iter().map(key_column).collect();
        let entries = collect(view, &pages, ranges, direction, key_places, &mut keys, rows_max)?;
        if entries > ROWS_MAX {
            return Ok(entries);
        }
        let keys: Vec<ArrayRef> = keys.iter_mut().map(ColumnBuilder::finish).collect();
        let places = self.table_places();
        let mut rows = 0;
        for entry in 0..entries {
            let mut key = Vec::with_capacity(32);
            table.key_codec().encode(&keys, entry, &mut key);
            let point = [KeyRange::point(key)];
            rows += collect(table, &pages, &point, Direction::Ascending, &places, builders, 1)?;
        }
        Ok(rows)
    }

    fn builders(&self) -> Vec<ColumnBuilder> {
        let ty = |column: &Option<usize>| column.map_or(ColumnType::Int64, |c| self.table.def.columns[c].ty.column);
        self.columns.iter().map(|column| ColumnBuilder::new(ty(column), ROWS_EXPECTED)).collect()
    }

    /// Positions of the columns in the table's tree, which has all of them.
    fn table_places(&self) -> Vec<usize> {
        let tree_columns = self.table.table_columns();
        let place = |column: &Option<usize>| tree_columns.iter().position(|c| c == column).unwrap_or(usize::MAX);
        self.columns.iter().map(place).collect()
    }
}

impl Uncached {
    /// Reads the rows and, if there are more, ends after `rows_max` or somewhat more.
    ///
    /// # Errors
    /// Errors of the executor.
    pub async fn read(self, executor: &Executor) -> Result<(Vec<RecordBatch>, usize)> {
        let mut rows = match self.query {
            Query::Scan(scan) => executor.scan(scan, ExecutionMode::OutOfOrder),
            Query::Pipeline(pipeline) => executor.pipeline(pipeline),
        };
        let (mut batches, mut len) = (Vec::new(), 0);
        while len < self.rows_max
            && let Some(batch) = rows.next().await
        {
            let batch = batch?;
            len += batch.num_rows();
            batches.push(batch);
        }
        Ok((batches, len))
    }
}

impl Candidate {
    /// The direction of the reads, and the number of rows after which they end.
    fn limits(&self) -> (Direction, usize) {
        match self.stop {
            Some(stop) => (stop.direction, stop.rows),
            None => (Direction::Ascending, ROWS_MAX + 1),
        }
    }

    /// Estimated number of rows to read.
    fn estimate(&self, view: &TreeView, ranges: &[KeyRange]) -> f64 {
        if self.key.is_whole() {
            return ranges.len() as f64;
        }
        let rows = rows_of(view, ranges);
        self.stop.map_or(rows, |stop| rows.min(stop.rows as f64))
    }
}

/// Estimated number of rows in ranges of keys.
fn rows_of(view: &TreeView, ranges: &[KeyRange]) -> f64 {
    let sample = &ranges[..ranges.len().min(ESTIMATES_MAX)];
    let rows: f64 = sample.iter().map(|range| view.estimate(range).rows).sum();
    rows * ranges.len() as f64 / sample.len().max(1) as f64
}

/// The rows of a read that ended after `rows_max` rows; `None` if these are too many.
fn part(columns: Vec<ArrayRef>, len: usize, rows_max: usize, stops: bool) -> Option<Part> {
    let complete = len < rows_max;
    (complete || stops).then_some(Part { columns, len, complete })
}

/// The error for arrays that do not match the plan.
pub(super) fn mismatch(what: &str) -> Error {
    Error::Internal(format!("a plan of the short path does not match its {what}"))
}
