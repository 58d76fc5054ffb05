//! Planning: index ranges, join trees along indexes, costs in device time.
//!
//! DataFusion parses, resolves and simplifies a query and pushes its filters down. Then the [`planner`] takes over what
//! DataFusion has no notion of:
//!
//! ```text
//! optimized logical plan
//!   └ rewrite      every maximal tree of joins, filters and projections …
//!       ├ graph    … becomes relations and predicates without an order,
//!       ├ facts    about which statistics, trees and key ranges tell how many rows and pages they mean
//!       ├ search   for the cheapest order: lookups along indexes where they pay, hash joins elsewhere
//!       │   └ cost in device and processor time
//!       ├ assemble the pipelines that were chosen, as leaves of the new logical plan
//!       ├ summary  COUNT, MIN and MAX that keys can answer
//!       └ first_rows  the first rows in the order of an index
//! physical plan
//!   └ exec, summary_exec, first_rows_exec: one operator each
//! ```
//!
//! [`ranges`] turns filters into ranges of encoded keys, here and for the scans of the table provider.

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;
use keyaki_device::calibrate::Calibration;
use keyaki_exec::{Executor, Stats};
use parking_lot::Mutex;

use crate::cache::SharedCache;
use crate::load::Unusable;
use crate::{ExecutionMode, Settings};

mod assemble;
pub(crate) mod cost;
mod exec;
mod facts;
mod first_rows;
mod first_rows_exec;
mod graph;
mod node;
mod planner;
mod pushdown;
pub(crate) mod ranges;
mod rewrite;
mod search;
mod selectivity;
mod summary;
mod summary_exec;

/// What planning needs to know of the session and its database. Tables and their snapshots come with the table providers
/// that a query names.
#[derive(Debug, Clone)]
pub(crate) struct PlanContext {
    pub executor: Executor,
    pub calibration: Arc<Calibration>,
    /// As of the statement.
    pub settings: Settings,
    /// [`crate::Session::last_stats`]: running operators add themselves.
    pub last_stats: Arc<Mutex<Vec<(String, Stats)>>>,
    /// The CPU's caches.
    pub cache: SharedCache,
    /// Bytes that one pipeline may take.
    pub pipeline_memory_bytes: usize,
    /// Trees of indexes that must not be read.
    pub unusable: Arc<Unusable>,
}

impl PlanContext {
    /// What the machine can do for a query of the session.
    pub fn machine(&self) -> cost::Machine {
        let in_order = self.settings.execution == ExecutionMode::InOrder;
        cost::Machine::new(self.calibration.clone(), self.executor.options(), in_order)
    }
}

/// Adds Keyaki's planning to a session's state: overrides its query planner and some physical optimizer rules.
pub(crate) fn register(mut builder: SessionStateBuilder, context: PlanContext) -> SessionStateBuilder {
    let rules = pushdown::guarded(builder.physical_optimizers().take());
    builder.with_physical_optimizer_rules(rules).with_query_planner(Arc::new(planner::KeyakiPlanner { context }))
}
