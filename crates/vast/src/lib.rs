//! VAST
#[cfg(target_endian = "big")]
compile_error!("the layouts are little-endian");

mod error;
mod key;
mod memory;
mod simd;
mod tree;

pub use error::Error;
pub use key::Key;
pub use memory::Buffer;
pub use simd::Instructions;
pub use tree::{Caches, Displacement, Goal, Plan, Preset, RegionDisplacement, Settings, Shape, Sorted, Tree};

#[cfg(test)]
mod tests;
