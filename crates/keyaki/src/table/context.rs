//! The state of a session and its database that the planner and the operators use.

use std::sync::Arc;

use keyaki_device::calibrate::Calibration;
use keyaki_exec::Executor;

use super::cost;
use super::distribution::Distribution;
use super::planned::AssumedTrees;
use crate::engine::Unusable;
use crate::engine::cache::SharedCache;
use crate::engine::queries::Operators;
use crate::{ExecutionMode, SessionOptions};

/// Planning and execution state of one statement. Tables and snapshots are in the table providers
/// ([`super::KeyakiTable`]).
#[derive(Debug, Clone)]
pub(crate) struct PlanContext {
    pub executor: Executor,
    pub calibration: Arc<Calibration>,
    /// Session options at the start of the statement.
    pub options: SessionOptions,
    /// Names and statistics for [`crate::Session::last_stats`]: each scan and pipeline adds itself when it starts.
    pub last_stats: Operators,
    /// Control of the CPU caches.
    pub cache: SharedCache,
    /// It belongs to an attached database: only operators with this context may read the tables.
    pub is_attached: bool,
    /// Memory budget of one pipeline in bytes.
    pub pipeline_memory_bytes: usize,
    /// Trees of in-memory indexes that could not be built. Plans must not read them.
    pub unusable: Arc<Unusable>,
    /// Plans must not read in-memory indexes, because they are not built.
    pub omits_memory_indexes: bool,
    /// The basis of a plan that several machines execute; `None` for a plan of this one.
    pub distribution: Option<Arc<Distribution>>,
    /// Trees of indexes that do not exist, for their costs. Plans with them cannot be executed.
    pub assumed: Arc<AssumedTrees>,
}

impl PlanContext {
    /// True if both are contexts of one database.
    pub fn is_of(&self, other: &PlanContext) -> bool {
        Arc::ptr_eq(&self.cache, &other.cache)
    }

    /// The cost model's machine for queries of this session.
    pub fn machine(&self) -> cost::Machine {
        let in_order = self.options.execution == ExecutionMode::InOrder;
        let executor = self.distribution.as_ref().map_or(self.executor.options(), |shared| &shared.executor);
        cost::Machine::new(self.calibration.clone(), executor, in_order)
    }
}
