//! Options of a database, and the options of a session (`SET keyaki.… = …`).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use keyaki_device::Device;
pub use keyaki_exec::ExecutionMode;
use keyaki_store::Durability;

use crate::base::progress::Progress;

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
    /// Whether the CPU's caches are governed (`keyaki.cache_governor`).
    pub cache_governor: CacheGovernor,
    /// Told how far opening is, while indexes in memory are built.
    pub progress: Option<Arc<dyn Progress>>,
}

/// How the memory of a database is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    pub cache_bytes: usize,
    pub buffer_bytes: usize,
    pub query_bytes: usize,
}

/// Root buffers gain nothing from being larger.
const BUFFER_BYTES_MAX: usize = 256 << 20;
/// Below this a database could not work.
pub(crate) const MEMORY_BYTES_MIN: usize = 16 << 20;

impl MemoryBudget {
    /// What indexes in memory may take of the memory for pages: all but an eighth.
    pub fn memory_index_bytes_max(&self) -> usize {
        self.cache_bytes / 8 * 7
    }

    /// Half for pages, an eighth for root buffers, the rest for queries.
    pub fn divide(bytes: usize) -> Self {
        let cache_bytes = bytes / 2;
        let buffer_bytes = (bytes / 8).min(BUFFER_BYTES_MAX);
        // Twice the budget of the buffers may be in use while they are being flushed.
        MemoryBudget { cache_bytes, buffer_bytes, query_bytes: bytes - cache_bytes - 2 * buffer_bytes }
    }
}

/// A quarter of the machine's memory.
pub(crate) fn default_memory_bytes() -> usize {
    const FALLBACK: usize = 1 << 30;
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    });
    total.map_or(FALLBACK, |kib| kib * 1024 / 4).max(MEMORY_BYTES_MIN)
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

/// Whether queries tell the governor of the CPU's caches what they are, and spare them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheGovernor {
    #[default]
    On,
    Off,
}

/// Options of one session, which SET changes.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// `keyaki.execution`: `'out_of_order'` or `'in_order'`.
    pub execution: ExecutionMode,
    /// `keyaki.join`: `'auto'`, `'index'` or `'scan'`.
    pub join: JoinMode,
}

/// Names of an enum's values, as they are written in SET and shown by SHOW.
macro_rules! named {
    ($type:ty, $($value:path = $name:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($value => $name),+ })
            }
        }
        impl FromStr for $type {
            /// The names that would have been possible.
            type Err = &'static str;
            fn from_str(name: &str) -> Result<Self, Self::Err> {
                match name.to_ascii_lowercase().as_str() {
                    $($name => Ok($value),)+
                    _ => Err(concat!($("'", $name, "' "),+)),
                }
            }
        }
    };
}

named!(CacheGovernor, CacheGovernor::On = "on", CacheGovernor::Off = "off");
named!(JoinMode, JoinMode::Auto = "auto", JoinMode::Index = "index", JoinMode::Scan = "scan");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_used_up_and_not_exceeded() {
        for bytes in [MEMORY_BYTES_MIN, 1 << 30, 100 << 30] {
            let budget = MemoryBudget::divide(bytes);
            assert_eq!(budget.cache_bytes + 2 * budget.buffer_bytes + budget.query_bytes, bytes);
            assert!(budget.buffer_bytes <= BUFFER_BYTES_MAX);
        }
        assert!(default_memory_bytes() >= MEMORY_BYTES_MIN);
    }

    #[test]
    fn names_of_settings() {
        assert_eq!("IN_ORDER".parse(), Ok(ExecutionMode::InOrder));
        assert_eq!("x".parse::<JoinMode>(), Err("'auto' 'index' 'scan' "));
        assert_eq!(JoinMode::Index.to_string(), "index");
    }
}
