//! Keyaki: an embedded SQL database for data larger than memory on flash.
//!
//! ```
//! use keyaki::Connection;
//!
//! # fn main() -> keyaki::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("shop");
//! let connection = Connection::open(path)?;
//! connection.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, total DECIMAL(12,2))", ())?;
//! connection.execute("INSERT INTO orders VALUES ($1, $2)", (1, 9.90))?;
//! let total: f64 = connection.query_row("SELECT sum(total) FROM orders", (), |row| row.get(0))?;
//! # assert_eq!(total, 9.90);
//! # Ok(()) }
//! ```
//!
//! [`Connection`] blocks the calling thread. [`Session`] is its counterpart for async programs:
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
//! Apache DataFusion plans queries and executes their relational operators. Keyaki provides the tables, the statements
//! beyond queries (DDL with constraints and indexes, DML, COPY, ANALYZE, settings) and an optimizer that replaces joins
//! along indexes by out-of-order index pipelines.
//!
//! A module uses only its own folder and the folders below it:
//! `base < values < catalog < engine < table < plan < write < sql < session`.
//!
//! | folder | contents |
//! |---|---|
//! | `base` | errors with SQLSTATEs, options, progress reports, single values |
//! | `values` | arithmetic, conversions and sums with PostgreSQL's results and errors |
//! | `catalog` | definitions of tables, indexes and views; SQL types; statistics; their JSON documents |
//! | `engine` | the open database: store, executor, catalog, writer lock, calibration; in-memory indexes; the control of the CPU caches |
//! | `table` | DataFusion's table providers: key ranges from filters, costs in device time, the scan operator |
//! | `plan` | optimizer rules and physical operators: index pipelines, summaries, first rows |
//! | `write` | assignment casts, write batches and bulk loads, index builds, collection of statistics |
//! | `sql` | statements: DDL, DML, COPY, ANALYZE, settings, system views; the state of a session |
//! | `session` | [`Database`], [`Session`] and [`Connection`], the public API |

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod base;
mod catalog;
mod engine;
mod plan;
mod session;
mod sql;
mod table;
mod values;
mod write;

pub use base::elements::Elements;
pub use base::from_sql::FromSql;
pub use base::interrupt::InterruptHandle;
pub use base::json_fields::{JsonType, json_type};
pub use base::notices::{Notice, Severity};
pub use base::options::{
    CacheGovernor, ExecutionMode, Isolation, JoinMode, Options, PlanCacheMode, Prices, SessionOptions, Switch,
};
pub use base::progress::{NoProgress, Progress};
pub use base::to_sql::{ToSql, ToSqlOutput};
pub use base::uuids::{printable, printable_as_json};
pub use base::value::{Value, ValueRef};
pub use base::{ConstraintKind, Error, ObjectKind, Position, Result, SqlState, field_type_name};
pub use catalog::IndexMethod;
pub use engine::cache::{CacheCalibration, CacheStatus, PinInfo, calibrate_caches};
pub use engine::notifications::Notification;
pub use engine::sessions::SessionControl;
pub use engine::transaction::TransactionStatus;
pub use session::{
    Appender, ArrowRows, Column, Completion, Connection, Database, MappedRows, Optional, Params, ParamsFromIter,
    Prepared, PublishedVersion, Repair, RoleLogin, Row, RowIndex, Rows, Session, Statement, StatsHandle, Transaction,
    clone_published, is_url, params_from_iter, published_versions,
};
pub use sql::POSTGRESQL_VERSION;
pub use sql::cluster::{
    Cluster, ClusterQuery, Explained, Planned as PlannedQuery, RemoteQuery, WORKERS_MAX, with_partitions,
};
pub use sql::repair::{KeySpan, Repaired, RepairedTable};
pub use sql::suggestions::{IndexSuggestions, SuggestedIndex};
pub use sql::{
    CopyFormat, FileAccess, IndexInfo, Outcome, ProgramCopy, ProgramTable, ResultNames, SequenceInfo, TableInfo,
};
pub use table::QuerySplit;

// Types of other crates in the signatures of this crate.
pub use arrow::array::RecordBatch;
pub use datafusion::execution::SendableRecordBatchStream;
pub use keyaki_device::Device;
pub use keyaki_device::calibrate::Calibration;
pub use keyaki_exec::{ExecutorOptions, MemoryTrace, Stats};
pub use keyaki_llc::calibrate::CacheProfile;
pub use keyaki_llc::governor::{CachePath, Status as CacheGovernorStatus};
pub use keyaki_llc::software::Tuning;
pub use keyaki_publish::DiskCacheOptions;
pub use keyaki_store::{Durability, LocatorStats, MergePolicy, Options as StoreOptions, Store};
