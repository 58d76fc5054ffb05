//! Options of a database, and the settings of a session (`SET keyaki.… = …`).

use std::sync::Arc;

use keyaki_device::Device;
use keyaki_store::Durability;

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Fail if the database does not exist instead of creating it.
    pub must_exist: bool,
    /// Bytes for cache, buffers and queries together; none: a quarter of the machine's memory.
    pub memory_bytes: Option<usize>,
    /// Worker threads; none: one per core.
    pub threads: Option<usize>,
    pub durability: Durability,
    /// None: io_uring where permitted, else a thread pool (`KEYAKI_IO`).
    pub device: Option<Arc<dyn Device>>,
    /// Overrides of the store's options, for tests and experiments (cache and buffer sizes are set from `memory_bytes`
    /// when this is none).
    pub store: Option<keyaki_store::Options>,
    /// Overrides of the executor's options.
    pub executor: Option<keyaki_exec::ExecutorOptions>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExecutionMode {
    #[default]
    OutOfOrder,
    InOrder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinMode {
    /// By estimated device time.
    #[default]
    Auto,
    /// Index pipelines wherever indexes allow.
    Index,
    /// Never: scans and hash joins.
    Scan,
}

/// Settings of one session.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `keyaki.execution`: `'out_of_order'` or `'in_order'`.
    pub execution: ExecutionMode,
    /// `keyaki.join`: `'auto'`, `'index'` or `'scan'`.
    pub join: JoinMode,
}
