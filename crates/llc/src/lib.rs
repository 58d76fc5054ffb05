//! Keeping what matters in the CPU's caches.
//!
//! - [`resctrl`]: hardware partitioning on Linux (Intel CAT, AMD QoS): classes of service, capacity masks, monitoring.
//! - [`Caches`]: which caches the machine has, and who shares them.

pub mod calibrate;
mod machine;
mod mask;
mod memory;
pub mod resctrl;
pub mod sim;
pub mod software;
mod stats;

pub use machine::{Cache, CacheKind, Caches};
pub use mask::CapacityMask;
pub use memory::Memory;
pub use stats::Quartiles;
