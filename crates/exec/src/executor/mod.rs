//! The public face of the crate: the executor, and the streams of rows that it returns.

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod pool;
mod rows;

pub use pool::Executor;
pub use rows::Rows;
