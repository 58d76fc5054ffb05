//! Tests of the whole map.

mod bulk;
mod check;
mod concurrent;
mod conditions;
mod estimates;
#[cfg(feature = "shuttle")]
mod interleavings;
mod linearizable;
mod model;
