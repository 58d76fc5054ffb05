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
//! SQL is parsed and planned by Apache DataFusion. What DataFusion does not know (DDL with constraints and indexes, DML
//! with enforcement, COPY, ANALYZE …) is taken over by [`sql`](self); joins along indexes become out-of-order pipelines by
//! the rules of the `plan` module.
//!
//! Each folder uses itself and lower folders only:
//! `base < catalog < engine < table < plan < write < sql < session`.

mod base;
pub mod catalog;
mod engine;
mod plan;
mod session;
mod sql;
mod table;
mod write;

pub use base::options::{CacheGovernor, ExecutionMode, JoinMode, Options, SessionOptions};
pub use base::{Error, Result, progress};
pub use catalog::{IndexMethod, VastOptions};
pub use engine::cache;
pub use keyaki_store::{Durability, Goal};
pub use session::{Database, Session};
pub use sql::{IndexInfo, Outcome, TableInfo};
