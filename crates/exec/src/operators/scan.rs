//! Scans of one tree, in key order.
//!
//! The cursor runs, and decodes, where the stream is polled; only reads go through the workers, which keep the pages
//! ahead of the cursor coming. So a scan of cached pages involves no other thread, and one that reads is woken about once
//! per coalesced read. In-order scans run on a thread of their own, which may block.
//!
//! With a filter, its columns are decoded first for a group of chunks; the other columns only for the rows that pass.
//! The first groups and batches are small, so that the first rows come early; they grow to the full size quickly.
//!
//! A scan of no columns counts rows: what lies between the ends of its ranges is not read.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use arrow_select::filter::FilterBuilder;
use keyaki_llc::software::ScanMethod;
use keyaki_store::{Chunk, ColumnBuilder, PageSource};
use parking_lot::Mutex;

use crate::base::columns::{batch, builders, evaluate, project};
use crate::base::error::panicked;
use crate::query::Query;
use crate::query::cache_use::{announce_next, leave_behind};
use crate::query::in_order::InOrder;
use crate::source::TaskPages;
use crate::{CacheUse, Filter, Result, Scan};

/// Rows of the first batch.
const FIRST_ROWS: usize = 256;
/// Groups of chunks worked off in one poll, at the most.
const GROUPS_PER_POLL: usize = 8;

/// A scan, checked.
#[derive(Debug)]
pub(crate) struct ScanPlan {
    scan: Scan,
    schema: SchemaRef,
    /// What the filter sees.
    filter_schema: SchemaRef,
    /// Of each output column: its place among the filter's columns, if it is one of them.
    reused: Vec<Option<usize>>,
}

/// Where a scan puts its batches.
pub(crate) trait Target: Sync {
    fn emit(&self, rows: RecordBatch) -> impl Future<Output = Result<()>> + Send;
    /// Called once per group of chunks: a chance to let others run.
    fn pause(&self) -> impl Future<Output = Result<()>> + Send;
}

impl ScanPlan {
    /// # Errors
    /// If there are no such columns.
    pub fn new(scan: Scan) -> Result<ScanPlan> {
        let schema = Arc::new(project(&scan.view, &scan.columns)?);
        let filter_columns = scan.filter.as_ref().map_or(&[][..], |(columns, _)| columns);
        let filter_schema = Arc::new(project(&scan.view, filter_columns)?);
        let place = |column: &usize| filter_columns.iter().position(|other| other == column);
        let reused = scan.columns.iter().map(place).collect();
        Ok(ScanPlan { schema, filter_schema, reused, scan })
    }

    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub fn batch_rows(&self) -> usize {
        self.scan.batch_rows.max(1)
    }

    /// Reads, filters and decodes everything.
    pub async fn run<P: PageSource, T: Target>(&self, query: &Query, source: &P, target: &T) -> Result<()> {
        if self.scan.columns.is_empty() && self.scan.filter.is_none() {
            return self.count(query, source, target).await;
        }
        let mut state = Progress::new(self, query);
        for range in &self.scan.ranges {
            let mut cursor = self.scan.view.cursor(source, range.clone(), self.scan.direction);
            while !state.is_satisfied()
                && let Some(chunk) = cursor.next().await?
            {
                state.group_rows += chunk.rows();
                state.group.push(chunk);
                if state.group_rows >= state.target_rows {
                    state.work_off()?;
                    target.pause().await?;
                    if state.found >= state.target_rows {
                        target.emit(state.finish()?).await?;
                    }
                }
            }
        }
        state.work_off()?;
        if state.found > 0 {
            target.emit(state.finish()?).await?;
        }
        Ok(())
    }

    /// Rows without columns: no more of them is looked at than it takes to count them.
    async fn count<P: PageSource, T: Target>(&self, query: &Query, source: &P, target: &T) -> Result<()> {
        let mut left = self.scan.limit.unwrap_or(u64::MAX);
        let mut found = 0;
        for range in &self.scan.ranges {
            let mut counter = self.scan.view.counter(source, range.clone());
            while left > 0
                && let Some(rows) = counter.next().await?
            {
                found += rows.min(left);
                left -= rows.min(left);
                while found >= self.batch_rows() as u64 {
                    self.emit_counted(self.batch_rows(), query, target).await?;
                    found -= self.batch_rows() as u64;
                }
                target.pause().await?;
            }
        }
        if found > 0 {
            self.emit_counted(found as usize, query, target).await?;
        }
        Ok(())
    }

    async fn emit_counted<T: Target>(&self, rows: usize, query: &Query, target: &T) -> Result<()> {
        query.stats.rows(0, rows);
        target.emit(batch(&self.schema, Vec::new(), rows)?).await
    }
}

/// What a running scan has in hand.
struct Progress<'a> {
    plan: &'a ScanPlan,
    query: &'a Query,
    /// Chunks not yet filtered.
    group: Vec<Chunk>,
    group_rows: usize,
    /// Rows of a group, and of a batch; grows to `batch_rows`.
    target_rows: usize,
    /// Decoded rows that passed; one builder per output column.
    builders: Vec<ColumnBuilder>,
    found: usize,
    /// Rows that the limit still allows.
    left: u64,
}

impl<'a> Progress<'a> {
    fn new(plan: &'a ScanPlan, query: &'a Query) -> Self {
        let left = plan.scan.limit.unwrap_or(u64::MAX);
        let first = left.clamp(1, FIRST_ROWS as u64) as usize;
        Progress {
            plan,
            query,
            group: Vec::new(),
            group_rows: 0,
            target_rows: first.min(plan.batch_rows()),
            builders: builders(&plan.scan.view, &plan.scan.columns),
            found: 0,
            left,
        }
    }

    fn is_satisfied(&self) -> bool {
        self.left == 0
    }

    /// Filters and decodes the group.
    fn work_off(&mut self) -> Result<()> {
        let group = std::mem::take(&mut self.group);
        self.group_rows = 0;
        let scan = &self.plan.scan;
        let method = self.query.cache.as_ref().map_or(ScanMethod::Plain, CacheUse::scan_method);
        match &scan.filter {
            Some((columns, filter)) if !group.is_empty() => self.filter(&group, columns, &**filter, method)?,
            _ => {
                for (number, chunk) in group.iter().enumerate() {
                    announce_next(method, &group, number, &scan.columns);
                    self.query.decoded(chunk, &scan.columns);
                    self.append(chunk)?;
                }
            }
        }
        let filtered = scan.filter.as_ref().map_or(&[][..], |(columns, _)| columns);
        let others = scan.columns.iter().filter(|column| !filtered.contains(column));
        self.query.stats.pages_spared(leave_behind(method, &group, others.chain(filtered).copied()));
        Ok(())
    }

    fn append(&mut self, chunk: &Chunk) -> Result<()> {
        let columns = &self.plan.scan.columns;
        let rows = chunk.rows();
        if (rows as u64) <= self.left {
            chunk.append_to(columns, &mut self.builders)?;
            self.count(rows);
        } else if self.left > 0 {
            let rows: Vec<u32> = (0..self.left as u32).collect();
            chunk.append_selected(columns, &rows, &mut self.builders)?;
            self.count(rows.len());
        }
        Ok(())
    }

    fn count(&mut self, rows: usize) {
        self.found += rows;
        self.left -= rows as u64;
    }

    fn filter(&mut self, group: &[Chunk], columns: &[usize], filter: &dyn Filter, method: ScanMethod) -> Result<()> {
        let rows = group.iter().map(Chunk::rows).sum();
        let mut decoded = builders(&self.plan.scan.view, columns);
        for (number, chunk) in group.iter().enumerate() {
            announce_next(method, group, number, columns);
            self.query.decoded(chunk, columns);
            chunk.append_to(columns, &mut decoded)?;
        }
        let decoded: Vec<ArrayRef> = decoded.iter_mut().map(ColumnBuilder::finish).collect();
        let seen = batch(&self.plan.filter_schema, decoded.clone(), rows)?;
        let mask = evaluate(filter, &seen)?;
        let passed: Vec<usize> = mask.values().set_indices().take(self.left.min(rows as u64) as usize).collect();
        if passed.is_empty() {
            return Ok(());
        }
        let predicate = FilterBuilder::new(&mask).optimize().build();
        for (output, reused) in self.plan.reused.iter().enumerate() {
            match reused {
                Some(place) => {
                    let kept = predicate.filter(&decoded[*place])?;
                    self.builders[output].append_array(&kept, 0..passed.len().min(kept.len()));
                }
                None => self.decode(group, output, &passed)?,
            }
        }
        self.count(passed.len());
        Ok(())
    }

    /// Decodes the rows `passed` (numbered over the group) of one output column.
    fn decode(&mut self, group: &[Chunk], output: usize, passed: &[usize]) -> Result<()> {
        let column = [self.plan.scan.columns[output]];
        let (mut rest, mut base) = (passed, 0);
        for chunk in group {
            let end = base + chunk.rows();
            let (here, later) = rest.split_at(rest.partition_point(|&row| row < end));
            if !here.is_empty() {
                self.query.decoded(chunk, &column);
                let rows: Vec<u32> = here.iter().map(|&row| (row - base) as u32).collect();
                chunk.append_selected(&column, &rows, &mut self.builders[output..=output])?;
            }
            (rest, base) = (later, end);
        }
        Ok(())
    }

    /// The batch of the rows found so far.
    fn finish(&mut self) -> Result<RecordBatch> {
        let rows = std::mem::take(&mut self.found);
        self.target_rows = (self.target_rows * 4).min(self.plan.batch_rows());
        self.query.stats.rows(0, rows);
        let columns = self.builders.iter_mut().map(ColumnBuilder::finish).collect();
        batch(&self.plan.schema, columns, rows)
    }
}

/// A scan that runs where it is polled.
pub(crate) struct PolledScan {
    run: Option<Pin<Box<dyn Future<Output = Result<()>> + Send>>>,
    query: Arc<Query>,
    slot: Arc<Slot>,
}

/// Passes batches from the scan's future to whoever polls it.
#[derive(Debug, Default)]
struct Slot {
    rows: Mutex<Option<RecordBatch>>,
    groups: AtomicUsize,
}

impl PolledScan {
    pub fn new(plan: ScanPlan, query: Arc<Query>, source: TaskPages) -> Self {
        let slot = Arc::<Slot>::default();
        let (run_query, run_slot) = (query.clone(), slot.clone());
        let run = async move { plan.run(&run_query, &source, &*run_slot).await };
        PolledScan { run: Some(Box::pin(run)), query, slot }
    }

    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        let Some(run) = &mut self.run else { return Poll::Ready(None) };
        let _announced = self.query.cache.as_ref().map(|cache| cache.governor.enter(cache.class));
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(context)));
        let polled = polled.unwrap_or_else(|payload| Poll::Ready(Err(panicked(payload))));
        if let Some(rows) = self.slot.rows.lock().take() {
            return Poll::Ready(Some(Ok(rows)));
        }
        let result = ready!(polled);
        self.stop();
        Poll::Ready(result.err().map(Err))
    }

    pub fn stop(&mut self) {
        self.query.stop();
        self.run = None;
    }
}

impl Target for Slot {
    async fn emit(&self, rows: RecordBatch) -> Result<()> {
        *self.rows.lock() = Some(rows);
        // Pending until the batch has been taken: whoever polled takes it at once, and polls again for the next one.
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

impl Target for InOrder {
    async fn emit(&self, rows: RecordBatch) -> Result<()> {
        InOrder::emit(self, rows)
    }

    async fn pause(&self) -> Result<()> {
        self.check()
    }
}
