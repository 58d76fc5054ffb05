//! In order: the same tasks as out of order, one at a time with blocking reads, depth first. The baseline.
//!
//! Runs on a thread of its own. A row goes through all steps before its successor is looked at, so rows come out in the
//! driver's order, and at most one read is under way.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use keyaki_store::{Store, block_on};
use parking_lot::Mutex;

use super::buffer::{Buffer, Collected};
use super::lookup::{Sink, append_lone, drive, look_up};
use super::outer::{Lookup, Lookups, Outer};
use super::plan::Plan;
use crate::query::Query;
use crate::query::in_order::InOrder;
use crate::source::SequentialPages;
use crate::{Join, Result};

/// Longest time that finished rows wait for more before they are handed out together.
const HOLD_NS: u64 = 5_000_000;

/// Runs a pipeline on the calling thread, until its end or until it is stopped.
pub(crate) fn run_in_order(plan: &Plan, run: &InOrder, store: &Store) -> Result<()> {
    let buffers = plan.levels.iter().enumerate();
    let sequential = Sequential {
        plan,
        run,
        store,
        source: SequentialPages::new(store.clone(), run.query.clone()),
        buffers: buffers.map(|(level, plan)| Mutex::new(Buffer::new(plan, &run.flow, level))).collect(),
        ready: Mutex::default(),
    };
    sequential.run()
}

struct Sequential<'a> {
    plan: &'a Plan,
    run: &'a InOrder,
    store: &'a Store,
    source: SequentialPages,
    buffers: Vec<Mutex<Buffer>>,
    ready: Mutex<Ready>,
}

/// Finished rows that have not been handed out.
#[derive(Default)]
struct Ready {
    batches: Vec<RecordBatch>,
    rows: usize,
    since_ns: u64,
}

impl Sequential<'_> {
    fn run(&self) -> Result<()> {
        for range in &self.plan.ranges {
            self.run.query.stats.tasks(1);
            block_on(drive(self.plan, &self.source, range.clone(), self))?;
        }
        self.hand_out()
    }

    /// Takes the rows of a level all the way.
    fn descend(&self, level: usize, collected: Collected) -> Result<()> {
        let batch = collected.finish(&self.plan.levels[level])?;
        self.run.query.stats.rows(level, batch.num_rows());
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if level == self.plan.last() {
            return self.emit(batch);
        }
        let (outer, keyless) = Outer::new(&self.plan.steps[level], batch, Lookups::RowByRow, &self.run.flow, level)?;
        let outer = Arc::new(outer);
        let (mut number, mut keyless) = (0, keyless.into_iter().peekable());
        for row in 0..outer.batch.num_rows() as u32 {
            if keyless.next_if_eq(&row).is_some() {
                if self.plan.levels[level + 1].join == Join::LeftOuter {
                    append_lone(self, level + 1, &outer, &[row])?;
                }
                continue;
            }
            let lookup = Lookup { outer: outer.clone(), number };
            number += 1;
            self.run.query.stats.tasks(1);
            block_on(look_up(self.plan, level, &self.source, &lookup, self))?;
        }
        Ok(())
    }

    fn emit(&self, batch: RecordBatch) -> Result<()> {
        let now_ns = self.store.device().now_ns();
        let due = {
            let mut ready = self.ready.lock();
            if ready.batches.is_empty() {
                ready.since_ns = now_ns;
            }
            ready.rows += batch.num_rows();
            ready.batches.push(batch);
            ready.rows >= self.plan.batch_rows || now_ns >= ready.since_ns + HOLD_NS
        };
        if due { self.hand_out() } else { Ok(()) }
    }

    fn hand_out(&self) -> Result<()> {
        let Ready { batches, .. } = std::mem::take(&mut *self.ready.lock());
        if batches.is_empty() {
            return Ok(());
        }
        self.run.emit(concat_batches(self.plan.schema(), &batches)?)
    }
}

impl Sink for Sequential<'_> {
    fn query(&self) -> &Query {
        &self.run.query
    }

    fn append<T>(&self, level: usize, add: impl FnOnce(&mut Buffer) -> Result<T>) -> Result<T> {
        let mut buffer = self.buffers[level].lock();
        let added = add(&mut buffer)?;
        let collected = buffer.take(&self.run.flow, level);
        drop(buffer);
        self.descend(level, collected)?;
        Ok(added)
    }

    async fn room(&self, _level: usize) -> Result<()> {
        self.run.check()
    }
}
