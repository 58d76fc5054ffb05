//! Tests of the whole map against models, under concurrency, and of its structure.

mod bulk;
mod check;
mod concurrent;
mod conditions;
mod estimates;
#[cfg(feature = "shuttle")]
mod interleavings;
mod linearizable;
mod model;
