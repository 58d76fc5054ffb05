//! Tables as DataFusion sees them.
