//! Shared by the programs of the harness and the tests that drive them.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]

pub mod operations;
