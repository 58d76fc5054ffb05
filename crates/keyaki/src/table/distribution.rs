//! What plans depend on that several machines make alike.
//!
//! The workers of a cluster and its coordinator plan the same statement, and each of them executes a share of it. Plans must
//! not depend on the machine then: on its memory, its processors, the pages that it has in its cache, or its measurements.

use std::sync::Arc;

use keyaki_device::calibrate::Calibration;
use keyaki_exec::ExecutorOptions;
use serde::{Deserialize, Serialize};

/// The basis of plans that several machines execute.
#[derive(Debug, Clone)]
pub(crate) struct Distribution {
    /// Number of machines among which scans and pipelines are split; at least 1.
    pub workers: usize,
    /// Number of partitions of a plan on each of them; at least 2.
    pub partitions: usize,
    /// Rows per batch of operators.
    pub batch_rows: usize,
    /// The speed of the device, for costs.
    pub calibration: Arc<Calibration>,
    /// The executor of each machine, for costs.
    pub executor: ExecutorOptions,
    /// The page cache of each machine in bytes, for costs.
    pub page_cache_bytes: usize,
    /// Scans and pipelines of fewer bytes or rows are not split.
    pub split: QuerySplit,
}

/// The smallest shares of scans and pipelines on each machine. Below them, exchanging rows takes longer than reading them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QuerySplit {
    /// Bytes of the tree that a scan reads.
    pub scan_bytes: f64,
    /// Rows of the driver of a pipeline.
    pub driver_rows: f64,
}

impl Default for QuerySplit {
    fn default() -> Self {
        QuerySplit { scan_bytes: 1e6, driver_rows: 500.0 }
    }
}
