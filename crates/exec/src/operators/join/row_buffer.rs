//! The buffer of a level: rows collected lookup by lookup, and built into a batch when there are many.
//!
//! A joined row is a pair of references, to an outer row and to a row decoded from the tree. The columns are built once, for
//! all rows of the buffer, when it is flushed. Outer rows that share a lookup share its decoded rows.
//!
//! A left outer join with a filter passes an outer row on with nulls if *none* of its matches passes the filter. The matches
//! of a row may be spread over several flushes. A [`MatchTracker`] per lookup counts the match ranges that are still to be
//! filtered, plus one while the lookup runs. The decrement to zero adds the rows without a match. Semi and anti joins pass
//! rows on in the same way, *single*: without a match's columns. Their joined rows are filtered and dropped.
//!
//! Invariants: the buffer of a step has one outer and one inner reference per joined row; the buffer of the driver has no
//! outer references. Inner references are below `decoded`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow_select::concat::concat_batches;
use arrow_select::filter::FilterBuilder;
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use keyaki_store::{Chunk, ColumnBuilder};

use super::outer_batch::{Lookup, OuterBatch};
use super::plan::LevelPlan;
use crate::base::{Error, Join, Result, batch, compact, evaluate, memory_bytes};
use crate::query::{Charge, Flow};

/// Rows decoded from the tree that a buffer may hold: references are 32-bit.
const INNER_ROWS_MAX: usize = u32::MAX as usize;

/// Bytes of the references of a row.
const REFERENCE_BYTES_PER_ROW: usize = size_of::<(usize, usize)>() + size_of::<u32>();

/// Latest outer batches among which a reference to the same batch is searched.
const OUTER_BATCHES_SEARCHED: usize = 4;

/// Records which outer rows of a lookup have a match that passes the filter.
#[derive(Debug)]
pub(crate) struct MatchTracker {
    lookup: Lookup,
    /// By position in [`Lookup::rows`].
    matched: Vec<AtomicBool>,
    /// Match ranges of the lookup in buffers, plus one while it runs.
    pending: AtomicUsize,
}

impl MatchTracker {
    /// The tracker of a running lookup.
    pub fn new(lookup: &Lookup) -> Arc<Self> {
        let matched = lookup.rows().iter().map(|_| AtomicBool::new(false)).collect();
        Arc::new(MatchTracker { lookup: lookup.clone(), matched, pending: AtomicUsize::new(1) })
    }

    /// Settles one match range, or the lookup itself. The last call returns the rows that continue single: those with a
    /// match after a semi join, those without one after others.
    pub fn settle(&self, join: Join) -> Option<Vec<u32>> {
        let before = self.pending.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a lookup was settled twice");
        (before == 1).then(|| {
            let rows = self.lookup.rows().iter().zip(&self.matched);
            let single = |matched: &AtomicBool| matched.load(Ordering::Relaxed) == (join == Join::LeftSemi);
            rows.filter(|(_, matched)| single(matched)).map(|(&row, _)| row).collect()
        })
    }

    /// True if each row has a match already.
    pub fn all_matched(&self) -> bool {
        self.matched.iter().all(|matched| matched.load(Ordering::Relaxed))
    }
}

/// Rows of a buffer that pair one outer row of a lookup with matches.
#[derive(Debug)]
struct MatchRange {
    tracker: Arc<MatchTracker>,
    /// Position of the outer row in [`Lookup::rows`].
    position: usize,
    rows: Range<usize>,
}

/// References to outer rows in the form that `interleave` takes: (index into `batches`, row).
#[derive(Debug, Default)]
struct OuterRows {
    batches: Vec<Arc<OuterBatch>>,
    /// Outer rows of joined rows.
    joined: Vec<(usize, usize)>,
    /// Rows that continue without a match's columns; they are not filtered.
    single: Vec<(usize, usize)>,
}

impl OuterRows {
    fn index_of(&mut self, outer: &Arc<OuterBatch>) -> usize {
        // Lookups of one batch tend to end together, so the batch is among the latest if it is there. A second reference
        // to the same batch is correct, too.
        let mut latest = self.batches.iter().rev().take(OUTER_BATCHES_SEARCHED);
        match latest.position(|other| Arc::ptr_eq(other, outer)) {
            Some(back) => self.batches.len() - 1 - back,
            None => {
                self.batches.push(outer.clone());
                self.batches.len() - 1
            }
        }
    }

    fn build_column(&self, column: usize, rows: &[(usize, usize)]) -> Result<ArrayRef> {
        let arrays: Vec<&dyn Array> = self.batches.iter().map(|outer| &**outer.batch.column(column)).collect();
        Ok(compact(interleave(&arrays, rows)?))
    }
}

/// Rows collected for a level.
#[derive(Debug)]
pub(crate) struct RowBuffer {
    outer: OuterRows,
    /// The inner row of each joined row.
    inner: Vec<u32>,
    /// `inner` is 0, 1, 2 …
    is_inner_identity: bool,
    builders: Vec<ColumnBuilder>,
    /// Rows in `builders`.
    decoded: usize,
    match_ranges: Vec<MatchRange>,
    charge: Charge,
}

/// Rows taken out of a buffer.
#[derive(Debug)]
pub(crate) struct BufferContents {
    outer: OuterRows,
    /// The inner row of each joined row; `None` if they are all decoded rows in order.
    inner: Option<Vec<u32>>,
    columns: Vec<ArrayRef>,
    /// Joined rows.
    rows: usize,
    match_ranges: Vec<MatchRange>,
    _charge: Charge,
}

impl RowBuffer {
    pub fn new(plan: &LevelPlan, flow: &Arc<Flow>, level: usize) -> Self {
        RowBuffer {
            outer: OuterRows::default(),
            inner: Vec::new(),
            is_inner_identity: true,
            builders: plan.inner_types.iter().map(|&ty| ColumnBuilder::new(ty, 0)).collect(),
            decoded: 0,
            match_ranges: Vec::new(),
            charge: Charge::new(flow, level),
        }
    }

    /// Rows so far, before the filter.
    pub fn rows(&self) -> usize {
        self.inner.len() + self.outer.single.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    fn update_charge(&mut self) {
        self.charge.set(memory_bytes(&self.builders) + REFERENCE_BYTES_PER_ROW * self.rows());
    }

    /// Appends the rows of a chunk of the driver.
    pub fn append_driver(&mut self, plan: &LevelPlan, chunk: &Chunk) -> Result<()> {
        self.decode(plan, chunk)?;
        self.inner.extend(self.inner.len() as u32..self.decoded as u32);
        self.update_charge();
        Ok(())
    }

    /// Joins the rows of `lookup`, from position `from` on, with the rows of `chunk`, until the buffer is full (it always
    /// takes one outer row). Returns the position at which to continue.
    pub fn append_matches(
        &mut self,
        plan: &LevelPlan,
        lookup: &Lookup,
        from: usize,
        chunk: &Chunk,
        tracker: Option<&Arc<MatchTracker>>,
    ) -> Result<usize> {
        let first = self.decoded;
        self.decode(plan, chunk)?;
        let outer = self.outer.index_of(&lookup.outer);
        let rows = lookup.rows();
        let mut position = from;
        while position < rows.len() && (position == from || self.rows() < plan.flush_rows) {
            let start = self.inner.len();
            self.is_inner_identity &= start == first;
            self.inner.extend(first as u32..self.decoded as u32);
            let outer_row = (outer, rows[position] as usize);
            self.outer.joined.resize(self.inner.len(), outer_row);
            if let Some(tracker) = tracker {
                tracker.pending.fetch_add(1, Ordering::Relaxed);
                let rows = start..self.inner.len();
                self.match_ranges.push(MatchRange { tracker: tracker.clone(), position, rows });
            }
            position += 1;
        }
        self.update_charge();
        Ok(position)
    }

    /// Appends outer rows that continue without the columns of a match.
    pub fn append_single(&mut self, outer: &Arc<OuterBatch>, rows: &[u32]) {
        if !rows.is_empty() {
            let outer = self.outer.index_of(outer);
            self.outer.single.extend(rows.iter().map(|&row| (outer, row as usize)));
            self.update_charge();
        }
    }

    fn decode(&mut self, plan: &LevelPlan, chunk: &Chunk) -> Result<()> {
        let rows = self.decoded + chunk.rows();
        if rows > INNER_ROWS_MAX {
            return Err(Error::TooManyRows { rows, limit: INNER_ROWS_MAX });
        }
        chunk.append_to(&plan.inner_columns, &mut self.builders)?;
        self.decoded = rows;
        debug_assert!(self.builders.iter().all(|builder| builder.len() == rows), "a column for each decoded row");
        Ok(())
    }

    /// Empties the buffer.
    pub fn take(&mut self, flow: &Arc<Flow>, level: usize) -> BufferContents {
        let inner = std::mem::take(&mut self.inner);
        let outer = std::mem::take(&mut self.outer);
        // Level 0 holds rows of the driver, which have no outer rows.
        assert_eq!(outer.joined.len(), if level == 0 { 0 } else { inner.len() }, "outer rows of level {level}");
        assert!(!self.is_inner_identity || inner.len() == self.decoded, "decoded rows of level {level}");
        let contents = BufferContents {
            rows: inner.len(),
            outer,
            inner: (!self.is_inner_identity).then_some(inner),
            columns: self.builders.iter_mut().map(ColumnBuilder::finish).collect(),
            match_ranges: std::mem::take(&mut self.match_ranges),
            _charge: std::mem::replace(&mut self.charge, Charge::new(flow, level)),
        };
        self.is_inner_identity = true;
        self.decoded = 0;
        contents
    }
}

impl BufferContents {
    /// The batch of the level: filtered, reduced to the columns it keeps, with the rows that continue with nulls at the end.
    pub fn finish(mut self, plan: &LevelPlan) -> Result<RecordBatch> {
        let joined = match &plan.filter {
            Some(filter) if self.rows > 0 => {
                let all: Vec<usize> = (0..plan.all.fields().len()).collect();
                let all = batch(&plan.all, self.build_columns(plan, &all)?, self.rows)?;
                let mask = evaluate(&**filter, &all)?;
                self.settle_matches(&mask, plan.join);
                match plan.join.is_existence() {
                    true => RecordBatch::new_empty(plan.schema.clone()),
                    false => filter_and_keep(plan, &all, &mask)?,
                }
            }
            _ if plan.join.is_existence() => RecordBatch::new_empty(plan.schema.clone()),
            _ => {
                let columns = match &plan.keep {
                    Some(keep) => self.build_columns(plan, keep)?,
                    None => self.build_columns(plan, &(0..plan.all.fields().len()).collect::<Vec<_>>())?,
                };
                batch(&plan.schema, columns, self.rows)?
            }
        };
        if self.outer.single.is_empty() {
            return Ok(joined);
        }
        let single = self.build_single(plan)?;
        if joined.num_rows() == 0 { Ok(single) } else { Ok(concat_batches(&plan.schema, [&joined, &single])?) }
    }

    /// Columns of the joined rows.
    fn build_columns(&self, plan: &LevelPlan, wanted: &[usize]) -> Result<Vec<ArrayRef>> {
        let indices = self.inner.as_ref().map(|inner| UInt32Array::from(inner.clone()));
        let column = |&column: &usize| match (column.checked_sub(plan.outer_columns), &indices) {
            (None, _) if self.rows == 0 => Ok(new_null_array(plan.all.field(column).data_type(), 0)),
            (None, _) => self.outer.build_column(column, &self.outer.joined),
            (Some(inner), None) => Ok(self.columns[inner].clone()),
            (Some(inner), Some(indices)) => Ok(compact(take(&self.columns[inner], indices, None)?)),
        };
        wanted.iter().map(column).collect()
    }

    /// Records which outer rows have a match. When a lookup is settled, adds its single rows.
    fn settle_matches(&mut self, mask: &BooleanArray, join: Join) {
        for range in std::mem::take(&mut self.match_ranges) {
            if range.rows.into_iter().any(|row| mask.value(row)) {
                range.tracker.matched[range.position].store(true, Ordering::Relaxed);
            }
            if let Some(single) = range.tracker.settle(join) {
                let outer = self.outer.index_of(&range.tracker.lookup.outer);
                self.outer.single.extend(single.into_iter().map(|row| (outer, row as usize)));
            }
        }
    }

    /// The batch of the single rows.
    fn build_single(&self, plan: &LevelPlan) -> Result<RecordBatch> {
        let rows = &self.outer.single;
        let column = |column: usize| match column.checked_sub(plan.outer_columns) {
            None => self.outer.build_column(column, rows),
            Some(_) => Ok(new_null_array(plan.all.field(column).data_type(), rows.len())),
        };
        let columns = match &plan.keep {
            Some(keep) => keep.iter().map(|&kept| column(kept)).collect::<Result<_>>()?,
            None => (0..plan.all.fields().len()).map(column).collect::<Result<_>>()?,
        };
        batch(&plan.schema, columns, rows.len())
    }
}

/// The rows of `all` that pass, reduced to the columns that the level keeps.
fn filter_and_keep(plan: &LevelPlan, all: &RecordBatch, mask: &BooleanArray) -> Result<RecordBatch> {
    let count = mask.true_count();
    let kept: Vec<ArrayRef> = match &plan.keep {
        Some(keep) => keep.iter().map(|&column| all.column(column).clone()).collect(),
        None => all.columns().to_vec(),
    };
    if count == all.num_rows() {
        return batch(&plan.schema, kept, count);
    }
    let predicate = FilterBuilder::new(mask).optimize().build();
    let columns = kept.iter().map(|column| Ok(compact(predicate.filter(column)?))).collect::<Result<_>>()?;
    batch(&plan.schema, columns, count)
}
