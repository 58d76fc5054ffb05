//! Keyaki: an embedded SQL database for data larger than memory on flash.
//!
//! ```no_run
//! # async fn example() -> keyaki::Result<()> {
//! let database = keyaki::Database::open("shop.keyaki", keyaki::Options::default())?;
//! let session = database.session();
//! session.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, total DECIMAL(12,2))").await?;
//! session.execute("INSERT INTO orders VALUES (1, 9.90)").await?;
//! let rows = session.query("SELECT sum(total) FROM orders").await?.collect().await?;
//! # Ok(()) }
//! ```
//!
//! Apache DataFusion parses and plans queries. Keyaki adds its own tables and statements (DDL with constraints and indexes,
//! DML, COPY, ANALYZE …) and turns joins along indexes into out-of-order pipelines.
//!
//! Each folder uses itself and lower folders only:
//! `base < catalog < engine < table < plan < write < sql < session`.
//!
//! | folder | contents |
//! |---|---|
//! | `base` | errors, options, progress reports |
//! | `catalog` | definitions, SQL types, statistics' data; the catalog tree |
//! | `engine` | the open database: store, executor, catalog, writer lock, calibration, CPU caches |
//! | `table` | tables as DataFusion sees them: key ranges, costs, scans |
//! | `plan` | rewriting of logical plans; index pipelines |
//! | `write` | from rows to write batches and bulk loads; new tables and indexes; collecting statistics |
//! | `sql` | statements, and the state of one session |
//! | `session` | [`Database`] and [`Session`] |

mod base;
mod catalog;
mod engine;
mod plan;
mod session;
mod sql;
mod table;
mod write;

pub use base::options::{CacheGovernor, ExecutionMode, JoinMode, Options, SessionOptions};
pub use base::progress::{NoProgress, Progress};
pub use base::{ConstraintKind, Error, ObjectKind, Position, Result, SqlState};
pub use catalog::IndexMethod;
pub use engine::cache::{CacheCalibration, CacheStatus, PinInfo, calibrate_caches};
pub use session::{Database, Session};
pub use sql::{IndexInfo, Outcome, TableInfo};

// Types of other crates in signatures of this one.
pub use arrow::array::RecordBatch;
pub use datafusion::execution::SendableRecordBatchStream;
pub use keyaki_device::Device;
pub use keyaki_device::calibrate::Calibration;
pub use keyaki_exec::{ExecutorOptions, MemoryTrace, Stats};
pub use keyaki_llc::calibrate::CacheProfile;
pub use keyaki_llc::governor::{CachePath, Status as CacheGovernorStatus};
pub use keyaki_llc::software::Tuning;
pub use keyaki_store::{Durability, LocatorStats, Options as StoreOptions, Store};
