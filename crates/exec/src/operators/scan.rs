//! Scans of one tree, in key order.
//!
//! The cursor runs, and decodes, on the thread that polls the stream; only reads go through the workers, which keep pages
//! coming ahead of the cursor. So a scan of cached pages involves no other thread, and one that reads is woken about once
//! per coalesced read. In-order scans run on a thread of their own, which blocks on reads.
//!
//! Chunks are collected into groups. Filters are evaluated one after another, over a whole group, or over the rows that
//! have passed the others if these are few. The columns that no filter sees are decoded only for the rows that pass.
//! The first groups and batches are small, so that the first rows come early, and each further batch is four times as
//! large, up to the full size.
//!
//! A scan of no columns counts rows: pages between the ends of its ranges are not read.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use arrow_schema::SchemaRef;
use arrow_select::filter::{FilterBuilder, FilterPredicate};
use keyaki_llc::software::ScanMethod;
use keyaki_primitives::sync::Mutex;
use keyaki_store::{Chunk, ColumnBuilder, PageSource, Projection};

use crate::base::{Filter, Result, Scan, batch, builders, compact, evaluate, panicked, project};
use crate::query::{CacheUse, InOrderQuery, Query, evict_behind, prefetch_next};
use crate::source::TaskPages;

/// Rows of the first batch.
const FIRST_ROWS: usize = 256;
/// Growth of a batch over the one before.
const BATCH_GROWTH: usize = 4;
/// Groups of chunks processed in one poll, at most.
const GROUPS_PER_POLL: usize = 8;

/// A filter sees the rows that have passed the others, and not the whole group, if they are at most this fraction of
/// it.
const FEW: usize = 16;
/// If at least this fraction of a group passes, its columns are decoded for all rows, and filtered then.
const MOST: usize = 2;

/// A scan, checked against its tree.
#[derive(Debug)]
pub(crate) struct ScanPlan {
    scan: Scan,
    schema: SchemaRef,
    filters: Vec<FilterPlan>,
    /// The columns that filters see.
    filtered: Vec<usize>,
    /// For each output column, its place in `filtered`, if filters see it.
    reused: Vec<Option<usize>>,
}

/// A filter of a scan.
#[derive(Debug)]
struct FilterPlan {
    filter: Arc<dyn Filter>,
    /// The columns that it sees: their places in [`ScanPlan::filtered`].
    places: Vec<usize>,
    schema: SchemaRef,
}

/// Receives the batches of a scan.
pub(crate) trait BatchSink: Sync {
    fn emit(&self, rows: RecordBatch) -> impl Future<Output = Result<()>> + Send;
    /// Called once per group of chunks: yields to other work, and fails if the query is stopped.
    fn pause(&self) -> impl Future<Output = Result<()>> + Send;
}

impl ScanPlan {
    /// # Errors
    /// [`PlanError::ColumnOutOfRange`](crate::base::PlanError::ColumnOutOfRange).
    pub fn new(scan: Scan) -> Result<ScanPlan> {
        let tree_schema = scan.view.schema().arrow();
        let schema = Arc::new(project(tree_schema, &scan.columns, None)?);
        let (mut filters, mut filtered) = (Vec::with_capacity(scan.filters.len()), Vec::new());
        for (columns, filter) in &scan.filters {
            let mut place = |column: &usize| match filtered.iter().position(|other| other == column) {
                Some(place) => place,
                None => {
                    filtered.push(*column);
                    filtered.len() - 1
                }
            };
            let places = columns.iter().map(&mut place).collect();
            let schema = Arc::new(project(tree_schema, columns, None)?);
            filters.push(FilterPlan { filter: filter.clone(), places, schema });
        }
        let index = |column: &usize| filtered.iter().position(|other| other == column);
        let reused = scan.columns.iter().map(index).collect();
        Ok(ScanPlan { schema, filters, filtered, reused, scan })
    }

    /// The columns of the tree that stay in memory; `None` if these are all.
    pub fn projection(&self) -> Option<Arc<Projection>> {
        let used = self.scan.columns.iter().chain(&self.filtered).chain(&self.scan.kept);
        Projection::partial(self.scan.view.schema(), used.copied())
    }

    /// The schema of the output.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows per batch, at most and at least 1.
    pub fn batch_rows(&self) -> usize {
        self.scan.batch_rows.max(1)
    }

    /// Runs the scan to its end or limit.
    pub async fn run<P: PageSource, S: BatchSink>(&self, query: &Query, source: &P, sink: &S) -> Result<()> {
        if self.scan.columns.is_empty() && self.filters.is_empty() {
            return self.count(query, source, sink).await;
        }
        let mut state = ScanState::new(self, query);
        for range in &self.scan.ranges {
            let mut cursor = self.scan.view.cursor(source, range.clone(), self.scan.direction);
            while !state.is_satisfied()
                && let Some(chunk) = cursor.next().await?
            {
                state.group_rows += chunk.rows();
                state.group.push(chunk);
                if state.group_rows >= state.target_rows {
                    state.process_group()?;
                    sink.pause().await?;
                    if state.found >= state.target_rows || state.whole.is_some() {
                        sink.emit(state.finish_batch()?).await?;
                    }
                }
            }
        }
        state.process_group()?;
        if state.found > 0 {
            sink.emit(state.finish_batch()?).await?;
        }
        Ok(())
    }

    /// Emits batches without columns, from counts of rows.
    async fn count<P: PageSource, S: BatchSink>(&self, query: &Query, source: &P, sink: &S) -> Result<()> {
        let mut remaining = self.scan.limit.unwrap_or(u64::MAX);
        let mut found = 0;
        for range in &self.scan.ranges {
            let mut counter = self.scan.view.counter(source, range.clone());
            while remaining > 0
                && let Some(rows) = counter.next().await?
            {
                found += rows.min(remaining);
                remaining -= rows.min(remaining);
                while found >= self.batch_rows() as u64 {
                    self.emit_counted(self.batch_rows(), query, sink).await?;
                    found -= self.batch_rows() as u64;
                }
                sink.pause().await?;
            }
        }
        if found > 0 {
            self.emit_counted(found as usize, query, sink).await?;
        }
        Ok(())
    }

    async fn emit_counted<S: BatchSink>(&self, rows: usize, query: &Query, sink: &S) -> Result<()> {
        query.stats.rows(0, rows);
        sink.emit(batch(&self.schema, Vec::new(), rows)?).await
    }
}

/// The state of a running scan.
struct ScanState<'a> {
    plan: &'a ScanPlan,
    query: &'a Query,
    /// Chunks not yet filtered and decoded.
    group: Vec<Chunk>,
    group_rows: usize,
    /// Rows of a group and of a batch; grows to `batch_rows`.
    target_rows: usize,
    /// One builder per output column, with `found` rows.
    builders: Vec<ColumnBuilder>,
    /// Rows that passed the filter, not yet emitted.
    found: usize,
    /// The columns of a batch that has the rows of one group, with `found` rows. The builders are empty then.
    whole: Option<Vec<ArrayRef>>,
    /// Rows that the limit still admits.
    remaining: u64,
}

impl<'a> ScanState<'a> {
    fn new(plan: &'a ScanPlan, query: &'a Query) -> Self {
        let remaining = plan.scan.limit.unwrap_or(u64::MAX);
        let first = remaining.clamp(1, FIRST_ROWS as u64) as usize;
        ScanState {
            plan,
            query,
            group: Vec::new(),
            group_rows: 0,
            target_rows: first.min(plan.batch_rows()),
            builders: builders(&plan.scan.view, &plan.scan.columns),
            found: 0,
            whole: None,
            remaining,
        }
    }

    fn is_satisfied(&self) -> bool {
        self.remaining == 0
    }

    /// Filters and decodes the group.
    fn process_group(&mut self) -> Result<()> {
        let group = std::mem::take(&mut self.group);
        self.group_rows = 0;
        let scan = &self.plan.scan;
        let method = self.query.cache.as_ref().map_or(ScanMethod::Plain, CacheUse::scan_method);
        if self.plan.filters.is_empty() {
            for (number, chunk) in group.iter().enumerate() {
                prefetch_next(method, &group, number, &scan.columns);
                self.query.record_columns(chunk, &scan.columns);
                self.append(chunk)?;
            }
        } else if !group.is_empty() {
            self.filter(&group, method)?;
        }
        let filtered = &self.plan.filtered;
        let others = scan.columns.iter().filter(|column| !filtered.contains(column));
        self.query.stats.pages_spared(evict_behind(method, &group, others.chain(filtered).copied()));
        Ok(())
    }

    /// Decodes the rows of a chunk, up to the limit.
    fn append(&mut self, chunk: &Chunk) -> Result<()> {
        let columns = &self.plan.scan.columns;
        let rows = chunk.rows();
        if (rows as u64) <= self.remaining {
            chunk.append_to(columns, &mut self.builders)?;
            self.count(rows);
        } else if self.remaining > 0 {
            let rows: Vec<u32> = (0..self.remaining as u32).collect();
            chunk.append_selected(columns, &rows, &mut self.builders)?;
            self.count(rows.len());
        }
        Ok(())
    }

    /// Counts rows appended to the builders.
    fn count(&mut self, rows: usize) {
        assert!(rows as u64 <= self.remaining, "{rows} rows found, the limit admits {}", self.remaining);
        self.found += rows;
        self.remaining -= rows as u64;
    }

    fn filter(&mut self, group: &[Chunk], method: ScanMethod) -> Result<()> {
        let plan = self.plan;
        let rows: usize = group.iter().map(Chunk::rows).sum();
        // The columns that have been decoded for the whole group.
        let mut decoded: Vec<Option<ArrayRef>> = vec![None; plan.filtered.len()];
        let mut left = BooleanArray::new(BooleanBuffer::new_set(rows), None);
        for filter in &plan.filters {
            let count = left.true_count();
            if count == 0 {
                return Ok(());
            }
            if count * FEW <= rows {
                left = self.filter_few(group, filter, &decoded, &left)?;
                continue;
            }
            self.decode_all(group, method, &filter.places, &mut decoded)?;
            let seen = filter.places.iter().filter_map(|&place| decoded[place].clone()).collect();
            let mask = evaluate(&*filter.filter, &batch(&filter.schema, seen, rows)?)?;
            left = if count == rows { mask } else { BooleanArray::new(left.values() & mask.values(), None) };
        }
        let limit = self.remaining.min(rows as u64) as usize;
        let found = left.true_count().min(limit);
        if found == 0 {
            return Ok(());
        }
        let predicate = FilterBuilder::new(&left).optimize().build();
        if found * MOST >= rows {
            return self.keep_most(group, method, decoded, &predicate, found);
        }
        let passed = Passed::new(group, left.values().set_indices().take(limit));
        for (output, reused) in plan.reused.iter().enumerate() {
            match reused.and_then(|place| decoded[place].as_ref()) {
                Some(array) => {
                    let kept = predicate.filter(array)?;
                    self.builders[output].append_array(&kept, 0..found);
                }
                None => {
                    let column = [plan.scan.columns[output]];
                    passed.decode(group, &column, self.query, &mut self.builders[output..=output])?;
                }
            }
        }
        self.count(found);
        Ok(())
    }

    /// Decodes the columns at `places` that are missing in `decoded`, for the whole group.
    fn decode_all(
        &self,
        group: &[Chunk],
        method: ScanMethod,
        places: &[usize],
        decoded: &mut [Option<ArrayRef>],
    ) -> Result<()> {
        let new: Vec<usize> = places.iter().copied().filter(|&place| decoded[place].is_none()).collect();
        let columns: Vec<usize> = new.iter().map(|&place| self.plan.filtered[place]).collect();
        let arrays = self.decode(group, method, &columns)?;
        for (place, array) in new.into_iter().zip(arrays) {
            decoded[place] = Some(array);
        }
        Ok(())
    }

    /// Decodes columns of the tree for the whole group.
    fn decode(&self, group: &[Chunk], method: ScanMethod, columns: &[usize]) -> Result<Vec<ArrayRef>> {
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let mut builders = builders(&self.plan.scan.view, columns);
        for (number, chunk) in group.iter().enumerate() {
            prefetch_next(method, group, number, columns);
            self.query.record_columns(chunk, columns);
            chunk.append_to(columns, &mut builders)?;
        }
        Ok(builders.iter_mut().map(ColumnBuilder::finish).collect())
    }

    /// Adds the first `found` rows that pass, by decoding all rows of the group.
    fn keep_most(
        &mut self,
        group: &[Chunk],
        method: ScanMethod,
        decoded: Vec<Option<ArrayRef>>,
        predicate: &FilterPredicate,
        found: usize,
    ) -> Result<()> {
        let plan = self.plan;
        let is_decoded = |reused: &Option<usize>| reused.is_some_and(|place| decoded[place].is_some());
        let new = plan.scan.columns.iter().zip(&plan.reused).filter(|(_, reused)| !is_decoded(reused));
        let new: Vec<usize> = new.map(|(&column, _)| column).collect();
        let mut new = self.decode(group, method, &new)?.into_iter();
        let arrays = plan.reused.iter().filter_map(|reused| {
            let array = reused.and_then(|place| decoded[place].clone());
            array.or_else(|| new.next())
        });
        let keep = |array: ArrayRef| match found == array.len() {
            true => Ok(array),
            false => Ok(compact(predicate.filter(&array)?.slice(0, found))),
        };
        let kept = arrays.map(keep).collect::<Result<Vec<_>>>()?;
        assert_eq!(kept.len(), plan.reused.len(), "a column was not decoded");
        if self.found == 0 && found * MOST >= self.target_rows {
            self.whole = Some(kept);
        } else {
            for (builder, array) in self.builders.iter_mut().zip(&kept) {
                builder.append_array(array, 0..found);
            }
        }
        self.count(found);
        Ok(())
    }

    /// Evaluates a filter over the rows of a mask. Returns the mask of the rows that pass this filter, too.
    fn filter_few(
        &self,
        group: &[Chunk],
        filter: &FilterPlan,
        decoded: &[Option<ArrayRef>],
        left: &BooleanArray,
    ) -> Result<BooleanArray> {
        let rows = Passed::new(group, left.values().set_indices());
        let predicate = FilterBuilder::new(left).build();
        let mut columns = Vec::with_capacity(filter.places.len());
        for &place in &filter.places {
            columns.push(match &decoded[place] {
                Some(array) => predicate.filter(array)?,
                None => {
                    let column = [self.plan.filtered[place]];
                    let mut builders = builders(&self.plan.scan.view, &column);
                    rows.decode(group, &column, self.query, &mut builders)?;
                    builders[0].finish()
                }
            });
        }
        let mask = evaluate(&*filter.filter, &batch(&filter.schema, columns, rows.rows.len())?)?;
        let mut passed = BooleanBufferBuilder::new(left.len());
        passed.resize(left.len());
        for (number, row) in left.values().set_indices().enumerate() {
            if mask.value(number) {
                passed.set_bit(row, true);
            }
        }
        Ok(BooleanArray::new(passed.finish(), None))
    }

    /// The batch of the rows found so far.
    fn finish_batch(&mut self) -> Result<RecordBatch> {
        let rows = std::mem::take(&mut self.found);
        self.target_rows = (self.target_rows * BATCH_GROWTH).min(self.plan.batch_rows());
        self.query.stats.rows(0, rows);
        let columns = match self.whole.take() {
            Some(columns) => columns,
            None => self.builders.iter_mut().map(ColumnBuilder::finish).collect(),
        };
        batch(&self.plan.schema, columns, rows)
    }
}

/// The rows of a group that passed a filter.
struct Passed {
    /// The number of each row in its chunk, chunk by chunk.
    rows: Vec<u32>,
    /// The end of the rows of each chunk in `rows`.
    ends: Vec<usize>,
}

impl Passed {
    /// `numbers` are those of the rows in the group, ascending.
    fn new(group: &[Chunk], numbers: impl Iterator<Item = usize>) -> Passed {
        let mut numbers = numbers.peekable();
        let (mut rows, mut ends, mut base) = (Vec::new(), Vec::with_capacity(group.len()), 0);
        for chunk in group {
            let end = base + chunk.rows();
            while let Some(number) = numbers.next_if(|&number| number < end) {
                rows.push((number - base) as u32);
            }
            ends.push(rows.len());
            base = end;
        }
        assert!(numbers.next().is_none(), "rows beyond the end of the group passed the filter");
        Passed { rows, ends }
    }

    /// Decodes columns of the rows.
    fn decode(&self, group: &[Chunk], columns: &[usize], query: &Query, builders: &mut [ColumnBuilder]) -> Result<()> {
        let mut start = 0;
        for (chunk, &end) in group.iter().zip(&self.ends) {
            if start < end {
                query.record_columns(chunk, columns);
                chunk.append_selected(columns, &self.rows[start..end], builders)?;
            }
            start = end;
        }
        Ok(())
    }
}

/// A scan that runs on the thread that polls it.
pub(crate) struct PolledScan {
    /// `None` once the scan has ended.
    run: Option<Pin<Box<dyn Future<Output = Result<()>> + Send>>>,
    query: Arc<Query>,
    slot: Arc<BatchSlot>,
}

/// Passes batches from the future of a scan to the caller that polls it.
#[derive(Debug, Default)]
struct BatchSlot {
    rows: Mutex<Option<RecordBatch>>,
    /// Groups of chunks processed.
    groups: AtomicUsize,
}

impl PolledScan {
    pub fn new(plan: ScanPlan, query: Arc<Query>, source: TaskPages) -> Self {
        let slot = Arc::<BatchSlot>::default();
        let (run_query, run_slot) = (query.clone(), slot.clone());
        let run = async move { plan.run(&run_query, &source, &*run_slot).await };
        PolledScan { run: Some(Box::pin(run)), query, slot }
    }

    /// The next batch; a panic of the scan is returned as an error.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        let Some(run) = &mut self.run else { return Poll::Ready(None) };
        let _entered = self.query.cache.as_ref().map(|cache| cache.governor.enter(cache.class));
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(context)));
        let polled = polled.unwrap_or_else(|payload| Poll::Ready(Err(panicked(payload))));
        if let Some(rows) = self.slot.rows.lock().take() {
            return Poll::Ready(Some(Ok(rows)));
        }
        let result = ready!(polled);
        self.stop();
        Poll::Ready(result.err().map(Err))
    }

    /// Ends the scan.
    pub fn stop(&mut self) {
        self.query.stop();
        self.run = None;
    }
}

impl BatchSink for BatchSlot {
    async fn emit(&self, rows: RecordBatch) -> Result<()> {
        let replaced = self.rows.lock().replace(rows);
        assert!(replaced.is_none(), "a batch was emitted before the last one was taken");
        // Pending until the batch is taken. The caller takes it at the end of this poll, and polls again for the next one.
        poll_fn(|_| if self.rows.lock().is_none() { Poll::Ready(Ok(())) } else { Poll::Pending }).await
    }

    async fn pause(&self) -> Result<()> {
        if self.groups.fetch_add(1, Ordering::Relaxed) % GROUPS_PER_POLL != GROUPS_PER_POLL - 1 {
            return Ok(());
        }
        let mut paused = false;
        poll_fn(|context| {
            if paused {
                return Poll::Ready(Ok(()));
            }
            paused = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

impl BatchSink for InOrderQuery {
    async fn emit(&self, rows: RecordBatch) -> Result<()> {
        InOrderQuery::emit(self, rows)
    }

    async fn pause(&self) -> Result<()> {
        self.check()
    }
}
