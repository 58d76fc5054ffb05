//! The query planner: join trees become index pipelines where their estimated cost is lower than scans and hash joins.
//!
//! DataFusion parses, resolves and simplifies a query and pushes filters down. [`rules`] switches off the defective cases
//! of its rules, and [`subqueries`] turns more subqueries into joins. The [`planner`] then rewrites the optimized logical plan:
//!
//! ```text
//! optimized logical plan
//!   └ rewrite         finds every maximal tree of joins, filters and projections
//!       ├ graph       flattens it to relations and predicates without a join order
//!       ├ facts       estimates rows, pages and key ranges from trees and statistics
//!       │   └ selectivity  estimates the fraction of rows that pass a condition
//!       ├ search      chooses the cheapest join order: lookup steps along indexes, or hash joins
//!       ├ assemble    specifies the chosen pipelines in detail, as leaf nodes of the new plan
//!       ├ summary     answers COUNT, MIN and MAX from keys
//!       ├ key_groups  scans along the key of GROUP BY, and aggregates without a hash table
//!       └ first_rows  answers ORDER BY … LIMIT along a non-covering index
//! physical plan       with one partition if it is small
//!   ├ exec, input_exec, summary_exec, first_rows_exec: one operator each
//!   ├ pushdown, unconstant, grouping_sets, orders: correct DataFusion's physical rules
//!   ├ large_limits: ORDER BY with a limit of many rows
//!   ├ offsets: ORDER BY above OFFSET
//!   ├ scan_columns: scans of one tree keep the columns of each other in memory
//!   ├ materialize: rows that are computed once and read twice
//!   ├ shared: subqueries that occur several times and are executed once
//!   ├ spill: joins whose build side does not fit into memory
//!   ├ stoppable: nested-loop joins that end when their result is dropped
//!   └ window: window functions, partition by partition
//! ```
//!
//! `candidates` lists indexes that a query could use, and `seconds` compares the plans with and without them.
//!
//! Costs are in seconds of device and processor time ([`cost`](crate::table::cost)). [`ranges`](crate::table::ranges)
//! turns filters into ranges of encoded keys, here and for scans of the table provider.
//!
//! Invariant: a rewritten plan returns the same rows and columns as the original one, in any order that the original
//! plan allows.

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;

use crate::table::PlanContext;
use crate::values::zone::Zone;

mod aggregate_statistics;
mod assemble;
mod candidates;
mod exec;
mod facts;
mod first_rows;
mod first_rows_exec;
mod graph;
mod grouping_sets;
mod input_exec;
mod key_groups;
mod large_limits;
mod materialize;
mod node;
mod offsets;
mod orders;
mod planner;
mod pushdown;
mod rewrite;
mod rules;
mod scan_columns;
mod search;
mod seconds;
mod selectivity;
mod shared;
mod small;
mod spill;
mod stoppable;
mod subqueries;
mod summary;
mod summary_exec;
mod unconstant;
mod window;

pub(crate) use candidates::{IndexCandidate, candidates};
pub(crate) use exec::with_partitions;
pub(crate) use seconds::seconds;
pub(crate) use shared::share_with_queries;

/// Installs the planner in the state of a session with the given time zone: replaces the query planner and corrects rules
/// of the optimizers.
pub(crate) fn register(mut builder: SessionStateBuilder, context: PlanContext, zone: Zone) -> SessionStateBuilder {
    let rules = rules::corrected(builder.optimizer().take());
    let physical = pushdown::guarded(builder.physical_optimizers().take());
    let physical = offsets::split(aggregate_statistics::guarded(physical));
    let mut physical = orders::restored(large_limits::sorted(physical));
    physical.insert(0, Arc::new(unconstant::ForgetConstants));
    physical.insert(0, Arc::new(grouping_sets::HideGroupOrders));
    physical.insert(0, Arc::new(key_groups::AggregateAlongKeys));
    physical.push(Arc::new(scan_columns::ShareScanColumns));
    let mut analyzer = builder.analyzer().take().unwrap_or_default().rules;
    analyzer.insert(0, Arc::new(subqueries::OuterTypes));
    analyzer.insert(1, Arc::new(rules::ConvertOperands));
    analyzer.insert(2, Arc::new(rules::PrepareIntervals));
    analyzer.insert(3, Arc::new(rules::GroupFrames));
    analyzer.insert(0, Arc::new(rules::Multisets));
    analyzer.push(Arc::new(rules::MovingFrames));
    analyzer.push(Arc::new(rules::LazyConditions));
    analyzer.push(Arc::new(rules::ReplaceOperators { zone }));
    analyzer.push(Arc::new(rules::OrderIntervals));
    analyzer.push(Arc::new(rules::UseGenerated));
    analyzer.push(Arc::new(subqueries::SubqueriesToJoins));
    let builder = builder.with_analyzer_rules(analyzer);
    let builder = builder.with_optimizer_rules(rules).with_physical_optimizer_rules(physical);
    builder.with_query_planner(Arc::new(planner::KeyakiPlanner { context }))
}
