//! Rows on their way to a level: collected lookup by lookup, made into a batch when there are many.
//!
//! A joined row is a pair of references, to an outer row and to a row decoded from the tree; columns are gathered once,
//! for all rows of the buffer, when it is flushed. Outer rows that share a lookup share its decoded rows.
//!
//! A left outer join with a filter must know of each outer row whether *any* of its matches passes, and these may be
//! spread over several flushes. A [`Matches`] per lookup counts those that are still to be evaluated (plus one while the
//! lookup runs); whoever brings the count to zero continues the rows without a match, with nulls.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow_select::concat::concat_batches;
use arrow_select::filter::FilterBuilder;
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use keyaki_store::{Chunk, ColumnBuilder};

use super::outer::{Lookup, Outer};
use super::plan::LevelPlan;
use crate::base::columns::{batch, builders, compact, evaluate, memory_bytes};
use crate::query::flow::{Charge, Flow};
use crate::{Error, Result};

/// Rows decoded from the tree that a buffer addresses at the most.
const INNER_ROWS_MAX: usize = u32::MAX as usize;

/// Which outer rows of a lookup have a match that passes the filter.
#[derive(Debug)]
pub(crate) struct Matches {
    lookup: Lookup,
    /// By position in [`Lookup::rows`].
    matched: Vec<AtomicBool>,
    /// Pieces of the lookup's result in buffers, plus one while it runs.
    pending: AtomicUsize,
}

impl Matches {
    pub fn new(lookup: &Lookup) -> Arc<Self> {
        let matched = lookup.rows().iter().map(|_| AtomicBool::new(false)).collect();
        Arc::new(Matches { lookup: lookup.clone(), matched, pending: AtomicUsize::new(1) })
    }

    /// Settles one piece, or the lookup itself. The last call (exactly one) gets the rows that have no match.
    pub fn settle(&self) -> Option<Vec<u32>> {
        let last = self.pending.fetch_sub(1, Ordering::AcqRel) == 1;
        last.then(|| {
            let rows = self.lookup.rows().iter().zip(&self.matched);
            rows.filter(|(_, matched)| !matched.load(Ordering::Relaxed)).map(|(&row, _)| row).collect()
        })
    }
}

/// Rows of a buffer that belong to one outer row of a lookup.
#[derive(Debug)]
struct Piece {
    matches: Arc<Matches>,
    position: usize,
    rows: Range<usize>,
}

/// References to outer rows, in the form that `interleave` takes: (index into `outers`, row).
#[derive(Debug, Default)]
struct OuterRows {
    outers: Vec<Arc<Outer>>,
    rows: Vec<(usize, usize)>,
    /// Rows that continue with nulls instead of a match; they are not filtered.
    lone: Vec<(usize, usize)>,
}

impl OuterRows {
    fn index_of(&mut self, outer: &Arc<Outer>) -> usize {
        // Lookups of one batch tend to end close together, so it is among the latest if it is there at all. (A batch
        // that is referred to twice does no harm.)
        let latest = self.outers.iter().rev().take(4).position(|other| Arc::ptr_eq(other, outer));
        match latest {
            Some(back) => self.outers.len() - 1 - back,
            None => {
                self.outers.push(outer.clone());
                self.outers.len() - 1
            }
        }
    }

    fn gather(&self, column: usize, rows: &[(usize, usize)]) -> Result<ArrayRef> {
        let arrays: Vec<&dyn Array> = self.outers.iter().map(|outer| &**outer.batch.column(column)).collect();
        Ok(compact(interleave(&arrays, rows)?))
    }
}

/// Rows collected for a level.
#[derive(Debug)]
pub(crate) struct Buffer {
    outer: OuterRows,
    /// The inner row of each joined row.
    inner: Vec<u32>,
    /// `inner` is 0, 1, 2 …
    straight: bool,
    builders: Vec<ColumnBuilder>,
    decoded: usize,
    pieces: Vec<Piece>,
    charge: Charge,
}

/// What was in a buffer.
#[derive(Debug)]
pub(crate) struct Collected {
    outer: OuterRows,
    inner: Option<Vec<u32>>,
    columns: Vec<ArrayRef>,
    rows: usize,
    pieces: Vec<Piece>,
    _charge: Charge,
}

impl Buffer {
    pub fn new(plan: &LevelPlan, flow: &Arc<Flow>, level: usize) -> Self {
        Buffer {
            outer: OuterRows::default(),
            inner: Vec::new(),
            straight: true,
            builders: builders(&plan.view, &plan.inner_columns),
            decoded: 0,
            pieces: Vec::new(),
            charge: Charge::new(flow, level),
        }
    }

    /// Rows so far, before the filter.
    pub fn rows(&self) -> usize {
        self.inner.len() + self.outer.lone.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    fn recharge(&mut self) {
        // A tuple and a number a row.
        self.charge.set(memory_bytes(&self.builders) + 20 * self.rows());
    }

    /// Appends the rows of a chunk of the driver.
    pub fn append_driver(&mut self, plan: &LevelPlan, chunk: &Chunk) -> Result<()> {
        self.decode(plan, chunk)?;
        self.inner.extend(self.inner.len() as u32..self.decoded as u32);
        self.recharge();
        Ok(())
    }

    /// Appends the pairs of rows of `lookup`, from position `from` on, with the rows of `chunk`, until the buffer is full
    /// (one outer row always fits). Returns the position to go on at.
    pub fn append_matches(
        &mut self,
        plan: &LevelPlan,
        lookup: &Lookup,
        from: usize,
        chunk: &Chunk,
        matches: Option<&Arc<Matches>>,
    ) -> Result<usize> {
        let first = self.decoded;
        self.decode(plan, chunk)?;
        let outer = self.outer.index_of(&lookup.outer);
        let rows = lookup.rows();
        let mut position = from;
        while position < rows.len() && (position == from || self.rows() < plan.flush_rows) {
            let start = self.inner.len();
            self.straight &= start == first;
            self.inner.extend(first as u32..self.decoded as u32);
            let outer_row = (outer, rows[position] as usize);
            self.outer.rows.resize(self.inner.len(), outer_row);
            if let Some(matches) = matches {
                matches.pending.fetch_add(1, Ordering::Relaxed);
                self.pieces.push(Piece { matches: matches.clone(), position, rows: start..self.inner.len() });
            }
            position += 1;
        }
        self.recharge();
        Ok(position)
    }

    /// Appends outer rows without a match.
    pub fn append_lone(&mut self, outer: &Arc<Outer>, rows: &[u32]) {
        if !rows.is_empty() {
            let outer = self.outer.index_of(outer);
            self.outer.lone.extend(rows.iter().map(|&row| (outer, row as usize)));
            self.recharge();
        }
    }

    fn decode(&mut self, plan: &LevelPlan, chunk: &Chunk) -> Result<()> {
        let rows = self.decoded + chunk.rows();
        if rows > INNER_ROWS_MAX {
            return Err(Error::Arrow(format!("{rows} rows in one batch")));
        }
        chunk.append_to(&plan.inner_columns, &mut self.builders)?;
        self.decoded = rows;
        Ok(())
    }

    /// Empties the buffer.
    pub fn take(&mut self, flow: &Arc<Flow>, level: usize) -> Collected {
        let inner = std::mem::take(&mut self.inner);
        let collected = Collected {
            rows: inner.len(),
            outer: std::mem::take(&mut self.outer),
            inner: (!self.straight || inner.len() != self.decoded).then_some(inner),
            columns: self.builders.iter_mut().map(ColumnBuilder::finish).collect(),
            pieces: std::mem::take(&mut self.pieces),
            _charge: std::mem::replace(&mut self.charge, Charge::new(flow, level)),
        };
        self.straight = true;
        self.decoded = 0;
        collected
    }
}

impl Collected {
    /// The batch of the level: filtered, reduced to the columns it keeps, with the rows that continue with nulls at the end.
    pub fn finish(mut self, plan: &LevelPlan) -> Result<RecordBatch> {
        let joined = match &plan.filter {
            Some(filter) if self.rows > 0 => {
                let all: Vec<usize> = (0..plan.all.fields().len()).collect();
                let all = batch(&plan.all, self.gather(plan, &all)?, self.rows)?;
                let mask = evaluate(&**filter, &all)?;
                self.settle(&mask);
                keep(plan, &all, &mask)?
            }
            _ => {
                let columns = match &plan.keep {
                    Some(keep) => self.gather(plan, keep)?,
                    None => self.gather(plan, &(0..plan.all.fields().len()).collect::<Vec<_>>())?,
                };
                batch(&plan.schema, columns, self.rows)?
            }
        };
        if self.outer.lone.is_empty() {
            return Ok(joined);
        }
        let lone = self.lone(plan)?;
        if joined.num_rows() == 0 { Ok(lone) } else { Ok(concat_batches(&plan.schema, [&joined, &lone])?) }
    }

    fn gather(&self, plan: &LevelPlan, wanted: &[usize]) -> Result<Vec<ArrayRef>> {
        let indices = self.inner.as_ref().map(|inner| UInt32Array::from(inner.clone()));
        let column = |&column: &usize| match (column.checked_sub(plan.outer_columns), &indices) {
            (None, _) if self.rows == 0 => Ok(new_null_array(plan.all.field(column).data_type(), 0)),
            (None, _) => self.outer.gather(column, &self.outer.rows),
            (Some(inner), None) => Ok(self.columns[inner].clone()),
            (Some(inner), Some(indices)) => Ok(compact(take(&self.columns[inner], indices, None)?)),
        };
        wanted.iter().map(column).collect()
    }

    /// Notes which outer rows have a match, and adds to the lone rows those that turn out to have none.
    fn settle(&mut self, mask: &BooleanArray) {
        for piece in std::mem::take(&mut self.pieces) {
            if piece.rows.into_iter().any(|row| mask.value(row)) {
                piece.matches.matched[piece.position].store(true, Ordering::Relaxed);
            }
            if let Some(unmatched) = piece.matches.settle() {
                let outer = self.outer.index_of(&piece.matches.lookup.outer);
                self.outer.lone.extend(unmatched.into_iter().map(|row| (outer, row as usize)));
            }
        }
    }

    fn lone(&self, plan: &LevelPlan) -> Result<RecordBatch> {
        let rows = &self.outer.lone;
        let column = |column: usize| match column.checked_sub(plan.outer_columns) {
            None => self.outer.gather(column, rows),
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
fn keep(plan: &LevelPlan, all: &RecordBatch, mask: &BooleanArray) -> Result<RecordBatch> {
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
