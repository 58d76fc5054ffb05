//! Index nested-loop joins, divided into tasks while they run (OoODE paper, section 2).
//!
//! The *tasks* of a pipeline are driver ranges to read, and lookups of its steps. A task appends the rows it finds to a
//! buffer of the worker that runs it. A buffer is flushed when it is full, or when its worker has nothing else to do: the
//! columns of all its rows are built, the filter is evaluated, and the rows that pass become the lookups of the next step,
//! or output.
//!
//! ```text
//!  tasks:  ranges ─▶ lookups of step 0 ─▶ lookups of step 1 ─▶ …
//!             │          ▲    │                ▲    │
//!             ▼  flush   │    ▼     flush      │    ▼  flush
//!  rows:   level 0 ──────┘  level 1 ───────────┘  level 2 … ─▶ output
//! ```
//!
//! Out of order, *fibers* run the tasks, each one task after another, deepest step first. There is one runnable fiber per
//! worker. Whenever a fiber waits for a page, another one takes its place, up to the credits of the pipeline. So a pipeline
//! whose pages are cached switches no fibers, and one that reads has as many reads in flight as tasks, credits and queue
//! depth allow. In order, one thread runs the same tasks one at a time, depth first, with blocking reads.
//!
//! An out-of-order pipeline is done when no *unit* of work is pending. Units are unfinished tasks and non-empty buffers.

mod fiber;
mod in_order;
mod out_of_order;
mod outer_batch;
mod plan;
mod row_buffer;
mod task_queue;
mod tasks;

pub(crate) use in_order::run_in_order;
pub(crate) use out_of_order::PipelineExecution;
pub(crate) use plan::PipelinePlan;
