//! The operators: the scan of one tree, and the pipeline of index nested-loop joins.

pub(crate) mod join;
pub(crate) mod scan;
