//! Keeping what matters in the CPU's caches while big scans stream past.
//!
//! - [`Governor`]: classes of work, announced by the threads that run it; masks follow what runs; memory can be warmed and pinned. It
//!   takes the hardware path where there is one, else the software path, and tells why.
//! - [`resctrl`]: hardware partitioning on Linux (Intel CAT, AMD QoS): classes of service, capacity masks, monitoring.
//! - [`software`]: scans that leave the caches alone, on every machine; measured, not guessed.
//! - [`calibrate`], [`Caches`]: what the machine's caches are said to be, and what they show.
//! - [`sim`]: a simulator of caches whose ways are divided among classes; the test bed for policies.
//!
//! The modules can be used one by one; only the governor knows the others.
//!
//! What holds: the operating system's state is left as it was found (groups are removed when dropped, at exit, and after a crash by the
//! next start), nothing foreign is touched, and no policy changes what a program computes.

pub mod calibrate;
pub mod governor;
mod machine;
mod mask;
pub mod resctrl;
pub mod sim;
pub mod software;
mod stats;

pub use governor::{Governor, GovernorOptions, Pin, WeakGovernor, WorkClass, Worker};
pub use machine::{Cache, CacheKind, Caches};
pub use mask::CapacityMask;
pub use stats::Quartiles;

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
