//! Definitions that every other folder uses: errors, options, the description of a query, and helpers for Arrow columns.

pub(crate) mod columns;
pub(crate) mod error;
pub(crate) mod mode;
pub(crate) mod pipeline;
