//! Everything compared with a sorted slice: all instructions, all shapes, all kinds of keys.

mod columns;
mod indexes;
mod samples;
mod trees;
