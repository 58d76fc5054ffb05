//! Planning: index ranges, join trees along indexes, costs in device time.
//!
//! DataFusion parses, resolves and simplifies a query and pushes its filters down. Then [`register`]ed here takes over
//! what DataFusion has no notion of: [`ranges`] turns filters into ranges of encoded keys.

// Used by the table provider and by the rules.
#![allow(dead_code)]

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;
use keyaki_device::calibrate::Calibration;
use keyaki_exec::{Executor, Stats};
use parking_lot::Mutex;

use crate::Settings;

pub(crate) mod ranges;

/// What planning needs to know of the session and its database. Tables and their snapshots come with the table providers
/// that a query names.
#[derive(Debug, Clone)]
pub(crate) struct PlanContext {
    pub executor: Executor,
    pub calibration: Arc<Calibration>,
    /// As of the statement.
    pub settings: Settings,
    /// [`crate::Session::last_stats`]: running operators add themselves.
    pub last_stats: Arc<Mutex<Vec<(String, Stats)>>>,
    /// Bytes that one pipeline may take.
    pub pipeline_memory_bytes: usize,
}

/// Adds Keyaki's planning to a session's state. Overrides its query planner.
pub(crate) fn register(builder: SessionStateBuilder, _context: PlanContext) -> SessionStateBuilder {
    builder
}
