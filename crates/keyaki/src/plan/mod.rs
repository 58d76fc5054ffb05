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
//! [`ranges`](crate::table::ranges) turns filters into ranges of encoded keys, here and for the scans of the table provider.

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;

use crate::table::PlanContext;

mod assemble;
mod exec;
mod facts;
mod first_rows;
mod first_rows_exec;
mod graph;
mod node;
mod planner;
mod pushdown;
mod rewrite;
mod search;
mod selectivity;
mod summary;
mod summary_exec;

/// Adds Keyaki's planning to a session's state: overrides its query planner and some physical optimizer rules.
pub(crate) fn register(mut builder: SessionStateBuilder, context: PlanContext) -> SessionStateBuilder {
    let rules = pushdown::guarded(builder.physical_optimizers().take());
    builder.with_physical_optimizer_rules(rules).with_query_planner(Arc::new(planner::KeyakiPlanner { context }))
}
