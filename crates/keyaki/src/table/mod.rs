//! Tables as DataFusion sees them: access paths and the scan operator.
//!
//! A [`KeyakiTable`] is a table as of one snapshot: the table provider of a statement. [`ranges`] turns filters into
//! ranges of encoded keys. [`cost`] estimates the time of an access path. The provider plans a [`scan::ScanExec`] over
//! the ranges of the primary key or of a covering secondary index, and the scan evaluates the remaining filters.
//! A [`PlanContext`] carries everything planning and running operators need from session and database.

mod context;
pub(crate) mod cost;
mod estimate;
mod filter;
mod leaf;
mod provider;
pub(crate) mod ranges;
mod scan;

pub(crate) use context::PlanContext;
pub(crate) use filter::ExprFilter;
pub(crate) use leaf::{LeafExec, LeafOperator};
pub(crate) use provider::{Answer, KeyakiTable};
pub(crate) use scan::record;
