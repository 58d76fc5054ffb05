//! The keys of the build side of a hash join, as a filter of the scans of its probe side.
//!
//! DataFusion's filter of a join with several partitions chooses a hash table for each row, and looks the row up in it,
//! which takes as long as the join. A [`KeyFilter`] takes its place in joins with one key: once all partitions of the
//! build side are complete, the filter becomes a [`KeySet`]. Until then, the join does not read its probe side.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::common::NullEquality;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_plan::joins::HashJoinExec;
use parking_lot::Mutex;

use crate::base::tree::Tree;
use crate::table::{KeySet, KeySetExpr};

/// Maximum number of rows of a build side whose keys become a set.
const ROWS_MAX: usize = 16 << 20;

/// The filter of a join over its probe side.
pub(super) struct KeyFilter {
    filter: Arc<DynamicFilterPhysicalExpr>,
    build_key: Arc<dyn PhysicalExpr>,
    probe_key: Arc<dyn PhysicalExpr>,
    data_type: DataType,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The keys of the inputs that have ended.
    keys: Vec<ArrayRef>,
    /// Number of inputs of the build side that have not ended.
    open: usize,
    is_complete: bool,
    waiting: Vec<Waker>,
    /// The memory of the set.
    reservation: Option<MemoryReservation>,
}

impl Debug for KeyFilter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFilter {}", self.probe_key)
    }
}

impl KeyFilter {
    /// The filter of a join with `inputs` inputs of the build side. `None` if no scan uses it, or if there are no sets
    /// of its keys.
    pub fn of(join: &HashJoinExec, inputs: usize) -> Result<Option<KeyFilter>> {
        let [(build_key, probe_key)] = join.on() else { return Ok(None) };
        let mut produced = join.dynamic_expressions_produced();
        let Some(filter) = produced.pop().and_then(downcast) else { return Ok(None) };
        let (build, probe) =
            (build_key.data_type(&join.left().schema())?, probe_key.data_type(&join.right().schema())?);
        let is_possible = join.null_equality() == NullEquality::NullEqualsNothing
            && !join.null_aware
            && build == probe
            && KeySet::is_for(&build)
            && is_used(join.right(), filter.expression_id())?;
        let state = Mutex::new(State { open: inputs, ..State::default() });
        let (build_key, probe_key) = (build_key.clone(), probe_key.clone());
        Ok(is_possible.then(|| KeyFilter { filter, build_key, probe_key, data_type: build, state }))
    }

    /// Adds the rows of an input that has ended. With the last one, the filter is complete.
    pub fn end(&self, rows: &[RecordBatch], context: &TaskContext) -> Result<()> {
        let keys = rows.iter().map(|batch| self.build_key.evaluate(batch)?.into_array(batch.num_rows()));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let all = {
            let mut state = self.state.lock();
            if state.is_complete {
                return Ok(());
            }
            assert!(state.open > 0, "an input of a join has ended twice");
            state.keys.extend(keys);
            state.open -= 1;
            if state.open > 0 {
                return Ok(());
            }
            std::mem::take(&mut state.keys)
        };
        let rows: usize = all.iter().map(|array| array.len()).sum();
        let reservation = MemoryConsumer::new("keys of a join").register(context.memory_pool());
        if rows <= ROWS_MAX && reservation.try_grow(KeySet::bytes_max(rows)).is_ok() {
            let set = KeySet::new(&all, &self.data_type)?;
            reservation.resize(set.bytes());
            self.state.lock().reservation = Some(reservation);
            self.filter.update(Arc::new(KeySetExpr { key: self.probe_key.clone(), set: Arc::new(set) }))?;
        }
        self.give_up();
        Ok(())
    }

    /// Ends the filter as it is. All rows pass if it has no keys yet.
    pub fn give_up(&self) {
        let waiting = {
            let mut state = self.state.lock();
            if state.is_complete {
                return;
            }
            self.filter.mark_complete();
            state.is_complete = true;
            state.keys.clear();
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Ready once the filter is complete.
    pub fn poll_complete(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.is_complete {
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }
}

fn downcast(filter: Arc<dyn PhysicalExpr>) -> Option<Arc<DynamicFilterPhysicalExpr>> {
    (filter as Arc<dyn std::any::Any + Send + Sync>).downcast().ok()
}

/// True if an operator evaluates the expression with an id.
fn is_used(plan: &Arc<dyn ExecutionPlan>, id: Option<u64>) -> Result<bool> {
    plan.exists_dyn(&mut |node| {
        let mut found = false;
        node.apply_expressions(&mut |expr| {
            expr.apply_dyn(&mut |expr| {
                found |= id.is_some() && expr.expression_id() == id;
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(found)
    })
}
