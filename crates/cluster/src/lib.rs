//! Execution of one query on many machines, over a published database.
//!
//! A [`Coordinator`] is the [`keyaki::Cluster`] of a session. [`serve`] is a worker. Both open the same version of the database, plan a
//! query from its text, and divide the plan into the same *stages* at the operators that exchange rows. A worker executes a
//! *task*: a stage on a share of the partitions of its scans and pipelines. The crate `datafusion-distributed` divides plans,
//! exchanges rows by gRPC, and starts the tasks of all stages.
//!
//! ```text
//! coordinator                                worker 1                    worker 2
//!   plan, divide ── query, stage, task ──►   plan, divide, task 0        plan, divide, task 1
//!   last stage   ◄── rows ────────────────   partial result 0   ◄─ rows ─►  partial result 1
//! ```
//!
//! Operators are not encoded. A worker finds the stage by its number, and compares a hash of the whole plan with that of the
//! coordinator. Queries cannot change the database: one that fails because a worker is lost begins again with the others, if
//! none of its rows has been returned.
//!
//! The modules are layers, lowest first; a module uses its own layer and the layers before it:
//! `error, security, share, version < stages < codec < channel < coordinator, worker`.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod channel;
mod codec;
mod coordinator;
mod error;
mod security;
mod share;
mod stages;
mod version;
mod worker;

pub use coordinator::Coordinator;
pub use security::{Security, Tls};
pub use version::VERSION;
pub use worker::{WorkerOptions, serve};
