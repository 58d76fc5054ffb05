//! Tests against sorted slices: all instruction sets, all shapes, all kinds of keys.

mod columns;
mod indexes;
mod samples;
mod trees;
