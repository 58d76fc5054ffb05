//! Tests of the whole map.

mod check;
mod concurrent;
mod model;
mod values;
