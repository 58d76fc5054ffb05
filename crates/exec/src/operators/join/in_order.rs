//! A pipeline that runs in order: the same tasks as out of order, one at a time, depth first, with blocking reads. The
//! baseline of the OoODE paper.
//!
//! It runs on a thread of its own. Each row goes through all steps before the next row is processed, so rows come out in
//! the driver's order, and at most one read is in flight.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use keyaki_primitives::sync::Mutex;
use keyaki_store::{Store, block_on};

use super::outer_batch::{Lookup, LookupSharing, OuterBatch};
use super::plan::PipelinePlan;
use super::row_buffer::{BufferContents, RowBuffer};
use super::tasks::{RowSink, append_single, look_up, read_driver};
use crate::base::Result;
use crate::query::{InOrderQuery, Query};
use crate::source::BlockingTaskPages;

/// Longest time that output rows are held back for a larger batch.
const OUTPUT_HOLD_NS: u64 = 5_000_000;

/// Runs a pipeline on the calling thread, until its end or until it is stopped.
pub(crate) fn run_in_order(plan: &PipelinePlan, run: &InOrderQuery, store: &Store) -> Result<()> {
    let buffers = plan.levels.iter().enumerate();
    let pipeline = InOrderPipeline {
        plan,
        run,
        store,
        source: BlockingTaskPages::new(store.clone(), run.query.clone()),
        buffers: buffers.map(|(level, plan)| Mutex::new(RowBuffer::new(plan, &run.flow, level))).collect(),
        held: Mutex::default(),
    };
    pipeline.run()
}

struct InOrderPipeline<'a> {
    plan: &'a PipelinePlan,
    run: &'a InOrderQuery,
    store: &'a Store,
    source: BlockingTaskPages,
    /// By level.
    buffers: Vec<Mutex<RowBuffer>>,
    held: Mutex<HeldOutput>,
}

/// Output rows held back for a larger batch.
#[derive(Default)]
struct HeldOutput {
    batches: Vec<RecordBatch>,
    rows: usize,
    /// Time of the first batch, on the device's clock.
    since_ns: u64,
}

impl InOrderPipeline<'_> {
    fn run(&self) -> Result<()> {
        if let Some((view, ranges)) = &self.plan.driver {
            for range in ranges {
                self.run.query.stats.task();
                block_on(read_driver(self.plan, view, &self.source, range.clone(), self))?;
            }
        }
        if let Some(pushed) = self.run.pushed() {
            while let Some(batch) = pushed.wait(|| self.run.check())? {
                self.run.query.stats.rows(0, batch.num_rows());
                self.look_up_all(0, batch)?;
                // Rows are held back for more rows only while these exist.
                if pushed.is_empty() {
                    self.emit_held()?;
                }
            }
        }
        self.emit_held()
    }

    /// Takes rows of a level through all further steps.
    fn process_rows(&self, level: usize, contents: BufferContents) -> Result<()> {
        let batch = contents.finish(&self.plan.levels[level])?;
        self.run.query.stats.rows(level, batch.num_rows());
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if level == self.plan.last() {
            return self.hold(batch);
        }
        self.look_up_all(level, batch)
    }

    /// Takes a batch of a level through all further steps.
    fn look_up_all(&self, level: usize, batch: RecordBatch) -> Result<()> {
        let step = &self.plan.steps[level];
        let (outer, keyless) = OuterBatch::new(step, batch, LookupSharing::ByRow, &self.run.flow, level)?;
        let outer = Arc::new(outer);
        let (mut number, mut keyless) = (0, keyless.into_iter().peekable());
        for row in 0..outer.batch.num_rows() as u32 {
            if keyless.next_if_eq(&row).is_some() {
                if self.plan.levels[level + 1].join.keeps_unmatched() {
                    append_single(self, level + 1, &outer, &[row])?;
                }
                continue;
            }
            let lookup = Lookup { outer: outer.clone(), number };
            number += 1;
            self.run.query.stats.task();
            block_on(look_up(self.plan, level, &self.source, &lookup, self))?;
        }
        assert_eq!(number, outer.lookups(), "each row with a key has a lookup");
        Ok(())
    }

    /// Adds output rows, and emits them if they make a full batch or have been held for long enough.
    fn hold(&self, batch: RecordBatch) -> Result<()> {
        let now_ns = self.store.device().now_ns();
        let is_due = {
            let mut held = self.held.lock();
            if held.batches.is_empty() {
                held.since_ns = now_ns;
            }
            held.rows += batch.num_rows();
            held.batches.push(batch);
            held.rows >= self.plan.batch_rows || now_ns >= held.since_ns + OUTPUT_HOLD_NS
        };
        if is_due { self.emit_held() } else { Ok(()) }
    }

    fn emit_held(&self) -> Result<()> {
        let HeldOutput { batches, .. } = std::mem::take(&mut *self.held.lock());
        if batches.is_empty() {
            return Ok(());
        }
        self.run.emit(concat_batches(self.plan.schema(), &batches)?)
    }
}

impl RowSink for InOrderPipeline<'_> {
    fn append<T>(&self, level: usize, add: impl FnOnce(&mut RowBuffer) -> Result<T>) -> Result<T> {
        let mut buffer = self.buffers[level].lock();
        let added = add(&mut buffer)?;
        let contents = buffer.take(&self.run.flow, level);
        drop(buffer);
        self.process_rows(level, contents)?;
        Ok(added)
    }

    fn query(&self) -> &Query {
        &self.run.query
    }

    async fn room(&self, _level: usize) -> Result<()> {
        self.run.check()
    }
}
