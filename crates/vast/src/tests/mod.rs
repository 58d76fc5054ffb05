//! Everything compared with a sorted slice: all instructions, all shapes, all kinds of keys.

mod samples;
mod trees;
