//! Index nested-loop joins, taken apart into tasks while they run.
//!
//! A pipeline's work is a set of *jobs*: ranges of the driver to read, and lookups of its steps. A job that finds rows
//! puts them into a buffer of the worker that runs it; a buffer that is full, or whose worker has nothing else to do, is
//! flushed: columns are gathered, the filter is evaluated, and the rows that pass become the jobs of the next step, or
//! output.
//!
//! ```text
//!  jobs:   ranges ─▶ lookups of step 0 ─▶ lookups of step 1 ─▶ …
//!             │          ▲    │                ▲    │
//!             ▼  flush   │    ▼     flush      │    ▼  flush
//!  rows:   level 0 ──────┘  level 1 ───────────┘  level 2 … ─▶ output
//! ```
//!
//! Jobs are run by *fibers*, tasks of the runtime, each working on one job after the other, deepest step first. There is
//! one runnable fiber per worker; whenever a fiber waits for a page, another one takes its place, up to the pipeline's
//! credits. So a pipeline whose pages are cached costs no task switches, and one that reads has as many reads in flight
//! as it has jobs, credits and queue depth.
//!
//! The pipeline is done when no *unit* of work is left: units are jobs (waiting or running) and non-empty buffers.

mod buffer;
mod execution;
mod fiber;
mod jobs;
mod lookup;
mod outer;
mod plan;
mod sequential;

pub(crate) use execution::Execution;
pub(crate) use plan::Plan;
pub(crate) use sequential::run_in_order;
