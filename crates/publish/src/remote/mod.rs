//! Requests to an object store: retries with backoff, second requests for slow ones, limits, and counters.

mod client;
mod connect;
mod counters;
mod directory;
mod latencies;
mod options;
mod tasks;

pub(crate) use client::{Listed, Remote};
pub(crate) use connect::{Retries, STAGING, connect, variables};
pub(crate) use counters::Counter;
pub use counters::RequestStats;
pub use options::RequestOptions;
pub(crate) use tasks::Tasks;
