//! Window functions over rows that are sorted by partition.
//!
//! DataFusion 55 has two operators for them: one concatenates its whole input, the other keeps state for each partition
//! and the text buffers of all rows that it has seen (`docs/upstream.md`). Neither counts its memory. [`WindowExec`] takes
//! the place of both if the rows of each partition follow each other, and evaluates the same functions. How depends on
//! the size of the partition:
//!
//! ```text
//! rows ──┬─ small partitions ────── hold many, evaluate them together ──────────────┐
//!        ├─ large, frames move ──── evaluate each batch, keep the rows of the frame ─┼─> rows and results
//!        └─ large, other frames ─── hold the partition, spill its rows ──────────────┘
//! ```
//!
//! - [`held`] keeps rows and finds where partitions start.
//! - [`functions`] evaluates functions over many partitions: ranks in one pass, aggregates of whole partitions as groups.
//! - [`running`] evaluates them over one partition in batches, with the state that DataFusion's functions have for this.
//! - [`whole`] holds a partition that must be complete before its first row has a result.
//!
//! Invariants: rows leave in the order in which they arrive. Functions see only the columns that they refer to, so that
//! all others are neither copied nor concatenated.

mod exec;
mod functions;
mod held;
mod running;
mod stream;
mod whole;

pub(super) use exec::WindowExec;
pub(super) use held::starts;
