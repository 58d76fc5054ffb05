//! Keeping what matters in the CPU's caches.
//!
//! - [`resctrl`]: hardware partitioning on Linux (Intel CAT, AMD QoS): classes of service, capacity masks, monitoring.
//! - [`Caches`]: which caches the machine has, and who shares them.

mod machine;
mod mask;
pub mod resctrl;
pub mod sim;

pub use machine::{Cache, CacheKind, Caches};
pub use mask::CapacityMask;
