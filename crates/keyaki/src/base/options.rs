//! Options of a database and of a session (`SET keyaki.… = …`).
//!
//! *Invariant.* [`MemoryBudget::divide`] never assigns more memory than the option allows.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use keyaki_device::Device;
use keyaki_device::calibrate::Calibration;
pub use keyaki_exec::ExecutionMode;
use keyaki_publish::DiskCacheOptions;
use keyaki_store::Durability;

use crate::base::progress::Progress;

/// Options for opening a database.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Fail if the database does not exist instead of creating it.
    pub must_exist: bool,
    /// Open an existing database for reading, also while another process has it open for writing. Statements see the commits
    /// before their start; commits with a durability below full once the writing process has written its log. In-memory
    /// indexes are not used.
    pub read_only: bool,
    /// Memory in bytes for page cache, root buffers and queries together, at least 16 MiB; `None` for a quarter of the
    /// machine's memory.
    pub memory_bytes: Option<usize>,
    /// Number of worker threads; `None` for one per core.
    pub threads: Option<usize>,
    /// When commits wait for `fdatasync`; SET keyaki.durability changes it.
    pub durability: Durability,
    /// Device of the files; `None` for io_uring where the system permits it, else a thread pool. The environment
    /// variable `KEYAKI_IO` selects one of them.
    pub device: Option<Arc<dyn Device>>,
    /// Speed of the device, for a device that is not the one under the database directory; `None` for the calibration
    /// stored in the directory. With it, the stored calibration is neither read nor replaced.
    pub calibration: Option<Calibration>,
    /// Options of the store, for tests and experiments; `None` for the defaults with the sizes of page cache and root
    /// buffers that follow from `memory_bytes`.
    pub store: Option<keyaki_store::Options>,
    /// Options of the executor; `None` for its defaults.
    pub executor: Option<keyaki_exec::ExecutorOptions>,
    /// A cache on disk for the pages of published databases; `None` for none.
    pub object_cache: Option<DiskCacheOptions>,
    /// Settings of the clients of object stores, such as `AWS_ENDPOINT`, with their values. They take precedence over the
    /// variables of the environment with these names.
    pub object_store: Vec<(String, String)>,
    /// Initial state of the CPU cache governor (`keyaki.cache_governor`).
    pub cache_governor: CacheGovernor,
    /// Receiver of progress reports while in-memory indexes are built during opening.
    pub progress: Option<Arc<dyn Progress>>,
}

impl Options {
    /// Memory in bytes that the database may use: as given, or the default.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes.unwrap_or_else(default_memory_bytes)
    }
}

/// Division of the memory of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    /// Page cache, which shares its memory with in-memory indexes and locators.
    pub cache_bytes: usize,
    /// Budget of the root buffers. Up to twice as much is in use while buffers are flushed.
    pub buffer_bytes: usize,
    /// Operators of queries, and sorters of bulk loads.
    pub query_bytes: usize,
}

/// Larger root buffers bring no further benefit.
const BUFFER_BYTES_MAX: usize = 256 << 20;
/// Minimum memory of a database.
pub(crate) const MEMORY_BYTES_MIN: usize = 16 << 20;

impl MemoryBudget {
    /// Maximum bytes of in-memory indexes and locators: seven eighths of the memory for pages.
    pub fn memory_index_bytes_max(&self) -> usize {
        self.cache_bytes / 8 * 7
    }

    /// Divides `bytes`: half for pages, an eighth (at most 256 MiB) for root buffers, counted twice, and the rest for
    /// queries.
    pub fn divide(bytes: usize) -> Self {
        let cache_bytes = bytes / 2;
        let buffer_bytes = (bytes / 8).min(BUFFER_BYTES_MAX);
        // While root buffers are flushed, twice their budget may be in use.
        MemoryBudget { cache_bytes, buffer_bytes, query_bytes: bytes - cache_bytes - 2 * buffer_bytes }
    }
}

/// A quarter of the machine's memory in bytes, at least [`MEMORY_BYTES_MIN`]; 1 GiB if the memory is unknown.
pub(crate) fn default_memory_bytes() -> usize {
    const FALLBACK: usize = 1 << 30;
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    });
    total.map_or(FALLBACK, |kib| kib * 1024 / 4).max(MEMORY_BYTES_MIN)
}

/// The choice between index pipelines and DataFusion's joins (`keyaki.join`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinMode {
    /// The plan with the lower estimated device time.
    #[default]
    Auto,
    /// Index pipelines wherever indexes permit them.
    Index,
    /// Scans and hash joins only.
    Scan,
}

/// State of the CPU cache governor (`keyaki.cache_governor`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheGovernor {
    /// Queries announce their cache class and use scan methods that spare the cache.
    #[default]
    On,
    /// No governor, no pins.
    Off,
}

/// State of an optional part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Switch {
    /// Used where it applies.
    #[default]
    On,
    /// Never used.
    Off,
}

/// Which statements without parameters enter the plan cache (`keyaki.plan_cache`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlanCacheMode {
    /// Those that were executed before with other literals.
    #[default]
    On,
    /// All that have the form of the short path.
    Always,
    /// None.
    Off,
}

/// Isolation level of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Each statement sees all transactions that were committed before it.
    ReadCommitted,
    /// Snapshot isolation: all statements see the state as of the first one. The commit fails if another transaction has
    /// changed the same rows in the meantime.
    #[default]
    RepeatableRead,
    /// As if transactions ran one after another. The commit also fails if another transaction has changed what this one
    /// has read.
    Serializable,
}

/// Options of a session. SET changes them.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// `keyaki.execution`: `'out_of_order'` or `'in_order'`.
    pub execution: ExecutionMode,
    /// `keyaki.join`: `'auto'`, `'index'` or `'scan'`.
    pub join: JoinMode,
    /// `keyaki.short_path`: whether statements of a few rows by key bypass the planner.
    pub short_path: Switch,
    /// `keyaki.blind_upserts`: whether INSERT … ON CONFLICT may write changes without reading the rows.
    pub blind_upserts: Switch,
    /// `keyaki.row_locks`: whether statements at the level read committed wait for rows that other transactions have changed.
    pub row_locks: Switch,
    /// `keyaki.plan_cache`: which statements without parameters use the plan cache.
    pub plan_cache: PlanCacheMode,
    /// `default_transaction_isolation`: the level of transactions that do not specify one.
    pub isolation: Isolation,
    /// `default_transaction_read_only`: transactions that do not specify it cannot write.
    pub is_read_only: bool,
    /// `transaction_timeout`: the time after which an open transaction is rolled back; `None` without a limit. It concerns
    /// transactions that begin later.
    pub transaction_timeout: Option<Duration>,
    /// `lock_timeout`: the time after which a statement that waits for a row fails; `None` without a limit.
    pub lock_timeout: Option<Duration>,
    /// `statement_timeout`: the time after which a server cancels a statement; `None` without a limit.
    pub statement_timeout: Option<Duration>,
    /// The prices of an object store, for EXPLAIN ANALYZE.
    pub prices: Prices,
}

/// The prices of an object store, in any currency.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Prices {
    /// `keyaki.request_price`: of 1,000 requests.
    pub request: f64,
    /// `keyaki.transfer_price`: of 10^9 bytes that are read.
    pub transfer: f64,
}

/// Implements `Display` and `FromStr` with the names that SET and SHOW use.
macro_rules! named {
    ($type:ty, $($value:path = $name:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($value => $name),+ })
            }
        }
        impl FromStr for $type {
            /// All valid names, quoted and separated by spaces.
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
named!(PlanCacheMode, PlanCacheMode::On = "on", PlanCacheMode::Always = "always", PlanCacheMode::Off = "off");
named!(Switch, Switch::On = "on", Switch::Off = "off");
named!(
    Isolation,
    Isolation::ReadCommitted = "read committed",
    Isolation::RepeatableRead = "repeatable read",
    Isolation::Serializable = "serializable"
);
named!(JoinMode, JoinMode::Auto = "auto", JoinMode::Index = "index", JoinMode::Scan = "scan");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_divided_completely() {
        for bytes in [MEMORY_BYTES_MIN, 1 << 30, 100 << 30] {
            let budget = MemoryBudget::divide(bytes);
            assert_eq!(budget.cache_bytes + 2 * budget.buffer_bytes + budget.query_bytes, bytes);
            assert!(budget.buffer_bytes <= BUFFER_BYTES_MAX);
        }
        assert!(default_memory_bytes() >= MEMORY_BYTES_MIN);
    }

    #[test]
    fn setting_values_parse_and_print_their_names() {
        assert_eq!("IN_ORDER".parse(), Ok(ExecutionMode::InOrder));
        assert_eq!("x".parse::<JoinMode>(), Err("'auto' 'index' 'scan' "));
        assert_eq!(JoinMode::Index.to_string(), "index");
    }
}
