//! The table provider for DataFusion: access paths, their costs, and the scan operator.
//!
//! A [`KeyakiTable`] provides one table as of one snapshot to one statement. [`ranges`] turns filters into ranges of
//! encoded keys, and [`cost`] estimates the time of each access path. The provider chooses the cheapest of the table
//! and its covering indexes and plans a [`scan::ScanExec`] over the ranges. The scan evaluates the residual filters.
//! [`partial`] decides which partial indexes a query may use. A [`PlanContext`] carries the state of session and database
//! that planning and operators use.
//!
//! Invariants: a scan reads every row that passes the filters. All tables of a statement read one snapshot.

mod context;
pub(crate) mod cost;
mod distribution;
mod dynamic;
mod estimate;
mod filter;
mod key_set;
mod leaf;
mod partial;
mod partitions;
mod planned;
mod provider;
pub(crate) mod ranges;
mod scan;
mod virtual_columns;

pub(crate) use context::PlanContext;
pub(crate) use distribution::Distribution;
pub use distribution::QuerySplit;
pub(crate) use filter::{ExprFilter, compact};
pub(crate) use key_set::{KeySet, KeySetExpr};
pub(crate) use leaf::{LeafExec, LeafOperator};
pub(crate) use partial::implies_all;
pub(crate) use partitions::{NOTHING, Parts, add, choose, partition, write_partitions};
pub(crate) use planned::{AssumedTree, AssumedTrees, PlannedTree};
pub(crate) use provider::{Answer, KeyakiTable};
pub(crate) use scan::{ScanExec, ScanPlan, record};
pub(crate) use virtual_columns::{number as virtual_number, over_index};
