//! Joins whose build side does not fit into the query memory.
//!
//! DataFusion 55 fails in a hash join whose build side exceeds the memory. Its nested loop join has a fallback that can
//! return wrong rows (`docs/upstream.md`). [`spilling`] puts a [`SpillingJoinExec`] in place of both operators. It runs the
//! operator, and changes to a partitioned join if the build side does not fit:
//!
//! ```text
//! left ──┬─> kept batches ─┐                                        ┌─ files L1 ⋈ files R1 ─┐
//!        │                 ├─ memory exhausted: split both inputs ──┼─ files L2 ⋈ files R2 ─┼─> result
//! right ─┴─> not yet read ─┘                                        └─ …                   ─┘
//! ```
//!
//! - A hash join splits both inputs by a hash of the join keys (grace hash join). Rows with NULL keys that cannot match
//!   are distributed evenly.
//! - A nested loop join splits the input whose rows the join type returns unmatched, and reads the other input once for
//!   each part. A FULL join has no such input: it fails if its build side does not fit.
//!
//! Each pair of parts is joined by the same operator. A part that does not fit is split again, up to a depth. After that
//! the error of the memory pool is returned, for example if one key has more rows than fit.
//!
//! A hash join returns its rows in the order of its right input. If an operator above relies on it ([`relied_orders`]),
//! the results of the parts are written to files and merged in this order (`order`). Otherwise they are returned one
//! after another, and the operator declares no order.
//!
//! The keys of the build side of a hash join become a filter of the scans of its probe side (`keys`).
//!
//! Invariant: batches of the build side are kept until the join reads its probe side. No input is executed twice.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, InputOrderMode};

mod exchange;
mod exec;
mod files;
mod input;
mod keys;
mod order;
mod shape;

pub(super) use exchange::ExchangeExec;
pub(super) use exec::SpillingJoinExec;

/// Replaces the joins of a plan by joins that spill, and repartitionings by [`ExchangeExec`]. `ordered`: the order of the result matters.
pub(super) fn spilling(plan: Arc<dyn ExecutionPlan>, ordered: bool) -> Result<Arc<dyn ExecutionPlan>> {
    let relied = relied_orders(plan.as_ref(), ordered);
    let old: Vec<Arc<dyn ExecutionPlan>> = plan.children().into_iter().cloned().collect();
    let new = old.iter().zip(relied).map(|(child, relied)| spilling(child.clone(), relied));
    let new = new.collect::<Result<Vec<_>>>()?;
    let plan = match old.iter().zip(&new).all(|(old, new)| Arc::ptr_eq(old, new)) {
        true => plan,
        false => plan.replace_children(new, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))?,
    };
    let plan = ExchangeExec::replacing(plan)?;
    let keeps_order = ordered && plan.output_ordering().is_some();
    SpillingJoinExec::replacing(plan, keeps_order)
}

/// For each input of an operator: the operator, or one above it, relies on the order of the input.
fn relied_orders(plan: &dyn ExecutionPlan, ordered: bool) -> Vec<bool> {
    // A limit returns the first rows in the order of its input.
    let limits = plan.fetch().is_some() || plan.is::<GlobalLimitExec>();
    let groups = plan.downcast_ref::<AggregateExec>();
    let grouped = groups.is_some_and(|aggregate| *aggregate.input_order_mode() != InputOrderMode::Linear);
    let required = plan.required_input_ordering();
    let kept = plan.maintains_input_order();
    // The order of these operators depends on the order of all inputs: that of a build side continues that of the probe
    // side, and a union has the common part of all orders.
    let combined = plan.is::<HashJoinExec>() || plan.is::<UnionExec>();
    let relied = |i: usize| {
        let is_required = required.get(i).is_some_and(Option::is_some);
        let is_kept = combined || kept.get(i).is_some_and(|kept| *kept);
        is_required || grouped || (is_kept && (ordered || limits))
    };
    (0..plan.children().len()).map(relied).collect()
}
