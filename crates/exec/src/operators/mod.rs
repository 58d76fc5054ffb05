//! The operators: the scan of one tree, and the pipeline of index nested-loop joins.
//!
//! Each has one implementation for both execution modes. It is generic over the page source and over the sink of its rows,
//! whose implementations suspend the task (out of order) or block the thread (in order).

mod join;
mod scan;

pub(crate) use join::{PipelineExecution, PipelinePlan, run_in_order};
pub(crate) use scan::{PolledScan, ScanPlan};
