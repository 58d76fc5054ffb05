//! The part of session and database that planning and operators use.

use std::sync::Arc;

use keyaki_device::calibrate::Calibration;
use keyaki_exec::{Executor, Stats};
use parking_lot::Mutex;

use super::cost;
use crate::engine::Unusable;
use crate::engine::cache::SharedCache;
use crate::{ExecutionMode, SessionOptions};

/// What planning needs to know of the session and its database. Tables and their snapshots come with the table providers
/// that a query names.
#[derive(Debug, Clone)]
pub(crate) struct PlanContext {
    pub executor: Executor,
    pub calibration: Arc<Calibration>,
    /// As of the statement.
    pub options: SessionOptions,
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
        let in_order = self.options.execution == ExecutionMode::InOrder;
        cost::Machine::new(self.calibration.clone(), self.executor.options(), in_order)
    }
}
